//! Training whose bits do not know the number of ranks: the batch is cut into logical shards, and every sum goes over those.
//!
//! Each rank computes its shards one after the other, sets their gradients aside and adds them along one tree over the numbers of the
//! shards (`crossweave_zero::canonical`); what is left on the ranks goes to the owner of each slice, who goes on with the same tree. Of
//! whatever else is summed (losses, squares) each term is one word that one rank writes and the others leave at zero, so that the sum over
//! the ranks only moves it; the words are then added in their order on every rank.

use crate::error::{Error, Result};
use crate::figures::Figures;
use crate::optim::map;
use crate::trainer::{RankSpec, Trainer};
use crate::walk::{FOLD, SQUARES, TOTAL, WIRE};
use crossweave_hal::abi::op;
use crossweave_hal::{Buffer, Collective, DType, Reduce, Tag};
use crossweave_mesh::Axis;
use crossweave_plan::Reduction;
use crossweave_tensor::{Decompositions, KernelCache, Run, Tensor};
use crossweave_zero::canonical::{Node, fullest, join, push, roots, shards_of};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

impl RankSpec {
    /// Ranks as the batch and its means see them: the logical shards where sums are canonical, else the ranks themselves.
    pub fn replicas(&self) -> u32 {
        self.canonical.unwrap_or(self.world)
    }
    /// Those that this rank computes.
    pub fn own_replicas(&self) -> Range<u32> {
        match self.canonical {
            Some(shards) => shards_of(self.rank, self.world, shards),
            None => self.rank..self.rank + 1,
        }
    }
    /// The most that any rank computes.
    pub fn most_replicas(&self) -> u32 {
        self.canonical.map_or(1, |s| fullest(self.world, s))
    }
    /// Micro-batches of a step that this rank computes.
    pub fn own_micro_batches(&self) -> u32 {
        self.own_replicas().len() as u32 * self.micro_batches
    }
    /// Micro-batches of a step on the fullest rank: those whose gathers the plan has on every rank.
    pub(crate) fn most_micro_batches(&self) -> u32 {
        self.most_replicas() * self.micro_batches
    }
    /// The first micro-batch of this rank among those of all.
    pub(crate) fn own_first(&self) -> u32 {
        self.own_replicas().start * self.micro_batches
    }

    pub(crate) fn check_canonical(&self) -> Result<()> {
        let Some(shards) = self.canonical else {
            return Ok(());
        };
        if shards < self.world {
            return Err(Error::Invalid(format!(
                "{shards} logical shards for {} ranks: each rank needs one at least",
                self.world
            )));
        }
        if self.pipeline.is_some() {
            return Err(Error::Invalid(
                "logical shards and pipeline stages together are not available: train with one stage, or without logical shards".into(),
            ));
        }
        if self.zero.quantized {
            return Err(Error::Invalid(
                "gathers in 8 bits round each rank's slice by itself, so their values follow from the number of ranks: not with logical shards"
                    .into(),
            ));
        }
        Ok(())
    }
}

/// Adds neighbouring sums along the tree as they come, in place; the last sum goes to `out`.
struct Tree<'a> {
    run: &'a Run<'a>,
    out: &'a Tensor,
    sums: Vec<Node>,
    at: Vec<Tensor>,
    /// Sums of two still to be made.
    left: usize,
}

impl Tree<'_> {
    fn take(&mut self, node: Node, values: Tensor) -> Tensors<()> {
        self.at.push(values);
        let joins = push(&mut self.sums, node);
        (0..joins).try_for_each(|_| self.add())
    }

    fn add(&mut self) -> Tensors<()> {
        let (Some(b), Some(a)) = (self.at.pop(), self.at.pop()) else {
            return crossweave_tensor::shape_error("a sum of two without two");
        };
        self.left -= 1;
        let to = if self.left == 0 {
            self.out.clone()
        } else {
            a.clone()
        };
        sum(self.run, &to, &a, &b)?;
        self.at.push(to);
        Ok(())
    }

    fn finish(mut self) -> Tensors<()> {
        while self.sums.len() > 1 {
            join(&mut self.sums);
            self.add()?;
        }
        Ok(())
    }
}

/// `to = a + b`.
fn sum(run: &Run<'_>, to: &Tensor, a: &Tensor, b: &Tensor) -> Tensors<()> {
    map(run, &[to], &[a, b], &[], |x| vec![x[0] + x[1]])
}

/// A unit's gradient on its way to the owners.
struct Sent {
    unit: usize,
    /// Elements of a rank's slice.
    each: u64,
    /// What came from every rank: each one's first sum, each one's second, ...
    came: Vec<Arc<Buffer>>,
    /// Where the sum of the own slice belongs: buffer and element.
    home: (Arc<Buffer>, u64),
    /// Where in that buffer begins what this rank owns: its slice, or all.
    owned: u64,
}

