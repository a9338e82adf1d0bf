//! Experts over ranks (expert parallelism; Lepikhin et al. 2021, arXiv 2006.16668): rows in the order of experts go to the ranks that have these,
//! and what they have made of them comes back.
//!
//! A rank has the experts of its place along an axis, as many as every other. Each rank sends all others the numbers of rows that come for their
//! experts, and the host reads what has come, once a layer: exchanges take numbers of rows there. Rows that came lie by rank and expert, and are put in the
//! order of experts by two tables that the host makes of the same numbers. A backward goes the same ways with them and reads nothing.
//!
//! Room for rows that come is made by classes of a quarter of a balanced number, so that few kernels serve all numbers.

use super::OpNode;
use super::add;
use super::experts::{Grouped, Routing, gather};
use crate::env::Env;
use crate::error::{Error, Result, shape_error};
use crate::exchange::{Exchange, Link};
use crate::groups::Numbers;
use crate::spmd::Ty;
use crate::tape::{Back, Origin, Var};
use crate::{Cx, Run, Tensor};
use crossweave_hal::{Code, Counts, DType};
use crossweave_mesh::Axis;
use std::sync::Arc;

/// Balanced numbers of rows for which a plan has room.
const ROOM: u64 = 2;
/// Classes of room within a balanced number.
const CLASSES: u64 = 4;

/// The room that a plan has for what comes, given how much that is where all ranks have as much, and the most that can be: a run takes what comes.
pub fn planned_room(balanced: u64, most: u64) -> u64 {
    (ROOM * balanced).min(most)
}

/// The ways of one micro-batch's rows in one layer.
#[derive(Clone)]
pub struct Spread(Arc<Ways>);

struct Ways {
    axis: Axis,
    /// The name of the unit.
    unit: Arc<str>,
    /// Rows to and from each rank, in rows.
    there: Counts,
    /// Rows of this rank's tokens.
    own: u64,
    /// Rows that there is room for, of those that come.
    room: u64,
    /// The most that can come.
    most: u64,
    /// The row at each place in the order of experts, and the place of each row, i32 `[room]`.
    tables: [Tensor; 2],
    grouped: Grouped,
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

/// Rows of each expert: those that this rank has for it, of all experts, and of the experts that it has those which each rank has.
struct Rows<'a> {
    own: &'a [i32],
    come: &'a [i32],
    /// Experts of a rank.
    each: usize,
}

impl Rows<'_> {
    /// Rows to and from each rank, one behind the other.
    fn counts(&self) -> Counts {
        let sums = |all: &[i32]| -> Vec<u64> {
            let of = |part: &[i32]| part.iter().map(|n| *n as u64).sum();
            all.chunks(self.each).map(of).collect()
        };
        let places = |n: &[u64]| -> Vec<u64> {
            let before = n
                .iter()
                .scan(0, |at, n| Some(std::mem::replace(at, *at + n)));
            before.collect()
        };
        let (send, recv) = (sums(self.own), sums(self.come));
        Counts {
            send_at: places(&send),
            recv_at: places(&recv),
            send,
            recv,
        }
    }

    /// The tables and ends of [`Ways`]: what stands behind the last row is the first.
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

