//! Fine-tuning: examples with prompts or messages, labels beside given batches, mixtures and epochs, on any ranks.

use crate::support::{Job, Scratch, figures, losses, names, open_json, records, same};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

/// A config of the scratch folder with other data and no dropout.
fn config(s: &Scratch, data: Value, run: Value) {
    let mut config = open_json(&s.path("config.json"));
    config["data"] = data;
    config["data"]["cache_dir"] = json!("cache");
    for drop in ["resid_pdrop", "embd_pdrop", "attn_pdrop"] {
        config["model"][drop] = json!(0.0);
    }
    for key in ["steps", "validate_every"] {
        config["run"]
            .as_object_mut()
            .expect("an object")
            .remove(key);
    }
    for (key, value) in run.as_object().expect("an object") {
        config["run"][key] = value.clone();
    }
    s.write("config.json", config.to_string());
}

/// Every way to divide a job trains alike, to the rounding of other orders of sums.
fn alike(s: &Scratch, out: &str) {
    let one = figures(&s.path(out));
    let micro = |n: u32| format!("train_micro_batch_size_per_gpu={n}");
    let job = |ranks: u32| s.job("config.json").ranks(ranks);
    let ways: [(&str, Job<'_>); 5] = [
        ("two", job(2)),
        ("four", job(4).set("zero_optimization.stage=2")),
        ("large", job(1).set(&micro(8))),
        ("stages", job(2).set("mesh.pp=2")),
        ("shares", job(2).set(&micro(4)).set("run.balance=\"3,1\"")),
    ];
    for (name, job) in ways {
        let name = format!("{out}-{name}");
        job.run(&name);
        let other = figures(&s.path(&name));
        assert_eq!(one.len(), other.len());
        for (a, b) in one.iter().zip(&other) {
            for (x, y) in [(a.1, b.1), (a.3, b.3), (a.4, b.4)] {
                let close = match (x, y) {
                    (Some(x), Some(y)) => (x - y).abs() <= 1e-4 * x.abs(),
                    (x, y) => x == y,
                };
                assert!(close, "{name}, step {}: {x:?} and {y:?}", a.0);
            }
        }
    }
}

/// Sums whose answers alone are worth learning.
fn pairs(s: &Scratch) {
    let line = |i: usize| {
        let (a, b) = (i % 7, i * 5 % 3);
        let long = if i == 9 {
            "7".repeat(40)
        } else {
            String::new()
        };
        let quiet = if i == 4 {
            "7".repeat(60)
        } else {
            String::new()
        };
        let row = json!({"prompt": format!("{quiet}{a}+{b}="), "completion": format!("{}{long}", a + b), "id": i});
        format!("{row}\n")
    };
    s.write("held.jsonl", (60..70).map(line).collect::<String>());
    s.write("pairs.jsonl", (0..48).map(line).collect::<String>());
}

#[test]
fn completions_are_learnt_alike_on_any_layout() {
    let s = Scratch::new();
    pairs(&s);
    let data =
        json!({"train": "pairs.jsonl", "format": "prompt_completion", "validation": "held.jsonl"});
    config(&s, data, json!({"epochs": 2, "checkpoint_every": 4}));
    let said = s.job("config.json").run("one").said;
    assert!(
        said.contains("1 of 48 examples have more than 17 tokens and are cut there"),
        "{said}"
    );
    // 47 examples twice in batches of 8.
    assert!(
        said.contains("run.epochs 2: 12 steps of 8 samples"),
        "{said}"
    );
    assert_eq!(losses(&s.path("one")).len(), 12);
    alike(&s, "one");
    // The mean over answers only is not the mean over everything.
    s.job("config.json").set("data.loss_on=all").run("all");
    assert_ne!(losses(&s.path("all")), losses(&s.path("one")));
    // A run that was interrupted goes on with the next example, on another number of ranks too.
    s.job("config.json").steps(4).run("short");
    s.job("config.json").resume("short").run("again");
    same(&s.path("again"), &s.path("one"));
}

const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

#[test]
fn messages_are_written_by_the_template_and_answers_are_learnt() {
    let s = Scratch::new();
    let talk = |i: usize| {
        let row = json!({"messages": [
            {"role": "user", "content": format!("{i}?")},
            {"role": "assistant", "content": format!("{}", i % 5)}]});
        format!("{row}\n")
    };
    s.write("talk.jsonl", (0..40).map(talk).collect::<String>());
    s.write("chat.jinja", TEMPLATE);
    let data = json!({"train": "talk.jsonl", "format": "messages", "chat_template": "chat.jinja", "seq_len": 40});
    config(&s, data, json!({"steps": 40}));
    let wide = || s.job("config.json").set("model.n_positions=40");
    wide().check().unwrap();
    wide().run("one");
    let all = losses(&s.path("one"));
    assert!(all[39] < 0.7 * all[0], "{all:?}");
    let refused = |set: &str, parts: &[&str]| {
        wide().set(set).refused(parts);
    };
    refused("data.chat_template=no.jinja", &["no.jinja"]);
    refused(
        "data.chat_template=null",
        &["data.chat_template", "no chat template"],
    );
    refused(
        "data.format=prompt_completion",
        &["talk.jsonl:1", "data.format to messages"],
    );
    s.write(
        "talk.jsonl",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n{\"text\": \"b\"}\n",
    );
    refused(
        "data.seq_len=40",
        &["talk.jsonl:2", "\"messages\" is missing"],
    );
    // Looking at a config finds it when it is on the first line.
    s.write("talk.jsonl", "{\"text\": \"b\"}\n");
    let e = wide().check().unwrap_err();
    names(&e, &["talk.jsonl:1", "\"messages\" is missing"]);
}

#[test]
fn packed_examples_are_learnt_alike_on_any_layout() {
    let s = Scratch::new();
    pairs(&s);
    let data = json!({"train": "pairs.jsonl", "format": "prompt_completion", "validation": "held.jsonl", "pack": true});
    config(&s, data, json!({"epochs": 4, "checkpoint_every": 4}));
    let said = s.job("config.json").run("one").said;
    for part in [
        "data.train: 47 examples are packed into 24 rows of 16 tokens, which are 71.8 % full (data.pack)",
        "1 of 48 examples have more than 17 tokens and are cut there",
        "validation: 5 of 5 sequences",
        "run.epochs 4: 12 steps of 8 samples",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    alike(&s, "one");
    // Of rows of one text the second of two ranks would have 100 pairs of query and key, and the first 36: 1.47 of the mean. Texts that share a row are shorter.
    let two = ["mesh.cp=2", "mesh.cp_layout=\"contiguous\""];
    let cut = s.job("config.json").ranks(2).steps(2).sets(&two);
    cut.run("cut");
    for r in records(&s.path("cut"))
        .iter()
        .filter(|r| r["loss"].is_f64())
    {
        let fullest = r["attention_over_mean"].as_f64().expect("a number");
        assert!(fullest > 1.0 && fullest < 100.0 / 68.0, "{r}");
    }
    let whole = records(&s.path("one"));
    assert!(whole.iter().all(|r| r["attention_over_mean"].is_null()));
    // The validation loss is that of the same examples one a row, and a row counts its examples' tokens alone.
    let still = ["optimizer.params.lr=0", "scheduler=null"];
    let still = s.job("config.json").steps(2).sets(&still);
    still.clone().set("data.pack=true").run("packed");
    let single = ["data.pack=false", "train_micro_batch_size_per_gpu=4"];
    still.sets(&single).run("single");
    let (a, b) = (records(&s.path("packed")), records(&s.path("single")));
    let held = |all: &[Value]| {
        all.iter()
            .find_map(|r| r["val_loss"].as_f64())
            .expect("a loss")
    };
    let (packed, single) = (held(&a), held(&b));
    assert!(
        (packed - single).abs() < 1e-6 * single,
        "{packed}, one a row {single}"
    );
    let tokens = |all: &[Value]| {
        all.iter()
            .rev()
            .find_map(|r| r["tokens"].as_u64())
            .expect("tokens")
    };
    // 16 rows of 16 predictions are some 72 % full, and an example has about six.
    assert!(
        (160..256).contains(&tokens(&a)) && (80..112).contains(&tokens(&b)),
        "{} and {}",
        tokens(&a),
        tokens(&b)
    );
    // A run that was interrupted goes on with the next row, and counts on.
    s.job("config.json").steps(4).run("short");
    s.job("config.json").resume("short").run("again");
    same(&s.path("again"), &s.path("one"));
    assert_eq!(
        tokens(&records(&s.path("again"))),
        tokens(&records(&s.path("one")))
    );
    s.job("config.json")
        .set("data.pack=false")
        .resume("short")
        .refused(&["data.pack"]);
    s.job("config.json").set("data.on_long=refuse").refused(&[
        "data.on_long",
        "2 of 48 examples",
        "example 5 with 66",
    ]);
    let planned = s.job("config.json").ranks(2).plan();
    assert!(planned["memory"]["total"]["peak"].as_u64() > Some(0));
}

/// `[steps, rows, tokens]` of ids, and of labels where something says which count.
fn batches(s: &Scratch, counts: Option<&dyn Fn(usize) -> bool>) {
    let (steps, rows, row) = (6, 8, 9);
    let n = steps * rows * row;
    let raw =
        |f: &dyn Fn(usize) -> i64| -> Vec<u8> { (0..n).flat_map(|i| f(i).to_le_bytes()).collect() };
    let id = |i: usize| (i * i % 31) as i64;
    let label = |i: usize| {
        if counts.is_none_or(|c| c(i)) {
            id(i)
        } else {
            -100
        }
    };
    let (ids, labels) = (raw(&id), raw(&label));
    let shape = vec![steps, rows, row];
    let view = |raw| TensorView::new(Dtype::I64, shape.clone(), raw).expect("a tensor");
    let mut file = vec![("input_ids", view(&ids))];
    file.extend(counts.map(|_| ("labels", view(&labels))));
    let bytes = safetensors::serialize(file, None).expect("a file");
    s.write("batches.safetensors", bytes);
}

#[test]
fn labels_beside_given_batches_count_alike_on_any_layout() {
    let s = Scratch::new();
    // Rows of which nothing, a little or everything counts.
    let counts = |i: usize| match i / 9 % 4 {
        0 => false,
        1 => i % 9 == 5,
        2 => true,
        _ => i.is_multiple_of(2),
    };
    batches(&s, Some(&counts));
    let data = json!({"tokens": "batches.safetensors", "key": "input_ids"});
    let mut all = open_json(&s.path("config.json"));
    all["model"]["vocab_size"] = json!(40);
    s.write("config.json", all.to_string());
    config(&s, data.clone(), json!({"epochs": 1}));
    let mut all = open_json(&s.path("config.json"));
    all["data"] = data;
    s.write("config.json", all.to_string());
    s.job("config.json").run("one");
    assert_eq!(losses(&s.path("one")).len(), 6);
    let kept = open_json(&s.path("one/config.json"));
    assert_eq!(kept["data"]["labels"], "labels");
    alike(&s, "one");
    // Where every label is the next token, the bits are those without labels.
    batches(&s, Some(&|_| true));
    s.job("config.json").run("every");
    batches(&s, None);
    s.job("config.json").run("plain");
    same(&s.path("every"), &s.path("plain"));
    // Two passes begin again.
    s.job("config.json").set("run.epochs=2").run("twice");
    let twice = losses(&s.path("twice"));
    assert_eq!(
        (twice.len(), &twice[..6]),
        (12, &losses(&s.path("every"))[..])
    );
    batches(&s, Some(&|i| i / 72 != 3));
    s.job("config.json")
        .refused(&["data.labels", "no label of step 3"]);
}

#[test]
fn mixtures_train_resume_and_say_their_shares() {
    let s = Scratch::new();
    s.write("corpus/b.txt", "other words of another source. ".repeat(9));
    let data = json!({
        "train": [{"files": "corpus/a.txt", "weight": 0.75}, {"files": "corpus/b.txt", "weight": 0.25}],
        "validation_fraction": 0.2
    });
    config(&s, data, json!({"steps": 12, "checkpoint_every": 5}));
    let said = s.job("config.json").run("whole").said;
    assert!(
        said.contains("data.train[0]: 75.00 % of the samples, 72 of 96, 0."),
        "{said}"
    );
    assert!(
        said.contains("data.train[1]: 25.00 % of the samples, 24 of 96, 1."),
        "{said}"
    );
    alike(&s, "whole");
    s.job("config.json").steps(5).run("cut");
    s.job("config.json").resume("cut").run("again");
    same(&s.path("again"), &s.path("whole"));
    let two = s.job("config.json").ranks(2).resume("cut");
    two.run("elsewhere");
    let near = losses(&s.path("elsewhere"));
    let whole = losses(&s.path("whole"));
    assert!(
        whole
            .iter()
            .zip(&near)
            .all(|(a, b)| (a - b).abs() < 1e-4 * a),
        "{whole:?} {near:?}"
    );
    // Other weights are another run.
    let text = std::fs::read_to_string(s.path("config.json")).expect("a config");
    s.write("other.json", text.replace("0.25", "0.5"));
    s.job("other.json")
        .steps(14)
        .resume("whole")
        .refused(&["data.train"]);
    s.job("config.json").set("data.train=[{\"files\": \"corpus/*.txt\", \"weight\": 1}, {\"files\": \"corpus/b.txt\", \"weight\": 1}]").refused(&["data.train[1]", "b.txt", "both weights"]);
}

#[test]
fn epochs_are_steps_of_the_data_and_schedules_end_with_them() {
    let s = Scratch::new();
    let data = json!({"train": "corpus/a.txt"});
    config(&s, data, json!({"epochs": 0.25}));
    let mut all = open_json(&s.path("config.json"));
    all["scheduler"] = json!({"type": "cosine", "params": {"min_lr": 1e-3}});
    s.write("config.json", all.to_string());
    s.job("config.json").run("epochs");
    let tokens = std::fs::metadata(s.path("corpus/a.txt"))
        .expect("a file")
        .len()
        + 1;
    let steps = (tokens as f64 * 0.25 / 16.0 / 8.0).ceil() as u64;
    let all = records(&s.path("epochs"));
    let last = all.iter().filter_map(|r| r["step"].as_u64()).max();
    assert_eq!(last, Some(steps));
    let n = format!("run.steps={steps}");
    s.job("config.json")
        .set("run.epochs=null")
        .set(&n)
        .run("steps");
    same(&s.path("epochs"), &s.path("steps"));
    // So many steps stand in place of the file's length.
    s.job("config.json").steps(3).run("flag");
    assert_eq!(losses(&s.path("flag")).len(), 3);
    s.job("config.json").ranks(2).plan();
    s.job("config.json")
        .set("run.steps=9")
        .refused(&["run.epochs", "run.steps is given too"]);
}
