//! Rank arithmetic: a world of ranks as a grid over named axes, and the groups that any set of axes makes.
//!
//! The first axis of the order varies slowest and its last fastest, so neighbours on the last axis are neighbours in rank
//! (and, as launchers number them, on one node). An axis that is not written has length one: asking for its group gives
//! the group of the rank alone, which is a group like any other.
//!
//! Experts are carved from the ranks of a pipeline stage: dp·cp·tp = edp·ep·etp. Both arrangements count a stage's ranks
//! with `tp` (`etp`) fastest, then `cp`, then `dp`, whatever the order of the axes, so that where `etp` is `tp` an expert
//! lies over the same ranks as a dense weight, and `ep` spreads over `cp` before `dp`.

use crate::axis::{Axis, AxisSet};
use crate::coord::Coord;
use crate::group::{Group, GroupKey, Part};

use std::fmt;

/// What is wrong with a mesh: the key of the configuration, what about it, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyError {
    /// The key (`mesh.tp`).
    pub key: String,
    /// What is wrong, in a sentence.
    pub what: String,
    /// What to do.
    pub fix: String,
}

impl fmt::Display for TopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; fix: {}", self.key, self.what, self.fix)
    }
}

impl std::error::Error for TopologyError {}

fn wrong(axis: Axis, what: String, fix: impl Into<String>) -> TopologyError {
    TopologyError {
        key: format!("mesh.{axis}"),
        what,
        fix: fix.into(),
    }
}

/// Lengths of the axes and their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Topology {
    /// The dense axes, slowest first.
    order: [Axis; 4],
    /// Lengths of all axes.
    lengths: [u32; Axis::ALL.len()],
}

impl Topology {
    /// A mesh of one rank.
    pub fn one() -> Topology {
        Topology {
            order: Axis::DENSE,
            lengths: [1; Axis::ALL.len()],
        }
    }

    /// A mesh of these axis lengths in the usual order ([`Axis::DENSE`]); axes that are not named have length one, but for
    /// `etp`, which is as long as `tp`, and `edp`, which takes what `ep` and `etp` leave of a stage's ranks.
    ///
    /// # Errors
    /// A length of 0, an axis given twice, `edp`, more ranks than can be numbered, and experts that do not divide a stage.
    pub fn new(lengths: &[(Axis, u32)]) -> Result<Topology, TopologyError> {
        let mut mesh = Topology::one();
        let mut seen = AxisSet::NONE;
        for &(axis, length) in lengths {
            if seen.contains(axis) {
                let why = format!("mesh axis {axis} is given twice");
                return Err(wrong(axis, why, "leave one of the two out"));
            }
            seen = seen.union(axis.into());
            if length == 0 {
                let why = format!("mesh axis {axis} has length 0; the least is 1");
                return Err(wrong(axis, why, "set it to 1"));
            }
            mesh.lengths[axis as usize] = length;
        }
        if seen.contains(Axis::Edp) {
            let why = "edp is what ep and etp leave of the ranks of a stage";
            return Err(wrong(Axis::Edp, why.into(), "leave it out"));
        }
        if !seen.contains(Axis::Etp) {
            mesh.lengths[Axis::Etp as usize] = mesh.length(Axis::Tp);
        }
        let mut world = 1u32;
        for axis in Axis::DENSE {
            world = world.checked_mul(mesh.length(axis)).ok_or_else(|| {
                let why = format!(
                    "the mesh has more ranks than can be numbered, counting up to axis {axis}"
                );
                wrong(axis, why, "set it to less")
            })?;
        }
        mesh.carve(seen.contains(Axis::Etp))
    }

