//! Axes of a mesh, and sets of them.

use std::fmt;
use std::str::FromStr;

/// A mesh axis: one kind of parallelism.
///
/// The ranks of a pipeline stage are arranged twice: over `dp`, `cp` and `tp` for dense parameters, and over `edp`, `ep`
/// and `etp` for experts. Both arrangements are of the same ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Axis {
    /// Pipeline: each coordinate runs other units.
    Pp,
    /// Data: each coordinate sees other samples.
    Dp,
    /// Context: each coordinate holds a piece of the sequence.
    Cp,
    /// Tensor: each coordinate holds a piece of the weights.
    Tp,
    /// Expert data: each coordinate holds the same experts and sees other tokens.
    Edp,
    /// Expert: each coordinate holds other experts.
    Ep,
    /// Expert tensor: each coordinate holds a piece of each of its experts.
    Etp,
}

impl Axis {
    /// Every axis.
    pub const ALL: [Axis; 7] = {
        use Axis::*;
        [Pp, Dp, Cp, Tp, Edp, Ep, Etp]
    };
    /// The axes whose lengths make the number of ranks, in their usual order, slowest first: what talks most is closest.
    pub const DENSE: [Axis; 4] = [Axis::Pp, Axis::Dp, Axis::Cp, Axis::Tp];
    /// The axes over which the experts of a stage are spread, slowest first.
    pub const EXPERT: [Axis; 3] = [Axis::Edp, Axis::Ep, Axis::Etp];

    /// The axis's name in configurations and error texts.
    pub fn name(self) -> &'static str {
        match self {
            Axis::Pp => "pp",
            Axis::Dp => "dp",
            Axis::Cp => "cp",
            Axis::Tp => "tp",
            Axis::Edp => "edp",
            Axis::Ep => "ep",
            Axis::Etp => "etp",
        }
    }
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Axis {
    type Err = String;

    fn from_str(text: &str) -> Result<Axis, String> {
        let found = Axis::ALL.into_iter().find(|a| a.name() == text);
        found.ok_or_else(|| {
            let all = Axis::ALL.map(Axis::name).join(", ");
            format!("'{text}' is not a mesh axis; the axes are {all}")
        })
    }
}

/// A set of axes. Two sets of the same axes are equal, in whatever order they were written.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AxisSet(u8);

impl AxisSet {
    /// No axis: each rank by itself.
    pub const NONE: AxisSet = AxisSet(0);
    /// The ranks that hold the same dense parameters and see other tokens: what ZeRO shards dense parameters over.
    pub const DATA: AxisSet = AxisSet::of(&[Axis::Dp, Axis::Cp]);
    /// The ranks that hold the same experts and see other tokens: what ZeRO shards experts over.
    pub const EXPERT_DATA: AxisSet = AxisSet::of(&[Axis::Edp]);
    /// All ranks of a pipeline stage.
    pub const STAGE: AxisSet = AxisSet::of(&[Axis::Dp, Axis::Cp, Axis::Tp]);
    /// All ranks of the job.
    pub const WORLD: AxisSet = AxisSet::of(&Axis::DENSE);

    /// A set of these.
    pub const fn of(axes: &[Axis]) -> AxisSet {
        let mut bits = 0;
        let mut i = 0;
        while i < axes.len() {
            bits |= 1 << axes[i] as u8;
            i += 1;
        }
        AxisSet(bits)
    }
    /// Whether an axis is in it.
    pub const fn contains(self, axis: Axis) -> bool {
        self.0 >> axis as u8 & 1 == 1
    }
    /// Whether there is none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
    /// The axes of both.
    pub const fn union(self, other: AxisSet) -> AxisSet {
        AxisSet(self.0 | other.0)
    }
    /// Its axes, in the order of [`Axis::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Axis> {
        Axis::ALL.into_iter().filter(move |a| self.contains(*a))
    }
    /// Every set of axes that makes groups: of dense axes, and of axes of experts. Where both are in one set no arrangement
    /// of the ranks has it.
    pub fn all() -> impl Iterator<Item = AxisSet> {
        (0..1u8 << Axis::ALL.len())
            .map(AxisSet)
            .filter(|s| !s.is_mixed())
    }
    /// Where ranks share parameters over these axes: the axes on which the ranks of their stage differ that hold other parts.
    pub fn holders(self) -> AxisSet {
        match self.is_expert() {
            true => AxisSet::of(&[Axis::Ep, Axis::Etp]),
            false => AxisSet::of(&[Axis::Tp]),
        }
    }
    /// Whether it has axes of both arrangements of a stage's ranks.
    pub(crate) fn is_mixed(self) -> bool {
        self.is_expert() && self.iter().any(|a| AxisSet::STAGE.contains(a))
    }
    /// Whether it has axes of experts.
    pub(crate) fn is_expert(self) -> bool {
        Axis::EXPERT.into_iter().any(|a| self.contains(a))
    }
}

impl fmt::Display for AxisSet {
    /// `pp.dp`, or `self` for none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("self");
        }
        let names: Vec<&str> = self.iter().map(Axis::name).collect();
        f.write_str(&names.join("."))
    }
}

impl fmt::Debug for AxisSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Axis> for AxisSet {
    fn from(axis: Axis) -> AxisSet {
        AxisSet::of(&[axis])
    }
}
impl From<&[Axis]> for AxisSet {
    fn from(axes: &[Axis]) -> AxisSet {
        AxisSet::of(axes)
    }
}
impl<const N: usize> From<&[Axis; N]> for AxisSet {
    fn from(axes: &[Axis; N]) -> AxisSet {
        AxisSet::of(axes)
    }
}
