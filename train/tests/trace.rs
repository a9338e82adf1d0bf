//! Traces: the timeline of a run is whole, says what it is, and is there however the run ends.

use crate::support::{Job, Scratch, same};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// A trace, held against what every trace must be.
struct Trace {
    all: Value,
    events: Vec<Value>,
}

fn number(e: &Value, key: &str) -> f64 {
    e[key].as_f64().unwrap_or_else(|| panic!("{key} of {e}"))
}

impl Trace {
    fn read(s: &Scratch, name: &str) -> Trace {
        let bytes = std::fs::read(s.path(name)).expect("a trace");
        let all: Value = serde_json::from_slice(&bytes).expect("valid JSON");
        let events = all["traceEvents"].as_array().expect("events").clone();
        assert!(!s.path(&format!("{name}.parts")).exists() || all["otherData"]["whole"] == false);
        let t = Trace { all, events };
        t.nests();
        t
    }

    fn of(&self, phase: &str) -> impl Iterator<Item = &Value> {
        self.events.iter().filter(move |e| e["ph"] == phase)
    }

    /// Names of threads by process and thread.
    fn lanes(&self) -> BTreeMap<(u64, u64), String> {
        let named = self.of("M").filter(|e| e["name"] == "thread_name");
        let one = |e: &Value| {
            let name = e["args"]["name"].as_str().expect("a name").to_string();
            ((number(e, "pid") as u64, number(e, "tid") as u64), name)
        };
        named.map(one).collect()
    }

    /// Spans of one lane of one rank, by begin.
    fn spans(&self, rank: u64, lane: &str) -> Vec<&Value> {
        let lanes = self.lanes();
        let on = |e: &&Value| {
            let at = (number(e, "pid") as u64, number(e, "tid") as u64);
            at.0 == rank && lanes.get(&at).is_some_and(|l| l == lane)
        };
        let mut all: Vec<&Value> = self.of("X").filter(on).collect();
        all.sort_by(|a, b| number(a, "ts").total_cmp(&number(b, "ts")));
        all
    }

    /// On every thread a span lies inside another or beside it.
    fn nests(&self) {
        let lanes = self.lanes();
        for ((rank, _), lane) in &lanes {
            let mut open: Vec<(f64, f64)> = vec![];
            let mut spans = self.spans(*rank, lane);
            let end = |e: &Value| number(e, "ts") + number(e, "dur");
            spans.sort_by(|a, b| {
                let begins = number(a, "ts").total_cmp(&number(b, "ts"));
                begins.then(end(b).total_cmp(&end(a)))
            });
            for s in spans {
                let (from, to) = (number(s, "ts"), end(s));
                // Times are of nanoseconds, printed as fractions of microseconds.
                while open.last().is_some_and(|o| o.1 <= from + 0.002) {
                    open.pop();
                }
                let inside = open.last().is_none_or(|o| to <= o.1 + 0.002);
                assert!(inside, "rank {rank}, {lane}: {s} crosses {open:?}");
                open.push((from, to));
            }
        }
    }

    fn ranks(&self) -> BTreeSet<u64> {
        self.of("X").map(|e| number(e, "pid") as u64).collect()
    }

    /// Collectives as (members, call), with the ranks that have them.
    fn collectives(&self) -> BTreeMap<(String, u64), Vec<u64>> {
        let mut all: BTreeMap<(String, u64), Vec<u64>> = BTreeMap::new();
        for e in self.of("X").filter(|e| e["cat"] == "collective") {
            assert!(number(&e["args"], "bytes") > 0.0 || e["name"].as_str() == Some("barrier"));
            let members = e["args"]["members"].as_str().expect("members").to_string();
            let key = (members, number(&e["args"], "call") as u64);
            all.entry(key).or_default().push(number(e, "pid") as u64);
        }
        all
    }
}

