//! Numbers of the first launch that stand for those of later ones: `first_numbers:OP:OPERAND` keeps what an operand held, as a library does that
//! packs weights once; `numbers_by_address:OP:OPERAND` does so wherever the operand lies at the same place again.

use crate::combined::ruled;
use crate::ops::{Bare, span};
use crossweave_backend_cpu::{CpuBackend, Device, Mem, Stream};
use crossweave_plugin::{Backend, MemKind, OpRequest, Result};
use std::sync::{Mutex, PoisonError};

/// An operand and what it held first.
pub struct Kept {
    pub operand: usize,
    by_address: bool,
    copy: Mem,
    /// Where it lay.
    at: Mutex<Option<(usize, u64)>>,
}

impl Kept {
    /// That of this op, if the defect is one of it.
    pub fn of(b: &CpuBackend, d: &Device, bug: &str, o: &OpRequest<'_>) -> Result<Option<Kept>> {
        let Some((what, n)) = ruled(bug, o.id) else {
            return Ok(None);
        };
        let by_address = match what {
            "first_numbers" => false,
            "numbers_by_address" => true,
            _ => return Ok(None),
        };
        let bytes = o.operands.get(n[0]).map_or(0, |l| l.extent_bytes());
        if bytes == 0 {
            return Ok(None);
        }
        Ok(Some(Kept {
            operand: n[0],
            by_address,
            copy: b.alloc(d, MemKind::Device, bytes, 0)?,
            at: Mutex::default(),
        }))
    }

    /// What the op reads in place of its operand.
    pub fn instead<'a>(
        &'a self,
        b: &CpuBackend,
        s: &Stream,
        own: Option<Bare<'a>>,
    ) -> Result<Option<Bare<'a>>> {
        let Some((mem, offset, _)) = own else {
            return Ok(own);
        };
        let here = (std::ptr::from_ref(mem) as usize, offset);
        let copy = (&self.copy, 0, self.copy.bytes());
        let mut at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        match *at {
            None => {
                *at = Some(here);
                b.copy(s, span(copy), span((mem, offset, self.copy.bytes())))?;
                Ok(Some(copy))
            }
            Some(was) if was == here || !self.by_address => Ok(Some(copy)),
            Some(_) => Ok(own),
        }
    }
}
