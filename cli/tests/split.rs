//! `mesh.tp` over processes: they have the bits of threads. What else runs over cut layers promise: `train/tests/split.rs`.

use crate::common;
use common::mpi::{families, mpirun, ok, plugin};
use common::{Scratch, same};
use std::path::Path;

/// Between processes as between threads, with hidden states that are cut by tokens and without.
#[test]
fn processes_have_the_bits_of_threads() {
    plugin();
    let s = Scratch::new();
    for (name, sets) in [
        (
            "pieces",
            ["mesh.sequence_parallel=true", "zero_optimization.stage=1"],
        ),
        (
            "whole",
            ["mesh.sequence_parallel=false", "zero_optimization.stage=1"],
        ),
        ("staged", ["mesh.sequence_parallel=true", "mesh.pp=2"]),
    ] {
        let sets = [&["data.seq_len=16", "mesh.tp=2"], &sets[..]].concat();
        let cut: Vec<&str> = sets.iter().flat_map(|set| ["--set", *set]).collect();
        let threads = ["train", "config.json", "--ranks", "4", "--out", name];
        s.ok(&[&threads[..], &cut].concat());
        for family in families() {
            let out = format!("{name}-{family}");
            let args = ["train", "config.json", "--out", &out];
            ok(mpirun(&s, family, 4, &[&args[..], &cut].concat()));
            same(&s.path(name), &s.path(&out));
        }
    }
}

/// What ranks find of a model together is written by the first, and is what threads find to the bit.
#[test]
fn probes_of_processes_have_the_bits_of_threads() {
    plugin();
    let s = Scratch::new();
    let oracles = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/oracles");
    let case = |file: &str| oracles.join("gpt2-tied").join(file).display().to_string();
    let (model, inputs) = (case("model"), case("inputs.safetensors"));
    let asked = ["probe", "--model", &model, "--inputs", &inputs];
    let over = ["--set", "mesh.tp=2", "--set", "zero_optimization.stage=3"];
    let asked = [&asked[..], &over].concat();
    s.ok(&[
        &asked[..],
        &["--ranks", "4", "--out", "threads.safetensors"],
    ]
    .concat());
    let threads = std::fs::read(s.path("threads.safetensors")).unwrap();
    for family in families() {
        let out = format!("{family}.safetensors");
        let said = ok(mpirun(
            &s,
            family,
            4,
            &[&asked[..], &["--out", &out]].concat(),
        ));
        assert_eq!(said.matches("gradients").count(), 1, "{said}");
        assert!(std::fs::read(s.path(&out)).unwrap() == threads, "{family}");
    }
}
