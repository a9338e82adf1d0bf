//! Text for models that do not predict the next token: what is hidden does not depend on ranks, layouts or a restart, and settings that do not
//! fit the model are refused.

use crate::common::{Scratch, figures, losses, model_bytes, same};
use serde_json::{Value, json};

fn config(family: &str) -> Value {
    let model = match family {
        "bert" => {
            json!({"family": "bert", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 32,
                         "hidden_dropout_prob": 0.1})
        }
        _ => {
            json!({"family": "t5", "d_model": 16, "num_layers": 1, "num_heads": 2, "d_ff": 32, "dropout_rate": 0.1})
        }
    };
    json!({
        "model": model,
        "data": {"train": "corpus/*.txt", "validation_fraction": 0.2, "cache_dir": "cache", "seq_len": 32},
        "run": {"steps": 8, "checkpoint_every": 3, "validate_every": 4, "validate_batches": 2, "threads_per_rank": 1},
        "train_batch_size": 4, "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
    })
}

fn train(s: &Scratch, ranks: &str, sets: &[&str], out: &str) {
    let mut args = vec!["train", "c.json", "--ranks", ranks, "--out", out];
    args.extend(sets.iter().flat_map(|set| ["--set", *set]));
    s.ok(&args);
}

#[test]
fn what_is_hidden_is_the_same_on_any_ranks_and_after_a_restart() {
    let s = Scratch::new();
    for family in ["bert", "t5"] {
        s.write("c.json", config(family).to_string());
        let name = |part: &str| format!("{family}-{part}");
        let whole = s.path(&name("whole"));
        train(&s, "1", &["run.canonical_shards=2"], &name("whole"));
        let half = ["run.canonical_shards=2", "zero_optimization.stage=3"];
        train(&s, "2", &half, &name("half"));
        same(&whole, &s.path(&name("half")));
        train(
            &s,
            "1",
            &["run.canonical_shards=2", "run.steps=5"],
            &name("part"),
        );
        let (part, rest) = (name("part"), name("rest"));
        s.ok(&[
            "train",
            "c.json",
            "--out",
            &rest,
            "--resume",
            &part,
            "--set",
            "run.canonical_shards=2",
        ]);
        assert!(model_bytes(&whole) == model_bytes(&s.path(&rest)));
        let last = |run: &std::path::Path| figures(run).pop();
        assert_eq!(last(&whole), last(&s.path(&rest)));
        let seen = losses(&whole);
        assert!(
            seen.len() == 8 && seen.iter().all(|l| l.is_finite()),
            "{seen:?}"
        );
        // The run's own config says what it did, and begins it again.
        let told = whole.join("config.json").display().to_string();
        s.ok(&["train", &told, "--out", &name("again")]);
        same(&whole, &s.path(&name("again")));
        let other = ["run.canonical_shards=2", "data.seed=9"];
        train(&s, "1", &other, &name("other"));
        assert_ne!(seen, losses(&s.path(&name("other"))));
    }
}

#[test]
fn objectives_that_do_not_fit_are_refused() {
    let s = Scratch::new();
    let refused = |family: &str, change: &dyn Fn(&mut Value), parts: &[&str]| {
        let mut c = config(family);
        change(&mut c);
        s.write("c.json", c.to_string());
        s.refused(&["train", "c.json", "--out", "out"], parts, &["out"]);
    };
    let data =
        |key: &'static str, value: Value| move |c: &mut Value| c["data"][key] = value.clone();
    let gpt2 = |c: &mut Value| {
        c["model"] =
            json!({"family": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 32});
    };
    refused(
        "bert",
        &data("objective", json!("causal")),
        &["data.objective", "bert", "masked_lm"],
    );
    refused(
        "t5",
        &data("objective", json!("masked_lm")),
        &["data.objective", "t5", "span_corruption"],
    );
    refused(
        "bert",
        &data("sentinel_id", json!(3)),
        &["data.sentinel_id", "masked_lm"],
    );
    refused(
        "bert",
        &data("mean_noise_span_length", json!(3)),
        &["data.mean_noise_span_length"],
    );
    refused(
        "t5",
        &data("mask_id", json!(3)),
        &["data.mask_id", "span_corruption"],
    );
    refused(
        "bert",
        &data("reset_attention_mask", json!(true)),
        &["data.reset_attention_mask"],
    );
    refused(
        "bert",
        &data("mlm_probability", json!(1.0)),
        &["data.mlm_probability"],
    );
    refused("bert", &data("format", json!("messages")), &["data.format"]);
    refused(
        "bert",
        &|c| {
            gpt2(c);
            c["data"]["objective"] = json!("masked_lm");
        },
        &["data.objective", "gpt2", "causal"],
    );
    refused(
        "bert",
        &|c| {
            gpt2(c);
            c["data"]["mlm_probability"] = json!(0.3);
        },
        &["data.mlm_probability", "causal"],
    );
    // Ids outside the model, and more spans than there are ids for.
    refused(
        "bert",
        &|c| c["model"]["vocab_size"] = json!(257),
        &["data.mask_id", "257"],
    );
    refused(
        "bert",
        &|c| {
            c["model"]["vocab_size"] = json!(300);
            c["data"]["mask_id"] = json!(900);
        },
        &["data.mask_id", "900"],
    );
    refused(
        "t5",
        &|c| {
            c["data"]["mlm_probability"] = json!(0.5);
            c["data"]["mean_noise_span_length"] = json!(1);
            c["data"]["seq_len"] = json!(512);
        },
        &["data.seq_len", "256 spans"],
    );
    // No text continues what these models have read.
    s.write("c.json", config("bert").to_string());
    train(&s, "1", &["run.steps=1"], "run");
    s.refused(
        &["generate", "--model", "run", "--prompt", "the "],
        &["bert", "continue"],
        &[],
    );
}
