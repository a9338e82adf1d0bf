//! `--trace FILE`: the run as a timeline in Chrome's JSON, which Perfetto and chrome://tracing open.
//!
//! Each rank writes its events to a part of its own as the run goes, a line each, so that memory stays small and what was written
//! survives a failure. At the end, however it comes, the parts are put together: a rank is a process of the timeline, a stream a thread.

use crate::flows::Flows;
use crate::outputs;
use crate::train_error::{Result, TrainError};
use crossweave_claim::Claim;
use crossweave_engine::Engine;
use crossweave_files::TEXT;
use crossweave_hal::Device;
use crossweave_hal::trace::{CollectiveWork, Span, Tracer, Work};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Events a rank writes; what comes later is counted and dropped, so that a long run does not fill a disk.
const MOST: u64 = 1_000_000;
/// Meetings by which the clocks of machines are held against each other.
const MEETINGS: usize = 16;
/// What a span is, for who reads the file.
const MEANING: &str = "On a stream: from when its first call could start, behind what that call waited for on other streams, to when its \
                       last call was passed, by the device's events. Plan steps are named as by `crossweave plan --print`: F unit.micro-batch \
                       forward, R recompute, B backward, ar and rs reductions of gradients, ag gathers, opt updates. On the lane host: time the \
                       host spent. Arrows join the spans of one collective, or of a message, across ranks. Counters: bytes requested on \
                       the device by tag, after each step.";

/// Where the trace of a job goes, and when it began.
pub struct TraceSpec {
    out: PathBuf,
    origin: Instant,
    /// The same moment by the wall clock, in microseconds.
    unix_us: f64,
    /// The claim of the process that writes the timeline: another job's parts would be mixed with these.
    claim: Option<Claim>,
}

impl TraceSpec {
    /// A trace to `out`; `first`: this process speaks for the job, and clears what an earlier run left.
    ///
    /// # Errors
    /// A folder that is not there or cannot be written to; what would be lost if a trace took its place; another job that writes to `out`.
    pub fn new(out: &Path, first: bool) -> Result<TraceSpec> {
        // The config too begins otherwise.
        outputs::check("--trace", out, outputs::TIMELINE)?;
        let unix = SystemTime::now().duration_since(UNIX_EPOCH);
        let spec = TraceSpec {
            out: out.to_path_buf(),
            origin: Instant::now(),
            unix_us: unix.unwrap_or_default().as_nanos() as f64 / 1e3,
            claim: match first {
                true => Some(Claim::beside(out, "crossweave train --trace")?),
                false => None,
            },
        };
        let parts = spec.parts();
        if first {
            clear(&parts)?;
            std::fs::create_dir(&parts).map_err(TrainError::io("create", &parts))?;
        }
        Ok(spec)
    }

    /// See [`Claim::release`].
    pub fn release(&self) {
        if let Some(claim) = &self.claim {
            claim.release();
        }
    }

    fn parts(&self) -> PathBuf {
        let mut name = self.out.clone().into_os_string();
        name.push(".parts");
        name.into()
    }

    fn part(&self, rank: u32) -> PathBuf {
        self.parts().join(format!("rank{rank}.jsonl"))
    }

    /// Puts the parts of `ranks` ranks together. `whole`: every rank has ended well, and the parts are not needed any more.
    ///
    /// # Errors
    /// A file that cannot be read or written.
    pub fn merge(&self, ranks: u32, whole: bool) -> Result<()> {
        let mut part = self.out.clone().into_os_string();
        // Several processes may do this after a failure; the last one has the most to tell.
        part.push(format!(".{}.part", std::process::id()));
        let part = PathBuf::from(part);
        let io = TrainError::io("write", &part);
        let written = File::create(&part).and_then(|f| self.write(BufWriter::new(f), ranks, whole));
        let placed = written.and_then(|()| std::fs::rename(&part, &self.out));
        if placed.is_err() {
            let _ = std::fs::remove_file(&part);
        }
        placed.map_err(io)?;
        if whole {
            let parts = self.parts();
            clear(&parts)?;
        }
        Ok(())
    }

