//! ZeRO as functions that write a program: what a reduction, a norm, an update and a gather of the plan are on this rank, in
//! kernels, copies and collectives over its flats.

mod canonical;
mod figures;
mod gather;
mod host;
mod offload;
pub mod quantized;
mod reduce;
mod state;
mod update;

pub use figures::Words;
pub use gather::{ParamMemory, Params, Source};
pub use host::{HostShare, HostSums, host_base, host_room};
pub use offload::ToHost;
pub use state::unit_state;
pub use update::Optim;

use crossweave_flat::Flat;
use crossweave_plan::Lane;
use crossweave_program::axes::AxisSet;
use crossweave_program::{
    Builder, DType, GroupId, Life, MemId, MemoryDecl, MemorySpace, On, Place, Tag, View,
};
use std::ops::Range;

/// Steps whose figures may be unread at once.
pub const IN_FLIGHT: u32 = 3;

/// The groups of ranks that share flats over some axes; none where a rank is alone in one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Owners {
    /// The axes.
    pub axes: AxisSet,
    /// Those ranks.
    pub data: Option<GroupId>,
    /// The same, for gathers: they need not wait for reductions.
    pub gather: Option<GroupId>,
    /// Those of them on the own node.
    pub node: Option<GroupId>,
}

/// The groups a rank is in; none where it is alone in one.
#[derive(Clone, Debug, Default)]
pub struct Groups {
    /// Those of ranks that share flats, for each set of axes over which some do.
    pub owners: Vec<Owners>,
    /// Ranks that hold the same units, or parts of them: figures of whole parameters are summed over these.
    pub figures: Option<GroupId>,
    /// Pipeline stages.
    pub stages: Option<GroupId>,
    /// Everyone.
    pub all: Option<GroupId>,
    /// Ranks that have the other parts of matrices that an optimizer sees whole.
    pub matrices: Option<Matrices>,
}

/// Ranks that have equal parts of the same matrices.
#[derive(Clone, Copy, Debug)]
pub struct Matrices {
    /// The ranks.
    pub group: GroupId,
    /// The place of this one among them.
    pub at: u64,
    /// How many they are.
    pub ranks: u64,
}

impl Groups {
    /// Those of the ranks that share a flat.
    pub fn of(&self, f: &Flat) -> Owners {
        let mut all = self.owners.iter().copied();
        all.find(|o| o.axes == f.place.owners).unwrap_or_default()
    }
}

/// How the micro-batches of a unit are added up: in the whole gradient, or by what follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// They are reduced one by one and added up behind that, in the slice of the rank.
    pub reduced: bool,
    /// They leave one by one, and the host adds up its part of them.
    pub leave: bool,
}

/// What of a unit's gradient is a summand on each rank that has other tokens of the same rows (sequence parallelism), or other parts of the same experts.
#[derive(Clone, Debug, Default)]
pub struct Summands {
    /// These ranks; units that the same ranks share have the same.
    pub group: Option<GroupId>,
    /// Elements of its flat, in order.
    pub ranges: Vec<Range<u64>>,
    /// They are summed before the reduction over the ranks that share the flat: those that have other tokens have flats of other lengths, so
    /// that their slices are not of the same elements.
    pub before: bool,
}

/// What the job asks of the arithmetic of a step.
#[derive(Clone, Debug)]
pub struct Job {
    /// Ranks that share a dense flat, and this one's place.
    pub ranks: u32,
    /// See `ranks`.
    pub rank: u32,
    /// Where reductions run.
    pub reduce: Lane,
    /// Where gathers run.
    pub gather: Lane,
    /// The lane that first uses a slice which comes from the host.
    pub arrives: Lane,
    /// Parameters travel in 8 bits.
    pub quantized: bool,
    /// Largest global norm; 0: gradients are not clipped.
    pub clip: f64,
    /// The loss is scaled, and a step whose gradients are not finite is skipped.
    pub scaled: bool,
    /// Gradients are multiplied before the update: what undoes the loss scale or a division before the sum is not always 1.
    pub rescaled: bool,
    /// The gradient of the loss changes from step to step.
    pub seeded: bool,
    /// Figures that the last unit gives beside its loss; behind the loss stands another one then, whose gradient has a word of its own.
    pub figures: u64,
    /// Type of gradients between the ranks.
    pub wire: DType,
    /// Type in which micro-batches are added up.
    pub accumulate: DType,
    /// How the micro-batches of each unit are added up.
    pub parts: Vec<Parts>,
    /// What of each unit's gradient is summed over ranks beside those that share it.
    pub summands: Vec<Summands>,
    /// Logical shards that sums go over, where they are canonical.
    pub shards: Option<u32>,
    /// Micro-batches of each of them.
    pub micro_batches: u32,
    /// Groups.
    pub groups: Groups,
}

