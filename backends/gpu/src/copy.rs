//! Copies and fills, on the stream they are given.

use crate::memory::{Mem, at, inside};
use crate::runtime::{Address, Outcome};
use crate::stream::Line;
use crossweave_plugin::{Code, Result, Span, fail};

/// `height` rows of `width` bytes.
#[derive(Clone, Copy)]
pub struct Rows {
    /// Bytes between rows of the destination.
    pub dpitch: u64,
    /// Bytes between rows of the source.
    pub spitch: u64,
    /// Bytes of a row.
    pub width: u64,
    /// Rows.
    pub height: u64,
}

impl Line {
    /// Copies a span onto another of its length.
    ///
    /// # Errors
    /// `Invalid`: other lengths, or outside of the memory. What the driver says.
    pub fn copy_span(&self, dst: Span<'_, Mem>, src: Span<'_, Mem>) -> Result<()> {
        if dst.bytes != src.bytes {
            return fail(
                Code::Invalid,
                format!("copy: {} bytes onto {}", src.bytes, dst.bytes),
            );
        }
        inside("the destination", &dst)?;
        inside("the source", &src)?;
        self.copy(at(&dst), at(&src), dst.bytes)
    }

    fn copy(&self, dst: Address, src: Address, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.put(move |s| {
            let _in = s.dev.enter()?;
            // SAFETY: the host keeps both spans alive until the stream has passed the copy; addresses are unified.
            let o = unsafe { s.dev.rt().copy(dst, src, bytes as usize, s.raw) };
            s.dev.check(o)
        })
    }

    /// Copies rows.
    ///
    /// # Errors
    /// `Invalid`: rows that overlap or lie outside of the memory. What the driver says.
    pub fn copy_2d(&self, dst: Span<'_, Mem>, src: Span<'_, Mem>, r: Rows) -> Result<()> {
        if r.width == 0 || r.height == 0 {
            return Ok(());
        }
        inside("the destination", &dst)?;
        inside("the source", &src)?;
        for (what, span, pitch) in [("destination", &dst, r.dpitch), ("source", &src, r.spitch)] {
            let needs = pitch
                .checked_mul(r.height - 1)
                .and_then(|n| n.checked_add(r.width));
            if pitch < r.width || needs.is_none_or(|n| n > span.bytes) {
                return fail(
                    Code::Invalid,
                    format!(
                        "copy_2d: {} rows of {} bytes, {pitch} apart, in a {what} of {} bytes",
                        r.height, r.width, span.bytes
                    ),
                );
            }
        }
        let (to, from) = (at(&dst), at(&src));
        if r.height == 1 || (r.width == r.dpitch && r.width == r.spitch) {
            return self.copy(to, from, r.width * r.height);
        }
        if r.dpitch.max(r.spitch) > self.dev.facts.max_pitch {
            // Rows further apart than the copy engine can count.
            return (0..r.height)
                .try_for_each(|i| self.copy(to + i * r.dpitch, from + i * r.spitch, r.width));
        }
        self.put(move |s| {
            let _in = s.dev.enter()?;
            // SAFETY: as for `copy`.
            let o = unsafe {
                s.dev.rt().copy_rows(
                    to,
                    r.dpitch as usize,
                    from,
                    r.spitch as usize,
                    r.width as usize,
                    r.height as usize,
                    s.raw,
                )
            };
            s.dev.check(o)
        })
    }

    /// Copies between devices.
    ///
    /// # Errors
    /// As [`Line::copy_span`].
    pub fn copy_peer(&self, dst: Span<'_, Mem>, src: Span<'_, Mem>) -> Result<()> {
        if dst.bytes != src.bytes {
            return fail(
                Code::Invalid,
                format!("copy_peer: {} bytes onto {}", src.bytes, dst.bytes),
            );
        }
        inside("the destination", &dst)?;
        inside("the source", &src)?;
        self.not_captured("copy_peer")?;
        if dst.bytes == 0 {
            return Ok(());
        }
        let (to, there) = (at(&dst), dst.mem.dev.place);
        let (from, here) = (at(&src), src.mem.dev.place);
        let bytes = dst.bytes as usize;
        self.put(move |s| {
            let _in = s.dev.enter()?;
            // SAFETY: as for `copy`; each place is that of the memory's device.
            let o = unsafe { s.dev.rt().copy_peer(to, &there, from, &here, bytes, s.raw) };
            s.dev.check(o)
        })
    }