    /// Gives `edp` what the other axes of experts leave.
    fn carve(mut self, etp_given: bool) -> Result<Topology, TopologyError> {
        let stage = self.size(AxisSet::STAGE);
        let [ep, etp] = [Axis::Ep, Axis::Etp].map(|a| u64::from(self.length(a)));
        if u64::from(stage) % etp != 0 {
            let why = format!(
                "experts are cut over {etp} ranks, which do not divide the {stage} ranks of a stage (dp x cp x tp)"
            );
            let fix = format!("set it to {}", nearest(etp, u64::from(stage)));
            return Err(wrong(Axis::Etp, why, fix));
        }
        let room = u64::from(stage) / etp;
        if room % ep != 0 {
            let cut = match (etp_given, etp) {
                (false, 2..) => format!(" (mesh.etp is mesh.tp, {etp}, where it is not set)"),
                _ => String::new(),
            };
            let why = format!(
                "experts are spread over the {stage} ranks of a stage (dp x cp x tp), each cut over etp {etp}{cut}: {ep} does not divide the {room} places there are"
            );
            let fix = format!("set it to {}", nearest(ep, room));
            return Err(wrong(Axis::Ep, why, fix));
        }
        self.lengths[Axis::Edp as usize] = (room / ep) as u32;
        Ok(self)
    }

    /// The same mesh with the dense axes in this order, slowest first; axes that are not listed follow in their usual order.
    ///
    /// # Errors
    /// An axis twice, or an axis of experts.
    pub fn ordered(mut self, order: &[Axis]) -> Result<Topology, TopologyError> {
        let bad = |what: String| {
            TopologyError {
            key: "mesh.order".into(),
            what,
            fix: "list pp, dp, cp and tp once each, the one whose neighbours are furthest apart first, e.g. \"pp,dp,cp,tp\"".into(),
        }
        };
        let mut all: Vec<Axis> = vec![];
        for &axis in order {
            if !Axis::DENSE.contains(&axis) {
                return Err(bad(format!(
                    "{axis} is an axis of experts, which are carved from the ranks of a stage"
                )));
            }
            if all.contains(&axis) {
                return Err(bad(format!("{axis} is listed twice")));
            }
            all.push(axis);
        }
        let rest = Axis::DENSE.into_iter().filter(|a| !order.contains(a));
        all.extend(rest);
        self.order.copy_from_slice(&all);
        Ok(self)
    }

    /// The same mesh, with the data axis as long as it takes to use `world` ranks.
    ///
    /// # Errors
    /// The others do not divide `world`; as [`Topology::new`].
    pub fn fill_data(lengths: &[(Axis, u32)], world: u32) -> Result<Topology, TopologyError> {
        let others = || lengths.iter().copied().filter(|(a, _)| *a != Axis::Dp);
        let dense: Vec<_> = others().filter(|(a, _)| Axis::DENSE.contains(a)).collect();
        let rest = Topology::new(&dense)?.world_size();
        if world == 0 || !world.is_multiple_of(rest) {
            let long = dense.iter().filter(|(_, n)| *n > 1);
            let named: Vec<String> = long
                .clone()
                .map(|(a, n)| match a {
                    Axis::Pp => format!("{n} pipeline stages"),
                    Axis::Cp => format!("{n} context-parallel ranks"),
                    _ => format!("{n} tensor-parallel ranks"),
                })
                .collect();
            let axis = long.clone().next().map_or(Axis::Dp, |(a, _)| *a);
            let together = match named.len() {
                0 | 1 => String::new(),
                _ => format!(", which take {rest} together"),
            };
            let why = format!(
                "{world} ranks cannot be divided over {}{together}",
                named.join(" x ")
            );
            let more = world.max(1).next_multiple_of(rest);
            return Err(wrong(axis, why, format!("run with --ranks {more}")));
        }
        let all: Vec<_> = others().chain([(Axis::Dp, world / rest)]).collect();
        Topology::new(&all)
    }

