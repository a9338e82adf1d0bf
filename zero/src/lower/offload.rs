//! The ways of gradients to the host, and what its thread is given to do: `GradOut`, `Update` on the host's lane, `StateIn` and
//! `StateOut`.
//!
//! | what | where it rests | what moves it |
//! |---|---|---|
//! | states, masters | pinned memory, or a file through a bounded pool | never: the host's device computes on it in place |
//! | gradient | pinned memory, or beside its state in the file | `GradOut`, once a step |
//! | gradients of micro-batches | a landing in pinned memory or a block of the pool, from which they are added to the sum beside the state | `GradOut`, once a micro-batch |
//! | squares of a sum | behind the last micro-batch back to the device, for the norm | `Bring` |

use super::{Grads, Job, Words};
use crossweave_flat::Flat;
use crossweave_plan::{Lane, StepId};
use crossweave_program::{
    Brought, Builder, Code, DType, HostJob, HostMemory, Life, MemId, MemoryDecl, MemorySpace,
    Place, Tag,
};

/// Memory of what goes to the host.
#[derive(Clone, Debug)]
pub struct ToHost {
    /// Type of gradients on their way, and of those of some micro-batches.
    wire: [DType; 2],
    /// The words of the step, as they leave; and where they arrive.
    words: (MemId, MemId),
    /// Where the gradient of each unit arrives.
    grads: Vec<MemId>,
    /// The sum of what the device updates of a gradient whose parts leave.
    rest: Vec<Option<MemId>>,
    /// The words of this step have left.
    begun: bool,
    /// Gradients of micro-batches on their way, whose memory is free when the next bucket leaves: until then the next backward would
    /// wait for their copies.
    leaving: Vec<MemId>,
    /// What leaves next is of another bucket.
    bucket: bool,
}

impl ToHost {
    /// Declares it for units of these flats.
    pub fn declare(b: &mut Builder, job: &Job, flats: &[Flat], wire: DType) -> ToHost {
        // A sum in 16 bits is of parts that were rounded.
        let part = match job.accumulate {
            DType::F32 => wire,
            narrow => narrow,
        };
        let mut declare = |name: String, bytes, dtype, tag, home, life| {
            b.memory(MemoryDecl {
                name,
                bytes,
                dtype,
                tag,
                home,
                life,
            })
        };
        let (device, pinned) = (MemorySpace::Device, MemorySpace::Pinned);
        let always = Life::Always { turns: 1 };
        let mut words = |name: &str, home, life| {
            let name = name.to_string();
            declare(name, Words::READ, DType::F32, Tag::Staging, home, life)
        };
        let words = (
            words("words out", device, always),
            words("host words", pinned, Life::Transient),
        );
        let each = || flats.iter().enumerate();
        let grads = each().map(|(u, f)| {
            let name = format!("host grad.{u}");
            let wire = if job.parts[u].leave { part } else { wire };
            let bytes = wire.bytes(f.host);
            declare(name, bytes, wire, Tag::Grad, pinned, Life::Transient)
        });
        let grads = grads.collect();
        let rest = each().map(|(u, f)| {
            let bytes = 4 * (f.owned_len() - f.host);
            let name = format!("rest.{u}");
            job.parts[u]
                .leave
                .then(|| declare(name, bytes, DType::F32, Tag::Grad, device, Life::Transient))
        });
        ToHost {
            wire: [wire, part],
            rest: rest.collect(),
            grads,
            words,
            begun: false,
            leaving: vec![],
            bucket: false,
        }
    }

