//! Sums whose bits do not know the number of ranks: the batch is cut into logical shards, and every sum goes over those.
//!
//! Each rank computes its shards one after the other, sets their gradients aside and adds them along one tree over the numbers of the
//! shards (`crate::canonical`); what is left on the ranks goes to the owner of each slice, who goes on with the same tree.

use super::{Grads, sum};
use crate::canonical::{Node, join, push, roots, shards_of};
use crossweave_plan::{Lane, Reduction, StepId};
use crossweave_program::{
    Builder, Code, CollectiveKind, DType, GroupId, Member, On, Place, Tag, Traffic, View,
};

/// Adds neighbouring sums along the tree as they come, in place; the last sum goes to `out`.
struct Tree<'a, 'c> {
    on: &'a On<'c>,
    out: &'a View<'c>,
    sums: Vec<Node>,
    at: Vec<View<'c>>,
    /// Sums of two still to be made.
    left: usize,
}

impl<'c> Tree<'_, 'c> {
    fn take(&mut self, node: Node, values: View<'c>) {
        self.at.push(values);
        for _ in 0..push(&mut self.sums, node) {
            self.add();
        }
    }

    fn add(&mut self) {
        if let (Some(b), Some(a)) = (self.at.pop(), self.at.pop()) {
            self.left -= 1;
            let to = if self.left == 0 {
                self.out.clone()
            } else {
                a.clone()
            };
            sum(self.on, &to, &a, &b);
            self.at.push(to);
        }
    }

    fn finish(mut self) {
        while self.sums.len() > 1 {
            join(&mut self.sums);
            self.add();
        }
    }
}

/// Rounds a sum to the type gradients were asked to travel in.
fn round(on: &On<'_>, wire: DType, sum: &View<'_>) {
    if wire == DType::F32 || sum.numel() == 0 {
        return;
    }
    let narrow = on.empty_for([sum.numel()], wire, Tag::Comm);
    on.cast(&narrow, sum);
    on.cast(sum, &narrow);
}

/// The group of the ranks that share the flats of a bucket.
fn data_of(g: &Grads<'_>, units: &[usize]) -> Option<GroupId> {
    let first = units.first()?;
    g.job.groups.of(&g.flats[*first]).data
}