    /// Number of ranks.
    pub fn world_size(&self) -> u32 {
        self.size(AxisSet::WORLD)
    }
    /// Length of an axis.
    pub fn length(&self, axis: Axis) -> u32 {
        self.lengths[axis as usize]
    }
    /// Gives an axis another length; the caller keeps the two arrangements of a stage equally large.
    pub(crate) fn set_length(&mut self, axis: Axis, length: u32) {
        self.lengths[axis as usize] = length;
    }
    /// The dense axes, slowest first.
    pub fn order(&self) -> [Axis; 4] {
        self.order
    }
    /// Ranks of a group over a set of axes.
    pub fn size(&self, axes: AxisSet) -> u32 {
        axes.iter().map(|a| self.length(a)).product()
    }
    /// How many ranks in a row, counted from a multiple of it, have every group over a set of dense axes in one of them: a group
    /// lies within a node whose ranks are a multiple of this.
    pub fn reach(&self, axes: AxisSet) -> u64 {
        let mut stride = 1;
        let mut reach = 1;
        for axis in self.order.into_iter().rev() {
            stride *= u64::from(self.length(axis));
            if axes.contains(axis) && self.length(axis) > 1 {
                reach = stride;
            }
        }
        reach
    }
    /// A set without its axes of length one: what a group over it is called.
    pub fn long(&self, axes: AxisSet) -> AxisSet {
        let long: Vec<Axis> = axes.iter().filter(|a| self.length(*a) > 1).collect();
        AxisSet::of(&long)
    }

    /// The coordinates of rank `number` of the job.
    ///
    /// # Errors
    /// There is no such rank.
    pub fn coord(&self, number: u32) -> Result<Coord, TopologyError> {
        let world = self.world_size();
        if number >= world {
            return Err(TopologyError {
                key: "mesh".into(),
                what: format!("rank {number} is outside a world of {world} ranks"),
                fix: format!("use ranks 0 to {}", world - 1),
            });
        }
        Ok(self.digits(number))
    }

    pub(crate) fn digits(&self, number: u32) -> Coord {
        let mut coord = Coord::default();
        let mut rest = number;
        for axis in self.order.into_iter().rev() {
            coord.at[axis as usize] = rest % self.length(axis);
            rest /= self.length(axis);
        }
        coord
    }

    /// The number of the rank at these coordinates in the job; a coordinate beyond its axis goes round.
    pub fn job_rank(&self, at: Coord) -> u32 {
        let digit = |n: u32, axis: Axis| {
            let length = self.length(axis);
            n * length + at.at[axis as usize] % length
        };
        self.order.into_iter().fold(0, digit)
    }

    /// The rank at `at` among those of its stage, `tp` fastest, then `cp`, then `dp`: from it both arrangements are counted.
    fn within_stage(&self, at: Coord) -> u32 {
        let [_, dp, cp, tp] = at.at;
        (dp * self.length(Axis::Cp) + cp) * self.length(Axis::Tp) + tp
    }

    /// The coordinate on any axis.
    pub fn at(&self, at: Coord, axis: Axis) -> u32 {
        if let Some(dense) = at.at.get(axis as usize) {
            return *dense;
        }
        let (n, [ep, etp]) = (
            self.within_stage(at),
            [Axis::Ep, Axis::Etp].map(|a| self.length(a)),
        );
        match axis {
            Axis::Etp => n % etp,
            Axis::Ep => n / etp % ep,
            _ => n / etp / ep,
        }
    }

    /// The place with another coordinate on any axis, those on the other axes of its arrangement unchanged.
    pub fn moved(&self, at: Coord, axis: Axis, to: u32) -> Coord {
        if Axis::DENSE.contains(&axis) {
            return at.with(axis, to);
        }
        let on = |a: Axis| if a == axis { to } else { self.at(at, a) };
        let n = (on(Axis::Edp) * self.length(Axis::Ep) + on(Axis::Ep)) * self.length(Axis::Etp)
            + on(Axis::Etp);
        let [cp, tp] = [Axis::Cp, Axis::Tp].map(|a| self.length(a));
        let mut moved = at;
        moved.at = [at.at[0], n / tp / cp, n / tp % cp, n % tp];
        moved
    }

    /// The axes of a set in the order in which a group over it counts its members, slowest first.
    fn counted(&self, axes: AxisSet) -> Vec<Axis> {
        let all: Vec<Axis> = match axes.is_expert() {
            true => [Axis::Pp].into_iter().chain(Axis::EXPERT).collect(),
            false => self.order.to_vec(),
        };
        all.into_iter().filter(|a| axes.contains(*a)).collect()
    }

    /// A rank's index in its group over a set of axes.
    pub fn index(&self, at: Coord, axes: AxisSet) -> u32 {
        let digit = |n: u32, a: &Axis| n * self.length(*a) + self.at(at, *a);
        self.counted(axes).iter().fold(0, digit)
    }

