//! What `config check` passes, `train` begins: every refusal of `train` before its first step is one of `config check`, with its place in the
//! config and what to do about it. Cases that were missed once stand here; others are drawn (`CROSSWEAVE_CHECKED=N` draws N).

use crate::common::Scratch;

/// A config that is sound, and as little as possible.
const SOUND: &str = r#"{
 "model": {"family": "gpt2", "n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 16},
 "data": {"train": "corpus/*.txt"},
 "run": {"steps": 1, "threads_per_rank": 1, "generate": {"tokens": 0}},
 "train_batch_size": 4,
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}
}"#;

fn scratch() -> Scratch {
    let s = Scratch::new();
    s.write("c.json", SOUND);
    s.write("corpus/short.md", "short");
    s
}

fn args<'a>(command: &[&'a str], ranks: &'a str, sets: &[&'a str]) -> Vec<&'a str> {
    let sets = sets.iter().flat_map(|s| ["--set", s]);
    let mut all: Vec<&str> = command.to_vec();
    all.extend(["--ranks", ranks]);
    all.extend(sets);
    all
}

/// What `check` refuses, one fault a line; nothing where it is content.
fn check(s: &Scratch, ranks: &str, sets: &[&str]) -> Vec<String> {
    let out = s.run(&args(&["config", "check", "c.json"], ranks, sets));
    let err = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!err.contains("panicked"), "{sets:?}: {err}");
    match out.status.code() {
        Some(0) => vec![],
        Some(1) => {
            let said = err
                .split_once("error: ")
                .unwrap_or_else(|| panic!("{sets:?}: {err}"));
            said.1.trim_end().lines().map(str::to_string).collect()
        }
        code => panic!("{sets:?}: {code:?} {err}"),
    }
}

/// What `train` says where it refuses before its first step.
fn train(s: &Scratch, ranks: &str, sets: &[&str]) -> Option<String> {
    let out = s.run(&args(&["train", "c.json", "--out", "out"], ranks, sets));
    let err = String::from_utf8_lossy(&out.stderr).into_owned();
    let begun = s.path("out/metrics.jsonl").exists();
    let _ = std::fs::remove_dir_all(s.path("out"));
    let refused = !out.status.success() && !begun;
    refused.then(|| {
        err.split_once("error: ")
            .map_or(err.clone(), |(_, e)| e.into())
    })
}

/// Each fault has a place and a fix.
fn placed(lines: &[String]) {
    for line in lines {
        let place = line.starts_with("c.json:") || line.starts_with("--set ");
        assert!(place && line.contains("; fix: "), "{line}");
    }
}

/// Refused by both, with words of the same fault.
#[track_caller]
fn both(s: &Scratch, ranks: &str, sets: &[&str], part: &str) {
    let checked = check(s, ranks, sets);
    placed(&checked);
    assert!(
        checked.iter().any(|l| l.contains(part)),
        "{sets:?}: {part:?} not in {checked:?}"
    );
    let trained = train(s, ranks, sets).unwrap_or_else(|| panic!("{sets:?}: trains"));
    assert!(
        trained.contains(part),
        "{sets:?}: {part:?} not in {trained}"
    );
}

const OFFLOAD: &str = r#"zero_optimization={"stage": 2, "offload_optimizer": {"device": "cpu"}}"#;

