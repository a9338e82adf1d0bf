//! Where each logical tensor's elements lie among the ranks' files, so that any layout can load any other's.
//!
//! A logical tensor is named freely (`param/transformer.wte.weight`, `moment1/…`). Its elements are counted flat, in
//! row-major order of the full shape. A piece says which of them one stored blob holds; together the pieces hold every
//! element exactly once, which is proven before a checkpoint becomes visible.

use crate::dtype::{Dtype, num_elements};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A logical tensor: its full shape and type, and the pieces that make it up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Logical {
    /// Element type, the same in every piece.
    pub dtype: Dtype,
    /// Full shape, outermost dim first.
    pub shape: Vec<usize>,
    /// Who holds what.
    pub pieces: Vec<Piece>,
}

/// A run of elements of a logical tensor inside a stored blob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// The rank whose file holds it.
    pub rank: usize,
    /// The blob's name in that file.
    pub tensor: String,
    /// First element inside the blob.
    pub offset: u64,
    /// First flat element of the logical tensor (of the slice, where there is one).
    pub start: u64,
    /// Number of elements.
    pub len: u64,
    /// Empty, or `[first, count]` per dim: the piece then counts its flat elements inside that box of the full tensor,
    /// as a tensor-parallel split along an inner dim does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slice: Vec<[u64; 2]>,
}

/// Elements that are contiguous both in the full tensor and in the blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// First flat element of the full tensor.
    pub full: u64,
    /// First element of the blob.
    pub blob: u64,
    pub len: u64,
}

/// The runs of a piece, in order; the reason as text where the piece does not fit the shape.
pub(crate) fn runs<'a>(
    shape: &'a [usize],
    piece: &'a Piece,
) -> Result<impl Iterator<Item = Run> + use<'a>, String> {
    let total = num_elements(shape).ok_or("the full shape overflows")?;
    let boxed = !piece.slice.is_empty();
    if boxed && piece.slice.len() != shape.len() {
        return Err(format!(
            "its slice has {} dims, the tensor {}",
            piece.slice.len(),
            shape.len()
        ));
    }
    let fits =
        |(s, &d): (&[u64; 2], &usize)| s[0].checked_add(s[1]).is_some_and(|end| end <= d as u64);
    if !piece.slice.iter().zip(shape).all(fits) {
        return Err(format!(
            "its slice {:?} lies outside shape {shape:?}",
            piece.slice
        ));
    }
    let inside = if boxed {
        piece.slice.iter().map(|s| s[1]).product()
    } else {
        total
    };
    let end = piece
        .start
        .checked_add(piece.len)
        .filter(|&e| e <= inside)
        .ok_or_else(|| {
            format!(
                "elements {}+{} lie outside the {inside} there are",
                piece.start, piece.len
            )
        })?;
    // Dims from `outer` on are contiguous in the full tensor: the last sliced dim and all whole ones after it.
    let outer = if boxed {
        let sliced = piece
            .slice
            .iter()
            .zip(shape)
            .rposition(|(s, &d)| s[1] != d as u64);
        sliced.unwrap_or(0)
    } else {
        0
    };
    let inner = if boxed {
        piece.slice[outer..].iter().map(|s| s[1]).product()
    } else {
        total
    };
    let mut at = piece.start;
    Ok(std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let (mut chunk, within) = (at / inner, at % inner);
        let len = (inner - within).min(end - at);
        let mut full = within;
        if boxed {
            let mut stride: u64 = shape[outer..].iter().map(|&d| d as u64).product();
            full += piece.slice[outer][0] * (stride / (shape[outer] as u64).max(1));
            for d in (0..outer).rev() {
                full += (piece.slice[d][0] + chunk % piece.slice[d][1]) * stride;
                chunk /= piece.slice[d][1];
                stride *= shape[d] as u64;
            }
        }
        let run = Run {
            full,
            blob: piece.offset + (at - piece.start),
            len,
        };
        at += len;
        Some(run)
    }))
}

