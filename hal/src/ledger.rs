//! The two ledgers every algorithm is judged by: bytes of memory by tag, and calls, elements and bytes of collectives by kind, group and tag.

pub use crossweave_abi::Tag;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes now and at their peak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NowPeak {
    /// Bytes live now.
    pub now: u64,
    /// Most bytes ever live at once.
    pub peak: u64,
}

#[derive(Default)]
struct Counter {
    now: AtomicU64,
    peak: AtomicU64,
}
impl Counter {
    /// Whether there were never as many.
    fn add(&self, n: u64) -> bool {
        let now = self.now.fetch_add(n, Relaxed) + n;
        self.peak.fetch_max(now, Relaxed) < now
    }
    fn sub(&self, n: u64) {
        self.now.fetch_sub(n, Relaxed);
    }
    fn read(&self) -> NowPeak {
        NowPeak {
            now: self.now.load(Relaxed),
            peak: self.peak.load(Relaxed),
        }
    }
}

/// Memory of one device, counted where it is handed out: requested bytes by tag, and what was taken from the plugin.
#[derive(Default)]
pub struct MemoryLedger {
    tags: [Counter; 8],
    live: Counter,
    /// What was live of each tag when all of them together were at their peak.
    at_peak: [AtomicU64; 8],
    /// Pinned host memory by tag.
    host: [Counter; 8],
    /// Bytes copied off the device and onto it, by the tag of the pinned side.
    moved: [[AtomicU64; 8]; 2],
    reserved: Counter,
    device_allocs: AtomicU64,
    device_frees: AtomicU64,
}

/// A reading of [`MemoryLedger`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryReport {
    /// Requested bytes of device memory by tag.
    pub tags: BTreeMap<String, NowPeak>,
    /// Requested bytes of device memory over all tags.
    pub total: NowPeak,
    /// Requested bytes of each tag at the moment when all of them together were the most; tags without any are left out. The sum is
    /// `total.peak` where one thread at a time asks for memory.
    #[serde(default)]
    pub at_peak: BTreeMap<String, u64>,
    /// Host memory by tag, page-locked and (of an offloaded optimizer) plain; tags that never had any are left out.
    #[serde(default)]
    pub host: BTreeMap<String, NowPeak>,
    /// The page-locked part of it.
    #[serde(default)]
    pub pinned: BTreeMap<String, NowPeak>,
    /// Bytes copied from the device to pinned memory so far, by the tag of the pinned memory.
    #[serde(default)]
    pub to_host: BTreeMap<String, u64>,
    /// Bytes copied from pinned memory to the device so far, by the tag of the pinned memory.
    #[serde(default)]
    pub from_host: BTreeMap<String, u64>,
    /// Bytes of device memory taken from the plugin, free blocks of the pools included.
    pub reserved: NowPeak,
    /// 1 - largest free block / free bytes of the caching pool; 0 when nothing is free.
    pub fragmentation: f64,
    /// `mem_alloc` calls so far.
    pub device_allocs: u64,
    /// `mem_free` calls so far.
    pub device_frees: u64,
}

