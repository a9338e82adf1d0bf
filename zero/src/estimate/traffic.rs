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

/// Traffic of one optimizer step over `params` elements (padded ones, for the engine's exact counts) with `micro_batches`
/// accumulated.
///
/// Gradients are reduced once a step, at a unit's last backward, so accumulation changes nothing but stage 3's gathers: each
/// micro-batch gathers for its forward and its backward unless `keep_gathered` (parameters stay whole from forward to backward).
/// A recompute shares the gather of the backward it stands before.
pub fn traffic(
    stage: ZeroStage,
    params: u64,
    ranks: u64,
    micro_batches: u64,
    keep_gathered: bool,
) -> Traffic {
    if ranks <= 1 {
        return Traffic::default();
    }
    match stage {
        ZeroStage::Zero => Traffic {
            all_reduce: params,
            ..Traffic::default()
        },
        ZeroStage::One | ZeroStage::Two => Traffic {
            reduce_scatter: params,
            all_gather: params,
            ..Traffic::default()
        },
        ZeroStage::Three => {
            let gathers = micro_batches.max(1) * if keep_gathered { 1 } else { 2 };
            Traffic {
                reduce_scatter: params,
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
