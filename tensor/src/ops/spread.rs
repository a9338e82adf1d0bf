//! Experts over ranks (expert parallelism; Lepikhin et al. 2021, arXiv 2006.16668): rows in the order of experts go to the ranks that have these,
//! and what they have made of them comes back.
//!
//! The ranks of a stage are arranged twice. Over dense axes they differ in tokens and in parts of layers; over axes of experts in experts (`ep`) and in
//! parts of each of these (`etp`). [`Spread::to_experts`] is the door from the one to the other, and [`Spread::from_experts`] the way back.
//!
//! A rank has the experts of its place along `ep`, as many as every other. Each rank sends all others the numbers of rows that come for their
//! experts, and the host reads what has come, once a layer: exchanges take numbers of rows there. Ranks that have parts of the same experts give each other
//! the rows that came, and add up what each has made of all of them. Rows lie by rank and expert then, and are put in the
//! order of experts by two tables that the host makes of the same numbers. A backward goes the same ways with them and reads nothing.
//!
//! Room for rows that come is made by classes of a quarter of a balanced number, so that few kernels serve all numbers.

use super::OpNode;
use super::add;
use super::launch::{gather, sum};
use super::routing::{Grouped, Routing};
use super::slots::Slots;
use crate::env::Env;
use crate::error::{Result, shape_error};
use crate::exchange::{Exchange, Link};
use crate::groups::Numbers;
use crate::spmd::{AXES, Check, Spmd, Ty};
use crate::tape::{Back, Origin, Var};
use crate::{Cx, Run, Tensor};
use crossweave_hal::{Counts, DType};
use crossweave_mesh::{Axis, AxisSet};
use std::sync::Arc;

/// Classes of room within a balanced number.
const CLASSES: u64 = 4;

/// The room that a plan has for what comes, given how much that is where all ranks have as much, the most that can be, and for how many times the
/// first there is to be room: a run takes what comes.
pub fn planned_room(balanced: u64, most: u64, times: f64) -> u64 {
    ((balanced as f64 * times).ceil() as u64).min(most)
}

/// The ways of one micro-batch's rows in one layer.
#[derive(Clone)]
pub struct Spread {
    grouped: Grouped,
    /// Rows of this rank's tokens.
    own: u64,
    ways: Ways,
}

#[derive(Clone)]
enum Ways {
    /// The rank has all of every expert.
    Here,
    /// Rows travel, of which the host has read the numbers.
    Counted(Arc<Counted>),
    /// Slots of capacities travel, whose number follows from shapes.
    Fixed(Slots),
}

struct Counted {
    /// Rows of this rank's tokens.
    own: u64,
    /// To and from the ranks that have other experts; none where there is one.
    there: Option<Leg>,
    /// To and from the ranks that have other parts of the same experts; none where there is one.
    parts: Option<Leg>,
    /// Rows that there is room for where experts work on them.
    room: u64,
    /// Rows that have come there, and as many as would have if all ranks had as many.
    came: [u64; 2],
    /// The row at each place in the order of experts, and the place of each row, i32 `[room]`.
    tables: [Tensor; 2],
}

/// One exchange of rows.
struct Leg {
    axis: Axis,
    /// Rows to and from each rank.
    rows: Counts,
    /// Rows that there is room for, of those that come.
    room: u64,
    /// The most that can come.
    most: u64,
}

/// To the ranks of the experts, or back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    There,
    Back,
}

pub(crate) struct Node {
    pub x: Var,
    pub out: Var,
    way: Way,
    ways: Spread,
}

/// Rows of each expert: those that this rank has for it, of all experts; and of the experts that it has those which each rank of `ep` has, of
/// each rank of `etp`.
struct Rows<'a> {
    own: &'a [i32],
    come: &'a [i32],
    /// Experts of a rank.
    each: usize,
    /// Its place along `etp`.
    part: usize,
}

fn total(all: &[i32]) -> u64 {
    all.iter().map(|n| *n as u64).sum()
}

/// Pieces one behind the other.
fn places(n: &[u64]) -> Vec<u64> {
    let before = n
        .iter()
        .scan(0, |at, n| Some(std::mem::replace(at, *at + n)));
    before.collect()
}

