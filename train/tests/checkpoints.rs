//! Checkpoints that are damaged or exchanged, resharded and exported, and continued in another type and on every other layout.

use crate::support::oracles::raw;
use crate::support::{
    Job, Scratch, copy_dir, cpu_plugin, figures, losses, model_bytes, names, same,
};
use crossweave::described;
use crossweave_checkpoint::{Dtype, verify, verify_json_by};
use std::path::{Path, PathBuf};

/// Steps of the complete checkpoints, oldest first.
fn steps(run: &Path) -> Vec<u64> {
    let Ok(entries) = std::fs::read_dir(run.join("checkpoints")) else {
        return vec![];
    };
    let mut all: Vec<u64> = entries
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.strip_prefix("step-")?.parse().ok())
        .collect();
    all.sort_unstable();
    all
}

fn step_dir(run: &Path, step: u64) -> PathBuf {
    run.join("checkpoints").join(format!("step-{step:08}"))
}

#[test]
fn a_run_goes_on_from_the_checkpoint_that_is_named() {
    let s = Scratch::new();
    let job = || s.job("config.json");
    job().run("whole");
    assert_eq!(steps(&s.path("whole")), [6, 8]);
    let older = "whole/checkpoints/step-00000006";
    let ran = job().resume(older).run("again");
    assert!(ran.said.contains("from step 6"), "{}", ran.said);
    same(&s.path("whole"), &s.path("again"));
    // The folder of the run itself holds a later one, and is not written over.
    names(
        &job().resume(older).fails("whole").0,
        &["already holds a run"],
    );
    let absent = job().resume("whole/checkpoints/step-00000005");
    absent.refused(&["no such checkpoint", "those of steps 6, 8"]);
    // Nothing takes the place of a checkpoint that was asked for.
    let file = step_dir(&s.path("whole"), 6).join("rank-00000.safetensors");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    let damaged = job().resume(older);
    damaged.refused(&["rank-00000.safetensors", "bytes long"]);
}

#[test]
fn damaged_checkpoints_are_passed_over_by_name() {
    let s = Scratch::new();
    let job = || s.job("config.json").ranks(2);
    job().run("whole");
    job().set("run.seed=5").run("other");
    let whole = s.path("whole");
    assert_eq!(steps(&whole), [6, 8]);
    let name = |r: u32| format!("rank-{r:05}.safetensors");
    let newest = |file: &str| step_dir(&s.path("cut"), 8).join(file);
    let flip = |file: &str| {
        let mut bytes = std::fs::read(newest(file)).unwrap();
        let at = bytes.len() - 200;
        bytes[at] ^= 16;
        std::fs::write(newest(file), bytes).unwrap();
    };
    type Attack<'a> = (&'a str, &'a [&'a str], &'a dyn Fn());
    let attacks: [Attack<'_>; 7] = [
        ("flipped", &["rank-00001.safetensors", "BLAKE3"], &|| {
            flip(&name(1))
        }),
        (
            "truncated",
            &["rank-00000.safetensors", "bytes long"],
            &|| {
                let bytes = std::fs::read(newest(&name(0))).unwrap();
                std::fs::write(newest(&name(0)), &bytes[..bytes.len() / 2]).unwrap();
            },
        ),
        (
            "exchanged",
            &["rank-00000.safetensors", "data of rank 1"],
            &|| {
                std::fs::rename(newest(&name(0)), newest("aside")).unwrap();
                std::fs::rename(newest(&name(1)), newest(&name(0))).unwrap();
                std::fs::rename(newest("aside"), newest(&name(1))).unwrap();
            },
        ),
        (
            "missing",
            &["rank-00001.safetensors", "cannot be opened"],
            &|| {
                std::fs::remove_file(newest(&name(1))).unwrap();
            },
        ),
        (
            "another run's manifest",
            &["rank-00000.safetensors", "another save"],
            &|| {
                let other = step_dir(&s.path("other"), 8).join("manifest.json");
                std::fs::copy(other, newest("manifest.json")).unwrap();
            },
        ),
        (
            "a lost manifest",
            &["manifest.json", "No such file"],
            &|| {
                std::fs::remove_file(newest("manifest.json")).unwrap();
            },
        ),
        ("a torn manifest", &["manifest.json", "truncated"], &|| {
            let bytes = std::fs::read(newest("manifest.json")).unwrap();
            std::fs::write(newest("manifest.json"), &bytes[..bytes.len() - 9]).unwrap();
        }),
    ];
    for (what, parts, attack) in attacks {
        let cut = s.path("cut");
        let _ = std::fs::remove_dir_all(&cut);
        copy_dir(&whole, &cut);
        attack();
        let e = verify(&cut, None).unwrap_err().to_string();
        let damage = ["DAMAGED"].iter().chain(parts);
        assert!(damage.into_iter().all(|p| e.contains(p)), "{what}: {e}");
        let reported = verify_json_by(&cut, None, &described::holds).unwrap();
        assert_eq!(reported["ok"], false, "{what}");
        // The pointer for people names the damaged one; nobody believes it.
        std::fs::write(cut.join("checkpoints/latest"), "step-99999999\n").unwrap();
        let err = job().resume("cut").goes_on().said;
        assert!(
            err.contains("checkpoint of step 8 is passed over"),
            "{what}: {err}"
        );
        assert!(parts.iter().all(|p| err.contains(p)), "{what}: {err}");
        let from = format!("continuing {} from step 6", cut.display());
        assert!(err.contains(&from), "{what}: {err}");
        same(&whole, &cut);
        assert_eq!(
            std::fs::read_to_string(cut.join("checkpoints/latest")).unwrap(),
            "step-00000008\n"
        );
    }
    // Nothing that is whole is left: the run is not begun again behind the user's back.
    for step in steps(&s.path("cut")) {
        let file = step_dir(&s.path("cut"), step).join(name(0));
        std::fs::write(file, b"nothing").unwrap();
    }
    job().resume("cut").refused(&[
        "step 8 is passed over",
        "step 6 is passed over",
        "rank-00000.safetensors",
    ]);
}

