//! Profiles: what a device must claim so that the core can train on it. One table, which the conformance kit
//! demands, the generated header prints, and the layer `only` leaves of a plugin, so that the three are one.
//!
//! A row names an op and the element types of its operands in the op table's order, those that are absent
//! left out; of a row, every shape, layout, kind and parameter that the op table admits is meant. `h` stands
//! for one 16-bit float, bf16 or f16, the same in all rows: a device needs one of the two. A word that ends
//! in `?` may be absent, one that ends in `*` repeats.

use crate::consts::*;
use crate::dtype::DType;
use crate::op;

/// A set of cells that a plugin must claim to call itself fit for a use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Trains a transformer in f32 by the core's decompositions.
    Minimal,
    /// And in 16 bits, with its own collectives where it has any.
    Train,
    /// And with routed experts; it adds no row to `train` until there is an op for them.
    Moe,
    /// Carries messages and computes nothing.
    CollectiveOnly,
}

impl Profile {
    /// All of them.
    pub const ALL: [Profile; 4] = [
        Profile::Minimal,
        Profile::Train,
        Profile::Moe,
        Profile::CollectiveOnly,
    ];

    /// As the command line spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Profile::Minimal => "minimal",
            Profile::Train => "train",
            Profile::Moe => "moe",
            Profile::CollectiveOnly => "collective-only",
        }
    }

    /// The profile of a name.
    pub fn by_name(name: &str) -> Option<Profile> {
        Profile::ALL.into_iter().find(|p| p.name() == name)
    }

    /// Does this profile ask for what `least` introduces?
    pub const fn asks(self, least: Profile) -> bool {
        match (self, least) {
            (Profile::CollectiveOnly, _) => false,
            _ => least as u32 <= self as u32,
        }
    }

    /// Does this profile ask for [`COLLECTIVES`] of a plugin that offers collectives?
    pub const fn asks_collectives(self) -> bool {
        !matches!(self, Profile::Minimal)
    }
}

/// An op in some types.
#[derive(Clone, Copy, Debug)]
pub struct OpNeed {
    /// Its id.
    pub op: u32,
    /// The least profile that asks for it.
    pub least: Profile,
    /// Types of the operands, alternatives apart by `|`.
    pub types: &'static str,
}

/// One cell of the collectives.
#[derive(Clone, Copy, Debug)]
pub struct CollNeed {
    /// `COLL_*`.
    pub kind: u32,
    /// The element type.
    pub dtype: DType,
    /// `RED_*`, 0 where nothing is reduced.
    pub reduce: u32,
}

const fn minimal(op: u32, types: &'static str) -> OpNeed {
    OpNeed {
        op,
        least: Profile::Minimal,
        types,
    }
}

const fn train(op: u32, types: &'static str) -> OpNeed {
    OpNeed {
        op,
        least: Profile::Train,
        types,
    }
}

/// Ops, in the order of the op table.
pub const OPS: &[OpNeed] = &[
    minimal(op::COPY_STRIDED, "f32 f32 | i32 i32"),
    minimal(op::CAST, "f32 u8 | f32 u32 | f32 i32 | i32 f32"),
    minimal(op::FILL_STRIDED, "f32 | i32"),
    minimal(op::IOTA, "f32 | i32"),
    minimal(op::UNARY, "f32 f32"),
    minimal(op::BINARY, "f32 f32 f32"),
    minimal(op::COMPARE, "u8 f32 f32 | u8 i32 i32"),
    minimal(op::SELECT, "f32 u8 f32 f32"),
    minimal(op::AXPBY, "f32 f32"),
    minimal(op::CLAMP, "f32 f32"),
    minimal(op::REDUCE, "f32 f32"),
    minimal(op::ARG_REDUCE, "i32 f32"),
    minimal(op::CUMSUM, "f32 f32 | i32 i32"),
    minimal(op::NONFINITE_COUNT, "u32 f32*"),
    minimal(op::MATMUL, "f32 f32 f32 f32?"),
    minimal(op::GATHER_ROWS, "f32 f32 i32 | i32 i32 i32"),
    minimal(op::SCATTER_ADD_ROWS, "f32 f32 i32"),
    minimal(op::SORT_PAIRS, "f32 i32 f32 i32 | i32 i32 i32 i32"),
    minimal(op::TOPK, "f32 i32 f32"),
    minimal(op::HISTOGRAM, "i32 i32"),
    minimal(op::PHILOX, "u32 | f32"),
    train(op::COPY_STRIDED, "h h"),
    train(op::CAST, "f32 h | h f32"),
    train(op::FILL_STRIDED, "h"),
    train(op::UNARY, "h h"),
    train(op::BINARY, "h h h"),
    train(op::SELECT, "h u8 h h"),
    train(op::AXPBY, "h h"),
    train(op::CLAMP, "h h"),
    train(op::REDUCE, "h h"),
    train(op::NONFINITE_COUNT, "u32 h*"),
    train(op::MATMUL, "h h h h?"),
    train(op::GATHER_ROWS, "h h i32"),
];

