//! What of a unit rests in host memory, and how it is lent to the host's device for a launch.

use super::worker::unlend;
use crate::machine::Machine;
use crate::state::StateKind;
use crossweave_hal::{Buffer, DType, Device, HostBuffer, Tag};
use crossweave_tensor::{Result, Tensor};
use std::ops::Range;
use std::sync::Arc;

/// One rank's part of a unit on the host.
#[derive(Default)]
pub(super) struct Hosted {
    /// Elements.
    pub numel: u64,
    pub memory: Memory,
    /// The gradient of the step, between its arrival and the update.
    pub grad: Option<HostBuffer>,
    /// The program of its update, over memory that is lent for it.
    pub update: Option<Machine>,
    /// Values were written from outside since the parameters were last made from them.
    pub dirty: bool,
}

/// Where it rests.
#[derive(Default)]
pub(super) enum Memory {
    /// The unit has none.
    #[default]
    None,
    /// In host memory, all of it.
    Host(Box<Pinned>),
    /// In a file.
    File,
}

/// Pinned memory of the first device; `None` while lent.
pub(super) struct Pinned {
    /// 16-bit parameters, where the values are not what the device is given.
    param: Option<HostBuffer>,
    value: Option<HostBuffer>,
    moment1: Option<HostBuffer>,
    moment2: Option<HostBuffer>,
}

/// Operands on the host's device: buffer, and the byte where the part begins.
pub(super) struct Pieces {
    pub param: Option<(Arc<Buffer>, u64)>,
    pub value: (Arc<Buffer>, u64),
    /// As many as the optimizer keeps.
    pub moment1: Option<(Arc<Buffer>, u64)>,
    pub moment2: Option<(Arc<Buffer>, u64)>,
    pub grad: Option<(Arc<Buffer>, u64)>,
}

/// Elements `r` of a part.
pub(super) fn piece(at: &(Arc<Buffer>, u64), dtype: DType, r: &Range<u64>) -> Tensor {
    let from = at.1 + dtype.bytes(r.start);
    Tensor::dense(at.0.clone(), from, [r.end - r.start], dtype)
}

impl Memory {
    /// All of `numel` elements with so many moments, zero.
    pub fn host(device: &Device, compute: DType, numel: u64, moments: usize) -> Result<Memory> {
        let zeros = |bytes: u64, tag| -> Result<Option<HostBuffer>> {
            let mut b = device.alloc_host(bytes, tag)?;
            b.write()?.fill(0);
            Ok(Some(b))
        };
        Ok(Memory::Host(Box::new(Pinned {
            param: match compute {
                DType::F32 => None,
                c => zeros(c.bytes(numel), Tag::Param)?,
            },
            value: zeros(4 * numel, Tag::Master)?,
            moment1: match moments {
                0 => None,
                _ => zeros(4 * numel, Tag::Moment)?,
            },
            moment2: match moments {
                0 | 1 => None,
                _ => zeros(4 * numel, Tag::Moment)?,
            },
        })))
    }

    /// Parameters that are never updated: as the device is given them, and nothing else.
    pub fn base(device: &Device, compute: DType, numel: u64) -> Result<Memory> {
        let mut b = device.alloc_host(compute.bytes(numel), Tag::Param)?;
        b.write()?.fill(0);
        Ok(Memory::Host(Box::new(Pinned {
            param: Some(b),
            value: None,
            moment1: None,
            moment2: None,
        })))
    }

    /// The bytes that the device is given.
    pub fn given(&mut self) -> Result<&mut [u8]> {
        match self {
            Memory::Host(p) => match p.param.as_mut() {
                Some(m) => Ok(m.write()?),
                None => crossweave_tensor::shape_error("parameters are not on the host"),
            },
            _ => crossweave_tensor::shape_error("parameters are not on the host"),
        }
    }

    /// What the device is given: `None` while lent.
    pub fn params(&self) -> Option<&Buffer> {
        match self {
            Memory::Host(p) => p.param.as_ref().or(p.value.as_ref()).map(|b| b.buffer()),
            _ => None,
        }
    }

    /// The bytes of one state.
    pub fn bytes(&mut self, kind: StateKind) -> Result<&mut [u8]> {
        let memory = match self {
            Memory::Host(p) => match kind {
                StateKind::Value => p.value.as_mut(),
                StateKind::Moment1 => p.moment1.as_mut(),
                StateKind::Moment2 => p.moment2.as_mut(),
                StateKind::Rows | StateKind::Cols => None,
            },
            _ => None,
        };
        match memory {
            Some(m) => Ok(m.write()?),
            None => crossweave_tensor::shape_error("a unit's memory is not on the host"),
        }
    }

    /// Lends everything, and a gradient, to the host's device.
    pub fn lend(&mut self, host: &Device, grad: Option<HostBuffer>) -> Result<Pieces> {
        let Memory::Host(p) = self else {
            return crossweave_tensor::shape_error("a unit's memory is not on the host");
        };
        let lend = |m: Option<HostBuffer>| -> Result<Option<(Arc<Buffer>, u64)>> {
            match m {
                Some(m) => Ok(Some((Arc::new(host.borrow_host(m)?), 0))),
                None => Ok(None),
            }
        };
        let (param, grad) = (lend(p.param.take())?, lend(grad)?);
        let (moment1, moment2) = (lend(p.moment1.take())?, lend(p.moment2.take())?);
        let Some(value) = lend(p.value.take())? else {
            return crossweave_tensor::shape_error("a unit's memory is lent already");
        };
        Ok(Pieces {
            param,
            value,
            moment1,
            moment2,
            grad,
        })
    }

    /// Takes everything back; the gradient's memory is returned.
    pub fn take_back(&mut self, lent: Pieces) -> Result<Option<HostBuffer>> {
        let Memory::Host(p) = self else {
            return crossweave_tensor::shape_error("a unit's memory is not on the host");
        };
        if let Some(b) = lent.param {
            p.param = Some(unlend(b.0)?);
        }
        p.value = Some(unlend(lent.value.0)?);
        p.moment1 = lent.moment1.map(|b| unlend(b.0)).transpose()?;
        p.moment2 = lent.moment2.map(|b| unlend(b.0)).transpose()?;
        lent.grad.map(|b| unlend(b.0)).transpose()
    }
}