impl Trainer {
    /// `Fold`: the gradient of a shard is complete, and `joins` sums of two can be made.
    pub(crate) fn fold(&mut self, u: usize, joins: u32) -> Tensors<()> {
        self.state[u].complete_grad(&self.compute)?;
        self.state[u].set_aside();
        let cache = self.cache(u, FOLD);
        for _ in 0..joins {
            let [.., a, b] = self.state[u].sums() else {
                return crossweave_tensor::shape_error("a fold without two gradients set aside");
            };
            let (a, b) = (flat(a), flat(b));
            sum(
                &Run::new(&self.compute, &Decompositions, &cache),
                &a,
                &a,
                &b,
            )?;
            self.state[u].aside().pop();
        }
        self.keep_cache(u, FOLD, cache);
        Ok(())
    }

    /// Sums the gradients of a bucket over the shards of all ranks: what each rank has of a slice goes to the slice's owner, who adds along
    /// the tree. What is asked for in 16 bits is rounded once, behind the last sum: between the ranks it is f32, because what travels there is
    /// a shard's gradient on one number of ranks and a sum of many on another.
    pub(crate) fn reduce_canonical(&mut self, units: &[u32], how: Reduction) -> Tensors<()> {
        let cache = self.cache(units.first().map_or(0, |u| *u as usize), WIRE);
        let owned = match self.spec.world {
            1 => self.add_up_alone(units, &cache)?,
            _ => self.add_up(units, how, &cache)?,
        };
        self.keep_cache(units.first().map_or(0, |u| *u as usize), WIRE, cache);
        for (u, buffer, at) in owned {
            self.state[u].own_grad_at(buffer, at);
        }
        Ok(())
    }

    fn add_up_alone(
        &self,
        units: &[u32],
        cache: &RefCell<KernelCache>,
    ) -> Tensors<Vec<(usize, Arc<Buffer>, u64)>> {
        let run = Run::new(self.reduce_stream(), &Decompositions, cache);
        let nodes = roots(self.spec.own_replicas());
        let mut owned = vec![];
        for u in units.iter().map(|u| *u as usize) {
            let sums = self.state[u].sums();
            let Some(root) = sums.first() else { continue };
            let out = flat(root);
            let mut tree = self.tree(&run, &out, nodes.len());
            for (node, buffer) in nodes.iter().zip(sums) {
                tree.take(*node, flat(buffer))?;
            }
            tree.finish()?;
            self.round(&run, &out)?;
            owned.push((u, root.clone(), 0));
        }
        Ok(owned)
    }

    fn add_up(
        &self,
        units: &[u32],
        how: Reduction,
        cache: &RefCell<KernelCache>,
    ) -> Tensors<Vec<(usize, Arc<Buffer>, u64)>> {
        let (spec, stream) = (&self.spec, self.reduce_stream());
        let nodes: Vec<Vec<Node>> = (0..spec.world)
            .map(|r| roots(shards_of(r, spec.world, spec.replicas())))
            .collect();
        let most = nodes.iter().map(Vec::len).max().unwrap_or(0);
        let mut sent = vec![];
        for u in units.iter().map(|u| *u as usize) {
            let s = &self.state[u];
            let Some(root) = s.sums().first() else {
                continue;
            };
            let slice = s.layout.slice(spec.rank);
            let each = slice.end - slice.start;
            let came = (0..most).map(|_| {
                Ok(Arc::new(stream.device().alloc(
                    stream,
                    root.bytes(),
                    Tag::Comm,
                )?))
            });
            let came = came.collect::<Tensors<Vec<_>>>()?;
            let (home, owned) = match s.hold.grad_shards {
                true => {
                    let own = stream.device().alloc(stream, 4 * each, Tag::Grad)?;
                    ((Arc::new(own), 0), 0)
                }
                false => ((root.clone(), slice.start), s.owned().start),
            };
            sent.push(Sent {
                unit: u,
                each,
                came,
                home,
                owned,
            });
        }
        let mut members = vec![];
        for s in &sent {
            let sums = self.state[s.unit].sums();
            for (k, came) in s.came.iter().enumerate() {
                // A rank with fewer sums than the fullest sends its first again, which nobody reads.
                members.push(Collective::AllToAll {
                    send: sums[if k < sums.len() { k } else { 0 }].all(),
                    recv: came.all(),
                    dtype: DType::F32,
                });
            }
        }
        let mut mesh = self.groups.mesh().borrow_mut();
        mesh.group(&[Axis::Dp])?.group(stream, &members, "grad")?;
        let run = Run::new(stream, &Decompositions, cache);
        let pieces = nodes.iter().map(Vec::len).sum();
        for s in &sent {
            let slice =
                |b: &Arc<Buffer>, at| Tensor::dense(b.clone(), 4 * at, [s.each], DType::F32);
            let out = slice(&s.home.0, s.home.1);
            let mut tree = self.tree(&run, &out, pieces);
            for (rank, nodes) in nodes.iter().enumerate() {
                for (node, came) in nodes.iter().zip(&s.came) {
                    tree.take(*node, slice(came, rank as u64 * s.each))?;
                }
            }
            tree.finish()?;
            self.round(&run, &out)?;
        }
        if how == Reduction::All {
            let whole = sent.iter().map(|s| Collective::AllGather {
                send: s.home.0.region(4 * s.home.1, 4 * s.each),
                recv: s.home.0.all(),
                dtype: DType::F32,
            });
            let whole: Vec<_> = whole.collect();
            mesh.group(&[Axis::Dp])?.group(stream, &whole, "grad")?;
        }
        // An update, or a gradient that takes the freed memory, waits for this reduction and not for the next.
        stream.mark()?;
        let owned = sent.into_iter().map(|s| (s.unit, s.home.0, s.owned));
        Ok(owned.collect())
    }

