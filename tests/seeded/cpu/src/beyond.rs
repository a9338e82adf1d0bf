//! Defects by rule: `wrong_beyond:OP:OPERAND:DIM:L` writes what an op gives beyond index L of a dim wrongly,
//! `ignores_beyond:OP:OPERAND:DIM:L` takes what it reads there for zero. Dims count from the last, which is 1; smaller operands are left
//! alone, as by a kernel whose tile is so large. With `_at_multiples` in place of `_beyond` the last index of a dim that is a multiple of
//! L goes wrong, as in a kernel that is chosen for whole tiles; with `_beyond_both` and two dims, what lies beyond L in both.
//! `last_of_residue:OP:OPERAND:DIM:W:R` is about the last index of a dim that is R beyond a multiple of W, as in a kernel whose
//! tile of W ends wrongly there.

use crate::ops::Host;
use crossweave_abi::{Layout, op};

/// Where an operand goes wrong.
#[derive(Clone, Copy)]
enum Which {
    Beyond,
    Multiples,
    /// And beyond the same in this dim.
    Both(usize),
    /// At the last index of a size that is so much beyond a multiple of this.
    Residue(i64),
}

/// A dim of an operand of an op, and where it goes wrong.
#[derive(Clone, Copy)]
pub struct Beyond {
    /// What the op gives is wrong, else what it reads is not seen.
    pub gives: bool,
    /// What it reads is cut to the 11 bits of TF32.
    cuts: bool,
    pub operand: usize,
    which: Which,
    dim: usize,
    from: i64,
}

impl Beyond {
    /// The defect of these words, if it is one of op `id`.
    pub fn parse(bug: &str, id: u32) -> Option<Beyond> {
        let words: Vec<&str> = bug.split(':').collect();
        let (kind, name, operand, dim, second, from) = match words[..] {
            [kind, name, operand, dim, from] => (kind, name, operand, dim, None, from),
            [kind, name, operand, dim, other, from] => {
                (kind, name, operand, dim, Some(other), from)
            }
            _ => return None,
        };
        let (what, where_) = kind.split_once('_')?;
        let which = match (where_, second) {
            ("beyond", None) => Which::Beyond,
            ("at_multiples", None) => Which::Multiples,
            ("beyond_both", Some(d)) => Which::Both(d.parse().ok()?),
            ("of_residue", Some(width)) => Which::Residue(width.parse().ok()?),
            _ => return None,
        };
        let (gives, cuts) = match what {
            "last" => {
                let of = op::by_name(name)?.operand(operand.parse().ok()?)?;
                (of.is_written(), false)
            }
            "wrong" => (true, false),
            "ignores" => (false, false),
            "cuts" => (false, true),
            _ => return None,
        };
        (op::by_name(name)?.id == id).then_some(Beyond {
            gives,
            cuts,
            operand: operand.parse().ok()?,
            which,
            dim: dim.parse().ok()?,
            from: from.parse().ok()?,
        })
    }

    /// Has an operand anything that goes wrong?
    pub fn meets(&self, l: &Layout) -> bool {
        let rank = l.rank as usize;
        let size = |dim: usize| match rank >= dim {
            true => l.shape[rank - dim],
            false => 0,
        };
        match self.which {
            Which::Beyond => size(self.dim) > self.from,
            Which::Multiples => size(self.dim) > 0 && size(self.dim) % self.from == 0,
            Which::Both(other) => size(self.dim) > self.from && size(other) > self.from,
            Which::Residue(width) => size(self.dim) > 0 && size(self.dim) % width == self.from,
        }
    }

    /// Does an element go wrong?
    fn hits(&self, at: &[i64], l: &Layout) -> bool {
        let rank = at.len();
        let own = at[rank - self.dim];
        match self.which {
            Which::Beyond => own >= self.from,
            Which::Multiples | Which::Residue(_) => own == l.shape[rank - self.dim] - 1,
            Which::Both(other) => own >= self.from && at[rank - other] >= self.from,
        }
    }

    /// Spoils, or empties, those elements.
    pub fn spoil(&self, x: &Host) {
        let l = &x.layout;
        let rank = l.rank as usize;
        let size = (l.dtype & 0xFF) as usize / 8;
        let mut at = vec![0i64; rank];
        for _ in 0..l.numel() {
            if self.cuts {
                let offset: i64 = (0..rank).map(|d| at[d] * l.stride[d]).sum();
                if size == 4 {
                    let v = x.get::<u32>(offset as usize);
                    x.set(offset as usize, v & !0x1FFF);
                }
            } else if self.hits(&at, l) {
                let offset: i64 = (0..rank).map(|d| at[d] * l.stride[d]).sum();
                let top = offset as usize * size + size - 1;
                for i in 0..size {
                    let b = offset as usize * size + i;
                    match self.gives {
                        // Another sign and another size, or another integer.
                        true if b == top => x.set(b, x.get::<u8>(b) ^ 0x41),
                        true => {}
                        false => x.set(b, 0u8),
                    }
                }
            }
            for d in (0..rank).rev() {
                at[d] += 1;
                if at[d] < l.shape[d] {
                    break;
                }
                at[d] = 0;
            }
        }
    }
}