    /// The group of the rank at `at` of this name: the ranks that share its coordinates on all other axes, counted in the
    /// order of the mesh. No axes at all: the rank alone.
    ///
    /// # Errors
    /// Axes of both arrangements of a stage's ranks; a part that the rank is not in, or that does not divide the group.
    pub fn group(&self, at: Coord, key: &GroupKey) -> Result<Group, TopologyError> {
        let bad = |what: String, fix: &str| TopologyError {
            key: "mesh".into(),
            what: format!("group {key}: {what}"),
            fix: fix.into(),
        };
        if key.axes.is_mixed() {
            let what = "it has axes of dense parameters and of experts, and no ranks differ on these alone".into();
            return Err(bad(what, "name axes of one arrangement"));
        }
        let mut ranks = vec![at];
        for axis in self.counted(key.axes) {
            let length = self.length(axis);
            let each = |c: Coord| (0..length).map(move |to| self.moved(c, axis, to));
            ranks = ranks.into_iter().flat_map(each).collect();
        }
        let mut ranks: Vec<u32> = ranks.into_iter().map(|c| self.job_rank(c)).collect();
        let mut index = self.index(at, key.axes);
        match &key.part {
            Part::Whole => {}
            Part::Node(n) if *n > 0 && ranks.len().is_multiple_of(*n as usize) => {
                let first = (index / n * n) as usize;
                ranks = ranks[first..first + *n as usize].to_vec();
                index %= n;
            }
            Part::Node(n) => {
                let what = format!("{} ranks in nodes of {n}", ranks.len());
                return Err(bad(what, "give a number that divides them"));
            }
            Part::Tied(places) => {
                let Some(mine) = places.iter().position(|p| *p == index) else {
                    let what = format!("a rank at {index} is none of its members, {places:?}");
                    return Err(bad(what, "join it on its members alone"));
                };
                let of = |p: &u32| ranks.get(*p as usize).copied();
                ranks = places
                    .iter()
                    .map(of)
                    .collect::<Option<_>>()
                    .ok_or_else(|| {
                        let what = format!("members {places:?} of {} ranks", ranks.len());
                        bad(what, "name places that there are")
                    })?;
                index = mine as u32;
            }
        }
        Ok(Group {
            key: key.clone(),
            ranks,
            index,
        })
    }

    /// All groups over a set of axes, by their first rank: together they hold every rank once.
    ///
    /// # Errors
    /// As [`Topology::group`].
    pub fn groups(&self, axes: AxisSet) -> Result<Vec<Group>, TopologyError> {
        let key = GroupKey::over(axes);
        let first = |n: &u32| {
            let at = self.coord(*n);
            at.is_ok_and(|at| self.index(at, axes) == 0)
        };
        let firsts = (0..self.world_size()).filter(first);
        firsts.map(|n| self.group(self.coord(n)?, &key)).collect()
    }
}

/// The divisor of `n` that is closest to `wanted`, the smaller of two.
fn nearest(wanted: u64, n: u64) -> u64 {
    let divisors = (1..=n).filter(|d| n.is_multiple_of(*d));
    divisors.min_by_key(|d| d.abs_diff(wanted)).unwrap_or(1)
}

impl fmt::Display for Topology {
    /// `pp2 x dp4`: the axes longer than one in their order, or `1 rank`; behind them how experts are carved, where they are.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let long = |axes: &[Axis]| {
            let long = axes.iter().filter(|a| self.length(**a) > 1);
            long.map(|a| format!("{a}{}", self.length(*a)))
                .collect::<Vec<_>>()
                .join(" x ")
        };
        let dense = long(&self.order);
        f.write_str(if dense.is_empty() { "1 rank" } else { &dense })?;
        let same = self.length(Axis::Ep) == 1 && self.length(Axis::Etp) == self.length(Axis::Tp);
        if !same {
            let experts = long(&Axis::EXPERT);
            let experts = if experts.is_empty() {
                "whole"
            } else {
                &experts
            };
            write!(f, "; experts {experts}")?;
        }
        Ok(())
    }
}
