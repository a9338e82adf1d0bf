//! Ranks of a back end that has no collectives (wgpu, on whatever adapter there is) train by the bridge: two of them with everything sharded,
//! and one beside a rank of the CPU.

use std::path::PathBuf;
use std::process::Command;

/// The program and the plugin beside it, built where they are missing or old.
fn program() -> PathBuf {
    crossweave_tests::built::plugins().join("crossweave")
}

const CONFIG: &str = r#"{
  "model": {"family": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 16},
  "data": {"train": "text.txt", "tokenizer": "bytes"},
  "run": {"steps": 12},
  "train_batch_size": 2,
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1}},
  "gradient_clipping": 1.0
}"#;

struct Job {
    program: PathBuf,
    dir: tempfile::TempDir,
}

impl Job {
    /// Trains and answers the losses, or what was said instead.
    fn train(&self, ranks: &str, sets: &[&str]) -> Result<Vec<f64>, String> {
        let out = ranks.replace([':', ','], "-") + &sets.join("");
        let out = out.replace(['.', '='], "-");
        let mut c = Command::new(&self.program);
        c.current_dir(self.dir.path());
        c.args([
            "train",
            "config.json",
            "--ranks",
            ranks,
            "--out",
            out.as_str(),
        ]);
        sets.iter().for_each(|s| {
            c.args(["--set", s]);
        });
        let o = c.output().expect("the program starts");
        if !o.status.success() {
            return Err(String::from_utf8_lossy(&o.stderr).into());
        }
        let lines = std::fs::read_to_string(self.dir.path().join(&out).join("metrics.jsonl"));
        let loss = |l: &str| {
            let at = l.find("\"loss\":")? + 7;
            let rest = &l[at..];
            rest[..rest.find([',', '}'])?].trim().parse::<f64>().ok()
        };
        Ok(lines.expect("metrics").lines().filter_map(loss).collect())
    }
}

#[test]
fn wgpu_ranks_train_by_the_bridge_alone_and_beside_the_cpu() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), CONFIG).unwrap();
    let text: String = (0..4000u32)
        .map(|i| format!("word{} ", i * i % 97))
        .collect();
    std::fs::write(dir.path().join("text.txt"), text).unwrap();
    let job = Job {
        program: program(),
        dir,
    };
    let want = job.train("cpu:1", &[]).expect("the CPU trains");
    assert_eq!(want.len(), 12);
    for (ranks, stage) in [("wgpu:2", "3"), ("wgpu:2", "1"), ("cpu:1,wgpu:1", "2")] {
        let stage_is = format!("zero_optimization.stage={stage}");
        // Every result of a collective is held against the other ranks', bit by bit.
        let got = match job.train(ranks, &[&stage_is, "run.check=\"values\""]) {
            Ok(losses) => losses,
            Err(said) if said.contains("no Vulkan adapter") => {
                return crossweave_tests::tools::missing("wgpu", &said);
            }
            Err(said) => panic!("{ranks} at stage {stage}: {said}"),
        };
        assert_eq!(got.len(), want.len(), "{ranks}");
        for (step, (a, b)) in want.iter().zip(&got).enumerate() {
            let off = (a - b).abs() / a.abs();
            assert!(
                off <= 1e-4,
                "{ranks} stage {stage} step {step}: {b}, on the CPU {a}"
            );
        }
    }
}
