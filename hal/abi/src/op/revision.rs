//! Revisions of ops: the newest of each, and which one a request is of.
//!
//! A revision has all that those before it have. A request is of the first that says all of it, so that a plugin that is older than an addition
//! computes what it knows and refuses the rest by its number.

use super::{ATTENTION_EXT_BWD, ATTENTION_EXT_FWD, AttentionExtParams, FLAG_IN_ROW};
use crate::Layout;
use core::mem::offset_of;

/// The newest revision of an op.
pub(super) const fn newest(id: u32) -> u32 {
    match id {
        ATTENTION_EXT_FWD | ATTENTION_EXT_BWD => 2,
        _ => 1,
    }
}

/// The revision that a request is of.
pub fn revision_of(id: u32, operands: &[Layout], params: &[u8]) -> u32 {
    // Where q stands, and the operands whose type may be another.
    let (q, others): (usize, &[usize]) = match id {
        ATTENTION_EXT_FWD => (2, &[0]),
        ATTENTION_EXT_BWD => (7, &[0, 1, 2, 5, 6]),
        _ => return 1,
    };
    let flags = params
        .get(4..8)
        .map_or(0, |f| u32::from_le_bytes([f[0], f[1], f[2], f[3]]));
    let first = offset_of!(AttentionExtParams, shift);
    let moved = params
        .get(first..)
        .is_some_and(|rest| rest.iter().any(|b| *b != 0));
    let of_q = operands.get(q).map(|l| l.dtype);
    let wider = |i: &usize| {
        operands
            .get(*i)
            .is_some_and(|l| l.present() && Some(l.dtype) != of_q)
    };
    1 + u32::from(flags & FLAG_IN_ROW != 0 || moved || others.iter().any(wider))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    #[test]
    fn a_request_is_of_the_first_revision_that_says_all_of_it() {
        let of = |dtypes: &[DType], p: &AttentionExtParams| {
            let mut layouts = [Layout::ABSENT; 11];
            for (l, t) in layouts.iter_mut().zip(dtypes) {
                *l = Layout::contiguous(*t, &[1, 1, 1, 1]);
            }
            let layouts = &layouts[..dtypes.len()];
            let id = if dtypes.len() == 5 {
                ATTENTION_EXT_FWD
            } else {
                ATTENTION_EXT_BWD
            };
            revision_of(id, layouts, p.as_bytes())
        };
        let (f, h) = (DType::F32, DType::Bf16);
        let none = AttentionExtParams::default();
        let shift = AttentionExtParams { shift: -1, ..none };
        let key = AttentionExtParams {
            first_key: 4,
            ..none
        };
        let row = AttentionExtParams {
            flags: FLAG_IN_ROW,
            ..none
        };
        for (dtypes, p, want) in [
            (&[f; 5][..], &none, 1),
            (&[h, f, h, h, h], &none, 1),
            (&[f, f, h, h, h], &none, 2),
            (&[h, f, h, h, h], &shift, 2),
            (&[f; 5], &key, 2),
            (&[f; 5], &row, 2),
            (&[h, h, h, h, h, h, h, h, h, h, f], &none, 1),
            (&[f, f, f, h, h, h, h, h, h, h, f], &none, 2),
            (&[h, h, h, h, h, h, f, h, h, h, f], &none, 2),
        ] {
            assert_eq!(of(dtypes, p), want, "{dtypes:?} {p:?}");
        }
        assert_eq!(
            revision_of(super::super::ATTENTION_FWD, &[], shift.as_bytes()),
            1
        );
        // What is shorter, as an older side writes it, is what it was.
        assert_eq!(
            revision_of(ATTENTION_EXT_FWD, &[], &none.as_bytes()[..64]),
            1
        );
    }
}