    fn tree<'a>(&self, run: &'a Run<'a>, out: &'a Tensor, pieces: usize) -> Tree<'a> {
        Tree {
            run,
            out,
            sums: vec![],
            at: vec![],
            left: pieces.saturating_sub(1),
        }
    }

    /// Rounds a sum to the type gradients were asked to travel in.
    fn round(&self, run: &Run<'_>, sum: &Tensor) -> Tensors<()> {
        let wire = self.spec.precision.wire;
        if wire == DType::F32 || sum.numel() == 0 {
            return Ok(());
        }
        let narrow = run.empty_for([sum.numel()], wire, Tag::Comm)?;
        let none = op::NoParams::default();
        for (to, from) in [(&narrow, sum), (sum, &narrow)] {
            run.launch(op::CAST, &[Some(to), Some(from)], none.as_bytes(), &[])?;
        }
        Ok(())
    }

    /// The squares of each logical slice that this rank owns of a unit's gradient, to the slice's word.
    pub(crate) fn sum_logical_squares(&mut self, u: usize, f: &Figures) -> Tensors<()> {
        let first = f.slices().start + self.state[..u].iter().map(|s| s.words).sum::<u64>();
        let cache = self.cache(u, SQUARES);
        let run = Run::new(&self.compute, &Decompositions, &cache);
        let s = &self.state[u];
        for (word, runs) in &s.squares {
            let word = f.word(first + word);
            let parts: Vec<Tensor> = runs.iter().filter_map(|r| s.grad(r)).collect();
            if parts.is_empty() {
                continue;
            }
            let operands: Vec<_> = std::iter::once(&word).chain(&parts).map(Some).collect();
            let p = op::NoParams::default();
            run.launch(op::MULTI_SUMSQ, &operands, p.as_bytes(), &[])?;
        }
        self.keep_cache(u, SQUARES, cache);
        Ok(())
    }

    /// Word `to` = the sum of `words` over the ranks, one of which wrote each, in the order of the words.
    pub(crate) fn sum_words(&mut self, f: &Figures, words: Range<u64>, to: u64) -> Tensors<()> {
        let n = words.end - words.start;
        if self.spec.world > 1 {
            let mut mesh = self.groups.mesh().borrow_mut();
            mesh.group(&[Axis::Dp])?.all_reduce(
                self.reduce_stream(),
                f.words.region(4 * words.start, 4 * n),
                DType::F32,
                Reduce::Sum,
                "scalar",
            )?;
        }
        let cache = self.cache(0, TOTAL);
        let run = Run::new(&self.compute, &Decompositions, &cache);
        let p = op::ReduceParams {
            kind: op::reduce::SUM,
            axes: 1,
            ..Default::default()
        };
        let all = Tensor::dense(f.words.clone(), 4 * words.start, [n], DType::F32);
        run.launch(
            op::REDUCE,
            &[Some(&f.word(to)), Some(&all)],
            p.as_bytes(),
            &[],
        )?;
        self.keep_cache(0, TOTAL, cache);
        Ok(())
    }

    /// Mean of a figure that each replica has, by the sequences it was taken over: `mine` are those of this rank's, in order.
    ///
    /// # Errors
    /// Another number of figures than replicas here; the ranks.
    pub fn mean_over_replicas(&mut self, mine: &[f64]) -> Result<f64> {
        let own = self.spec.own_replicas();
        let [first, ..] = mine else {
            return Err(Error::Invalid("a mean of nothing".into()));
        };
        if mine.len() != own.len() {
            return Err(Error::Invalid(format!(
                "{} figures for {} replicas of rank {}",
                mine.len(),
                own.len(),
                self.spec.job_rank()
            )));
        }
        if self.spec.canonical.is_none() {
            return self.mean(*first * self.spec.weight);
        }
        let mut all = vec![0f64; self.spec.replicas() as usize];
        all[own.start as usize..own.end as usize].copy_from_slice(mine);
        if self.spec.world > 1 {
            self.add_words(&mut all, "scalar")
                .map_err(|e| self.error("mean over shards", e))?;
        }
        Ok(all.iter().sum::<f64>() / all.len() as f64)
    }
}

/// A whole gradient as one vector.
fn flat(b: &Arc<Buffer>) -> Tensor {
    Tensor::dense(b.clone(), 0, [b.bytes() / 4], DType::F32)
}
