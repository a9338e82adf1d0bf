//! Text for models that do not predict the next token: what is hidden does not depend on ranks, layouts or a restart, and settings that do not
//! fit the model are refused.

use crate::support::oracles::{Raw, oracle, raw, read, written};
use crate::support::{Scratch, figures, losses, model_bytes, names, records, same};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

fn config(family: &str) -> Value {
    let model = match family {
        "bert" | "pairs" => {
            json!({"family": "bert", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 32,
                         "hidden_dropout_prob": 0.1})
        }
        _ => {
            json!({"family": "t5", "d_model": 16, "num_layers": 1, "num_heads": 2, "d_ff": 32, "dropout_rate": 0.1})
        }
    };
    let mut data = json!({"train": "corpus/*.txt", "validation_fraction": 0.2, "cache_dir": "cache", "seq_len": 32});
    if family == "pairs" {
        data["next_sentence"] = json!(true);
    }
    json!({
        "model": model,
        "data": data,
        "run": {"steps": 8, "checkpoint_every": 3, "validate_every": 4, "validate_batches": 2, "threads_per_rank": 1},
        "train_batch_size": 4, "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
    })
}

fn train(s: &Scratch, ranks: u32, sets: &[&str], out: &str) {
    s.job("c.json").ranks(ranks).sets(sets).run(out);
}

#[test]
fn what_is_hidden_is_the_same_on_any_ranks_and_after_a_restart() {
    let s = Scratch::new();
    for family in ["bert", "t5", "pairs"] {
        s.write("c.json", config(family).to_string());
        let name = |part: &str| format!("{family}-{part}");
        let whole = s.path(&name("whole"));
        train(&s, 1, &["run.canonical_shards=2"], &name("whole"));
        let half = ["run.canonical_shards=2", "zero_optimization.stage=3"];
        train(&s, 2, &half, &name("half"));
        same(&whole, &s.path(&name("half")));
        train(
            &s,
            1,
            &["run.canonical_shards=2", "run.steps=5"],
            &name("part"),
        );
        let (part, rest) = (name("part"), name("rest"));
        s.job("c.json")
            .set("run.canonical_shards=2")
            .resume(&part)
            .run(&rest);
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
        s.job(&told).run(&name("again"));
        same(&whole, &s.path(&name("again")));
        let other = ["run.canonical_shards=2", "data.seed=9"];
        train(&s, 1, &other, &name("other"));
        assert_ne!(seen, losses(&s.path(&name("other"))));
    }
}