/// The files of a resharded checkpoint are of data-parallel ranks, each with a slice of every whole unit, whatever the mesh was.
#[test]
fn a_resharded_checkpoint_records_the_mesh_that_its_files_are_cut_for() {
    let s = Scratch::new();
    let cut = s.job("config.json").ranks(2).set("mesh.tp=2");
    cut.steps(3).run("begun");
    s.reshard("begun", "on4", 4, None).unwrap();
    let inspected = s.inspect("on4");
    let mesh = &inspected["checkpoints"][0]["state"]["config"]["mesh"];
    for (axis, ranks) in [("dp", 4), ("tp", 1), ("pp", 1), ("cp", 1)] {
        assert_eq!(mesh[axis], ranks, "{axis} of {mesh}");
    }
    s.job("config.json").ranks(4).resume("on4").goes_on();
}

#[test]
fn a_checkpoint_is_resharded_and_exported() {
    let s = Scratch::new();
    let job = || s.job("config.json").ranks(2);
    job().run("whole");
    job().steps(3).run("begun");
    for ranks in [1, 3, 4] {
        let out = format!("on{ranks}");
        let done = s.reshard("begun", &out, ranks, Some(3)).unwrap();
        assert_eq!((done.step, done.from_ranks), (3, 2));
        let inspected = s.inspect(&out);
        let step = &inspected["checkpoints"][0];
        assert_eq!(step["world_size"], ranks);
        assert_eq!(step["state"]["config"]["zero_optimization"]["stage"], 3);
        assert_eq!(step["files"].as_array().unwrap().len(), ranks as usize);
        s.verify(&out);
        // The mesh is the one it began on, so what follows is the same to the bit.
        job().resume(&out).goes_on();
        assert!(
            model_bytes(&s.path("whole")) == model_bytes(&s.path(&out)),
            "{ranks}"
        );
        let tail = |run: &str| {
            figures(&s.path(run))
                .into_iter()
                .filter(|f| f.0 > 4)
                .collect::<Vec<_>>()
        };
        assert_eq!(tail("whole"), tail(&out));
    }
    let taken = s.reshard("begun", "on1", 2, None).unwrap_err();
    names(&taken, &["on1", "holds checkpoints already"]);
    let absent = s.reshard("absent", "new", 2, None).unwrap_err();
    names(&absent, &["absent"]);
    assert!(!s.path("new").exists());
    // The export of the last checkpoint is the model of the run, tokenizer and all.
    s.export("on3", "exported", false).unwrap();
    let files = |dir: &str| {
        let mut all: Vec<(String, Vec<u8>)> = std::fs::read_dir(s.path(dir))
            .unwrap()
            .flatten()
            .map(|e| {
                (
                    e.file_name().into_string().unwrap(),
                    std::fs::read(e.path()).unwrap(),
                )
            })
            .collect();
        all.sort();
        all
    };
    assert!(files("exported") == files("whole/model"));
    s.export_as("whole", "half", Dtype::BF16, false).unwrap();
    let half = raw(&s.path("half/model.safetensors"));
    assert!(half.values().all(|t| t.0 == Dtype::BF16));
    assert!(s.generate("half", "the ", 4).is_ok());
    let file = s.export("whole", "config.json", false).unwrap_err();
    names(&file, &["config.json"]);
}

