//! Sums of gradients: those of micro-batches, and those of a bucket over the ranks.

use super::{Grad, Grads, Job, sum};
use crossweave_flat::Flat;
use crossweave_plan::{Lane, Reduction, StepId};
use crossweave_program::abi::op;
use crossweave_program::{
    Builder, Code, CollectiveKind, DType, GroupId, Member, On, Place, Tag, Traffic, View,
};

/// A bucket's members over the data-parallel ranks: of each unit the whole gradient, and the slice of it that this rank owns.
fn members(each: &[(View<'_>, View<'_>)], how: Reduction) -> Vec<Member> {
    let member = |(whole, slice): &(View<'_>, View<'_>)| match how {
        Reduction::Scatter => Member {
            kind: CollectiveKind::ReduceScatter,
            dtype: whole.dtype(),
            send: Some(whole.span()),
            recv: slice.span(),
        },
        Reduction::All => Member {
            kind: CollectiveKind::AllReduce,
            dtype: whole.dtype(),
            send: None,
            recv: whole.span(),
        },
    };
    each.iter().map(member).collect()
}

/// Adds `wide`, rounded, to a sum in 16 bits.
fn add_rounded(on: &On<'_>, total: &View<'_>, wide: &View<'_>) {
    let rounded = on.empty_for([wide.numel()], total.dtype(), Tag::Grad);
    on.cast(&rounded, wide);
    let p = op::AxpbyParams {
        alpha: 1.0,
        beta: 1.0,
        ..Default::default()
    };
    on.plain(op::AXPBY, &[total, &rounded], p.as_bytes());
}

impl Grad {
    /// Whether what a reduction of unit `u` brings is added to the slice, or begins a sum in 16 bits.
    fn adds_up(&self, job: &Job, u: usize, more: bool) -> bool {
        let narrow = job.accumulate != DType::F32;
        let here = job.parts[u].reduced && !job.parts[u].leave;
        here && (self.own.is_some() || self.summed || more && narrow)
    }

    /// Adds the reduced gradient of some micro-batches to the slice, whose memory is at the parameters `arg..` of the fragment. Where
    /// micro-batches are added up in 16 bits, each is rounded, and so is the sum.
    fn add(&mut self, job: &Job, code: &Code<'_>, (arg, part): (usize, &View<'_>), more: bool) {
        let on = code.on(job.reduce);
        let n = part.numel();
        let slice = code.arg(arg + 1, [n], DType::F32);
        if job.accumulate == DType::F32 {
            return sum(&on, &slice, &slice, part);
        }
        let total = code.arg(arg + 2, [n], job.accumulate);
        if !std::mem::replace(&mut self.summed, more) {
            code.alloc(arg + 2, job.reduce);
            return on.cast(&total, part);
        }
        add_rounded(&on, &total, part);
        if !more {
            code.alloc(arg + 1, job.reduce);
            on.cast(&slice, &total);
            code.free(arg + 2);
        }
    }

    /// The same of the part of a gradient that does not leave, whose sum begins with the first.
    pub(super) fn add_rest(
        &mut self,
        job: &Job,
        code: &Code<'_>,
        (arg, part): (usize, &View<'_>),
        more: bool,
    ) {
        if job.accumulate != DType::F32 {
            return self.add(job, code, (arg, part), more);
        }
        if !std::mem::replace(&mut self.summed, more) {
            code.alloc(arg + 1, job.reduce);
            let sum = code.arg(arg + 1, [part.numel()], DType::F32);
            return code.on(job.reduce).copy(&sum, part);
        }
        self.add(job, code, (arg, part), more);
    }
}

/// Adds what a reduction has brought to the sums of the micro-batches before.
fn add_parts(
    (job, now): (&Job, &mut [Grad]),
    code: &Code<'_>,
    (units, grads): (&[usize], &[(View<'_>, View<'_>)]),
    more: bool,
) {
    for (k, (u, (_, part))) in units.iter().zip(grads).enumerate() {
        if now[*u].adds_up(job, *u, more) {
            now[*u].add(job, code, (3 * k, part), more);
        }
    }
}

