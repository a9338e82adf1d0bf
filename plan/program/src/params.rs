//! Parameter structs of the op table as bytes, with the places that step scalars fill.

use crate::scalar::ScalarId;
use crossweave_abi::op;

/// The type in which a step scalar is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Word {
    /// As f32.
    F32,
    /// As f64.
    F64,
    /// As u64.
    U64,
}

impl Word {
    /// Bytes.
    pub fn bytes(self) -> usize {
        match self {
            Word::F32 => 4,
            Word::F64 | Word::U64 => 8,
        }
    }
}

/// A place that a step scalar fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Patch {
    /// First byte.
    pub at: u32,
    /// The type in which it is written there.
    pub word: Word,
    /// The step scalar.
    pub scalar: ScalarId,
}

/// A parameter struct, fixed (`*Params`) or of a launch (`*Dyn`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ParamBlock {
    /// The struct, zero where a scalar is written.
    pub bytes: Vec<u8>,
    /// The step scalars that are filled in before it is used.
    pub patches: Vec<Patch>,
}

impl ParamBlock {
    /// A struct that never changes.
    pub fn fixed(bytes: &[u8]) -> ParamBlock {
        ParamBlock {
            bytes: bytes.to_vec(),
            patches: vec![],
        }
    }

    /// A struct with step scalars in fields: (first byte, how, which).
    pub fn with(bytes: &[u8], fields: &[(usize, Word, ScalarId)]) -> ParamBlock {
        let mut block = ParamBlock::fixed(bytes);
        for (at, word, scalar) in fields {
            block.bytes[*at..at + word.bytes()].fill(0);
            block.patches.push(Patch {
                at: *at as u32,
                word: *word,
                scalar: *scalar,
            });
        }
        block
    }

    /// The launch-time scalars of an elementwise program.
    pub fn scalars(scalars: &[ScalarId]) -> ParamBlock {
        let zero = op::ProgramDyn::new(&vec![0.0; scalars.len()]);
        let first = std::mem::offset_of!(op::ProgramDyn, scalars);
        let field = |(i, s): (usize, &ScalarId)| (first + 4 * i, Word::F32, *s);
        let fields: Vec<_> = scalars.iter().enumerate().map(field).collect();
        ParamBlock::with(zero.as_bytes(), &fields)
    }

    /// Writes the values of a step; whether a byte has changed.
    pub fn fill(patches: &[Patch], values: &[f64], bytes: &mut [u8]) -> bool {
        let mut changed = false;
        for p in patches {
            let v = values[p.scalar.0 as usize];
            let at = p.at as usize;
            let to = &mut bytes[at..at + p.word.bytes()];
            let mut put = |new: &[u8]| {
                changed |= to != new;
                to.copy_from_slice(new);
            };
            match p.word {
                Word::F32 => put(&(v as f32).to_ne_bytes()),
                Word::F64 => put(&v.to_ne_bytes()),
                Word::U64 => put(&(v as u64).to_ne_bytes()),
            }
        }
        changed
    }
}
