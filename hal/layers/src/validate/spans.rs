//! Spans and operands of one call: bounds, lengths, overlap, and whether they fit what the op was prepared for.

use super::{Verdict, memory};
use crate::call::{Call, OpFacts, Operand};
use crate::object::Facts;
use crossweave_abi as abi;
use crossweave_abi::{DType, Layout, op};

/// Runs of bytes of a strided operand that are looked at; beyond, the first ones.
const RUNS: usize = 1 << 14;

pub(super) fn check(call: &Call<'_>) -> Verdict {
    match call {
        Call::Alloc { kind, align, .. } => {
            if !(abi::MEM_DEVICE..=abi::MEM_SYMMETRIC).contains(kind) {
                return Err(format!("{kind} is no kind of memory"));
            }
            match *align == 0 || align.is_power_of_two() {
                true => Ok(()),
                false => Err(format!("an alignment of {align} is not a power of two")),
            }
        }
        Call::StreamCreate { flags, .. } | Call::EventCreate { flags, .. } if *flags != 0 => {
            Err(format!("flags {flags:#x}; they are 0 in this version"))
        }
        Call::Copy { dst, src, .. } | Call::CopyPeer { dst, src, .. } => {
            given("dst", dst)?;
            given("src", src)?;
            if dst.bytes != src.bytes {
                return Err(format!("{} bytes into {}", src.bytes, dst.bytes));
            }
            match meet(dst, src) {
                true => Err(format!(
                    "dst and src overlap in memory #{}",
                    memory(dst).map_or(0, |m| m.0)
                )),
                false => Ok(()),
            }
        }
        Call::Copy2d {
            dst,
            dpitch,
            src,
            spitch,
            width,
            height,
            ..
        } => {
            given("dst", dst)?;
            given("src", src)?;
            for (name, span, pitch) in [("dst", dst, dpitch), ("src", src, spitch)] {
                if pitch < width && *height > 1 {
                    return Err(format!("{name}: rows of {width} bytes are {pitch} apart"));
                }
                let rows = pitch
                    .checked_mul(height.saturating_sub(1))
                    .and_then(|r| r.checked_add(*width));
                if *height > 0 && rows.is_none_or(|r| r > span.bytes) {
                    return Err(format!(
                        "{name}: {height} rows of {width} bytes, {pitch} apart, in a span of {}",
                        span.bytes
                    ));
                }
            }
            Ok(())
        }
        Call::Fill {
            dst, pattern_bytes, ..
        } => {
            given("dst", dst)?;
            if ![1, 2, 4, 8].contains(pattern_bytes) {
                return Err(format!(
                    "a pattern of {pattern_bytes} bytes; it has 1, 2, 4 or 8"
                ));
            }
            match dst.bytes % u64::from(*pattern_bytes) {
                0 => Ok(()),
                _ => Err(format!(
                    "{} bytes are no multiple of a pattern of {pattern_bytes}",
                    dst.bytes
                )),
            }
        }
        Call::WaitValue { word, .. } | Call::WriteValue { word, .. } => {
            given("word", word)?;
            match word.bytes == 8 && word.offset.is_multiple_of(8) {
                true => Ok(()),
                false => Err(format!(
                    "a word at byte {} of {} bytes; it has 8, aligned",
                    word.offset, word.bytes
                )),
            }
        }
        Call::Launch {
            op,
            operands,
            workspace,
            dynamic,
            ..
        } => match op.facts() {
            Facts::Op {
                op,
                workspace: planned,
            } => launch(op, operands, workspace, *planned, dynamic),
            _ => Ok(()),
        },
        Call::Register { span, .. } => given("span", span),
        _ => Ok(()),
    }
}

/// There, and inside its memory.
pub(super) fn given(name: &str, o: &Operand<'_>) -> Verdict {
    match o.mem {
        None => Err(format!("{name} is absent")),
        Some(_) => inside(name, o),
    }
}

/// Inside its memory, if it is there.
pub(super) fn inside(name: &str, o: &Operand<'_>) -> Verdict {
    let Some((id, bytes)) = memory(o) else {
        return Ok(());
    };
    match o.offset.checked_add(o.bytes) {
        Some(end) if end <= bytes => Ok(()),
        _ => Err(format!(
            "{name} is bytes {}..{} of memory #{id}, which has {bytes}",
            o.offset,
            o.offset.saturating_add(o.bytes)
        )),
    }
}

/// Do two spans share bytes?
pub(super) fn meet(a: &Operand<'_>, b: &Operand<'_>) -> bool {
    let (Some((m, _)), Some((n, _))) = (memory(a), memory(b)) else {
        return false;
    };
    m == n
        && a.offset < b.offset.saturating_add(b.bytes)
        && b.offset < a.offset.saturating_add(a.bytes)
}

