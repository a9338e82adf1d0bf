//! Offload: the same run wherever its state rests, ended and resumed with state in files, and what cannot be.

use crate::support::{Job, Scratch, ledger, names, same};
use serde_json::Value;

/// A run of six steps on two ranks.
fn job(s: &Scratch) -> Job<'_> {
    s.job("config.json").ranks(2).steps(6)
}

const HOST: &str = "zero_optimization.offload_optimizer.device=cpu";
const NVME: &str = "zero_optimization.offload_optimizer.device=nvme";
const FOLDER: &str = "zero_optimization.offload_optimizer.nvme_path=swap";

#[test]
fn every_kind_of_offload_gives_the_run_without() {
    let s = Scratch::new();
    job(&s).sets(&["zero_optimization.stage=3"]).run("plain");
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
        job(&s).sets(sets).run(out);
        same(&s.path("plain"), &s.path(out));
    }
    assert_eq!(
        std::fs::read_dir(s.path("swap")).unwrap().count(),
        0,
        "swap is left"
    );
    let memory = &ledger(&s.path("params"))["ranks"][0]["memory"];
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
    let run = |out: &str, ranks: u32, sets: &[&str]| {
        job(&s).ranks(ranks).sets(sets).run(out);
    };
    for ranks in [1, 2] {
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
    let memory = |out: &str| ledger(&s.path(out))["ranks"][0]["memory"].clone();
    let (some, all) = (memory("host1"), memory("pinned1"));
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
            let tried = job(&s)
                .sets(sets)
                .layer(&fault)
                .tried(&format!("never-{n}"));
            let _ = std::fs::remove_dir_all(s.path(&format!("never-{n}")));
            tried.map_or_else(|e| e.to_string(), |_| String::new())
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
    let plan = |sets: &[&str]| s.job("big.json").ranks(1).sets(sets).plan_on("v100");
    let total = |v: &Value| v["memory"]["total"]["peak"].as_u64().expect("bytes");
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
}

/// A rank dies at the reduction of one of four micro-batches, when a part of its step's sums is in the tier: nothing of them goes on, and
/// the run that resumes has the bits of the one that nothing struck.
#[test]
fn a_run_that_ends_between_micro_batches_resumes_to_the_same_bits() {
    let s = Scratch::new();
    let tiers: [(&str, &[&str]); 2] = [("cpu", &[HOST]), ("nvme", &[NVME, FOLDER])];
    for (tier, sets) in tiers {
        let sets = [&["zero_optimization.stage=2"], sets].concat();
        job(&s).sets(&sets).run(tier);
        // What a micro-batch makes is reduced in one call.
        for call in 1..=4 {
            let out = format!("{tier}-{call}");
            let fault = format!(
                r#"faults=[{{"rank": 1, "kind": "kill", "step": 5, "op": "reduce_scatter", "call": {call}}}]"#
            );
            let (e, _) = job(&s).sets(&sets).set(&fault).fails(&out);
            names(&e, &["was killed on purpose"]);
            job(&s).sets(&sets).resume(&out).goes_on();
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
        names(&job(&s).sets(sets).fails("never").0, &[says]);
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
        let said = job(&s).sets(sets).run(&format!("reported{i}")).said;
        assert!(said.contains(says), "{sets:?}: {said}");
    }
}
