//! `new-plugin` as a new vendor meets it: a project in C and one in Rust, each built with one command and trained on: fused ops by the core's
//! decompositions, ranks through pinned memory, to the CPU's loss curve.

use crate::common;
use common::{Scratch, losses};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Two families, small; both have every fused op of theirs, clipping and AdamW.
const MODELS: [(&str, &str); 2] = [
    (
        "gpt2",
        r#"{"family": "gpt2", "n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 16, "resid_pdrop": 0.1}"#,
    ),
    (
        "llama",
        r#"{"family": "llama", "num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2,
            "intermediate_size": 32, "max_position_embeddings": 16}"#,
    ),
];

/// Builds what `new-plugin` has made, with the one command that it prints; `None` (with a printed reason) only where the tool is missing.
pub fn build(s: &Scratch, lang: &str) -> Option<PathBuf> {
    let dir = format!("acme_{lang}");
    s.ok(&["new-plugin", &dir, "--lang", lang]);
    let library = format!(
        "{}crossweave_{dir}{}",
        std::env::consts::DLL_PREFIX,
        std::env::consts::DLL_SUFFIX
    );
    let (mut command, at) = match lang {
        "c" => (Command::new("make"), PathBuf::from(&library)),
        _ => {
            let mut c = Command::new(env!("CARGO"));
            // Nothing of another's: no registry, no flags or folder of the build that runs this test.
            c.args(["build", "--release", "--offline"])
                .env_remove("CARGO_TARGET_DIR")
                .env_remove("RUSTFLAGS")
                .env_remove("RUSTC_BOOTSTRAP");
            (c, Path::new("target/release").join(&library))
        }
    };
    match command.current_dir(s.path(&dir)).output() {
        Err(e) => {
            let why = format!("{lang}: {e} (apt-get install make gcc libc6-dev)");
            crossweave_tests::tools::missing("build", &why);
            None
        }
        Ok(out) => {
            let said = String::from_utf8_lossy(&out.stderr);
            assert!(out.status.success(), "{lang}: {said}");
            assert!(!said.contains("warning"), "{lang}: {said}");
            Some(s.path(&dir).join(at))
        }
    }
}

fn train(s: &Scratch, model: &str, ranks: &str, out: &str, sets: &[&str]) -> Vec<f64> {
    let mut args = vec!["train", model, "--ranks", ranks, "--out", out];
    args.extend(sets.iter().flat_map(|set| ["--set", *set]));
    s.ok(&args);
    losses(&s.path(out))
}

fn close(what: &str, cpu: &[f64], theirs: &[f64], bound: f64) {
    assert_eq!(cpu.len(), theirs.len(), "{what}");
    for (step, (a, b)) in cpu.iter().zip(theirs).enumerate() {
        assert!(
            (a - b).abs() <= bound * a.abs(),
            "{what}, step {}: the cpu has {a}, the plugin {b}",
            step + 1
        );
    }
}

/// What the project's own CI does: it builds, runs the kit, and compares with a scorecard where one is committed.
fn continuous(s: &Scratch, lang: &str) {
    let dir = s.path(&format!("acme_{lang}"));
    let programs = [env!("CARGO_BIN_EXE_crossweave"), env!("CARGO")];
    let given = std::env::var_os("PATH").unwrap_or_default();
    let ours = programs.iter().filter_map(|p| Path::new(p).parent());
    let path = ours
        .map(Path::to_path_buf)
        .chain(std::env::split_paths(&given));
    let path = std::env::join_paths(path).expect("a path");
    let conform = |more: &[&str]| {
        let out = Command::new("sh")
            .arg("ci/conform")
            .args(more)
            .current_dir(&dir)
            .env("PATH", &path)
            .env_remove("CARGO_TARGET_DIR")
            .env_remove("RUSTFLAGS")
            .env_remove("RUSTC_BOOTSTRAP")
            .output()
            .expect("a shell");
        let said = [&out.stdout[..], &out.stderr].concat();
        (
            out.status.success(),
            String::from_utf8_lossy(&said).into_owned(),
        )
    };
    let (well, said) = conform(&["--quick"]);
    assert!(well, "{lang}: {said}");
    // A scorecard that held more than today's fails it.
    let card = std::fs::read_to_string(dir.join("out.json")).expect("a report");
    let mut card: serde_json::Value = serde_json::from_str(&card).expect("json");
    let cells = card["cells"].as_array_mut().expect("cells");
    let lost = cells.iter_mut().find(|c| {
        c["result"] == "refused" && c["id"].as_str().is_some_and(|i| i.starts_with("op.cast."))
    });
    let lost = lost.expect("a cast that is not claimed");
    lost["result"] = "pass".into();
    let id = lost["id"].as_str().expect("an id").to_string();
    std::fs::write(dir.join("scorecard.json"), card.to_string()).expect("a scorecard");
    let (well, said) = conform(&["--quick", "--only", &id]);
    assert!(!well && said.contains(&id), "{lang}: {said}");
    std::fs::remove_file(dir.join("scorecard.json")).expect("removed");
}

