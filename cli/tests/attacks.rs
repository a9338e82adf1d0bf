//! Bad input: each case gives one error that names the place and the fix, exit code 1, and leaves nothing behind.

use crate::common;
use common::{Scratch, copy_dir};
use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize_to_file};
use std::path::{Path, PathBuf};

fn oracle(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/oracles")
        .join(name)
}

fn cut(path: &Path, bytes: usize) {
    let all = std::fs::read(path).unwrap();
    std::fs::write(path, &all[..all.len() - bytes]).unwrap();
}

fn ids(path: &Path, name: &str, shape: &[usize], values: &[i64]) {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let view = TensorView::new(Dtype::I64, shape.to_vec(), &bytes).unwrap();
    serialize_to_file([(name, view)], None, path).unwrap();
}

#[test]
fn configs() {
    let s = Scratch::new();
    let text = common::CONFIG;
    s.write(
        "typo.json",
        text.replace("train_batch_size", "train_batchsize"),
    );
    s.refused(
        &["train", "typo.json", "--out", "x"],
        &[
            "typo.json:6:2",
            "train_batchsize",
            "did you mean",
            "train_batch_size",
        ],
        &["x", "runs"],
    );
    s.write("short.json", &text[..text.len() / 2]);
    s.refused(
        &["train", "short.json", "--out", "x"],
        &["short.json:", "fix:"],
        &["x"],
    );
    s.refused(
        &["train", "none.json", "--out", "x"],
        &["none.json", "No such file"],
        &["x"],
    );
    s.refused(
        &["config", "check", "typo.json"],
        &["typo.json:6:2", "did you mean"],
        &[],
    );
    s.refused(
        &["train", "config.json", "--set", "run.stepz=3", "--out", "x"],
        &["--set run.stepz=3", "did you mean", "steps"],
        &["x"],
    );
    s.refused(
        &["train", "config.json", "--set", "run.steps", "--out", "x"],
        &["key.path=value"],
        &["x"],
    );
    for (set, part) in [
        ("zero_optimization.stage=4", "zero_optimization.stage"),
        ("model.attn_pdrop=1.5", "attn_pdrop"),
        ("mesh.tp=3", "mesh.tp"),
    ] {
        s.refused(
            &["train", "config.json", "--set", set, "--out", "x"],
            &[part, "fix:"],
            &["x"],
        );
    }
    assert!(s.ok(&["config", "check", "config.json"]).contains("ok"));
    let schema = s.ok(&["config", "schema"]);
    assert!(
        serde_json::from_str::<serde_json::Value>(&schema)
            .unwrap()
            .is_object()
    );
    assert!(
        s.ok(&["config", "explain", "config.json"])
            .contains("gradient_clipping")
    );
}

#[test]
fn command_lines() {
    let s = Scratch::new();
    for args in [
        &["trian", "config.json"][..],
        &["train", "config.json", "--rank", "2"],
        &["train", "config.json", "--ranks", "0"],
        &["train"],
    ] {
        let out = s.run(args);
        assert_eq!(out.status.code(), Some(2), "{args:?}");
        assert!(!out.stderr.is_empty());
    }
    assert!(s.ok(&["train", "--help"]).contains("Examples:"));
}

