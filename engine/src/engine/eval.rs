//! Outside the step: validation loss, logits, and gradients of one batch for `probe`. These block the host; they are not the steady state.
//! Over pipeline stages a validation batch goes the way of a training batch: a stage that is not the last waits for nobody.

use super::gather::OUTSIDE;
use super::moves::staged;
use super::{Engine, MicroBatch};
use crate::error::{Error, Result};
use crate::upload::{Cuts, lengths_of, positions_of, unfit_lengths, unfit_rows};
use crate::values::Act;
use crossweave_hal::{DType, Tag};
use crossweave_mesh::Axis;
use crossweave_plan::Lane;
use crossweave_planner::{self as planner, Documents};
use crossweave_tensor::{
    Batch, Decompositions, Env, GradSink, IGNORED, Images, Keep, KernelCache, Run, Tensor,
};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

/// Each of `n` words summed over the ranks, in rank order: the same bits on all of them.
fn sums(ranks: &[f64], n: usize) -> Vec<f64> {
    let mut all = vec![0.0; n];
    for rank in ranks.chunks_exact(n.max(1)) {
        all.iter_mut().zip(rank).for_each(|(sum, w)| *sum += w);
    }
    all
}

impl Engine {
    /// Mean loss of this rank's batch over all its predictions, those that do not count adding nothing, dropout off. Of pipeline stages the last knows it, and the others give 0: [`Engine::mean_over_replicas`]
    /// tells it to all. Every stage calls this for the same batches in the same order.
    pub fn evaluate(&mut self, b: &MicroBatch<'_>) -> Result<f64> {
        let rows = self.lowered.spec.rows;
        let sizes = [rows.batch, rows.seq_len];
        let targets = Some((b.targets, b.lengths));
        // The rows are of the step's length, and stages exchange what they do in a step.
        let cuts = Cuts::of(&self.blocks.units);
        let data = self.ids(b.tokens, targets, b.images, (sizes, cuts))?;
        let out = self
            .run_all(&data)
            .map_err(|e| self.error("validation", e))?;
        let Some(out) = out.first() else {
            return Ok(0.0);
        };
        let loss = self
            .host_values(out)
            .map_err(|e| self.error("validation", e))?;
        loss.first()
            .map(|l| *l as f64)
            .ok_or_else(|| Error::Invalid("the model returned no loss".into()))
    }

    /// Logits `[batch, seq, vocab]` in f32 of text that is continued: dropout off, and no token is dropped by an expert. Where other ranks compute them with it (pipeline stages, blocks that communicate)
    /// rank 0 asks for them while it leads ([`Engine::lead`]).
    pub fn logits(&mut self, tokens: &[i32], batch: u64, seq: u64) -> Result<Vec<f32>> {
        let heads = self.heads(tokens, &[], ([batch, seq], true))?;
        Ok(heads.into_iter().next().unwrap_or_default())
    }

    /// The same of rows with images; what each head gives. Experts drop what they drop in training.
    pub fn logits_of(
        &mut self,
        tokens: &[i32],
        images: &[f32],
        shape: [u64; 2],
    ) -> Result<Vec<Vec<f32>>> {
        self.heads(tokens, images, (shape, false))
    }

    fn heads(
        &mut self,
        tokens: &[i32],
        images: &[f32],
        (shape, continues): ([u64; 2], bool),
    ) -> Result<Vec<Vec<f32>>> {
        if planner::forwards_together(&self.lowered.spec, &self.lowered.facts) {
            return self.logits_together(tokens, images, (shape, continues));
        }
        // Such rows have any length, and every rank has them as a whole.
        let mut data = self.ids(tokens, None, images, (shape, Cuts::none()))?;
        data.continues = continues;
        let heads = self.run_all(&data).map_err(|e| self.error("logits", e))?;
        let values = heads.iter().map(|t| self.host_values(t));
        values
            .collect::<Tensors<_>>()
            .map_err(|e| self.error("logits", e))
    }

