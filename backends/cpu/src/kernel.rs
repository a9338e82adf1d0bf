//! The contract between the device (which queues) and the kernels (which compute).

use crate::isa::Isas;
use crate::team::Team;
use crossweave_plugin::{OpRequest, Plan, Result};

/// Addresses of one launch. Absent operands are null.
pub struct Launch<'a> {
    /// Operand addresses, in the op table's order.
    pub operands: &'a [*mut u8],
    /// `Plan::workspace_bytes` of scratch, 64-byte aligned (null when none was asked).
    pub workspace: *mut u8,
    /// The op's dyn struct as bytes (empty = defaults).
    pub dynamic: &'a [u8],
    /// The threads of this device.
    pub team: &'a Team,
}

/// A prepared op: everything known before launch. Runs on a stream's thread.
pub trait Kernel: Send + Sync {
    /// Answers for the launch's dyn struct on the caller's thread, before anything is queued.
    fn check(&self, _dynamic: &[u8]) -> Result<()> {
        Ok(())
    }

    /// Computes.
    ///
    /// # Safety
    /// The operand addresses are valid for the layouts the kernel was prepared with, writable where the op table says so, and nobody
    /// else touches what it writes (the host's hazard tracking orders streams).
    unsafe fn run(&self, l: &Launch<'_>);
}

/// What an op's file exports: answers `Unsupported` without side effects for what it does not do.
pub type Prepare = fn(op: &OpRequest<'_>, team_threads: usize) -> Result<(Box<dyn Kernel>, Plan)>;

/// The same for ops written in register tiles: they get the instruction sets in use.
pub type PrepareTiled =
    fn(op: &OpRequest<'_>, team_threads: usize, isas: Isas) -> Result<(Box<dyn Kernel>, Plan)>;
