//! Probes over meshes: logits, loss and every gradient, put together from the ranks, are those of a probe on one rank, under the names and in the
//! shapes that it writes; what a mesh cannot is refused by key.

use crate::support::Scratch;
use crate::support::oracles::{Tensors, cases, oracle, raw, read, top};
use crate::support::verbs::write_ids;
use crossweave_hal::DType;
use std::path::{Path, PathBuf};

/// What the order of sums in f32 makes of a gradient: over the largest of its tensor (a thousandth of the norm of all at least), and over that norm.
/// One rank is as far from float64.
const MOST: [f64; 2] = [1e-5, 2e-6];

/// Holds what a mesh finds against what one rank finds.
fn near(ours: &Tensors, one: &Tensors, what: &str) {
    assert!(ours.keys().eq(one.keys()), "{what}: {:?}", ours.keys());
    let grads = one.iter().filter(|(k, _)| k.starts_with("grad."));
    let squares = grads.flat_map(|(_, (.., g))| g).map(|x| x * x);
    let norm = squares.sum::<f64>().sqrt();
    for (key, (dtype, shape, values)) in one {
        let (own_dtype, own_shape, own) = &ours[key];
        assert_eq!((own_dtype, own_shape), (dtype, shape), "{what}: {key}");
        let largest = top(values);
        let most = match key.starts_with("grad.") {
            true => (MOST[0] * largest.max(1e-3 * norm)).min(MOST[1] * norm),
            false => 4e-6 * largest,
        };
        for (a, b) in own.iter().zip(values) {
            let far = (a - b).abs();
            assert!(
                far <= most,
                "{what}: {key}: {a} and {b}, {far:e} of {most:e}"
            );
        }
    }
}

struct Probes {
    s: Scratch,
}

/// The committed inputs of a case.
fn inputs(case: &Path) -> PathBuf {
    case.join("inputs.safetensors")
}

impl Probes {
    /// Two rows of text of so many tokens, of which all but the last are trained on.
    fn rows(&self, tokens: u32) -> PathBuf {
        let row = |r: u32| (0..tokens).map(|i| (r * 5 + i * 7 + 1) % 31).collect();
        let path = self.s.path(&format!("rows-{tokens}.safetensors"));
        write_ids(&path, &[row(0), row(1)]);
        path
    }

    /// Holds each mesh against one rank; the parts of a mesh that were refused.
    fn hold(&self, case: &Path, inputs: &Path, meshes: &[(&str, &[&str])]) -> Vec<String> {
        let model = case.join("model");
        self.s
            .probe(&model, inputs, DType::F32, "one.safetensors")
            .unwrap();
        let one = read(&self.s.path("one.safetensors"));
        let mut refused = vec![];
        for (ranks, sets) in meshes {
            let out = "over.safetensors";
            let what = format!("{}, {ranks} ranks, {sets:?}", case.display());
            match self.s.probe_over(&model, inputs, (ranks, sets), out) {
                Ok(()) => near(&read(&self.s.path(out)), &one, &what),
                Err(e) => refused.push(format!("{what}: {e}")),
            }
        }
        refused
    }
}

/// The models of every family that two ranks can share.
#[test]
fn probes_of_every_family_over_two_ranks_are_those_of_one() {
    let p = Probes { s: Scratch::new() };
    let (mut held, mut refused) = (0, vec![]);
    for case in cases() {
        let given = inputs(&case);
        // Texts of a length that two ranks divide once the last token is a label alone.
        let text = raw(&given).len() == 1 && !case.ends_with("phi3-v4");
        let given = if text { p.rows(17) } else { given };
        let said = p.hold(&case, &given, &[("2", &["mesh.tp=2"])]);
        held += usize::from(said.is_empty());
        refused.extend(said);
    }
    // Norms of all heads together, experts and heads that two do not divide.
    for said in &refused {
        assert!(said.contains("mesh.tp"), "{said}");
    }
    assert!(
        held >= 60,
        "{held} of {}: {refused:#?}",
        held + refused.len()
    );
}

/// Stages, shards and pieces of rows, each by itself and together.
#[test]
fn probes_over_every_axis_are_those_of_one_rank() {
    let p = Probes { s: Scratch::new() };
    let off = "mesh.sequence_parallel=false";
    let meshes: &[(&str, &[&str])] = &[
        ("2", &["mesh.tp=2", off]),
        ("2", &["mesh.tp=2", "model.recompute=\"full\""]),
        ("2", &["mesh.pp=2"]),
        ("2", &["mesh.pp=2", "mesh.pp_schedule=\"zb-h1\""]),
        ("2", &["mesh.pp=2", "mesh.pp_schedule=\"zbv\""]),
        ("4", &["mesh.pp=2", "mesh.tp=2"]),
        ("4", &["mesh.pp=2", "mesh.tp=2", off]),
        ("2", &["zero_optimization.stage=0"]),
        ("2", &["zero_optimization.stage=3"]),
        ("4", &["mesh.tp=2", "zero_optimization.stage=2"]),
        ("4", &["mesh.tp=2", "zero_optimization.stage=3"]),
        ("cpu:1", &[]),
    ];
    for name in ["gpt2-tied", "llama-gqa-sharded"] {
        let refused = p.hold(&oracle(name), &p.rows(17), meshes);
        assert!(refused.is_empty(), "{refused:#?}");
    }
}

/// Rows of a length that two chunks for each of two ranks divide.
#[test]
fn probes_over_cut_rows_are_those_of_one_rank() {
    let p = Probes { s: Scratch::new() };
    for name in ["gpt2-tied", "llama-gqa-sharded"] {
        let refused = p.hold(
            &oracle(name),
            &p.rows(13),
            &[
                ("2", &["mesh.cp=2"]),
                ("2", &["mesh.cp=2", "mesh.cp_comm=\"a2a\""]),
                ("2", &["mesh.cp=2", "mesh.cp_comm=\"p2p\""]),
                ("4", &["mesh.cp=2", "mesh.tp=2"]),
                (
                    "4",
                    &["mesh.cp=2", "mesh.tp=2", "mesh.sequence_parallel=false"],
                ),
                ("2", &["mesh.tp=2", "mesh.sequence_parallel=true"]),
            ],
        );
        assert!(refused.is_empty(), "{refused:#?}");
    }
}

#[test]
fn what_a_mesh_cannot_is_refused_by_key() {
    let p = Probes { s: Scratch::new() };
    let case: PathBuf = oracle("llama-gqa-sharded");
    let refused = |ranks: &str, sets: &[&str], parts: &[&str]| {
        let said = p.hold(&case, &inputs(&case), &[(ranks, sets)]);
        for part in parts {
            assert!(
                said.len() == 1 && said[0].contains(part),
                "{part:?}: {said:?}"
            );
        }
    };
    refused("3", &["mesh.tp=3"], &["mesh.tp", "3 does not divide"]);
    refused("2", &["mesh.tp=3"], &["mesh.tp", "2 ranks"]);
    refused("16", &["mesh.pp=16"], &["mesh.pp"]);
    refused("2", &["data.seq_len=3"], &["data.seq_len", "no such key"]);
    refused("2", &["mesh.db=3"], &["mesh.db", "\"dp\""]);
    let rows = ["mesh.tp=2", "mesh.sequence_parallel=true"];
    refused("2", &rows, &["mesh.sequence_parallel", "do not divide"]);
    refused("8", &["zero_optimization.stage=1"], &["8"]);
}