const fn coll(kind: u32, dtype: DType, reduce: u32) -> CollNeed {
    CollNeed {
        kind,
        dtype,
        reduce,
    }
}

/// Collectives, of a plugin that offers collectives at all; everything else is composed of them. Sends and
/// receives are needed in groups, and of bytes: other types travel as their bytes.
pub const COLLECTIVES: &[CollNeed] = &[
    coll(COLL_ALL_REDUCE, DType::F32, RED_SUM),
    coll(COLL_ALL_GATHER, DType::U8, 0),
    coll(COLL_BROADCAST, DType::U8, 0),
    coll(COLL_SEND, DType::U8, 0),
    coll(COLL_RECV, DType::U8, 0),
];

/// Does a word of a row mean this type?
fn is(word: &str, t: DType, half: DType) -> bool {
    match word.trim_end_matches(['?', '*']) {
        "h" => t == half,
        name => t.name() == name,
    }
}

/// Do the types of the operands that are there fit one alternative of a row?
fn fits(row: &str, types: &[DType], half: DType) -> bool {
    let mut at = 0;
    for word in row.split_ascii_whitespace() {
        if word.ends_with('*') {
            while at < types.len() && is(word, types[at], half) {
                at += 1;
            }
        } else if at < types.len() && is(word, types[at], half) {
            at += 1;
        } else if !word.ends_with('?') {
            return false;
        }
    }
    at == types.len()
}

/// The least profile that asks for an op with operands of these types (absent ones left out), where `half`
/// is the device's 16-bit float; `None`: no profile does.
pub fn op_need(op: u32, types: &[DType], half: DType) -> Option<Profile> {
    let rows = OPS.iter().filter(|n| n.op == op);
    let mut hits = rows.filter(|n| n.types.split('|').any(|row| fits(row, types, half)));
    hits.next().map(|n| n.least)
}

/// Is a collective one of [`COLLECTIVES`]?
pub fn coll_need(kind: u32, dtype: u32, reduce: u32, flags: u32) -> bool {
    let mut all = COLLECTIVES.iter();
    flags == 0 && all.any(|c| (c.kind, c.dtype.id(), c.reduce) == (kind, dtype, reduce))
}

#[cfg(test)]
mod tests {
    use super::*;
    use DType::{Bf16, F16, F32, I32, I64, U8, U32};

    #[test]
    fn rows_are_read_by_type_optional_and_repeated() {
        let need = |op, types: &[DType]| op_need(op, types, Bf16);
        assert_eq!(need(op::CAST, &[F32, U8]), Some(Profile::Minimal));
        assert_eq!(need(op::CAST, &[F32, I64]), None);
        assert_eq!(need(op::CAST, &[Bf16, F32]), Some(Profile::Train));
        assert_eq!(need(op::CAST, &[F16, F32]), None);
        assert_eq!(need(op::MATMUL, &[F32, F32, F32]), Some(Profile::Minimal));
        assert_eq!(need(op::MATMUL, &[F32; 4]), Some(Profile::Minimal));
        assert_eq!(need(op::MATMUL, &[F32, Bf16, Bf16]), None);
        let many = [U32, F32, F32, F32];
        assert_eq!(need(op::NONFINITE_COUNT, &many), Some(Profile::Minimal));
        assert_eq!(need(op::GATHER_ROWS, &[I32; 3]), Some(Profile::Minimal));
        assert_eq!(need(op::ADAMW, &[F32; 4]), None);
        assert!(coll_need(COLL_ALL_REDUCE, F32.id(), RED_SUM, 0));
        assert!(!coll_need(COLL_ALL_REDUCE, F32.id(), RED_AVG, 0));
        assert!(!coll_need(COLL_ALL_GATHER, F32.id(), 0, 0));
    }

    #[test]
    fn profiles_ask_for_what_the_smaller_ones_ask() {
        assert!(Profile::Train.asks(Profile::Minimal) && Profile::Moe.asks(Profile::Train));
        assert!(!Profile::Minimal.asks(Profile::Train));
        assert!(!Profile::CollectiveOnly.asks(Profile::Minimal));
        assert!(!Profile::Minimal.asks_collectives() && Profile::CollectiveOnly.asks_collectives());
        for p in Profile::ALL {
            assert_eq!(Profile::by_name(p.name()), Some(p));
        }
    }
}
