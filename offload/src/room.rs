//! What rests of a room in host memory, and how it is lent to the host's device for its calls.

use crossweave_hal::{Buffer, Device, HostBuffer, Stream};
use crossweave_machine::Machine;
use crossweave_program::{Decided, MemId, Room};
use crossweave_tensor::{Result, shape_error};
use std::ops::Range;
use std::sync::Arc;

/// A room while the executor holds it.
pub(crate) struct Held {
    pub memory: Memory,
    /// The gradient of the step, between its arrival and the update.
    pub grad: Option<HostBuffer>,
    pub calls: Calls,
    /// Bytes of what the device is given.
    pub given: u64,
    /// Parts were written from outside since what the device is given was last made from them.
    pub dirty: bool,
}

/// Where its parts rest.
pub(crate) enum Memory {
    /// It has none.
    None,
    /// In pinned memory of the first device, each by itself; none while it is lent.
    Host(Vec<Option<HostBuffer>>),
    /// In a file.
    File,
}

/// Operands on the host's device: buffer, and the byte where each begins.
pub(crate) struct Pieces {
    pub parts: Vec<(Arc<Buffer>, u64)>,
    pub grad: Option<(Arc<Buffer>, u64)>,
}

/// The calls over its memory.
pub(crate) struct Calls {
    machine: Machine,
    parts: Vec<MemId>,
    reads: Option<[MemId; 2]>,
    update: Range<usize>,
    refresh: Range<usize>,
}

impl Calls {
    /// Those of a room, to be run by the host's device.
    pub fn new(host: &Device, room: Room) -> Result<Calls> {
        Ok(Calls {
            machine: Machine::new(host, room.program)?,
            parts: room.parts,
            reads: room.reads,
            update: room.update,
            refresh: room.refresh,
        })
    }

    /// Whether what the device is given is made from other parts.
    pub fn refreshes(&self) -> bool {
        !self.refresh.is_empty()
    }

    fn run(&mut self, calls: Range<usize>, stream: &Stream, lent: &Pieces) -> Result<()> {
        for (mem, (buffer, at)) in self.parts.iter().zip(&lent.parts) {
            self.machine.lend(*mem, buffer.clone(), *at);
        }
        self.machine.run_some(calls, stream, None)
    }

    /// The optimizer step.
    pub fn update(
        &mut self,
        stream: &Stream,
        (lent, words): (&Pieces, Option<&Arc<Buffer>>),
        decided: &Decided,
    ) -> Result<()> {
        let Some([to_words, to_grad]) = self.reads else {
            return shape_error("an update of what the host does not have");
        };
        if let Some(words) = words {
            self.machine.lend(to_words, words.clone(), 0);
        }
        if let Some((grad, at)) = &lent.grad {
            self.machine.lend(to_grad, grad.clone(), *at);
        }
        self.machine.decide(|g| decided.get(g));
        self.run(self.update.clone(), stream, lent)
    }

    /// Makes what the device is given from the other parts.
    pub fn refresh(&mut self, stream: &Stream, lent: &Pieces) -> Result<()> {
        self.run(self.refresh.clone(), stream, lent)
    }
}

impl Memory {
    /// Pinned memory beside `device` for all parts of a room, made zero by the host's device: in a rehearsal, which computes nothing, no page
    /// of it is touched.
    pub fn host(device: &Device, host: &Stream, room: &Room) -> Result<Memory> {
        let zeros = |mem: &MemId| -> Result<Option<HostBuffer>> {
            let tag = room.program.memory[mem.index()].tag;
            let lent = host
                .device()
                .borrow_host(device.alloc_host(room.bytes(*mem), tag)?)?;
            host.fill(lent.all(), 0, 1)?;
            host.sync(None)?;
            Ok(Some(lent.take_back()?))
        };
        let parts = room.parts.iter().map(zeros);
        Ok(Memory::Host(parts.collect::<Result<_>>()?))
    }

    fn parts(&mut self) -> Result<&mut Vec<Option<HostBuffer>>> {
        match self {
            Memory::Host(parts) => Ok(parts),
            _ => shape_error("a room's memory is not on the host"),
        }
    }

    /// What the device is given.
    pub fn given(&self) -> Result<&Buffer> {
        let first = match self {
            Memory::Host(parts) => parts.first().and_then(Option::as_ref),
            _ => None,
        };
        match first {
            Some(b) => Ok(b.buffer()),
            None => shape_error("a room's memory is lent, or not on the host"),
        }
    }

    /// The bytes of one part.
    pub fn bytes(&mut self, part: usize) -> Result<&mut [u8]> {
        match self.parts()?.get_mut(part) {
            Some(Some(m)) => Ok(m.write()?),
            _ => shape_error("a room's memory is lent, or not on the host"),
        }
    }

    /// Lends everything, and a gradient, to the host's device.
    pub fn lend(&mut self, host: &Device, grad: Option<HostBuffer>) -> Result<Pieces> {
        let lend = |m: HostBuffer| -> Result<(Arc<Buffer>, u64)> {
            Ok((Arc::new(host.borrow_host(m)?), 0))
        };
        let mut parts = vec![];
        for m in self.parts()? {
            match m.take() {
                Some(m) => parts.push(lend(m)?),
                None => return shape_error("a room's memory is lent already"),
            }
        }
        let grad = grad.map(lend).transpose()?;
        Ok(Pieces { parts, grad })
    }

    /// Takes everything back; the gradient's memory is returned.
    pub fn take_back(&mut self, lent: Pieces) -> Result<Option<HostBuffer>> {
        for (m, (b, _)) in self.parts()?.iter_mut().zip(lent.parts) {
            *m = Some(unlend(b)?);
        }
        lent.grad.map(|(b, _)| unlend(b)).transpose()
    }
}

/// The memory behind a lent buffer that nothing else holds.
pub(crate) fn unlend(lent: Arc<Buffer>) -> Result<HostBuffer> {
    match Arc::into_inner(lent) {
        Some(b) => Ok(b.take_back()?),
        None => shape_error("lent memory is still held elsewhere"),
    }
}
