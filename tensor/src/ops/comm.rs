//! Transitions between sharding types, each beside its adjoint: what ranks have alike or in parts before an op, and after it.
//!
//! | op | forward | backward |
//! |---|---|---|
//! | `enter` | I to R: nothing | all-reduce |
//! | `reduce` | P to I: all-reduce | nothing |
//! | `gather` | V to R: all-gather along a dim | reduce-scatter along it |
//! | `scatter` | P to V: reduce-scatter along a dim | all-gather along it |
//! | `slice` | I to V: this rank's piece of a dim | all-gather along it |
//! | `gather_alike` | V to I: all-gather along a dim | this rank's piece of it |
//! | `all_to_all` | V along one dim to V along another | the other way round |
//! | `shift` | V: what the rank `by` places before has | from the rank as many places behind |
//!
//! Along the first dim that is longer than one pieces lie end to end and nothing is copied; along others they are packed by one
//! strided copy. Where the ranks have chunks of rows in another order ([`Layout::ZigZag`]) each chunk is copied by itself.

use super::OpNode;
use super::add::copy;
use crate::env::Env;
use crate::error::{Result, shape_error};
use crate::exchange::{Exchange, Lane, Link};
use crate::rows::Layout;
use crate::spmd::Ty;
use crate::tape::{Back, Origin, Var};
use crate::{Cx, Shape, Tensor};
use crossweave_mesh::{Axis, AxisSet};

/// Which transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Enter,
    Reduce,
    /// Pieces of a dim of all ranks, one behind the other; `again`: where the backward reads them they are gathered once more.
    Gather {
        dim: usize,
        again: bool,
    },
    Scatter {
        dim: usize,
    },
    Slice {
        dim: usize,
    },
    /// Pieces of a dim of all ranks, which all of them then use alike.
    GatherAlike {
        dim: usize,
    },
    /// The dim `split` is cut into pieces for the ranks, and what comes is laid one behind the other along `join`. `within`: among so many
    /// consecutive ranks; 0: all.
    AllToAll {
        split: usize,
        join: usize,
        within: u32,
    },
    Shift {
        by: i32,
    },
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Enter => "enter",
            Kind::Reduce => "reduce",
            Kind::Gather { .. } => "gather",
            Kind::Scatter { .. } => "scatter",
            Kind::Slice { .. } => "slice",
            Kind::GatherAlike { .. } => "gather_alike",
            Kind::AllToAll { .. } => "all_to_all",
            Kind::Shift { .. } => "shift",
        }
    }
    /// The dims along which pieces lie.
    fn dims(self) -> [Option<usize>; 2] {
        match self {
            Kind::Enter | Kind::Reduce | Kind::Shift { .. } => [None; 2],
            Kind::Gather { dim, .. }
            | Kind::Scatter { dim }
            | Kind::Slice { dim }
            | Kind::GatherAlike { dim } => [Some(dim), None],
            Kind::AllToAll { split, join, .. } => [Some(split), Some(join)],
        }
    }
    /// The types of what goes in and what comes out.
    fn types(self) -> [Ty; 2] {
        match self {
            Kind::Enter => [Ty::I, Ty::R],
            Kind::Reduce => [Ty::P, Ty::I],
            Kind::Gather { .. } => [Ty::V, Ty::R],
            Kind::Scatter { .. } => [Ty::P, Ty::V],
            Kind::Slice { .. } => [Ty::I, Ty::V],
            Kind::GatherAlike { .. } => [Ty::V, Ty::I],
            Kind::AllToAll { .. } | Kind::Shift { .. } => [Ty::V, Ty::V],
        }
    }
}

pub(crate) struct Node {
    pub x: Var,
    pub out: Var,
    axis: Axis,
    kind: Kind,
}

/// The dim of the tokens of rows, in values that have one.
const TOKENS: usize = 1;

/// One transition under way on one rank.
struct Move<'a, 'e> {
    env: &'a Env<'e>,
    link: Link,
}

