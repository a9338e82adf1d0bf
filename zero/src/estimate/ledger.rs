//! Where the bytes of a job lie: device, host and NVMe of one rank, row by row with the formula of each.

use super::{Accounting, Accumulation, Shape, States, padded, states};
use crate::ZeroStage;

/// A kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// The accelerator's.
    Device,
    /// The host's.
    Host,
    /// A file on fast storage.
    Nvme,
}

impl Tier {
    /// All, nearest first.
    pub const ALL: [Tier; 3] = [Tier::Device, Tier::Host, Tier::Nvme];
    /// Lower-case name.
    pub fn name(self) -> &'static str {
        match self {
            Tier::Device => "device",
            Tier::Host => "host",
            Tier::Nvme => "nvme",
        }
    }
}

/// Where states rest between uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offload {
    /// Master, moments and moving average; gradient shards follow them, since the update is computed there.
    pub optimizer: Tier,
    /// Parameter shards (stage 3).
    pub param: Tier,
}

impl Offload {
    /// Everything on the device.
    pub const NONE: Offload = Offload {
        optimizer: Tier::Device,
        param: Tier::Device,
    };
}

/// Parameters of experts that lie over ranks: of each fewer ranks have the same than of the rest of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Apart {
    /// Parameters of the experts of a rank.
    pub params: u64,
    /// Those of the layer with the most.
    pub largest_unit: u64,
    /// Ranks that their states are sharded over.
    pub ranks: u64,
}

/// What is to be trained, and how.
///
/// In formulas P are the parameters of a rank, P/N what each parameter's own ranks leave a rank of it, and U a layer with its experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Parameters, but for experts that are apart.
    pub params: u64,
    /// Parameters of the largest unit gathered at once.
    pub largest_unit: u64,
    /// Ranks states are sharded over.
    pub ranks: u64,
    /// Experts that lie over ranks; none of them: all zeros.
    pub experts: Apart,
    /// ZeRO stage.
    pub stage: ZeroStage,
    /// Micro-batches of a step, and how their gradients are reduced.
    pub accumulation: Accumulation,
    /// Bytes per parameter.
    pub accounting: Accounting,
    /// Where states rest.
    pub offload: Offload,
    /// Units gathered at once, at stage 3.
    pub slots: u64,
    /// Elements of a gradient bucket.
    pub bucket: u64,
    /// Bytes of saved activations of a rank.
    pub activations: u64,
    /// Parameters of a teacher beside the model: no gradient, no state, and gathered like the model's at stage 3.
    pub teacher: u64,
}

impl Load {
    /// Parameters of a rank.
    fn here(&self) -> u64 {
        self.params + self.experts.params
    }

    /// Parameters of a rank that are whole at once: those of a layer, and of its experts.
    fn unit(&self) -> u64 {
        let unit = self.largest_unit + self.experts.largest_unit;
        unit.min(self.here())
    }

    /// Bytes of states.
    fn states(&self) -> States {
        let (stage, a, e) = (self.stage, self.accounting, self.experts);
        states(self.params, self.ranks, stage, a) + states(e.params, e.ranks, stage, a)
    }

    /// Elements that a rank owns.
    pub fn shard(&self) -> u64 {
        let e = self.experts;
        padded(self.params, self.ranks).shard + padded(e.params, e.ranks).shard
    }

    /// The same of the unit with the most.
    fn shard_of_unit(&self) -> u64 {
        let (e, unit) = (self.experts, self.largest_unit.min(self.params));
        let experts = padded(e.largest_unit, e.ranks).shard;
        padded(unit, self.ranks).shard.max(experts)
    }

    /// Is something sharded?
    fn is_shared(&self) -> bool {
        self.ranks > 1 || self.experts.params > 0 && self.experts.ranks > 1
    }
}

/// Memory of one rank: a device, and an equal part of its node's host and storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Bytes of the device.
    pub device: u64,
    /// Bytes of the host per rank.
    pub host: u64,
    /// Bytes of storage per rank.
    pub nvme: u64,
}

impl Machine {
    /// Bytes of a tier.
    pub fn of(&self, tier: Tier) -> u64 {
        match tier {
            Tier::Device => self.device,
            Tier::Host => self.host,
            Tier::Nvme => self.nvme,
        }
    }
}

/// One kind of bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Where.
    pub tier: Tier,
    /// What.
    pub what: &'static str,
    /// Bytes on this rank.
    pub bytes: u64,
    /// Why so many.
    pub formula: &'static str,
}

/// All bytes of a rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ledger {
    /// In order of tier.
    pub rows: Vec<Row>,
}

impl Ledger {
    /// Bytes of a tier.
    pub fn total(&self, tier: Tier) -> u64 {
        let mine = self.rows.iter().filter(|r| r.tier == tier);
        mine.fold(0, |a, r| a.saturating_add(r.bytes))
    }

    /// The first tier that does not hold its part, if one does not.
    pub fn overflow(&self, machine: &Machine) -> Option<Tier> {
        let over = |t: &Tier| self.total(*t) > machine.of(*t);
        Tier::ALL.into_iter().find(over)
    }
}

