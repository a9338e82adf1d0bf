//! `mesh.cp`: whole runs whose rows are cut over ranks train as one rank, validate as one, go on over other meshes, and are refused by key
//! where rows or heads are not cut.

use crate::split::near;
use crate::support::Scratch;

/// Gradients that are zero but for rounding must not be blown up to whole steps; rows that 2 and 4 ranks divide into two chunks each.
const PLAIN: [&str; 2] = ["optimizer.params.eps=1e-4", "data.seq_len=16"];

fn train(s: &Scratch, ranks: &str, sets: &[&[&str]], out: &str) {
    s.job("config.json")
        .ranks(ranks)
        .sets(&sets.concat())
        .run(out);
}

#[test]
fn runs_over_cut_rows_train_as_one_rank() {
    let s = Scratch::new();
    let drop = ["model.attn_pdrop=0.1", "model.resid_pdrop=0.1"];
    train(&s, "1", &[&PLAIN, &drop], "whole");
    for (out, ranks, more) in [
        ("cp2", "2", &[][..]),
        ("contiguous", "2", &["mesh.cp_layout=\"contiguous\""]),
        ("a2a", "2", &["mesh.cp_comm=\"a2a\""]),
        ("p2p", "2", &["mesh.cp_comm=\"p2p\""]),
        (
            "ring-of-4",
            "4",
            &[
                "mesh.cp=4",
                "mesh.cp_comm=\"p2p\"",
                "mesh.cp_layout=\"contiguous\"",
                "zero_optimization.overlap_comm=false",
            ],
        ),
        (
            "both",
            "4",
            &[
                "mesh.cp=4",
                "mesh.cp_comm=\"a2a+p2p\"",
                "mesh.cp_inner=2",
                "model.recompute=\"full\"",
                "zero_optimization.stage=2",
            ],
        ),
        // Ranks that have other tokens of a row share parameters as others do, in nodes too.
        (
            "nodes",
            "4",
            &[
                "mesh.cp=4",
                "zero_optimization.stage=3",
                "zero_optimization.zero_hpz_partition_size=2",
            ],
        ),
        (
            "zero3",
            "4",
            &[
                "zero_optimization.stage=3",
                "model.recompute=\"full\"",
                "mesh.cp_comm=\"a2a\"",
                "mesh.cp_layout=\"zigzag\"",
            ],
        ),
        (
            "pp2",
            "4",
            &[
                "mesh.pp=2",
                "zero_optimization.stage=1",
                "run.check=\"values\"",
            ],
        ),
        ("tp2", "4", &["mesh.tp=2", "mesh.sequence_parallel=true"]),
    ] {
        train(&s, ranks, &[&PLAIN, &drop, &["mesh.cp=2"], more], out);
        near(&s, out, "whole", out);
    }
}

/// A checkpoint holds declared tensors, and knows nothing of rows.
#[test]
fn a_run_goes_on_over_another_mesh() {
    let s = Scratch::new();
    train(&s, "1", &[&PLAIN], "whole");
    for (name, first, then) in [
        (
            "cut-first",
            ("2", &["mesh.cp=2"][..]),
            ("2", &["mesh.cp=1"][..]),
        ),
        (
            "cut-later",
            ("2", &["zero_optimization.stage=3"]),
            ("4", &["mesh.cp=2", "mesh.cp_comm=\"a2a\""]),
        ),
        (
            "all",
            ("4", &[]),
            ("8", &["mesh.tp=2", "mesh.pp=2", "mesh.cp=2"]),
        ),
    ] {
        let part = format!("{name}-part");
        train(&s, first.0, &[&PLAIN, &["run.steps=5"], first.1], &part);
        let rest = s.job("config.json").ranks(then.0);
        rest.sets(&[&PLAIN, then.1].concat())
            .resume(&part)
            .run(name);
        near(&s, name, "whole", name);
    }
}