/// Sums over ranks that have other tokens, or other parts of experts, what each has a summand of, of all units of a bucket in one call: of whole gradients
/// `before` they are reduced, or of slices behind that. Returns true if there was something. A bucket is of units that the same ranks share.
fn sum_summands<'v>(
    (job, flats): (&Job, &[Flat]),
    on: &On<'_>,
    grads: impl Iterator<Item = (usize, &'v View<'v>)>,
    before: bool,
) -> bool {
    let (mut members, mut group) = (vec![], None);
    for (u, grad) in grads {
        let flat = &flats[u];
        let summands = job.summands.get(u);
        let Some(summands) = summands.filter(|s| s.before == before) else {
            continue;
        };
        group = group.or(summands.group);
        let here = match before {
            true => 0..flat.length(),
            false => flat.owned.clone(),
        };
        for r in &summands.ranges {
            let (start, end) = (r.start.max(here.start), r.end.min(here.end));
            if start < end {
                members.push(Member {
                    kind: CollectiveKind::AllReduce,
                    dtype: DType::F32,
                    send: None,
                    recv: grad.narrow(0, start - here.start, end - start).span(),
                });
            }
        }
    }
    match group.filter(|_| !members.is_empty()) {
        None => false,
        Some(group) => {
            on.collective(group, Traffic::Grad, members);
            true
        }
    }
}

