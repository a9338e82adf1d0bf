//! "Did you mean": the nearest name by edits (optimal string alignment, from `strsim`), and the words that
//! people bring from other programs.

use crossweave_family::{FAMILIES, Roles};

/// Number of insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`, ignoring
/// case and treating `-` as `_`.
pub fn distance(a: &str, b: &str) -> usize {
    let fold = |s: &str| s.to_lowercase().replace('-', "_");
    strsim::osa_distance(&fold(a), &fold(b))
}

/// Bytes of a word that may be a misspelling of a key.
const LONGEST: usize = 200;

/// The nearest of `names` to `word`, if it is near enough to be a misspelling of it: at most a third of the
/// longer word's letters differ, or one is most of the other.
pub fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > LONGEST {
        return None;
    }
    let lower = word.to_lowercase();
    let score = |name: &'a str| {
        let edits = distance(word, name);
        let (len, wanted) = (word.chars().count(), name.chars().count());
        let (shorter, longer) = (len.min(wanted), len.max(wanted));
        let near = edits * 3 <= longer || (edits == 1 && longer > 1);
        let name_lower = name.to_lowercase();
        let inside = name_lower.contains(&lower) || lower.contains(&name_lower);
        let part = inside && shorter >= 4 && shorter * 2 > longer;
        // A long common part counts as two edits.
        let score = if part && len >= 8 {
            edits.min(2)
        } else {
            edits
        };
        (near || part).then_some((score, name))
    };
    let scored = names.into_iter().filter_map(score);
    scored.min_by_key(|(score, _)| *score).map(|(_, name)| name)
}

