//! The ways of gradients to the host, and what its thread is given to do: `GradOut`, `Update` on the host's lane, `StateIn` and
//! `StateOut`.
//!
//! | what | where it rests | what moves it |
//! |---|---|---|
//! | states, masters | pinned memory, or a file through a bounded pool | never: the host's device computes on it in place |
//! | gradient | pinned memory, or beside its state in the file | `GradOut`, once a step |

use super::{Grads, Words};
use crossweave_flat::Flat;
use crossweave_plan::{Lane, StepId};
use crossweave_program::{
    Builder, DType, HostJob, HostMemory, Life, MemId, MemoryDecl, MemorySpace, Tag,
};

/// Memory of what goes to the host.
#[derive(Clone, Debug)]
pub struct ToHost {
    /// Type of gradients on their way.
    wire: DType,
    /// The words of the step, as they leave; and where they arrive.
    words: (MemId, MemId),
    /// Where the gradient of each unit arrives.
    grads: Vec<MemId>,
    /// The words of this step have left.
    begun: bool,
}

impl ToHost {
    /// Declares it for units of these flats.
    pub fn declare(b: &mut Builder, flats: &[Flat], wire: DType) -> ToHost {
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
        let each = flats.iter().enumerate();
        let grads = each.map(|(u, f)| {
            let name = format!("host grad.{u}");
            let bytes = wire.bytes(f.host);
            declare(name, bytes, wire, Tag::Grad, pinned, Life::Transient)
        });
        ToHost {
            wire,
            grads: grads.collect(),
            words,
            begun: false,
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
            |code| {
                code.take(what, 1);
                let on = code.on(Lane::CopyOut);
                let (from, to) = (code.arg(0, [n], DType::F32), code.arg(1, [n], self.wire));
                if self.wire == DType::F32 {
                    on.copy(&to, &from);
                } else {
                    let narrow = on.empty_for([n], self.wire, Tag::Comm);
                    on.cast(&narrow, &from);
                    on.copy(&to, &narrow);
                }
                code.give(what, 1);
            },
        );
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