impl MemoryLedger {
    pub(crate) fn alloc(&self, tag: Tag, bytes: u64) {
        self.tags[tag as usize].add(bytes);
        if self.live.add(bytes) {
            for (held, tag) in self.at_peak.iter().zip(&self.tags) {
                held.store(tag.now.load(Relaxed), Relaxed);
            }
        }
    }
    pub(crate) fn free(&self, tag: Tag, bytes: u64) {
        self.tags[tag as usize].sub(bytes);
        self.live.sub(bytes);
    }
    pub(crate) fn alloc_host(&self, tag: Tag, bytes: u64) {
        self.host[tag as usize].add(bytes);
    }
    pub(crate) fn free_host(&self, tag: Tag, bytes: u64) {
        self.host[tag as usize].sub(bytes);
    }
    /// Notes a copy between the device and pinned memory of that tag.
    pub(crate) fn moved(&self, to_host: bool, tag: Tag, bytes: u64) {
        self.moved[usize::from(to_host)][tag as usize].fetch_add(bytes, Relaxed);
    }
    /// `device_bytes`: nothing for pinned memory, which is not the device's.
    pub(crate) fn reserve(&self, device_bytes: u64) {
        self.reserved.add(device_bytes);
        self.device_allocs.fetch_add(1, Relaxed);
    }
    pub(crate) fn release(&self, device_bytes: u64) {
        self.reserved.sub(device_bytes);
        self.device_frees.fetch_add(1, Relaxed);
    }
    /// `mem_alloc` calls so far: constant from the second training step on.
    pub fn device_allocs(&self) -> u64 {
        self.device_allocs.load(Relaxed)
    }
    fn moves(&self, to_host: bool) -> BTreeMap<String, u64> {
        let of = |t: &Tag| self.moved[usize::from(to_host)][*t as usize].load(Relaxed);
        let all = Tag::ALL.iter().map(|t| (t.name().to_string(), of(t)));
        all.filter(|(_, n)| *n > 0).collect()
    }
    pub(crate) fn report(&self, fragmentation: f64) -> MemoryReport {
        let pinned = Tag::ALL
            .iter()
            .map(|t| (t.name().to_string(), self.host[*t as usize].read()));
        let pinned: BTreeMap<_, _> = pinned.filter(|(_, b)| b.peak > 0).collect();
        MemoryReport {
            tags: Tag::ALL
                .iter()
                .map(|t| (t.name().to_string(), self.tags[*t as usize].read()))
                .collect(),
            total: self.live.read(),
            at_peak: Tag::ALL
                .iter()
                .map(|t| {
                    let held = self.at_peak[*t as usize].load(Relaxed);
                    (t.name().to_string(), held)
                })
                .filter(|(_, n)| *n > 0)
                .collect(),
            host: pinned.clone(),
            pinned,
            to_host: self.moves(true),
            from_host: self.moves(false),
            reserved: self.reserved.read(),
            fragmentation,
            device_allocs: self.device_allocs.load(Relaxed),
            device_frees: self.device_frees.load(Relaxed),
        }
    }
}

/// One line of the collective ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectiveLine {
    /// `all_reduce`, `reduce_scatter`, …
    pub kind: String,
    /// Name of the group (mesh axes).
    pub group: String,
    /// What was moved: `param`, `grad`, `scalar`, …
    pub tag: String,
    /// Ranks in the group.
    pub ranks: u32,
    /// Launches.
    pub calls: u64,
    /// Elements of the full logical vector (`n` of docs/zero.md, "Traffic"), summed over calls.
    pub elements: u64,
    /// The same in bytes.
    pub bytes: u64,
    /// Elements this rank puts on the wire by the ring convention of docs/zero.md, rounded down per call; of pieces of any lengths
    /// all but its own.
    pub wire_elements: u64,
}

/// What crossed the bridge to ranks that the device's own plugin does not reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BridgeLine {
    /// The collective it crossed for: `all_reduce`, `reduce_scatter`, …
    pub kind: String,
    /// Name of the group (mesh axes).
    pub group: String,
    /// What was moved: `param`, `grad`, `scalar`, …
    pub tag: String,
    /// Ranks in the group.
    pub ranks: u32,
    /// Collectives.
    pub calls: u64,
    /// Bytes this rank put on the bridge: those copied from its device to pinned memory.
    pub sent_bytes: u64,
    /// Bytes it took from the bridge.
    pub received_bytes: u64,
}

type Key = (&'static str, String, &'static str, u32);
type Lines = Mutex<BTreeMap<Key, [u64; 4]>>;

/// Collectives of one rank.
#[derive(Default)]
pub struct CollectiveLedger {
    lines: Lines,
    bridge: Lines,
}

/// Adds to the line of a key.
fn note(
    lines: &Lines,
    (kind, group, tag, ranks): (&'static str, &str, &'static str, u32),
    what: [u64; 4],
) {
    let mut lines = lines.lock().unwrap_or_else(|e| e.into_inner());
    // Looked up by reference first: the steady state must not allocate a key per call.
    let same = |k: &Key| k.0 == kind && k.2 == tag && k.3 == ranks && k.1 == group;
    if let Some((_, v)) = lines.iter_mut().find(|(k, _)| same(k)) {
        add4(v, what);
    } else {
        lines.insert((kind, group.to_string(), tag, ranks), what);
    }
}

