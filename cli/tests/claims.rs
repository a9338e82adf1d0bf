//! What the documents and `--help` promise, each with the command that shows it. A sentence that is changed or removed fails here until its
//! claim is, and so does a command that no longer shows what the sentence says.

use crate::common;
use common::Scratch;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// A promise.
struct Claim {
    /// The document, or `crossweave …` whose output has the sentence.
    place: &'static str,
    /// The sentence, or the part of it that is meant; breaks of lines do not count.
    says: &'static str,
    /// Lines for a shell in a folder with the text `corpus/a.txt`, `config.json` and the run `runs/a` of it on two ranks.
    run: &'static str,
    /// What their output must hold.
    shows: &'static [&'static str],
}

const GUIDE: &str = "docs/getting-started.md";
const LAUNCH: &str = "docs/launching.md";
const DEEPSPEED: &str = "crossweave config explain";

#[rustfmt::skip]
const CLAIMS: &[Claim] = &[
    // README.
    Claim {
        place: "README.md",
        says: "A misspelt key, a truncated checkpoint, ranks that call different collectives, a rank that dies: one message with the file, key, line or rank, and the fix.",
        run: r#"sed 's/train_batch_size/train_batchsize/' config.json > typo.json
                ! crossweave train typo.json --out typo
                cp -r runs/a cut
                for f in $(find cut/checkpoints -name '*.safetensors' | head -n 1); do truncate -s -8 "$f"; done
                ! crossweave checkpoint verify cut
                ! crossweave train config.json --ranks 2 --out drop --set 'faults=[{"rank":1,"kind":"error","step":2,"op":"all_reduce"}]'"#,
        shows: &["typo.json:6:2: train_batchsize", "did you mean \"train_batch_size\"?", "DAMAGED", "rank 1"],
    },
    Claim {
        place: "README.md",
        says: "The same run twice, a killed and resumed run, every ZeRO stage (with one reduction of gradients a step), threads or processes: the same bits.",
        run: r#"crossweave train config.json --ranks 2 --out again
                cmp runs/a/model/model.safetensors again/model/model.safetensors && echo twice the same
                crossweave train config.json --ranks 2 --out z3 --set zero_optimization.stage=3 --set zero_optimization.reduce_gradients=step
                cmp runs/a/model/model.safetensors z3/model/model.safetensors && echo stage 3 the same
                crossweave train config.json --ranks 2 --out parts --steps 5
                crossweave train config.json --ranks 2 --resume parts
                cmp runs/a/model/model.safetensors parts/model/model.safetensors && echo resumed the same"#,
        shows: &["twice the same", "stage 3 the same", "resumed the same"],
    },
    Claim {
        place: "README.md",
        says: "and printable: `crossweave plan CONFIG.json --print`.",
        run: "crossweave plan config.json --print",
        shows: &["F0.0 F1.0", "opt0"],
    },
    Claim {
        place: "README.md",
        says: "everything that is wrong with a config, at once",
        run: r#"sed 's/train_batch_size/train_batchsize/; s/n_layer/n_layers/' config.json > two.json
                ! crossweave config check two.json --ranks 4"#,
        shows: &["two.json:6:2: train_batchsize", "two.json:2:30: model.n_layers"],
    },
    Claim {
        place: "README.md",
        says: "memory and traffic of every rank, before it runs",
        run: "crossweave plan config.json --ranks 64 --set train_batch_size=64",
        shows: &["param", "grad", "activation"],
    },
    Claim {
        place: "README.md",
        says: "It shows a bar with loss, tokens per second and time left, a table at the end and a sample of the model's own Rust",
        run: "crossweave train config.json --out shown",
        shows: &["loss ", "tok/s", "eta ", "validation loss", "parameters", "sample:\nthe "],
    },
    // What a run leaves.
    Claim {
        place: GUIDE,
        says: "(for the next run `runs/quickstart-2/`, and so on)",
        run: "crossweave train config.json --steps 1; crossweave train config.json --steps 1",
        shows: &["runs/config holds a run: this run goes to runs/config-2"],
    },
    Claim {
        place: GUIDE,
        says: "one object a step: `step, loss, lr, grad_norm, tokens, tokens_per_s, step_ms`; validation records carry `val_loss`",
        run: "cat runs/a/metrics.jsonl",
        shows: &["{\"step\":1,\"loss\":", "\"lr\":", "\"grad_norm\":", "\"tokens\":128", "\"tokens_per_s\":", "\"step_ms\":", "{\"step\":8,\"val_loss\":"],
    },
    Claim {
        place: GUIDE,
        says: "for each rank: bytes now and at peak by tag, collectives by kind, group and tag, where the time of its mean step goes",
        run: "cat runs/a/ledger.json",
        shows: &["\"peak\":", "\"kind\": \"all_reduce\"", "\"group\":", "\"compute_ms\":", "\"communication_ms\":", "\"input_ms\":"],
    },
    Claim {
        place: GUIDE,
        says: "the resolved config: every key with the value in force",
        run: "cat runs/a/config.json",
        shows: &["\"vocab_size\": 257", "\"stage\": 0", "\"threads_per_rank\": 1"],
    },
    Claim {
        place: GUIDE,
        says: "what ran: date, host, devices, version, command, layout, precision, the keys that were set; a session for each resume",
        run: r#"crossweave train config.json --ranks 2 --out twice --steps 3
                crossweave train config.json --ranks 2 --resume twice
                cat twice/run.json"#,
        shows: &["\"date\":", "\"hosts\":", "\"devices\":", "\"version\":", "\"--resume\"", "\"data_parallel\": 2", "\"compute\": \"f32\"", "\"from\": \"line 2\"", "\"from\": 3"],
    },
    Claim {
        place: GUIDE,
        says: "the trained model in Hugging Face layout",
        run: "ls runs/a/model; crossweave generate --model runs/a/model --prompt 'the ' --tokens 4",
        shows: &["config.json", "model.safetensors", "the "],
    },
    Claim {
        place: GUIDE,
        says: "every byte against its hash",
        run: "crossweave checkpoint verify runs/a",
        shows: &["ok  "],
    },
    Claim {
        place: GUIDE,
        says: "`--resume` takes the newest complete one, on any number of ranks, ZeRO stage, type or back end, and names those it skips",
        run: r#"cp -r runs/a skip
                rm skip/checkpoints/step-00000008/manifest.json
                crossweave train config.json --ranks 4 --resume skip --steps 9 --set zero_optimization.stage=2"#,
        shows: &["step-00000008", "9 of 9"],
    },
    // The report.
    Claim {
        place: GUIDE,
        says: "The report starts with what ran and the keys that were set.",
        run: "crossweave report runs/a; cat runs/a/report.html",
        shows: &["<dt>Date</dt>", "<dt>Host</dt>", "<dt>Devices</dt>", "<dt>Version</dt>", "<dt>Command</dt>", "<dt>Layout</dt>", "<dt>Parameters</dt>", "<dt>Precision</dt>", "keys that were set"],
    },
    Claim {
        place: GUIDE,
        says: "compute, optimizer, communication and input that no computing hides, and the rest",
        run: "cat runs/a/report.html",
        shows: &["<b>Time of a step</b>", "compute ", "optimizer ", "exposed communication ", "input ", "other "],
    },
    Claim {
        place: GUIDE,
        says: "Many ranks are shown as minimum, median and maximum, and the straggler is named.",
        run: "crossweave train config.json --ranks 4 --out four --set train_micro_batch_size_per_gpu=1; crossweave report four; cat four/report.html",
        shows: &["min (rank ", "median (rank ", "max (rank ", "traggler: "],
    },
    Claim {
        place: GUIDE,
        says: "Planned memory stands beside measured.",
        run: "cat runs/a/report.html",
        shows: &[": planned", "planned peak", "measured"],
    },
    Claim {
        place: GUIDE,
        says: "or as `--peak-tflops` gives it",
        run: "crossweave report runs/a --peak-tflops 0.5 --out mfu.html; cat mfu.html",
        shows: &["<span>MFU</span>", "1.0 TFLOP/s of all ranks (given by --peak-tflops)"],
    },
    Claim {
        place: GUIDE,
        says: "the two side by side: figures, keys that differ, curves",
        run: r#"crossweave train config.json --out runs/b --set optimizer.params.lr=1e-3
                crossweave report runs/a runs/b
                cat runs/a/report-against-b.html"#,
        shows: &["report-against-b.html", "B against A", "<code>optimizer.params.lr</code></td><td>0.01</td><td>0.001</td>", "Training loss"],
    },
    Claim {
        place: "crossweave report --help",
        says: "to compare the two",
        run: "crossweave report runs/a runs/a --out same.html; cat same.html; ! crossweave report runs/a --out runs/a/metrics.jsonl",
        shows: &["The configs are the same.", "name a file that ends in .html"],
    },
    // Configs.
    Claim {
        place: GUIDE,
        says: "An unknown key is an error with file, line, column and the nearest valid key",
        run: r#"sed 's/"steps"/"stepps"/' config.json > near.json; ! crossweave config check near.json"#,
        shows: &["near.json:4:", "run.stepps", "did you mean \"steps\"?"],
    },
    Claim {
        place: GUIDE,
        says: "a key without effect is named in a warning that states what happens instead",
        run: "crossweave config check config.json --set zero_optimization.contiguous_gradients=false",
        shows: &["warning: ", "zero_optimization.contiguous_gradients: has no effect: gradients of a unit always lie in one buffer"],
    },
    Claim {
        place: GUIDE,
        says: "DeepSpeed's own files are read as they are: comments, trailing commas, `_comment` keys, field names beside aliases, deprecated keys, and `\"auto\"`.",
        run: r#"cat > ds.json <<'END'
{
  // A comment.
  "_comment": "and another",
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": 2,
  "bfloat16": {"enabled": true},
  "zero_optimization": {"stage": 3, "max_live_parameters": 1000000, "cpu_offload": false,},
}
END
                crossweave config check ds.json --set 'model={"family":"gpt2","preset":"tiny"}' --set data.train=corpus/a.txt --set run.steps=2"#,
        shows: &["ds.json: ok", "Bf16", "taken"],
    },
    Claim {
        place: GUIDE,
        says: "every key: meaning, default, origin",
        run: "crossweave config explain config.json",
        shows: &["run.steps", "line 4", "default"],
    },
    Claim {
        place: GUIDE,
        says: "JSON Schema for your editor",
        run: "crossweave config schema",
        shows: &["https://json-schema.org/draft/2020-12/schema", "\"zero_optimization\""],
    },
    Claim {
        place: GUIDE,
        says: "the same from formulas, for a model by name or size",
        run: "crossweave estimate 7.5B --ranks 64; crossweave estimate gpt2-xl --ranks 8",
        shows: &["gpt2-xl"],
    },
    Claim {
        place: DEEPSPEED,
        says: "steps between lines of the log on a plain terminal; run.log_every, where it is given, wins",
        run: "crossweave train config.json --out every --set steps_per_print=4",
        shows: &["step      4/8  loss", "step      8/8  loss"],
    },
    Claim {
        place: DEEPSPEED,
        says: "print where the time of a step goes",
        run: "crossweave train config.json --out clock --set wall_clock_breakdown=true",
        shows: &["time of a step, ms", "forward ", "backward ", "optimizer ", "whole "],
    },
    Claim {
        place: DEEPSPEED,
        says: "the exported model has 16-bit weights, as model.save_dtype",
        run: r#"crossweave train config.json --out narrow --set bf16.enabled=true --set zero_optimization.stage=3 --set zero_optimization.stage3_gather_16bit_weights_on_model_save=true
                head -c 400 narrow/model/model.safetensors"#,
        shows: &["\"dtype\":\"BF16\""],
    },
    // Data.
    Claim {
        place: GUIDE,
        says: "`.jsonl`, `.parquet` or `.arrow` file is a document (`data.field` names the column)",
        run: r#"sed 's/.*/{"body": "&"}/' corpus/a.txt > rows.jsonl
                crossweave train config.json --out rows --steps 1 --set data.train=rows.jsonl --set data.field=body
                ! crossweave train config.json --out none --steps 1 --set data.train=rows.jsonl"#,
        shows: &["1 of 1", "rows.jsonl", "text"],
    },
    Claim {
        place: GUIDE,
        says: "gzip and zstd are decompressed",
        run: r#"gzip -c corpus/a.txt > packed.txt.gz
                crossweave train config.json --out packed --set data.train=packed.txt.gz --ranks 2
                cmp runs/a/model/model.safetensors packed/model/model.safetensors && echo the same"#,
        shows: &["the same"],
    },
    Claim {
        place: GUIDE,
        says: "other binary files are refused by name",
        run: r#"head -c 5000 "$(command -v crossweave)" > corpus/b.bin
                ! crossweave train config.json --out bin --set 'data.train=corpus/*.bin'"#,
        shows: &["b.bin: is a program; fix: "],
    },
    Claim {
        place: "docs/data.md",
        says: "an empty `.gz`, `.zst` or `.parquet`, a Git LFS pointer",
        run: r#"mkdir shards; gzip -c corpus/a.txt > shards/a.txt.gz; : > shards/b.txt.gz
                ! crossweave config check config.json --set 'data.train=shards/*.gz'
                printf 'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n' > lfs.parquet
                ! crossweave config check config.json --set data.train=lfs.parquet"#,
        shows: &["b.txt.gz: is empty, which no gzip file is", "lfs.parquet: it is a Git LFS pointer"],
    },
    Claim {
        place: "docs/data.md",
        says: "What a file holds is decided by its content, whatever it is called and however it is packed",
        run: r#"for i in 1 2 3 4 5 6 7 8 9; do echo "{\"text\": \"row $i of more than a few words\"}"; done | gzip -c > part-0.json.gz
                gzip -dc part-0.json.gz > part-0.jsonl
                for f in part-0.json.gz part-0.jsonl; do crossweave train config.json --out $f.run --steps 1 --set data.train=$f > $f.log; done
                grep -o 'loss  *[0-9.]* (step 1)' *.log | cut -d: -f2 | awk '{n[$0]++} END {for (k in n) print n[k], k}'
                printf '{\n "name": "settings, and not a row of any text", "more": "%0300d"\n}\n' 0 > settings.json
                crossweave config check config.json --set data.train=settings.json
                printf 'text,label\n"a, b",1\n' > table.csv
                ! crossweave config check config.json --set data.train=table.csv --set data.field=body
                ! crossweave train config.json --out table --set data.train=table.csv --set data.field=body"#,
        shows: &["2 loss", "settings.json is read as plain text", "has no column \"body\", but \"text\", \"label\""],
    },
    // Launching and looking.
    Claim {
        place: LAUNCH,
        says: "its processes cannot find each other: the first says so and names the ways out",
        run: "! SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 crossweave train config.json --out alone",
        shows: &["srun has started 2 processes", "srun --mpi=pmix", "MASTER_ADDR"],
    },
    Claim {
        place: "docs/debugging.md",
        says: "writes a timeline of all ranks for Perfetto",
        run: "crossweave train config.json --ranks 2 --out traced --trace trace.json; cat trace.json",
        shows: &["\"traceEvents\":[", "\"name\":\"rank 1\"", "\"ph\":\"s\"", "\"ph\":\"f\""],
    },
    Claim {
        place: LAUNCH,
        says: "`backends` lists what is linked",
        run: "crossweave backends",
        shows: &["cpu", "null"],
    },
];

