//! Floating-point operations of a step, and how long a machine takes for them.

use super::Shape;

/// Operations of one optimizer step of a batch of sequences.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flops {
    /// What the model needs (forward and backward): `72 B L s h^2 (1 + s/6h + V/12Lh)`. MFU divides this.
    pub model: f64,
    /// What the hardware does when every layer is recomputed: `96 B L s h^2 (1 + s/6h + V/16Lh)`. HFU divides this.
    pub hardware: f64,
}

/// Both forms for `batch` sequences over all ranks.
pub fn flops(s: &Shape, batch: u64) -> Flops {
    let (l, h, seq) = (s.layers as f64, s.hidden as f64, s.seq as f64);
    let unit = batch as f64 * l * seq * h * h;
    let (attention, vocab) = (seq / (6.0 * h), s.vocab as f64 / (l * h));
    Flops {
        model: 72.0 * unit * (1.0 + attention + vocab / 12.0),
        hardware: 96.0 * unit * (1.0 + attention + vocab / 16.0),
    }
}

/// The rule of thumb `6 P T` for `tokens` tokens.
pub fn sixpt(params: f64, tokens: f64) -> f64 {
    6.0 * params * tokens
}

/// Fraction of the peak: `flops / (seconds x ranks x peak)`. Of model flops it is MFU, of hardware flops HFU.
pub fn mfu(flops: f64, seconds: f64, ranks: f64, peak: f64) -> f64 {
    flops / (seconds * ranks * peak)
}

/// Seconds that `flops` take on `ranks` devices which sustain `sustained` operations a second each.
pub fn seconds_on(flops: f64, ranks: f64, sustained: f64) -> f64 {
    flops / (ranks * sustained)
}

/// Seconds in years of 365.25 days.
pub fn years_of_seconds(seconds: f64) -> f64 {
    seconds / (365.25 * 86400.0)
}

/// Years of one device for `flops` at `sustained` operations a second.
pub fn years(flops: f64, sustained: f64) -> f64 {
    years_of_seconds(seconds_on(flops, 1.0, sustained))
}

/// What a device and its links can do. Peaks are the makers' dense 16-bit figures; `sustained` is what large training runs on it
/// report, and what times are computed from unless another figure is given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    /// Name on the command line.
    pub name: &'static str,
    /// Bytes of device memory.
    pub memory: u64,
    /// Peak operations a second in 16-bit.
    pub peak: f64,
    /// Sustained operations a second.
    pub sustained: f64,
    /// Bytes a second between ranks of one node.
    pub link: f64,
    /// Bytes a second between nodes, per rank.
    pub network: f64,
    /// Bytes a second between device and host, per rank.
    pub host: f64,
    /// Ranks of a node.
    pub ranks_per_node: u64,
}

const GIB: u64 = 1 << 30;

const PROFILES: &[Profile] = &[
    Profile {
        name: "v100",
        memory: 32 * GIB,
        peak: 125e12,
        sustained: 34.5e12,
        link: 150e9,
        network: 12.5e9,
        host: 12e9,
        ranks_per_node: 16,
    },
    Profile {
        name: "a100",
        memory: 80 * GIB,
        peak: 312e12,
        sustained: 140e12,
        link: 300e9,
        network: 25e9,
        host: 25e9,
        ranks_per_node: 8,
    },
    Profile {
        name: "h100",
        memory: 80 * GIB,
        peak: 989e12,
        sustained: 400e12,
        link: 450e9,
        network: 50e9,
        host: 55e9,
        ranks_per_node: 8,
    },
    Profile {
        name: "h200",
        memory: 141_000_000_000,
        peak: 989e12,
        sustained: 400e12,
        link: 450e9,
        network: 50e9,
        host: 55e9,
        ranks_per_node: 8,
    },
    Profile {
        name: "910b",
        memory: 64 * GIB,
        peak: 376e12,
        sustained: 150e12,
        link: 196e9,
        network: 25e9,
        host: 25e9,
        ranks_per_node: 8,
    },
    Profile {
        name: "laptop",
        memory: 16 * GIB,
        peak: 0.2e12,
        sustained: 0.1e12,
        link: 10e9,
        network: 0.1e9,
        host: 10e9,
        ranks_per_node: 1,
    },
];

/// All device profiles.
pub fn profiles() -> &'static [Profile] {
    PROFILES
}

/// The profile of that name.
pub fn profile(name: &str) -> Option<&'static Profile> {
    PROFILES.iter().find(|p| p.name == name)
}
