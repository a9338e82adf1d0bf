//! Laws between ranks: the same collectives in the same order, every send with its receive, nobody waiting for ever.
//!
//! Each plan is read as the events of its rank: a collective is an event of its group, a message one of two ranks. Groups are those of
//! the mesh. A block or an update that communicates is an event of each of its groups ([`UnitTalk`](crate::UnitTalk)), so a rank
//! that would leave others waiting inside a block is named before the run.

use crate::error::{Law, PlanError};
use crate::facts::{Facts, Said, UnitTalk};
use crate::op::{PipelineStage, Rank, StepKind, UnitId};
use crate::plan::{Plan, Step};
use crossweave_axes::{Axis, AxisSet, Coord, GroupKey, Representatives, Topology};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::rc::Rc;

/// Hold the plans of all ranks of a mesh, in rank order, with what each knows of its units, against each other. Each must have passed
/// [`crate::check`] on its own.
///
/// The data-parallel ranks of a stage must issue the same gathers in the same order, and the same reductions; the members of each group
/// must say the same inside blocks and updates. Stages sum the gradients of a unit that they share (`Tie`), each rank with those at the
/// same place in other stages. The norm and the finite check are issued by all ranks alike. Everything waits: a collective is one event
/// of its group, a send and its receive are one event of both ranks, and no rank begins a step before the one before it is over. With
/// that every rank must come to its end, and so it does where streams and libraries wait for less.
///
/// # Errors
/// Another number of plans than ranks; the first law that is broken, with the rank.
pub fn check_world(mesh: &Topology, ranks: &[(&Plan, &Facts)]) -> Result<(), PlanError> {
    check_representatives(&Representatives::all(mesh), ranks)
}

/// The same of a job in which all ranks of a stage have one plan: the plans of its representatives,
/// in their order, stand for those of all ranks. Time and memory do not grow with the job.
///
/// # Errors
/// As [`check_world`].
pub fn check_representatives(
    few: &Representatives,
    ranks: &[(&Plan, &Facts)],
) -> Result<(), PlanError> {
    let world = World::new(few, ranks)?;
    for (pick, what) in ALIKE {
        for axes in world.owners() {
            for members in world.each_group(axes) {
                let of = |op: &StepKind, facts: &Facts| pick(op) && shared_over(op, facts) == axes;
                world.same_order(&members, of, what)?;
            }
        }
    }
    for members in world.each_group(AxisSet::WORLD) {
        let pick = |op: &StepKind, _: &Facts| matches!(op, StepKind::GradNorm | StepKind::Finite);
        world.same_order(&members, pick, "collectives")?;
    }
    world.check_peers()?;
    world.check_said()?;
    world.check_ends()
}

/// A selection of the steps that the ranks of a shared flat issue alike, and its name in messages.
type Alike = (fn(&StepKind) -> bool, &'static str);

const ALIKE: [Alike; 2] = [
    (|op| matches!(op, StepKind::Gather { .. }), "gathers"),
    (
        |op| matches!(op, StepKind::ReduceGrad { .. } | StepKind::Tie { .. }),
        "reductions",
    ),
];

/// The axes of the group of a gather, a reduction or a sum over stages: those over which its units are shared.
fn shared_over(op: &StepKind, facts: &Facts) -> AxisSet {
    let unit = match op {
        StepKind::Gather { unit, .. } | StepKind::Tie { unit } => Some(*unit),
        StepKind::ReduceGrad { units, .. } => units.first().copied(),
        _ => None,
    };
    unit.map_or(AxisSet::DATA, |u| facts.owners(u))
}

/// A message between two ranks: whether it is a gradient, of which unit and of which micro-batch.
type Parcel = (bool, UnitId, u32);

/// The parcels of an operation between stages, each with the other stage and whether it is a send.
fn parcels(op: &StepKind) -> impl Iterator<Item = (Parcel, PipelineStage, bool)> + use<> {
    let (grad, messages) = op.messages();
    let each = messages.into_iter();
    each.map(move |m| ((grad, m.unit, m.mb), m.stage, m.sends))
}

/// The exchange of two ranks in one step: the other rank, and the parcels with whether they leave here.
type Pair = (Rank, Vec<(Parcel, bool)>);

/// Something a rank cannot do alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What<'a> {
    /// A collective of the plan.
    Op(&'a StepKind),
    /// A collective inside a step of the plan.
    Said(&'a StepKind, &'a Said),
    /// A collective outside the step.
    Alone(&'a Said),
    /// Messages in one group, by the other rank: an event of each pair, and over when all are.
    Parcels(Vec<Pair>),
}

pub(crate) struct Event<'a> {
    /// The ranks that take part, this one among them.
    pub members: Rc<[Rank]>,
    pub what: What<'a>,
    pub step: usize,
}

pub(crate) struct World<'a> {
    mesh: &'a Topology,
    /// Numbers of the ranks in the whole job, for messages.
    numbers: &'a [u32],
    ranks: &'a [(&'a Plan, &'a Facts)],
    coords: Vec<Coord>,
    /// Members of the groups that were asked for.
    known: RefCell<HashMap<(Rank, AxisSet), Rc<[Rank]>>>,
}