/// Proves that every logical tensor is owned exactly once. `blob` gives the type and the number of elements of a stored
/// blob, or `None`. The error is (logical name, reason).
pub(crate) fn prove(
    layout: &BTreeMap<String, Logical>,
    blob: impl Fn(usize, &str) -> Option<(Dtype, u64)>,
) -> Result<(), (String, String)> {
    // Of every blob, whose elements are whose.
    let mut taken: Vec<(usize, &str, u64, u64, &str)> = Vec::new();
    for (name, logical) in layout {
        let fail = |reason: String| (name.clone(), reason);
        let total = num_elements(&logical.shape)
            .ok_or_else(|| fail(format!("shape {:?} overflows", logical.shape)))?;
        let mut owned: Vec<(u64, u64, usize)> = Vec::new();
        for piece in &logical.pieces {
            let (dtype, num) = blob(piece.rank, &piece.tensor).ok_or_else(|| {
                fail(format!(
                    "rank {} stores no blob `{}`",
                    piece.rank, piece.tensor
                ))
            })?;
            if dtype != logical.dtype {
                return Err(fail(format!(
                    "{:?}, but blob `{}` of rank {} is {dtype:?}",
                    logical.dtype, piece.tensor, piece.rank
                )));
            }
            if piece
                .offset
                .checked_add(piece.len)
                .is_none_or(|end| end > num)
            {
                return Err(fail(format!(
                    "elements {}+{} lie outside blob `{}` of rank {}, which has {num}",
                    piece.offset, piece.len, piece.tensor, piece.rank
                )));
            }
            if piece.len > 0 {
                let end = piece.offset + piece.len;
                taken.push((piece.rank, &piece.tensor, piece.offset, end, name));
            }
            let runs = runs(&logical.shape, piece)
                .map_err(|e| fail(format!("piece of rank {}: {e}", piece.rank)))?;
            owned.extend(runs.map(|r| (r.full, r.full + r.len, piece.rank)));
        }
        owned.sort_unstable();
        let mut at = 0;
        for (start, end, rank) in owned {
            if start > at {
                return Err(fail(format!("no rank owns elements {at}..{start}")));
            }
            if start < at {
                return Err(fail(format!(
                    "elements {start}..{} are owned twice, again by rank {rank}",
                    at.min(end)
                )));
            }
            at = end;
        }
        if at < total {
            return Err(fail(format!("no rank owns elements {at}..{total}")));
        }
    }
    taken.sort_unstable();
    for pair in taken.windows(2) {
        let ((rank, blob, _, end, first), (r, b, start, _, second)) = (pair[0], pair[1]);
        if (rank, blob) == (r, b) && start < end {
            let reason = format!(
                "its elements from {start} on in blob `{blob}` of rank {rank} are those of `{first}` too"
            );
            return Err((second.to_string(), reason));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn piece(start: u64, len: u64, slice: Vec<[u64; 2]>) -> Piece {
        Piece {
            rank: 0,
            tensor: "w".into(),
            offset: 5,
            start,
            len,
            slice,
        }
    }

    proptest! {
        #[test]
        fn runs_of_a_box_visit_what_nested_loops_visit(
            dims in prop::collection::vec((1usize..5, 0.0f64..1.0, 0.0f64..1.0), 1..4),
            from in 0.0f64..1.0, to in 0.0f64..1.0,
        ) {
            let shape: Vec<usize> = dims.iter().map(|d| d.0).collect();
            let slice: Vec<[u64; 2]> = dims.iter().map(|&(n, a, b)| {
                let first = (a * n as f64) as u64;
                [first, 1 + (b * (n as u64 - first) as f64) as u64]
            }).zip(&shape).map(|([f, c], &n)| [f, c.min(n as u64 - f)]).collect();
            let inside: u64 = slice.iter().map(|s| s[1]).product();
            let start = (from * inside as f64) as u64;
            let len = (to * (inside - start) as f64) as u64;
            let p = piece(start, len, slice.clone());
            let got: Vec<u64> = runs(&shape, &p).unwrap()
                .flat_map(|r| { (r.full..r.full + r.len).zip(r.blob..).map(|(f, b)| f * 1000 + b).collect::<Vec<_>>() }).collect();
            let mut all = Vec::new();
            for flat in 0..shape.iter().product::<usize>() as u64 {
                let mut rest = flat;
                let inbox = shape.iter().zip(&slice).rev().all(|(&d, s)| {
                    let i = rest % d as u64;
                    rest /= d as u64;
                    i >= s[0] && i < s[0] + s[1]
                });
                if inbox { all.push(flat); }
            }
            let want: Vec<u64> = all[start as usize..(start + len) as usize].iter().zip(5u64..).map(|(f, b)| f * 1000 + b).collect();
            prop_assert_eq!(got, want);
        }
    }

    #[test]
    fn a_hole_and_a_double_owner_are_refused() {
        let blob = |_: usize, _: &str| Some((Dtype::F32, 100));
        let check = |mut pieces: Vec<Piece>| {
            // One behind the other in the blob.
            let mut at = 5u64;
            for p in &mut pieces {
                p.offset = at;
                at = at.saturating_add(p.len);
            }
            let logical = Logical {
                dtype: Dtype::F32,
                shape: vec![4, 5],
                pieces,
            };
            prove(&BTreeMap::from([("p".to_string(), logical)]), blob).map_err(|e| e.1)
        };
        assert!(check(vec![piece(0, 8, vec![]), piece(8, 12, vec![])]).is_ok());
        let halves = vec![
            piece(0, 8, vec![[0, 4], [0, 2]]),
            piece(0, 12, vec![[0, 4], [2, 3]]),
        ];
        assert!(check(halves).is_ok());
        assert_eq!(
            check(vec![piece(0, 8, vec![]), piece(9, 11, vec![])]).unwrap_err(),
            "no rank owns elements 8..9"
        );
        assert!(
            check(vec![piece(0, 9, vec![]), piece(8, 12, vec![])])
                .unwrap_err()
                .contains("owned twice")
        );
        // Two tensors in one place of a blob.
        let twice = |offset| {
            let whole = |offset| Logical {
                dtype: Dtype::F32,
                shape: vec![4],
                pieces: vec![Piece {
                    offset,
                    ..piece(0, 4, vec![])
                }],
            };
            let layout = [
                ("p".to_string(), whole(0)),
                ("q".to_string(), whole(offset)),
            ];
            prove(&BTreeMap::from(layout), blob).map_err(|e| e.1)
        };
        assert!(twice(4).is_ok());
        assert!(twice(3).unwrap_err().contains("are those of `p` too"));
        assert!(check(vec![piece(0, 21, vec![])]).is_err());
        assert!(check(vec![piece(u64::MAX, 2, vec![])]).is_err());
        assert!(check(vec![piece(0, 1, vec![[3, u64::MAX], [0, 1]])]).is_err());
    }
}
