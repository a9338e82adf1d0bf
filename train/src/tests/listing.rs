//! What a config becomes on its ranks, before and after a change of the code between the two: for every example config, and for models with
//! images, a teacher, adapters and rows of two texts, each under some forty layouts, the program, the division and the batches of each class
//! of equal ranks.
//!
//! `tests/listing.txt` has a line for each config and layout, with a hash of each. Where a line differs, the whole texts of two builds show how:
//! `CROSSWEAVE_LISTING=/some/folder cargo test --release -p crossweave --lib listing` writes them, a file a line; `diff -r` compares.
//! `UPDATE_EXPECT=1` rewrites `tests/listing.txt`, for a change that means to give ranks something else. A config that a layout refuses has the
//! hash of the message. Everything is planned on the null device, so that no line depends on the machine.

use super::listed::{self, begin};
use crate::backend::BackendChoice;
use crate::events::Unwatched;
use crate::figures::check::check;
use crate::ranks::Ranks;
use crate::surroundings::Surroundings;
use crate::train_error::Result;
use crate::{Continued, Lines, Request};
use crossweave_files as files;
use crossweave_job::open::Opened;
use crossweave_job::{Job, config_file};
use crossweave_nn::{ModelSpec, units};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name, `--ranks`, and what is set.
type Layout = (&'static str, &'static str, &'static [&'static str]);

const OFFLOAD: &str = r#"zero_optimization.offload_optimizer={"device": "cpu"}"#;