impl Rows<'_> {
    /// Those that come to the rank itself, by rank of `ep` and expert.
    fn here(&self) -> &[i32] {
        let n = self.own.len();
        &self.come[self.part * n..(self.part + 1) * n]
    }

    /// Rows to and from each rank of `ep`, one behind the other.
    fn there(&self) -> Counts {
        let sums = |all: &[i32]| all.chunks(self.each).map(total).collect::<Vec<u64>>();
        let (send, recv) = (sums(self.own), sums(self.here()));
        Counts {
            send_at: places(&send),
            recv_at: places(&recv),
            send,
            recv,
        }
    }

    /// The same of `etp`: what came goes to all ranks alike.
    fn parts(&self) -> Counts {
        let recv: Vec<u64> = self.come.chunks(self.own.len()).map(total).collect();
        Counts {
            send: vec![recv[self.part]; recv.len()],
            send_at: vec![0; recv.len()],
            recv_at: places(&recv),
            recv,
        }
    }

    /// The tables and ends of [`Counted`]: what stands behind the last row is the first.
    fn tables(&self, room: usize) -> [Vec<i32>; 3] {
        let first = |at: &mut i32, n: &i32| Some(std::mem::replace(at, *at + n));
        let starts: Vec<i32> = self.come.iter().scan(0, first).collect();
        let (mut row_at, mut place_of) = (Vec::with_capacity(room), vec![0; room]);
        let mut ends = Vec::with_capacity(self.each);
        for expert in 0..self.each {
            for part in (expert..self.come.len()).step_by(self.each) {
                for row in starts[part]..starts[part] + self.come[part] {
                    place_of[row as usize] = row_at.len() as i32;
                    row_at.push(row);
                }
            }
            ends.push(row_at.len() as i32);
        }
        row_at.resize(room, 0);
        [row_at, place_of, ends]
    }
}

/// The part of `n` rows that a dry run takes for each of `experts`.
fn balanced(n: u64, experts: u64) -> impl Iterator<Item = i32> {
    (0..experts).map(move |i| (n / experts + u64::from(i < n % experts)) as i32)
}

/// Words on the device.
fn upload(run: &Run<'_>, all: &[Vec<i32>]) -> Result<Vec<Tensor>> {
    let words = all.iter().flatten();
    let bytes: Vec<u8> = words.flat_map(|w| w.to_le_bytes()).collect();
    let t = run.empty([bytes.len() as u64 / 4], DType::I32)?;
    run.stream().write(t.region(), &bytes)?;
    let mut at = 0;
    let mut part = |words: &Vec<i32>| {
        let n = words.len() as u64;
        at += n;
        t.narrow(0, at - n, n)
    };
    Ok(all.iter().map(&mut part).collect())
}

/// Room for rows that came, of which there are `balanced` where all ranks have as many.
fn room(came: u64, [balanced, most]: [u64; 2], planned: Option<f64>) -> u64 {
    let class = balanced.div_ceil(CLASSES).max(1);
    let room = match planned {
        Some(times) => planned_room(balanced, most, times).max(came),
        None => came.next_multiple_of(class).min(most.max(came)),
    };
    room.max(1)
}