/// What every trace of a run that ended well shows.
fn whole(t: &Trace, ranks: u64) {
    assert_eq!(t.ranks(), (0..ranks).collect());
    assert_eq!(t.all["otherData"]["whole"], true);
    assert!(
        t.all["otherData"]["spans"]
            .as_str()
            .is_some_and(|s| s.len() > 100)
    );
    let printed = t.all["otherData"]["ranks"].as_array().expect("ranks");
    for r in printed {
        assert_eq!(
            (&r["ended"], &r["spans_lost"]),
            (&true.into(), &0.into()),
            "{r}"
        );
        assert_eq!(r["device_times"], "events of the device", "{r}");
    }
    // A rank is a process, a stream a thread, the host's among them.
    for rank in 0..ranks {
        let lanes = t.lanes();
        let own: BTreeSet<&str> = lanes
            .iter()
            .filter(|((r, _), _)| *r == rank)
            .map(|(_, l)| l.as_str())
            .collect();
        assert!(
            own.is_superset(&BTreeSet::from(["host", "compute", "reduce"])),
            "{own:?}"
        );
        let compute = t.spans(rank, "compute");
        let has = |what: &str| {
            compute
                .iter()
                .any(|e| e["name"].as_str().is_some_and(|n| n.starts_with(what)))
        };
        assert!(has("F0.0") && has("B0.0") && has("opt0"), "rank {rank}");
        let steps: BTreeSet<u64> = compute
            .iter()
            .map(|e| number(&e["args"], "step") as u64)
            .collect();
        assert_eq!(steps, (1..=8).collect(), "rank {rank}");
    }
    // Every collective is there on every rank, and was in progress everywhere before it ended anywhere.
    let all = t.collectives();
    assert!(all.len() > 16, "{all:?}");
    for (key, mut on) in all {
        on.sort_unstable();
        assert_eq!(on, (0..ranks).collect::<Vec<_>>(), "{key:?}");
        let of = |e: &&Value| {
            e["cat"] == "collective" && e["args"]["members"] == key.0 && e["args"]["call"] == key.1
        };
        let spans: Vec<&Value> = t.of("X").filter(of).collect();
        let reduces = spans
            .iter()
            .all(|e| e["name"].as_str().is_some_and(|n| n.contains("reduce")));
        let last_begin = spans.iter().map(|e| number(e, "ts")).fold(0.0, f64::max);
        let ends = spans.iter().map(|e| number(e, "ts") + number(e, "dur"));
        let first_end = ends.fold(f64::MAX, f64::min);
        // Clocks agree to within what a loaded machine lets two threads see.
        assert!(
            !reduces || last_begin < first_end + 5e5,
            "{key:?}: {spans:?}"
        );
    }
    // Arrows: every number begins once and ends once.
    let numbers = |phase: &str| -> Vec<u64> {
        let mut all: Vec<u64> = t.of(phase).filter_map(|e| e["id"].as_u64()).collect();
        all.sort_unstable();
        all
    };
    let (begin, end) = (numbers("s"), numbers("f"));
    assert!(!begin.is_empty());
    assert_eq!(begin, end);
    assert!(begin.windows(2).all(|w| w[0] != w[1]));
    arrows_reach_their_ends(t);
    // Memory by tag after every step.
    for rank in 0..ranks {
        let counters: Vec<&Value> = t.of("C").filter(|e| e["pid"] == rank).collect();
        assert_eq!(counters.len(), 8);
        assert!(counters.iter().all(|c| number(&c["args"], "param") > 0.0));
    }
}

/// Perfetto's rule for flows: in the order of time an arrow begins at `s`, goes on at each `t` and ends at `f`; a point that comes
/// before its `s`, or lies in no span of its thread, is lost.
fn arrows_reach_their_ends(t: &Trace) {
    let mut points: Vec<&Value> = ["s", "t", "f"].iter().flat_map(|p| t.of(p)).collect();
    points.sort_by(|a, b| number(a, "ts").total_cmp(&number(b, "ts")));
    let mut open = BTreeSet::new();
    let mut kept = 0;
    for p in &points {
        let id = p["id"].as_u64().expect("a number");
        let begins = p["ph"] == "s";
        assert_eq!(begins, !open.contains(&id), "lost: {p}");
        match p["ph"].as_str() {
            Some("f") => open.remove(&id),
            _ => open.insert(id),
        };
        let at = number(p, "ts");
        let inside = t.of("X").any(|e| {
            let from = number(e, "ts");
            (&e["pid"], &e["tid"]) == (&p["pid"], &p["tid"])
                && from <= at
                && at <= from + number(e, "dur")
        });
        assert!(inside, "in no span: {p}");
        kept += 1;
    }
    assert!(
        open.is_empty() && kept == points.len(),
        "without an end: {open:?}"
    );
}

