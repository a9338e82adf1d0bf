//! Offload through the command line: the same run wherever its state rests, killed and resumed with state in files, and what cannot be.

use crate::common;
use common::{Scratch, same};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Arguments of a run at a stage with further settings.
fn train<'a>(out: &'a str, sets: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec![
        "train",
        "config.json",
        "--ranks",
        "2",
        "--steps",
        "6",
        "--out",
        out,
    ];
    for s in sets {
        args.extend(["--set", s]);
    }
    args
}

const HOST: &str = "zero_optimization.offload_optimizer.device=cpu";
const NVME: &str = "zero_optimization.offload_optimizer.device=nvme";
const FOLDER: &str = "zero_optimization.offload_optimizer.nvme_path=swap";

#[test]
fn every_kind_of_offload_gives_the_run_without() {
    let s = Scratch::new();
    s.ok(&train("plain", &["zero_optimization.stage=3"]));
    let params = "zero_optimization.offload_param.device";
    let (params_host, params_nvme) = (format!("{params}=cpu"), format!("{params}=nvme"));
    let kinds: &[(&str, &[&str])] = &[
        ("host", &["zero_optimization.stage=2", HOST]),
        (
            "part",
            &[
                "zero_optimization.stage=3",
                HOST,
                "zero_optimization.offload_optimizer.ratio=0.3",
            ],
        ),
        ("params", &["zero_optimization.stage=3", HOST, &params_host]),
        (
            "nvme",
            &["zero_optimization.stage=3", NVME, FOLDER, &params_nvme],
        ),
        (
            "inputs",
            &[
                "zero_optimization.stage=2",
                "model.recompute=full",
                "activation_checkpointing.cpu_checkpointing=true",
                HOST,
            ],
        ),
    ];
    for (out, sets) in kinds {
        s.ok(&train(out, sets));
        same(&s.path("plain"), &s.path(out));
    }
    assert_eq!(
        std::fs::read_dir(s.path("swap")).unwrap().count(),
        0,
        "swap is left"
    );
    let ledger = std::fs::read(s.path("params/ledger.json")).unwrap();
    let ledger: serde_json::Value = serde_json::from_slice(&ledger).unwrap();
    let memory = &ledger["ranks"][0]["memory"];
    assert_eq!(memory["tags"]["moment"]["peak"], 0, "{memory}");
    assert!(
        memory["host"]["moment"]["now"].as_u64() > Some(0),
        "{memory}"
    );
    assert!(memory["to_host"]["grad"].as_u64() > Some(0), "{memory}");
}

/// The job of the ten billion: 12 L h^2 with 50 layers of 4096, in bf16.
const TEN_BILLION: &str = r#"{
 "model": {"family": "llama", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 50,
           "num_attention_heads": 32, "max_position_embeddings": 1024, "recompute": "full"},
 "data": {"train": "corpus/*.txt", "seq_len": 1024}, "run": {"steps": 2}, "bf16": {"enabled": true}, "optimizer": {"type": "AdamW"},
 "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1,
 "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}
}"#;

/// The host adds up what each micro-batch makes: on one rank as on two the bits of slices on the device, which one rank can be asked for too.
#[test]
fn micro_batches_that_leave_have_the_bits_of_those_that_stay() {
    let s = Scratch::new();
    let each = "zero_optimization.reduce_gradients=micro_batch";
    let run = |out: &str, ranks: &str, sets: &[&str]| {
        let mut args = train(out, sets);
        let at = args.iter().position(|a| *a == "2").expect("ranks");
        args[at] = ranks;
        s.ok(&args);
    };
    for ranks in ["1", "2"] {
        let out = |name: &str| format!("{name}{ranks}");
        run(&out("plain"), ranks, &["zero_optimization.stage=2", each]);
        for (name, sets) in [
            ("host", &["zero_optimization.stage=1", HOST][..]),
            (
                "part",
                &[
                    "zero_optimization.stage=3",
                    HOST,
                    "zero_optimization.offload_optimizer.ratio=0.4",
                ],
            ),
            ("nvme", &["zero_optimization.stage=2", NVME, FOLDER]),
            (
                "pinned",
                &[
                    "zero_optimization.stage=2",
                    HOST,
                    "zero_optimization.offload_optimizer.pin_memory=true",
                ],
            ),
        ] {
            run(&out(name), ranks, sets);
            same(&s.path(&out("plain")), &s.path(&out(name)));
        }
    }
    let ledger = |out: &str| -> serde_json::Value {
        let text = std::fs::read(s.path(&format!("{out}/ledger.json"))).expect("a ledger");
        let all: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        all["ranks"][0]["memory"].clone()
    };
    let (some, all) = (ledger("host1"), ledger("pinned1"));
    assert_eq!(some["host"]["moment"], all["host"]["moment"]);
    assert!(some["pinned"]["moment"].is_null(), "{some}");
    assert_eq!(all["pinned"]["moment"], all["host"]["moment"]);
    assert!(some["pinned"]["grad"]["now"].as_u64() < some["host"]["grad"]["now"].as_u64());
}

