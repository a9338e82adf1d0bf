//! What each layer does to a small program, and that it changes nothing else.

use crate::common;
use common::{cpu, host, matmul, program, run, within};
use crossweave_backend_null::Null;
use crossweave_hal::abi::{Layout, op};
use crossweave_hal::{Code, DType, NoDecompose, OpRequest, Plugin, RawPlugin, Tag};
use crossweave_layers::{
    Census, Compare, Fault, Lacks, MoveKind, Record, Recording, Throttle, Trace, Validate, replay,
    wrap,
};
use std::time::{Duration, Instant};

#[test]
fn layers_upon_layers_change_no_bit() {
    let dir = tempfile::tempdir().unwrap();
    let plain = run(cpu(), 1.5).unwrap();
    let mut raw = cpu();
    raw = wrap(raw, &host(), Box::new(Validate::default()));
    raw = wrap(
        raw,
        &host(),
        Box::new(Trace::to(&dir.path().join("t.json")).unwrap()),
    );
    raw = wrap(
        raw,
        &host(),
        Box::new(Record::to(&dir.path().join("r")).unwrap()),
    );
    raw = wrap(raw, &host(), Box::new(Census::default()));
    raw = wrap(raw, &host(), Box::new(Validate::default()));
    assert_eq!((raw.name.as_str(), raw.abi_minor), ("cpu", cpu().abi_minor));
    // The plugin's own graphs would be given the layers' handles.
    assert!(cpu().graph.is_some() && raw.graph.is_none());
    assert!(run(raw, 1.5).unwrap() == plain);
}

#[test]
fn the_census_counts_what_passes() {
    let census = Census::default();
    run(within(census.clone()), 1.0).unwrap();
    let c = census.counts();
    assert_eq!(c.ops.len(), 1);
    assert_eq!((c.ops[0].0.name(), c.ops[0].1), ("matmul", 1));
    assert_eq!(c.ops[0].0.request(), matmul());
    assert_eq!(c.moves[&MoveKind::Fill], (1, 256));
    assert_eq!(c.moves[&MoveKind::OnDevice], (1, 256));
    assert_eq!(
        (c.moves[&MoveKind::ToHost], c.moves[&MoveKind::FromHost]),
        ((1, 256), (1, 256))
    );
    assert!(c.since(&c).ops.is_empty() && c.since(&c).moves.is_empty());
}

#[test]
fn the_nth_call_fails_and_a_lost_device_stays_lost() {
    let of = |text: &str| run(within(Fault::parse(text).unwrap()), 1.0);
    let e = of("launch:matmul:1:internal").unwrap_err();
    assert_eq!(e.code, Code::Internal);
    assert!(
        e.message
            .contains("call 1 of op_launch of matmul fails on purpose"),
        "{e}"
    );
    assert!(of("launch:matmul:2:internal").is_ok() && of("launch:add:1:internal").is_ok());
    let e = of("alloc:1+:oom").unwrap_err();
    assert!(e.code == Code::Oom, "{e}");
    // The pool asks once more with the exact size, so that one refusal is overcome.
    assert!(of("alloc:1:oom").is_ok());
    // On another device only.
    assert!(of("launch:1:internal@1").is_ok());
    let device = Plugin::new(within(Fault::parse("copy:2:device_lost").unwrap()))
        .open(0)
        .unwrap();
    let e = program(&device, 1.0).unwrap_err();
    assert!(e.code == Code::DeviceLost && e.sticky, "{e}");
    let e = device.stream("later", 0).err().unwrap();
    assert!(
        e.code == Code::DeviceLost && e.sticky && e.message.contains("was lost on purpose"),
        "{e}"
    );
}

#[test]
fn throttled_copies_take_their_time_on_the_stream() {
    let plugin = Plugin::new(within(Throttle::parse("copy:1MB/s:5ms").unwrap()));
    let device = plugin.open(0).unwrap();
    let stream = device.stream("s", 0).unwrap();
    let m = device.alloc(&stream, 200_000, Tag::Activation).unwrap();
    stream.sync(None).unwrap();
    let began = Instant::now();
    stream
        .copy(m.region(0, 100_000), m.region(100_000, 100_000))
        .unwrap();
    stream.sync(None).unwrap();
    assert!(began.elapsed() >= Duration::from_millis(105));
}