    /// Repeats a pattern of 1, 2, 4 or 8 bytes.
    ///
    /// # Errors
    /// `Invalid`: another pattern, or outside of the memory. What the driver says.
    pub fn fill(&self, dst: Span<'_, Mem>, pattern: u64, width: u32) -> Result<()> {
        inside("the destination", &dst)?;
        let wide = u64::from(width);
        if !matches!(width, 1 | 2 | 4 | 8) || !dst.bytes.is_multiple_of(wide) {
            return fail(
                Code::Invalid,
                format!("fill: a pattern of {width} bytes over {} bytes", dst.bytes),
            );
        }
        if dst.bytes == 0 {
            return Ok(());
        }
        let (to, bytes) = (at(&dst), dst.bytes);
        self.put(move |s| {
            let _in = s.dev.enter()?;
            let (rt, lane) = (s.dev.rt(), s.raw);
            for f in fills(to, bytes, pattern, width, rt.fills_words_apart()) {
                // SAFETY: every fill lies inside the span, which the host keeps alive until the stream has passed it.
                let o: Outcome = unsafe {
                    match f {
                        Fill::D8(to, v, n) => rt.fill_bytes(to, v, n, lane),
                        Fill::D16(to, v, n) => rt.fill_halves(to, v, n, lane),
                        Fill::D32(to, v, n) => rt.fill_words(to, v, n, lane),
                        Fill::Column8(to, by, v, n) => rt.fill_bytes_apart(to, by, v, n, lane),
                        Fill::Column32(to, by, v, n) => rt.fill_words_apart(to, by, v, n, lane),
                    }
                };
                s.dev.check(o)?;
            }
            Ok(())
        })
    }
}

/// One fill of the driver: address, value, count; columns with their pitch before the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    D8(Address, u8, usize),
    D16(Address, u16, usize),
    D32(Address, u32, usize),
    Column8(Address, usize, u8, usize),
    Column32(Address, usize, u32, usize),
}

/// How the driver, which fills with 1, 2 or 4 aligned bytes, and with 4 apart where it can, repeats `width` bytes of `pattern` over `bytes` from `to`.
fn fills(
    to: Address,
    bytes: u64,
    pattern: u64,
    width: u32,
    words_apart: bool,
) -> impl Iterator<Item = Fill> {
    let b = pattern.to_le_bytes();
    let n = (bytes / u64::from(width)) as usize;
    let word = |i: usize| u32::from_le_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
    let alike = |w: usize| b[..width as usize].chunks(w).all(|c| c == &b[..w]);
    let mut out = [None; 8];
    if alike(1) {
        out[0] = Some(Fill::D8(to, b[0], bytes as usize));
    } else if alike(2.min(width as usize)) && to.is_multiple_of(2) {
        out[0] = Some(Fill::D16(
            to,
            u16::from_le_bytes([b[0], b[1]]),
            bytes as usize / 2,
        ));
    } else if width >= 4 && alike(4) && to.is_multiple_of(4) {
        out[0] = Some(Fill::D32(to, word(0), bytes as usize / 4));
    } else if words_apart && width == 8 && to.is_multiple_of(4) {
        out[0] = Some(Fill::Column32(to, 8, word(0), n));
        out[1] = Some(Fill::Column32(to + 4, 8, word(4), n));
    } else {
        for (i, o) in out.iter_mut().enumerate().take(width as usize) {
            *o = Some(Fill::Column8(to + i as u64, width as usize, b[i], n));
        }
    }
    out.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the fills leave in memory.
    fn played(offset: u64, bytes: u64, pattern: u64, width: u32, apart: bool) -> Vec<u8> {
        let mut m = vec![0xEE; (offset + bytes) as usize + 16];
        for f in fills(offset, bytes, pattern, width, apart) {
            let mut put = |at: usize, v: &[u8]| m[at..at + v.len()].copy_from_slice(v);
            match f {
                Fill::D8(a, v, n) => (0..n).for_each(|i| put(a as usize + i, &[v])),
                Fill::D16(a, v, n) => {
                    assert_eq!(a % 2, 0);
                    (0..n).for_each(|i| put(a as usize + 2 * i, &v.to_le_bytes()))
                }
                Fill::D32(a, v, n) => {
                    assert_eq!(a % 4, 0);
                    (0..n).for_each(|i| put(a as usize + 4 * i, &v.to_le_bytes()))
                }
                Fill::Column8(a, p, v, n) => (0..n).for_each(|i| put(a as usize + p * i, &[v])),
                Fill::Column32(a, p, v, n) => {
                    assert_eq!(a % 4, 0);
                    (0..n).for_each(|i| put(a as usize + p * i, &v.to_le_bytes()))
                }
            }
        }
        m
    }

    #[test]
    fn any_pattern_at_any_address_repeats_and_touches_nothing_else() {
        let patterns = [
            0,
            0x3f80_0000,
            0x0102_0304_0506_0708,
            0x1111_1111_1111_1111,
            0xabcd_abcd_abcd_abcd,
            0x0000_0001_0000_0001,
        ];
        for width in [1, 2, 4, 8] {
            for offset in 0..8 {
                for pattern in patterns {
                    let bytes = 24;
                    for apart in [true, false] {
                        let got = played(offset, bytes, pattern, width, apart);
                        let mut want = vec![0xEE; got.len()];
                        for i in 0..bytes as usize {
                            want[offset as usize + i] = pattern.to_le_bytes()[i % width as usize];
                        }
                        assert_eq!(got, want, "{width} bytes of {pattern:#x} at {offset}");
                    }
                }
            }
        }
    }

    #[test]
    fn zeros_are_one_fill() {
        assert_eq!(
            fills(4, 4096, 0, 4, true).collect::<Vec<_>>(),
            [Fill::D8(4, 0, 4096)]
        );
        assert_eq!(fills(8, 16, 0x3f80_0000, 4, true).count(), 1);
    }
}