impl CollectiveLedger {
    /// Notes a collective of so many elements and bytes, of pieces of any lengths with those that stay on the rank.
    pub(crate) fn add(
        &self,
        kind: &'static str,
        group: &str,
        tag: &'static str,
        ranks: u32,
        [elements, bytes, stays]: [u64; 3],
    ) {
        let n = ranks as u64;
        let wire = match kind {
            "all_reduce" => 2 * elements * (n - 1) / n,
            "reduce_scatter" | "all_gather" | "all_to_all" => elements * (n - 1) / n,
            "barrier" => 0,
            _ if n == 1 => 0,
            _ => elements.saturating_sub(stays),
        };
        note(
            &self.lines,
            (kind, group, tag, ranks),
            [1, elements, bytes, wire],
        );
    }

    /// Notes what a collective put on the bridge and took from it.
    pub(crate) fn bridge(
        &self,
        kind: &'static str,
        group: &str,
        tag: &'static str,
        ranks: u32,
        sent: u64,
        received: u64,
    ) {
        let what = [1, sent, received, 0];
        note(&self.bridge, (kind, group, tag, ranks), what);
    }

    /// What crossed the bridge, sorted; nothing where there is none.
    pub fn bridged(&self) -> Vec<BridgeLine> {
        let lines = self.bridge.lock().unwrap_or_else(|e| e.into_inner());
        let line = |((kind, group, tag, ranks), v): (&Key, &[u64; 4])| BridgeLine {
            kind: kind.to_string(),
            group: group.clone(),
            tag: tag.to_string(),
            ranks: *ranks,
            calls: v[0],
            sent_bytes: v[1],
            received_bytes: v[2],
        };
        lines.iter().map(line).collect()
    }

    /// All lines, sorted.
    pub fn report(&self) -> Vec<CollectiveLine> {
        let lines = self.lines.lock().unwrap_or_else(|e| e.into_inner());
        lines
            .iter()
            .map(|((kind, group, tag, ranks), v)| CollectiveLine {
                kind: kind.to_string(),
                group: group.clone(),
                tag: tag.to_string(),
                ranks: *ranks,
                calls: v[0],
                elements: v[1],
                bytes: v[2],
                wire_elements: v[3],
            })
            .collect()
    }
}

fn add4(v: &mut [u64; 4], d: [u64; 4]) {
    for (a, b) in v.iter_mut().zip(d) {
        *a += b;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peaks_outlive_frees_and_wire_follows_the_ring_formula() {
        let m = MemoryLedger::default();
        m.alloc(Tag::Grad, 100);
        m.alloc(Tag::Param, 50);
        m.free(Tag::Grad, 100);
        let r = m.report(0.0);
        assert_eq!(r.tags["grad"], NowPeak { now: 0, peak: 100 });
        assert_eq!(r.total, NowPeak { now: 50, peak: 150 });
        // What was live then, whatever became of it.
        let held: Vec<(&str, u64)> = r.at_peak.iter().map(|(t, n)| (t.as_str(), *n)).collect();
        assert_eq!(held, [("grad", 100), ("param", 50)]);
        let c = CollectiveLedger::default();
        c.add("all_reduce", "dp", "grad", 4, [1000, 4000, 0]);
        c.add("all_reduce", "dp", "grad", 4, [1000, 4000, 0]);
        let l = &c.report()[0];
        assert_eq!(
            (l.calls, l.elements, l.bytes, l.wire_elements),
            (2, 2000, 8000, 3000)
        );
        // Of pieces of any lengths what a rank keeps is not on the wire.
        let c = CollectiveLedger::default();
        c.add("all_to_all_v", "ep", "tokens", 4, [100, 400, 40]);
        c.add("all_to_all_v", "ep", "tokens", 4, [100, 400, 0]);
        let l = &c.report()[0];
        assert_eq!((l.elements, l.wire_elements), (200, 160));
    }
}
