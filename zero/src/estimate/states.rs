//! Bytes of model states per rank: `(w + q + K) P`, of which a stage divides some by N.

use crate::ZeroStage;
use std::ops::Add;

/// Bytes each parameter costs in each kind of state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accounting {
    /// Working weights (w).
    pub param: u64,
    /// Gradients (q).
    pub grad: u64,
    /// Master copy in f32; 0 where the weights are f32 themselves.
    pub master: u64,
    /// First moment.
    pub moment1: u64,
    /// Second moment.
    pub moment2: u64,
    /// Moving average of the weights in f32; 0 where none is kept.
    pub ema: u64,
}

impl Accounting {
    /// 16-bit weights and gradients, f32 master and two f32 moments: 2 + 2 + 4 + 4 + 4 = 16.
    pub const MIXED: Accounting = Accounting {
        param: 2,
        grad: 2,
        master: 4,
        moment1: 4,
        moment2: 4,
        ema: 0,
    };
    /// Everything in f32: 4 + 4 + 0 + 4 + 4 = 16.
    pub const FP32: Accounting = Accounting {
        param: 4,
        grad: 4,
        master: 0,
        moment1: 4,
        moment2: 4,
        ema: 0,
    };
    /// 16-bit weights with f32 gradients, as this engine and Megatron's bf16 have them: 2 + 4 + 4 + 4 + 4 = 18.
    pub const MIXED_F32_GRADS: Accounting = Accounting {
        grad: 4,
        ..Accounting::MIXED
    };

    /// Bytes of optimizer state (K), master and moving average included.
    pub const fn optimizer(&self) -> u64 {
        self.master + self.moment1 + self.moment2 + self.ema
    }

    /// Bytes a parameter costs where nothing is sharded.
    pub const fn total(&self) -> u64 {
        self.param + self.grad + self.optimizer()
    }
}

/// Bytes by kind of state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct States {
    /// Working weights.
    pub param: u64,
    /// Gradients.
    pub grad: u64,
    /// Master copy.
    pub master: u64,
    /// First moment.
    pub moment1: u64,
    /// Second moment.
    pub moment2: u64,
    /// Moving average of the weights in f32; 0 where none is kept.
    pub ema: u64,
}

impl States {
    /// Sum of all six.
    pub fn total(&self) -> u64 {
        self.param + self.grad + self.optimizer()
    }

    /// Master, moments and moving average.
    pub fn optimizer(&self) -> u64 {
        self.master + self.moment1 + self.moment2 + self.ema
    }
}

impl Add for States {
    type Output = States;
    fn add(self, o: States) -> States {
        States {
            param: self.param + o.param,
            grad: self.grad + o.grad,
            master: self.master + o.master,
            moment1: self.moment1 + o.moment1,
            moment2: self.moment2 + o.moment2,
            ema: self.ema + o.ema,
        }
    }
}

/// A unit's elements as the engine lays them out: rounded up so that N ranks own equal parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Padded {
    /// Elements with padding: `N ceil(P / N)`.
    pub full: u64,
    /// Elements one rank owns: `ceil(P / N)`.
    pub shard: u64,
}

/// The padded sizes of `params` elements over `ranks` ranks. Summed over ranks, shards exceed `params` by less than `ranks`.
pub fn padded(params: u64, ranks: u64) -> Padded {
    let shard = params.div_ceil(ranks.max(1));
    Padded {
        full: shard.saturating_mul(ranks.max(1)),
        shard,
    }
}

/// Bytes on one rank of `params` parameters laid out as one unit: what a stage shards counts `ceil(P / N)`, the rest `P`.
///
/// Stage 1 shards the optimizer's states, stage 2 gradients too, stage 3 weights too.
pub fn states(params: u64, ranks: u64, stage: ZeroStage, a: Accounting) -> States {
    let shard = padded(params, ranks).shard;
    let pick = |from: ZeroStage| if stage >= from { shard } else { params };
    let optimizer = pick(ZeroStage::One);
    States {
        param: a.param * pick(ZeroStage::Three),
        grad: a.grad * pick(ZeroStage::Two),
        master: a.master * optimizer,
        moment1: a.moment1 * optimizer,
        moment2: a.moment2 * optimizer,
        ema: a.ema * optimizer,
    }
}

/// The textbook's bytes, without rounding: `(w+q+K)P`, `(w+q)P + KP/N`, `wP + (q+K)P/N`, `(w+q+K)P/N`.
pub fn closed(params: f64, ranks: f64, stage: ZeroStage, a: Accounting) -> f64 {
    let part = |from: ZeroStage| if stage >= from { ranks } else { 1.0 };
    params
        * (a.param as f64 / part(ZeroStage::Three)
            + a.grad as f64 / part(ZeroStage::Two)
            + a.optimizer() as f64 / part(ZeroStage::One))
}

/// The most parameters whose states fit `bytes` on each rank: the inverse of [`states`].
pub fn largest_params(bytes: u64, ranks: u64, stage: ZeroStage, a: Accounting) -> u64 {
    let fits = |p: u64| states(p, ranks, stage, a).total() <= bytes;
    // The textbook's answer is within one padding of the true one; the search closes the gap.
    let per = closed(1.0, ranks.max(1) as f64, stage, a).max(f64::MIN_POSITIVE);
    let guess = (bytes as f64 / per) as u64;
    let (mut low, mut high) = (0, guess.saturating_add(ranks.max(1)).saturating_add(2));
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        if fits(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// What this engine keeps on each rank between steps, in the layout it really has: `units` are the parameters of each unit.
///
/// Every unit is padded. Whole weights stay at stages 0 to 2; at stage 3 the weights of a 16-bit run are its master shards (a gather
/// casts them), so no 16-bit shard is kept, and those of an f32 run are its only copy. Gradients live in pool memory from backward to
/// update, so none are counted. `moments` and `ema` are bytes per parameter of the optimizer's moments and of the moving average.
pub fn held(
    units: &[u64],
    ranks: u64,
    stage: ZeroStage,
    weight: u64,
    [moments, ema]: [u64; 2],
) -> States {
    let sixteen = weight < 4;
    let of = |&params: &u64| {
        let p = padded(params, ranks);
        let owned = if stage >= ZeroStage::One {
            p.shard
        } else {
            p.full
        };
        States {
            param: match stage {
                ZeroStage::Three if sixteen => 0,
                ZeroStage::Three => 4 * p.shard,
                _ => weight * p.full,
            },
            grad: 0,
            master: if sixteen { 4 * owned } else { 0 },
            moment1: moments / 2 * owned,
            moment2: (moments - moments / 2) * owned,
            ema: ema * owned,
        }
    };
    units.iter().map(of).fold(States::default(), Add::add)
}