#[test]
fn data() {
    let s = Scratch::new();
    let train = |set: &str, parts: &[&str]| {
        s.refused(
            &["train", "config.json", "--set", set, "--out", "x"],
            parts,
            &["x"],
        );
    };
    train(
        "data.train=\"nothing/*.txt\"",
        &["data.train", "nothing/*.txt", "matches no file"],
    );
    s.write("tiny.txt", "abc");
    train("data.train=\"tiny.txt\"", &["tokens cannot fill", "fix:"]);
    s.write("tokenizer.json", "{\"version\": \"1.0\", \"model\": {");
    train(
        r#"data.tokenizer={"file": "tokenizer.json"}"#,
        &["tokenizer.json", "fix:"],
    );
    train(
        r#"data.tokenizer={"file": "absent.json"}"#,
        &["absent.json"],
    );
    s.refused(
        &["train", "config.json", "--ranks", "16", "--out", "x"],
        &["more ranks (16) than sequences (8)"],
        &["x"],
    );
    train("model.vocab_size=100", &["model.vocab_size", "100"]);
    // A dataset of Megatron's, damaged: made here, then cut short.
    let cache = ["--set", "data.cache_dir=good-cache"];
    s.ok(&["train", "config.json", "--out", "good", cache[0], cache[1]]);
    let found = find(&s.path("good-cache"), "idx").expect("a cached index");
    let prefix = found.with_extension("").display().to_string();
    std::fs::copy(&found, s.path("cut.idx")).unwrap();
    std::fs::copy(found.with_extension("bin"), s.path("cut.bin")).unwrap();
    let indexed = |p: &str| format!("data.train={{\"indexed\": \"{p}\"}}");
    let args = [
        "train",
        "config.json",
        "--out",
        "from-index",
        "--set",
        &indexed(&prefix),
        "--set",
        "model.vocab_size=257",
    ];
    s.ok(&args);
    cut(&s.path("cut.idx"), 5);
    train(&indexed("cut"), &["cut.idx", "corrupt at byte", "fix:"]);
    // Given batches: outside the vocabulary, the wrong shape, a wrong key, cut short, too few.
    let file = |name: &str| format!("data={{\"tokens\": \"{name}\", \"key\": \"t\"}}");
    let given = |name: &str, more: &[&str], parts: &[&str]| {
        let data = file(name);
        let base = ["train", "given.json", "--out", "x", "--set", &data];
        s.refused(&[&base[..], more].concat(), parts, &["x"]);
    };
    s.write("given.json", r#"{"model": {"family": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 1, "n_positions": 8, "vocab_size": 20}}"#);
    let good: Vec<i64> = (0..24).map(|i| i % 20).collect();
    ids(&s.path("g.safetensors"), "t", &[2, 3, 4], &good);
    ids(&s.path("v.safetensors"), "t", &[1, 1, 3], &[1, 2, 20]);
    ids(&s.path("r.safetensors"), "t", &[4, 6], &good);
    given(
        "v.safetensors",
        &[],
        &["v.safetensors", "token 20", "vocabulary of 20"],
    );
    given("r.safetensors", &[], &["r.safetensors", "[4, 6]"]);
    given(
        "g.safetensors",
        &["--ranks", "4"],
        &["more ranks (4) than sequences (3)"],
    );
    given("g.safetensors", &["--steps", "5"], &["run.steps", "2"]);
    let end = |id: &'static str| ["--set", "data.reset_attention_mask=true", "--set", id];
    let (beyond, huge) = (end("data.eod_id=20"), end("data.eod_id=5000000000"));
    given(
        "g.safetensors",
        &beyond,
        &["data.eod_id", "20", "ends with 19"],
    );
    given(
        "g.safetensors",
        &huge,
        &["data.eod_id", "5000000000", "fix:"],
    );
    given(
        "g.safetensors",
        &beyond[..2],
        &["data.reset_attention_mask", "data.eod_id"],
    );
    let other = ["--set", "data.key=other"];
    given("g.safetensors", &other, &["data.key", "other", "t"]);
    std::fs::copy(s.path("g.safetensors"), s.path("c.safetensors")).unwrap();
    cut(&s.path("c.safetensors"), 7);
    given("c.safetensors", &[], &["c.safetensors", "fix:"]);
    s.ok(&[
        "train",
        "given.json",
        "--out",
        "fine",
        "--set",
        &file("g.safetensors"),
    ]);
}

/// The first file with an extension, anywhere below.
fn find(dir: &Path, extension: &str) -> Option<PathBuf> {
    let mut all: Vec<PathBuf> = std::fs::read_dir(dir)
        .ok()?
        .flatten()
        .map(|e| e.path())
        .collect();
    all.sort();
    all.iter()
        .find(|p| p.extension().is_some_and(|e| e == extension))
        .cloned()
        .or_else(|| {
            all.iter()
                .filter(|p| p.is_dir())
                .find_map(|d| find(d, extension))
        })
}

#[test]
fn models() {
    let s = Scratch::new();
    let inputs = oracle("gpt2-tied")
        .join("inputs.safetensors")
        .display()
        .to_string();
    let probe = |dir: &str, parts: &[&str]| {
        let args = [
            "probe",
            "--model",
            dir,
            "--inputs",
            &inputs,
            "--out",
            "o.safetensors",
        ];
        s.refused(&args, parts, &["o.safetensors", "o.safetensors.partial"]);
    };
    let fresh = |name: &str| {
        copy_dir(&oracle("gpt2-tied").join("model"), &s.path(name));
        s.path(name)
    };
    probe("absent", &["absent", "fix:"]);
    cut(&fresh("cut").join("model.safetensors"), 9);
    probe("cut", &["cut/model.safetensors", "fix:"]);
    std::fs::write(fresh("json").join("config.json"), "{\"model_type\": ").unwrap();
    probe("json", &["json/config.json", "fix:"]);
    let family = fresh("family").join("config.json");
    let text = std::fs::read_to_string(&family).unwrap();
    std::fs::write(&family, text.replace("\"gpt2\"", "\"mamba\"")).unwrap();
    probe(
        "family",
        &["family/config.json", "mamba", "the nearest that is, gpt2"],
    );
    let shape = fresh("shape").join("config.json");
    std::fs::write(&shape, text.replace("\"n_layer\": 2", "\"n_layer\": 3")).unwrap();
    probe("shape", &["h.2.", "fix:"]);
    std::fs::remove_file(fresh("bare").join("model.safetensors")).unwrap();
    probe("bare", &["model.safetensors", "fix:"]);
    // Shards: one missing.
    copy_dir(
        &oracle("gpt2-bf16-sharded").join("model"),
        &s.path("shards"),
    );
    let gone = std::fs::read_dir(s.path("shards"))
        .unwrap()
        .flatten()
        .map(|e| e.path())
        .find(|p| p.extension().is_some_and(|e| e == "safetensors"))
        .unwrap();
    std::fs::remove_file(&gone).unwrap();
    probe("shards", &[&*gone.file_name().unwrap().to_string_lossy()]);
    // Inputs.
    let model = oracle("gpt2-tied").join("model").display().to_string();
    let input = |name: &str, parts: &[&str]| {
        let args = [
            "probe",
            "--model",
            &model,
            "--inputs",
            name,
            "--out",
            "o.safetensors",
        ];
        s.refused(&args, parts, &["o.safetensors"]);
    };
    ids(
        &s.path("big.safetensors"),
        "input_ids",
        &[1, 3],
        &[1, 2, 96],
    );
    ids(&s.path("flat.safetensors"), "input_ids", &[3], &[1, 2, 3]);
    ids(&s.path("name.safetensors"), "ids", &[1, 3], &[1, 2, 3]);
    ids(
        &s.path("long.safetensors"),
        "input_ids",
        &[1, 4096],
        &[1; 4096],
    );
    input(
        "big.safetensors",
        &["token 96", "row 0, column 2", "vocabulary of 96"],
    );
    input("flat.safetensors", &["[3]", "[B, T]"]);
    input("name.safetensors", &["input_ids"]);
    input("long.safetensors", &["4096", "positions"]);
    input("none.safetensors", &["none.safetensors"]);
    s.refused(
        &["generate", "--model", &model, "--prompt", "a"],
        &["tokenizer.json", "fix:"],
        &[],
    );
}

#[test]
fn back_ends() {
    let s = Scratch::new();
    s.write("not.so", "this is no library");
    s.refused(
        &["train", "config.json", "--plugin", "gone.so", "--out", "x"],
        &["gone.so", "no such file", "fix:"],
        &["x"],
    );
    s.refused(
        &["train", "config.json", "--plugin", "not.so", "--out", "x"],
        &["not.so", "not a complete shared library"],
        &["x"],
    );
    s.refused(
        &["train", "config.json", "--backend", "acme", "--out", "x"],
        // Which plugins lie beside the binary depends on what was built.
        &[
            "\"acme\"",
            "available are ",
            " cpu",
            "null",
            "CROSSWEAVE_PLUGIN_PATH",
        ],
        &["x"],
    );
    std::fs::create_dir(s.path("plugins")).unwrap();
    let name = format!(
        "{}crossweave_broken{}",
        std::env::consts::DLL_PREFIX,
        std::env::consts::DLL_SUFFIX
    );
    std::fs::write(s.path("plugins").join(name), "junk").unwrap();
    let out = s
        .command(&["backends"])
        .env("CROSSWEAVE_PLUGIN_PATH", s.path("plugins"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(
        out.status.success() && text.contains("broken") && text.contains("cannot be used"),
        "{text}"
    );
}

#[test]
fn runs() {
    let s = Scratch::new();
    let wild = [
        "--set",
        "optimizer.params.lr=1e9",
        "--set",
        "gradient_clipping=0",
        "--set",
        "scheduler=null",
    ];
    for ranks in ["1", "2"] {
        let base = ["train", "config.json", "--ranks", ranks, "--out", "wild"];
        let err = s.refused(
            &[&base[..], &wild].concat(),
            &[
                "rank ",
                "step ",
                "loss",
                "NaN",
                "optimizer.params.lr",
                "fix:",
            ],
            &["wild/model"],
        );
        assert!(!err.contains("Aborted"), "{err}");
        std::fs::remove_dir_all(s.path("wild")).unwrap();
    }
    s.ok(&["train", "config.json", "--out", "run"]);
    s.refused(
        &["train", "config.json", "--out", "run"],
        &["run already holds a run", "--resume run"],
        &[],
    );
    s.refused(
        &["train", "config.json", "--resume", "absent"],
        &["absent", "holds no run"],
        &["absent"],
    );
    s.refused(&["report", "absent"], &["absent", "fix:"], &[]);
    s.refused(&["checkpoint", "verify", "absent"], &["absent"], &[]);
    // A damaged newest checkpoint: the one before it is taken, and said so.
    let newest = s.path("run/checkpoints/step-00000008/rank-00000.safetensors");
    cut(&newest, 3);
    s.refused(&["checkpoint", "verify", "run"], &["step-00000008"], &[]);
    let before = common::figures(&s.path("run"));
    let out = s.run(&["train", "config.json", "--resume", "run"]);
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{err}");
    assert!(
        err.contains("checkpoint of step 8 is passed over") && err.contains("from step 6"),
        "{err}"
    );
    assert_eq!(common::figures(&s.path("run")), before);
    // Another text is another run.
    s.write("corpus/a.txt", "completely different text ".repeat(200));
    s.refused(
        &["train", "config.json", "--resume", "run"],
        &["data.train", "corpus"],
        &[],
    );
}

#[cfg(unix)]
#[test]
fn a_reader_that_goes_away_ends_nothing() {
    let s = Scratch::new();
    // The pipe's reader is closed at once.
    for args in [
        &["config", "explain"][..],
        &["train", "config.json", "--out", "run"],
    ] {
        let mut child = s
            .command(args)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        assert!(child.wait().unwrap().success(), "{args:?}");
    }
    assert!(s.path("run/model/model.safetensors").is_file());
}
