//! The devices that are known by name, as `crossweave estimate --devices` shows them.

use crate::figures::devices::{Profile, profiles};
use crossweave_words::Size;
use serde_json::{Value, json};
use std::fmt::Write;

/// Every profile as JSON.
pub fn list() -> Value {
    let one = |p: &Profile| {
        json!({
            "name": p.name, "memory": p.memory, "bandwidth": p.bandwidth, "peak_flops": p.peak, "sustained_flops": p.sustained,
            "link": p.link, "network": p.network, "host": p.host, "ranks_per_node": p.ranks_per_node,
        })
    };
    json!({"devices": profiles().iter().map(one).collect::<Vec<_>>()})
}

/// The same for people.
pub fn table() -> String {
    let mut o = format!(
        "{:<11} {:>10} {:>11} {:>15} {:>15} {:>11} {:>11} {:>11} {:>6}\n",
        "device",
        "memory",
        "bandwidth",
        "16-bit peak",
        "sustained",
        "link",
        "network",
        "host",
        "a node"
    );
    for p in profiles() {
        let rate = |r: f64| format!("{}/s", Size(r as u64));
        let flops = |f: f64| format!("{:.1} TFLOP/s", f / 1e12);
        // Writing into a string cannot fail.
        let _ = writeln!(
            o,
            "{:<11} {:>10} {:>11} {:>15} {:>15} {:>11} {:>11} {:>11} {:>6}",
            p.name,
            Size(p.memory),
            rate(p.bandwidth),
            flops(p.peak),
            flops(p.sustained),
            rate(p.link),
            rate(p.network),
            rate(p.host),
            p.ranks_per_node
        );
    }
    o += "\nlink, network, host: between ranks of a node, between nodes, and to the host, per rank. Peaks and bandwidths are the makers';\n\
          sustained is what large runs report, or 40 % of the peak.";
    o
}