/// Words one space apart.
fn plain(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A shell in the scratch folder that finds the program; what it prints, and whether it ended well.
fn shell(s: &Scratch, script: &str) -> (String, bool) {
    let program = Path::new(env!("CARGO_BIN_EXE_crossweave"));
    let given = std::env::var_os("PATH").unwrap_or_default();
    let path = program
        .parent()
        .map(Path::to_path_buf)
        .into_iter()
        .chain(std::env::split_paths(&given));
    let out = Command::new("sh")
        .args(["-euc", &format!("exec 2>&1\n{script}")])
        .current_dir(s.dir.path())
        .env("PATH", std::env::join_paths(path).expect("a path"))
        .env("CROSSWEAVE_CACHE", s.path("cache"))
        .env_remove("CROSSWEAVE_PLUGIN_PATH")
        .output()
        .expect("a shell");
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    (said, out.status.success())
}

#[test]
fn every_claim_stands_in_its_document_and_its_command_shows_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let s = Scratch::new();
    s.ok(&["train", "config.json", "--ranks", "2", "--out", "runs/a"]);
    let mut texts = BTreeMap::new();
    let mut wrong = vec![];
    for c in CLAIMS {
        let text = texts.entry(c.place).or_insert_with(|| {
            let read = || std::fs::read_to_string(root.join(c.place)).unwrap_or_default();
            let command = c.place.starts_with("crossweave ");
            plain(&if command {
                shell(&s, c.place).0
            } else {
                read()
            })
        });
        if !text.contains(&plain(c.says)) {
            wrong.push(format!("{} does not say {:?}", c.place, c.says));
        }
        let (out, well) = shell(&s, c.run);
        let missing: Vec<_> = c.shows.iter().filter(|p| !out.contains(**p)).collect();
        if !well || !missing.is_empty() {
            let end: String = out.chars().rev().take(1500).collect();
            let end: String = end.chars().rev().collect();
            wrong.push(format!(
                "{}: {:?}\n{}\nends {} without {missing:?}: …{end}",
                c.place,
                c.says,
                c.run,
                if well { "well" } else { "with an error" }
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn every_launch_file_and_config_is_in_the_readme_beside_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    for folder in ["launch", "configs"] {
        let read = std::fs::read_to_string(root.join(folder).join("README.md"));
        let readme = read.expect("a README");
        for entry in std::fs::read_dir(root.join(folder)).expect("the folder") {
            let name = entry.expect("an entry").file_name();
            let name = name.to_string_lossy();
            assert!(
                name == "README.md" || readme.contains(&format!("`{name}`")),
                "examples/{folder}/README.md does not name {name}"
            );
        }
    }
}
