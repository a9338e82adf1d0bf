//! What `train` and `config check` print of features that `train/tests` hold to their values: a sentence of the screen for each.

use crate::common::mpi::plugin;
use crate::common::{Scratch, cpu_plugin, losses};
use serde_json::Value;

/// Asserts that every part stands in what was printed.
fn shows(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "{part:?} is not in\n{said}");
    }
}

#[test]
fn a_check_says_what_the_data_amount_to() {
    let s = Scratch::new();
    let check = |more: &[&str]| s.ok(&[&["config", "check", "config.json"][..], more].concat());
    let shards = check(&["--ranks", "3", "--set", "run.canonical_shards=8"]);
    let sequences = "8 sequences = 1 x 1 accumulated x 8 logical shards";
    shows(&shards, &[sequences]);
    let line = |i: usize| format!("{{\"prompt\": \"{i}=\", \"completion\": \"{i}\"}}\n");
    s.write("pairs.jsonl", (0..48).map(line).collect::<String>());
    let pairs = "data={\"train\": \"pairs.jsonl\", \"format\": \"prompt_completion\"}";
    let epochs = [
        "--set",
        "run={\"epochs\": 2, \"threads_per_rank\": 1}",
        "--set",
        pairs,
    ];
    shows(&check(&epochs), &["2 epochs"]);
    // The flag stands in place of the file's length.
    let short = ["train", "config.json", "--steps", "3", "--out", "short"];
    s.ok(&[&short[..], &epochs].concat());
    assert_eq!(losses(&s.path("short")).len(), 3);
    s.write("corpus/b.txt", "other words of another source. ".repeat(9));
    let mixture = "data.train=[{\"files\": \"corpus/a.txt\", \"weight\": 0.75}, {\"files\": \"corpus/b.txt\", \"weight\": 0.25}]";
    shows(&check(&["--set", mixture]), &["75.0 % corpus/a.txt"]);
}

#[test]
fn the_closing_table_says_what_was_replayed_and_what_crossed_the_bridge() {
    let s = Scratch::new();
    let islands = format!("cpu:1,{}:1", cpu_plugin().display());
    let args = ["train", "config.json", "--out", "two", "--ranks", &islands];
    shows(&s.ok(&args), &["bridge"]);
    let train = |out: &str, graphs: &str| {
        let graphs = format!("run.graphs=\"{graphs}\"");
        s.ok(&["train", "config.json", "--out", out, "--set", &graphs])
    };
    let on = train("on", "on");
    shows(
        &on,
        &["forward and backward steps replayed", "launches saved"],
    );
    assert!(!train("off", "off").contains("launches saved"));
}

#[test]
fn cut_layers_are_named_by_train_and_plan() {
    let s = Scratch::new();
    let cut = ["config.json", "--ranks", "2", "--set", "mesh.tp=2"];
    let said = s.ok(&[&["train", "--out", "shown"], &cut[..]].concat());
    shows(&said, &["each layer and the vocabulary over 2 ranks"]);
    s.ok(&["report", "shown"]);
    let plan = |more: &[&str]| s.ok(&[&["plan"], &cut[..], more].concat());
    let parts = [
        "    layers",
        "    table",
        "    head",
        "    loss",
        "    gradients",
    ];
    shows(&plan(&[]), &["the ranks of mesh.tp have a part each"]);
    shows(&plan(&["--set", "data.seq_len=16"]), &parts);
    let off = "note: mesh.sequence_parallel is off";
    assert!(!plan(&["--set", "data.seq_len=16"]).contains(off));
    shows(&plan(&["--set", "data.seq_len=15"]), &[off]);
    // A teacher's vocabulary is cut with the student's.
    let teacher = ["--set", "distill={\"teacher\": \"shown/model\"}"];
    shows(
        &plan(&teacher),
        &[
            "the ranks of mesh.tp have a part each",
            off,
            "a teacher reads whole rows",
        ],
    );
}

