//! Elements on the wire per rank and optimizer step, by the ring convention: `AR(n) = 2n(N-1)/N`, `RS(n) = AG(n) = n(N-1)/N`.

use crate::ZeroStage;

/// Logical elements of each collective in one optimizer step of one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Gradients all-reduced.
    pub all_reduce: u64,
    /// Gradients reduce-scattered.
    pub reduce_scatter: u64,
    /// Parameters gathered.
    pub all_gather: u64,
}

impl Traffic {
    /// Elements one rank puts on the wire.
    pub fn wire(&self, ranks: u64) -> f64 {
        let n = ranks.max(1) as f64;
        let halves = 2 * self.all_reduce + self.reduce_scatter + self.all_gather;
        halves as f64 * (n - 1.0) / n
    }

    /// The same against plain data parallelism over `params` elements, `2P(N-1)/N`: 1.0, 1.0 and 1.5 for stages 1, 2 and 3.
    pub fn volume_vs_ddp(&self, params: u64) -> f64 {
        let halves = 2 * self.all_reduce + self.reduce_scatter + self.all_gather;
        halves as f64 / (2 * params.max(1)) as f64
    }
}

/// How the micro-batches of a step share what is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accumulation {
    /// Micro-batches of a step on a rank.
    pub micro_batches: u64,
    /// Stages 2 and 3 reduce the gradients of each, and keep slices of them; else whole gradients are reduced once a step.
    pub reduce_each: bool,
    /// Stage 3 gathers parameters once for forward and backward; else for each.
    pub keep_gathered: bool,
    /// The optimizer is offloaded: what is reduced for each micro-batch leaves, and stage 1 does so too.
    pub leaves: bool,
}

impl Accumulation {
    /// One micro-batch a step.
    pub const NONE: Accumulation = Accumulation::of(1);

    /// So many, as they are accumulated by default.
    pub const fn of(micro_batches: u64) -> Accumulation {
        Accumulation {
            micro_batches,
            reduce_each: true,
            keep_gathered: false,
            leaves: false,
        }
    }

    /// Elements on the wire in a step, as a formula; `g` are the micro-batches.
    pub fn wire_formula(&self, stage: ZeroStage) -> &'static str {
        let several = self.micro_batches > 1;
        let each = several && !self.keeps_whole(stage);
        match (stage, each, several, self.keep_gathered) {
            (ZeroStage::Three, true, _, false) => "3gP(N-1)/N",
            (ZeroStage::Three, true, _, true) => "2gP(N-1)/N",
            (ZeroStage::Three, false, true, false) => "(1+2g)P(N-1)/N",
            (ZeroStage::Three, false, true, true) => "(1+g)P(N-1)/N",
            (ZeroStage::Three, _, _, false) => "3P(N-1)/N",
            (ZeroStage::One | ZeroStage::Two, true, ..) => "(1+g)P(N-1)/N",
            _ => "2P(N-1)/N",
        }
    }

    /// Whether a rank keeps the whole gradients of a step until its end.
    pub fn keeps_whole(&self, stage: ZeroStage) -> bool {
        let several = self.micro_batches > 1;
        let leaves = stage == ZeroStage::One && several && self.leaves && self.reduce_each;
        stage < ZeroStage::Two && !leaves || several && !self.reduce_each
    }
}

/// Traffic of one optimizer step over `params` elements (padded ones, for the engine's exact counts).
///
/// Stages 0 and 1 reduce gradients once a step; stages 2 and 3, and 1 beside an offloaded optimizer, for each micro-batch, unless they
/// keep whole gradients. At stage 3 each
/// micro-batch gathers for its forward and its backward unless parameters stay whole between them. A recompute shares the gather of the
/// backward it stands before.
pub fn traffic(stage: ZeroStage, params: u64, ranks: u64, how: Accumulation) -> Traffic {
    if ranks <= 1 {
        return Traffic::default();
    }
    let micro_batches = how.micro_batches.max(1);
    let reductions = match how.keeps_whole(stage) {
        true => 1,
        false => micro_batches,
    };
    match stage {
        ZeroStage::Zero => Traffic {
            all_reduce: params,
            ..Traffic::default()
        },
        ZeroStage::One | ZeroStage::Two => Traffic {
            reduce_scatter: params * reductions,
            all_gather: params,
            ..Traffic::default()
        },
        ZeroStage::Three => {
            let gathers = micro_batches * if how.keep_gathered { 1 } else { 2 };
            Traffic {
                reduce_scatter: params * reductions,
                all_gather: params * gathers,
                ..Traffic::default()
            }
        }
    }
}

/// Plain data parallelism: `2P(N-1)/N` on every rank's link.
pub fn all_reduce(params: f64, ranks: f64) -> f64 {
    2.0 * params * (ranks - 1.0) / ranks
}

/// A parameter server among the ranks: `(server's link, every other rank's link)` in elements, both directions together. As many
/// elements are sent in all as by the ring, `2P(N-1)`, but every one of them crosses the server's link.
pub fn parameter_server(params: f64, ranks: f64) -> (f64, f64) {
    (2.0 * params * (ranks - 1.0), 2.0 * params)
}

/// Stage 3 within nodes of `shard` ranks, replicas over `replicate` nodes: `3P(s-1)/s + 2(P/s)(r-1)/r`.
pub fn hsdp(params: f64, shard: f64, replicate: f64) -> f64 {
    3.0 * params * (shard - 1.0) / shard + 2.0 * (params / shard) * (replicate - 1.0) / replicate
}

/// Inter-node bytes of stage 3 with ZeRO++ for `m` bytes of 16-bit parameters: `3m` without; quantised weights halve the
/// forward's gather, a secondary shard saves the backward's, quantised gradients quarter the reduction: `0.75m` with all.
pub fn zeropp(m: f64, quantised_weights: bool, secondary: bool, quantised_grads: bool) -> f64 {
    let weights = if quantised_weights { 0.5 } else { 1.0 };
    let backward = if secondary { 0.0 } else { weights };
    let grads = if quantised_grads { 0.25 } else { 1.0 };
    m * (weights + backward + grads)
}
