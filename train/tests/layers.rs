//! Layers around training: none changes a bit or raises an alarm, and faults end a run with their words.

use crate::support::{Job, Scratch, names, open_json, same};

fn job(s: &Scratch) -> Job<'_> {
    s.job("config.json").steps(3)
}

/// Name, ranks and keys.
const KINDS: [(&str, u32, &[&str]); 4] = [
    ("f32", 1, &["model.recompute=full"]),
    (
        "zero3",
        2,
        &["zero_optimization.stage=3", "bf16.enabled=true"],
    ),
    (
        "fp16",
        2,
        &["fp16.enabled=true", "zero_optimization.stage=2"],
    ),
    (
        "offload",
        1,
        &[
            "zero_optimization.stage=2",
            "zero_optimization.offload_optimizer.device=cpu",
            "activation_checkpointing.cpu_checkpointing=true",
            "model.recompute=full",
        ],
    ),
];

#[test]
fn validated_training_has_no_alarm_and_the_same_bits() {
    let s = Scratch::new();
    for (name, ranks, sets) in KINDS {
        let held = format!("{name}-held");
        let job = job(&s).ranks(ranks).sets(sets);
        job.run(name);
        let calls = s.path("calls.json");
        let trace = format!("trace={}", calls.display());
        job.layer("validate").layer(&trace).run(&held);
        same(&s.path(name), &s.path(&held));
        let trace = open_json(&calls);
        let events = trace["traceEvents"].as_array().expect("events");
        assert!(
            events
                .iter()
                .any(|e| e["name"] == "attention_bwd" && e["cat"] == "op_launch"),
            "{name}"
        );
    }
}

#[test]
fn faults_end_a_run_with_their_words() {
    // A fault of one device: a linked back end has the devices that the first job of a process asks for.
    crossweave_tests::in_own_process!();
    let s = Scratch::new();
    for (fault, parts) in [
        (
            "launch:matmul:10:device_lost",
            &[
                "device lost",
                "call 10 of op_launch of matmul fails on purpose",
            ][..],
        ),
        ("alloc:3+:oom", &["out of memory"][..]),
        (
            "collective:all_reduce:2:comm@1",
            &["call 2 of launch of all_reduce fails on purpose"][..],
        ),
        (
            "prepare:attention_bwd:1:internal",
            &["op_prepare of attention_bwd fails on purpose"][..],
        ),
        // From the second on: a single one may be the wait before free memory is joined, which skips
        // the joining where the wait fails and leaves an error that lasts to the next caller.
        ("sync:2+:internal", &["fails on purpose"][..]),
    ] {
        let layer = format!("fault={fault}");
        let broken = job(&s).ranks(2).layer(&layer);
        names(&broken.fails("broken").0, parts);
        let _ = std::fs::remove_dir_all(s.path("broken"));
    }
    // Slower, and the same.
    job(&s).run("plain");
    let throttle = "throttle=copy:1MB/s:1ms+launch:attention_bwd:100us";
    job(&s).layer(throttle).run("slow");
    same(&s.path("plain"), &s.path("slow"));
}

#[test]
fn words_that_are_none_are_refused_before_anything_runs() {
    let s = Scratch::new();
    for (layer, part) in [
        ("valid", "no layer is called \"valid\"; there are validate"),
        ("validate=all", "takes no words"),
        ("trace", "trace=FILE"),
        ("trace=none/x.json", "none/x.json"),
        ("fault=alloc:0:oom", "from 1"),
        ("throttle=copy", "by how much"),
        ("lacks=matmull", "did you mean matmul"),
        ("./none.so", "none.so"),
    ] {
        job(&s).layer(layer).refused(&[part]);
    }
}
