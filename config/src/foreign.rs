//! Config files of other programs, recognised by their keys, so that the answer is one sentence about the
//! program instead of a page about its keys.

use crate::error::{At, Errors, Problem};
use crate::json::{Json, Node};

/// A program, keys that only its files have, how many of them tell, and what to write instead.
struct Program {
    name: &'static str,
    keys: &'static [&'static str],
    enough: usize,
    fix: &'static str,
}

const INSTEAD: &str = "write a Crossweave config";

/// In the order in which they are asked: the most particular first.
const PROGRAMS: &[Program] = &[
    Program {
        name: "a PEFT adapter (its adapter_config.json)",
        keys: &[
            "peft_type",
            "base_model_name_or_path",
            "lora_alpha",
            "target_modules",
            "task_type",
            "inference_mode",
        ],
        enough: 4,
        fix: "name the adapter's folder as {\"model\": {\"hf\": FOLDER}} to train on it, or write its keys under \"model.lora\", with \"data\" and \"run\"",
    },
    Program {
        name: "a Hugging Face model (its config.json)",
        keys: &[
            "architectures",
            "model_type",
            "transformers_version",
            "initializer_range",
            "torch_dtype",
            "tie_word_embeddings",
            "use_cache",
            "bos_token_id",
            "eos_token_id",
            "vocab_size",
            "hidden_act",
        ],
        enough: 4,
        fix: "name the model's folder as {\"model\": {\"hf\": FOLDER}}, with \"data\" and \"run\"",
    },
    Program {
        name: "torchtune",
        keys: &["_component_"],
        enough: 1,
        fix: "name the checkpoint's folder as \"model.hf\", write the dataset's files as \"data.train\", batch_size as train_micro_batch_size_per_gpu and epochs as run.epochs",
    },
    Program {
        name: "Axolotl",
        keys: &[
            "base_model",
            "sequence_len",
            "micro_batch_size",
            "num_epochs",
            "datasets",
            "adapter",
            "load_in_8bit",
            "load_in_4bit",
            "val_set_size",
            "sample_packing",
            "flash_attention",
            "lora_r",
        ],
        enough: 3,
        fix: "write base_model as model.hf, sequence_len as data.seq_len, micro_batch_size as train_micro_batch_size_per_gpu, num_epochs as run.epochs and lora_* under \"model.lora\"; the DeepSpeed file that it names stays as it is",
    },
    Program {
        name: "LLaMA-Factory (Hugging Face TrainingArguments)",
        keys: &[
            "finetuning_type",
            "stage",
            "do_train",
            "template",
            "cutoff_len",
            "dataset_dir",
            "model_name_or_path",
        ],
        enough: 3,
        fix: "write model_name_or_path as model.hf, cutoff_len as data.seq_len, per_device_train_batch_size as train_micro_batch_size_per_gpu and num_train_epochs as run.epochs, with the files of its dataset as \"data.train\"",
    },
    Program {
        name: "Hugging Face Accelerate",
        keys: &[
            "compute_environment",
            "distributed_type",
            "num_machines",
            "num_processes",
            "machine_rank",
            "downcast_bf16",
            "main_training_function",
            "rdzv_backend",
            "deepspeed_config",
            "fsdp_config",
        ],
        enough: 2,
        fix: "give the DeepSpeed file that its deepspeed_config_file names with \"model\", \"data\" and \"run\" added, and the number of processes as --ranks",
    },
    Program {
        name: "GPT-NeoX",
        keys: &[
            "pipe_parallel_size",
            "model_parallel_size",
            "attention_config",
            "pos_emb",
            "no_weight_tying",
            "gpt_j_residual",
            "rotary_pct",
            "checkpoint_factor",
            "train_iters",
            "lr_decay_iters",
            "data_impl",
            "train_data_paths",
            "output_layer_parallelism",
            "init_method",
            "output_layer_init_method",
            "synchronize_each_layer",
            "partition_activations",
            "vocab_file",
            "data_path",
            "num_workers",
            "eval_iters",
            "scaled_upper_triang_masked_softmax_fusion",
            "norm",
        ],
        enough: 3,
        fix: "write its dimensions under \"model\", train_iters as run.steps, pipe_parallel_size as mesh.pp and model_parallel_size as mesh.tp; its DeepSpeed keys stay as they are",
    },
    Program {
        name: "Megatron-LM",
        keys: &[
            "tensor_model_parallel_size",
            "pipeline_model_parallel_size",
            "context_parallel_size",
            "expert_model_parallel_size",
            "ffn_hidden_size",
            "micro_batch_size",
            "global_batch_size",
            "train_iters",
            "lr_decay_style",
            "lr_decay_iters",
            "seq_length",
            "num_attention_heads",
            "use_distributed_optimizer",
            "tokenizer_type",
            "swiglu",
            "num_layers",
            "clip_grad",
            "min_lr",
        ],
        enough: 3,
        fix: "write its dimensions under \"model\", global_batch_size as train_batch_size, train_iters as run.steps, *_model_parallel_size under \"mesh\" and lr as optimizer.params.lr",
    },
    Program {
        name: "Hugging Face TrainingArguments",
        keys: &[
            "output_dir",
            "per_device_train_batch_size",
            "per_device_eval_batch_size",
            "num_train_epochs",
            "learning_rate",
            "lr_scheduler_type",
            "warmup_ratio",
            "logging_steps",
            "save_steps",
            "save_strategy",
            "eval_strategy",
            "evaluation_strategy",
            "report_to",
            "gradient_checkpointing",
            "overwrite_output_dir",
            "model_name_or_path",
            "max_steps",
            "max_grad_norm",
            "save_total_limit",
            "dataloader_num_workers",
        ],
        enough: 3,
        fix: "write output_dir as run.out, per_device_train_batch_size as train_micro_batch_size_per_gpu, max_steps as run.steps (or num_train_epochs as run.epochs) and learning_rate as optimizer.params.lr, with \"model\" and \"data\"",
    },
];

