//! Operands for a device that wants them aligned (`CAP_ALIGNED_OPERANDS`): what begins elsewhere is copied into a temporary that begins at a
//! multiple of `device_info.align`, the op runs there, and what it wrote is copied back.
//!
//! Views into larger tensors begin at any element; most devices read them as they are. Such a device pays a copy for each instead of a
//! refusal.

use crate::buffer::{Buffer, Region};
use crate::device::Device;
use crate::error::Result;
use crate::kernel::{Kernel, OpRequest};
use crate::ledger::Tag;
use crate::stream::{Operand, Stream};
use crossweave_abi as abi;

/// The alignment that every operand must have; `None`: that of its element is enough.
pub(crate) fn wanted(device: &Device) -> Result<Option<u64>> {
    let info = device.info()?;
    let asks = info.caps & abi::CAP_ALIGNED_OPERANDS != 0 && info.align > 1;
    Ok(asks.then_some(u64::from(info.align)))
}

/// Does an operand begin elsewhere?
pub(crate) fn astray(operands: &[Operand<'_>], align: u64) -> bool {
    let mut there = operands.iter().flatten();
    there.any(|r| !r.begin().is_multiple_of(align))
}

/// A temporary in place of the operands that begin at one byte.
struct Moved<'a> {
    from: Region<'a>,
    to: Buffer,
    /// Where in `to` its bytes begin.
    at: u64,
}

impl Moved<'_> {
    fn region(&self, bytes: u64) -> Region<'_> {
        self.to.region(self.at, bytes)
    }
}

/// Launches with temporaries where operands begin elsewhere.
pub(crate) fn launch(
    kernel: &Kernel,
    stream: &Stream,
    operands: &[Operand<'_>],
    dynamic: &[u8],
    align: u64,
) -> Result<()> {
    let request = kernel.request();
    let mut moved: Vec<Moved<'_>> = vec![];
    let mut by: Vec<Option<usize>> = vec![None; operands.len()];
    for (i, o) in operands.iter().enumerate() {
        let Some(r) = o.filter(|r| !r.begin().is_multiple_of(align)) else {
            continue;
        };
        // An output that is its input has one temporary with it.
        let same =
            |m: &Moved<'_>| std::ptr::eq(m.from.buffer, r.buffer) && m.from.offset == r.offset;
        let at = match moved.iter().position(same) {
            Some(at) if moved[at].from.bytes >= r.bytes => at,
            _ => {
                let to = stream
                    .device()
                    .alloc(stream, r.bytes + align, Tag::Workspace)?;
                let at = to.all().begin().next_multiple_of(align) - to.all().begin();
                moved.push(Moved { from: r, to, at });
                moved.len() - 1
            }
        };
        by[i] = Some(at);
    }
    for m in moved.iter().filter(|m| m.from.bytes > 0) {
        stream.copy(m.region(m.from.bytes), m.from)?;
    }
    let there: Vec<Operand<'_>> = operands
        .iter()
        .zip(&by)
        .map(|(o, by)| match (o, by) {
            (Some(r), Some(at)) => Some(moved[*at].region(r.bytes)),
            (o, _) => *o,
        })
        .collect();
    stream.launch(kernel, &there, dynamic)?;
    for (i, (o, by)) in operands.iter().zip(&by).enumerate() {
        let (Some(r), Some(at)) = (o, by) else {
            continue;
        };
        if request.writes(i) {
            let m = &moved[*at];
            for (from, bytes) in pieces(request, i) {
                let to = r.buffer.region(r.offset + from, bytes);
                stream.copy(to, m.to.region(m.at + from, bytes))?;
            }
        }
    }
    Ok(())
}

/// The bytes of a written operand that are its own, as pieces without gaps: between them may lie another operand's.
fn pieces(request: &OpRequest, i: usize) -> Vec<(u64, u64)> {
    let l = &request.operands[i];
    if l.numel() == 0 {
        return vec![];
    }
    let element = abi::DType::from_id(l.dtype).map_or(1, |d| d.bytes(1).max(1));
    // Dims of one element have no stride; what is dense behind a dim belongs to one piece with it.
    let dims: Vec<(i64, i64)> = (0..l.rank as usize)
        .filter(|d| l.shape[*d] != 1)
        .map(|d| (l.shape[d], l.stride[d]))
        .collect();
    let mut run = 1i64;
    let mut outer = dims.len();
    while outer > 0 && dims[outer - 1].1 == run {
        run *= dims[outer - 1].0;
        outer -= 1;
    }
    if outer == 0 {
        return vec![(0, l.extent_bytes())];
    }
    let mut starts = vec![0i64];
    for (n, stride) in &dims[..outer] {
        let next = starts
            .iter()
            .flat_map(|s| (0..*n).map(move |k| s + k * stride));
        starts = next.collect();
    }
    let bytes = run as u64 * element;
    starts
        .into_iter()
        .map(|s| (s as u64 * element, bytes))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossweave_abi::{DType, Layout, op};

    fn of(l: Layout) -> Vec<(u64, u64)> {
        let r = OpRequest::new(
            op::COPY_STRIDED,
            &[l, l],
            op::NoParams::default().as_bytes(),
        );
        pieces(&r, 0)
    }

    #[test]
    fn pieces_have_no_gaps_and_leave_none_out() {
        assert_eq!(of(Layout::contiguous(DType::F32, &[3, 5])), [(0, 60)]);
        assert_eq!(of(Layout::contiguous(DType::Bf16, &[0, 5])), []);
        // A slice of a packed matrix: rows of 4 in rows of 12.
        let slice = Layout::strided(DType::F32, &[3, 2, 2], &[12, 2, 1]);
        assert_eq!(of(slice), [(0, 16), (48, 16), (96, 16)]);
        // Transposed: no two elements lie side by side.
        let turned = Layout::strided(DType::Bf16, &[2, 3], &[1, 2]);
        assert_eq!(
            of(turned),
            [(0, 2), (4, 2), (8, 2), (2, 2), (6, 2), (10, 2)]
        );
        let ones = Layout::strided(DType::F32, &[1, 4], &[99, 1]);
        assert_eq!(of(ones), [(0, 16)]);
    }
}