impl<'a> World<'a> {
    pub fn new(
        few: &'a Representatives,
        ranks: &'a [(&'a Plan, &'a Facts)],
    ) -> Result<Self, PlanError> {
        let mesh = few.mesh();
        let coords = (0..mesh.world_size()).filter_map(|r| mesh.coord(r).ok());
        let coords: Vec<Coord> = coords.collect();
        if coords.len() != ranks.len() {
            let message = format!("{} plans for a mesh of {} ranks", ranks.len(), coords.len());
            return Err(PlanError::whole(Law::Peer, message));
        }
        Ok(World {
            mesh,
            numbers: few.numbers(),
            ranks,
            coords,
            known: RefCell::default(),
        })
    }

    fn fault(&self, rank: Rank, step: usize, law: Law, message: String) -> PlanError {
        PlanError::at(self.plan(rank), step, law, message).of_rank(self.number(rank))
    }

    /// The number of a rank in the whole job.
    pub fn number(&self, rank: Rank) -> u32 {
        self.numbers[rank as usize]
    }

    fn plan(&self, rank: Rank) -> &'a Plan {
        self.ranks[rank as usize].0
    }

    /// The members of a rank's group; a set of axes that no ranks differ on is the rank alone.
    fn members(&self, rank: Rank, axes: AxisSet) -> Vec<Rank> {
        let group = self
            .mesh
            .group(self.coords[rank as usize], &GroupKey::over(axes));
        group.map_or(vec![rank], |g| g.ranks)
    }

    /// The same, made once.
    pub fn groups(&self, rank: Rank, axes: AxisSet) -> Rc<[Rank]> {
        let mut known = self.known.borrow_mut();
        let made = || self.members(rank, axes).into();
        known.entry((rank, axes)).or_insert_with(made).clone()
    }

    /// The sets of axes over which some rank shares a unit.
    fn owners(&self) -> BTreeSet<AxisSet> {
        let units = self.ranks.iter().flat_map(|(_, facts)| &facts.units);
        let each = units.map(|u| u.talk.owners.map_or(AxisSet::DATA, |o| o.0));
        each.chain([AxisSet::DATA]).collect()
    }

    /// The members of each group over a set of axes.
    fn each_group(&self, axes: AxisSet) -> impl Iterator<Item = Vec<Rank>> {
        let all = 0..self.ranks.len() as Rank;
        let groups = all.map(move |rank| (rank, self.members(rank, axes)));
        groups.filter_map(|(rank, members)| (members.first() == Some(&rank)).then_some(members))
    }

    /// The rank of another stage at this rank's place.
    fn peer(&self, rank: Rank, stage: PipelineStage) -> Option<Rank> {
        let at = self.coords[rank as usize];
        let there = stage < self.mesh.length(Axis::Pp) && stage != self.mesh.at(at, Axis::Pp);
        there.then(|| self.mesh.job_rank(at.with(Axis::Pp, stage)))
    }

    /// Every member issues the same sequence of the operations `pick` picks.
    fn same_order(
        &self,
        members: &[Rank],
        pick: impl Fn(&StepKind, &Facts) -> bool,
        what: &str,
    ) -> Result<(), PlanError> {
        let list = |rank: Rank| -> Vec<(usize, &Step)> {
            let steps = self.plan(rank).steps.iter().enumerate();
            let facts = self.ranks[rank as usize].1;
            steps.filter(|(_, s)| pick(&s.op, facts)).collect()
        };
        let Some((&first, rest)) = members.split_first() else {
            return Ok(());
        };
        let wanted = list(first);
        for &rank in rest {
            let found = list(rank);
            for (k, (step, mine)) in found.iter().enumerate() {
                let twin = wanted.get(k).map(|(_, s)| *s);
                if !twin.is_some_and(|t| t.op == mine.op) {
                    let other = twin.map_or("nothing".to_string(), Step::to_string);
                    let first = self.number(first);
                    let message = format!(
                        "number {k} of its group's {what}, where rank {first} issues {other}; the group would hang or mix data"
                    );
                    return Err(self.fault(rank, *step, Law::CollectiveOrder, message));
                }
            }
            if let Some((_, next)) = wanted.get(found.len()) {
                let message = format!(
                    "it ends after {} {what}, where rank {} goes on with {next}; the group would hang",
                    found.len(),
                    self.number(first)
                );
                return Err(
                    PlanError::whole(Law::CollectiveOrder, message).of_rank(self.number(rank))
                );
            }
        }
        Ok(())
    }

    /// Between each two ranks, the sends of one are the receives of the other, in the same order.
    fn check_peers(&self) -> Result<(), PlanError> {
        let mut sent: HashMap<(Rank, Rank), VecDeque<(usize, Parcel)>> = HashMap::new();
        let mut received: Vec<(Rank, usize, Parcel, Rank)> = vec![];
        for rank in 0..self.ranks.len() as Rank {
            for (step, s) in self.plan(rank).steps.iter().enumerate() {
                for (what, stage, sends) in parcels(&s.op) {
                    let Some(peer) = self.peer(rank, stage) else {
                        let stages = self.mesh.length(Axis::Pp);
                        let message =
                            format!("stage {stage} is not another of the {stages} there are");
                        return Err(self.fault(rank, step, Law::Peer, message));
                    };
                    match sends {
                        true => sent
                            .entry((rank, peer))
                            .or_default()
                            .push_back((step, what)),
                        false => received.push((rank, step, what, peer)),
                    }
                }
            }
        }
        for (rank, step, what, peer) in received {
            let next = sent.get_mut(&(peer, rank)).and_then(VecDeque::pop_front);
            if next.map(|(_, w)| w) != Some(what) {
                let found = next.map_or("nothing more".to_string(), |(k, _)| {
                    self.plan(peer).steps[k].to_string()
                });
                let peer = self.number(peer);
                let message = format!("the next thing rank {peer} sends here is {found}");
                return Err(self.fault(rank, step, Law::Peer, message));
            }
        }
        let mut unread: Vec<_> = sent
            .iter()
            .filter_map(|(pair, q)| Some((*pair, q.front()?.0)))
            .collect();
        unread.sort_unstable();
        match unread.first() {
            Some(&((rank, peer), step)) => {
                let message = format!("rank {} never receives it", self.number(peer));
                Err(self.fault(rank, step, Law::Peer, message))
            }
            None => Ok(()),
        }
    }

    /// Returns the communication of a step beyond its kind, in order.
    fn said(&self, rank: Rank, op: &StepKind) -> impl Iterator<Item = &'a Said> + use<'a> {
        let facts = self.ranks[rank as usize].1;
        let talks = op.units().iter();
        let talks = talks.filter_map(|u| facts.units.get(*u as usize).map(|u| &u.talk));
        let gather = |talk: &'a UnitTalk| {
            let kept = talk.kept.as_ref();
            kept.map_or(&[][..], |k| std::slice::from_ref(&k.gather))
        };
        let of = |talk: &'a UnitTalk| {
            let (first, then): (&'a [Said], &'a [Said]) = match op {
                StepKind::Forward { .. } => (&talk.forward, &[]),
                StepKind::Recompute { .. } => (gather(talk), &talk.forward),
                StepKind::Backward { .. } | StepKind::InputGrad { .. } => (&talk.backward, &[]),
                StepKind::ReduceGrad { more, .. } if !more || talk.each_reduction => {
                    (&talk.reduction, &[])
                }
                StepKind::Update { .. } => (&talk.update, &[]),
                _ => (&[], &[]),
            };
            first.iter().chain(then)
        };
        let said: Vec<&Said> = talks.flat_map(of).collect();
        let again = |s: &&Said| s.moves.as_ref().is_some_and(|m| m.again);
        // A backward behind a recomputation has what that has gathered.
        let anew = said.iter().any(again) && self.is_recomputed(rank, op);
        // A forward that runs again has what the first has exchanged once.
        let known = matches!(op, StepKind::Recompute { .. });
        let once = |s: &&Said| s.moves.as_ref().is_some_and(|m| m.once);
        said.into_iter()
            .filter(move |s| !(anew && again(s) || known && once(s)))
    }

    /// Returns true if the values that a backward reads were computed once more before it.
    fn is_recomputed(&self, rank: Rank, op: &StepKind) -> bool {
        let (StepKind::Backward { unit, mb } | StepKind::InputGrad { unit, mb }) = *op else {
            return false;
        };
        let twice = StepKind::Recompute { unit, mb };
        self.plan(rank).steps.iter().any(|s| s.op == twice)
    }

    /// Inside blocks and updates the members of each group say the same in the same order.
    fn check_said(&self) -> Result<(), PlanError> {
        type Line<'a> = Vec<(usize, &'a StepKind, &'a Said)>;
        let every = |rank: Rank| -> Line<'a> {
            let steps = self.plan(rank).steps.iter().enumerate();
            let each = steps.flat_map(|(k, s)| {
                let said = self.said(rank, &s.op);
                said.map(move |w| (k, &s.op, w))
            });
            each.collect()
        };
        let all: Vec<Line<'_>> = (0..self.ranks.len() as Rank).map(every).collect();
        let mut sets: Vec<AxisSet> = all.iter().flatten().map(|(.., s)| s.axes).collect();
        sets.sort_unstable();
        sets.dedup();
        for axes in sets {
            for members in self.each_group(axes) {
                let of = |rank: Rank| all[rank as usize].iter().filter(|(.., s)| s.axes == axes);
                let (first, rest) = (members[0], &members[1..]);
                for &rank in rest {
                    let (mut a, mut b) = (of(first), of(rank));
                    for k in 0.. {
                        let (x, y) = (a.next(), b.next());
                        let same =
                            |x: &(usize, &StepKind, &Said), y: &(usize, &StepKind, &Said)| {
                                x.1 == y.1 && x.2.is_alike(y.2)
                            };
                        match (x, y) {
                            (None, None) => break,
                            (Some(x), Some(y)) if same(x, y) => {}
                            // Where one says nothing more, the other is left waiting.
                            (None, Some(w)) => return Err(self.alone(axes, k, (rank, w), first)),
                            (Some(w), None) => return Err(self.alone(axes, k, (first, w), rank)),
                            (Some(x), Some(y)) => {
                                let message = format!(
                                    "number {k} of what is said over {axes} is {} here, where rank {} says {} in {}; the group would hang or mix data",
                                    y.2.what,
                                    self.number(first),
                                    x.2.what,
                                    self.plan(first).steps[x.0]
                                );
                                return Err(self.fault(rank, y.0, Law::CollectiveOrder, message));
                            }
                        }
                    }
                }
                let each: Vec<Line<'_>> =
                    members.iter().map(|r| of(*r).copied().collect()).collect();
                self.check_messages(axes, &members, &each)?;
            }
        }
        Ok(())
    }

    /// In each call that the members of a group make alike, one expects of another the elements that it sends.
    fn check_messages(
        &self,
        axes: AxisSet,
        members: &[Rank],
        each: &[Vec<(usize, &StepKind, &Said)>],
    ) -> Result<(), PlanError> {
        for (i, calls) in each.iter().enumerate() {
            for (k, (step, _, said)) in calls.iter().enumerate() {
                let Some(moves) = said.moves.as_ref().filter(|m| m.ranks > 0) else {
                    continue;
                };
                for p in &moves.peers {
                    let there = (i as u32 + p.ahead) % moves.ranks;
                    let back = (moves.ranks - p.ahead % moves.ranks) % moves.ranks;
                    // Of a mesh whose representatives are here the others are not.
                    let Some(other) = each.get(there as usize).and_then(|e| e.get(k)) else {
                        continue;
                    };
                    let (mine, theirs) =
                        (said.with(p.ahead, p.sends), other.2.with(back, !p.sends));
                    if mine != theirs {
                        let (does, to, answers) = match p.sends {
                            true => ("sends", "to", "expects"),
                            false => ("expects", "from", "sends"),
                        };
                        let message = format!(
                            "number {k} of what is said over {axes}, {}: it {does} messages of {mine:?} elements {to} rank {}, which {answers} {theirs:?}",
                            said.what,
                            self.number(members[there as usize])
                        );
                        return Err(self.fault(members[i], *step, Law::CollectiveOrder, message));
                    }
                }
            }
        }
        Ok(())
    }

    /// A rank says something that another of its group does not.
    fn alone(
        &self,
        axes: AxisSet,
        k: usize,
        (rank, (step, _, said)): (Rank, &(usize, &StepKind, &Said)),
        other: Rank,
    ) -> PlanError {
        let message = format!(
            "number {k} of what is said over {axes} is {} here, and rank {} says nothing more: this rank would be left waiting inside the step",
            said.what,
            self.number(other)
        );
        self.fault(rank, *step, Law::CollectiveOrder, message)
    }

    /// The events of a rank, in order.
    fn events(&self, rank: Rank, tied: &HashMap<UnitId, Vec<Rank>>) -> Vec<Event<'a>> {
        let mut events = vec![];
        for (step, s) in self.plan(rank).steps.iter().enumerate() {
            let StepKind::Tie { unit } = &s.op else {
                self.step_events(rank, (step, &s.op), &mut events);
                continue;
            };
            let stages = self.members(rank, Axis::Pp.into()).into_iter();
            let ties = |m: &Rank| tied.get(unit).is_some_and(|t| t.contains(m));
            events.push(Event {
                members: stages.filter(ties).collect(),
                what: What::Op(&s.op),
                step,
            });
        }
        events
    }

    /// The events of a step of a rank, of all kinds but a sum over stages.
    pub fn step_events(
        &self,
        rank: Rank,
        (step, op): (usize, &'a StepKind),
        out: &mut Vec<Event<'a>>,
    ) {
        let facts = self.ranks[rank as usize].1;
        let mut add = |members: Rc<[Rank]>, what| {
            out.push(Event {
                members,
                what,
                step,
            });
        };
        let over = |axes| self.groups(rank, axes);
        for said in self.said(rank, op) {
            add(over(said.axes), What::Said(op, said));
        }
        match op {
            StepKind::GradNorm | StepKind::Finite => add(over(AxisSet::WORLD), What::Op(op)),
            StepKind::Gather { .. } | StepKind::ReduceGrad { .. } => {
                add(over(shared_over(op, facts)), What::Op(op));
            }
            _ => {
                let mut pairs: Vec<Pair> = vec![];
                for (what, stage, sends) in parcels(op) {
                    let Some(peer) = self.peer(rank, stage) else {
                        continue;
                    };
                    match pairs.iter_mut().find(|(p, _)| *p == peer) {
                        Some((_, all)) => all.push((what, sends)),
                        None => pairs.push((peer, vec![(what, sends)])),
                    }
                }
                if !pairs.is_empty() {
                    let peers = pairs.iter().map(|(p, _)| *p);
                    let members = [rank].into_iter().chain(peers).collect();
                    add(members, What::Parcels(pairs));
                }
            }
        }
    }

    /// Walk all plans side by side, each in step order, and see that all come to their end.
    fn check_ends(&self) -> Result<(), PlanError> {
        let mut tied: HashMap<UnitId, Vec<Rank>> = HashMap::new();
        for rank in 0..self.ranks.len() as Rank {
            for s in &self.plan(rank).steps {
                if let StepKind::Tie { unit } = s.op {
                    tied.entry(unit).or_default().push(rank);
                }
            }
        }
        let all = 0..self.ranks.len() as Rank;
        let all: Vec<Vec<Event<'a>>> = all.map(|r| self.events(r, &tied)).collect();
        match World::waits_for_ever(&all) {
            Some((rank, at)) => {
                let here = &all[rank][at[rank]];
                let others = here.members.iter().filter(|m| **m as usize != rank);
                let there = |m: &Rank| {
                    let next = all[*m as usize].get(at[*m as usize]);
                    let at = next.map_or("at its end".into(), |e| {
                        format!("at step {} ({})", e.step, self.plan(*m).steps[e.step])
                    });
                    format!("rank {} {at}", self.number(*m))
                };
                let there: Vec<String> = others.take(3).map(there).collect();
                let message = format!(
                    "this rank waits here for ever: what it waits for comes later in another rank's plan ({})",
                    there.join(", ")
                );
                Err(self.fault(rank as Rank, here.step, Law::Deadlock, message))
            }
            None => Ok(()),
        }
    }

    /// Walks the events of all ranks side by side: the first rank that never comes to its end, if there is one, and how far each has come.
    pub fn waits_for_ever(all: &[Vec<Event<'_>>]) -> Option<(usize, Vec<usize>)> {
        let mut at = vec![0usize; all.len()];
        // Of the messages that each rank stands in, the other ends that have come.
        let mut met: Vec<Vec<Rank>> = vec![vec![]; all.len()];
        let meets = |at: &[usize], rank: Rank, e: &Event<'_>| {
            let other = all[rank as usize].get(at[rank as usize]);
            other.is_some_and(|o| match (&e.what, &o.what) {
                (What::Said(a, x), What::Said(b, y)) => a == b && x.is_alike(y),
                (a, b) => a == b,
            })
        };
        loop {
            let mut moved = false;
            for rank in 0..all.len() {
                while let Some(e) = all[rank].get(at[rank]) {
                    if let What::Parcels(pairs) = &e.what {
                        for (peer, mine) in pairs {
                            let there = *peer as usize;
                            let other = all[there].get(at[there]).map(|o| &o.what);
                            if !met[rank].contains(peer) && is_other_end(other, rank as Rank, mine)
                            {
                                met[rank].push(*peer);
                                met[there].push(rank as Rank);
                                moved = true;
                            }
                        }
                        if met[rank].len() < pairs.len() {
                            break;
                        }
                        met[rank].clear();
                        at[rank] += 1;
                        moved = true;
                        continue;
                    }
                    let others = e.members.iter().filter(|m| **m as usize != rank);
                    if !others.into_iter().all(|m| meets(&at, *m, e)) {
                        break;
                    }
                    moved = true;
                    e.members.iter().for_each(|m| at[*m as usize] += 1);
                }
            }
            if !moved {
                break;
            }
        }
        let stays = (0..all.len()).find(|r| at[*r] < all[*r].len())?;
        Some((stays, at))
    }
}

/// Are the messages that another rank exchanges with `rank` the other ends of `mine`?
fn is_other_end(other: Option<&What<'_>>, rank: Rank, mine: &[(Parcel, bool)]) -> bool {
    let Some(What::Parcels(pairs)) = other else {
        return false;
    };
    let theirs = pairs.iter().find(|(p, _)| *p == rank);
    theirs.is_some_and(|(_, theirs)| {
        theirs.len() == mine.len()
            && mine
                .iter()
                .all(|(parcel, out)| theirs.contains(&(*parcel, !out)))
    })
}