    fn write(&self, mut to: impl Write, ranks: u32, whole: bool) -> std::io::Result<()> {
        let heads: Vec<Option<Value>> = (0..ranks).map(|r| head(&self.part(r))).collect();
        let shifts = shifts(&heads);
        let mut flows = Flows::default();
        for rank in (0..ranks as usize).filter(|r| heads[*r].is_some()) {
            events(&self.part(rank as u32), |event| {
                let ts = event.get("ts").and_then(Value::as_f64).unwrap_or(0.0);
                flows.note(&event, ts + shifts[rank].0);
                Ok(())
            })?;
        }
        flows.sort();
        write!(to, "{{\"displayTimeUnit\":\"ms\",\n\"traceEvents\":[\n")?;
        let mut told = vec![];
        let mut first = true;
        for (rank, head) in heads.iter().enumerate() {
            let Some(head) = head else {
                told.push(json!({"rank": rank, "missing": "it has written nothing"}));
                continue;
            };
            let mut facts = head.clone();
            if let Some(f) = facts.as_object_mut() {
                f.remove("meetings");
                f.insert("shift_us".into(), json!(shifts[rank].0));
                f.insert("clock".into(), json!(shifts[rank].1));
                f.insert("ended".into(), json!(false));
            }
            events(&self.part(rank as u32), |mut event| {
                if let Some(end) = event.get("end").and_then(Value::as_object) {
                    if let Some(f) = facts.as_object_mut() {
                        f.insert("ended".into(), json!(true));
                        f.extend(end.clone());
                    }
                    return Ok(());
                }
                if let Some(ts) = event.get("ts").and_then(Value::as_f64) {
                    event["ts"] = json!(ts + shifts[rank].0);
                }
                if flows.place(&mut event) {
                    let comma = if first { "" } else { ",\n" };
                    first = false;
                    write!(to, "{comma}{event}")?;
                }
                Ok(())
            })?;
            told.push(facts);
        }
        let other =
            json!({"program": "crossweave", "whole": whole, "spans": MEANING, "ranks": told});
        write!(to, "\n],\n\"otherData\":{other}}}\n")?;
        to.flush()
    }
}

/// Takes away the parts of a run before, and nothing else.
fn clear(parts: &Path) -> Result<()> {
    let Ok(entries) = std::fs::read_dir(parts) else {
        return Ok(());
    };
    let io = |e| TrainError::io("clear", parts)(e);
    for e in entries {
        let e = e.map_err(io)?;
        let name = e.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("rank") && name.ends_with(".jsonl") {
            std::fs::remove_file(e.path()).map_err(io)?;
        }
    }
    // Refused while there is something in it that is not ours.
    std::fs::remove_dir(parts).map_err(io)
}

/// Gives each event of a part to `eat`.
fn events(part: &Path, mut eat: impl FnMut(Value) -> std::io::Result<()>) -> std::io::Result<()> {
    let lines = BufReader::new(crossweave_files::open(part)?.0).lines();
    for line in lines.skip(1) {
        // The last line of a rank that was killed may be half of one.
        if let Ok(event) = line.and_then(|l| Ok(serde_json::from_str::<Value>(&l)?)) {
            eat(event)?;
        }
    }
    Ok(())
}

/// The first line of a part.
fn head(part: &Path) -> Option<Value> {
    let mut line = String::new();
    BufReader::new(crossweave_files::open(part).ok()?.0)
        .read_line(&mut line)
        .ok()?;
    serde_json::from_str(&line).ok()
}

/// What to add to each rank's times so that they mean the same moments as rank 0's, and how it was found.
fn shifts(heads: &[Option<Value>]) -> Vec<(f64, String)> {
    let zero = heads.iter().flatten().next();
    let number = |h: &Value, key: &str| h.get(key).and_then(Value::as_f64);
    let text = |h: &Value, key: &str| h.get(key).and_then(Value::as_str).map(str::to_string);
    let list = |h: &Value| -> Vec<f64> {
        let all = h.get("meetings").and_then(Value::as_array);
        all.into_iter()
            .flatten()
            .filter_map(Value::as_f64)
            .collect()
    };
    let one = |h: &Option<Value>| {
        let (Some(h), Some(zero)) = (h, zero) else {
            return (0.0, String::new());
        };
        let (a, b) = (list(zero), list(h));
        if text(zero, "clock_id") == text(h, "clock_id") {
            let began = |h| number(h, "unix_us").unwrap_or(0.0);
            return (began(h) - began(zero), "one clock with rank 0".into());
        }
        let mut between: Vec<f64> = a.iter().zip(&b).map(|(a, b)| a - b).collect();
        between.sort_by(f64::total_cmp);
        match between.get(between.len() / 2) {
            Some(middle) => {
                let apart = between[between.len() - 1] - between[0];
                let how = format!(
                    "by {} meetings with rank 0, {apart:.0} us apart",
                    between.len()
                );
                (*middle, how)
            }
            None => (0.0, "unknown: the ranks never met".into()),
        }
    };
    heads.iter().map(one).collect()
}

/// One rank's part.
pub struct RankTrace {
    tracer: Tracer,
    to: BufWriter<File>,
    path: PathBuf,
    rank: u32,
    /// Threads of the timeline, by lane.
    lanes: BTreeMap<String, u64>,
    events: u64,
    dropped: u64,
    /// Why nothing more is written.
    broken: Option<std::io::Error>,
    device: Device,
}