impl Spread {
    /// The ways of the rows of `routing` to the ranks that have their experts, each as many of them, and parts of each. Without capacities a dry run has
    /// room for `times` the rows that come where all get as many.
    ///
    /// # Errors
    /// Experts that the ranks do not divide; no memory for the rows that come; the device.
    pub fn of(cx: &Cx<'_>, routing: &Routing, times: f64) -> Result<Spread> {
        let (env, own) = (cx.env, routing.rows());
        let [ranks, parts] = [Axis::Ep, Axis::Etp].map(|a| u64::from(env.groups.size(a)));
        if ranks * parts == 1 {
            return Ok(Spread {
                grouped: routing.grouped(),
                own,
                ways: Ways::Here,
            });
        }
        if routing.is_limited() {
            let (slots, grouped) = Slots::of(env.run, routing, [ranks, parts])?;
            return Ok(Spread {
                grouped,
                own,
                ways: Ways::Fixed(slots),
            });
        }
        let (run, [n, k, e]) = (env.run, routing.sizes);
        let each = e / ranks.max(1);
        if each * ranks != e {
            return shape_error(format!(
                "experts over {}: its {ranks} ranks do not divide {e} experts",
                Axis::Ep
            ));
        }
        let make = || counts(env, routing, [ranks, parts]);
        let planned = || {
            let mine = balanced(own, e).collect::<Vec<i32>>();
            let from = u64::from(env.groups.at(Axis::Ep)) * each;
            let here = &mine[from as usize..(from + each) as usize];
            let come = here.iter().copied().cycle().take((e * parts) as usize);
            mine.iter().copied().chain(come).collect()
        };
        let Numbers { all, planned } = env.groups.numbers(run, &make, &planned)?;
        let rows = match all.split_at_checked(e as usize) {
            Some((own, come)) if come.len() as u64 == e * parts => Rows {
                own,
                come,
                each: each as usize,
                part: env.groups.at(Axis::Etp) as usize,
            },
            _ => return shape_error(format!("experts over ranks: {} counts", all.len())),
        };
        let counted = total(rows.own);
        if counted != own || all.iter().any(|n| *n < 0) {
            return shape_error(format!(
                "experts over ranks: {own} rows were given to experts, and these count {counted}"
            ));
        }
        let most = ranks * n * k.min(each);
        let leg = |axis: Axis, rows: Counts, bounds: [u64; 2]| Leg {
            axis,
            room: room(rows.recv.iter().sum(), bounds, planned.then_some(times)),
            rows,
            most: bounds[1],
        };
        let there = (ranks > 1).then(|| leg(Axis::Ep, rows.there(), [own, most]));
        let all_parts = [own * parts, most * parts];
        let of_parts = (parts > 1).then(|| leg(Axis::Etp, rows.parts(), all_parts));
        let room = of_parts.as_ref().or(there.as_ref()).map_or(own, |l| l.room);
        let came = [total(rows.come), own * parts];
        env.groups.came(came);
        let made = upload(run, &rows.tables(room as usize))?;
        let [row_at, place_of, ends] = <[Tensor; 3]>::try_from(made)
            .or_else(|_| shape_error("experts over ranks: tables went missing"))?;
        Ok(Spread {
            grouped: Grouped {
                ends,
                rows: room,
                experts: each,
            },
            own,
            ways: Ways::Counted(Arc::new(Counted {
                own,
                there,
                parts: of_parts,
                room,
                came,
                tables: [row_at, place_of],
            })),
        })
    }

    /// The rows that came, by the experts of this rank.
    pub fn grouped(&self) -> Grouped {
        self.grouped.clone()
    }

    /// Sends rows one of the two ways.
    fn run(&self, env: &Env<'_>, x: &Tensor, way: Way) -> Result<Tensor> {
        let ways = match (&self.ways, way) {
            (Ways::Here, _) => return Ok(x.clone()),
            (Ways::Fixed(slots), Way::There) => return slots.there(env, &dense(env, x)?),
            (Ways::Fixed(slots), Way::Back) => return slots.back(env, &dense(env, x)?),
            (Ways::Counted(ways), _) => ways,
        };
        env.groups.came(ways.came);
        match way {
            Way::There => ways.there(env, x),
            Way::Back => ways.back(env, x),
        }
    }
}

/// The numbers that [`Spread::of`] reads: rows that this rank has for each expert, and those that come to its own.
fn counts(env: &Env<'_>, routing: &Routing, [ranks, parts]: [u64; 2]) -> Result<Tensor> {
    let (run, e) = (env.run, routing.sizes[2]);
    let all = run.empty([e + e * parts], DType::I32)?;
    let [send, come] = [(0, e), (e, e * parts)].map(|(at, n)| all.narrow(0, at, n));
    add::copy(env, &send, routing.counts())?;
    let on = |axis| Link {
        once: true,
        ..Link::new("counts of rows", axis)
    };
    let mut here = send.clone();
    if ranks > 1 {
        here = match parts {
            1 => come.clone(),
            _ => run.empty([e], DType::I32)?,
        };
        let (send, recv) = (&send, &here);
        env.groups
            .exchange(run, &on(Axis::Ep), &[Exchange::AllToAll { send, recv }])?;
    }
    if parts > 1 {
        let (send, recv) = (&here, &come);
        env.groups
            .exchange(run, &on(Axis::Etp), &[Exchange::AllGather { send, recv }])?;
    }
    Ok(all)
}

impl Leg {
    /// Rows of this rank's tokens, where they are wanted.
    fn there(&self, env: &Env<'_>, x: &Tensor) -> Result<Tensor> {
        let (run, d) = (env.run, x.shape().last());
        let came = run.empty([self.room, d], x.dtype())?;
        if self.rows.recv.iter().sum::<u64>() == 0 {
            // What stands behind the last row is the first.
            run.stream().fill(came.region(), 0, 1)?;
        }
        self.exchange(env, [x, &came], &self.rows)?;
        Ok(came)
    }

