//! The state table of a rank, as data: which elements of which kind of state of each parameter lie here, in which memory, and in which
//! form. Reads, loads, checkpoints and exports go by it, and know neither a layout nor an optimizer.

use crate::build::{On, View};
use crate::memory::{MemId, Place};
use crossweave_abi::DType;
use crossweave_axes::{AxisSet, TensorBox};
use std::ops::Range;

/// The kind of a parameter's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateKind {
    /// The value in full precision (the master copy where there is one).
    Value,
    /// First moment, or momentum.
    Moment1,
    /// Second moment.
    Moment2,
    /// Means of the second moment over the last dim (Adafactor).
    Rows,
    /// Means of the second moment over the dim before it (Adafactor).
    Cols,
    /// The exponential moving average of the value.
    Ema,
}

impl StateKind {
    /// All of them.
    pub const ALL: [StateKind; 6] = [
        StateKind::Value,
        StateKind::Moment1,
        StateKind::Moment2,
        StateKind::Rows,
        StateKind::Cols,
        StateKind::Ema,
    ];
    /// Those that lie as the parameter's elements do, and are cut with them.
    pub const CUT: [StateKind; 4] = [
        StateKind::Value,
        StateKind::Moment1,
        StateKind::Moment2,
        StateKind::Ema,
    ];
    /// Short name, as in checkpoints.
    pub fn name(self) -> &'static str {
        match self {
            StateKind::Value => "value",
            StateKind::Moment1 => "moment1",
            StateKind::Moment2 => "moment2",
            StateKind::Rows => "moment2_rows",
            StateKind::Cols => "moment2_cols",
            StateKind::Ema => "ema",
        }
    }
    /// Returns true if it is the same on every rank that updates the parameter, and not cut with the parameter's elements.
    pub fn is_replicated(self) -> bool {
        matches!(self, StateKind::Rows | StateKind::Cols)
    }
}

/// Writes instructions over codes, scales and f32 values.
pub type Translate = fn(&On<'_>, [&View<'_>; 3]);

/// The coding of values in bytes that are no f32: codes, with a scale for each block of them.
#[derive(Clone, Copy, Debug)]
pub struct Codec {
    /// Elements of a block.
    pub block: u64,
    /// From codes and scales to values.
    pub decode: Translate,
    /// From values to codes and scales.
    pub encode: Translate,
}

/// A run of elements of one state of one parameter in memory of the program.
#[derive(Clone, Debug)]
pub struct StateRun {
    /// The kind of state.
    pub kind: StateKind,
    /// Elements of the state, row-major: of what this rank holds, where it is cut with the parameter.
    pub range: Range<u64>,
    /// The memory of its values: f32, or codes where there is a codec.
    pub values: Place,
    /// The memory of their scales, and the meaning of the codes.
    pub coded: Option<(Place, Codec)>,
}

/// Elements of what the rank holds of a parameter, and the same elements among those that it owns of its flat.
pub type Owned = (Range<u64>, Range<u64>);

/// One parameter.
#[derive(Clone, Debug)]
pub struct ParamState {
    /// The box that this rank holds of it, and its ranks together own: elements are counted in it.
    pub held: TensorBox,
    /// An adapter sits on it: it is in the unit's second flat and has a value only.
    pub base: bool,
    /// It has a gradient and an update.
    pub trains: bool,
    /// Its elements in the whole of its flat; in that order its gradient lies in the unit's.
    pub range: Range<u64>,
    /// Its first element among the unit's whole parameters.
    pub whole_at: u64,
    /// The elements that this rank owns of it.
    pub owned: Option<Owned>,
    /// The elements of those that the host updates.
    pub hosted: Option<Owned>,
    /// The states that any rank keeps of it beside its value, with their declared shapes.
    pub shapes: Vec<(StateKind, Vec<u64>)>,
    /// The states of those that are in memory of the program.
    pub runs: Vec<StateRun>,
}

/// The parameters of a unit that the same ranks share.
#[derive(Clone, Debug)]
pub struct FlatState {
    /// Elements of its parameters.
    pub numel: u64,
    /// Elements that this rank owns, padding included.
    pub owned: u64,
    /// Elements of all its ranks' slices, where each rank owns a slice.
    pub cut: Option<u64>,
    /// The memory of the elements: f32 values of those that are updated on the device; the base in compute type, none while it rests on the
    /// host.
    pub place: Option<Place>,
    /// The number under which the host executor knows what it holds.
    pub room: usize,
}

/// The elements that a rank answers for in checkpoints of a unit: its slice, whatever it owns.
#[derive(Clone, Debug)]
pub struct Saved {
    /// First element of the slice among those that the rank owns.
    pub from: u64,
    /// Elements.
    pub numel: u64,
    /// Parts of parameters: which, its elements, and the first in the slice.
    pub parts: Vec<(usize, Range<u64>, u64)>,
}

/// One unit.
#[derive(Clone, Debug)]
pub struct UnitState {
    /// Its parameters.
    pub params: Vec<ParamState>,
    /// Type of parameters as blocks read them.
    pub compute: DType,
    /// The axes over which ranks share it.
    pub owners: AxisSet,
    /// The flat of what is trained, or frozen like it.
    pub flat: FlatState,
    /// The flat of what adapters sit on.
    pub base: FlatState,
    /// The first so many of the owned elements are the host's.
    pub host: u64,
    /// The part of the host's room that is each state it keeps.
    pub parts: Vec<(StateKind, usize)>,
    /// The 16-bit copy of what is updated on the device, where the update keeps one.
    pub copy: Option<Place>,
    /// Memory of optimizer states, with the byte that all of it holds before the first step.
    pub fresh: Vec<(MemId, u8)>,
    /// The elements that this rank saves.
    pub saved: Saved,
    /// The memory of its parameters, in compute type, while they are whole.
    pub whole: Option<Place>,
    /// They are gathered.
    pub gathers: bool,
    /// They are there between gather and release only.
    pub transient: bool,
    /// Elements of the whole gradient.
    pub grad_length: u64,
    /// Parameters have one owner each, whatever their number.
    pub by_parameter: bool,
}

impl ParamState {
    /// Returns true if other ranks than those of its flat hold other parts of such a state of it.
    pub fn is_cut(&self, kind: StateKind) -> bool {
        !kind.is_replicated() && !self.held.is_whole()
    }
}

impl UnitState {
    /// Returns true if some parameter is trained.
    pub fn trains(&self) -> bool {
        self.params.iter().any(|p| p.trains)
    }
    /// The flat of parameter `i`.
    pub fn flat_of(&self, i: usize) -> &FlatState {
        match self.params[i].base {
            true => &self.base,
            false => &self.flat,
        }
    }
    /// Owned elements updated on the device: behind those that the host updates.
    pub fn rest(&self) -> Range<u64> {
        self.host..self.flat.owned
    }
    /// The part of the host's room that is a state of this kind.
    pub fn part(&self, kind: StateKind) -> Option<usize> {
        let mut parts = self.parts.iter();
        parts.find(|(k, _)| *k == kind).map(|(_, part)| *part)
    }
}

/// Returns the overlap of two ranges.
pub fn clip(r: &Range<u64>, to: &Range<u64>) -> Option<Range<u64>> {
    let (start, end) = (r.start.max(to.start), r.end.min(to.end));
    (start < end).then_some(start..end)
}