/// The timeline of a plan is drawn as its file is called, and never over something else.
#[test]
fn a_schedule_is_drawn_as_its_file_is_called() {
    let s = Scratch::new();
    let two = ["plan", "config.json", "--ranks", "2", "--set", "mesh.pp=2"];
    let plan = |more: &[&'static str]| [&two[..], more].concat();
    shows(
        &s.ok(&two),
        &["schedules of these units", "1f1b (chosen)", "zb-h1"],
    );
    for (file, begins) in [
        ("a.svg", "<svg"),
        ("a.json", "{\"displayTimeUnit\""),
        ("a.txt", "1f1b: 2 stages"),
    ] {
        // A picture takes the place of the one before.
        for _ in 0..2 {
            shows(&s.ok(&plan(&["--schedule", file])), &[file]);
        }
        let text = std::fs::read_to_string(s.path(file)).expect("a picture");
        assert!(text.starts_with(begins), "{text}");
    }
    let shown = s.ok(&plan(&["--schedule", "-", "--costs", "even"]));
    shows(&shown, &["stage 0  FF", "stage 1  .F", "units, idle"]);
    s.refused(
        &plan(&["--schedule", "a.png"]),
        &["--schedule a.png", ".svg"],
        &["a.png"],
    );
    s.write("b.svg", "mine");
    s.refused(
        &plan(&["--schedule", "b.svg"]),
        &["b.svg", "holds something else"],
        &[],
    );
    let none = plan(&["--schedule", "-", "--costs", "nowhere"]);
    s.refused(&none, &["nowhere/metrics.jsonl"], &[]);
}

/// On a processor no time is given, and the page says why.
#[test]
fn an_estimate_without_a_known_speed_says_so() {
    let s = Scratch::new();
    let page = s.ok(&["estimate", "config.json", "--ranks", "2", "--time"]);
    shows(&page, &["speed is not known"]);
    assert!(!page.contains(" TFLOP/s each"), "{page}");
}

/// A key of a model's config that no class reads is one line of a check.
#[test]
fn a_check_names_keys_that_no_class_reads() {
    let s = Scratch::new();
    s.ok(&["train", "config.json", "--out", "run", "--steps", "1"]);
    let config = s.path("run/model/config.json");
    let text = std::fs::read_to_string(&config).expect("a config");
    let more = text.replacen('{', "{\"key_of_nobody\": 7,", 1);
    std::fs::write(&config, more).expect("a config");
    let model = "model={\"hf\": \"run/model\"}";
    let sets = ["--set", model, "--set", "data.seq_len=16"];
    let said = s.ok(&[&["config", "check", "config.json"][..], &sets].concat());
    shows(&said, &["key_of_nobody"]);
}

#[test]
fn the_verbs_of_checkpoints_do_what_the_library_does() {
    let s = Scratch::new();
    let checkpoint = |args: &[&str]| s.ok(&[&["checkpoint"], args].concat());
    let begun = ["train", "config.json", "--ranks", "2", "--steps", "3"];
    s.ok(&[&begun[..], &["--out", "begun"]].concat());
    let cut = ["reshard", "begun", "cut", "--ranks", "4", "--stage", "3"];
    let said = checkpoint(&[&cut[..], &["--json"]].concat());
    let said: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(
        (&said["step"], &said["from"]["ranks"], &said["to"]["ranks"]),
        (&3.into(), &2.into(), &4.into())
    );
    s.ok(&["train", "config.json", "--ranks", "4", "--resume", "cut"]);
    checkpoint(&["export", "begun", "--out", "half", "--dtype", "bf16"]);
    shows(&checkpoint(&["inspect", "half"]), &["BF16"]);
    let merge = ["checkpoint", "export", "begun", "--out", "x", "--merge"];
    s.refused(&merge, &["--merge", "holds no adapters"], &["x"]);
    checkpoint(&["keygen", "team.key"]);
    checkpoint(&["sign", "begun", "--key", "team.key"]);
    let signed = checkpoint(&["verify", "begun", "--key", "team.key.pub"]);
    shows(&signed, &["step 3, signed"]);
    let rank = s.path("begun/checkpoints/step-00000003/rank-00000.safetensors");
    std::fs::write(rank, b"nothing").expect("a file");
    s.refused(&["checkpoint", "verify", "begun"], &["DAMAGED"], &[]);
    let found = s.run(&["checkpoint", "verify", "begun", "--json"]);
    let report: Value = serde_json::from_slice(&found.stdout).expect("JSON");
    assert_eq!(
        (found.status.code(), &report["ok"]),
        (Some(1), &false.into())
    );
}

#[test]
fn a_plugin_that_computes_nothing_is_refused_with_its_ranks() {
    plugin();
    let s = Scratch::new();
    let args = ["train", "config.json", "--ranks", "cpu:1,mpi:1"];
    s.refused(
        &args,
        &["ranks 1 (mpi)", "the plugin provides no ops"],
        &["runs"],
    );
}