/// Words of PyTorch, Hugging Face and Megatron for what has another name here, with the path of the key.
const WORDS: &[(&str, &str)] = &[
    ("learning_rate", "optimizer.params.lr"),
    ("lr", "optimizer.params.lr"),
    ("weight_decay", "optimizer.params.weight_decay"),
    ("adam_beta1", "optimizer.params.betas"),
    ("adam_beta2", "optimizer.params.betas"),
    ("adam_epsilon", "optimizer.params.eps"),
    ("optim", "optimizer.type"),
    ("optimizer_name", "optimizer.type"),
    ("optimizer_type", "optimizer.type"),
    ("beta1", "optimizer.params.betas"),
    ("beta2", "optimizer.params.betas"),
    ("lr_scheduler_type", "scheduler.type"),
    ("warmup_ratio", "scheduler.params.warmup_num_steps"),
    ("warmup_iters", "scheduler.params.warmup_num_steps"),
    ("lr_warmup_iters", "scheduler.params.warmup_num_steps"),
    ("min_lr", "scheduler.params.min_lr"),
    ("lr_scheduler", "scheduler"),
    ("lr_decay_style", "scheduler.type"),
    ("scheduler_type", "scheduler.type"),
    ("cpu_offload", "zero_optimization.offload_optimizer"),
    ("offload", "zero_optimization.offload_optimizer"),
    ("vocab", "model.vocab_size"),
    ("padded_vocab_size", "model.vocab_size"),
    ("warmup_steps", "scheduler.params.warmup_num_steps"),
    ("max_steps", "run.steps"),
    ("train_iters", "run.steps"),
    ("num_steps", "run.steps"),
    ("total_steps", "run.steps"),
    ("steps", "run.steps"),
    ("num_train_epochs", "run.epochs"),
    ("epochs", "run.epochs"),
    ("n_epochs", "run.epochs"),
    ("max_epochs", "run.epochs"),
    ("num_epochs", "run.epochs"),
    (
        "per_device_train_batch_size",
        "train_micro_batch_size_per_gpu",
    ),
    ("per_gpu_train_batch_size", "train_micro_batch_size_per_gpu"),
    ("micro_batch_size", "train_micro_batch_size_per_gpu"),
    ("train_micro_batch_size", "train_micro_batch_size_per_gpu"),
    ("global_batch_size", "train_batch_size"),
    ("batch_size", "train_batch_size"),
    ("grad_accum_steps", "gradient_accumulation_steps"),
    ("accumulation_steps", "gradient_accumulation_steps"),
    ("grad_accum", "gradient_accumulation_steps"),
    ("save_steps", "run.checkpoint_every"),
    ("save_every", "run.checkpoint_every"),
    ("save_strategy", "run.checkpoint_every"),
    ("save_interval", "run.checkpoint_every"),
    ("checkpoint_interval", "run.checkpoint_every"),
    ("save_total_limit", "run.keep_last"),
    ("eval_steps", "run.validate_every"),
    ("eval_every", "run.validate_every"),
    ("eval_strategy", "run.validate_every"),
    ("evaluation_strategy", "run.validate_every"),
    ("eval_interval", "run.validate_every"),
    ("max_eval_samples", "run.validate_sequences"),
    ("max_eval_batches", "run.validate_batches"),
    ("eval_iters", "run.validate_batches"),
    ("logging_steps", "run.log_every"),
    ("log_interval", "run.log_every"),
    ("output_dir", "run.out"),
    ("save_dir", "run.out"),
    ("report_to", "run.tensorboard"),
    ("logging_dir", "run.tensorboard"),
    ("max_grad_norm", "gradient_clipping"),
    ("clip_grad", "gradient_clipping"),
    ("grad_clip", "gradient_clipping"),
    ("clip_grad_norm", "gradient_clipping"),
    ("precision", "run.dtype"),
    ("mixed_precision", "run.dtype"),
    ("torch_dtype", "run.dtype"),
    ("num_gpus", "mesh.dp"),
    ("world_size", "mesh.dp"),
    ("data_parallel_size", "mesh.dp"),
    ("tensor_parallel_size", "mesh.tp"),
    ("tensor_model_parallel_size", "mesh.tp"),
    ("tp_size", "mesh.tp"),
    ("pipeline_parallel_size", "mesh.pp"),
    ("pipeline_model_parallel_size", "mesh.pp"),
    ("pp_size", "mesh.pp"),
    ("context_parallel_size", "mesh.cp"),
    ("expert_parallel_size", "mesh.ep"),
    ("zero_stage", "zero_optimization.stage"),
    ("zero", "zero_optimization"),
    ("fsdp", "zero_optimization.stage"),
    ("sharding_strategy", "zero_optimization.stage"),
    ("gradient_checkpointing", "model.recompute"),
    ("activation_checkpoint", "model.recompute"),
    ("model_name_or_path", "model.hf"),
    ("pretrained_model", "model.hf"),
    ("model_name", "model.hf"),
    ("peft", "model.lora"),
    ("peft_config", "model.lora"),
    ("lora_config", "model.lora"),
    ("lora_r", "model.lora.r"),
    ("lora_rank", "model.lora.r"),
    ("lora_alpha", "model.lora.alpha"),
    ("lora_dropout", "model.lora.dropout"),
    ("lora_target_modules", "model.lora.target_modules"),
    ("target_modules", "model.lora.target_modules"),
    ("seq_length", "data.seq_len"),
    ("max_seq_length", "data.seq_len"),
    ("max_seq_len", "data.seq_len"),
    ("sequence_length", "data.seq_len"),
    ("block_size", "data.seq_len"),
    ("context_length", "data.seq_len"),
    ("ctx_len", "data.seq_len"),
    ("n_ctx", "data.seq_len"),
    ("max_length", "data.seq_len"),
    ("cutoff_len", "data.seq_len"),
    ("text_column", "data.field"),
    ("text_field", "data.field"),
    ("text_key", "data.field"),
    ("dataset_text_field", "data.field"),
    ("content_column", "data.field"),
    ("train_on_inputs", "data.loss_on"),
    ("dataset_path", "data.train"),
    ("data_files", "data.train"),
    ("train_files", "data.train"),
    ("train_file", "data.train"),
    ("dataset", "data.train"),
    ("train_data", "data.train"),
    ("data_path", "data.train"),
    ("validation_file", "data.validation"),
    ("valid_data", "data.validation"),
    ("val_data", "data.validation"),
    ("eval_data", "data.validation"),
    ("tokenizer_name", "data.tokenizer"),
    ("tokenizer_path", "data.tokenizer"),
];