fn launch(
    f: &OpFacts,
    operands: &[Operand<'_>],
    workspace: &Operand<'_>,
    planned: u64,
    dynamic: &[u8],
) -> Verdict {
    if operands.len() != f.operands.len() {
        return Err(format!(
            "{} operands, prepared with {}",
            operands.len(),
            f.operands.len()
        ));
    }
    let name = |i: usize| {
        let spec = op::spec(f.op);
        let row = spec.and_then(|s| s.operands.get(i).or(s.operands.last()));
        let name = row.and_then(|r| r.split(':').next()).unwrap_or("?");
        format!("operand {i} ({name})")
    };
    for (i, (l, o)) in f.operands.iter().zip(operands).enumerate() {
        match (l.present(), o.mem.is_some()) {
            (false, false) => continue,
            (false, true) => return Err(format!("{} is given, and was prepared absent", name(i))),
            (true, false) if l.numel() > 0 => {
                return Err(format!("{} is absent, and was prepared present", name(i)));
            }
            _ => {}
        }
        inside(&name(i), o)?;
        if o.bytes < l.extent_bytes() {
            return Err(format!(
                "{} has {} bytes, its layout reaches over {}",
                name(i),
                o.bytes,
                l.extent_bytes()
            ));
        }
        let width = DType::from_id(l.dtype).map_or(1, |d| d.bytes(1).max(1));
        if !o.offset.is_multiple_of(width) {
            return Err(format!(
                "{} begins at byte {}, within an element of {width} bytes",
                name(i),
                o.offset
            ));
        }
    }
    if planned > 0 {
        given("the workspace", workspace)?;
        if workspace.bytes < planned {
            return Err(format!(
                "a workspace of {} bytes, {planned} were planned",
                workspace.bytes
            ));
        }
    }
    let sized = dynamic
        .get(..4)
        .map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
    let wants = op::spec(f.op).map_or("", |s| s.dynamic);
    match sized {
        None if !wants.is_empty() && dynamic.len() < 4 && f.op != op::ELEMENTWISE_PROGRAM => {
            return Err(format!("no {wants} is given (R1)"));
        }
        Some(s) if s as usize != dynamic.len() => {
            return Err(format!(
                "launch-time parameters state {s} bytes and have {} (R1)",
                dynamic.len()
            ));
        }
        _ => {}
    }
    overlap(f, operands, workspace, &name)
}

fn overlap(
    f: &OpFacts,
    operands: &[Operand<'_>],
    workspace: &Operand<'_>,
    name: &dyn Fn(usize) -> String,
) -> Verdict {
    let r = f.request();
    for (i, a) in operands.iter().enumerate() {
        if a.mem.is_none() || f.operands[i].numel() == 0 {
            continue;
        }
        if meet(a, workspace) {
            return Err(format!("{} overlaps the workspace", name(i)));
        }
        if !r.writes(i) {
            continue;
        }
        for (j, b) in operands.iter().enumerate() {
            // Of two that are written, each pair once.
            let seen = j < i && r.writes(j);
            if i == j || seen || !meet(a, b) || f.operands[j].numel() == 0 {
                continue;
            }
            let (la, lb) = (&f.operands[i], &f.operands[j]);
            let same = a.offset == b.offset && la.dtype == lb.dtype && alike(la, lb);
            if same && !r.writes(j) && may_alias(f.op) {
                continue;
            }
            if shares(a.offset, la, b.offset, lb) {
                let why = if same {
                    "are the same memory"
                } else {
                    "overlap"
                };
                return Err(format!(
                    "{}, which is written, and {} {why}",
                    name(i),
                    name(j)
                ));
            }
        }
    }
    Ok(())
}

/// Same shape and strides, but for dims of one element.
fn alike(a: &Layout, b: &Layout) -> bool {
    a.rank == b.rank
        && (0..a.rank as usize)
            .all(|d| a.shape[d] == b.shape[d] && (a.shape[d] == 1 || a.stride[d] == b.stride[d]))
}

/// Ops whose output may be an input, element for element: the op table says so.
fn may_alias(id: u32) -> bool {
    let said = op::spec(id).is_some_and(|s| {
        s.doc.contains("may alias")
            || s.doc.contains("y may be x")
            || s.doc.contains("may be logits")
    });
    said || matches!(
        id,
        op::UNARY
            | op::CLAMP
            | op::SELECT
            | op::CAST
            | op::COMPARE
            | op::CUMSUM
            | op::ELEMENTWISE_PROGRAM
    )
}

/// Runs of bytes that a layout touches, from `at`: those of its last dim, where that is dense.
fn runs(at: u64, l: &Layout) -> Vec<(u64, u64)> {
    let width = DType::from_id(l.dtype).map_or(1, |d| d.bytes(1).max(1));
    let rank = l.rank as usize;
    if rank == 0 {
        return vec![(at, at + width)];
    }
    let dense = l.stride[rank - 1] == 1;
    let (outer, run) = match dense {
        true => (rank - 1, l.shape[rank - 1] as u64 * width),
        false => (rank, width),
    };
    let mut all = vec![];
    let mut index = vec![0i64; outer];
    loop {
        let element: i64 = index.iter().zip(&l.stride).map(|(i, s)| i * s).sum();
        let from = at.saturating_add_signed(element * width as i64);
        all.push((from, from + run));
        if all.len() >= RUNS {
            return all;
        }
        let Some(d) = (0..outer).rev().find(|d| index[*d] + 1 < l.shape[*d]) else {
            return all;
        };
        index[d] += 1;
        index[d + 1..].fill(0);
    }
}

/// Do two layouts of one memory share a byte? Slices of one matrix lie within each other and share none.
fn shares(a: u64, la: &Layout, b: u64, lb: &Layout) -> bool {
    let (mut x, mut y) = (runs(a, la), runs(b, lb));
    x.sort_unstable();
    y.sort_unstable();
    let (mut i, mut j) = (0, 0);
    while let (Some(p), Some(q)) = (x.get(i), y.get(j)) {
        if p.0 < q.1 && q.0 < p.1 {
            return true;
        }
        match p.1 <= q.1 {
            true => i += 1,
            false => j += 1,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_of_one_matrix_share_nothing_and_shifted_ones_do() {
        let slice = Layout::strided(DType::F32, &[4, 3], &[9, 1]);
        assert!(!shares(0, &slice, 12, &slice));
        assert!(!shares(12, &slice, 24, &slice));
        assert!(shares(0, &slice, 8, &slice));
        let whole = Layout::contiguous(DType::F32, &[4, 9]);
        assert!(shares(0, &whole, 24, &slice));
        let column = Layout::strided(DType::F32, &[9], &[4]);
        assert!(!shares(0, &column, 4, &column) && shares(0, &column, 16, &column));
    }
}
