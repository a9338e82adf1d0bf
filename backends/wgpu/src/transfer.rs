//! Copies and fills that the adapter's own commands do not do: within one buffer, of bytes that are not whole words, of rows with pitches.

use crate::device::{Pipeline, Shared};
use crate::kernel::{Access, Binds, DYN_WORDS, Facts, Pass, Words, fold};
use crate::stream::Rows;
use crossweave_plugin::Result;
use std::sync::Arc;

/// A pass and its pipeline.
pub(crate) type Made = Arc<(Pass, Arc<Pipeline>)>;

/// The two kernels.
pub(crate) struct Transfers {
    pub copy: Made,
    pub fill: Made,
    /// Bytes from an operand's start that one binding surely holds.
    pub reach: u64,
    facts: Facts,
}

/// Invocations of a workgroup.
const SIZE: u64 = 64;

/// Each invocation makes one word of the destination out of the one or two words of the source it is cut from.
const COPY: &str = r"
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) gid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>) {
  let i = gid.x + gid.y * nwg.x * 64u;
  let per = dyn_word(6u);
  let row = i / per;
  if row >= dyn_word(5u) { return; }
  let d0 = dyn_word(0u) + row * dyn_word(1u);
  let s0 = dyn_word(2u) + row * dyn_word(3u);
  let word = d0 / 4u + i % per;
  let lo = max(d0, 4u * word);
  let hi = min(d0 + dyn_word(4u), 4u * word + 4u);
  if lo >= hi { return; }
  // One word further than the source's word, so that it is never negative.
  let a = s0 + 4u + 4u * word - d0;
  let shift = (a & 3u) * 8u;
  let q = a / 4u;
  var v = 0u;
  if q > 0u { v = wd_s(off_s() + q - 1u); }
  if shift > 0u { v = (v >> shift) | (wd_s(off_s() + q) << (32u - shift)); }
  if hi - lo == 4u { sw_d(off_d() + word, v); return; }
  let mask = ((1u << (8u * (hi - lo))) - 1u) << (8u * (lo & 3u));
  put_d(off_d() + word, v, mask);
}
";

const FILL: &str = r"
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) gid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>) {
  let word = gid.x + gid.y * nwg.x * 64u;
  let d0 = dyn_word(0u);
  let lo = max(d0, 4u * word);
  let hi = min(d0 + dyn_word(1u), 4u * word + 4u);
  if lo >= hi { return; }
  let v = dyn_word(2u + (word & 1u));
  if hi - lo == 4u { sw_d(off_d() + word, v); return; }
  let mask = ((1u << (8u * (hi - lo))) - 1u) << (8u * (lo & 3u));
  put_d(off_d() + word, v, mask);
}
";

/// Part of a copy that one dispatch does.
pub(crate) struct Piece {
    pub row: u64,
    pub column: u64,
    pub width: u64,
    pub height: u64,
}

impl Transfers {
    pub fn new(device: &Shared) -> Result<Transfers> {
        let f = &device.facts;
        let make = |pass: Pass| {
            let pipeline = device.pipeline(&pass)?;
            Ok::<_, crossweave_plugin::Error>(Arc::new((pass, pipeline)))
        };
        let mut b = Binds::internal(f);
        b.words("d", 0, Access::ReadWrite)?;
        b.words("s", 1, Access::Read)?;
        let copy = make(b.pass("copy", COPY, vec![], [0; 3])?)?;
        let mut b = Binds::internal(f);
        b.words("d", 0, Access::ReadWrite)?;
        let fill = make(b.pass("fill", FILL, vec![], [0; 3])?)?;
        let groups = u64::from(f.max_groups) * u64::from(f.max_groups);
        let reach = (f.max_binding - f.align - 16).min((groups * SIZE - 2).saturating_mul(4));
        Ok(Transfers {
            copy,
            fill,
            reach: reach / 8 * 8,
            facts: *f,
        })
    }

    /// Cuts rows so that each piece's two ends fit one binding each.
    pub fn pieces(&self, rows: Rows) -> Vec<Piece> {
        let pitch = rows.dpitch.max(rows.spitch).max(rows.width).max(1);
        let per = (self.reach / pitch).max(1);
        // A binding that starts inside a large buffer holds `reach` bytes only from an aligned start, hence the half.
        let (per, width) = match rows.width > self.reach / 2 {
            true => (1, self.reach / 2),
            false => ((per / 2).max(1), rows.width),
        };
        let mut out = vec![];
        for row in (0..rows.height).step_by(per as usize) {
            let mut column = 0;
            while column < rows.width {
                let w = width.min(rows.width - column);
                out.push(Piece {
                    row,
                    column,
                    width: w,
                    height: per.min(rows.height - row),
                });
                column += w;
            }
        }
        out
    }

    /// Words of a copy between two byte offsets.
    pub fn copy_words(&self, at: [u64; 2], rows: Rows) -> Result<(Words, [u32; 3])> {
        // The first word of a row may begin before it, and the last end behind it.
        let per = rows.width.div_ceil(4) + 1;
        let mut w = [0; DYN_WORDS];
        w[..7].copy_from_slice(&[
            (at[0] & 3) as u32,
            rows.dpitch as u32,
            (at[1] & 3) as u32,
            rows.spitch as u32,
            rows.width as u32,
            rows.height as u32,
            per as u32,
        ]);
        let groups = fold((per * rows.height).div_ceil(SIZE), &self.facts)?;
        Ok((w, groups))
    }

    /// Words of a fill; the pattern is turned so that it starts at the first byte.
    pub fn fill_words(&self, at: u64, bytes: u64, pattern: u64) -> Result<(Words, [u32; 3])> {
        let start = (at & 3) as u32;
        let turned = pattern.rotate_left(8 * start);
        let mut w = [0; DYN_WORDS];
        w[..4].copy_from_slice(&[start, bytes as u32, turned as u32, (turned >> 32) as u32]);
        let groups = fold((bytes.div_ceil(4) + 1).div_ceil(SIZE), &self.facts)?;
        Ok((w, groups))
    }
}
