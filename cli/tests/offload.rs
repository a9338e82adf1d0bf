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