    /// Loss and the gradient of every parameter for one batch, dropout off; parameters are left as they are.
    pub fn loss_and_grads(&mut self, b: &MicroBatch<'_>) -> Result<(f64, Vec<(String, Vec<f32>)>)> {
        if self.pipe.is_some() {
            return Err(Error::Invalid(
                "the gradients of one batch are taken where one rank has the whole model; leave mesh.pp out".into(),
            ));
        }
        let t = b.tokens.len() as u64;
        let rows = self.lowered.spec.rows;
        let sizes = match t == rows.tokens() {
            true => [rows.batch, rows.seq_len],
            false => [1, t],
        };
        let targets = Some((b.targets, b.lengths));
        let cuts = Cuts::of(&self.blocks.units).without_hidden();
        let data = self.ids(b.tokens, targets, b.images, (sizes, cuts))?;
        self.grads_of(&data).map_err(|e| self.error("gradients", e))
    }

    /// Mean of `x` over the data-parallel ranks, told to every rank of the job; of pipeline stages the last one's counts.
    pub fn mean(&mut self, x: f64) -> Result<f64> {
        if !self.is_distributed() {
            return Ok(x);
        }
        let counts = self.makes_loss() && self.counts_loss();
        let mine = [if counts { x } else { 0.0 }];
        let all = self
            .gather_words(&mine, "scalar")
            .map_err(|e| self.error("mean over ranks", e))?;
        Ok(sums(&all, 1)[0] / f64::from(self.lowered.spec.place.length(Axis::Dp)))
    }

    /// Mean of a figure that each replica has, by the sequences it was taken over: `mine` are those of this rank's, in order.
    ///
    /// # Errors
    /// Another number of figures than replicas here; the ranks.
    pub fn mean_over_replicas(&mut self, mine: &[f64]) -> Result<f64> {
        let own = self.lowered.spec.own_replicas();
        let [first, ..] = mine else {
            return Err(Error::Invalid("a mean of nothing".into()));
        };
        if mine.len() != own.len() {
            return Err(Error::Invalid(format!(
                "{} figures for {} replicas of rank {}",
                mine.len(),
                own.len(),
                self.lowered.spec.place.job_rank()
            )));
        }
        if self.lowered.spec.canonical.is_none() {
            return self.mean(*first * self.lowered.spec.rows.weight);
        }
        let mut all = vec![0f64; self.lowered.spec.replicas() as usize];
        all[own.start as usize..own.end as usize].copy_from_slice(mine);
        if self.lowered.spec.place.length(Axis::Dp) > 1 {
            let ranks = self
                .gather_words(&all, "scalar")
                .map_err(|e| self.error("mean over shards", e))?;
            all = sums(&ranks, all.len());
        }
        Ok(all.iter().sum::<f64>() / all.len() as f64)
    }

    /// The words of all ranks of the job, in rank order: gathered as bytes, so that no device is asked for arithmetic in f64. For
    /// figures outside the steady state, since it waits for the device.
    pub(super) fn gather_words(&self, words: &[f64], tag: &'static str) -> Tensors<Vec<f64>> {
        let mine: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let mut mesh = self.groups.mesh().borrow_mut();
        let group = mesh.group(self.lowered.spec.everyone())?;
        let mut all = vec![0u8; mine.len() * group.size() as usize];
        let reduce = self.lanes.get(Lane::Reduce)?;
        let alloc = |n: usize| self.device().alloc(reduce, n as u64, Tag::Staging);
        let (send, recv) = (alloc(mine.len())?, alloc(all.len())?);
        reduce.write(send.all(), &mine)?;
        group.all_gather(reduce, send.all(), recv.all(), DType::U8, tag)?;
        reduce.read(recv.all(), &mut all)?;
        let words = all.as_chunks::<8>().0.iter();
        Ok(words.map(|b| f64::from_le_bytes(*b)).collect())
    }