/// Page-locked memory that is refused is named by the key that asks for it, with the limit of the system: what the device copies, and what
/// `pin_memory` asks for besides.
#[test]
fn memory_that_cannot_be_page_locked_names_the_key_and_the_limit() {
    let s = Scratch::new();
    let pinned = "zero_optimization.offload_optimizer.pin_memory=true";
    let refusals = |sets: &[&str]| -> Vec<String> {
        let said = (10..60).step_by(3).map(|n| {
            let fault = format!("fault=alloc:{n}:oom");
            let mut args = train("never", sets);
            args.extend(["--layer", &fault]);
            String::from_utf8_lossy(&s.run(&args).stderr).into_owned()
        });
        said.filter(|e| e.contains("ulimit -l")).collect()
    };
    let stage = "zero_optimization.stage=2";
    let all = refusals(&[stage, HOST, pinned]);
    let keys = |says: &str| all.iter().any(|e| e.contains(says));
    let asks = "this key asks for it; set it to false";
    assert!(keys("pin_memory") && keys(asks), "{all:?}");
    let some = refusals(&[stage, HOST]);
    assert!(!some.is_empty(), "nothing is page-locked");
    let copied = |e: &String| e.contains("the device copies it");
    assert!(some.iter().all(copied), "{some:?}");
    let files = refusals(&[stage, NVME, FOLDER]);
    let pool = |e: &String| e.contains("buffer_count");
    assert!(files.iter().any(pool), "{files:?}");
}

/// Ten billion parameters on one device of 32 GB, whatever the micro-batches; kept on the device their sum alone takes more.
#[test]
fn ten_billion_parameters_take_24_gb_for_any_number_of_micro_batches() {
    let s = Scratch::new();
    s.write("big.json", TEN_BILLION);
    let plan = |sets: &[&str]| -> serde_json::Value {
        let mut args = vec![
            "plan", "big.json", "--ranks", "1", "--json", "--device", "v100",
        ];
        sets.iter().for_each(|set| args.extend(["--set", set]));
        serde_json::from_str(&s.ok(&args)).expect("JSON")
    };
    let total = |v: &serde_json::Value| v["memory"]["total"]["peak"].as_u64().expect("bytes");
    let two = total(&plan(&["gradient_accumulation_steps=2"]));
    for g in ["1", "4", "16"] {
        let v = plan(&[&format!("gradient_accumulation_steps={g}")]);
        assert!(total(&v) <= 24_000_000_000, "{g}: {}", v["memory"]);
        assert!(
            total(&v) <= two + (1 << 20),
            "{g}: {} and {two}",
            v["memory"]
        );
        if g == "1" {
            continue;
        }
        let host = &v["memory"]["host"];
        let (held, pinned) = (host["peak"].as_u64(), host["pinned"].as_u64());
        assert!(pinned.expect("bytes") < held.expect("bytes") / 5, "{host}");
    }
    let step = "zero_optimization.reduce_gradients=step";
    let kept = plan(&["gradient_accumulation_steps=4", step]);
    assert!(total(&kept) > 60_000_000_000, "{}", kept["memory"]);
    let page = |sets: &[&str]| {
        let mut args = vec!["plan", "big.json", "--ranks", "1"];
        sets.iter().for_each(|set| args.extend(["--set", set]));
        s.ok(&args)
    };
    let said = page(&["gradient_accumulation_steps=4"]);
    for part in ["are added up there", "of it page-locked", "to the host"] {
        assert!(said.contains(part), "{said}");
    }
    let shards = "run.canonical_shards=4";
    let said = page(&["gradient_accumulation_steps=2", shards]);
    assert!(
        said.contains("stay on the device until the last micro-batch"),
        "{said}"
    );
}

