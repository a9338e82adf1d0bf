//! An op of one device computed on another that works on host memory: operands down through pinned memory, the op there, results up again
//! (docs/layers.md, route `host`). The last resort, and only where the caller has allowed it: every call stalls its stream and the host.

use crate::buffer::{Buffer, HostBuffer, Region};
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

/// What a stream keeps for such ops: a stream of the host device, and pinned memory by operand.
pub(crate) struct HostSide {
    stream: Stream,
    staging: Vec<Option<HostBuffer>>,
}

/// Must the bytes of operand `i` be on the host before the op? What is only written, and without gaps, need not.
fn goes_down(r: &OpRequest, i: usize) -> bool {
    let gaps = r.operands[i].flags & abi::LAYOUT_CONTIGUOUS == 0;
    !r.writes(i) || gaps || reads_written(r, i)
}

/// Staging keeps the alignment that operands have in their buffer, up to this.
const ALIGN: u64 = 256;

/// Bytes of one buffer that operands cover. Those that overlap (slices of one packed matrix, an output that is its input) are in one part
/// with one staging: with one each, what is written back last would undo what the others wrote.
struct Part<'a> {
    all: Region<'a>,
    /// The first operand in it, by whose number its staging is kept.
    first: usize,
    down: bool,
    up: bool,
}

impl Part<'_> {
    /// Where it begins in its staging.
    fn lead(&self) -> u64 {
        self.all.offset % ALIGN
    }
}

/// The parts, and the part of each operand (of an absent one: any).
fn parts<'a>(request: &OpRequest, operands: &[Operand<'a>]) -> (Vec<Part<'a>>, Vec<usize>) {
    let there = operands.iter().enumerate();
    let mut order: Vec<(usize, Region<'a>)> = there.filter_map(|(i, o)| Some((i, (*o)?))).collect();
    order.sort_by_key(|(_, r)| (std::ptr::from_ref(r.buffer) as usize, r.offset));
    let (mut parts, mut of) = (Vec::<Part<'a>>::new(), vec![0; operands.len()]);
    for (i, r) in order {
        // A span may be longer than what the op writes of it.
        let longer = r.bytes > request.operands[i].extent_bytes();
        let (down, up) = (goes_down(request, i) || longer, request.writes(i));
        match parts.last_mut() {
            Some(p)
                if std::ptr::eq(p.all.buffer, r.buffer)
                    && r.offset < p.all.offset + p.all.bytes =>
            {
                p.all.bytes = p.all.bytes.max(r.offset + r.bytes - p.all.offset);
                p.first = p.first.min(i);
                (p.down, p.up) = (p.down || down, p.up || up);
            }
            _ => parts.push(Part {
                all: r,
                first: i,
                down,
                up,
            }),
        }
        of[i] = parts.len() - 1;
    }
    (parts, of)
}

impl HostOp {
    pub fn prepare(host: &Device, r: &OpRequest, decompose: &dyn Decompose) -> Result<HostOp> {
        let kernel = host.prepare(r, decompose)?;
        Ok(HostOp { kernel })
    }

    /// Copies of a call: to the host, and back. Fewer where operands overlap, which is known at the call only.
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
        for r in operands.iter().flatten() {
            r.buffer.span(r.offset, r.bytes).map_err(at)?;
        }
        let (parts, of) = parts(request, operands);
        let mut lent: Vec<Buffer> = Vec::with_capacity(parts.len());
        for p in &parts {
            let bytes = p.lead() + p.all.bytes;
            let kept = side.staging[p.first].take();
            let staging = match kept.filter(|s| s.buffer().bytes() >= bytes) {
                Some(s) => s,
                None => stream
                    .device()
                    .alloc_host(bytes, Tag::Staging)
                    .map_err(at)?,
            };
            if p.down && p.all.bytes > 0 {
                stream
                    .copy(staging.buffer().region(p.lead(), p.all.bytes), p.all)
                    .map_err(at)?;
            }
            // Waits for the copy: the host is about to look.
            lent.push(host.borrow_host(staging).map_err(at)?);
        }
        let there: Vec<Operand<'_>> = operands
            .iter()
            .zip(&of)
            .map(|(o, of)| {
                let (r, p) = (o.as_ref()?, &parts[*of]);
                Some(lent[*of].region(p.lead() + (r.offset - p.all.offset), r.bytes))
            })
            .collect();
        let done = side.stream.launch(&self.kernel, &there, dynamic);
        drop(there);
        for (p, l) in parts.iter().zip(lent) {
            let staging = l.take_back().map_err(at)?;
            if done.is_ok() && p.up && p.all.bytes > 0 {
                stream
                    .copy(p.all, staging.buffer().region(p.lead(), p.all.bytes))
                    .map_err(at)?;
            }
            side.staging[p.first] = Some(staging);
        }
        done.map_err(at)
    }
}
