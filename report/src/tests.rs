//! The report held to what it promises: a page with everything in it, tolerance for a cut last
//! line only, and event files that read back byte by byte.

use std::path::{Path, PathBuf};

use super::facts::Facts;
use super::read::{Bytes, Memory, Run, Validation};
use super::{EventWriter, ReportError, compare, fold, page, tfevents, write_events};
use crate::StepTime;

/// The page of a run's folder.
fn write_page(dir: &Path) -> Result<PathBuf, ReportError> {
    let path = dir.join("report.html");
    super::write_page(&super::read(dir, None)?, &path)?;
    Ok(path)
}

/// A folder of its own that goes away with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("cw-report-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn put(&self, name: &str, text: &str) -> &Folder {
        std::fs::write(self.0.join(name), text).unwrap();
        self
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn metrics(steps: u64) -> String {
    (0..steps)
        .map(|s| {
            let mut line = format!(
                "{{\"step\":{s},\"loss\":{},\"lr\":0.001,\"grad_norm\":1.5,\"tokens\":2048,\"tokens_per_s\":9000.5,\"step_ms\":200}}\n",
                5.0 - s as f64 * 0.01
            );
            if s % 10 == 9 {
                line += &format!("{{\"step\":{s},\"val_loss\":4.5}}\n");
            }
            line
        })
        .collect()
}

const LEDGER: &str = r#"{"ranks": [{"rank": 0,
  "memory": {"device": {"param": {"now": 1000, "peak": 2000}, "grad": {"now": 0, "peak": 1000}, "odd<tag>": {"now": 1, "peak": 5000}},
             "total": {"now": 1000, "peak": 7500}, "fragmentation": 0.125},
  "collectives": [{"kind": "all_reduce", "group": "dp", "tag": "grad", "calls": 3, "elements": 30, "bytes": 120}]}]}"#;

#[test]
fn the_page_holds_everything_and_calls_nowhere() {
    let dir = Folder::new("page");
    dir.put("metrics.jsonl", &metrics(50))
        .put("ledger.json", LEDGER)
        .put(
            "config.json",
            r#"{"run": {"steps": 50}, "model": {"note": "<script>alert(1)</script>"}}"#,
        );
    let path = write_page(&dir.0).unwrap();
    let html = std::fs::read_to_string(path).unwrap();
    for part in [
        "Learning rate",
        "Throughput",
        "Gradient norm",
        "Memory",
        "Traffic",
        "validation",
        "run.steps",
        "all_reduce",
        "7.50 kB",
        "12.5 %",
        "odd&lt;tag&gt;",
        "aria-labelledby",
        "prefers-color-scheme:dark",
        "120 B in 3 calls",
        "vector-effect",
    ] {
        assert!(html.contains(part), "{part} is missing");
    }
    assert!(
        !html.contains("<script>alert"),
        "markup of the config got through"
    );
    for outside in ["http:", "https:", "url(", "@import", "src="] {
        assert!(
            !html.contains(outside),
            "the page refers to something outside: {outside}"
        );
    }
    assert!(!dir.0.join("report.html.partial").exists());
}

#[test]
fn both_forms_of_the_memory_ledger_are_read() {
    let dir = Folder::new("forms");
    dir.put("metrics.jsonl", &metrics(3));
    dir.put("ledger.json", LEDGER);
    let by_home = Run::read(&dir.0).unwrap().memory;
    assert_eq!((by_home.len(), by_home[0].tags.len()), (1, 3));
    let report = r#"{"tags": {"param": {"now": 1000, "peak": 2000}, "grad": {"now": 0, "peak": 1000}, "odd<tag>": {"now": 1, "peak": 5000}},
        "total": {"now": 1000, "peak": 7500}, "reserved": {"now": 8000, "peak": 8000}, "fragmentation": 0.125}"#;
    for memory in [report.to_string(), format!("{{\"device\": {report}}}")] {
        dir.put(
            "ledger.json",
            &format!("{{\"ranks\": [{{\"rank\": 0, \"memory\": {memory}}}]}}"),
        );
        assert_eq!(Run::read(&dir.0).unwrap().memory, by_home);
    }
}

