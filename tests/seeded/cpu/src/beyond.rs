//! Defects by rule: `wrong_beyond:OP:OPERAND:DIM:L` writes what an op gives beyond index L of a dim wrongly,
//! `ignores_beyond:OP:OPERAND:DIM:L` takes what it reads there for zero. Dims count from the last, which is 1; smaller operands are left
//! alone, as by a kernel whose tile is so large.

use crate::ops::Host;
use crossweave_abi::{Layout, op};

/// A dim of an operand of an op, and where it goes wrong.
#[derive(Clone, Copy)]
pub struct Beyond {
    /// What the op gives is wrong, else what it reads is not seen.
    pub gives: bool,
    pub operand: usize,
    dim: usize,
    from: i64,
}

impl Beyond {
    /// The defect of these words, if it is one of op `id`.
    pub fn parse(bug: &str, id: u32) -> Option<Beyond> {
        let words: Vec<&str> = bug.split(':').collect();
        let [kind, name, operand, dim, from] = words[..] else {
            return None;
        };
        let gives = match kind {
            "wrong_beyond" => true,
            "ignores_beyond" => false,
            _ => return None,
        };
        (op::by_name(name)?.id == id).then_some(Beyond {
            gives,
            operand: operand.parse().ok()?,
            dim: dim.parse().ok()?,
            from: from.parse().ok()?,
        })
    }

    /// Has an operand anything beyond?
    pub fn meets(&self, l: &Layout) -> bool {
        let rank = l.rank as usize;
        rank >= self.dim && l.shape[rank - self.dim] > self.from
    }

    /// Spoils, or empties, the elements beyond.
    pub fn spoil(&self, x: &Host) {
        let l = &x.layout;
        let rank = l.rank as usize;
        let size = (l.dtype & 0xFF) as usize / 8;
        let mut at = vec![0i64; rank];
        for _ in 0..l.numel() {
            if at[rank - self.dim] >= self.from {
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