    /// `targets`: with the lengths of the documents in the rows, as in [`MicroBatch::lengths`].
    pub(super) fn ids(
        &self,
        tokens: &[i32],
        targets: Option<(&[i32], &[i32])>,
        images: &[f32],
        ([batch, seq], cuts): ([u64; 2], Cuts),
    ) -> Result<Batch> {
        let (targets, given) = (targets.map(|t| t.0), targets.map_or(&[][..], |t| t.1));
        if let Some(why) = unfit_lengths(given, self.lowered.spec.rows.documents, [batch, seq]) {
            return Err(Error::Invalid(why));
        }
        if let Some(why) = unfit_rows(&self.blocks.units, tokens, images, [batch, seq]) {
            return Err(Error::Invalid(why));
        }
        if targets.is_some_and(|t| t.len() != tokens.len()) {
            return Err(Error::Invalid(format!(
                "{} targets of {} tokens",
                targets.map_or(0, <[i32]>::len),
                tokens.len()
            )));
        }
        let seen = crate::upload::images(&self.blocks.units);
        let typed = |ids: &mut dyn Iterator<Item = i32>, shape: &[u64], dtype| -> Tensors<Tensor> {
            let bytes: Vec<u8> = ids.flat_map(|i| i.to_le_bytes()).collect();
            let b =
                self.device()
                    .alloc(&self.lanes.compute, bytes.len() as u64, Tag::Activation)?;
            self.lanes.compute.write(b.all(), &bytes)?;
            Ok(Tensor::dense(Arc::new(b), 0, shape, dtype))
        };
        let words =
            |ids: &mut dyn Iterator<Item = i32>, shape: &[u64]| typed(ids, shape, DType::I32);
        let here = cuts
            .tokens(seq)
            .map_err(|e| self.error("uploading the batch", e))?;
        let rows = [batch, here];
        let up = |ids: &[i32]| words(&mut cuts.own(ids.iter().copied(), seq), &rows);
        // Text that is continued is one document.
        let documents = self
            .lowered
            .spec
            .rows
            .documents
            .filter(|_| targets.is_some());
        let (lengths, t) = ([batch, seq + 1], seq as usize);
        let go = || {
            let attention = documents.filter(|d| d.attention);
            let positions = documents.filter(|d| d.positions);
            let mut values = images.iter().map(|x| x.to_bits() as i32);
            let mut patches = |i: Images| {
                typed(
                    &mut values,
                    &[batch * i.row, i.patches, i.patch],
                    DType::F32,
                )
            };
            let by_run = |d: Documents| -> Tensors<Vec<Tensor>> {
                let each = cuts.run_lengths(seq).into_iter().map(|run| {
                    let mut all = lengths_of(&d, tokens, given, seq).map(|cu| run.of(cu));
                    words(&mut all, &lengths)
                });
                each.collect()
            };
            let mut batch = Batch {
                tokens: Some(match &seen {
                    Some(i) => words(&mut i.words_only(tokens), &rows)?,
                    None => up(tokens)?,
                }),
                images: seen.map(&mut patches).transpose()?,
                places: seen
                    .map(|i| words(&mut i.places(tokens, t), &rows))
                    .transpose()?,
                targets: targets.map(up).transpose()?,
                // A batch that is filled up holds some whatever the training data hold.
                ignores: self.lowered.spec.rows.labelled
                    || targets.is_some_and(|t| t.contains(&(IGNORED as i32))),
                segments: attention
                    .map(|d| words(&mut *lengths_of(&d, tokens, given, seq), &lengths))
                    .transpose()?,
                positions: positions
                    .map(|d| {
                        let all = positions_of(&d, tokens, given, seq);
                        words(&mut cuts.own(all, seq), &rows)
                    })
                    .transpose()?,
                run_segments: attention.map(by_run).transpose()?.unwrap_or_default(),
                ..Batch::default()
            };
            cuts.note(&mut batch);
            Ok(batch)
        };
        go().map_err(|e| self.error("uploading the batch", e))
    }

    /// Units forward, dropout off: from what flows into the first to what flows out of the last.
    pub(super) fn run_units(
        &mut self,
        units: Range<usize>,
        mut flow: Vec<Tensor>,
        data: &Batch,
    ) -> Tensors<Vec<Tensor>> {
        for u in units {
            let cache = RefCell::new(KernelCache::default());
            self.gather_for_eval(u)?;
            let (_, outs) = self.forward_on(u, flow, data, 0, Keep::All, false, vec![], &cache)?;
            self.release_after_eval(u)?;
            flow = outs;
        }
        Ok(flow)
    }

    /// All units forward on a batch of the step's shape; what the last one made, where it runs.
    fn run_all(&mut self, data: &Batch) -> Tensors<Vec<Tensor>> {
        let mut flow = vec![];
        for leg in self.legs() {
            if let Some(from) = leg.before {
                let (pipe, mesh) = (staged(&self.pipe)?, self.groups.mesh());
                flow = pipe.flow_in(mesh, leg.units.start - 1, from, OUTSIDE)?;
            }
            flow = self.run_units(leg.units, flow, data)?;
            if let Some(to) = leg.after {
                let (pipe, mesh) = (staged(&self.pipe)?, self.groups.mesh());
                let made = std::mem::take(&mut flow);
                pipe.peers.send_out(mesh, &made, to, OUTSIDE)?;
            }
        }
        match flow.is_empty() && self.makes_loss() {
            false => Ok(flow),
            true => crossweave_tensor::shape_error("the last unit returned nothing"),
        }
    }