#[test]
fn only_a_cut_last_line_is_forgiven() {
    let dir = Folder::new("cut");
    let whole = metrics(5);
    dir.put("metrics.jsonl", &format!("{whole}{{\"step\":5,\"lo"));
    let run = Run::read(&dir.0).unwrap();
    assert_eq!(run.steps.len(), 5);
    assert!(run.notes[0].contains("line 6"), "{:?}", run.notes);
    dir.put("metrics.jsonl", &format!("{{\"step\":5,\"lo\n{whole}"));
    let e = Run::read(&dir.0).unwrap_err().to_string();
    assert!(e.contains("metrics.jsonl:1: is not a JSON object"), "{e}");
    dir.put("metrics.jsonl", "{\"step\":1,\"loss\":\"high\"}\n");
    let e = Run::read(&dir.0).unwrap_err().to_string();
    assert!(e.contains("\"loss\" is \"high\", not a number"), "{e}");
    dir.put("metrics.jsonl", "");
    assert!(
        Run::read(&dir.0)
            .unwrap_err()
            .to_string()
            .contains("holds no step")
    );
}

#[test]
fn missing_and_damaged_files_are_told_apart() {
    let dir = Folder::new("files");
    let e = write_page(&dir.0).unwrap_err().to_string();
    assert!(
        e.contains("metrics.jsonl") && e.contains("fix: give the output folder"),
        "{e}"
    );
    dir.put("metrics.jsonl", &metrics(3));
    let run = Run::read(&dir.0).unwrap();
    let named = ["ledger.json", "config.json", "run.json"];
    assert_eq!(run.notes.len(), 3, "{:?}", run.notes);
    for (name, note) in named.iter().zip(&run.notes) {
        assert!(note.contains(name), "{note}");
    }
    dir.put("ledger.json", "{\"ranks\": [");
    let e = Run::read(&dir.0).unwrap_err().to_string();
    assert!(e.contains("ledger.json:1: is not JSON"), "{e}");
    dir.put("ledger.json", "{\"rank\": []}");
    let e = Run::read(&dir.0).unwrap_err().to_string();
    assert!(e.contains("has no list \"ranks\""), "{e}");
}

#[test]
fn lost_losses_and_repeated_steps_are_noted() {
    let mut run = Run::default();
    run.metrics("{\"step\":1,\"loss\":null}\n{\"step\":2,\"loss\":2.0}\n{\"step\":2,\"loss\":3.0}\n{\"step\":2,\"val_loss\":1.5}\n")
        .unwrap();
    assert_eq!(run.steps.len(), 2);
    assert_eq!(run.steps[1].loss, Some(3.0));
    assert_eq!(run.validations, [Validation { step: 2, loss: 1.5 }]);
    assert_eq!(run.notes.len(), 2, "{:?}", run.notes);
    assert!(page::render(&run).contains("3"));
}

#[test]
fn a_long_run_stays_a_small_page() {
    let mut run = Run::default();
    run.metrics(&metrics(50_000)).unwrap();
    let size = page::render(&run).len();
    assert!(size < 600_000, "{size} bytes");
}

#[test]
fn ticks_and_labels_are_round() {
    use super::charts::ticks;
    use super::html::{bytes, millis, short};
    assert_eq!(
        ticks(0.0, 1.0, 5),
        [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]
    );
    assert_eq!(ticks(3.0, 3.0, 5), [3.0]);
    assert_eq!(
        [0.0, 0.0005, 0.25, 2.5, 12.34, 1500.0, 2.5e6].map(short),
        ["0", "5e-4", "0.25", "2.5", "12.3", "1.5k", "2.5M"]
    );
    assert_eq!(
        [12, 2048, 5_200_000, 3 << 30].map(bytes),
        ["12 B", "2.05 kB", "5.20 MB", "3.22 GB"]
    );
    assert_eq!(
        [0.5, 12.0, 2500.0].map(millis),
        ["0.50 ms", "12.0 ms", "2.50 s"]
    );
}

