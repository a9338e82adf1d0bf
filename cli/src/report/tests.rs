//! The report held to what it promises: a page with everything in it, tolerance for a cut last
//! line only, and event files that read back byte by byte.

use std::path::{Path, PathBuf};

use super::read::{Run, Validation};
use super::{EventWriter, page, tfevents, write_events, write_page};

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
        "7.3 KiB",
        "12.5 %",
        "odd&lt;tag&gt;",
        "aria-labelledby",
        "prefers-color-scheme:dark",
        "120 B in 3 calls",
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
    assert_eq!(run.notes.len(), 2, "{:?}", run.notes);
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
    use super::charts::{bytes, short, ticks};
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
        [12, 2048, 5 << 20, 3 << 30].map(bytes),
        ["12 B", "2.0 KiB", "5.0 MiB", "3.00 GiB"]
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