impl Move<'_, '_> {
    /// The place of this rank among those that take part, and how many they are.
    fn place(&self) -> [u64; 2] {
        let (groups, axis) = (self.env.groups, self.link.axis);
        let place = [groups.at(axis), groups.size(axis)];
        self.link.among(place).map(u64::from)
    }
    fn ranks(&self) -> u64 {
        self.place()[1]
    }

    fn exchange(&self, all: &[Exchange<'_>]) -> Result<()> {
        self.env.groups.exchange(self.env.run, &self.link, all)
    }

    fn dense(&self, x: &Tensor) -> Result<Tensor> {
        if x.is_dense() {
            return Ok(x.clone());
        }
        let y = self.env.run.empty(*x.shape(), x.dtype())?;
        copy(self.env, &y, x)?;
        Ok(y)
    }

    /// A shape with the dim as long as `change` makes it.
    fn with_dim(
        &self,
        shape: &Shape,
        dim: usize,
        change: impl Fn(u64) -> Option<u64>,
    ) -> Result<Shape> {
        let (op, axis, mut dims) = (self.link.op, self.link.axis, shape.dims().to_vec());
        let Some(n) = dims.get_mut(dim) else {
            return shape_error(format!("{op} over {axis}: {shape:?} has no dim {dim}"));
        };
        let Some(to) = change(*n) else {
            return shape_error(format!(
                "{op} over {axis}: its {} ranks do not divide dim {dim} of {shape:?}; make it a multiple of them",
                self.ranks()
            ));
        };
        *n = to;
        Ok(Shape::new(&dims))
    }
    fn piece(&self, shape: &Shape, dim: usize) -> Result<Shape> {
        let (n, pieces) = (self.ranks(), self.layout(dim).pieces(self.ranks()));
        self.with_dim(shape, dim, |d| {
            (d >= pieces && d.is_multiple_of(pieces)).then(|| d / n)
        })
    }
    fn whole(&self, shape: &Shape, dim: usize) -> Result<Shape> {
        let n = self.ranks();
        self.with_dim(shape, dim, |d| Some(d * n))
    }

    /// The order in which pieces of a dim lie on the ranks.
    fn layout(&self, dim: usize) -> Layout {
        let batch = self.env.batch;
        match dim == TOKENS && batch.cut_over.contains(self.link.axis) {
            true => batch.rows.layout,
            false => Layout::Contiguous,
        }
    }
    /// A dense tensor as the pieces of a dim, `[ranks, before, piece]`, wherever they lie.
    fn as_pieces(&self, x: &Tensor, dim: usize) -> Tensor {
        let (dims, n) = (x.shape().dims(), self.ranks());
        let before: u64 = dims[..dim].iter().product();
        let row: u64 = dims[dim..].iter().product();
        let piece = row / n;
        x.strided([n, before, piece], &[piece as i64, row as i64, 1], 0)
    }
    /// Copies between the rows of a dense tensor and the pieces of one of their dims, rank behind rank: into these, or out of them.
    fn copy_pieces(&self, rows: &Tensor, pieces: &Tensor, dim: usize, out: bool) -> Result<()> {
        let way = |rows: &Tensor, pieces: &Tensor| match out {
            true => copy(self.env, rows, pieces),
            false => copy(self.env, pieces, rows),
        };
        let (dims, n) = (rows.shape().dims(), self.ranks());
        let before: u64 = dims[..dim].iter().product();
        let (row, each): (u64, u64) = (
            dims[dim..].iter().product(),
            dims[dim + 1..].iter().product(),
        );
        let layout = self.layout(dim);
        if layout == Layout::Contiguous {
            let rows = self.as_pieces(rows, dim);
            return way(&rows, &pieces.view(*rows.shape()));
        }
        let piece = row / n;
        for rank in 0..n {
            for (at, [from, len]) in layout.runs([rank, n], dims[dim]).placed() {
                let shape = [before, len * each];
                let of_rank = rank * before * piece + at * each;
                let chunk = pieces.strided(shape, &[piece as i64, 1], of_rank);
                way(&rows.strided(shape, &[row as i64, 1], from * each), &chunk)?;
            }
        }
        Ok(())
    }
    /// Do the pieces of a dim lie one behind the other already?
    fn in_order(&self, x: &Shape, dim: usize) -> bool {
        let first = x.dims()[..dim].iter().all(|d| *d == 1);
        first && self.layout(dim) == Layout::Contiguous
    }

    /// The pieces of a dim, one behind the other.
    fn packed(&self, x: &Tensor, dim: usize) -> Result<Tensor> {
        let x = self.dense(x)?;
        if self.in_order(x.shape(), dim) {
            return Ok(x);
        }
        let y = self.env.run.empty(*x.shape(), x.dtype())?;
        self.copy_pieces(&x, &y, dim, false)?;
        Ok(y)
    }
    /// A tensor of this shape from the pieces of one of its dims, which lie one behind the other.
    fn unpacked(&self, pieces: Tensor, shape: Shape, dim: usize) -> Result<Tensor> {
        if self.in_order(&shape, dim) {
            return Ok(pieces.view(shape));
        }
        let y = self.env.run.empty(shape, pieces.dtype())?;
        self.copy_pieces(&y, &pieces, dim, true)?;
        Ok(y)
    }

    fn all_reduce(&self, x: &Tensor) -> Result<()> {
        self.exchange(&[Exchange::AllReduce(x)])
    }
    /// A sum over the axis that leaves the input's bytes alone.
    fn summed(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.env.run.empty(*x.shape(), x.dtype())?;
        copy(self.env, &y, x)?;
        self.all_reduce(&y)?;
        Ok(y)
    }
    /// The pieces of a dim of all ranks, one behind the other.
    fn pieces(&self, x: &Tensor, dim: usize) -> Result<Tensor> {
        let (shape, x) = (self.whole(x.shape(), dim)?, self.dense(x)?);
        let y = self.env.run.empty(shape, x.dtype())?;
        let (send, recv) = (&x, &y);
        self.exchange(&[Exchange::AllGather { send, recv }])?;
        Ok(y)
    }
    fn gathered(&self, x: &Tensor, dim: usize) -> Result<Tensor> {
        let y = self.pieces(x, dim)?;
        let shape = *y.shape();
        self.unpacked(y, shape, dim)
    }
    fn scattered(&self, x: &Tensor, dim: usize) -> Result<Tensor> {
        let (shape, x) = (self.piece(x.shape(), dim)?, self.packed(x, dim)?);
        let y = self.env.run.empty(shape, x.dtype())?;
        let (send, recv) = (&x, &y);
        self.exchange(&[Exchange::ReduceScatter { send, recv }])?;
        Ok(y)
    }
    /// A copy of this rank's piece, so that the whole can be given up.
    fn sliced(&self, x: &Tensor, dim: usize) -> Result<Tensor> {
        let shape = self.piece(x.shape(), dim)?;
        let y = self.env.run.empty(shape, x.dtype())?;
        let runs = self.layout(dim).runs(self.place(), x.shape().dims()[dim]);
        for (at, [from, len]) in runs.placed() {
            copy(self.env, &y.narrow(dim, at, len), &x.narrow(dim, from, len))?;
        }
        Ok(y)
    }
    fn exchanged(&self, x: &Tensor, split: usize, join: usize) -> Result<Tensor> {
        let shape = self.whole(&self.piece(x.shape(), split)?, join)?;
        let sent = self.packed(x, split)?;
        let came = self.env.run.empty(*sent.shape(), x.dtype())?;
        let (send, recv) = (&sent, &came);
        self.exchange(&[Exchange::AllToAll { send, recv }])?;
        self.unpacked(came, shape, join)
    }
    fn shifted(&self, x: &Tensor, by: i32) -> Result<Tensor> {
        let [at, n] = self.place().map(|n| n as i64);
        let x = self.dense(x)?;
        let y = self.env.run.empty(*x.shape(), x.dtype())?;
        let rank = |places: i64| (at + places).rem_euclid(n) as u32;
        let (to, from) = (rank(by.into()), rank(-i64::from(by)));
        let messages = [
            Exchange::Send { to, what: &x },
            Exchange::Recv { from, what: &y },
        ];
        self.exchange(&messages)?;
        Ok(y)
    }
}

/// The axes over whose ranks the tokens of hidden states lie: those that cut what is here of a row, and then those that cut rows.
pub(super) fn cutting(env: &Env<'_>) -> Vec<Axis> {
    let mut all = long(env, env.batch.hidden_over);
    all.extend(long(env, env.batch.cut_over));
    all
}

/// Those of the axes that have several ranks.
fn long(env: &Env<'_>, axes: AxisSet) -> Vec<Axis> {
    let several = axes.iter().filter(|a| env.groups.size(*a) > 1);
    several.collect()
}

/// Values `[B, t, ..]` of the tokens that are here as those of whole rows, `[B, T, ..]`: gathered for the op `op` over the axes that cut these.
pub(super) fn of_whole_rows(env: &Env<'_>, op: &'static str, x: &Tensor) -> Result<Tensor> {
    cutting(env).into_iter().try_fold(x.clone(), |x, axis| {
        let link = Link::new(op, axis);
        Move { env, link }.gathered(&x, TOKENS)
    })
}

/// Those of the tokens that are here, of values of whole rows.
pub(super) fn of_own_tokens(env: &Env<'_>, op: &'static str, x: &Tensor) -> Result<Tensor> {
    sliced(env, op, x, &cutting(env))
}

/// Those of hidden states that are here, of values `[B, t, ..]` of the tokens whose labels are.
pub(super) fn of_hidden(env: &Env<'_>, op: &'static str, x: &Tensor) -> Result<Tensor> {
    sliced(env, op, x, &long(env, env.batch.hidden_over))
}

fn sliced(env: &Env<'_>, op: &'static str, x: &Tensor, over: &[Axis]) -> Result<Tensor> {
    over.iter().rev().try_fold(x.clone(), |x, axis| {
        let link = Link::new(op, *axis);
        Move { env, link }.sliced(&x, TOKENS)
    })
}

impl Node {
    fn at<'a, 'e>(&self, env: &'a Env<'e>, again: bool) -> Move<'a, 'e> {
        let link = Link::new(self.kind.name(), self.axis);
        let within = match self.kind {
            Kind::AllToAll { within, .. } => within,
            _ => 0,
        };
        Move {
            env,
            link: Link {
                again,
                within,
                ..link
            },
        }
    }
    /// The same on the lane beside the block's kernels.
    fn beside<'a, 'e>(&self, env: &'a Env<'e>, again: bool) -> Move<'a, 'e> {
        let mut to = self.at(env, again);
        to.link.lane = Lane::Beside;
        to
    }