#[test]
fn smoothing_has_no_lag_and_skips_holes() {
    use super::charts::smooth;
    let line: Vec<_> = (0..300)
        .map(|i| (f64::from(i), Some(f64::from(i))))
        .collect();
    for (x, y) in smooth(&line) {
        assert!((y.unwrap() - x).abs() < 1e-9);
    }
    let holed = [(0.0, Some(1.0)), (1.0, None), (2.0, Some(3.0))];
    assert_eq!(smooth(&holed), holed);
}

#[test]
fn speed_is_what_was_done_over_the_time_it_took() {
    use super::charts::smooth_speed;
    // 100 tokens a step; every second step takes 1 s, the others 0.01 s: the mean of speeds would be 5 050.
    let steps: Vec<_> = (0..40)
        .map(|i| (f64::from(i), 100.0, if i % 2 == 0 { 1.0 } else { 0.01 }))
        .collect();
    let around = smooth_speed(&steps)[20].1.unwrap();
    assert!((around - 500.0 / 3.02).abs() < 1e-9, "{around}");
    let mut run = Run::default();
    let line = |s: u64, ms: f64| {
        format!(
            "{{\"step\":{s},\"loss\":1.0,\"tokens_per_s\":{},\"step_ms\":{ms}}}\n",
            100.0 / (ms / 1e3)
        )
    };
    run.metrics(&format!(
        "{}{}{}",
        line(1, 9000.0),
        line(2, 1000.0),
        line(3, 10.0)
    ))
    .unwrap();
    let speed = page::speed(&run).unwrap();
    assert!((speed - 200.0 / 1.01).abs() < 1e-6, "{speed}");
}

const RECORD: &str = r#"{"program": "crossweave", "sessions": [
  {"began": 1795480000, "ended": 1795480100, "outcome": "stopped"},
  {"began": 1795489527, "ended": 1795489599, "outcome": "finished", "hosts": ["n<1>", "n2"], "processes": 4, "launcher": "srun", "version": "0.1.0",
   "command": ["crossweave", "train", "my config.json"],
   "devices": [{"named": "cpu", "version": "0.1.0", "devices": ["A <b>chip</b>"], "ranks": 4, "threads": 2}],
   "layout": {"ranks": 4, "data_parallel": 2, "pipeline": 2, "zero_stage": 1, "global_batch": 16, "micro_batch": 2, "accumulation": 4, "seq_len": 1024},
   "model": {"name": "gpt2, 4 blocks", "parameters": 842624, "flops_per_token": 2e6},
   "precision": {"compute": "bf16", "master": "f32", "accumulation": "f32", "wire": "bf16"},
   "set": [{"key": "run.steps", "value": "50", "from": "--set"}, {"key": "model.<i>", "value": "\"<script>alert(2)</script>\"", "from": "line 3"}],
   "planned": [{"ranks": [0, 1], "tags": {"param": 2000, "grad": 1000}, "total": 7500}],
   "peak": {"flops": 4e10, "how": "measured"}}]}"#;

fn time(compute: f64, communication: f64) -> StepTime {
    StepTime {
        steps: 30,
        step_ms: compute + communication + 4.0,
        compute_ms: compute,
        optimizer_ms: 2.0,
        communication_ms: communication,
        exposed_ms: [("dp".into(), communication - 1.0), ("tp".into(), 1.0)].into(),
        input_ms: 0.5,
        other_ms: 1.5,
    }
}

