//! Files that are no files, that never end, or that are far too large: each one short error, and nothing waited for.
#![cfg(unix)]

use crate::common::{self, Scratch};
use crossweave_tests::system::within;
use std::time::Duration;

/// What is refused unread takes a hundredth of a second, and what is waited for or read to its end never comes back.
const HUNG: Duration = Duration::from_secs(120);

/// As [`Scratch::refused`], in few words; a command that hangs is killed.
fn refused(s: &Scratch, args: &[&str], parts: &[&str]) -> String {
    let out = within(HUNG, &mut s.command(args));
    let err = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{args:?}: {err:.2000}");
    assert!(err.len() < 12_000, "{args:?}: {} bytes", err.len());
    assert!(err.contains("fix:"), "{args:?}: {err}");
    for p in parts {
        assert!(err.contains(p), "{args:?}: {p:?} not in: {err}");
    }
    assert!(!err.contains("this is a bug"), "{args:?}: {err}");
    assert!(!s.path("x").exists(), "{args:?} left a folder");
    err
}

fn fifo(s: &Scratch, name: &str) {
    crossweave_tests::system::pipe(&s.path(name));
}

fn sparse(s: &Scratch, name: &str, bytes: u64) {
    let f = std::fs::File::create(s.path(name)).expect("a file");
    f.set_len(bytes).expect("a hole");
}