#[test]
fn a_run_goes_on_in_another_type_and_on_other_ranks() {
    let s = Scratch::new();
    let job = |ranks: u32| s.job("config.json").ranks(ranks);
    job(4).run("whole");
    let half = |out: &str| drop(job(4).steps(4).run(out));
    let near = |out: &str, most: f64| {
        let (a, b) = (losses(&s.path("whole")), losses(&s.path(out)));
        assert_eq!(a.len(), b.len());
        for (x, y) in a.iter().zip(&b) {
            assert!((x - y).abs() <= most * x.abs(), "{out}: {a:?} {b:?}");
        }
    };
    for (ranks, out) in [(1, "on1"), (2, "on2")] {
        half(out);
        job(ranks).resume(out).goes_on();
        near(out, 1e-5);
    }
    half("type");
    let bf16 = job(4).set("bf16.enabled=true").resume("type");
    let said = bf16.goes_on().said;
    assert!(
        said.contains("trained in f32 so far and goes on in bf16"),
        "{said}"
    );
    near("type", 1e-2);
    half("half");
    let f16 = ["fp16.enabled=true", "fp16.initial_scale_power=8"];
    job(2).sets(&f16).resume("half").goes_on();
    near("half", 1e-2);
    // And back: the master copies are what was saved.
    job(2).steps(9).resume("type").goes_on();
    // Another optimizer is another run.
    let other = job(4).set("optimizer.params.betas=[0.8, 0.9]");
    other.resume("on2").refused(&["optimizer.params.betas"]);
}

/// Where state rests between its uses.
const RESTS: [(&str, &[&str]); 3] = [
    ("plain", &[]),
    ("host", &["zero_optimization.offload_optimizer.device=cpu"]),
    (
        "nvme",
        &[
            "zero_optimization.offload_optimizer.device=nvme",
            "zero_optimization.offload_optimizer.nvme_path=swap",
        ],
    ),
];

/// A job that trains to step 8 on a layout: ranks, stage, where the state rests; at stage 3 parameters rest beside it.
fn job_on<'a>(s: &'a Scratch, ranks: u32, stage: u32, rests: &str) -> Job<'a> {
    let (_, sets) = RESTS.iter().find(|r| r.0 == rests).expect("one of them");
    // All stages have the same bits with one reduction a step.
    let once = "zero_optimization.reduce_gradients=step";
    let stage_is = format!("zero_optimization.stage={stage}");
    let job = s.job("config.json").ranks(ranks).sets(sets);
    let job = job.sets(&[&stage_is, once, "train_batch_size=12"]);
    match (stage, rests) {
        (3, "host") => job.set("zero_optimization.offload_param.device=cpu"),
        (3, "nvme") => job.set("zero_optimization.offload_param.device=nvme"),
        _ => job,
    }
}

#[test]
fn a_checkpoint_of_one_layout_continues_on_every_other() {
    let s = Scratch::new();
    let plugin = cpu_plugin();
    job_on(&s, 4, 3, "plain").run("whole");
    let whole = losses(&s.path("whole"));
    let everywhere: &[(u32, u32, &str)] = &[
        (4, 0, "plain"),
        (4, 2, "host"),
        (4, 3, "plain"),
        (4, 3, "host"),
        (4, 3, "nvme"),
        (1, 0, "plain"),
        (1, 1, "nvme"),
        (2, 1, "plain"),
        (2, 1, "host"),
        (3, 2, "plain"),
        (3, 2, "nvme"),
        (3, 3, "plain"),
        (3, 3, "host"),
    ];
    let few = &everywhere[1..8];
    for (from, layouts) in [("plain", everywhere), ("host", few), ("nvme", everywhere)] {
        let begun = format!("begun-{from}");
        job_on(&s, 4, 3, from).steps(4).run(&begun);
        s.verify(&begun);
        // On the back end that is loaded from a file, and on the one that is linked.
        for backend in ["loaded", "linked"] {
            let loaded = backend == "loaded";
            for (ranks, stage, rests) in layouts.iter().take(if loaded { 2 } else { 99 }) {
                let out = format!("{from}-on-{ranks}-{stage}-{rests}-{backend}");
                copy_dir(&s.path(&begun), &s.path(&out));
                let mut job = job_on(&s, *ranks, *stage, rests).resume(&out);
                if loaded {
                    job = job.plugin(&plugin);
                }
                job.goes_on();
                if *ranks == 4 {
                    same(&s.path("whole"), &s.path(&out));
                    continue;
                }
                let other = losses(&s.path(&out));
                assert_eq!(whole.len(), other.len());
                for (a, b) in whole.iter().zip(&other) {
                    assert!(
                        (a - b).abs() <= 1e-5 * a.abs(),
                        "{out}: {whole:?} {other:?}"
                    );
                }
            }
        }
    }
    // Whatever was swapped out is gone with its run.
    assert_eq!(std::fs::read_dir(s.path("swap")).unwrap().count(), 0);
}