#[test]
fn the_head_says_what_ran_and_markup_in_it_stays_text() {
    let dir = Folder::new("head");
    let time = serde_json::to_string(&time(80.0, 14.0)).unwrap();
    let ledger = LEDGER.replacen(
        "\"rank\": 0,",
        &format!("\"rank\": 0, \"time\": {time},"),
        1,
    );
    dir.put("metrics.jsonl", &metrics(50))
        .put("ledger.json", &ledger)
        .put("run.json", RECORD)
        .put("config.json", r#"{"run": {"steps": 50, "seed": 7}}"#);
    let html = std::fs::read_to_string(write_page(&dir.0).unwrap()).unwrap();
    for part in [
        "2026-11-24 03:05:27 UTC, for 1m12s",
        "2 sessions, the first on 2026-11-24",
        "n&lt;1&gt;, n2; 4 processes by srun",
        "4 ranks on A &lt;b&gt;chip&lt;/b&gt; (cpu 0.1.0, 2 threads each)",
        "crossweave 0.1.0",
        "<code><span class=\"word\">crossweave</span> <span class=\"word\">train</span> <span class=\"word\">&#39;my</span> ",
        "4 ranks = 2 data-parallel x 2 pipeline stages, ZeRO stage 1; batch 16, micro-batches of 2 a rank, 4 accumulated; sequences of 1,024 tokens",
        "842,624 (gpt2, 4 blocks)",
        "bf16 compute, f32 master weights and optimizer, f32 gradients, bf16 gradients between ranks",
        // 9 000.5 tokens/s of 2e6 operations, of 4e10.
        "45.0 %",
        "18.0 GFLOP/s of 40.0 GFLOP/s",
        "40.0 GFLOP/s of all ranks (measured)",
        "the 2 keys that were set",
        "&lt;script&gt;alert(2)&lt;/script&gt;",
        "<summary>All 2 keys with the values in force</summary>",
        "compute 81.6 %",
        "exposed communication 14.3 %",
        "by the axes of its groups: rank 0: dp 13.0 ms, tp 1.00 ms.",
        "rank 0: planned",
        "7.50 kB, as planned",
    ] {
        assert!(html.contains(part), "{part} is missing in {html}");
    }
    assert!(!html.contains("<script>alert") && !html.contains("<b>chip"));
    // What all keys are is folded, what the user set is not.
    let open = html.find("<details open").unwrap();
    assert!(html[open..].starts_with("<details open class=\"set\">"));
    assert_eq!(html.matches("<details open").count(), 1);
    let mut run = super::read(&dir.0, Some(1e10)).unwrap();
    assert!(page::render(&run).contains("given by --peak-tflops"));
    run.facts.peak = None;
    assert!(page::render(&run).contains("give --peak-tflops"));
}

#[test]
fn a_record_of_any_shape_is_harmless() {
    let dir = Folder::new("shapes");
    dir.put("metrics.jsonl", &metrics(30));
    dir.put("ledger.json", LEDGER);
    for record in [
        "{",
        "[]",
        "{}",
        r#"{"sessions": 4}"#,
        r#"{"sessions": [7]}"#,
        r#"{"sessions": [{"began": 18446744073709551615, "ended": 3, "hosts": [1, {}], "command": "x", "devices": [[], {"named": 4}], "set": [3, {"key": {}}],
            "layout": {"ranks": -1}, "model": {"flops_per_token": -2, "parameters": 1e300}, "peak": {"flops": 0}, "planned": [{"ranks": "all", "total": -4}, 3]}]}"#,
        r#"{"sessions": [{"planned": [{"ranks": [0], "tags": {"param": 18446744073709551615}, "total": 0}], "layout": {"ranks": 0},
            "model": {"flops_per_token": 1e308}, "peak": {"flops": 1e-300}, "ended": 1}]}"#,
    ] {
        dir.put("run.json", record);
        let html = std::fs::read_to_string(write_page(&dir.0).unwrap()).unwrap();
        assert!(html.contains("Throughput"), "{record}");
        assert!(!html.contains("width:NaN") && !html.contains("width:inf"));
    }
    // Figures that JSON does not have, written by other programs, and figures beyond any plot.
    dir.put(
        "metrics.jsonl",
        "{\"step\":1,\"loss\":NaN,\"lr\": Infinity}\n{\"step\":2,\"loss\":1e308,\"grad_norm\":-Infinity}\n{\"step\":3,\"loss\":2.5}\n",
    );
    let run = Run::read(&dir.0).unwrap();
    let losses: Vec<_> = run.steps.iter().map(|s| s.loss).collect();
    assert_eq!(losses, [None, None, Some(2.5)]);
    let html = page::render(&run);
    assert!(!html.contains("NaN") && html.contains("2 steps have no finite loss"));
}

