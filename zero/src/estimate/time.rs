//! Floating-point operations of a step, and how long a machine takes for them.

use super::Shape;
use crossweave_plan::axes::{AxisSet, Topology};

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

/// What a device and its links can do. Peaks and bandwidths are the makers' figures (16-bit, dense); `sustained` is what large training
/// runs on it report, or 40 % of the peak where none is known, and what times are computed from unless another figure is given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    /// Name on the command line.
    pub name: &'static str,
    /// Bytes of device memory.
    pub memory: u64,
    /// Bytes a second between the device and its memory.
    pub bandwidth: f64,
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

impl Profile {
    /// Whether every group over these axes lies within a node, whose ranks follow one another in the mesh's order.
    pub fn within_node(&self, mesh: &Topology, axes: AxisSet) -> bool {
        mesh.reach(axes) <= self.ranks_per_node
    }

    /// Bytes a second of a rank to the others of its group over these axes.
    pub fn rate(&self, mesh: &Topology, axes: AxisSet) -> f64 {
        match self.within_node(mesh, axes) {
            true => self.link,
            false => self.network,
        }
    }
}

const GIB: u64 = 1 << 30;
const T: f64 = 1e12;
const G: f64 = 1e9;

/// A row of the table: memory and its bandwidth, peak and sustained rate, links within a node, between nodes and to the host, ranks a node.
const fn row(
    name: &'static str,
    (memory, bandwidth): (u64, f64),
    (peak, sustained): (f64, f64),
    [link, network, host]: [f64; 3],
    ranks_per_node: u64,
) -> Profile {
    Profile {
        name,
        memory,
        bandwidth,
        peak,
        sustained,
        link,
        network,
        host,
        ranks_per_node,
    }
}

#[rustfmt::skip]
const PROFILES: &[Profile] = &[
    row("v100", (32 * GIB, 0.9 * T), (125.0 * T, 34.5 * T), [150.0 * G, 12.5 * G, 12.0 * G], 16),
    row("a100", (80 * GIB, 2.039 * T), (312.0 * T, 140.0 * T), [300.0 * G, 25.0 * G, 25.0 * G], 8),
    row("a100-40gb", (40 * GIB, 1.555 * T), (312.0 * T, 140.0 * T), [300.0 * G, 25.0 * G, 25.0 * G], 8),
    row("h100", (80 * GIB, 3.35 * T), (989.0 * T, 400.0 * T), [450.0 * G, 50.0 * G, 55.0 * G], 8),
    row("h200", (141_000_000_000, 4.8 * T), (989.0 * T, 400.0 * T), [450.0 * G, 50.0 * G, 55.0 * G], 8),
    row("b200", (180_000_000_000, 7.7 * T), (2250.0 * T, 900.0 * T), [900.0 * G, 50.0 * G, 55.0 * G], 8),
    row("l40s", (48 * GIB, 0.864 * T), (362.0 * T, 145.0 * T), [25.0 * G, 25.0 * G, 25.0 * G], 8),
    row("rtx4090", (24 * GIB, 1.008 * T), (165.0 * T, 66.0 * T), [20.0 * G, 1.25 * G, 25.0 * G], 8),
    row("mi300x", (192 * GIB, 5.3 * T), (1307.0 * T, 520.0 * T), [448.0 * G, 50.0 * G, 55.0 * G], 8),
    row("910b", (64 * GIB, 1.6 * T), (376.0 * T, 150.0 * T), [196.0 * G, 25.0 * G, 25.0 * G], 8),
    row("laptop", (16 * GIB, 0.05 * T), (0.2 * T, 0.1 * T), [10.0 * G, 0.1 * G, 10.0 * G], 1),
];

/// All device profiles.
pub fn profiles() -> &'static [Profile] {
    PROFILES
}

/// The profile of that name, in any case.
pub fn profile(name: &str) -> Option<&'static Profile> {
    PROFILES.iter().find(|p| p.name.eq_ignore_ascii_case(name))
}

/// The profile whose name stands in what a device calls itself (`… H100 80GB HBM3`): the longest, where there are several.
pub fn recognised(device: &str) -> Option<&'static Profile> {
    let device = device.to_lowercase().replace(' ', "");
    let named = PROFILES.iter().filter(|p| device.contains(p.name));
    named.max_by_key(|p| p.name.len())
}
