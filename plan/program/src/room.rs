//! What rests off the device under one number, as data: memory, and the calls that the host executor makes over it.

use crate::instr::Program;
use crate::memory::MemId;
use std::ops::Range;

/// The state that a host executor holds under one number. It lends all memory of the program to it for a call.
#[derive(Clone, Debug, Default)]
pub struct Room {
    /// The name of its file, where it rests in one.
    pub name: String,
    /// Memory, and calls over it.
    pub program: Program,
    /// The parts of the memory that rest, in the order in which they lie in a file. The first is given to the device.
    pub parts: Vec<MemId>,
    /// The memory that an update reads besides: the words of the step, and the gradient. None where nothing is updated.
    pub reads: Option<[MemId; 2]>,
    /// The gradient is a sum over micro-batches, made here of what arrives one by one; none where it arrives once a step.
    pub sums: Option<Sums>,
    /// The calls of an update.
    pub update: Range<usize>,
    /// The calls that make what the device is given anew, when other parts were written from outside.
    pub refresh: Range<usize>,
}

/// The sums of micro-batches' gradients that a room keeps.
#[derive(Clone, Debug)]
pub struct Sums {
    /// The memory in which a part arrives.
    pub landing: MemId,
    /// The sum of squares of the sum, what rounding took from that (both f32), and how many of its values are not finite, a u32.
    pub figures: MemId,
    /// The calls that make the first that arrives in a step the sum.
    pub first: Range<usize>,
    /// The calls that add a later one to it.
    pub further: Range<usize>,
    /// The calls that make the figures.
    pub measure: Range<usize>,
}

impl Room {
    /// Bytes of a piece of its memory.
    pub fn bytes(&self, mem: MemId) -> u64 {
        self.program.memory[mem.index()].bytes
    }

    /// Returns the index of a piece of memory among the parts.
    pub fn part(&self, mem: MemId) -> Option<usize> {
        self.parts.iter().position(|p| *p == mem)
    }
}