#[test]
fn a_trace_is_json_after_every_device() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("calls.json");
    let read =
        || -> serde_json::Value { serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap() };
    let raw = within(Trace::to(&path).unwrap());
    assert_eq!(read()["traceEvents"].as_array().map(Vec::len), Some(0));
    let mut before = 0;
    for _ in 0..2 {
        run(raw.clone(), 1.0).unwrap();
        let v = read();
        let events = v["traceEvents"].as_array().unwrap();
        let spans: Vec<_> = events.iter().filter(|e| e["ph"] == "X").collect();
        assert_eq!(v["otherData"]["calls"].as_u64(), Some(spans.len() as u64));
        assert!(spans.len() > before + 10);
        before = spans.len();
        let product = spans
            .iter()
            .find(|e| e["name"] == "matmul" && e["cat"] == "op_launch")
            .unwrap();
        assert_eq!(product["args"]["bytes"], 3 * 256);
        assert!(product["tid"].as_u64() > Some(0) && product["dur"].as_f64() >= Some(0.0));
        assert!(events.iter().any(|e| e["name"] == "thread_name"));
    }
}

#[test]
fn a_recording_replays_and_tells_what_differs() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("calls");
    let raw = within(Record::to(&path).unwrap());
    run(raw.clone(), 1.5).unwrap();
    run(raw, -0.25).unwrap();
    let r = Recording::read(&path, false).unwrap();
    let report = replay(&r, &cpu(), Compare::Bits).unwrap();
    assert_eq!(
        (report.compared, report.differs.len()),
        (2, 0),
        "{report:?}"
    );
    assert_eq!(report.calls["op_launch"], 2);
    // Inside a layer that holds the calls to the contract.
    replay(&r, &within(Validate::default()), Compare::Bits).unwrap();
    // A device that computes nothing.
    let null = RawPlugin::from_static::<Null>(&host()).unwrap();
    let report = replay(&r, &null, Compare::Bits).unwrap();
    assert_eq!(report.differs.len(), 2, "{report:?}");
    assert!(
        report.differs[0].contains("bytes differ, the first at"),
        "{report:?}"
    );
    assert_eq!(
        replay(&r, &null, Compare::Relative(0.1))
            .unwrap()
            .differs
            .len(),
        2
    );
    // One that lacks the op: named with its shapes.
    let e = replay(&r, &within(Lacks::parse("matmul").unwrap()), Compare::Bits).unwrap_err();
    assert!(
        e.contains("op_prepare") && e.contains("matmul(f32[8,8]"),
        "{e}"
    );
    // One that fails where the recorded one did not.
    let e = replay(
        &r,
        &within(Fault::parse("fill:1:internal").unwrap()),
        Compare::Bits,
    )
    .unwrap_err();
    assert!(e.contains("fill") && e.contains("fails on purpose"), "{e}");
}