    /// Rows that were wanted here, to `own` rows of where they came from.
    fn back(&self, env: &Env<'_>, x: &Tensor, own: u64) -> Result<Tensor> {
        let (run, d) = (env.run, x.shape().last());
        let y = run.empty([own, d], x.dtype())?;
        let there = self.rows.clone();
        let back = Counts {
            send: there.recv,
            send_at: there.recv_at,
            recv: there.send,
            recv_at: there.send_at,
        };
        self.exchange(env, [x, &y], &back)?;
        Ok(y)
    }

    /// The sum of what all ranks have made of `own` rows that they were all given, in rank order.
    fn added(&self, env: &Env<'_>, x: &Tensor, own: u64) -> Result<Tensor> {
        let (run, d) = (env.run, x.shape().last());
        let ranks = self.rows.recv.len() as u64;
        let each = run.empty([ranks, own, d], x.dtype())?;
        let there = self.rows.clone();
        let back = Counts {
            send: there.recv,
            send_at: there.recv_at,
            recv: there.send,
            recv_at: (0..ranks).map(|r| r * own).collect(),
        };
        self.exchange(env, [x, &each.rows()], &back)?;
        let y = run.empty([1, own, d], x.dtype())?;
        sum(run, &y, &each, 0)?;
        Ok(y.view([own, d]))
    }

    fn exchange(&self, env: &Env<'_>, [send, recv]: [&Tensor; 2], rows: &Counts) -> Result<()> {
        let d = send.shape().last();
        let elements = |rows: &[u64]| rows.iter().map(|n| n * d).collect();
        let counts = &Counts {
            send: elements(&rows.send),
            send_at: elements(&rows.send_at),
            recv: elements(&rows.recv),
            recv_at: elements(&rows.recv_at),
        };
        let on = Link {
            most: self.most * d,
            ..Link::new("rows of experts", self.axis)
        };
        let what = Exchange::AllToAllV { send, recv, counts };
        env.groups.exchange(env.run, &on, &[what])
    }
}

impl Counted {
    /// Rows of this rank's tokens in the order of experts, where these are, in the order of theirs.
    fn there(&self, env: &Env<'_>, x: &Tensor) -> Result<Tensor> {
        let mut rows = dense(env, x)?;
        for leg in [&self.there, &self.parts].into_iter().flatten() {
            rows = leg.there(env, &rows)?;
        }
        let sorted = env.run.empty([self.room, x.shape().last()], x.dtype())?;
        gather(env.run, &sorted, &rows, &self.tables[0])?;
        Ok(sorted)
    }

    /// The results of the same rows, as these were before.
    fn back(&self, env: &Env<'_>, x: &Tensor) -> Result<Tensor> {
        let mut rows = env.run.empty([self.room, x.shape().last()], x.dtype())?;
        gather(env.run, &rows, &dense(env, x)?, &self.tables[1])?;
        if let Some(leg) = &self.parts {
            let own = self.there.as_ref().map_or(self.own, |l| l.room);
            rows = leg.added(env, &rows, own)?;
        }
        match &self.there {
            Some(leg) => leg.back(env, &rows, self.own),
            None => Ok(rows),
        }
    }
}

/// The types of rows where their experts are: along the dense axes nothing is said.
const EXPERT: Spmd = [Ty::I, Ty::I, Ty::V, Ty::R];

/// The types behind the door from the arrangement of a stage's ranks over dense axes to that over axes of experts: rows of tokens that no other rank has,
/// along the dense axes that are `long`, go where their experts are (V), to all ranks that have parts of these (R).
fn went(c: &mut Check, x: Spmd, long: AxisSet) -> Spmd {
    for (i, axis) in AXES.iter().enumerate() {
        let expert = Axis::EXPERT.contains(axis);
        let fits = match x[i] {
            Ty::V => !expert,
            Ty::I => expert || !long.contains(*axis),
            Ty::R | Ty::P => false,
        };
        if !fits {
            c.fault(format!(
                "to_experts on {axis}: rows are {:?} (each rank gives those of its own tokens, which others do not have: cut tokens, V)",
                x[i]
            ));
        }
    }
    EXPERT
}

