//! What rests of a room in host memory, and how it is lent to the host's device for its calls.

use crate::home::Home;
use crossweave_hal::{Buffer, Device, HostBuffer, Stream};
use crossweave_machine::Machine;
use crossweave_program::{Decided, MemId, Room, Sums};
use crossweave_tensor::{Result, shape_error};
use std::ops::Range;
use std::sync::Arc;

/// A room while the executor holds it.
pub(crate) struct Held {
    pub memory: Memory,
    /// The gradient of the step, between its arrival and the update; the sum of those of its micro-batches stays here.
    pub grad: Option<HostBuffer>,
    /// How far that sum is, where it is made here.
    pub sum: Option<Sum>,
    pub calls: Calls,
    /// Bytes of what the device is given.
    pub given: u64,
    /// Parts were written from outside since what the device is given was last made from them.
    pub dirty: bool,
}

/// A sum of gradients of micro-batches.
pub(crate) struct Sum {
    /// Some of this step are in it.
    pub begun: bool,
    /// Its figures, in pinned memory; none while it is lent.
    pub figures: Option<HostBuffer>,
}

/// What an arriving gradient is added to.
pub(crate) struct Adding<'a> {
    pub landing: &'a (Arc<Buffer>, u64),
    pub sum: &'a (Arc<Buffer>, u64),
    /// Where the figures of the sum go, behind the last micro-batch.
    pub figures: Option<&'a (Arc<Buffer>, u64)>,
    /// It is the first of the step.
    pub first: bool,
}

/// Where its parts rest.
pub(crate) enum Memory {
    /// It has none.
    None,
    /// In host memory, each by itself; none while it is lent.
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
    sums: Option<Sums>,
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
            sums: room.sums,
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

    /// Adds a gradient to the sum of those of the step, and behind the last takes the sum's figures.
    pub fn add(&mut self, stream: &Stream, to: &Adding<'_>) -> Result<()> {
        let (Some(sums), Some([_, grad])) = (self.sums.clone(), self.reads) else {
            return shape_error("a gradient of a micro-batch where none are added up");
        };
        let mut run = |calls: Range<usize>| {
            let figures = to.figures.map(|f| (sums.figures, f));
            let both = [(sums.landing, to.landing), (grad, to.sum)];
            for (mem, (buffer, at)) in both.into_iter().chain(figures) {
                self.machine.lend(mem, buffer.clone(), *at);
            }
            self.machine.run_some(calls, stream, None)
        };
        run(match to.first {
            true => sums.first.clone(),
            false => sums.further.clone(),
        })?;
        match to.figures {
            Some(_) => run(sums.measure.clone()),
            None => Ok(()),
        }
    }

    /// Makes what the device is given from the other parts.
    pub fn refresh(&mut self, stream: &Stream, lent: &Pieces) -> Result<()> {
        self.run(self.refresh.clone(), stream, lent)
    }
}

impl Memory {
    /// Memory for all parts of a room, made zero by the host's device: in a rehearsal, which computes nothing, no page of it is touched.
    /// The device copies the first; the others are the host's alone.
    pub fn host(home: &mut Home<'_>, host: &Stream, room: &Room) -> Result<Memory> {
        let mut zeros = |(k, mem): (usize, &MemId)| -> Result<Option<HostBuffer>> {
            let tag = room.program.memory[mem.index()].tag;
            let memory = match k {
                0 => home.pinned(room.bytes(*mem), tag)?,
                _ => home.kept(room.bytes(*mem), tag)?,
            };
            let lent = host.device().borrow_host(memory)?;
            host.fill(lent.all(), 0, 1)?;
            host.sync(None)?;
            Ok(Some(lent.take_back()?))
        };
        let parts = room.parts.iter().enumerate().map(&mut zeros);
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
