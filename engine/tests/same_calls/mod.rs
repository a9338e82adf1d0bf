//! The calls of a step, before and after a change of the code that makes them: on the null device a job's ranks are set
//! up, train three steps and are read, and what each stream was given is compared with what it was given before.
//!
//! A call is its op with layouts, parameters and launch-time numbers, or its collective with its members, and for each
//! operand the buffer and the bytes in it. A buffer's name is the stream that used it first and the number of that use,
//! so that neither the order in which two streams are given their calls nor where a pool puts a block makes a difference.
//!
//! `expected.txt` has a line for each job: calls and a hash for each phase and stream, over all ranks, and the most bytes
//! of each rank where no other thread has a part in that. Where a line
//! differs, the whole listings of two builds show how:
//! `CROSSWEAVE_CALLS=/some/folder cargo test --release -p crossweave-engine --test suite same_calls` writes them, a file
//! a job; `diff -r` compares. `UPDATE_EXPECT=1` rewrites `expected.txt`, for a change that means to make other calls.

pub mod matrix;

use crate::common::*;
use crossweave_engine::{Engine, Links, MicroBatch, RankSpec, StateKind, dry_run};
use crossweave_hal::{CallListing, CheckerState, ListedCall, list_calls};
use matrix::Job;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::path::Path;

/// Streams of the thread that trains come first: buffers are named in their order.
const STREAMS: [&str; 9] = [
    "compute", "gather", "reduce", "peer", "spill", "fetch", "copy_out", "snapshot", "copy_in",
];

/// A phase of one rank: for each stream its calls as text.
type Phase = BTreeMap<(usize, String), Vec<String>>;

/// The calls of a phase by stream, buffers named.
fn by_stream(calls: Vec<(usize, ListedCall)>, any_order: bool) -> Phase {
    type Calls = Vec<(usize, ListedCall)>;
    let mut streams: BTreeMap<(usize, String), Calls> = BTreeMap::new();
    for (device, c) in calls {
        let place = STREAMS.iter().position(|s| *s == c.stream);
        let place = place.unwrap_or(STREAMS.len());
        streams
            .entry((place, c.stream.clone()))
            .or_default()
            .push((device, c));
    }
    let mut names: HashMap<(usize, bool, u64), String> = HashMap::new();
    let mut out = Phase::new();
    for (stream, calls) in streams {
        let mut seen = 0;
        let mut lines = vec![];
        for (device, c) in &calls {
            let mut line = c.what.clone();
            for o in &c.operands {
                let Some(o) = o else {
                    line.push_str(" -");
                    continue;
                };
                let name = match o.host && any_order {
                    true => "pinned",
                    false => names.entry((*device, o.host, o.buffer)).or_insert_with(|| {
                        seen += 1;
                        format!("{}{seen}", stream.1)
                    }),
                };
                let _ = write!(
                    line,
                    " {name}:{}:{}[{}+{}]{}",
                    o.tag.name(),
                    o.size,
                    o.offset,
                    o.bytes,
                    if o.writes { "!" } else { "" }
                );
            }
            lines.push(line);
        }
        out.insert(stream, lines);
    }
    out
}

/// Waits until the host's thread has done what it was given: it answers questions in their order.
fn flush(t: &Engine) {
    if t.spec().offload.is_none() {
        return;
    }
    for s in t.shards() {
        let done: crossweave_engine::Result<()> = t.read_shard(&s, u64::MAX, |_| Ok(()));
        done.unwrap();
    }
    if !t.reads_together() {
        for p in t.params() {
            t.read(&p.name, StateKind::Value).unwrap();
        }
    }
}