/// A student and its teacher read the same parts of rows.
#[test]
fn students_of_cut_rows_learn_as_of_whole_ones() {
    let s = Scratch::new();
    train(&s, "1", &[&PLAIN], "teacher");
    let teacher = s.path("teacher").join("model");
    let teacher =
        format!("distill={{\"teacher\": {teacher:?}, \"alpha\": 0.7, \"temperature\": 2.0}}");
    let smaller = [teacher.as_str(), "run.seed=7"];
    train(&s, "1", &[&PLAIN, &smaller], "whole");
    for (comm, ranks, more) in [
        ("all_gather", "2", &[][..]),
        ("a2a", "2", &["zero_optimization.stage=3"]),
        ("p2p", "2", &["model.recompute=\"full\""]),
        ("p2p", "4", &["mesh.tp=2"]),
        ("p2p", "4", &["mesh.pp=2"]),
    ] {
        let out = format!(
            "{comm}-{ranks}-{}",
            more.concat().replace(['.', '=', '"'], "-")
        );
        let comm = format!("mesh.cp_comm=\"{comm}\"");
        train(
            &s,
            ranks,
            &[&PLAIN, &smaller, &["mesh.cp=2", &comm], more],
            &out,
        );
        near(&s, &out, "whole", &out);
    }
}

#[test]
fn what_cannot_be_cut_is_refused_by_key() {
    let s = Scratch::new();
    let refused = |ranks: &str, sets: &[&str], says: &[&str]| {
        s.job("config.json").ranks(ranks).sets(sets).refused(says);
    };
    refused(
        "2",
        &["mesh.cp=2", "data.seq_len=15"],
        &[
            "mesh.cp",
            "rows of 15 tokens",
            "4 equal pieces",
            "16 tokens long",
        ],
    );
    refused(
        "2",
        &["mesh.cp=2", "data.seq_len=14"],
        &["mesh.cp", "mesh.cp_layout to \"contiguous\""],
    );
    refused(
        "3",
        &["mesh.cp=3", "data.seq_len=12", "mesh.cp_comm=\"a2a\""],
        &["mesh.cp_comm", "query heads", "all_gather"],
    );
    let both = "mesh.cp_comm=\"a2a+p2p\"";
    refused(
        "4",
        &["mesh.cp=4", both],
        &["mesh.cp_comm", "says nothing of", "mesh.cp_inner to 2"],
    );
    for inner in ["1", "3", "4", "8"] {
        refused(
            "4",
            &["mesh.cp=4", both, &format!("mesh.cp_inner={inner}")],
            &["mesh.cp_inner", "no part of 4", "divisor of mesh.cp"],
        );
    }
    refused(
        "2",
        &["mesh.cp=2", both],
        &["mesh.cp_comm", "\"a2a\" or \"p2p\""],
    );
    refused(
        "4",
        &["mesh.cp=4", "mesh.cp_comm=\"p2p\"", "mesh.cp_inner=2"],
        &["mesh.cp_inner", "\"p2p\"", "remove it"],
    );
    refused(
        "6",
        &["mesh.cp=6", "data.seq_len=12", both, "mesh.cp_inner=3"],
        &["mesh.cp_comm", "3 ranks", "query heads", "p2p"],
    );
    for (key, word) in [("cp_comm", "ring"), ("cp_layout", "striped")] {
        refused(
            "2",
            &["mesh.cp=2", &format!("mesh.{key}=\"{word}\"")],
            &[key, word],
        );
    }
    refused(
        "4",
        &[
            "mesh.cp=4",
            "data.seq_len=2",
            "mesh.cp_layout=\"contiguous\"",
        ],
        &["mesh.cp", "rows of 2 tokens", "4 tokens long"],
    );
    refused(
        "4",
        &[
            "mesh.cp=2",
            "mesh.tp=2",
            "data.seq_len=14",
            "mesh.cp_layout=\"contiguous\"",
            "mesh.sequence_parallel=true",
        ],
        &["mesh.sequence_parallel", "7 tokens"],
    );
    let t5 = r#"model={"family": "t5", "d_model": 16, "num_layers": 1, "num_heads": 2, "d_ff": 32, "dropout_rate": 0.0}"#;
    refused("2", &["mesh.cp=2", t5], &["mesh.cp", "a decoder reads"]);
    let bert = r#"model={"family": "bert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}"#;
    refused(
        "2",
        &["mesh.cp=2", "mesh.cp_layout=\"zigzag\"", bert],
        &["mesh.cp_layout", "sees both ways"],
    );
    for (key, with) in [
        ("run.canonical_shards", "run.canonical_shards=2"),
        ("run.balance", "run.balance=\"1,2\""),
    ] {
        refused("2", &["mesh.cp=2", with], &[key, "mesh.cp"]);
    }
}