#[test]
fn alike_ranks_are_one_and_others_min_median_and_max() {
    let memory = |rank: u64, peak: u64| Memory {
        rank,
        home: "device".into(),
        tags: vec![("param".into(), Bytes { now: 0, peak })],
        total: None,
        fragmentation: None,
    };
    let labels = |all: &[Memory], stages| -> Vec<(String, u64)> {
        let held = fold::memory(all, stages);
        held.iter()
            .map(|h| (h.label.clone(), fold::peak(&h.memory)))
            .collect()
    };
    let alike: Vec<Memory> = (0..64).map(|r| memory(r, 100)).collect();
    assert_eq!(labels(&alike, None), [("ranks 0-63".to_string(), 100)]);
    assert_eq!(
        labels(&alike, Some(32)),
        [
            ("stage 0, ranks 0-31".to_string(), 100),
            ("stage 1, ranks 32-63".to_string(), 100)
        ]
    );
    let apart: Vec<Memory> = (0..9).map(|r| memory(r, 100 + (r * 5) % 9)).collect();
    assert_eq!(
        labels(&apart, None),
        [
            ("min (rank 0)".to_string(), 100),
            ("median (rank 8)".to_string(), 104),
            ("max (rank 7)".to_string(), 108)
        ]
    );
    let two = [memory(0, 1), memory(1, 1), memory(2, 5)];
    assert_eq!(
        labels(&two, None),
        [("ranks 0-1".to_string(), 1), ("rank 2".to_string(), 5)]
    );
    // A rank that computes longer than the others holds them up.
    let mut times: Vec<(u64, StepTime)> = (0..8)
        .map(|r| (r, time(50.0 + r as f64 / 10.0, 50.0)))
        .collect();
    let (rows, straggler) = fold::times(&times);
    let shown: Vec<&str> = rows.iter().map(|r| r.0.as_str()).collect();
    assert_eq!(shown, ["min (rank 0)", "median (rank 3)", "max (rank 7)"]);
    assert!(straggler.unwrap().starts_with("No straggler"));
    times[5].1 = time(98.0, 2.0);
    let straggler = fold::times(&times).1.unwrap();
    assert!(
        straggler.starts_with("Straggler: rank 5 computes 9"),
        "{straggler}"
    );
    assert_eq!(fold::times(&times[..1]).1, None);
}

#[test]
fn a_page_of_many_ranks_is_as_short_as_one_of_four() {
    let page = |ranks: u64| {
        let mut run = Run::default();
        run.metrics(&metrics(5)).unwrap();
        let entry = |r: u64| {
            let t = serde_json::to_string(&time(50.0 + r as f64, 10.0)).unwrap();
            format!(
                r#"{{"rank": {r}, "time": {t}, "memory": {{"tags": {{"param": {{"now": 1, "peak": {}}}}}}},
                "collectives": [{{"kind": "all_reduce", "group": "dp", "tag": "grad", "calls": 3, "elements": 30, "bytes": {}}}]}}"#,
                1000 + r,
                120 + r
            )
        };
        let all: Vec<String> = (0..ranks).map(entry).collect();
        let text = format!("{{\"ranks\": [{}]}}", all.join(","));
        run.ledger(&serde_json::from_str(&text).unwrap()).unwrap();
        page::render(&run)
    };
    let (four, many) = (page(4).len(), page(512).len());
    assert!(
        many < four + 500,
        "{four} bytes for 4 ranks, {many} for 512"
    );
}