/// The types behind the door back: what the ranks of an expert's parts have made is added up, and rows lie as those of `like` do.
fn came_back(c: &mut Check, x: Spmd, like: Spmd) -> Spmd {
    for (i, axis) in AXES.iter().enumerate() {
        let want = match EXPERT[i] {
            Ty::R => Ty::P,
            t => t,
        };
        if x[i] != want {
            c.fault(format!(
                "from_experts on {axis}: wants {want:?}, got {:?}",
                x[i]
            ));
        }
    }
    like
}

/// The same elements one behind the other.
fn dense(env: &Env<'_>, x: &Tensor) -> Result<Tensor> {
    if x.is_dense() {
        return Ok(x.clone());
    }
    let y = env.run.empty(*x.shape(), x.dtype())?;
    add::copy(env, &y, x)?;
    Ok(y)
}

impl Spread {
    /// Rows in the order of experts `[n k, d]`, where their experts are, in the order of these: `[room, d]`.
    ///
    /// # Errors
    /// Other rows than those of the ways; the device.
    pub fn to_experts(&self, cx: &mut Cx<'_>, x: Var) -> Result<Var> {
        let out = self.go(cx, x, Way::There)?;
        let groups = cx.env.groups;
        let dense = AxisSet::STAGE.iter().filter(|a| groups.size(*a) > 1);
        let long = AxisSet::of(&dense.collect::<Vec<_>>());
        cx.typed(out, |c| {
            let x = c.vals[x.0 as usize];
            went(c, x, long)
        });
        Ok(out)
    }

    /// The results of experts for these rows, `[room, d]`, as [`Cx::dispatch`] had the rows of `like`.
    ///
    /// # Errors
    /// As [`Spread::to_experts`].
    pub fn from_experts(&self, cx: &mut Cx<'_>, x: Var, like: Var) -> Result<Var> {
        let out = self.go(cx, x, Way::Back)?;
        cx.typed(out, |c| {
            let [x, like] = [x, like].map(|v| c.vals[v.0 as usize]);
            came_back(c, x, like)
        });
        Ok(out)
    }

    fn go(&self, cx: &mut Cx<'_>, x: Var, way: Way) -> Result<Var> {
        let xv = cx.val(x)?.clone();
        let (name, rows) = match way {
            Way::There => ("to_experts", self.own),
            Way::Back => ("from_experts", self.grouped.rows),
        };
        if xv.shape().rank() != 2 || xv.shape().rows() != rows {
            return shape_error(format!("{name}: {xv:?} for {rows} rows"));
        }
        let y = self.run(cx.env, &xv, way)?;
        let made = cx.next_node();
        let out = cx.push_val(y, made, Origin::Own, false);
        let ways = self.clone();
        cx.push_node(OpNode::Spread(Box::new(Node { x, out, way, ways })));
        Ok(out)
    }
}