#[test]
fn objectives_that_do_not_fit_are_refused() {
    let s = Scratch::new();
    let refused = |family: &str, change: &dyn Fn(&mut Value), parts: &[&str]| {
        let mut c = config(family);
        change(&mut c);
        s.job_of(c).refused(parts);
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
    // Pairs of texts: of models that hide tokens, with a head for the answer.
    refused(
        "t5",
        &data("next_sentence", json!(true)),
        &["data.next_sentence", "span_corruption"],
    );
    refused(
        "bert",
        &data("sep_id", json!(3)),
        &["data.sep_id", "data.next_sentence"],
    );
    refused(
        "pairs",
        &data("seq_len", json!(4)),
        &["data.seq_len", "do not fit into 4"],
    );
    refused(
        "pairs",
        &|c| c["model"]["vocab_size"] = json!(258),
        &["data.cls_id", "258"],
    );
    refused(
        "pairs",
        &|c| c["model"]["type_vocab_size"] = json!(1),
        &["2 kinds of token", "type_vocab_size"],
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
    train(&s, 1, &["run.steps=1"], "run");
    let e = s.generate("run", "the ", 4).unwrap_err();
    names(&e, &["bert", "continue"]);
}

/// The shapes of a model's parameters.
fn shapes(model: &Path) -> BTreeMap<String, Vec<usize>> {
    let all = read(&model.join("model.safetensors"));
    all.into_iter()
        .map(|(name, (_, shape, _))| (name, shape))
        .collect()
}

#[test]
fn a_new_model_of_pairs_has_the_head_and_its_folder_trains_on() {
    let s = Scratch::new();
    s.write("c.json", config("pairs").to_string());
    train(&s, 1, &["run.steps=3"], "run");
    let made = shapes(&s.path("run/model"));
    assert_eq!(made["cls.seq_relationship.weight"], [2, 16]);
    assert_eq!(made["bert.pooler.dense.weight"], [16, 16]);
    // Bytes, the end of documents, the mask, and what stands around two texts.
    assert_eq!(made["bert.embeddings.word_embeddings.weight"], [260, 16]);
    let said = std::fs::read_to_string(s.path("run/model/config.json")).unwrap();
    assert!(said.contains("BertForPreTraining"), "{said}");
    // What the model reads counts as tokens, not what stands in rows beside them.
    assert_eq!(records(&s.path("run"))[0]["tokens"], json!(4 * 32));
    let folder = format!("model={}", json!({"hf": s.path("run/model")}));
    let head = |run: &str| {
        read(&s.path(run).join("model/model.safetensors"))["cls.seq_relationship.weight"]
            .2
            .clone()
    };
    train(&s, 1, &[&folder, "run.steps=2"], "on");
    assert_ne!(head("run"), head("on"));
    // Without pairs its head stays as it is.
    train(
        &s,
        1,
        &[&folder, "run.steps=2", "data.next_sentence=false"],
        "off",
    );
    assert_eq!(head("run"), head("off"));
    assert_eq!(made, shapes(&s.path("off/model")));
    // A teacher is asked for hidden tokens only.
    let distill = format!(
        "distill={}",
        json!({"teacher": s.path("run/model"), "alpha": 0.5, "temperature": 2.0})
    );
    train(&s, 1, &[&distill, "run.steps=2"], "taught");
    assert!(losses(&s.path("taught")).iter().all(|l| l.is_finite()));
    let estimate = s.estimate("c.json", None, None);
    assert!(estimate["model"]["params"].as_u64() > Some(1000));
}

#[test]
fn given_pairs_that_do_not_fit_are_refused() {
    let s = Scratch::new();
    let case = oracle("bert-pairs-v5");
    let given = raw(&case.join("train.safetensors"));
    let refused = |case: &Path, change: &dyn Fn(&mut Raw), parts: &[&str]| {
        let mut tensors = given.clone();
        change(&mut tensors);
        written(&s.path("t.safetensors"), &tensors);
        let config = json!({
            "model": {"hf": case.join("model")},
            "data": {"tokens": "t.safetensors", "key": "input_ids"},
            "optimizer": {"type": "AdamW"}, "run": {"steps": 1, "threads_per_rank": 1},
        });
        s.job_of(config).refused(parts);
    };
    let set = |name: &'static str, at: usize, to: i64| {
        move |t: &mut Raw| {
            t.get_mut(name).unwrap().2[8 * at..8 * at + 8].copy_from_slice(&to.to_le_bytes());
        }
    };
    refused(
        &case,
        &set("next_sentence_label", 5, 2),
        &["next_sentence_label", "holds 2", "step 2, row 1"],
    );
    refused(
        &case,
        &set("token_type_ids", 16 + 3, -1),
        &["token_type_ids", "holds -1", "step 0, row 1, column 3"],
    );
    refused(
        &case,
        &set("token_type_ids", 3, 2),
        &[
            "token_type_ids",
            "3 kinds of token",
            "type_vocab_size of the model is 2",
        ],
    );
    refused(
        &case,
        &|t| t.get_mut("next_sentence_label").unwrap().1 = vec![2, 20],
        &["next_sentence_label", "[2, 20]", "[20, 2]"],
    );
    refused(
        &oracle("bert-v5"),
        &|t| t.get_mut("token_type_ids").unwrap().1 = vec![20, 16, 2],
        &["token_type_ids", "[20, 16, 2]"],
    );
    refused(
        &oracle("bert-v4"),
        &|_| {},
        &["next_sentence_label", "BertForPreTraining"],
    );
}