/// Does a collective run while the same rank computes? True of some step on a machine that is not all too busy.
fn overlaps(t: &Trace) -> bool {
    let compute = t.spans(0, "compute");
    let reduce = t.spans(0, "reduce");
    let to = |e: &Value| number(e, "ts") + number(e, "dur");
    reduce.iter().filter(|e| e["cat"] == "collective").any(|r| {
        compute
            .iter()
            .any(|c| number(c, "ts") < to(r) && number(r, "ts") < to(c))
    })
}

/// A run of two ranks whose reductions are of a few parameters each, so that they lie beside the backward.
fn plain(s: &Scratch) -> Job<'_> {
    s.job("config.json").ranks(2).set("run.bucket_mb=0.001")
}

#[test]
fn a_trace_shows_lanes_steps_collectives_of_all_ranks_memory_and_overlap() {
    let s = Scratch::new();
    // On a machine that is very busy a thread may wait for its core through all of a short run.
    let overlap = ["traced", "again", "once-more", "last"].iter().any(|out| {
        plain(&s).trace("t.json").run(out);
        let t = Trace::read(&s, "t.json");
        whole(&t, 2);
        overlaps(&t)
    });
    assert!(overlap, "no reduction ran beside the backward");
    // It changes no bit.
    plain(&s).run("plain");
    same(&s.path("traced"), &s.path("plain"));
}

#[test]
fn sharded_runs_show_their_gathers_on_a_lane_of_their_own() {
    let s = Scratch::new();
    let sharded = plain(&s).set("zero_optimization.stage=3");
    sharded.trace("t.json").run("z");
    let t = Trace::read(&s, "t.json");
    whole(&t, 2);
    for rank in 0..2 {
        let gathers = t.spans(rank, "gather");
        assert!(gathers.iter().any(|e| e["cat"] == "collective"));
    }
}

#[test]
fn a_run_that_fails_leaves_a_valid_trace_up_to_there() {
    let s = Scratch::new();
    let fault = r#"faults=[{"rank": 1, "kind": "error", "step": 4}]"#;
    plain(&s).trace("t.json").set(fault).fails("f");
    let t = Trace::read(&s, "t.json");
    assert_eq!(t.all["otherData"]["whole"], false);
    assert_eq!(t.ranks(), BTreeSet::from([0, 1]));
    let steps: BTreeSet<u64> = t
        .of("X")
        .map(|e| number(&e["args"], "step") as u64)
        .collect();
    assert!(steps.is_superset(&(1..=3).collect()), "{steps:?}");
}

#[test]
fn the_device_of_nothing_is_traced_by_what_the_host_does() {
    let s = Scratch::new();
    let null = s.job("config.json").set("run.backend=\"null\"");
    null.trace("t.json").run("n");
    let t = Trace::read(&s, "t.json");
    let printed = t.all["otherData"]["ranks"][0]["device_times"]
        .as_str()
        .unwrap_or("")
        .to_string();
    let host = t.spans(0, "host");
    assert!(host.iter().any(|e| {
        e["name"]
            .as_str()
            .is_some_and(|n| n.starts_with("enqueue F0.0"))
    }));
    // Either it reports times, and they are spans, or it says that it does not.
    assert!(
        printed.starts_with("none") != t.lanes().values().any(|l| l == "compute"),
        "{printed}"
    );
}

#[test]
fn a_place_where_no_trace_can_be_written_is_refused_before_anything_starts() {
    let s = Scratch::new();
    std::fs::create_dir(s.path("folder")).expect("a folder");
    // Moving a finished file there would take the place of a device. A socket stands for it: nothing of the system is risked here.
    #[cfg(unix)]
    let _pipe = std::os::unix::net::UnixListener::bind(s.path("pipe")).expect("a socket");
    for (place, says) in [
        ("folder", "is a folder"),
        ("nowhere/t.json", "there is no folder "),
        ("config.json", "holds something else"),
        #[cfg(unix)]
        ("pipe", "is no regular file"),
    ] {
        let file = s.path(place);
        let says = format!("--trace {}: {says}", file.display());
        let job = s.job("config.json").trace(place);
        job.refused(&[&says]);
        for absent in ["nowhere", &format!("{place}.parts")] {
            assert!(!s.path(absent).exists(), "{absent}");
        }
    }
}