impl Spread {
    /// The ways of the rows of `routing` to the ranks of an axis, each of which has as many of the experts.
    ///
    /// # Errors
    /// Experts that the ranks do not divide; no memory for the rows that come; the device.
    pub fn of(cx: &Cx<'_>, routing: &Routing, axis: Axis) -> Result<Spread> {
        let env = cx.env;
        let (run, ranks) = (env.run, u64::from(env.groups.size(axis)));
        let ([n, k, e], own) = (routing.sizes, routing.rows());
        let each = e / ranks.max(1);
        if each * ranks != e {
            return shape_error(format!(
                "experts over {axis}: its {ranks} ranks do not divide {e} experts"
            ));
        }
        let make = || {
            let both = run.empty([2 * e], DType::I32)?;
            let [send, recv] = [0, e].map(|at| both.narrow(0, at, e));
            add::copy(env, &send, routing.counts())?;
            let on = Link {
                once: true,
                ..Link::new("counts of rows", axis)
            };
            let (send, recv) = (&send, &recv);
            env.groups
                .exchange(run, &on, &[Exchange::AllToAll { send, recv }])?;
            Ok(both)
        };
        let planned = || {
            let mine = balanced(own, e).collect::<Vec<i32>>();
            let from = u64::from(env.groups.at(axis)) * each;
            let here = &mine[from as usize..(from + each) as usize];
            let come = here.iter().copied().cycle().take(e as usize);
            mine.iter().copied().chain(come).collect()
        };
        let Numbers { all, planned, unit } = env.groups.numbers(run, &make, &planned)?;
        let rows = match all.split_at_checked(e as usize) {
            Some((own, come)) if come.len() == own.len() => Rows {
                own,
                come,
                each: each as usize,
            },
            _ => return shape_error(format!("experts over {axis}: {} counts", all.len())),
        };
        let sum = |all: &[i32]| all.iter().map(|n| i64::from(*n)).sum::<i64>();
        let counted = sum(rows.own);
        if counted != own as i64 || all.iter().any(|n| *n < 0) {
            return shape_error(format!(
                "experts over {axis}: {own} rows were given to experts, and these count {counted}"
            ));
        }
        let came = sum(rows.come) as u64;
        let most = (ranks * n * k.min(each)).max(came);
        let class = own.div_ceil(CLASSES).max(1);
        let room = match planned {
            true => planned_room(own, most),
            false => came.next_multiple_of(class).min(most),
        };
        let room = room.max(1);
        let made =
            upload(run, &rows.tables(room as usize)).map_err(|e| full(e, &unit, [came, own]))?;
        let [row_at, place_of, ends] = <[Tensor; 3]>::try_from(made)
            .or_else(|_| shape_error("experts over ranks: tables went missing"))?;
        Ok(Spread(Arc::new(Ways {
            axis,
            unit,
            there: rows.counts(),
            own,
            room,
            most,
            tables: [row_at, place_of],
            grouped: Grouped {
                ends,
                rows: room,
                experts: each,
            },
        })))
    }

    /// The rows that came, by the experts of this rank.
    pub fn grouped(&self) -> Grouped {
        self.0.grouped.clone()
    }

    /// Rows that came.
    fn came(&self) -> u64 {
        self.0.there.recv.iter().sum()
    }

    /// Sends rows one of the two ways.
    fn run(&self, env: &Env<'_>, x: &Tensor, way: Way) -> Result<Tensor> {
        let made = match way {
            Way::There => self.there(env, x),
            Way::Back => self.back(env, x),
        };
        made.map_err(|e| full(e, &self.0.unit, [self.came(), self.0.own]))
    }

    /// Rows of this rank's tokens in the order of experts, where these are, in the order of theirs.
    fn there(&self, env: &Env<'_>, x: &Tensor) -> Result<Tensor> {
        let (ways, run, d) = (&self.0, env.run, x.shape().last());
        let x = dense(env, x)?;
        let came = run.empty([ways.room, d], x.dtype())?;
        if self.came() == 0 {
            // What stands behind the last row is the first.
            run.stream().fill(came.region(), 0, 1)?;
        }
        self.exchange(env, [&x, &came], &ways.there)?;
        let sorted = run.empty([ways.room, d], x.dtype())?;
        gather(run, &sorted, &came, &ways.tables[0])?;
        Ok(sorted)
    }

    /// The same rows as they were before.
    fn back(&self, env: &Env<'_>, x: &Tensor) -> Result<Tensor> {
        let (ways, run, d) = (&self.0, env.run, x.shape().last());
        let by_rank = run.empty([ways.room, d], x.dtype())?;
        gather(run, &by_rank, &dense(env, x)?, &ways.tables[1])?;
        let y = run.empty([ways.own, d], x.dtype())?;
        let there = ways.there.clone();
        let back = Counts {
            send: there.recv,
            send_at: there.recv_at,
            recv: there.send,
            recv_at: there.send_at,
        };
        self.exchange(env, [&by_rank, &y], &back)?;
        Ok(y)
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
            most: self.0.most * d,
            ..Link::new("rows of experts", self.0.axis)
        };
        let what = Exchange::AllToAllV { send, recv, counts };
        env.groups.exchange(env.run, &on, &[what])
    }
}

