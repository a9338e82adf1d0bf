//! `mesh.sequence_parallel`: whole runs whose hidden states are cut by tokens over the ranks that share layers train as one rank, go on over
//! other meshes, run without where they cannot and say so, and are refused by key where it is asked for.

use crate::split::near;
use crate::support::{Scratch, ledger, losses};
use serde_json::Value;

/// Gradients that are zero but for rounding must not be blown up to whole steps; rows that 2 and 4 ranks divide.
const PLAIN: [&str; 2] = ["optimizer.params.eps=1e-4", "data.seq_len=16"];
const ON: [&str; 2] = ["mesh.tp=2", "mesh.sequence_parallel=true"];

fn train(s: &Scratch, ranks: &str, sets: &[&[&str]], out: &str) {
    s.job("config.json")
        .ranks(ranks)
        .sets(&sets.concat())
        .run(out);
}

#[test]
fn runs_over_pieces_of_rows_train_as_one_rank() {
    let s = Scratch::new();
    let drop = ["model.attn_pdrop=0.1", "model.resid_pdrop=0.1"];
    train(&s, "1", &[&PLAIN, &drop], "whole");
    for (out, ranks, more) in [
        ("tp2", "2", &[][..]),
        (
            "zero3",
            "4",
            &["zero_optimization.stage=3", "model.recompute=\"full\""],
        ),
        ("pp2", "4", &["mesh.pp=2", "zero_optimization.stage=1"]),
        (
            "values",
            "8",
            &[
                "mesh.pp=2",
                "zero_optimization.stage=2",
                "run.check=\"values\"",
            ],
        ),
        ("auto", "2", &["mesh.sequence_parallel=\"auto\""]),
    ] {
        train(&s, ranks, &[&PLAIN, &drop, &ON, more], out);
        near(&s, out, "whole", out);
    }
}

/// Kinds of collectives by which the layers of rank 0 talk over `mesh.tp`.
fn kinds(s: &Scratch, run: &str) -> Vec<String> {
    let ledger = ledger(&s.path(run));
    let lines = ledger["ranks"][0]["collectives"].as_array().unwrap();
    let own = |l: &&Value| l["group"] == "tp" && l["tag"] == "activation";
    let kinds = lines
        .iter()
        .filter(own)
        .map(|l| l["kind"].as_str().unwrap());
    kinds.map(String::from).collect()
}

/// Without the key tokens are cut where the ranks divide them. Where they do not, the run is that of `false` to the bit, which is said in a line.
#[test]
fn tokens_are_cut_by_default_where_the_ranks_divide_them() {
    let s = Scratch::new();
    let run = |out: &str, sets: &[&str]| {
        let job = s.job("config.json").ranks("2").set("mesh.tp=2");
        job.sets(&PLAIN[..1]).sets(sets).run(out).said
    };
    let off = "mesh.sequence_parallel is off: the 2 ranks of mesh.tp do not divide the 47 tokens";
    for (tokens, cut) in [(16, true), (47, false)] {
        let of = |name: &str| format!("{name}-{tokens}");
        let length = format!("data.seq_len={tokens}");
        let sets = [&*length, "model.n_positions=64"];
        let said = run(&of("default"), &sets);
        assert_eq!(said.matches(off).count(), usize::from(!cut), "{said}");
        let said = run(
            &of("off"),
            &[&sets[..], &["mesh.sequence_parallel=false"]].concat(),
        );
        assert!(!said.contains(off), "{said}");
        let [default, never] = ["default", "off"].map(|name| kinds(&s, &of(name)));
        assert_eq!(never, ["all_reduce"]);
        match cut {
            true => assert_eq!(default, ["all_gather", "reduce_scatter"]),
            false => {
                assert_eq!(default, never);
                let [a, b] = ["default", "off"].map(|name| losses(&s.path(&of(name))));
                assert_eq!(a, b);
            }
        }
    }
}

/// Rows of fewer tokens than ranks leave some ranks without any: they are not cut, or refused where that is asked for. Of as many tokens as ranks
/// each has one.
#[test]
fn torchtitan_3622_rows_of_fewer_tokens_than_ranks_train_as_on_one_rank() {
    let s = Scratch::new();
    let eps = "optimizer.params.eps=1e-4";
    for tokens in [1, 2] {
        let length = format!("data.seq_len={tokens}");
        let [whole, cut] = ["whole", "cut"].map(|name| format!("{name}-{tokens}"));
        train(&s, "1", &[&[eps, &length]], &whole);
        train(&s, "2", &[&[eps, &length, "mesh.tp=2"]], &cut);
        near(&s, &cut, &whole, &cut);
        assert_eq!(
            kinds(&s, &cut).contains(&"reduce_scatter".into()),
            tokens == 2
        );
    }
    let job = s.job("config.json").ranks("2").set("data.seq_len=1");
    let parts = [
        "mesh.sequence_parallel",
        "the 1 tokens",
        "make rows 2 tokens long",
    ];
    job.sets(&ON).refused(&parts);
}

/// A checkpoint holds declared tensors, and knows nothing of pieces of rows.
#[test]
fn a_run_goes_on_over_another_mesh() {
    let s = Scratch::new();
    train(&s, "1", &[&PLAIN], "whole");
    for (name, first, then) in [
        ("cut-first", ("2", &ON[..]), ("2", &["mesh.tp=1"][..])),
        (
            "cut-later",
            ("2", &["zero_optimization.stage=3"]),
            ("4", &ON),
        ),
        ("staged-later", ("2", &ON), ("2", &["mesh.pp=2"])),
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

/// Rows of a length that the ranks do not divide: refused with the next that they do, or trained without.
#[test]
fn what_cannot_be_cut_by_tokens_is_refused_or_runs_without() {
    let s = Scratch::new();
    let odd = ["optimizer.params.eps=1e-4", "data.seq_len=15"];
    let job = s.job("config.json").ranks("2");
    job.sets(&[&odd[..], &ON].concat()).refused(&[
        "mesh.sequence_parallel",
        "do not divide the 15 tokens",
        "make rows 16 tokens long",
    ]);
    let job = s.job("config.json").ranks("2");
    job.sets(&["mesh.tp=2", "mesh.sequence_parallel=\"yes\""])
        .refused(&["mesh.sequence_parallel", "\"auto\", true or false"]);
    let alone = s.job("config.json").ranks("1").steps(1);
    let said = alone.set("mesh.sequence_parallel=true").run("alone").said;
    assert!(
        said.contains("mesh.sequence_parallel: has no effect"),
        "{said}"
    );
    train(&s, "1", &[&odd], "whole");
    let auto = ["mesh.tp=2", "mesh.sequence_parallel=\"auto\""];
    train(&s, "2", &[&odd, &auto], "auto");
    near(&s, "auto", "whole", "auto");
    let t5 = r#"model={"family": "t5", "d_model": 16, "num_layers": 1, "num_heads": 2, "d_ff": 32, "dropout_rate": 0.0}"#;
    let job = s.job("config.json").ranks("2");
    job.sets(&[&ON[..], &[t5]].concat())
        .refused(&["mesh.sequence_parallel", "a decoder reads"]);
}