#[rustfmt::skip]
const LAYOUTS: &[Layout] = &[
    ("one", "1", &[]),
    ("one-full", "1", &["model.recompute=full"]),
    ("dp2", "2", &[]),
    ("dp3", "3", &[]),
    ("dp2-zero1", "2", &["zero_optimization.stage=1"]),
    ("dp2-zero2", "2", &["zero_optimization.stage=2"]),
    ("dp4-zero3", "4", &["zero_optimization.stage=3"]),
    ("dp4-hpz", "4", &["zero_optimization.stage=3", "zero_optimization.zero_hpz_partition_size=2"]),
    ("dp2-qwz", "2", &["zero_optimization.stage=3", "zero_optimization.zero_quantized_weights=true", r#"bf16={"enabled": true}"#]),
    ("dp2-each", "2", &["zero_optimization.stage=2", "zero_optimization.reduce_gradients=micro_batch", "gradient_accumulation_steps=2", "train_micro_batch_size_per_gpu=null"]),
    ("dp2-selective", "2", &["zero_optimization.stage=3", "model.recompute=selective"]),
    ("dp2-accumulate", "2", &["gradient_accumulation_steps=4", "train_micro_batch_size_per_gpu=null"]),
    ("dp2-buckets", "2", &["zero_optimization.reduce_bucket_size=1000", "zero_optimization.overlap_comm=false"]),
    ("tp2", "2", &["mesh.tp=2"]),
    ("tp4", "4", &["mesh.tp=4"]),
    ("dp2-tp2", "4", &["mesh.tp=2"]),
    ("dp2-tp2-zero1", "4", &["mesh.tp=2", "zero_optimization.stage=1"]),
    ("dp2-tp2-zero2", "4", &["mesh.tp=2", "zero_optimization.stage=2"]),
    ("dp2-tp2-zero3", "4", &["mesh.tp=2", "zero_optimization.stage=3"]),
    ("dp2-tp2-order", "4", &["mesh.tp=2", r#"mesh.order="tp,pp,cp,dp""#]),
    ("pp2", "2", &["mesh.pp=2"]),
    ("pp2-gpipe", "2", &["mesh.pp=2", "mesh.pp_schedule=gpipe"]),
    ("pp2-layers", "2", &["mesh.pp=2", r#"mesh.pp_layers="1,5""#]),
    ("pp3-dp2", "6", &["mesh.pp=3"]),
    ("pp2-dp2-zero1", "4", &["mesh.pp=2", "zero_optimization.stage=1"]),
    ("pp2-tp2", "4", &["mesh.pp=2", "mesh.tp=2"]),
    ("pp2-tp2-dp2", "8", &["mesh.pp=2", "mesh.tp=2", "zero_optimization.stage=1"]),
    ("pp2-weights", "2", &["mesh.pp=2", r#"run.balance="3,1""#]),
    ("dp2-weights", "2", &[r#"run.balance="3,1""#]),
    ("dp4-weights-zero2", "4", &[r#"run.balance="2,1,1,4""#, "zero_optimization.stage=2"]),
    ("dp2-canonical", "2", &["run.canonical_shards=4"]),
    ("dp3-canonical-zero1", "3", &["run.canonical_shards=8", "zero_optimization.stage=1"]),
    ("islands", "cpu:2,null:2", &[]),
    ("islands-tp2", "cpu:2,null:2", &["mesh.tp=2"]),
    ("offload", "2", &[OFFLOAD, "zero_optimization.stage=1"]),
    ("offload-part", "2", &[r#"zero_optimization.offload_optimizer={"device": "cpu", "ratio": 0.5}"#, "zero_optimization.stage=3"]),
    ("offload-files", "2", &[r#"zero_optimization.offload_optimizer={"device": "nvme", "nvme_path": "TMP"}"#, "zero_optimization.stage=3"]),
    ("offload-params", "2", &[OFFLOAD, r#"zero_optimization.offload_param={"device": "cpu"}"#, "zero_optimization.stage=3"]),
    ("offload-tp2", "2", &[OFFLOAD, "mesh.tp=2"]),
    ("activations", "1", &["activation_checkpointing.cpu_checkpointing=true", "model.recompute=full"]),
    ("fp16", "2", &[r#"fp16={"enabled": true}"#, r#"bf16={"enabled": false}"#, "zero_optimization.stage=1"]),
    ("wire", "2", &["communication_data_type=bf16", "gradient_predivide_factor=2.0", "prescale_gradients=false"]),
    ("lora", "2", &[r#"model.lora={"r": 2, "alpha": 4}"#]),
    ("lora-tp2-pp2", "4", &[r#"model.lora={"r": 2, "alpha": 4}"#, "mesh.tp=2", "mesh.pp=2"]),
    ("frozen", "2", &[r#"optimizer.param_groups=[{"match": "*.bias", "frozen": true}]"#, "zero_optimization.stage=2"]),
    ("seed", "2", &["seed=7"]),
    ("pp9", "9", &["mesh.pp=9"]),
];

fn tree() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// What the configs name, in a folder of its own.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Files {
        let f = Files(tempfile::tempdir().unwrap());
        let text = |i: usize| format!("the {} of {i} is {}\n", ["square", "half"][i % 2], i * i);
        let lines = |n: usize| (0..n).map(text).collect::<String>();
        f.write("a.txt", &lines(6000));
        let object = |i: usize| json!({"text": text(i), "body": text(i + 1)}).to_string() + "\n";
        f.write("b.jsonl", &(0..4000).map(object).collect::<String>());
        let turn = |role: &str, i: usize| json!({"role": role, "content": text(i)});
        let chat = |i: usize| json!({"messages": [turn("user", i), turn("assistant", i + 1)]});
        let chats = (0..1500).map(|i| chat(i).to_string() + "\n");
        f.write("c.jsonl", &(0..4000).map(object).collect::<String>());
        f.write("chats.jsonl", &chats.collect::<String>());
        f.write("chat.jinja", "{% for m in messages %}{{ m.role }}: {% generation %}{{ m.content }}{% endgeneration %}{% endfor %}");
        let gpt2 = json!({"model_type": "gpt2", "n_embd": 16, "n_head": 4, "n_layer": 4, "n_positions": 512, "vocab_size": 257});
        f.model("gpt2", &gpt2);
        let llama = json!({"model_type": "llama", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "vocab_size": 257});
        f.model("llama", &llama);
        f
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.path().join(name), text).unwrap();
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// A model's folder, with zeros for weights.
    fn model(&self, name: &str, config: &Value) {
        let dir = self.0.path().join(name);
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
        let spec = ModelSpec::from_hf(config).unwrap();
        let params = units(spec.model()).into_iter().flat_map(|u| u.params);
        let zeros = vec![0u8; 1 << 20];
        let tensor = |p: crossweave_tensor::ParamDecl| {
            let shape: Vec<usize> = p.shape.dims().iter().map(|d| *d as usize).collect();
            let bytes = 4 * p.shape.numel() as usize;
            let view = TensorView::new(Dtype::F32, shape, &zeros[..bytes]).unwrap();
            (p.name, view)
        };
        let all: Vec<_> = params.map(tensor).collect();
        safetensors::serialize_to_file(all, None, &dir.join("model.safetensors")).unwrap();
    }

    /// The first steps of given batches of the oracles, each of four times as many rows.
    fn repeated(&self, tokens: &str) -> String {
        let bytes = files::read(&tree().join("tests/oracles").join(tokens), files::TABLE).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let mut all = vec![];
        let tensors = file.tensors().into_iter();
        for (name, t) in tensors.filter(|(_, t)| t.shape().len() > 1) {
            let mut shape = t.shape().to_vec();
            let step = t.data().len() / shape[0];
            let steps = t.data().chunks_exact(step).take(3);
            let data: Vec<u8> = steps.flat_map(|s| s.repeat(4)).collect();
            shape[0] = shape[0].min(3);
            shape[1] *= 4;
            all.push((name, t.dtype(), shape, data));
        }
        let path = self.path(&tokens.replace('/', "-"));
        let views = all.iter().map(|(name, dtype, shape, data)| {
            let view = TensorView::new(*dtype, shape.clone(), data).unwrap();
            (name.clone(), view)
        });
        let views: Vec<_> = views.collect();
        safetensors::serialize_to_file(views, None, Path::new(&path)).unwrap();
        path
    }

    /// Every example config with files that are there, and what the examples do not have.
    fn configs(&self) -> Vec<(String, Value)> {
        let mut all = vec![];
        let folder = tree().join("examples/configs");
        for e in std::fs::read_dir(folder).unwrap() {
            let path = e.unwrap().path();
            if path.extension().is_none_or(|x| x != "json") {
                continue;
            }
            let text = files::read(&path, files::TEXT).unwrap();
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            all.push((
                name,
                self.with_files(serde_json::from_slice(&text).unwrap()),
            ));
        }
        all.sort_by(|a, b| a.0.cmp(&b.0));
        let oracle = |name: &str| tree().join("tests/oracles").join(name);
        let given = |model: &str, tokens: &str| {
            let tokens = self.repeated(tokens);
            json!({"model": {"hf": oracle(model)}, "data": {"tokens": tokens, "key": "input_ids"},
                "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "run": {}})
        };
        let mut add = |name: &str, config: Value| all.push((name.into(), config));
        add(
            "images",
            given("llava-v4/model", "vision/train.safetensors"),
        );
        let mut parts = given("llava-v4/model", "vision/train.safetensors");
        parts["model"]["parts"] = json!({"vision": {"train": false}});
        add("images-frozen", parts);
        let mut teacher = given("gpt2-tied/model", "gpt2-tied/train.safetensors");
        teacher["distill"] =
            json!({"teacher": oracle("llama-mqa/model"), "alpha": 0.5, "temperature": 2.0});
        add("teacher", teacher);
        add(
            "adapter",
            given("adapters/gpt2/adapter", "gpt2-tied/train.safetensors"),
        );
        add("spans", given("t5-v5/model", "t5-v5/train.safetensors"));
        add(
            "pairs",
            given("bert-pairs-v5/model", "bert-pairs-v5/train.safetensors"),
        );
        let documents = json!({"model": {"family": "llama", "num_hidden_layers": 4, "hidden_size": 16, "num_attention_heads": 4,
                "max_position_embeddings": 32},
            "data": {"train": self.path("a.txt"), "cache_dir": self.path("cache"), "tokenizer": "bytes", "append_eod": true,
                "reset_attention_mask": true, "reset_position_ids": true},
            "train_batch_size": 24, "optimizer": {"type": "Muon", "params": {"lr": 1e-3}}, "run": {"epochs": 1}});
        add("documents", documents);
        all
    }

    fn with_files(&self, mut config: Value) -> Value {
        if let Some(hf) = config["model"].get_mut("hf") {
            *hf = json!(self.path(&hf.as_str().unwrap().replace("models/", "")));
        }
        let data = &mut config["data"];
        if data.get("tokens").is_some() {
            data["tokens"] = json!(self.repeated("gpt2-tied/train.safetensors"));
            return config;
        }
        let chat = data.get("format").is_some();
        data["train"] = match &data["train"] {
            Value::Array(parts) => {
                let file = |(i, p): (usize, &Value)| {
                    let mut p = p.clone();
                    p["files"] = json!(self.path(["b.jsonl", "a.txt", "c.jsonl"][i]));
                    p
                };
                parts.iter().enumerate().map(file).collect()
            }
            _ if chat => json!(self.path("chats.jsonl")),
            _ if data.get("field").is_some() => json!(self.path("b.jsonl")),
            _ => json!(self.path("a.txt")),
        };
        if chat {
            data["chat_template"] = json!(self.path("chat.jinja"));
        }
        // Of the smallest vocabulary, so that nothing large is read.
        data["tokenizer"] = json!("bytes");
        data["cache_dir"] = json!(self.path("cache"));
        config
    }

    fn args(&self, config: &str, (_, ranks, sets): &Layout) -> Request {
        let local = |set: &&str| set.replace("TMP", &self.0.path().display().to_string());
        let several = ranks.contains(':');
        let config = self.0.path().join(config);
        let around = Surroundings {
            scratch: std::env::temp_dir(),
            ..Surroundings::default()
        };
        Request {
            ranks: Some(Ranks::parse(ranks).unwrap()),
            backend: BackendChoice {
                name: (!several).then(|| "null".into()),
                ..BackendChoice::default()
            },
            sets: sets.iter().map(local).collect(),
            out: Some(self.0.path().join("out")),
            lines: Lines::Quiet,
            ..Request::new(config, around, Arc::new(Unwatched))
        }
    }

    /// `text` without the names of folders of this machine.
    fn anywhere(&self, text: &str) -> String {
        let here = tree().display().to_string();
        let text = text.replace(&self.0.path().display().to_string(), "TMP");
        text.replace(&here, "TREE")
    }
}

/// What `plan` and `explain` make of a config.
fn sizes(args: &Request) -> Result<Job> {
    let ranks = u64::from(args.ranks.as_ref().map_or(1, Ranks::count));
    let caches = &args.around.caches;
    let config = config_file::load(&args.config, &args.sets, caches)?;
    Ok(Opened::sizes(config, ranks, caches)?)
}

/// A job as far as its steps depend on it.
fn rehearsed(job: &Job) -> String {
    let batch = &job.resolved.batch;
    let mut text = format!("seq {} batch {batch:?}\n", job.seq_len);
    for p in job.source.units().iter().flat_map(|u| &u.params) {
        let _ = writeln!(text, "{} {:?}", p.name, p.shape);
    }
    text
}

/// What the files of a config complete it to; how long the run is follows from text alone.
fn completed(job: &Job) -> [Value; 5] {
    let all = serde_json::to_value(&job.resolved.settings).unwrap();
    ["model", "data", "zero_optimization", "optimizer", "mesh"].map(|key| all[key].clone())
}

fn checked(args: &Request) -> Result<String> {
    let mut sets = args.sets.clone();
    sets.push(r#"run.backend="null""#.into());
    check(&Request {
        sets,
        ranks: args.ranks.as_ref().map(|r| Ranks::Count(r.count())),
        ..Request::new(
            args.config.clone(),
            args.around.clone(),
            Arc::new(Unwatched),
        )
    })?;
    Ok(String::new())
}

fn hash(text: &str) -> String {
    let bytes = Sha256::digest(text.as_bytes());
    bytes[..5].iter().map(|b| format!("{b:02x}")).collect()
}

/// The columns of a line: name and text.
fn columns(f: &Files, args: &Request) -> Vec<(&'static str, String)> {
    let said = |r: Result<String>| r.unwrap_or_else(|e| format!("refused: {e}"));
    let (run, sizes) = (begin(args), sizes(args));
    if let (Ok(run), Ok(sizes)) = (&run, &sizes) {
        // A config is opened in one way, whether its text is read or not.
        assert_eq!(rehearsed(&run.job), rehearsed(sizes));
        assert_eq!(completed(&run.job), completed(sizes));
    }
    let mut all = match run {
        Ok(run) => {
            let l = listed::of(&run).unwrap();
            vec![
                ("ranks", l.classes),
                ("division", l.division),
                ("program", l.program),
                ("batches", l.batches),
            ]
        }
        Err(e) => vec![("refused", e.to_string())],
    };
    all.push(("plan", said(sizes.map(|job| rehearsed(&job)))));
    all.push(("check", said(checked(args))));
    all.iter_mut()
        .for_each(|(_, text)| *text = f.anywhere(text));
    all
}

#[test]
fn every_example_gives_its_ranks_what_it_gave_them() {
    let f = Files::new();
    let whole = std::env::var_os("CROSSWEAVE_LISTING").map(PathBuf::from);
    let mut out = String::new();
    let mut list = |name: &str, layout: &Layout, args: &Request| {
        let _ = write!(out, "{name} {}", layout.0);
        for (column, text) in columns(&f, args) {
            let short = match column {
                "ranks" => text.clone(),
                _ => hash(&text),
            };
            let _ = write!(out, " {column} {short}");
            if let Some(dir) = &whole {
                std::fs::create_dir_all(dir).unwrap();
                std::fs::write(dir.join(format!("{name}.{}.{column}", layout.0)), text).unwrap();
            }
        }
        out.push('\n');
    };
    for (name, config) in f.configs() {
        // A key a line, so that no place in it depends on the length of a path.
        let text = serde_json::to_string_pretty(&config).unwrap();
        f.write(&format!("{name}.json"), &text);
        for layout in LAYOUTS {
            list(&name, layout, &f.args(&format!("{name}.json"), layout));
        }
    }
    // A run that goes on, under the layouts that may continue it and some that may not.
    let args = |layout: &Layout, steps: u64| Request {
        steps: Some(steps),
        ..f.args("documents.json", layout)
    };
    let mut first = args(&LAYOUTS[2], 2);
    first.backend.name = Some("cpu".into());
    listed::train(&first).unwrap();
    for layout in LAYOUTS {
        let again = Request {
            resume: first.out.clone().map(Continued::Run),
            ..args(layout, 5)
        };
        list("resumed", layout, &again);
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/listing.txt");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&file, &out).unwrap();
    }
    let before = files::read_text(&file, files::TEXT).unwrap_or_default();
    let pairs = before.lines().zip(out.lines());
    let differ: Vec<String> = pairs
        .filter(|(a, b)| a != b)
        .map(|(a, b)| format!("- {a}\n+ {b}"))
        .collect();
    assert!(
        differ.is_empty() && before.lines().count() == out.lines().count(),
        "{} of {} lines differ (this file's head says how to see in what):\n{}",
        differ.len(),
        out.lines().count(),
        differ[..differ.len().min(20)].join("\n")
    );
}