fn follows_the_cpu(lang: &str) {
    let s = Scratch::new();
    let Some(plugin) = build(&s, lang) else {
        return;
    };
    let plugin = plugin.display().to_string();
    continuous(&s, lang);
    let runs = std::cell::Cell::new(0);
    for (name, model) in MODELS {
        let config = format!("{name}.json");
        s.write(
            &config,
            format!(
                r#"{{"model": {model}, "data": {{"train": "corpus/*.txt", "cache_dir": "cache"}}, "run": {{"steps": 20, "threads_per_rank": 1}},
                 "train_batch_size": 4, "gradient_clipping": 1.0,
                 "optimizer": {{"type": "AdamW", "params": {{"lr": 1e-2, "weight_decay": 0.1}}}}}}"#
            ),
        );
        let run = |ranks: &str, sets: &[&str]| {
            runs.set(runs.get() + 1);
            train(&s, &config, ranks, &format!("run-{}", runs.get()), sets)
        };
        let stage = "zero_optimization.stage=3";
        let cpu = run("cpu:1", &[]);
        assert!(cpu[19] < cpu[0], "{name}: nothing was learnt: {cpu:?}");
        close(name, &cpu, &run(&format!("{plugin}:1"), &[]), 1e-4);
        let two = format!("{plugin}:2");
        // Dropout and the batch are functions of the position, so the number of ranks changes rounding alone.
        close(name, &cpu, &run(&two, &[]), 1e-4);
        close(name, &cpu, &run(&two, &[stage]), 1e-4);
        // A job of the plugin and the cpu.
        close(name, &cpu, &run(&format!("cpu:1,{plugin}:1"), &[]), 1e-4);
        if name == "gpt2" {
            let bf16 = "run.dtype=bf16";
            let cpu = run("cpu:1", &[bf16]);
            // A value of 16 bits that is rounded the other way is 2^-8 away; the loss is a mean over many.
            close("bf16", &cpu, &run(&format!("{plugin}:1"), &[bf16]), 2e-3);
        }
    }
}

#[test]
fn a_new_c_plugin_builds_and_trains_to_the_cpus_curve() {
    follows_the_cpu("c");
}

#[test]
fn a_new_rust_plugin_builds_and_trains_to_the_cpus_curve() {
    follows_the_cpu("rust");
}

#[test]
fn what_cannot_be_created_is_refused_and_leaves_nothing() {
    let s = Scratch::new();
    let before = listing(s.dir.path());
    for (args, parts) in [
        (
            &["Acme", "--lang", "c"][..],
            &["\"Acme\"", "small letter"][..],
        ),
        (&["a/b", "--lang", "c"], &["\"a/b\""]),
        (
            &["cpu", "--lang", "rust"],
            &["a back end named cpu already"],
        ),
        (
            &["device", "--lang", "rust"],
            &["\"device\"", "word of the project"],
        ),
        (
            &["acme", "--lang", "c", "--out", "corpus"],
            &["corpus exists"],
        ),
        (
            &["acme", "--lang", "c", "--out", "no/where"],
            &["is no folder"],
        ),
        (&["acme", "--lang", "c", "--out", ".."], &["exists"]),
        (
            &["acme", "--lang", "c", "--out", "config.json/acme"],
            &["is no folder"],
        ),
    ] {
        let all: Vec<&str> = ["new-plugin"].iter().chain(args).copied().collect();
        s.refused(&all, parts, &[]);
    }
    assert_eq!(listing(s.dir.path()), before);
    // A name twice: the first project stays as it is.
    s.ok(&["new-plugin", "acme", "--lang", "c"]);
    let first = listing(&s.path("acme"));
    s.refused(
        &["new-plugin", "acme", "--lang", "rust"],
        &["acme exists"],
        &[],
    );
    assert_eq!(listing(&s.path("acme")), first);
    // Nothing of the example's name is left.
    for file in ["Makefile", "README.md", "src/device.c", "src/plugin.h"] {
        let text = std::fs::read_to_string(s.path("acme").join(file)).expect(file);
        assert!(!text.to_lowercase().contains("softdev"), "{file}");
    }
}

fn listing(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .expect("a folder")
        .map(|e| {
            e.expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    names.sort();
    names
}

#[test]
fn the_c_example_stays_one_evenings_reading() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/c-plugin");
    let files = [
        "src/plugin.h",
        "src/device.c",
        "src/ops.c",
        "src/fused.c",
        "src/collectives.c",
        "Makefile",
    ];
    let lines: usize = files
        .iter()
        .map(|f| {
            std::fs::read_to_string(root.join(f))
                .expect(f)
                .lines()
                .count()
        })
        .sum();
    assert!(
        lines < 1400,
        "{lines} lines: a vendor reads all of it first"
    );
}
