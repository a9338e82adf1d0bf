//! An op of one device computed on another that works on host memory: operands down through pinned memory, the op there, results up again
//! (02 §3.5, fallback 5). The last resort, and only where the caller has allowed it: every call stalls its stream and the host.

use crate::buffer::{Buffer, HostBuffer};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::kernel::{Kernel, OpRequest};
use crate::ledger::Tag;
use crate::recipe::Decompose;
use crate::stream::{Operand, Stream};
use crate::wider::reads_written;
use crossweave_abi as abi;

/// The op on the host device.
pub(crate) struct HostOp {
    kernel: Kernel,
}

/// What a stream keeps for such ops: a stream of the host device, and pinned memory for each operand.
pub(crate) struct HostSide {
    stream: Stream,
    staging: Vec<Option<HostBuffer>>,
}

/// Must the bytes of operand `i` be on the host before the op? What is only written, and without gaps, need not.
fn goes_down(r: &OpRequest, i: usize) -> bool {
    let gaps = r.operands[i].flags & abi::LAYOUT_CONTIGUOUS == 0;
    !r.writes(i) || gaps || reads_written(r, i)
}

impl HostOp {
    pub fn prepare(host: &Device, r: &OpRequest, decompose: &dyn Decompose) -> Result<HostOp> {
        let kernel = host.prepare(r, decompose)?;
        Ok(HostOp { kernel })
    }

    /// Copies of a call: to the host, and back.
    pub fn copies(&self, r: &OpRequest) -> (u64, u64) {
        let there = (0..r.operands.len()).filter(|i| r.operands[*i].extent_bytes() > 0);
        let down = there.clone().filter(|i| goes_down(r, *i)).count();
        (down as u64, there.filter(|i| r.writes(*i)).count() as u64)
    }

    pub fn launch(
        &self,
        stream: &Stream,
        request: &OpRequest,
        operands: &[Operand<'_>],
        dynamic: &[u8],
    ) -> Result<()> {
        let at = |e: Error| e.context(format!("{} on the host", request.describe()));
        let host = self.kernel.device();
        let mut side = stream.host_side.borrow_mut();
        let side = match &mut *side {
            Some(s) => s,
            none => none.insert(Box::new(HostSide {
                stream: host.stream("host ops", 0).map_err(at)?,
                staging: vec![],
            })),
        };
        if side.staging.len() < operands.len() {
            side.staging.resize_with(operands.len(), || None);
        }
        let mut lent: Vec<Option<Buffer>> = Vec::with_capacity(operands.len());
        for (i, o) in operands.iter().enumerate() {
            let Some(r) = o else {
                lent.push(None);
                continue;
            };
            let kept = side.staging[i].take();
            let staging = match kept.filter(|s| s.buffer().bytes() >= r.bytes) {
                Some(s) => s,
                None => stream
                    .device()
                    .alloc_host(r.bytes, Tag::Staging)
                    .map_err(at)?,
            };
            if goes_down(request, i) && r.bytes > 0 {
                stream
                    .copy(staging.buffer().region(0, r.bytes), *r)
                    .map_err(at)?;
            }
            // Waits for the copy: the host is about to look.
            lent.push(Some(host.borrow_host(staging).map_err(at)?));
        }
        let there: Vec<Operand<'_>> = lent
            .iter()
            .zip(operands)
            .map(|(l, o)| Some(l.as_ref()?.region(0, o.as_ref()?.bytes)))
            .collect();
        let done = side.stream.launch(&self.kernel, &there, dynamic);
        drop(there);
        for (i, l) in lent.into_iter().enumerate() {
            let (Some(l), Some(r)) = (l, operands[i]) else {
                continue;
            };
            let staging = l.take_back().map_err(at)?;
            if done.is_ok() && request.writes(i) && r.bytes > 0 {
                stream
                    .copy(r, staging.buffer().region(0, r.bytes))
                    .map_err(at)?;
            }
            side.staging[i] = Some(staging);
        }
        done.map_err(at)
    }
}