struct Phases {
    devices: Vec<CallListing>,
    any_order: bool,
    done: Vec<(&'static str, Phase)>,
}

impl Phases {
    fn begin(&self) {
        self.devices.iter().for_each(CallListing::begin);
    }
    fn end(&mut self, name: &'static str) {
        let mut calls = vec![];
        for (k, d) in self.devices.iter().enumerate() {
            let mut listed = d.end();
            if k > 0 {
                listed
                    .iter_mut()
                    .for_each(|c| c.stream.insert_str(0, "cpu "));
            }
            calls.extend(listed.into_iter().map(|c| (k, c)));
        }
        self.done.push((name, by_stream(calls, self.any_order)));
    }
}

pub fn rank_of(job: &Job, rank: u32) -> RankSpec {
    let s = &job.spec;
    ranked(s, rank)
}

/// What one rank was seen to do.
struct Rank {
    phases: Vec<(&'static str, Phase)>,
    peak: Option<u64>,
}

/// What one rank does from its start to its end.
fn phases(w: &World, job: &Job, rank: u32) -> Rank {
    let s = rank_of(job, rank);
    let units = placed((job.units)(), &s);
    let null = w.null.open(0).unwrap();
    let dry = dry_run(&null, &units, s.compute, s.rows.batch, s.rows.seq_len).unwrap();
    let device = match job.on_cpu {
        true => w.cpu.open(rank).unwrap(),
        // Each rank by itself: the checker is not to find the one before it.
        false => w
            .null
            .with_checker(&CheckerState::default())
            .open(0)
            .unwrap(),
    };
    let devices = w.devices(&device);
    let host = s.offload.is_some().then_some(&devices.host);
    let mut p = Phases {
        devices: [&device].into_iter().chain(host).map(list_calls).collect(),
        any_order: job.pinned_in_any_order,
        done: vec![],
    };
    p.begin();
    let links = Links {
        graphs: job.on_cpu,
        ..w.links(&Nobody)
    };
    let mut t = set_up(devices, units, &s, &dry, links).unwrap();
    t.init().unwrap();
    (job.before)(&mut t);
    flush(&t);
    p.end("start");
    let tokens: Vec<i32> = (0..s.rows.batch * s.rows.seq_len)
        .map(|i| (i * 7 % 11) as i32)
        .collect();
    let batch = |m: u32| MicroBatch {
        tokens: &tokens,
        targets: &tokens,
        lengths: &[],
        images: &[],
        first_sequence: u64::from(m) * s.rows.batch,
    };
    p.begin();
    let each: Vec<_> = (0..s.own_micro_batches()).map(batch).collect();
    for step in 0..3 {
        if s.rows.labelled {
            t.count_targets(5 - step, 7).unwrap();
        }
        t.step(&each, 1e-3).unwrap();
        if step > 0 {
            t.metrics().unwrap();
        }
    }
    t.metrics().unwrap();
    flush(&t);
    p.end("steps");
    let memory = t.ledger().memory;
    let peak = match job.on_cpu {
        // Scratch of kernels follows the processor's vector units.
        true => {
            let tags = memory.tags.iter().filter(|(tag, _)| *tag != "workspace");
            tags.map(|(_, b)| b.peak).sum()
        }
        false => memory.total.peak,
    };
    p.begin();
    outside(&mut t, batch(0));
    flush(&t);
    p.end("outside");
    Rank {
        phases: p.done,
        peak: (!job.pinned_in_any_order).then_some(peak),
    }
}

/// What is asked of a rank between steps.
fn outside(t: &mut Engine, batch: MicroBatch<'_>) {
    t.evaluate(&batch).unwrap();
    let own = t.spec().own_replicas().len();
    t.mean_over_replicas(&vec![1.0; own]).unwrap();
    let mut snapshot = t.snapshot(None).unwrap();
    snapshot.read().unwrap().for_each(drop);
    for (kind, part) in t.wanted() {
        let n = part.of_param.end - part.of_param.start;
        let bytes = vec![0; 4 * n as usize];
        t.load_part(&part.param, kind, part.of_param.start, &bytes)
            .unwrap();
    }
    t.publish().unwrap();
    // The others serve what rank 0 asks for, and on the null device nobody asks.
    if t.spec().place.is_first() || !t.reads_together() {
        t.lead();
        t.logits(&[1, 2, 3], 1, 3).unwrap();
        for p in t.params() {
            // No job of the matrix keeps an average of its weights.
            let kinds = StateKind::ALL.into_iter();
            for kind in kinds.filter(|k| *k != StateKind::Ema) {
                t.read(&p.name, kind).unwrap();
            }
        }
        t.done_reading().unwrap();
    }
    if t.spec().pipeline.is_none() {
        t.loss_and_grads(&batch).unwrap();
    }
}

fn hash(text: &str, mut h: u64) -> u64 {
    for b in text.bytes().chain([b'\n']) {
        h = (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3);
        h ^= h >> 29;
    }
    h
}

/// One line: for each phase and stream the calls of all ranks, and their hash.
fn digest(name: &str, ranks: &[Rank]) -> String {
    let mut line = name.to_string();
    for (k, (phase, _)) in ranks[0].phases.iter().enumerate() {
        let _ = write!(line, " | {phase}");
        let mut streams: BTreeMap<&(usize, String), (usize, u64)> = BTreeMap::new();
        for (rank, r) in ranks.iter().enumerate() {
            for (stream, calls) in &r.phases[k].1 {
                let s = streams.entry(stream).or_insert((0, 0xcbf2_9ce4_8422_2325));
                s.1 = hash(&format!("rank {rank}"), s.1);
                s.1 = calls.iter().fold(s.1, |h, c| hash(c, h));
                s.0 += calls.len();
            }
        }
        for ((_, stream), (n, h)) in streams {
            let _ = write!(line, ", {stream} {n} {:012x}", h & 0xffff_ffff_ffff);
        }
    }
    let peaks: Vec<String> = ranks
        .iter()
        .filter_map(|r| Some(r.peak?.to_string()))
        .collect();
    if !peaks.is_empty() {
        let _ = write!(line, " | peak {}", peaks.join(" "));
    }
    line
}

/// The whole listing of a job, for `diff`.
fn write(folder: &Path, name: &str, ranks: &[Rank]) {
    let mut text = String::new();
    for (rank, r) in ranks.iter().enumerate() {
        for (phase, streams) in &r.phases {
            for ((_, stream), calls) in streams {
                let _ = writeln!(text, "== rank {rank}, {phase}, {stream}");
                calls.iter().for_each(|c| text.extend([c, "\n"]));
            }
        }
    }
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join(format!("{name}.txt")), text).unwrap();
}

#[test]
fn streams_are_given_the_calls_they_were_given_before() {
    let w = world();
    let dir = tempfile::tempdir().unwrap();
    let folder = std::env::var_os("CROSSWEAVE_CALLS");
    let mut lines = vec![];
    for job in matrix::jobs(dir.path()) {
        let ranks: Vec<_> = (0..job_ranks(&job.spec))
            .map(|r| phases(&w, &job, r))
            .collect();
        if let Some(f) = &folder {
            write(Path::new(f), &job.name, &ranks);
        }
        lines.push(digest(&job.name, &ranks));
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/same_calls/expected.txt");
    let now = lines.join("\n") + "\n";
    if std::env::var_os("UPDATE_EXPECT").is_some_and(|v| v == "1") {
        std::fs::write(path, &now).unwrap();
    }
    let before = std::fs::read_to_string(path).unwrap();
    let pairs = before.lines().zip(now.lines());
    let other: Vec<_> = pairs.filter(|(a, b)| a != b).collect();
    let some = other.iter().take(20).map(|(a, b)| format!("- {a}\n+ {b}"));
    let some = some.collect::<Vec<_>>().join("\n");
    assert!(
        before == now,
        "{} of {} jobs make other calls; the head of this file says how to see which:\n{some}",
        other.len(),
        lines.len(),
    );
}