    /// Is the gradient of its output summed over ranks, and can that be done beside products?
    pub fn sums_back(&self, env: &Env<'_>) -> bool {
        let sums = matches!(self.kind, Kind::Enter | Kind::Gather { .. });
        sums && env.groups.beside() && env.groups.size(self.axis) > 1
    }

    /// Begins to make the output of a gather once more; [`Node::finish`] takes the pieces.
    pub fn begin(&self, env: &Env<'_>, x: &Tensor) -> Result<Tensor> {
        match self.kind {
            Kind::Gather { dim, .. } => self.beside(env, true).pieces(x, dim),
            _ => self.rerun(env, x),
        }
    }
    /// The output of a gather, of pieces that have come by now.
    pub fn finish(&self, env: &Env<'_>, pieces: Tensor) -> Result<Tensor> {
        env.groups.settle(env.run)?;
        match self.kind {
            Kind::Gather { dim, .. } => {
                let shape = *pieces.shape();
                self.at(env, true).unpacked(pieces, shape, dim)
            }
            _ => Ok(pieces),
        }
    }

    /// Makes the output of a gather once more.
    pub fn rerun(&self, env: &Env<'_>, x: &Tensor) -> Result<Tensor> {
        match self.kind {
            Kind::Gather { dim, .. } => self.at(env, true).gathered(x, dim),
            kind => shape_error(format!(
                "backward: {} is not made again from its input",
                kind.name()
            )),
        }
    }