impl RankTrace {
    /// Begins the part of rank `rank`, which back end `backend` computes, and has `engine` tell what it does. `apart`: the job has other
    /// processes, whose clocks are held against this one's by meetings of all ranks.
    ///
    /// # Errors
    /// A file that cannot be written; a device without events.
    pub fn begin(
        spec: &TraceSpec,
        (rank, backend): (u32, &str),
        apart: bool,
        engine: &mut Engine,
    ) -> Result<RankTrace> {
        let device = engine.device().clone();
        let tracer = Tracer::new(&device, spec.origin)?;
        engine.timeline(tracer.clone());
        let mut meetings = vec![];
        if apart {
            for _ in 0..MEETINGS {
                engine.mean(0.0)?;
                meetings.push(tracer.now().as_nanos() as f64 / 1e3);
            }
        }
        let read =
            |path: &str| crossweave_files::read_text(path.as_ref(), TEXT).unwrap_or_default();
        let path = spec.part(rank);
        let file = File::create(&path).map_err(TrainError::io("create", &path))?;
        let mut trace = RankTrace {
            to: BufWriter::new(file),
            path,
            rank,
            lanes: BTreeMap::new(),
            events: 0,
            dropped: 0,
            broken: None,
            device,
            tracer,
        };
        let times = match trace.tracer.device_times() {
            true => "events of the device",
            false => {
                "none: the device does not tell the time between events; only the lane host has spans"
            }
        };
        trace.line(&json!({
            "rank": rank,
            "host": read("/proc/sys/kernel/hostname").trim(),
            "clock_id": read("/proc/sys/kernel/random/boot_id").trim(),
            "unix_us": spec.unix_us,
            "backend": backend,
            "device_times": times,
            "device_clock_uncertainty_us": trace.tracer.uncertainty().as_nanos() as f64 / 1e3,
            "meetings": meetings,
        }));
        let name = format!("rank {rank}");
        trace
            .line(&json!({"ph": "M", "pid": rank, "name": "process_name", "args": {"name": name}}));
        trace.line(&json!({"ph": "M", "pid": rank, "name": "process_sort_index", "args": {"sort_index": rank}}));
        // Above the streams, also where it is the only one.
        trace.lane("host");
        Ok(trace)
    }

    /// What collects the spans.
    pub fn tracer(&self) -> &Tracer {
        &self.tracer
    }

    /// Time since the origin, for [`RankTrace::host`].
    pub fn now(&self) -> Duration {
        self.tracer.now()
    }

    /// The host has done `name` since `from`.
    pub fn host(&self, name: &str, from: Duration) {
        self.tracer.host(name, from, self.tracer.now());
    }

    /// Writes what has ended by now, and the memory of this moment; gives the spans it wrote.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&mut self) -> Result<Vec<Span>> {
        let spans = self.take();
        let at = micros(self.tracer.now());
        let memory = self.device.memory();
        let tags: serde_json::Map<String, Value> = memory
            .tags
            .iter()
            .map(|(tag, n)| (tag.clone(), json!(n.now)))
            .collect();
        self.event(
            &json!({"ph": "C", "pid": self.rank, "name": "device memory", "ts": at, "args": tags}),
        );
        match self.broken.take() {
            Some(e) => Err(TrainError::io("write", &self.path)(e)),
            None => Ok(spans),
        }
    }

    fn take(&mut self) -> Vec<Span> {
        let spans = self.tracer.drain();
        for span in &spans {
            self.span(span);
        }
        spans
    }

    fn span(&mut self, s: &Span) {
        let tid = self.lane(&s.lane);
        let (from, to) = (micros(s.from), micros(s.to));
        let dur = (to - from).max(0.001);
        let mut event = json!({"ph": "X", "pid": self.rank, "tid": tid, "ts": from, "dur": dur, "name": s.name, "args": {"step": s.step}});
        event["cat"] = json!(match &s.work {
            Work::Step => "plan",
            Work::Collective(_) => "collective",
            Work::Host => "host",
        });
        if let Work::Collective(c) = &s.work {
            event["args"]["group"] = json!(c.group);
            event["args"]["members"] = json!(c.scope);
            event["args"]["bytes"] = json!(c.bytes);
            event["args"]["call"] = json!(c.call);
            event["args"]["rank_in_group"] = json!(format!("{} of {}", c.rank, c.size));
        }
        self.event(&event);
        if let Work::Collective(c) = &s.work {
            for (phase, id) in arrows(c) {
                let last = to.max(from + dur) - dur / 1e3;
                let ts = if phase == "s" { from } else { last };
                self.event(&json!({"ph": phase, "bp": "e", "cat": "flow", "name": c.group, "id": id, "pid": self.rank, "tid": tid, "ts": ts}));
            }
        }
    }

    /// The thread of a lane, named when it is new.
    fn lane(&mut self, name: &str) -> u64 {
        if let Some(tid) = self.lanes.get(name) {
            return *tid;
        }
        let tid = self.lanes.len() as u64 + 1;
        self.lanes.insert(name.into(), tid);
        let rank = self.rank;
        self.line(&json!({"ph": "M", "pid": rank, "tid": tid, "name": "thread_name", "args": {"name": name}}));
        self.line(&json!({"ph": "M", "pid": rank, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}));
        tid
    }

    fn event(&mut self, e: &Value) {
        if self.events >= MOST {
            self.dropped += 1;
            return;
        }
        self.events += 1;
        self.line(e);
    }

    fn line(&mut self, e: &Value) {
        if self.broken.is_none() {
            self.broken = writeln!(self.to, "{e}").err();
        }
    }
}

