//! A scratch folder with a small corpus, and a config with all that a run can have.

use std::path::PathBuf;

/// A scratch folder with a small corpus and a config, removed at the end.
pub struct Scratch {
    pub dir: tempfile::TempDir,
}

/// A model small enough that a run takes a fraction of a second, with all that a run can have: validation, clipping, dropout,
/// accumulation, a schedule, checkpoints.
pub const CONFIG: &str = r#"{
 "model": {"family": "gpt2", "n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 16, "resid_pdrop": 0.1, "embd_pdrop": 0.1},
 "data": {"train": "corpus/*.txt", "validation_fraction": 0.2, "cache_dir": "cache"},
 "run": {"steps": 8, "checkpoint_every": 3, "validate_every": 4, "validate_batches": 2, "threads_per_rank": 1,
         "generate": {"prompt": "the ", "tokens": 8}},
 "train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0,
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}},
 "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4, "warmup_max_lr": 1e-2}}
}"#;

impl Scratch {
    pub fn new() -> Scratch {
        Scratch::within(tempfile::tempdir().expect("a folder"))
    }

    /// The same in a folder that is there.
    pub fn within(dir: tempfile::TempDir) -> Scratch {
        let s = Scratch { dir };
        std::fs::create_dir(s.path("corpus")).expect("a folder");
        let text: String = (0..400)
            .map(|i| {
                format!(
                    "the {} of number {} is {}\n",
                    ["square", "half", "name"][i % 3],
                    i,
                    i * i
                )
            })
            .collect();
        std::fs::write(s.path("corpus/a.txt"), text).expect("a file");
        s.write("config.json", CONFIG);
        s
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), text).expect("a file");
    }
}