#[test]
fn two_runs_are_compared_by_what_differs() {
    let (a, b) = (Folder::new("cmp-a"), Folder::new("cmp-b"));
    let slower = metrics(40).replace("\"step_ms\":200", "\"step_ms\":400");
    a.put("metrics.jsonl", &metrics(50))
        .put("run.json", RECORD)
        .put(
            "config.json",
            r#"{"run": {"steps": 50, "seed": 7}, "x": "<em>", "train_batch_size": 8}"#,
        );
    b.put("metrics.jsonl", &slower.replace("9000.5", "4500.25"))
        .put(
            "config.json",
            r#"{"run": {"steps": 40, "seed": 7}, "x": "</td>", "train_batch_size": 4}"#,
        );
    let read = |f: &Folder| Run::read(&f.0).unwrap();
    let html = compare::render(&read(&a), &read(&b));
    for part in [
        "<td>Steps</td><td class=\"n\">50</td><td class=\"n\">40</td><td class=\"n\">-20.0 %</td>",
        "<td>Tokens/s</td><td class=\"n\">9k</td><td class=\"n\">4.5k</td><td class=\"n\">-50.0 %</td>",
        "<code>run.steps</code></td><td>50</td><td>40</td>",
        "<td>&lt;em&gt;</td><td>&lt;/td&gt;</td>",
        // On a phone it breaks between its words.
        "<code>train_<wbr>batch_<wbr>size</code></td><td>8</td><td>4</td>",
        "keys that differ; 1 are the same",
        "B: There is no run.json",
        "842,624 (gpt2, 4 blocks)",
        "Validation loss",
        "Throughput",
    ] {
        assert!(html.contains(part), "{part} is missing in {html}");
    }
    assert!(!html.contains("run.seed"));
    let same = compare::render(&read(&a), &read(&a));
    assert!(same.contains("The configs are the same.") && same.contains(">the same<"));
    assert_eq!(Facts::of(&serde_json::json!({})).rows, []);
}

/// Reads one TFRecord and checks both of its checksums.
fn record<'a>(bytes: &mut &'a [u8]) -> &'a [u8] {
    let (length, rest) = bytes.split_at(8);
    let n = u64::from_le_bytes(length.try_into().unwrap()) as usize;
    let (sum, rest) = rest.split_at(4);
    assert_eq!(sum, tfevents::masked(length).to_le_bytes());
    let (data, rest) = rest.split_at(n);
    let (sum, rest) = rest.split_at(4);
    assert_eq!(sum, tfevents::masked(data).to_le_bytes());
    *bytes = rest;
    data
}

#[test]
fn events_read_back_byte_by_byte() {
    // Check value of CRC-32C, and TFRecord's mask of it.
    assert_eq!(tfevents::crc32c(b"123456789"), 0xe306_9283);
    assert_eq!(tfevents::masked(b"123456789"), 0xc78a_b0e5);
    let mut out = Vec::new();
    let mut writer = EventWriter::new(&mut out, 1.5).unwrap();
    writer.scalar(300, 2.5, "train/loss", 0.75).unwrap();
    writer.finish().unwrap();
    let mut rest = out.as_slice();
    let mut version = vec![0x09];
    version.extend(1.5f64.to_le_bytes());
    version.extend([0x1a, 13]);
    version.extend(b"brain.Event:2");
    assert_eq!(record(&mut rest), version);
    let mut event = vec![0x09];
    event.extend(2.5f64.to_le_bytes());
    event.extend([0x10, 0xac, 0x02]);
    event.extend([0x2a, 19, 0x0a, 17, 0x0a, 10]);
    event.extend(b"train/loss");
    event.push(0x15);
    event.extend(0.75f32.to_le_bytes());
    assert_eq!(record(&mut rest), event);
    assert!(rest.is_empty());
}

#[test]
fn events_of_a_run_hold_every_scalar() {
    let dir = Folder::new("events");
    dir.put("metrics.jsonl", &metrics(20));
    let path = write_events(&dir.0, 1000.0).unwrap();
    assert!(path.ends_with(Path::new(
        "tensorboard/events.out.tfevents.0000001000.crossweave"
    )));
    let bytes = std::fs::read(path).unwrap();
    let (mut rest, mut count) = (bytes.as_slice(), 0);
    while !rest.is_empty() {
        record(&mut rest);
        count += 1;
    }
    // The version, five scalars a step, two validations.
    assert_eq!(count, 1 + 20 * 5 + 2);
}

#[test]
fn ranks_in_a_row_are_listed_as_one() {
    assert_eq!(super::listed(&[0, 1, 2, 4, 6, 7]), "0-2, 4, 6-7");
}