#[test]
fn a_replay_gives_back_the_workspaces_the_recorded_plugin_did_not_need() {
    let program = |raw: RawPlugin| -> crossweave_hal::Result<u64> {
        let device = Plugin::new(raw).open(0)?;
        let stream = device.stream("s", 0)?;
        let mut most = 0;
        // The second needs more than the first.
        for t in [16u64, 64] {
            let (x, lse) = (
                Layout::contiguous(DType::F32, &[1, t, 2, 8]),
                Layout::contiguous(DType::F32, &[1, 2, t]),
            );
            let params = op::AttentionParams::default();
            let operands = [x, x, x, x, x, x, x, x, lse];
            let request = OpRequest::new(op::ATTENTION_BWD, &operands, params.as_bytes());
            let kernel = device.prepare(&request, &NoDecompose)?;
            let alloc = |l: &Layout| device.alloc(&stream, l.extent_bytes(), Tag::Activation);
            let all: Vec<_> = operands
                .iter()
                .map(alloc)
                .collect::<crossweave_hal::Result<_>>()?;
            for b in &all {
                stream.fill(b.all(), 0, 4)?;
            }
            let spans: Vec<_> = all.iter().map(|b| Some(b.all())).collect();
            for _ in 0..3 {
                stream.launch(&kernel, &spans, &[])?;
            }
            assert!(kernel.explain().workspace >= most);
            most = kernel.explain().workspace;
        }
        stream.sync(None)?;
        Ok(most)
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("calls");
    let null = RawPlugin::from_static::<Null>(&host()).unwrap();
    let raw = wrap(null, &host(), Box::new(Record::to(&path).unwrap()));
    assert_eq!(program(raw).unwrap(), 0, "the null device needs none");
    assert!(program(cpu()).unwrap() > 0, "or this test asks nothing");
    let r = Recording::read(&path, false).unwrap();
    let validated = within(Validate::default());
    let report = replay(&r, &validated, Compare::Bits).unwrap();
    assert_eq!(report.calls["op_launch"], 6);
    // A handle left when the device was closed is reported by the next call.
    let left = Plugin::new(validated).device_count();
    assert!(left.is_ok(), "{}", left.unwrap_err());
}

#[test]
fn what_cannot_be_recorded_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let raw = within(Record::to(&dir.path().join("r")).unwrap());
    let (a, b) = (
        Plugin::new(raw.clone()).open(0).unwrap(),
        Plugin::new(cpu()).open(1).unwrap(),
    );
    let lent = b.alloc_host(64, Tag::Staging).unwrap();
    let e = a.borrow_host(lent).unwrap_err();
    assert!(
        e.code == Code::Unsupported && e.message.contains("record: memory of another device"),
        "{e}"
    );
}

#[test]
fn what_is_hidden_is_refused_before_the_plugin_sees_it() {
    let census = Census::default();
    let raw = wrap(
        within(census.clone()),
        &host(),
        Box::new(Lacks::parse("matmul:f32").unwrap()),
    );
    let device = Plugin::new(raw).open(0).unwrap();
    let e = device.prepare(&matmul(), &NoDecompose).err().unwrap();
    assert!(
        e.code == Code::Unsupported && e.message.contains("hidden by the layer lacks"),
        "{e}"
    );
    assert!(census.counts().ops.is_empty());
}

/// A layer in C that hides the collectives and says what it was given.
const SOURCE: &str = r#"
#include "crossweave_plugin.h"
#include <string.h>
#define TEXT "crossweave-plugin;abi=1.0;interfaces=;name=quiet;vendor=Test"
__attribute__((section(".crossweave"), used)) static const char manifest[] = TEXT;
static cw_plugin inner;
static const void *get(void *self, cw_str id) {
  if (id.len == 23 && !memcmp(id.ptr, "crossweave.collective/1", 23)) return 0;
  return inner.get_interface(self, id);
}
CW_EXPORT cw_status crossweave_layer_v1(const cw_host *host, const cw_plugin *in, cw_plugin *out, cw_error *err) {
  (void)host; (void)err;
  inner = *in;
  out->abi_minor = 7;
  out->name = in->name; out->version = in->version; out->vendor = in->vendor;
  out->self = in->self;
  out->get_interface = get;
  out->shutdown = in->shutdown;
  return CW_OK;
}
"#;

#[test]
fn a_layer_in_c_is_loaded_around_a_plugin() {
    let dir = tempfile::tempdir().unwrap();
    let (source, library) = (dir.path().join("quiet.c"), dir.path().join("libquiet.so"));
    std::fs::write(&source, SOURCE).unwrap();
    let include = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../include");
    let built = std::process::Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-shared", "-fPIC", "-I"])
        .arg(include)
        .arg("-o")
        .args([&library, &source])
        .output();
    let Ok(built) = built else {
        println!("skipped: no C compiler here");
        return;
    };
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    let inner = within(Validate::default());
    let raw = crossweave_hal::loader::load_layer(&library, &host(), &inner).unwrap();
    // The least minor of all sides counts, whatever the layer says of itself.
    assert_eq!((raw.name.as_str(), raw.abi_minor), ("cpu", inner.abi_minor));
    assert!(raw.coll.is_none() && raw.ops.is_some());
    assert!(run(raw, 1.5).unwrap() == run(cpu(), 1.5).unwrap());
    // A plugin is no layer.
    let e = crossweave_hal::loader::load_layer(&source, &host(), &inner)
        .unwrap_err()
        .to_string();
    assert!(e.contains("quiet.c"), "{e}");
}
