//! What `--model` and `model.hf` may name: folders of models, runs and checkpoints, and models of the hub cache.

use crate::common::Scratch;
use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize_to_file};
use serde_json::Value;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Puts a copy of a model into a cache, as `hf download` lays it out.
fn cache(s: &Scratch, from: &str, name: &str) {
    let model = s.path("hub").join(name);
    let snapshot = model.join("snapshots").join(COMMIT);
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::create_dir_all(model.join("blobs")).unwrap();
    std::fs::create_dir_all(model.join("refs")).unwrap();
    std::fs::write(model.join("refs/main"), COMMIT).unwrap();
    for (i, e) in std::fs::read_dir(s.path(from))
        .unwrap()
        .flatten()
        .enumerate()
    {
        std::fs::copy(e.path(), model.join(format!("blobs/{i}"))).unwrap();
        let place = snapshot.join(e.file_name());
        #[cfg(unix)]
        std::os::unix::fs::symlink(format!("../../blobs/{i}"), place).unwrap();
        #[cfg(not(unix))]
        std::fs::copy(e.path(), place).unwrap();
    }
}

/// A command with this cache; its output, and whether it ended well.
fn with(s: &Scratch, var: (&str, &str), args: &[&str]) -> (bool, String, String) {
    let mut c = s.command(args);
    for name in [
        "HF_HUB_CACHE",
        "HUGGINGFACE_HUB_CACHE",
        "HF_HOME",
        "XDG_CACHE_HOME",
    ] {
        c.env_remove(name);
    }
    let out = c.env(var.0, s.path(var.1)).output().unwrap();
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    (out.status.success(), text(&out.stdout), text(&out.stderr))
}