impl Node {
    pub fn backward(&self, b: &mut Back<'_, '_>) -> Result<()> {
        let Some(dy) = b.take(self.out) else {
            return Ok(());
        };
        let way = match self.way {
            Way::There => Way::Back,
            Way::Back => Way::There,
        };
        let dx = self.ways.run(b.env, &dy, way)?;
        b.give(self.x, dx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spmd::TypedParam;

    /// As many as are balanced, some times that, and no more than can come.
    #[test]
    fn room_is_a_number_of_times_what_is_balanced() {
        let all = [1.0, 1.25, 2.0, 8.0].map(|times| planned_room(10, 40, times));
        assert_eq!(all, [10, 13, 20, 40]);
    }

    /// Rows that were not sent, rows that were sent to experts that a rank has all of, sums of what each rank has of its own experts, and parts that are
    /// cut otherwise than their products.
    #[test]
    fn products_of_rows_that_are_elsewhere_are_faults_of_types() {
        let stack = |along: [(Ty, u8); 2], sums: AxisSet| {
            let none = (Ty::I, 0);
            Check::new(vec![TypedParam {
                name: "stack".into(),
                along: [none, none, along[0], along[1]],
                sums,
                frozen: false,
            }])
        };
        let faults = |mut c: Check, x: [Ty; 2]| {
            let y = c.of_experts([Ty::I, Ty::I, x[0], x[1]], 0);
            (c.faults().len(), y[3])
        };
        let (none, experts, own) = ((Ty::I, 0), (Ty::V, 0), AxisSet::EXPERT_DATA);
        let data = AxisSet::from(Axis::Dp);
        let went = [Ty::V, Ty::R];
        assert_eq!(faults(stack([none; 2], data), [Ty::I, Ty::I]), (0, Ty::I));
        for (along, x, gives) in [((Ty::V, 1), went, Ty::V), ((Ty::V, 2), [Ty::V; 2], Ty::P)] {
            assert_eq!(faults(stack([experts, along], own), x), (0, gives));
            for wrong in [
                ([experts, along], own, [Ty::I, x[1]]),
                ([(Ty::V, 1), along], own, x),
                ([experts, along], Axis::Ep.into(), x),
                ([experts, along], Axis::Etp.into(), x),
                ([none, along], own, x),
                ([experts, (Ty::V, 3 - along.1)], own, x),
            ] {
                let (along, sums, x) = wrong;
                assert_ne!(faults(stack(along, sums), x).0, 0, "{along:?} {sums} {x:?}");
            }
        }
    }

    /// Rows go through the doors once: not those that every rank of an axis has, not those that went already, and back only what is added up.
    #[test]
    fn doors_are_for_rows_of_own_tokens() {
        let long = AxisSet::of(&[Axis::Tp, Axis::Cp]);
        let there = |x: Spmd, long| {
            let mut c = Check::default();
            (went(&mut c, x, long), c.faults().len())
        };
        let own = [Ty::V, Ty::V, Ty::I, Ty::I];
        assert_eq!(there(own, long), (EXPERT, 0));
        assert_eq!(there([Ty::I; 4], AxisSet::NONE), (EXPERT, 0));
        assert_eq!(there([Ty::I; 4], long).1, 2);
        assert_eq!(there(EXPERT, AxisSet::NONE).1, 2);
        let back = |x: Spmd| {
            let mut c = Check::default();
            (came_back(&mut c, x, own), c.faults().len())
        };
        assert_eq!(back([Ty::I, Ty::I, Ty::V, Ty::P]), (own, 0));
        assert_eq!(back(EXPERT).1, 1);
        assert_eq!(back(own).1, 4);
    }

    /// Two ranks of two experts each: rows by rank and expert, and by expert.
    #[test]
    fn tables_put_rows_in_the_order_of_experts_and_back() {
        let rows = Rows {
            own: &[1, 0, 3, 2],
            come: &[2, 1, 0, 3],
            each: 2,
            part: 0,
        };
        let counts = rows.there();
        assert_eq!((counts.send, counts.send_at), (vec![1, 5], vec![0, 1]));
        assert_eq!((counts.recv, counts.recv_at), (vec![3, 3], vec![0, 3]));
        let [row_at, place_of, ends] = rows.tables(8);
        assert_eq!(row_at, [0, 1, 2, 3, 4, 5, 0, 0]);
        assert_eq!(place_of[..6], [0, 1, 2, 3, 4, 5]);
        assert_eq!(ends, [2, 6]);
        let rows = Rows {
            come: &[1, 2, 2, 1],
            ..rows
        };
        let [row_at, place_of, ends] = rows.tables(6);
        assert_eq!(row_at, [0, 3, 4, 1, 2, 5]);
        assert_eq!(place_of, [0, 3, 4, 1, 2, 5]);
        assert_eq!(ends, [3, 6]);
        // Two ranks that have parts of them: rows of both, of which this is the second.
        let parts = Rows {
            come: &[2, 1, 0, 3, 0, 1, 1, 0],
            part: 1,
            ..rows
        };
        let counts = parts.parts();
        assert_eq!((counts.send, counts.send_at), (vec![2, 2], vec![0, 0]));
        assert_eq!((counts.recv, counts.recv_at), (vec![6, 2], vec![0, 6]));
        assert_eq!(parts.there().recv, [1, 1]);
        let [row_at, place_of, ends] = parts.tables(8);
        assert_eq!(row_at, [0, 1, 7, 2, 3, 4, 5, 6]);
        assert_eq!(place_of, [0, 1, 3, 4, 5, 6, 7, 2]);
        assert_eq!(ends, [3, 8]);
        // No row at all.
        let rows = Rows {
            come: &[0; 4],
            ..rows
        };
        assert_eq!(rows.tables(1), [vec![0], vec![0], vec![0, 0]]);
        assert_eq!(balanced(7, 4).collect::<Vec<_>>(), [2, 2, 2, 1]);
    }
}