fn dense(env: &Env<'_>, x: &Tensor) -> Result<Tensor> {
    if x.is_dense() {
        return Ok(x.clone());
    }
    let y = env.run.empty(*x.shape(), x.dtype())?;
    add::copy(env, &y, x)?;
    Ok(y)
}

/// The device has no room for the rows that came.
fn full(e: Error, unit: &str, [came, own]: [u64; 2]) -> Error {
    match e {
        Error::Hal(mut e) if e.code == Code::Oom => {
            e.message = format!(
                "{unit}: {came} rows have come to the experts of this rank, where {own} would if all had as many: {}; fix: smaller micro-batches, or a larger coefficient of the balance",
                e.message
            );
            Error::Hal(e)
        }
        e => e,
    }
}

impl Spread {
    /// Rows in the order of experts `[n k, d]`, where their experts are, in the order of these: `[room, d]`.
    ///
    /// # Errors
    /// Other rows than those of the ways; the device.
    pub fn to_experts(&self, cx: &mut Cx<'_>, x: Var) -> Result<Var> {
        self.go(cx, x, Way::There)
    }

    /// The results of experts for these rows, `[room, d]`, as [`Cx::dispatch`] had the rows.
    ///
    /// # Errors
    /// As [`Spread::to_experts`].
    pub fn from_experts(&self, cx: &mut Cx<'_>, x: Var) -> Result<Var> {
        self.go(cx, x, Way::Back)
    }

    fn go(&self, cx: &mut Cx<'_>, x: Var, way: Way) -> Result<Var> {
        let (xv, axis) = (cx.val(x)?.clone(), self.0.axis);
        let (name, rows, [from, into]) = match way {
            Way::There => ("to_experts", self.0.own, [Ty::I, Ty::V]),
            Way::Back => ("from_experts", self.0.room, [Ty::V, Ty::I]),
        };
        if xv.shape().rank() != 2 || xv.shape().rows() != rows {
            return shape_error(format!("{name}: {xv:?} for {rows} rows"));
        }
        let y = self.run(cx.env, &xv, way)?;
        let made = cx.next_node();
        let out = cx.push_val(y, made, Origin::Own, false);
        cx.typed(out, |c| {
            c.step(name, c.vals[x.0 as usize], axis, from, into)
        });
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
    use crate::spmd::{Check, TypedParam};
    use crossweave_mesh::AxisSet;

    /// Rows that were not sent, rows that were sent to experts that a rank has all of, and a sum of what each rank has of its own experts.
    #[test]
    fn products_of_rows_that_are_elsewhere_are_faults_of_types() {
        let stack = |along: (Ty, u8), sums: AxisSet| {
            let name = "stack".into();
            let along = [Default::default(), Default::default(), along];
            let frozen = false;
            Check::new(vec![TypedParam {
                name,
                along,
                sums,
                frozen,
            }])
        };
        let faults = |mut c: Check, x: Ty| {
            c.of_experts([Ty::I, Ty::I, x], 0);
            c.faults().len()
        };
        let (cut, own) = ((Ty::V, 0), AxisSet::EXPERT_DATA);
        assert_eq!(faults(stack(cut, own), Ty::V), 0);
        assert_eq!(faults(stack((Ty::I, 0), Axis::Dp.into()), Ty::I), 0);
        assert_eq!(faults(stack(cut, own), Ty::I), 1);
        assert_eq!(faults(stack((Ty::V, 1), own), Ty::V), 1);
        assert_eq!(faults(stack(cut, Axis::Ep.into()), Ty::V), 1);
        assert!(faults(stack((Ty::I, 0), Axis::Dp.into()), Ty::V) > 0);
    }

    /// Two ranks of two experts each: rows by rank and expert, and by expert.
    #[test]
    fn tables_put_rows_in_the_order_of_experts_and_back() {
        let rows = Rows {
            own: &[1, 0, 3, 2],
            come: &[2, 1, 0, 3],
            each: 2,
        };
        let counts = rows.counts();
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
        // No row at all.
        let rows = Rows {
            come: &[0; 4],
            ..rows
        };
        assert_eq!(rows.tables(1), [vec![0], vec![0], vec![0, 0]]);
        assert_eq!(balanced(7, 4).collect::<Vec<_>>(), [2, 2, 2, 1]);
    }
}