/// Words for a dimension of a model, and which key of a family it is.
type Dimension = (&'static [&'static str], fn(&Roles) -> &'static str);

/// What people call the dimensions of a model.
const DIMENSIONS: &[Dimension] = &[
    (
        &[
            "num_layers",
            "layers",
            "depth",
            "n_layers",
            "num_hidden_layers",
            "n_layer",
        ],
        |r| r.layers,
    ),
    (
        &[
            "hidden_size",
            "hidden",
            "width",
            "dim",
            "d_model",
            "hidden_dim",
            "n_embd",
        ],
        |r| r.width,
    ),
    (
        &[
            "num_heads",
            "heads",
            "num_attention_heads",
            "n_heads",
            "n_head",
        ],
        |r| r.heads,
    ),
    (&["ffn_hidden_size", "intermediate_size", "n_inner"], |r| {
        r.mlp
    }),
    (&["max_position_embeddings", "n_positions"], |r| r.positions),
];

/// Words that mean something in one section alone: the section, the word, the path of the key.
const WITHIN: &[(&str, &str, &str)] = &[
    ("optimizer", "name", "optimizer.type"),
    ("scheduler", "name", "scheduler.type"),
    ("scheduler", "warmup", "scheduler.params.warmup_num_steps"),
    ("data", "path", "data.train"),
    ("data", "files", "data.train"),
    ("mesh", "data", "mesh.dp"),
    ("mesh", "tensor", "mesh.tp"),
    ("mesh", "pipeline", "mesh.pp"),
    ("mesh", "context", "mesh.cp"),
    ("mesh", "expert", "mesh.ep"),
    ("checkpoint", "every", "run.checkpoint_every"),
    ("checkpoint", "interval", "run.checkpoint_every"),
    ("checkpoint", "keep", "run.keep_last"),
];

/// Rates of dropout, which families have by names of their own.
const DROPOUT: &[&str] = &[
    "dropout",
    "hidden_dropout",
    "attention_dropout",
    "embed_dropout",
];

/// The keys that a word means in the families, each with the names of those that have it.
fn dimension(word: &str) -> Option<Vec<(&'static str, Vec<&'static str>)>> {
    let (_, role) = DIMENSIONS.iter().find(|(words, _)| words.contains(&word))?;
    let mut out: Vec<(&str, Vec<&str>)> = vec![];
    for f in FAMILIES {
        let key = role(&f.roles);
        match out.iter_mut().find(|(k, _)| *k == key) {
            _ if key.is_empty() => {}
            Some((_, names)) => names.push(f.name),
            None => out.push((key, vec![f.name])),
        }
    }
    Some(out)
}

/// The keys of dropout among `keys`, or of the first family.
fn dropouts(here: &str, keys: &[&str]) -> Option<String> {
    let first = &FAMILIES[0];
    let mut found: Vec<&str> = vec![];
    for key in FAMILIES.iter().flat_map(|f| f.roles.dropout) {
        let wanted = match here {
            "" => first.roles.dropout.contains(&key),
            _ => keys.contains(&key),
        };
        if wanted && !key.is_empty() && !found.contains(&key) {
            found.push(key);
        }
    }
    let paths: Vec<String> = found.iter().map(|k| format!("model.{k}")).collect();
    let (last, rest) = paths.split_last()?;
    let all = match rest {
        [] => last.clone(),
        _ => format!("{} and {last}", rest.join(", ")),
    };
    Some(match here {
        "" => format!("{all} (family {})", first.name),
        _ => all,
    })
}