#[test]
fn a_model_of_the_hub_cache_is_trained_and_asked_by_its_name() {
    let s = Scratch::new();
    s.ok(&["train", "config.json", "--out", "a", "--steps", "2"]);
    cache(&s, "a/model", "models--org--name");
    let hub = ("HF_HUB_CACHE", "hub");
    let model = r#"model={"hf": "org/name"}"#;
    let train = |out: &str, var, more: &[&str]| {
        let args = [
            "train",
            "config.json",
            "--set",
            "run.steps=1",
            "--set",
            "data.seq_len=16",
            "--out",
            out,
        ];
        with(&s, var, &[&args[..], more].concat())
    };
    let (ok, _, err) = train("b", hub, &["--set", model]);
    assert!(ok, "{err}");
    // The record says which revision it was.
    let record: Value =
        serde_json::from_slice(&std::fs::read(s.path("b/config.json")).unwrap()).unwrap();
    assert_eq!(record["model"]["hf"], format!("org/name@{COMMIT}"));
    let (ok, _, err) = train(
        "b",
        hub,
        &["--set", model, "--resume", "b", "--set", "run.steps=2"],
    );
    assert!(ok, "{err}");
    // The other variables that name the cache.
    std::fs::create_dir_all(s.path("home/.cache/huggingface")).unwrap();
    std::fs::rename(s.path("hub"), s.path("home/.cache/huggingface/hub")).unwrap();
    let generate = [
        "generate",
        "--model",
        "org/name@main",
        "--prompt",
        "the ",
        "--tokens",
        "4",
    ];
    let said = s.ok(&[
        "generate", "--model", "a/model", "--prompt", "the ", "--tokens", "4",
    ]);
    for var in [
        ("HF_HOME", "home/.cache/huggingface"),
        ("XDG_CACHE_HOME", "home/.cache"),
        ("HOME", "home"),
    ] {
        let (ok, text, err) = with(&s, var, &generate);
        assert!(ok && text == said, "{var:?}: {text}{err}");
    }
    // Its tokenizer alone.
    let home = ("HOME", "home");
    let (ok, _, err) = train(
        "c",
        home,
        &["--set", r#"data.tokenizer={"hf": "org/name"}"#],
    );
    assert!(ok, "{err}");
    assert!(s.path("c/model/tokenizer.json").is_file());

    // What is not there is named with the command that brings it, before anything is written.
    for (model, parts) in [
        (
            "org/other",
            &[
                "model.hf",
                "org/other",
                "no such model directory",
                "hf download org/other",
            ][..],
        ),
        (
            "org/name@v9",
            &["no revision v9", "hf download org/name --revision v9"],
        ),
    ] {
        let set = format!("model={{\"hf\": {model:?}}}");
        for args in [
            &["train", "config.json", "--out", "x", "--set", &set][..],
            &["config", "check", "config.json", "--set", &set],
            &["plan", "config.json", "--set", &set],
        ] {
            let (ok, _, err) = with(&s, home, args);
            assert!(!ok && !s.path("x").exists(), "{err}");
            for p in parts {
                assert!(err.contains(p), "{args:?}: {p:?} not in: {err}");
            }
        }
        let (ok, _, err) = with(
            &s,
            home,
            &[
                "config",
                "check",
                "config.json",
                "--no-files",
                "--set",
                &set,
            ],
        );
        assert!(ok, "{err}");
    }
    #[cfg(unix)]
    {
        let blobs = s.path("home/.cache/huggingface/hub/models--org--name/blobs");
        std::fs::remove_dir_all(blobs).unwrap();
        let (ok, _, err) = with(&s, home, &generate);
        assert!(
            !ok && err.contains("nowhere") && err.contains("hf download org/name"),
            "{err}"
        );
        let (ok, _, err) = train(
            "x",
            home,
            &["--set", r#"data.tokenizer={"hf": "org/name"}"#],
        );
        assert!(
            !ok && err.contains("data.tokenizer.hf") && err.contains("nowhere"),
            "{err}"
        );
    }
}

#[test]
fn a_run_is_asked_by_its_folder() {
    let s = Scratch::new();
    s.ok(&["train", "config.json", "--out", "a"]);
    let say = |model: &str| {
        let args = ["--prompt", "the ", "--tokens", "12", "--temperature", "0"];
        s.ok(&[&["generate", "--model", model][..], &args].concat())
    };
    let said = say("a/model");
    assert_eq!(say("a"), said);
    assert_eq!(say("a/checkpoints/step-00000008"), said);
    assert_eq!(say("a/checkpoints"), said);
    // A probe of it has the same figures to the bit.
    let ids: Vec<u8> = (0..24i64)
        .flat_map(|i| (i * 7 % 250).to_le_bytes())
        .collect();
    let view = TensorView::new(Dtype::I64, vec![2, 12], &ids).unwrap();
    serialize_to_file([("input_ids", view)], None, &s.path("in.safetensors")).unwrap();
    let probe = |model: &str, out: &str| {
        s.ok(&[
            "probe",
            "--model",
            model,
            "--inputs",
            "in.safetensors",
            "--out",
            out,
        ]);
        std::fs::read(s.path(out)).unwrap()
    };
    assert!(probe("a", "p1") == probe("a/model", "p2"));
    // The newest checkpoint is taken, also where an older model stands beside it.
    s.ok(&[
        "train",
        "config.json",
        "--out",
        "b",
        "--steps",
        "40",
        "--set",
        "run.generate.tokens=0",
    ]);
    std::fs::remove_dir_all(s.path("b/model")).unwrap();
    std::fs::rename(s.path("a/model"), s.path("b/model")).unwrap();
    assert_ne!(probe("b", "p3"), probe("b/model", "p4"));
    // Without checkpoints it is the exported model, without a model the tokenizer of the config.
    std::fs::remove_dir_all(s.path("b/checkpoints")).unwrap();
    assert_eq!(say("b"), said);
    assert_eq!(say("a"), said);

    let refused = |model: &str, parts: &[&str]| {
        s.refused(&["generate", "--model", model, "--prompt", "a"], parts, &[]);
        let args = [
            "probe",
            "--model",
            model,
            "--inputs",
            "in.safetensors",
            "--out",
            "x",
        ];
        s.refused(&args, parts, &["x"]);
    };
    std::fs::remove_dir_all(s.path("b/model")).unwrap();
    refused("b", &["--model b", "saved nothing yet", "fix:"]);
    refused("corpus", &["corpus", "no config.json", "fix:"]);
    refused("./nowhere", &["nowhere", "no such model directory", "fix:"]);
    refused(
        "nowhere",
        &[
            "--model",
            "nowhere",
            "no such model directory",
            "hf download nowhere",
        ],
    );
    // Damage is named by the file that has it.
    let rank = s.path("a/checkpoints/step-00000008/rank-00000.safetensors");
    let mut bytes = std::fs::read(&rank).unwrap();
    let at = bytes.len() - 40_000;
    bytes[at..].iter_mut().for_each(|b| *b ^= 0x55);
    std::fs::write(&rank, bytes).unwrap();
    refused("a", &["step-00000008", "rank-00000"]);
}