/// Answers a file that parsed and is another program's. A file with a section only ours or
/// DeepSpeed's have is judged by its keys.
pub fn of_root(file: &str, root: &Node) -> Option<Errors> {
    let Json::Object(members) = &root.value else {
        return None;
    };
    let has = |key: &str| {
        members
            .iter()
            .any(|m| m.key == key && matches!(m.node.value, Json::Object(_)))
    };
    if has("model") || has("data") {
        return None;
    }
    let keys: Vec<String> = members.iter().map(|m| plain(&m.key)).collect();
    if ["program", "sessions"]
        .iter()
        .all(|k| keys.iter().any(|key| key == k))
    {
        let what = "the record of a run (run.json), not a config".to_string();
        return Some(refuse(
            file,
            what,
            "give config.json of the same folder".into(),
        ));
    }
    // Megatron's options may lie one level down (`"training": {…}`, `"MODEL_ARGS": {…}`).
    let nested = members.iter().filter_map(|m| match &m.node.value {
        Json::Object(inner) => Some(inner.iter().map(|m| plain(&m.key))),
        _ => None,
    });
    let deep: Vec<String> = if has("zero_optimization") {
        vec![]
    } else {
        nested.flatten().collect()
    };
    let program = find(&keys).or_else(|| find(&[keys, deep].concat()))?;
    Some(answer(file, program))
}

/// Answers a text that is no JSON and another program's: YAML, or a list of options.
pub fn of_text(file: &str, text: &str) -> Option<Errors> {
    let keys: Vec<String> = text.lines().take(2000).filter_map(key_of_line).collect();
    if let Some(program) = find(&keys) {
        return Some(answer(file, program));
    }
    let starts = |line: &str| line.chars().next().is_some_and(|c| c.is_ascii_alphabetic());
    let yaml = !text.trim_start().starts_with(['{', '[', '"'])
        && text
            .lines()
            .filter(|l| starts(l) && key_of_line(l).is_some())
            .count()
            >= 2;
    yaml.then(|| {
        let what = "YAML, and a config is JSON".to_string();
        refuse(file, what, AS_JSON.into())
    })
    .or_else(|| {
        let toml = text.lines().any(is_table) && !text.trim_start().starts_with(['{', '"']);
        toml.then(|| refuse(file, "TOML, and a config is JSON".into(), AS_JSON.into()))
    })
}

const AS_JSON: &str =
    "write {\"key\": value, …} with the keys that `crossweave config explain` lists";

/// Returns true if the line opens a table of TOML: `[training]`.
fn is_table(line: &str) -> bool {
    let name = line.trim().trim_start_matches('[').trim_end_matches(']');
    let word = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    line.starts_with('[')
        && line.trim_end().ends_with(']')
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(word)
}

/// The key of `key: value`, `"key": value` or `--key value`.
fn key_of_line(line: &str) -> Option<String> {
    let line = line.trim_start().trim_start_matches("- ");
    let option = line.strip_prefix("--");
    let word: String = option
        .unwrap_or(line)
        .trim_start_matches(['"', '\''])
        .chars()
        .take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
        .collect();
    let rest = &option.unwrap_or(line).trim_start_matches(['"', '\''])[word.len()..];
    let rest = rest.trim_start_matches(['"', '\'']).trim_start();
    (!word.is_empty() && (option.is_some() || rest.starts_with(':'))).then(|| plain(&word))
}

fn plain(key: &str) -> String {
    key.to_ascii_lowercase().replace('-', "_")
}

fn find(keys: &[String]) -> Option<&'static Program> {
    let hits = |p: &Program| {
        p.keys
            .iter()
            .filter(|k| keys.iter().any(|key| key == *k))
            .count()
    };
    let found = PROGRAMS.iter().filter(|p| hits(p) >= p.enough);
    // The one that knows most of them; of equals the first.
    found.rev().max_by_key(|p| hits(p))
}

fn answer(file: &str, program: &Program) -> Errors {
    let what = format!(
        "a configuration of {}, which this program does not read",
        program.name
    );
    refuse(file, what, format!("{INSTEAD}: {}", program.fix))
}

fn refuse(file: &str, what: String, fix: String) -> Errors {
    Errors(vec![Problem {
        file: file.into(),
        at: At::Whole,
        path: String::new(),
        what,
        fix,
    }])
}