/// The key that a word of another program means, as a dotted path, seen from the section `here` whose keys are `keys`.
pub fn known_word(word: &str, here: &str, keys: &[&str]) -> Option<String> {
    let word = word.to_lowercase().replace('-', "_");
    let within = |(section, w, _): &&(&str, &str, &str)| *section == here && *w == word;
    if let Some((_, _, path)) = WITHIN.iter().find(within) {
        return Some((*path).to_string());
    }
    if DROPOUT.contains(&&*word) && ["", "model"].contains(&here) {
        return dropouts(here, keys);
    }
    if let Some(found) = dimension(&word) {
        if here == "model" {
            let key = found.iter().find(|(key, _)| keys.contains(key))?.0;
            return Some(format!("model.{key}"));
        }
        let one = |(key, names): &(&str, Vec<&str>)| match names.len() {
            0..=2 => format!("model.{key} (family {})", names.join(" or ")),
            n => format!("model.{key} (family {} and {} others)", names[0], n - 1),
        };
        return Some(found.iter().map(one).collect::<Vec<_>>().join(" or "));
    }
    let (_, path) = WORDS.iter().find(|(w, _)| *w == word)?;
    Some((*path).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_edits_and_swaps() {
        assert_eq!(distance("stage", "stage"), 0);
        assert_eq!(distance("satge", "stage"), 1);
        assert_eq!(distance("Zero-Optimisation", "zero_optimization"), 1);
        assert_eq!(distance("", "abc"), 3);
    }

    #[test]
    fn suggests_only_what_is_near() {
        let names = [
            "optimizer",
            "scheduler",
            "train_micro_batch_size_per_gpu",
            "seed",
        ];
        assert_eq!(nearest("optimiser", names), Some("optimizer"));
        assert_eq!(nearest("Optimizer", names), Some("optimizer"));
        assert_eq!(
            nearest("train_micro_batch_size", names),
            Some("train_micro_batch_size_per_gpu")
        );
        assert_eq!(nearest("qqq", names), None);
        // A word that is only a small part of a key says nothing about it.
        assert_eq!(nearest("seed_of_all_the_things", names), None);
        assert_eq!(nearest("size", names), None);
    }

    #[test]
    fn a_word_may_mean_something_in_one_section_alone() {
        let path = |word, here| known_word(word, here, &["resid_pdrop", "attn_pdrop"]);
        assert_eq!(path("name", "optimizer").as_deref(), Some("optimizer.type"));
        assert_eq!(path("name", "run"), None);
        assert_eq!(path("tensor", "mesh").as_deref(), Some("mesh.tp"));
        assert!(
            path("dropout", "model")
                .unwrap()
                .contains("model.attn_pdrop")
        );
        assert_eq!(known_word("dropout", "model", &["hidden_size"]), None);
        for (section, _, to) in WITHIN {
            assert!(!section.is_empty() && to.contains('.'), "{to}");
        }
    }

    #[test]
    fn words_of_other_programs_lead_to_keys() {
        let path = |word, here, keys: &[&str]| known_word(word, here, keys);
        assert_eq!(
            path("learning-rate", "", &[]).as_deref(),
            Some("optimizer.params.lr")
        );
        assert_eq!(
            path("num_layers", "model", &["n_layer"]).as_deref(),
            Some("model.n_layer")
        );
        assert!(
            path("num_layers", "", &[])
                .unwrap()
                .contains("model.num_hidden_layers")
        );
    }

    #[test]
    fn each_word_leads_to_a_key_that_exists_and_its_error_names_it() {
        let within = WITHIN.iter().map(|(_, word, path)| (*word, *path));
        for (word, path) in WORDS.iter().copied().chain(within) {
            let reported = crate::explain_key(path, None, 100);
            assert!(reported.is_ok(), "{word} leads to {path}: {reported:?}");
        }
        for (word, path) in WORDS {
            let text = format!("{{\"{word}\": 7}}").into_bytes();
            let said = match crate::Config::load("c.json", text, &[]) {
                Ok(c) => format!("{:?}", c.warnings()),
                Err(e) => e.to_string(),
            };
            assert!(said.contains(path), "{word} means {path}: {said}");
        }
    }
}