    /// `GradOut`: the host's part of the reduced gradient of unit `u` leaves.
    pub fn grad_out(&self, b: &mut Builder, step: StepId, (g, u): (&Grads<'_>, usize)) {
        let n = g.flats[u].host;
        let Some(own) = g.own(u).filter(|_| n > 0) else {
            return;
        };
        let what = HostMemory::Grad(u as u32);
        b.call(
            Some(step),
            "grad out",
            &[own, self.grads[u].into()],
            |code| self.leave(code, (what, self.wire[0]), n),
        );
    }

    /// Before a bucket is reduced, into memory `own`: what leaves from here on is of it.
    pub fn next_bucket(&mut self, b: &mut Builder, step: StepId, own: &[MemId]) {
        self.settle(b, Some(step), Some(own));
        self.bucket = true;
    }

    /// Frees the memory of gradients on their way that is among `wanted`; without them, of all.
    pub fn settle(&mut self, b: &mut Builder, step: Option<StepId>, wanted: Option<&[MemId]>) {
        let over = |m: &MemId| wanted.is_none_or(|w| w.contains(m));
        let (over, left): (Vec<MemId>, Vec<MemId>) = self.leaving.iter().partition(|m| over(m));
        self.leaving = left;
        let args: Vec<Place> = over.into_iter().map(Place::from).collect();
        if !args.is_empty() {
            let free = |code: &Code<'_>| (0..args.len()).for_each(|i| code.free(i));
            b.call(step, "have left", &args, free);
        }
    }

    /// `GradOut` where the host adds up what leaves: its part of the gradient of some micro-batches, or (`last`) of the last ones, whose
    /// sum it then measures. What the device updates is added up here.
    pub fn part_out(
        &mut self,
        b: &mut Builder,
        step: StepId,
        (g, u): (&mut Grads<'_>, usize),
        last: bool,
    ) {
        let (f, memory, job) = (&g.flats[u], g.memory, g.job);
        let (n, room) = (f.host, u as u32);
        let (Some(own), Some(arrived), Some(kept)) = (g.own(u), memory.arrived, self.rest[u])
        else {
            return;
        };
        let what = match last {
            true => HostMemory::Last(room),
            false => HostMemory::Part(room),
        };
        let others = [self.grads[u], kept, memory.sums[u], arrived];
        let over = match std::mem::take(&mut self.bucket) {
            true => std::mem::take(&mut self.leaving),
            false => vec![],
        };
        self.leaving.push(own.mem);
        let args: Vec<Place> = std::iter::once(own)
            .chain(others.into_iter().chain(over).map(Place::from))
            .collect();
        let rest = f.owned_len() - n;
        b.call(Some(step), "part out", &args, |code| {
            self.leave(code, (what, self.wire[1]), n);
            if last {
                let figure = |k: usize| {
                    let at = 4 * (k * g.flats.len() + u) as u64;
                    code.arg_at(4, at, [1], DType::F32)
                };
                code.bring(room, Brought::Squares, &figure(0));
                if rest > 0 {
                    code.bring(room, Brought::SquaresLow, &figure(1));
                }
                if job.scaled {
                    code.bring(room, Brought::NonFinite, &figure(2));
                }
            }
            if rest > 0 {
                let part = code.arg_at(0, 4 * n, [rest], DType::F32);
                g.now[u].add_rest(job, code, (1, &part), !last);
            }
            (1 + others.len()..args.len()).for_each(|i| code.free(i));
        });
        let now = &mut g.now[u];
        now.own = (last && rest > 0).then(|| (kept.into(), kept));
        now.rest = true;
    }

    /// Copies the first `n` values of parameter 0, in the type in which they travel, to pinned memory for parameter 1.
    fn leave(&self, code: &Code<'_>, (what, wire): (HostMemory, DType), n: u64) {
        code.take(what, 1);
        let on = code.on(Lane::CopyOut);
        let (from, to) = (code.arg(0, [n], DType::F32), code.arg(1, [n], wire));
        if wire == DType::F32 {
            on.copy(&to, &from);
        } else {
            let narrow = on.empty_for([n], wire, Tag::Comm);
            on.cast(&narrow, &from);
            on.copy(&to, &narrow);
        }
        code.give(what, 1);
    }

    /// `Update` of what the host has of unit `u`. Before the first of a step its words leave, by way of a copy: the sums of the units'
    /// squares, which later reductions write, lie in the same memory and need not wait.
    pub fn update(&mut self, b: &mut Builder, step: StepId, (g, u): (&Grads<'_>, usize)) {
        if !std::mem::replace(&mut self.begun, true) {
            let args = [g.memory.words, self.words.0, self.words.1].map(Into::into);
            b.call(Some(step), "words out", &args, |code| {
                code.take(HostMemory::Words, 2);
                let words = |i| code.arg(i, [Words::READ / 4], DType::F32);
                code.on(Lane::Compute).copy(&words(1), &words(0));
                code.on(Lane::CopyOut).copy(&words(2), &words(1));
                code.give(HostMemory::Words, 2);
            });
        }
        self.job(b, step, (g, u), HostJob::Update);
    }

    /// What the host's thread does with what it has of unit `u`.
    pub fn job(&self, b: &mut Builder, step: StepId, (g, u): (&Grads<'_>, usize), job: HostJob) {
        if g.flats[u].host > 0 {
            b.call(Some(step), "host", &[], |code| code.host(job, u as u32));
        }
    }
}