#[test]
fn a_run_killed_with_its_state_in_files_resumes_to_the_same_bits() {
    let s = Scratch::new();
    let long = |out: &'static str| {
        let part = "zero_optimization.offload_optimizer.ratio=0.6";
        let mut args = train(out, &["zero_optimization.stage=2", NVME, FOLDER, part]);
        let steps = args.iter().position(|a| *a == "6").unwrap();
        args[steps] = "60";
        args
    };
    s.ok(&long("whole"));
    let mut child = s
        .command(&long("cut"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let began = Instant::now();
    let there = || {
        std::fs::read_dir(s.path("cut/checkpoints")).is_ok_and(|d| {
            d.flatten()
                .any(|e| e.file_name().to_string_lossy().starts_with("step-"))
        })
    };
    while !there() && began.elapsed() < Duration::from_secs(120) {
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(there());
    let mut again = long("cut");
    let out = again.iter().position(|a| *a == "--out").unwrap();
    again[out] = "--resume";
    s.ok(&again);
    same(&s.path("whole"), &s.path("cut"));
    // What the killed run left was recognised and removed.
    assert_eq!(std::fs::read_dir(s.path("swap")).unwrap().count(), 0);
}

/// A rank dies at the reduction of one of four micro-batches, when a part of its step's sums is in the tier: nothing of them goes on, and
/// the run that resumes has the bits of the one that nothing struck.
#[test]
fn a_run_that_ends_between_micro_batches_resumes_to_the_same_bits() {
    let s = Scratch::new();
    let tiers: [(&str, &[&str]); 2] = [("cpu", &[HOST]), ("nvme", &[NVME, FOLDER])];
    for (tier, sets) in tiers {
        let sets = [&["zero_optimization.stage=2"], sets].concat();
        s.ok(&train(tier, &sets));
        // What a micro-batch makes is reduced in one call.
        for call in 1..=4 {
            let out = format!("{tier}-{call}");
            let fault = format!(
                r#"faults=[{{"rank": 1, "kind": "kill", "step": 5, "op": "reduce_scatter", "call": {call}}}]"#
            );
            let args = train(&out, &[&sets[..], &[&fault]].concat());
            let said = s.run(&args);
            let said = String::from_utf8_lossy(&said.stderr).into_owned();
            assert!(said.contains("was killed on purpose"), "{said}");
            let mut again = train(&out, &sets);
            let at = again.iter().position(|a| *a == "--out").unwrap();
            again[at] = "--resume";
            s.ok(&again);
            same(&s.path(tier), &s.path(&out));
        }
    }
    let left = std::fs::read_dir(s.path("swap")).unwrap().count();
    assert_eq!(left, 0, "swap is left");
}

#[test]
fn offload_that_cannot_be_is_a_sentence() {
    let s = Scratch::new();
    std::fs::write(s.path("file"), b"").unwrap();
    let param = "zero_optimization.offload_param.device=cpu";
    let cases: &[(&[&str], &str)] = &[
        (&[NVME], "nvme_path"),
        (
            &["zero_optimization.stage=3", NVME, FOLDER, param],
            "offload_optimizer to the same device",
        ),
        (
            &[
                HOST,
                "zero_optimization.offload_optimizer.ratio=0.5",
                "zero_optimization.offload_optimizer.delayed_update=true",
            ],
            "set ratio to 1",
        ),
        (
            &[
                "zero_optimization.stage=3",
                HOST,
                param,
                "zero_optimization.offload_optimizer.ratio=0.3",
            ],
            "leave offload_param out",
        ),
        (
            &[
                NVME,
                FOLDER,
                "zero_optimization.offload_optimizer.delayed_update=true",
            ],
            "delayed_update off",
        ),
        (
            &[
                "model.recompute=selective",
                "activation_checkpointing.cpu_checkpointing=true",
            ],
            "model.recompute",
        ),
        (
            &[NVME, "zero_optimization.offload_optimizer.nvme_path=file"],
            "cannot make the folder",
        ),
        (&[NVME, FOLDER, "aio.block_size=5000"], "multiple of 4096"),
    ];
    for (sets, says) in cases {
        let out = s.run(&train("never", sets));
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success(), "{sets:?}");
        assert!(said.contains(says), "{sets:?}: {said}");
    }
    // What DeepSpeed passes over, or leaves to the rest of the file, is reported and done.
    let told: &[(&[&str], &str)] = &[
        (&[HOST, param], "no effect below stage 3"),
        (
            &["zero_optimization.stage=3", param],
            "offload_optimizer is taken as \"cpu\" too",
        ),
        (
            &["activation_checkpointing.cpu_checkpointing=true"],
            "nothing is recomputed",
        ),
    ];
    for (i, (sets, says)) in told.iter().enumerate() {
        let out = format!("reported{i}");
        let out = s.run(&train(&out, sets));
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{sets:?}: {said}");
        assert!(said.contains(says), "{sets:?}: {said}");
    }
}