    pub fn backward(&self, b: &mut Back<'_, '_>, nodes: &[OpNode]) -> Result<()> {
        b.arrive(self)?;
        let Some(dy) = b.take(self.out) else {
            return b.catch_up(self.out, nodes);
        };
        let (env, waits) = (b.env, b.waits(self.out));
        let to = match waits {
            true => self.beside(env, false),
            false => self.at(env, false),
        };
        let dx = match self.kind {
            _ if to.ranks() == 1 => dy,
            Kind::Reduce => dy,
            Kind::Enter if dy.is_unique() && dy.is_dense() => {
                to.all_reduce(&dy)?;
                dy
            }
            Kind::Enter => to.summed(&dy)?,
            Kind::Gather { dim, .. } => to.scattered(&dy, dim)?,
            Kind::Scatter { dim } | Kind::Slice { dim } => to.gathered(&dy, dim)?,
            Kind::GatherAlike { dim } => to.sliced(&dy, dim)?,
            Kind::AllToAll { split, join, .. } => to.exchanged(&dy, join, split)?,
            Kind::Shift { by } => to.shifted(&dy, -by)?,
        };
        if waits {
            b.catch_up(self.out, nodes)?;
            env.groups.settle(env.run)?;
        }
        b.give(self.x, dx)
    }
}

/// Records a transition: its types once, where no test of the dry run says otherwise. A test that leaves it out or makes it twice changes
/// the types only, since shapes would tell of themselves.
pub(crate) fn forward(cx: &mut Cx<'_>, x: Var, axis: Axis, kind: Kind) -> Result<Var> {
    let check = cx.check.as_mut();
    let times = check.map_or(1, |c| c.times(kind.name()));
    let mut node = Node {
        x,
        out: x,
        axis,
        kind,
    };
    let value = cx.val(x)?.clone();
    // No backward reads the summands of a sum, so their memory takes it.
    let to = node.at(cx.env, false);
    let ranks = to.ranks();
    let free = kind == Kind::Reduce && ranks > 1 && value.is_dense() && cx.spoil(x, "reduce");
    // On one rank too, where nothing is cut.
    for dim in kind.dims().into_iter().flatten() {
        to.whole(value.shape(), dim)?;
    }
    let y = match kind {
        Kind::Enter => value,
        _ if ranks == 1 => value,
        Kind::Reduce if free => {
            to.all_reduce(&value)?;
            value
        }
        Kind::Reduce => to.summed(&value)?,
        Kind::Gather { dim, .. } => to.gathered(&value, dim)?,
        Kind::Scatter { dim } => to.scattered(&value, dim)?,
        Kind::Slice { dim } => to.sliced(&value, dim)?,
        Kind::GatherAlike { dim } => to.gathered(&value, dim)?,
        Kind::AllToAll { split, join, .. } => to.exchanged(&value, split, join)?,
        Kind::Shift { by } => to.shifted(&value, by)?,
    };
    let made = cx.next_node();
    let (out, [from, into]) = (cx.push_val(y, made, Origin::Own, false), kind.types());
    node.out = out;
    if matches!(kind, Kind::Gather { again: true, .. }) && ranks > 1 {
        cx.tape.vals[out.0 as usize].gathered = true;
    }
    cx.typed(out, |c| {
        let x = c.vals[x.0 as usize];
        (0..times).fold(x, |x, _| c.step(kind.name(), x, axis, from, into))
    });
    cx.push_node(OpNode::Transition(node));
    Ok(out)
}