#[test]
fn pipes_and_devices_are_refused_unopened() {
    let s = Scratch::new();
    for name in ["pipe", "corpus/p.txt", "pipe.safetensors", "i.idx", "p.so"] {
        fifo(&s, name);
    }
    s.write("i.bin", "");
    let pipe = "a pipe, not a regular file";
    refused(&s, &["config", "check", "pipe"], &["pipe", pipe]);
    refused(&s, &["train", "pipe", "--out", "x"], &[pipe]);
    refused(&s, &["config", "check", "/dev/zero"], &["a device"]);
    refused(&s, &["config", "check", "corpus"], &["a folder"]);
    let train = |set: &str, parts: &[&str]| {
        let args = ["train", "config.json", "--out", "x", "--set", set];
        refused(&s, &args, parts);
    };
    train("run.steps=1", &["corpus/p.txt", pipe]);
    std::fs::remove_file(s.path("corpus/p.txt")).unwrap();
    train("data.train=\"/dev/zero\"", &["/dev/zero", "a device"]);
    train(r#"data.train={"indexed": "i"}"#, &["i.idx", pipe]);
    train(r#"data.tokenizer={"file": "pipe"}"#, &["pipe", pipe]);
    train(
        r#"data.tokenizer={"file": "/dev/zero"}"#,
        &["/dev/zero", "a device"],
    );
    train(
        r#"data={"tokens": "pipe.safetensors", "key": "t"}"#,
        &["pipe.safetensors", pipe],
    );
    refused(
        &s,
        &["train", "config.json", "--plugin", "p.so", "--out", "x"],
        &["p.so", pipe],
    );
    // A model folder whose weights, or whose config, are a pipe.
    std::fs::create_dir(s.path("m")).unwrap();
    fifo(&s, "m/config.json");
    let model = r#"model={"hf": "m"}"#;
    train(model, &["m/config.json", pipe]);
    std::fs::remove_file(s.path("m/config.json")).unwrap();
    s.write("m/config.json", r#"{"model_type": "gpt2"}"#);
    fifo(&s, "m/model.safetensors");
    train(model, &["m/model.safetensors", pipe]);
    // A rank's file of a checkpoint.
    s.ok(&["train", "config.json", "--out", "run", "--steps", "1"]);
    let rank = "run/checkpoints/step-00000001/rank-00000.safetensors";
    std::fs::remove_file(s.path(rank)).unwrap();
    fifo(&s, rank);
    refused(&s, &["checkpoint", "verify", "run"], &["rank-00000", pipe]);
    refused(
        &s,
        &["train", "config.json", "--resume", "run"],
        &["rank-00000", pipe],
    );
}

#[test]
fn sizes_are_bounded_before_anything_is_read() {
    let s = Scratch::new();
    sparse(&s, "huge.json", 1 << 40);
    let large = "it has 1.10 TB";
    refused(&s, &["config", "check", "huge.json"], &[large]);
    let train = |set: &str, parts: &[&str]| {
        let args = ["train", "config.json", "--out", "x", "--set", set];
        refused(&s, &args, parts);
    };
    train(
        r#"data.tokenizer={"file": "huge.json"}"#,
        &["huge.json", large],
    );
    let text = common::CONFIG.trim_end().strip_suffix('}').unwrap();
    let key = format!("{text}, \"{}\": 1}}", "k".repeat(5 << 20));
    s.write("key.json", key);
    refused(&s, &["config", "check", "key.json"], &["key.json"]);
    let glob = text.replace("corpus/*.txt", &"a*".repeat(10 << 20)) + "}";
    s.write("glob.json", glob);
    refused(&s, &["train", "glob.json", "--out", "x"], &["glob.json"]);
    // Within the limit of a config, and longer than any path.
    let glob = text.replace("corpus/*.txt", &"a*".repeat(200_000)) + "}";
    s.write("glob.json", glob);
    refused(
        &s,
        &["train", "glob.json", "--out", "x"],
        &["data.train", "longest path"],
    );
    let keys: String = (0..100_000).map(|i| format!(",\"k{i}\":0")).collect();
    s.write("keys.json", format!("{text}{keys}}}"));
    refused(&s, &["config", "check", "keys.json"], &["keys.json"]);
    let keys: String = (0..60_000).map(|i| format!(",\"k{i}\":0")).collect();
    s.write("keys.json", format!("{text}{keys}}}"));
    let err = refused(&s, &["config", "check", "keys.json"], &["59980 more"]);
    assert!(err.lines().count() < 30, "{err}");
}

#[test]
fn a_header_of_600_000_tensors_is_one_short_error() {
    let s = Scratch::new();
    let entries: Vec<String> = (0..600_000)
        .map(|i| format!("\"t{i}\":{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}"))
        .collect();
    let header = format!("{{{}}}", entries.join(","));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    s.write("t.safetensors", bytes);
    refused(
        &s,
        &["checkpoint", "inspect", "t.safetensors"],
        &["t.safetensors", "more than 100000 tensors"],
    );
    refused(
        &s,
        &[
            "train",
            "config.json",
            "--out",
            "x",
            "--set",
            r#"data={"tokens": "t.safetensors", "key": "t"}"#,
        ],
        &["t.safetensors", "600000 tensors"],
    );
}

#[test]
fn a_tokenizer_its_library_gives_up_on_is_named() {
    let s = Scratch::new();
    let none = "null";
    for (name, normalizer, splitter) in [
        (
            "length.json",
            none,
            r#"{"type": "FixedLength", "length": 0}"#,
        ),
        (
            "map.json",
            r#"{"type": "Precompiled", "precompiled_charsmap": "AAAA"}"#,
            none,
        ),
    ] {
        let text = format!(
            "{{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[],\"normalizer\":{normalizer},\
             \"pre_tokenizer\":{splitter},\"post_processor\":null,\"decoder\":null,\"model\":{{\"type\":\"BPE\",\"dropout\":null,\
             \"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":false,\
             \"byte_fallback\":false,\"vocab\":{{\"a\":0,\"b\":1}},\"merges\":[]}}}}"
        );
        s.write(name, text);
        let set = format!("data.tokenizer={{\"file\": \"{name}\"}}");
        let args = ["train", "config.json", "--out", "x", "--set", &set];
        let err = refused(&s, &args, &[name, "the tokenizer library gave up"]);
        assert_eq!(err.trim_end().lines().count(), 1, "{err}");
    }
}

#[test]
fn config_check_opens_what_the_config_names() {
    let s = Scratch::new();
    let check = |set: &str| ["config", "check", "config.json", "--set", set].map(String::from);
    s.ok(&["config", "check", "config.json"]);
    s.ok(&["train", "config.json", "--out", "run", "--steps", "1"]);
    let refused = |set: &str, parts: &[&str]| {
        let args = check(set);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        s.refused(&args, parts, &[]);
        s.ok(&[&args[..], &["--no-files"]].concat());
    };
    s.ok(&[
        "config",
        "check",
        "config.json",
        "--set",
        "model={\"hf\": \"run/model\"}",
    ]);
    // Weights of another shape than the model's own config says.
    let config = s.path("run/model/config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let wider = text.replace("\"n_embd\": 16", "\"n_embd\": 32");
    assert_ne!(text, wider);
    std::fs::write(&config, wider).unwrap();
    refused(
        r#"model={"hf": "run/model"}"#,
        &["run/model", "wrong shape", "fix:"],
    );
    std::fs::remove_file(s.path("run/model/model.safetensors")).unwrap();
    refused(
        r#"model={"hf": "run/model"}"#,
        &["model.safetensors", "fix:"],
    );
    refused("data.train=\"none/*.txt\"", &["data.train", "none/*.txt"]);
    refused(
        r#"data.tokenizer={"file": "none.json"}"#,
        &["none.json", "fix:"],
    );
    s.write("i.idx", "MMIDIDX");
    s.write("i.bin", "");
    refused(r#"data.train={"indexed": "i"}"#, &["i.idx", "fix:"]);
    refused("checkpoint.sign_key=\"none.key\"", &["none.key", "fix:"]);
}

#[test]
fn options_of_plugins_memory_and_swap_folders_are_refused_by_their_keys() {
    let s = Scratch::new();
    let with = |options: &str, args: &[&str], parts: &[&str]| {
        let base = ["train", "config.json", "--out", "x"];
        let mut c = s.command(&[&base[..], args].concat());
        let out = c
            .env("CROSSWEAVE_PLUGIN_OPTIONS", options)
            .output()
            .unwrap();
        let err = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(1), "{options}: {err}");
        assert!(!err.contains("internal error"), "{err}");
        for p in [parts, &["fix:"]].concat() {
            assert!(err.contains(p), "{options}: {p:?} not in: {err}");
        }
        let _ = std::fs::remove_dir_all(s.path("x"));
    };
    with(
        "cpu.smd=auto",
        &[],
        &["cpu has no key \"cpu.smd\"", "cpu.simd"],
    );
    with("cpu.simd", &[], &["is not key=value"]);
    with("gpuu.x=1", &[], &["CROSSWEAVE_PLUGIN_OPTIONS", "gpuu"]);
    with(
        "cpu.memory_bytes=70000",
        &[],
        &[
            "the budget is 70.00 kB",
            "cpu.memory_bytes",
            "train_micro_batch_size_per_gpu",
        ],
    );
    s.write("file", "");
    let nvme = "zero_optimization={\"stage\": 1, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"file\"}}";
    with(
        "",
        &["--set", nvme],
        &[
            "zero_optimization.offload_optimizer.nvme_path",
            "cannot make the folder",
        ],
    );
}