/// Bytes of gradients: whole or in slices, and what is open meanwhile.
fn grad_rows(l: &Load, s: &States) -> Vec<Row> {
    let (q, shard) = (l.accounting.grad, l.shard());
    let row = |tier, what, bytes, formula| Row {
        tier,
        what,
        bytes,
        formula,
    };
    let several = l.accumulation.micro_batches > 1;
    let away = l.offload.optimizer != Tier::Device;
    // A rank alone has no slices; what leaves does so at any stage.
    let how = Accumulation {
        leaves: away,
        ..l.accumulation
    };
    let leaves =
        several && away && how.reduce_each && (!l.is_shared() || !how.keeps_whole(l.stage));
    let whole = several && how.keeps_whole(l.stage) && !leaves;
    let window = q * l.bucket.max(l.unit()).min(l.here());
    let device = Tier::Device;
    if away {
        // Storage is read and written through a bounded pool, so gradients wait in the host's memory only for the host's update.
        let formula = match leaves {
            true => "q ceil(P/N): the sum over the micro-batches",
            false => "q ceil(P/N)",
        };
        let mut rows = vec![row(l.offload.optimizer, "grad", q * shard, formula)];
        if whole {
            let formula = "q P: whole until the last micro-batch";
            rows.push(row(device, "grad", q * l.here(), formula));
            return rows;
        }
        let (window, formula) = match leaves {
            true => (
                (2 * window).min(q * l.here()),
                "2 q max(bucket, U): one leaves while the next is made",
            ),
            false => (
                window,
                "q max(bucket, U): a gradient leaves when its unit is reduced",
            ),
        };
        rows.push(row(device, "grad window", window, formula));
        if leaves && l.offload.optimizer == Tier::Host {
            let formula = "2 w ceil(U/N): one arrives while another is added";
            let landings = 2 * l.accounting.param * l.shard_of_unit();
            rows.push(row(Tier::Host, "grad landings", landings, formula));
        }
        return rows;
    }
    if whole || l.stage < ZeroStage::Two {
        return vec![row(device, "grad", q * l.here(), "q P")];
    }
    let mut rows = vec![row(device, "grad", s.grad, "q ceil(P/N)")];
    if l.is_shared() {
        let formula = "q max(bucket, U): whole until its unit is reduced";
        rows.push(row(device, "grad window", window, formula));
    }
    rows
}

/// The bytes of a rank, by tier.
pub fn ledger(l: &Load) -> Ledger {
    let (a, stage) = (l.accounting, l.stage);
    let s = l.states();
    let mut rows = Vec::new();
    let mut row = |tier, what, bytes, formula| {
        if bytes > 0 {
            rows.push(Row {
                tier,
                what,
                bytes,
                formula,
            });
        }
    };
    let three = stage >= ZeroStage::Three;
    let param_home = if three { l.offload.param } else { Tier::Device };
    let window = l.slots.max(1) * l.unit();
    row(
        param_home,
        "param",
        s.param,
        if three { "w ceil(P/N)" } else { "w P" },
    );
    if three && (l.is_shared() || param_home != Tier::Device) {
        row(
            Tier::Device,
            "param window",
            a.param * window,
            "w slots U (U: parameters of the largest unit)",
        );
    }
    let of_teacher = match three {
        true => padded(l.teacher, l.ranks).shard,
        false => l.teacher,
    };
    row(
        param_home,
        "teacher",
        a.param * of_teacher,
        if three { "w ceil(T/N)" } else { "w T" },
    );
    for r in grad_rows(l, &s) {
        row(r.tier, r.what, r.bytes, r.formula);
    }
    let held = if stage >= ZeroStage::One {
        [
            "K1 ceil(P/N)",
            "K2 ceil(P/N)",
            "K3 ceil(P/N)",
            "K4 ceil(P/N)",
        ]
    } else {
        ["K1 P", "K2 P", "K3 P", "K4 P"]
    };
    row(l.offload.optimizer, "master", s.master, held[0]);
    row(l.offload.optimizer, "moment1", s.moment1, held[1]);
    row(l.offload.optimizer, "moment2", s.moment2, held[2]);
    row(l.offload.optimizer, "ema", s.ema, held[3]);
    row(
        Tier::Device,
        "activation",
        l.activations,
        "see the activation formulas",
    );
    let pool = |bytes: u64| 2 * bytes * l.shard_of_unit();
    if l.offload.optimizer == Tier::Nvme {
        row(
            Tier::Host,
            "buffer pool (optimizer)",
            pool(a.grad + a.optimizer()),
            "2 (q + K) ceil(U/N): one unit read while another is updated",
        );
    }
    if three && l.offload.param == Tier::Nvme {
        row(
            Tier::Host,
            "buffer pool (param)",
            pool(a.param),
            "2 w ceil(U/N): one unit read while another is gathered",
        );
    }
    rows.sort_by_key(|r| r.tier);
    Ledger { rows }
}

/// The most parameters that fit `machine` when all else is as in `load`, with the proportions of [`Shape::of_params`] and the
/// activations that `activations` gives for a shape.
pub fn largest(load: &Load, machine: &Machine, activations: impl Fn(&Shape) -> u64) -> u64 {
    let fits = |params: u64| {
        let shape = Shape::of_params(params);
        let load = Load {
            params,
            largest_unit: shape.largest_unit(),
            activations: activations(&shape),
            ..*load
        };
        ledger(&load).overflow(machine).is_none()
    };
    // Shapes move in steps, so fitting is not strictly monotone; what is returned fits, and nothing tried above it did.
    let (mut low, mut high) = (0u64, 1u64 << 50);
    while high - low > low / 1_000_000 + 1 {
        let middle = low + (high - low) / 2;
        if fits(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}