impl Grads<'_> {
    /// Before a backward that writes the gradients of `units` (each with which of its parameters it writes): makes room for those that
    /// have none, and answers for each parameter whether its gradient is added to.
    ///
    /// The room is at the parameters `args..` of the fragment, one for each unit that trains.
    pub fn open(
        &mut self,
        code: &Code<'_>,
        units: &[(usize, Vec<bool>)],
        first: usize,
    ) -> Vec<Vec<bool>> {
        let mut adds = vec![];
        let mut arg = first;
        for (u, writes) in units {
            let flat = &self.flats[*u];
            if !flat.trains() {
                adds.push(vec![false; writes.len()]);
                continue;
            }
            let open = self.now[*u].open.get_or_insert_with(|| {
                code.alloc(arg, Lane::Compute);
                vec![false; flat.params.len()]
            });
            arg += 1;
            adds.push(open.clone());
            for (w, new) in open.iter_mut().zip(writes) {
                *w |= new;
            }
        }
        adds
    }

    /// The memory that [`Grads::open`] takes, in its order.
    pub fn rooms(&self, units: &[(usize, Vec<bool>)]) -> Vec<Place> {
        let trains = units.iter().filter(|(u, _)| self.flats[*u].trains());
        let room = |(u, _): &(usize, Vec<bool>)| self.memory.grads[*u][self.now[*u].aside].into();
        trains.map(room).collect()
    }

    /// Parameters that no backward has written get a gradient of zero.
    pub(super) fn complete(&mut self, code: &Code<'_>, u: usize, arg: usize) {
        let flat = &self.flats[u];
        let open = self.now[u].open.get_or_insert_with(|| {
            code.alloc(arg, Lane::Compute);
            vec![false; flat.params.len()]
        });
        for (i, written) in open.iter_mut().enumerate() {
            let r = flat.layout.range(i);
            if !std::mem::replace(written, true) && flat.params[i].trains && r.end > r.start {
                let g = code.arg_at(arg, 4 * r.start, [r.end - r.start], DType::F32);
                code.on(Lane::Compute).fill(&g, 0, 1);
            }
        }
    }

    /// Behind the backward of unit `u`, where micro-batches are added up in 16 bits (`data_types.grad_accum_dtype`): the micro-batch's
    /// gradient, made in f32, is rounded and added to the sum, which is rounded too; half the memory of gradients between micro-batches,
    /// and the rounding of DeepSpeed's buffers.
    pub fn fold_micro_batch(&mut self, b: &mut Builder, step: StepId, u: usize) {
        let narrow = self.job.accumulate;
        let flat = &self.flats[u];
        if narrow == DType::F32 || self.job.parts[u].reduced || !flat.trains() {
            return;
        }
        let args = [self.memory.grads[u][0].into(), self.memory.sums[u].into()];
        let n = flat.length();
        b.call(Some(step), "fold", &args, |code| {
            let on = code.on(Lane::Compute);
            self.complete(code, u, 0);
            let wide = code.arg(0, [n], DType::F32);
            let sum = code.arg(1, [n], narrow);
            if !std::mem::replace(&mut self.now[u].summed, true) {
                code.alloc(1, Lane::Compute);
                on.cast(&sum, &wide);
                code.free(0);
            } else {
                add_rounded(&on, &sum, &wide);
                code.free(0);
            }
            self.now[u].open = None;
        });
    }

    /// `ReduceGrad`: sums the gradients of a bucket over the ranks: whole everywhere, or each rank its slice. Sums run in rank order in
    /// f32 either way, so the bits do not depend on which.
    /// With `more`, of the micro-batches so far: the slice is added to, and the next backward begins a new gradient.
    pub fn reduce(
        &mut self,
        b: &mut Builder,
        step: StepId,
        (units, more): (&[u32], bool),
        how: Reduction,
    ) {
        if self.job.shards.is_some() {
            return self.reduce_canonical(b, step, units, how);
        }
        let units: Vec<usize> = units.iter().map(|u| *u as usize).collect();
        // Three parameters a unit: its whole gradient, the slice, the sum over micro-batches.
        let each = units.iter().flat_map(|u| {
            let m = self.memory;
            [m.grads[*u][0], m.own[*u], m.sums[*u]].map(Place::from)
        });
        let args: Vec<Place> = each.collect();
        let sliced = |g: &Grads<'_>, u: usize| {
            let p = &g.flats[u].place;
            // A rank alone adds up what it keeps beside the gradient that is made.
            let beside = g.job.parts[u].reduced && !g.job.parts[u].leave;
            p.sliced && p.ranks > 1 || beside
        };
        b.call(Some(step), "reduce", &args, |code| {
            for (k, u) in units.iter().enumerate() {
                self.widen(code, *u, 3 * k);
                self.complete(code, *u, 3 * k);
            }
            let on = code.on(self.job.reduce);
            let mut grads = vec![];
            for (k, u) in units.iter().enumerate() {
                let flat = &self.flats[*u];
                let whole = code.arg(3 * k, [flat.length()], DType::F32);
                let n = flat.owned_len();
                let slice = match sliced(self, *u) {
                    true if self.now[*u].adds_up(self.job, *u, more) => {
                        on.empty_for([n], DType::F32, Tag::Grad)
                    }
                    true => {
                        code.alloc(3 * k + 1, self.job.reduce);
                        code.arg(3 * k + 1, [n], DType::F32)
                    }
                    false => whole.narrow(0, flat.owned.start, n),
                };
                grads.push((whole, slice));
            }
            let wholes = units.iter().zip(&grads).map(|(u, (whole, _))| (*u, whole));
            sum_summands((self.job, self.flats), &on, wholes, true);
            // A bucket is of flats that the same ranks share.
            let owners = units.first().map(|u| self.job.groups.of(&self.flats[*u]));
            let data = owners.and_then(|o| o.data);
            if let Some(data) = data {
                match self.job.wire {
                    DType::F32 => {
                        on.collective(data, Traffic::Grad, members(&grads, how));
                    }
                    wire => self.reduce_narrow(&on, data, (&units, &grads), how, wire),
                }
            } else {
                let each = units.iter().zip(&grads);
                for (_, (whole, part)) in each.filter(|(u, _)| sliced(self, **u)) {
                    on.copy(part, whole);
                }
            }
            add_parts((self.job, &mut self.now), code, (&units, &grads), more);
            let owned: Vec<(usize, View<'_>)> = units
                .iter()
                .enumerate()
                .filter(|(_, u)| !more || self.job.parts[**u].leave)
                .map(|(k, u)| {
                    let n = self.flats[*u].owned_len();
                    let slice = || code.arg(3 * k + 1, [n], DType::F32);
                    let part = sliced(self, *u).then(slice);
                    (*u, part.unwrap_or_else(|| grads[k].1.clone()))
                })
                .collect();
            let summed = sum_summands(
                (self.job, self.flats),
                &on,
                owned.iter().map(|(u, v)| (*u, v)),
                false,
            );
            if data.is_some() || summed {
                // An update, or a gradient that takes the freed memory, waits for this reduction and not for the next.
                on.mark();
            }
            for (k, u) in units.iter().enumerate() {
                let memory = self.memory;
                let own = match sliced(self, *u) {
                    true => {
                        code.free(3 * k);
                        (Place::from(memory.own[*u]), memory.own[*u])
                    }
                    false => {
                        let mem = memory.grads[*u][0];
                        let at = 4 * self.flats[*u].owned.start;
                        (Place { mem, at }, mem)
                    }
                };
                self.now[*u].open = None;
                if !self.now[*u].summed || self.job.parts[*u].leave {
                    (self.now[*u].own, self.now[*u].rest) = (Some(own), false);
                }
            }
        });
    }

    /// The sum over micro-batches becomes the gradient that is reduced.
    fn widen(&mut self, code: &Code<'_>, u: usize, arg: usize) {
        let flat = &self.flats[u];
        if self.job.parts[u].reduced || !std::mem::replace(&mut self.now[u].summed, false) {
            return;
        }
        let n = flat.length();
        code.alloc(arg, Lane::Compute);
        let sum = code.arg(arg + 2, [n], self.job.accumulate);
        code.on(Lane::Compute)
            .cast(&code.arg(arg, [n], DType::F32), &sum);
        self.now[u].open = Some(vec![true; flat.params.len()]);
        code.free(arg + 2);
    }

    /// The same on a narrower wire (`communication_data_type`): cast before they travel, summed in f32 by the collective, rounded once,
    /// widened behind it. What is accumulated and what the update reads stays f32.
    fn reduce_narrow(
        &self,
        on: &On<'_>,
        data: GroupId,
        (units, grads): (&[usize], &[(View<'_>, View<'_>)]),
        how: Reduction,
        wire: DType,
    ) {
        let mut sent = vec![];
        for (u, (whole, _)) in units.iter().zip(grads) {
            let narrow = on.empty_for([whole.numel()], wire, Tag::Comm);
            on.cast(&narrow, whole);
            let owned = &self.flats[*u].owned;
            let slice = narrow.narrow(0, owned.start, owned.end - owned.start);
            sent.push((narrow, slice));
        }
        on.collective(data, Traffic::Grad, members(&sent, how));
        for ((whole, slice), (narrow, part)) in grads.iter().zip(&sent) {
            let (to, from) = match how {
                Reduction::Scatter => (slice, part),
                Reduction::All => (whole, narrow),
            };
            if to.numel() > 0 {
                on.cast(to, from);
            }
        }
    }

    /// `Tie`: the reduced gradient of a unit that pipeline stages share is summed over them, each rank with those that own the same
    /// elements.
    pub fn tie(&self, b: &mut Builder, step: StepId, u: usize, group: GroupId) {
        let Some(own) = self.own(u) else { return };
        let n = self.flats[u].owned_len();
        b.call(Some(step), "tie", &[own], |code| {
            let on = code.on(self.job.reduce);
            let member = Member {
                kind: CollectiveKind::AllReduce,
                dtype: DType::F32,
                send: None,
                recv: code.arg(0, [n], DType::F32).span(),
            };
            on.collective(group, Traffic::Tie, vec![member]);
            on.mark();
        });
    }

    /// The gradient of a unit is used: its memory is free.
    pub fn close(&mut self, b: &mut Builder, step: StepId, u: usize) {
        if let Some((_, mem)) = self.now[u].own.take() {
            b.call(Some(step), "close", &[mem.into()], |code| {
                code.free(0);
            });
        }
    }
}