#[test]
fn check_refuses_what_train_refuses() {
    let s = scratch();
    assert!(check(&s, "1", &[]).is_empty());
    assert_eq!(train(&s, "1", &[]), None);
    for kind in ["Muon", "Lamb", "Adafactor", "AdamW8bit"] {
        let optimizer = format!(r#"optimizer={{"type": "{kind}", "params": {{}}}}"#);
        both(&s, "2", &[OFFLOAD, &optimizer], kind);
    }
    both(&s, "8", &["mesh.pp=8"], "mesh.pp: 8 pipeline stages");
    both(
        &s,
        "2",
        &["mesh.pp=2", r#"mesh.pp_layers="1,2""#],
        "mesh.pp_layers: 3 units",
    );
    let groups = |g: &str| format!(r#"optimizer={{"type": "AdamW", "param_groups": [{g}]}}"#);
    both(
        &s,
        "1",
        &[&groups(r#"{"match": "nothing*"}"#)],
        "matches no parameter",
    );
    both(
        &s,
        "1",
        &[&groups(r#"{"match": "*", "frozen": true}"#)],
        "freeze every parameter",
    );
    both(
        &s,
        "1",
        &["data.validation_fraction=0.00001"],
        "cannot fill one sequence",
    );
    both(
        &s,
        "1",
        &["data.train=corpus/short.md"],
        "cannot fill one sequence",
    );
    both(&s, "1", &["run.backend=nope"], "no back end named");
    both(
        &s,
        "1",
        &["data.reset_attention_mask=true", "data.append_eod=false"],
        "ends a document",
    );
    both(
        &s,
        "1",
        &[r#"distill={"teacher": "nowhere"}"#],
        "distill.teacher",
    );
    both(&s, "1", &[r#"model={"hf": "nowhere"}"#], "nowhere");
    both(&s, "1", &["data.train=none.txt"], "none.txt");
    both(&s, "1", &["data.cache_dir=c.json"], "c.json");
    let disk = r#"zero_optimization={"stage": 1, "offload_optimizer": {"device": "nvme", "nvme_path": "c.json/x"}}"#;
    both(&s, "1", &[disk], "c.json");
    let disk = r#"zero_optimization={"stage": 1, "offload_optimizer": {"device": "nvme", "nvme_path": "swap"}}"#;
    both(&s, "1", &[disk, "aio.block_size=5000"], "multiple of 4096");
    both(&s, "1", &["model.vocab_size=10"], "model.vocab_size");
    both(
        &s,
        "1",
        &[
            "checkpoint.trust_key=none.key",
            "checkpoint.sign_key=none.key",
        ],
        "none.key",
    );
}

#[test]
fn faults_of_several_kinds_are_told_at_once() {
    let s = scratch();
    let lines = check(
        &s,
        "1",
        &[
            "run.backend=nope",
            "data.train=none.txt",
            r#"optimizer={"type": "AdamW", "param_groups": [{"match": "nothing*"}]}"#,
            "checkpoint.sign_key=none.key",
        ],
    );
    placed(&lines);
    for part in ["no back end named", "none.txt", "nothing*", "none.key"] {
        assert!(lines.iter().any(|l| l.contains(part)), "{part}: {lines:?}");
    }
    assert_eq!(lines.len(), 4, "{lines:?}");
    // Of a file the place is a line.
    let text = SOUND.replace(
        "\"train_batch_size\": 4",
        "\"mesh\": {\n  \"pp\": 9}, \"train_batch_size\": 9",
    );
    s.write("c.json", text);
    let lines = check(&s, "9", &[]);
    assert!(
        lines[0].starts_with("c.json:6:9: mesh.pp: 9 pipeline stages"),
        "{lines:?}"
    );
}

#[test]
fn check_leaves_nothing_behind() {
    let s = scratch();
    let before: Vec<_> = names(&s);
    assert!(check(&s, "2", &["run.out=out", "run.epochs=1", "run.steps=null"]).is_empty());
    assert_eq!(names(&s), before);
}

fn names(s: &Scratch) -> Vec<std::ffi::OsString> {
    let all = std::fs::read_dir(s.dir.path()).unwrap();
    let mut all: Vec<_> = all.map(|e| e.unwrap().file_name()).collect();
    all.sort();
    all
}

/// Settings of which some are faults, alone or together.
const POOL: &[&str] = &[
    "mesh.pp=2",
    "mesh.pp=3",
    "mesh.pp=5",
    "mesh.tp=2",
    "mesh.tp=4",
    r#"mesh.pp_layers="2,2""#,
    r#"mesh.pp_layers="1,2""#,
    r#"mesh.pp_layers="4""#,
    "zero_optimization.stage=1",
    "zero_optimization.stage=3",
    "zero_optimization.reduce_gradients=micro_batch",
    OFFLOAD,
    r#"zero_optimization={"stage": 3, "offload_param": {"device": "cpu"}}"#,
    r#"zero_optimization={"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}"#,
    r#"zero_optimization={"stage": 2, "offload_optimizer": {"device": "cpu", "delayed_update": true}}"#,
    r#"optimizer={"type": "Muon", "params": {}}"#,
    r#"optimizer={"type": "Adafactor", "params": {}}"#,
    r#"optimizer={"type": "Lion", "params": {"lr": 1e-4}}"#,
    r#"optimizer={"type": "AdamW", "param_groups": [{"match": "*.bias", "frozen": true}]}"#,
    r#"optimizer={"type": "AdamW", "param_groups": [{"match": "transformer.x"}]}"#,
    r#"optimizer={"type": "AdamW", "param_groups": [{"match": "*wte*", "optimizer": {"type": "Muon", "params": {}}}]}"#,
    r#"scheduler={"type": "cosine", "params": {"min_lr": 1}}"#,
    "run.dtype=bf16",
    "run.dtype=f16",
    "data_types.grad_accum_dtype=bf16",
    "run.canonical_shards=4",
    "run.canonical_shards=3",
    "run.balance=\"3,1\"",
    "run.epochs=1e-9",
    "run.graphs=on",
    "data.validation_fraction=0.001",
    "data.validation_fraction=0.5",
    r#"data.split="1,1,0""#,
    "data.cache_dir=c.json",
    r#"zero_optimization={"stage": 1, "offload_optimizer": {"device": "nvme", "nvme_path": "c.json"}}"#,
    "data.seq_len=15",
    "data.seq_len=17",
    "data.reset_position_ids=true",
    "data.eod_token=x",
    "model.n_head=3",
    "model.recompute=selective",
    "activation_checkpointing.cpu_checkpointing=true",
    "train_batch_size=6",
    "train_micro_batch_size_per_gpu=2",
    "gradient_accumulation_steps=2",
    "gradient_allreduce_op=sum",
    "run.out=c.json",
    "run.out=c.json/x",
    "run.out=corpus",
    "faults=[{\"rank\": 3, \"step\": 1, \"kind\": \"delay\", \"ms\": 1}]",
];

#[test]
fn what_check_passes_train_begins() {
    let draws = std::env::var("CROSSWEAVE_CHECKED").ok();
    let draws: u32 = draws.map_or(24, |n| n.parse().expect("a number of draws"));
    let s = scratch();
    let mut state = 38u64;
    let mut draw = |n: usize| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) as usize % n
    };
    let (mut passed, mut refused) = (0, 0);
    for _ in 0..draws {
        let ranks = ["1", "2", "4"][draw(3)];
        let mut sets: Vec<&str> = vec![];
        for _ in 0..1 + draw(3) {
            let set = POOL[draw(POOL.len())];
            let key = |s: &str| s.split('=').next().unwrap_or_default().to_string();
            // A key inside a section that is set as a whole would be laid over it.
            if sets.iter().all(|other| key(other) != key(set)) {
                sets.push(set);
            }
        }
        let faults = check(&s, ranks, &sets);
        placed(&faults);
        if !faults.is_empty() {
            refused += 1;
            continue;
        }
        passed += 1;
        // `--out` stands over run.out.
        if sets.iter().any(|s| s.starts_with("run.out")) {
            continue;
        }
        if let Some(why) = train(&s, ranks, &sets) {
            panic!("check passes --ranks {ranks} {sets:?}, and train refuses: {why}");
        }
    }
    assert!(
        passed > 2 && refused > 2,
        "{passed} passed, {refused} refused"
    );
}

/// The back end is the one that `train` would be given by the same flags.
#[test]
fn a_back_end_of_the_command_line_is_the_one_that_is_checked() {
    let s = scratch();
    let plugin = crate::common::cpu_plugin();
    let plugin = plugin.to_str().unwrap();
    let other = ["config", "check", "c.json", "--set", "run.backend=nonesuch"];
    s.refused(&other, &["run.backend", "nonesuch"], &[]);
    for flags in [&["--backend", "cpu"][..], &["--plugin", plugin]] {
        assert!(
            s.ok(&[&other[..], flags].concat()).contains("ok"),
            "{flags:?}"
        );
    }
    let sound = ["config", "check", "c.json"];
    s.refused(
        &[&sound[..], &["--backend", "nonesuch"]].concat(),
        &["nonesuch", "fix:"],
        &[],
    );
    s.refused(
        &[&sound[..], &["--plugin", "none.so"]].concat(),
        &["none.so", "fix:"],
        &[],
    );
    // What a layer takes away is missing, for `train` as well.
    let lacks = ["--layer", "lacks=matmul:bf16", "--set", "bf16.enabled=true"];
    let checked = s.run(&[&sound[..], &lacks].concat());
    let trained = s.run(&[&["train", "c.json", "--out", "out"][..], &lacks].concat());
    assert_eq!(checked.status.success(), trained.status.success());
}