/// The memory of a step beside that of parameters and their state.
#[derive(Clone, Debug)]
pub struct Memory {
    /// Small words that a step measures.
    pub words: MemId,
    /// What the host reads of them.
    pub figures: MemId,
    /// The gradient of the loss, and where there is one that of the loss beside it.
    pub seed: MemId,
    /// Gradients that are not finite, by unit: counts, then the same as f32; and what the host reads.
    pub counts: Option<(MemId, MemId)>,
    /// The whole gradient of each unit; of logical shards, those set aside and not added to each other yet.
    pub grads: Vec<Vec<MemId>>,
    /// The reduced slice of each unit's gradient, where it is apart.
    pub own: Vec<MemId>,
    /// The sum over micro-batches where it is kept in 16 bits.
    pub sums: Vec<MemId>,
    /// Figures of gradients that the host has added up: of each unit the sum of squares, then of each what rounding took from it, then how
    /// many values are not finite; and of what the device has of each, what rounding took from its squares.
    pub arrived: Option<MemId>,
}

impl Memory {
    /// Declares it for units of these flats.
    pub fn declare(b: &mut Builder, job: &Job, flats: &[Flat], words: &Words) -> Memory {
        let n = flats.len() as u64;
        let mut declare = |name: String, bytes, dtype, tag, home, turns: Option<u32>| {
            let life = turns.map_or(Life::Transient, |turns| Life::Always { turns });
            b.memory(MemoryDecl {
                name,
                bytes,
                dtype,
                tag,
                home,
                life,
            })
        };
        let mut small = |name: &str, bytes, dtype, home, turns| {
            declare(name.into(), bytes, dtype, Tag::Staging, home, Some(turns))
        };
        let flight = IN_FLIGHT;
        let words_of = small(
            "words",
            words.bytes(),
            DType::F32,
            MemorySpace::Device,
            flight,
        );
        let figures = small(
            "figures",
            words.read(),
            DType::F32,
            MemorySpace::Pinned,
            flight,
        );
        let seeds = if job.figures > 0 { 8 } else { 4 };
        let seed = small("seed", seeds, DType::F32, MemorySpace::Device, 1);
        let counts = job.scaled.then(|| {
            (
                small("counts", 8 * n, DType::U32, MemorySpace::Device, 1),
                small(
                    "verdict",
                    4 * n,
                    DType::U32,
                    MemorySpace::Pinned,
                    flight + 1,
                ),
            )
        });
        let arrived = job.parts.iter().any(|p| p.leave).then(|| {
            let bytes = 16 * n;
            small("arrived", bytes, DType::F32, MemorySpace::Device, 1)
        });
        let mut grad = |name: String, bytes, dtype| {
            declare(name, bytes, dtype, Tag::Grad, MemorySpace::Device, None)
        };
        // Sums of 1, 2, 4, … shards, and one more that is being made.
        let deep = job.shards.map_or(1, |s| s.ilog2() + 2);
        let each = || flats.iter().enumerate();
        let grads = each().map(|(u, f)| {
            let name = |k| match deep {
                1 => format!("grad.{u}"),
                _ => format!("grad.{u}/{k}"),
            };
            let one = |k| grad(name(k), 4 * f.grad_length(), DType::F32);
            (0..deep).map(one).collect()
        });
        let grads = grads.collect();
        let own =
            each().map(|(u, f)| grad(format!("own.{u}"), 4 * f.layout.slice_len(), DType::F32));
        let own = own.collect();
        let sums = each().map(|(u, f)| {
            let bytes = job
                .accumulate
                .bytes(match (job.parts[u].leave, job.parts[u].reduced) {
                    (true, _) => f.owned_len() - f.host,
                    (false, true) => f.layout.slice_len(),
                    (false, false) => f.length(),
                });
            grad(format!("sum.{u}"), bytes, job.accumulate)
        });
        Memory {
            words: words_of,
            figures,
            seed,
            counts,
            grads,
            own,
            sums: sums.collect(),
            arrived,
        }
    }
}

/// What a walk over the plan knows of the gradient of a unit.
#[derive(Clone, Debug, Default)]
struct Grad {
    /// While a gradient is being summed: for each parameter whether it has been written.
    open: Option<Vec<bool>>,
    /// Gradients of logical shards set aside: so many of the unit's memories are taken.
    aside: usize,
    /// There is a sum over micro-batches.
    summed: bool,
    /// The reduced gradient of what is owned: where it begins, and the memory that is freed with it.
    own: Option<(Place, MemId)>,
    /// It is of what the device updates alone: the rest has left.
    rest: bool,
}

/// Writes the steps of a plan that are about gradients, in the plan's order.
pub struct Grads<'a> {
    job: &'a Job,
    flats: &'a [Flat],
    memory: &'a Memory,
    words: &'a Words,
    now: Vec<Grad>,
    counting: bool,
}

impl<'a> Grads<'a> {
    /// At the start of a step: no gradient is there.
    pub fn new(job: &'a Job, flats: &'a [Flat], memory: &'a Memory, words: &'a Words) -> Self {
        Grads {
            job,
            flats,
            memory,
            words,
            now: vec![Grad::default(); flats.len()],
            counting: false,
        }
    }

    /// Where the reduced gradient of what is owned of a unit begins, while all of it is there.
    pub fn own(&self, u: usize) -> Option<Place> {
        let now = &self.now[u];
        now.own.filter(|_| !now.rest).map(|(place, _)| place)
    }
}

/// `to = a + b`.
fn sum(on: &On<'_>, to: &View<'_>, a: &View<'_>, b: &View<'_>) {
    on.map(&[to], &[a, b], &[], |x| vec![x[0] + x[1]]);
}