impl Drop for RankTrace {
    /// However the run ends, what is known is written.
    fn drop(&mut self) {
        self.take();
        let (lost, dropped) = (self.tracer.lost(), self.dropped);
        self.line(&json!({"end": {"spans_lost": lost, "events_dropped": dropped}}));
        // A part that cannot be finished is read up to where it breaks off.
        let _ = self.to.flush();
    }
}

fn micros(d: Duration) -> f64 {
    d.as_nanos() as f64 / 1e3
}

/// The arrows a collective's span takes part in: phase and number. Each rank names its own end, and equal numbers meet.
fn arrows(c: &CollectiveWork) -> Vec<(&'static str, u64)> {
    let number = |parts: (&str, u64, u32, u32)| {
        let mut h = DefaultHasher::new();
        (&c.scope, parts).hash(&mut h);
        // What every reader of JSON can hold.
        h.finish() >> 12
    };
    if !c.messages.is_empty() {
        let one = |m: &crossweave_hal::trace::Message| {
            let (from, to) = match m.sends {
                true => (c.rank, m.peer),
                false => (m.peer, c.rank),
            };
            let phase = if m.sends { "s" } else { "f" };
            (phase, number(("message", m.index, from, to)))
        };
        return c.messages.iter().map(one).collect();
    }
    if c.size < 2 {
        return vec![];
    }
    // From the root, where there is one, through the others in their order.
    let from = c.root.unwrap_or(0);
    let place = (c.rank + c.size - from % c.size) % c.size;
    let phase = match place {
        0 => "s",
        p if p + 1 == c.size => "f",
        _ => "t",
    };
    vec![(phase, number(("call", c.call, 0, 0)))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_of_machines_are_brought_together_by_their_meetings() {
        let head = |clock: &str, unix: f64, meetings: &[f64]| {
            Some(json!({"clock_id": clock, "unix_us": unix, "meetings": meetings}))
        };
        let heads = [
            head("a", 1000.0, &[10.0, 20.0, 30.0]),
            head("a", 1500.0, &[]),
            // Its wall clock is hours off, and one meeting was slow.
            head("b", 9e12, &[110.0, 120.0, 190.0]),
            None,
        ];
        let s = shifts(&heads);
        assert_eq!(s[0].0, 0.0);
        assert_eq!(s[1].0, 500.0);
        assert_eq!(s[2].0, -100.0, "{}", s[2].1);
        assert_eq!(s[3].0, 0.0);
    }

    #[test]
    fn the_ends_of_an_arrow_have_one_number() {
        let work =
            |rank: u32, call: u64, messages: Vec<crossweave_hal::trace::Message>| CollectiveWork {
                group: "dp".into(),
                scope: "dp.0".into(),
                call,
                bytes: 4,
                rank,
                size: 3,
                root: None,
                messages,
            };
        let all: Vec<_> = (0..3).flat_map(|r| arrows(&work(r, 7, vec![]))).collect();
        assert_eq!(all.iter().map(|a| a.0).collect::<String>(), "stf");
        assert!(all.iter().all(|a| a.1 == all[0].1));
        assert_ne!(arrows(&work(0, 8, vec![]))[0].1, all[0].1);
        let end = |rank, sends, peer| {
            arrows(&work(
                rank,
                rank.into(),
                vec![crossweave_hal::trace::Message {
                    sends,
                    peer,
                    index: 4,
                }],
            ))
        };
        let (from, to) = (end(0, true, 2), end(2, false, 0));
        assert_eq!((from[0].0, to[0].0), ("s", "f"));
        assert_eq!(from[0].1, to[0].1);
    }
}