    pub(super) fn host_values(&self, t: &Tensor) -> Tensors<Vec<f32>> {
        let cache = RefCell::new(KernelCache::default());
        Run::new(&self.lanes.compute, &Decompositions, &cache).to_f32(t)
    }

    fn grads_of(&mut self, data: &Batch) -> Tensors<(f64, Vec<(String, Vec<f32>)>)> {
        let mut flow = vec![];
        let mut acts = vec![];
        for u in 0..self.blocks.units.len() {
            let cache = RefCell::new(KernelCache::default());
            self.gather_for_eval(u)?;
            let (act, outs) =
                self.forward_on(u, flow, data, 0, Keep::All, false, vec![], &cache)?;
            self.release_after_eval(u)?;
            acts.push(act);
            flow = outs;
        }
        let loss = match flow.first() {
            Some(l) => self.host_values(l)?.first().copied().unwrap_or(f32::NAN) as f64,
            None => f64::NAN,
        };
        // A gradient each, wherever the training step would sum it.
        let mut wholes = vec![];
        let tables = (0..self.state.count()).map(|u| self.state.table(u));
        for s in tables {
            let bytes = 4 * s.grad_length;
            let some = s.trains() && bytes > 0;
            let room = || self.device().alloc(&self.lanes.compute, bytes, Tag::Grad);
            wholes.push(some.then(room).transpose()?.map(Arc::new));
        }
        let flags = (0..self.state.count()).map(|u| vec![false; self.state.params(u).len()]);
        let mut written: Vec<Vec<bool>> = flags.collect();
        let one = self
            .device()
            .alloc(&self.lanes.compute, 4, Tag::Activation)?;
        self.lanes
            .compute
            .fill(one.all(), 1.0f32.to_bits() as u64, 4)?;
        let one = Some(Tensor::dense(Arc::new(one), 0, [1], DType::F32));
        let mut douts = vec![one; self.lowered.losses() as usize];
        for (u, act) in acts.into_iter().enumerate().rev() {
            let Act::Saved(tape, ins, outs) = act else {
                continue;
            };
            let cache = RefCell::new(KernelCache::default());
            self.gather_for_eval(u)?;
            let run = Run::new(&self.lanes.compute, &Decompositions, &cache);
            let each = || {
                let own = (0..self.blocks.units[u].params.len()).map(|i| (u, i));
                own.chain(self.blocks.units[u].borrowed.iter().copied())
            };
            let mut units: Vec<usize> = vec![];
            for (o, _) in each() {
                if !units.contains(&o) {
                    units.push(o);
                }
            }
            let rooms: Vec<_> = units.iter().filter_map(|o| wholes[*o].clone()).collect();
            self.groups.serve(u, vec![]);
            let grads = self.grads(u, &rooms)?;
            let flag = |(o, i): (usize, usize)| Rc::new(Cell::new(written[o][i]));
            let flags: Vec<Rc<Cell<bool>>> = each().map(flag).collect();
            let params = self.views(u)?;
            let sink = GradSink::new(&grads, &flags);
            let key = self.key(u, 0);
            let env = Env {
                run: &run,
                groups: &self.groups,
                params: &params,
                consts: &self.blocks.consts[u],
                grads: &sink,
                batch: data,
                key,
                training: false,
            };
            douts = tape.backward(&env, &outs, douts, &ins)?;
            for ((o, i), f) in each().zip(&flags) {
                written[o][i] |= f.get();
            }
            self.release_after_eval(u)?;
        }
        let mut named = vec![];
        for (u, whole) in wholes.into_iter().enumerate() {
            let Some(whole) = whole else { continue };
            let params = self.state.table(u).params.iter();
            for (i, (p, d)) in params.zip(self.state.params(u)).enumerate() {
                // What is not trained has none.
                if !p.trains {
                    continue;
                }
                let first = 4 * p.range.start;
                let t = Tensor::dense(whole.clone(), first, d.local(), DType::F32);
                if !written[u][i] {
                    self.lanes.compute.fill(t.region(), 0, 1)?;
                }
                named.push((d.name.clone(), self.host_values(&t)?));
            }
        }
        Ok((loss, named))
    }
}