impl Grads<'_> {
    /// `Fold`: the gradient of a shard is complete, and `joins` sums of two can be made.
    pub fn fold(&mut self, b: &mut Builder, step: StepId, u: usize, joins: u32) {
        let aside = self.now[u].aside;
        let taken = &self.memory.grads[u][..=aside];
        let args: Vec<Place> = taken.iter().map(|m| (*m).into()).collect();
        let n = self.flats[u].grad_length();
        b.call(Some(step), "fold", &args, |code| {
            self.complete(code, u, aside);
            let mut last = aside;
            for _ in 0..joins {
                let [a, b] = [last - 1, last].map(|k| code.arg(k, [n], DType::F32));
                sum(&code.on(Lane::Compute), &a, &a, &b);
                code.free(last);
                last -= 1;
            }
            self.now[u].open = None;
            self.now[u].aside = last + 1;
        });
    }

    /// Sums the gradients of a bucket over the shards of all ranks: what each rank has of a slice goes to the slice's owner, who adds
    /// along the tree. What is asked for in 16 bits is rounded once, behind the last sum: between the ranks it is f32, because what
    /// travels there is a shard's gradient on one number of ranks and a sum of many on another.
    pub(super) fn reduce_canonical(
        &mut self,
        b: &mut Builder,
        step: StepId,
        units: &[u32],
        how: Reduction,
    ) {
        let units = units.iter().map(|u| *u as usize);
        let units: Vec<usize> = units.filter(|u| self.now[*u].aside > 0).collect();
        let mut args: Vec<Place> = vec![];
        let mut first = vec![];
        for u in &units {
            first.push(args.len());
            let sums = &self.memory.grads[*u][..self.now[*u].aside];
            args.push(self.memory.own[*u].into());
            args.extend(sums.iter().map(|m| Place::from(*m)));
        }
        b.call(Some(step), "reduce", &args, |code| {
            let on = code.on(self.job.reduce);
            match data_of(self, &units) {
                None => {
                    for (u, at) in units.iter().zip(&first) {
                        self.add_up_alone(code, &on, *u, *at);
                    }
                }
                Some(_) => self.add_up(code, &on, (&units, &first), how),
            }
        });
    }

    fn add_up_alone(&mut self, code: &Code<'_>, on: &On<'_>, u: usize, at: usize) {
        let n = self.flats[u].grad_length();
        let nodes = roots(shards_of(
            self.job.rank,
            self.job.ranks,
            self.job.shards.unwrap_or(1),
        ));
        let out = code.arg(at + 1, [n], DType::F32);
        let mut tree = Tree {
            on,
            out: &out,
            sums: vec![],
            at: vec![],
            left: nodes.len().saturating_sub(1),
        };
        for (k, node) in nodes.iter().enumerate() {
            tree.take(*node, code.arg(at + 1 + k, [n], DType::F32));
        }
        tree.finish();
        round(on, self.job.wire, &out);
        for k in 1..self.now[u].aside {
            code.free(at + 1 + k);
        }
        let root = self.memory.grads[u][0];
        self.now[u].aside = 0;
        self.now[u].own = Some((root.into(), root));
    }

    fn add_up(
        &mut self,
        code: &Code<'_>,
        on: &On<'_>,
        (units, first): (&[usize], &[usize]),
        how: Reduction,
    ) {
        let job = self.job;
        let (Some(data), Some(shards)) = (data_of(self, units), job.shards) else {
            return;
        };
        let nodes: Vec<Vec<Node>> = (0..job.ranks)
            .map(|r| roots(shards_of(r, job.ranks, shards)))
            .collect();
        let most = nodes.iter().map(Vec::len).max().unwrap_or(0);
        let mut sent = vec![];
        for (u, at) in units.iter().zip(first) {
            let flat = &self.flats[*u];
            let (n, slice) = (flat.grad_length(), flat.layout.slice(job.rank));
            let each = slice.end - slice.start;
            let came: Vec<View<'_>> = (0..most)
                .map(|_| on.empty_for([n], DType::F32, Tag::Comm))
                .collect();
            let home = match flat.place.sliced {
                true => {
                    code.alloc(*at, job.reduce);
                    code.arg(*at, [each], DType::F32)
                }
                false => code
                    .arg(at + 1, [n], DType::F32)
                    .narrow(0, slice.start, each),
            };
            sent.push((*u, *at, came, home));
        }
        let mut members = vec![];
        for (u, at, came, _) in &sent {
            let n = self.flats[*u].grad_length();
            for (k, came) in came.iter().enumerate() {
                // A rank with fewer sums than the fullest sends its first again, which no rank reads.
                let k = if k < self.now[*u].aside { k } else { 0 };
                members.push(Member {
                    kind: CollectiveKind::AllToAll,
                    dtype: DType::F32,
                    send: Some(code.arg(at + 1 + k, [n], DType::F32).span()),
                    recv: came.span(),
                });
            }
        }
        on.collective(data, Traffic::Grad, members);
        let pieces: usize = nodes.iter().map(Vec::len).sum();
        for (_, _, came, home) in &sent {
            let each = home.numel();
            let mut tree = Tree {
                on,
                out: home,
                sums: vec![],
                at: vec![],
                left: pieces.saturating_sub(1),
            };
            for (rank, nodes) in nodes.iter().enumerate() {
                for (node, came) in nodes.iter().zip(came) {
                    tree.take(*node, came.narrow(0, rank as u64 * each, each));
                }
            }
            tree.finish();
            round(on, self.job.wire, home);
        }
        if how == Reduction::All {
            let whole = |(u, at, _, home): &(usize, usize, Vec<View<'_>>, View<'_>)| Member {
                kind: CollectiveKind::AllGather,
                dtype: DType::F32,
                send: Some(home.span()),
                recv: code
                    .arg(at + 1, [self.flats[*u].grad_length()], DType::F32)
                    .span(),
            };
            on.collective(data, Traffic::Grad, sent.iter().map(whole).collect());
        }
        // An update, or a gradient that takes the freed memory, waits for this reduction and not for the next.
        on.mark();
        let mut ends = vec![];
        for (u, at, came, _) in sent {
            drop(came);
            ends.push((u, at));
        }
        for (u, at) in ends {
            let flat = &self.flats[u];
            let (root, own) = (self.memory.grads[u][0], self.memory.own[u]);
            let kept = !flat.place.sliced;
            for k in usize::from(kept)..self.now[u].aside {
                code.free(at + 1 + k);
            }
            self.now[u].aside = 0;
            self.now[u].own = Some(match kept {
                true => {
                    let at = 4 * flat.owned.start;
                    (Place { mem: root, at }, root)
                }
                false => (own.into(), own),
            });
        }
    }
}
