//! What people read: sizes that are the same everywhere, a plan that is read in ten seconds, one key explained, a checkpoint in a few lines,
//! back ends once each, completions.

use crate::common::Scratch;
use serde_json::Value;

fn json(s: &Scratch, args: &[&str]) -> Value {
    serde_json::from_str(&s.ok(args)).expect("JSON")
}

/// Bytes as the program writes them, by another way: through a decimal string.
fn size(bytes: u64) -> String {
    let x = bytes as f64;
    let units = [
        ("B", 1.0),
        ("kB", 1e3),
        ("MB", 1e6),
        ("GB", 1e9),
        ("TB", 1e12),
    ];
    let (name, by) = units
        .into_iter()
        .rev()
        .find(|(_, by)| x >= *by)
        .unwrap_or(("B", 1.0));
    match by == 1.0 {
        true => format!("{bytes} B"),
        false => format!("{:.2} {name}", x / by),
    }
}

/// A model of some size, which nothing trains here.
const BIG: &str = r#"{"model": {"family": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12},
    "data": {"train": "corpus/*.txt"}, "run": {"steps": 10}, "bf16": {"enabled": true},
    "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}"#;

/// The number of bytes that `plan` predicts is the one that `train` reports, and both write it alike.
#[test]
fn plan_and_train_say_the_same_size() {
    let s = Scratch::new();
    let v = json(&s, &["plan", "config.json", "--json"]);
    let peak = v["memory"]["total"]["peak"].as_u64().expect("bytes");
    let page = s.ok(&["plan", "config.json"]);
    assert!(
        page.contains(&format!("peak: {} during", size(peak))),
        "{page}"
    );
    let said = s.ok(&[
        "train",
        "config.json",
        "--out",
        "run",
        "--set",
        "run.generate.tokens=0",
        "--set",
        "run.validate_every=0",
    ]);
    let ledger = std::fs::read_to_string(s.path("run/ledger.json")).expect("a ledger");
    let ledger: Value = serde_json::from_str(&ledger).expect("JSON");
    let held = ledger["ranks"][0]["memory"]["total"]["peak"]
        .as_u64()
        .expect("bytes");
    let line = said
        .lines()
        .find(|l| l.contains("device memory"))
        .expect("a line");
    assert!(
        line.contains(&format!("{} at the peak", size(held))),
        "{line}"
    );
    // What was live at the peak adds up to it, in the plan and in the run.
    let memory = &ledger["ranks"][0]["memory"]["at_peak"];
    let all = memory.as_object().expect("tags").values();
    let sum: u64 = all.map(|n| n.as_u64().expect("bytes")).sum();
    assert_eq!(sum, held);
    let tags = v["memory"].as_object().expect("tags").iter();
    let parts = tags.filter(|(tag, _)| !["host", "total"].contains(&tag.as_str()));
    let sum: u64 = parts
        .map(|(_, b)| b["at_peak"].as_u64().expect("bytes"))
        .sum();
    assert_eq!(sum, peak);
}

#[test]
fn errors_write_sizes_as_everything_else_does() {
    let s = Scratch::new();
    s.write("big.json", BIG);
    let out = s
        .command(&["train", "big.json", "--out", "x"])
        .env("CROSSWEAVE_PLUGIN_OPTIONS", "cpu.memory_bytes=1000000000")
        .output()
        .expect("it runs");
    let err = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{err}");
    assert!(
        err.contains("the budget is 1.00 GB")
            && err.contains("are live here")
            && !err.contains("000000"),
        "{err}"
    );
    assert!(!s.path("x").exists());
}

#[test]
fn a_plan_is_read_in_ten_seconds() {
    let s = Scratch::new();
    s.write("big.json", BIG);
    let args = ["plan", "big.json", "--ranks", "8", "--device", "h100"];
    let page = s.ok(&args);
    let v = json(&s, &[&args[..], &["--json"]].concat());
    assert!(page.lines().count() <= 30, "{page}");
    assert!(page.lines().all(|l| l.chars().count() <= 140), "{page}");
    for part in [
        "big.json on 8 ranks: ZeRO stage 0, bf16, AdamW",
        "124.440M parameters; a step is 2 micro-batches of 4 x 1024 tokens a rank",
        "dp (8 ranks)",
        "1.000x the elements of plain data parallelism",
        "fits: yes",
        "of 85.90 GB",
        "on h100",
        "advice: everything fits without sharding",
        "micro-batch 0",
    ] {
        let part = part.replace("124.440M", "124.44M");
        assert!(page.contains(&part), "{part:?} is not in\n{page}");
    }
    for (tag, b) in v["memory"].as_object().expect("tags") {
        let (now, then) = (&b["bytes"], &b["at_peak"]);
        let (Some(now), Some(then)) = (now.as_u64(), then.as_u64()) else {
            continue;
        };
        if now + then == 0 {
            continue;
        }
        let row = page
            .lines()
            .find(|l| l.trim_start().starts_with(&format!("{tag} ")));
        let row = row.unwrap_or_else(|| panic!("no {tag} in\n{page}"));
        assert!(
            row.contains(&size(now)) && row.contains(&size(then)),
            "{row}"
        );
    }
    // Everything else is behind flags.
    let text = s.ok(&[&args[..], &["--text"]].concat());
    assert!(
        text.contains("wire elements") && text.contains("w P"),
        "{text}"
    );
    let print = s.ok(&[&args[..], &["--print"]].concat());
    assert!(
        print.contains("F0.0") && print.contains("<- peak"),
        "{print}"
    );
}

/// Where it does not fit the advice says what would, and where it fits it never says that nothing does.
#[test]
fn advice_follows_the_verdict() {
    let s = Scratch::new();
    s.write("big.json", BIG);
    for (device, set) in [
        ("h100", "zero_optimization.stage=0"),
        ("h100", "zero_optimization.stage=3"),
        ("laptop", "model.n_layer=96"),
        ("laptop", "model.recompute=full"),
        ("rtx4090", "train_micro_batch_size_per_gpu=64"),
        ("v100", "zero_optimization.offload_optimizer.device=cpu"),
        ("v100", "model.n_embd=6144"),
        ("a100", "mesh.pp=2"),
    ] {
        for ranks in ["2", "64"] {
            let args = [
                "plan", "big.json", "--ranks", ranks, "--device", device, "--set", set, "--json",
            ];
            let v = json(&s, &args);
            let d = &v["verdict"];
            let fits = d["needed"].as_u64() <= d["capacity"].as_u64();
            assert_eq!(d["fits"].as_bool(), Some(fits), "{d}");
            let why = v["advice"]["why"].as_str().expect("a sentence");
            match fits {
                true => assert!(
                    !why.contains("no stage fits") && !why.contains("does not fit the device"),
                    "{device} {set}: {why}"
                ),
                false => assert!(
                    !why.contains("everything fits")
                        && !why.contains("does not pay")
                        && !why.is_empty(),
                    "{device} {set}: {why}"
                ),
            }
        }
    }
}

/// Jobs that do not fit, drawn by a seed: each change that is advised is planned as it stands, and fits. `CROSSWEAVE_MATRIX=all`
/// draws 500.
#[test]
fn what_is_advised_is_no_job_that_is_refused() {
    let s = Scratch::new();
    s.write("big.json", BIG);
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut of = |list: &[&str]| -> String {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        list[(seed % list.len() as u64) as usize].to_string()
    };
    let most = match std::env::var("CROSSWEAVE_MATRIX").as_deref() {
        Ok("all") => 500,
        _ => 6,
    };
    let (mut jobs, mut changes, mut alone) = (0, 0, 0);
    while jobs < most {
        let mut sets = vec![
            format!("model.n_layer={}", of(&["12", "24", "48"])),
            format!("model.n_embd={}", of(&["1536", "2304", "3072", "6144"])),
            format!("mesh.tp={}", of(&["1", "1", "2", "4"])),
            format!("mesh.pp={}", of(&["1", "1", "2", "4"])),
            format!("zero_optimization.stage={}", of(&["0", "1", "2", "3"])),
            format!(
                "train_micro_batch_size_per_gpu={}",
                of(&["1", "2", "8", "16"])
            ),
            format!("gradient_accumulation_steps={}", of(&["1", "3", "4"])),
        ];
        if of(&["0", "1", "2"]) == "0" {
            sets.push("zero_optimization.offload_optimizer.device=cpu".into());
        }
        let (ranks, device) = (of(&["16", "32"]), of(&["v100", "rtx4090", "laptop"]));
        let plan = |sets: &[String], ranks: &str, device: &str| {
            let mut args = vec![
                "plan", "big.json", "--json", "--ranks", ranks, "--device", device,
            ];
            args.extend(sets.iter().flat_map(|s| ["--set", s.as_str()]));
            json(&s, &args)
        };
        let v = plan(&sets, &ranks, &device);
        if v["verdict"]["fits"] == true {
            continue;
        }
        jobs += 1;
        let ways = v["advice"]["changes"].as_array().expect("changes");
        alone += usize::from(ways.is_empty());
        for way in ways {
            let more = way["set"].as_array().expect("sets").iter();
            let more = more.map(|set| set.as_str().expect("a set").to_string());
            let all: Vec<String> = sets.iter().cloned().chain(more).collect();
            let ranks = way["ranks"]
                .as_u64()
                .map_or(ranks.clone(), |n| n.to_string());
            let v = plan(&all, &ranks, way["device"].as_str().unwrap_or(&device));
            assert_eq!(
                v["verdict"]["fits"], true,
                "{way} of {sets:?} on {ranks} x {device}"
            );
            changes += 1;
        }
    }
    assert!(
        changes >= jobs && alone < jobs / 2,
        "{changes} changes of {jobs} jobs"
    );
}

/// On one page traffic has one unit, and ranks of a stage that is cut are counted as ranks of the job.
#[test]
fn plans_of_a_mesh_count_each_axis_over_its_link() {
    let s = Scratch::new();
    s.write("big.json", BIG);
    let with = |command: &str, more: &[&str]| {
        let sets = ["big.json", "--device", "h100", "--json"];
        json(&s, &[&[command][..], &sets, more].concat())
    };
    let of = |v: &Value, axis: &str| {
        let rows = v["traffic"].as_array().expect("rows").iter();
        let row = rows.into_iter().find(|r| r["axis"] == axis);
        row.expect("the axis")["bytes"].as_f64().expect("bytes")
    };
    // tp 8 fills a node of 8, so that dp goes over the network and tp over the link within the node.
    for (mesh, ranks) in [
        ("mesh.tp=4", "32"),
        ("mesh.tp=2", "16"),
        ("mesh.tp=6", "12"),
    ] {
        let v = with("plan", &["--ranks", ranks, "--set", mesh]);
        let w = with(
            "plan",
            &[
                "--ranks",
                ranks,
                "--set",
                mesh,
                "--set",
                "mesh.order=\"tp,dp\"",
            ],
        );
        let seconds = |v: &Value| v["advice"]["comm_seconds"].as_f64().expect("seconds");
        let (link, network) = (450e9, 50e9);
        let h100 = json(&s, &["estimate", "--devices", "--json"]);
        let h100 = h100["devices"]
            .as_array()
            .expect("devices")
            .iter()
            .find(|d| d["name"] == "h100");
        let h100 = h100.expect("h100");
        assert_eq!(
            (h100["link"].as_f64(), h100["network"].as_f64()),
            (Some(link), Some(network))
        );
        let tp = of(&v, "tp");
        let dp = of(&v, "dp");
        let at = |tp_rate: f64, dp_rate: f64| tp / tp_rate + dp / dp_rate;
        near(seconds(&v), at(link, network));
        let dp_near =
            ranks.parse::<u64>().expect("ranks") / mesh[8..].parse::<u64>().expect("tp") <= 8;
        near(
            seconds(&w),
            at(network, if dp_near { link } else { network }),
        );
        // A rank computes its part of each product.
        let one = with("plan", &["--ranks", "8"]);
        let flops = |v: &Value| v["advice"]["model_flops_per_step"].as_f64().expect("FLOP");
        near(
            flops(&v) * mesh[8..].parse::<f64>().expect("tp"),
            flops(&one),
        );
    }
}

fn near(a: f64, b: f64) {
    assert!((a - b).abs() <= 2e-3 * b.abs(), "{a} is not {b}");
}

#[test]
fn the_device_is_the_one_that_the_config_names() {
    let s = Scratch::new();
    let own = json(&s, &["plan", "config.json", "--json"]);
    let known = json(&s, &["backends", "--json"]);
    let cpu = known["backends"]
        .as_array()
        .expect("a list")
        .iter()
        .find(|b| b["name"] == "cpu");
    let memory = cpu.expect("the CPU")["devices"][0]["mem_total"].clone();
    assert_eq!(own["verdict"]["capacity"], memory);
    assert!(
        own["verdict"]["device"]
            .as_str()
            .expect("a name")
            .contains("this machine"),
        "{}",
        own["verdict"]
    );
    // Ranks on one machine share it.
    let two = json(&s, &["plan", "config.json", "--json", "--ranks", "2"]);
    assert_eq!(
        two["verdict"]["capacity"].as_u64(),
        memory.as_u64().map(|m| m / 2)
    );
    let page = s.ok(&["plan", "config.json", "--set", "run.backend=acme"]);
    assert!(
        page.contains("note: back end acme of the config is not on this machine: a100 is assumed"),
        "{page}"
    );
    s.refused(
        &["plan", "config.json", "--device", "h10"],
        &[
            "--device h10",
            "did you mean \"h100\"",
            "h100 (85.90 GB)",
            "--devices",
        ],
        &[],
    );
    let table = s.ok(&["estimate", "--devices"]);
    for part in ["h100", "85.90 GB", "3.35 TB/s", "laptop"] {
        assert!(table.contains(part), "{table}");
    }
    let devices = json(&s, &["estimate", "--devices", "--json"]);
    assert!(
        devices["devices"]
            .as_array()
            .expect("a list")
            .iter()
            .any(|d| d["name"] == "h200" && d["memory"] == 141_000_000_000u64)
    );
}

/// An estimate of a config or a folder counts the parameters of the very model, and takes from the config what it says.
#[test]
fn estimates_of_configs_and_folders() {
    let s = Scratch::new();
    s.write("big.json", BIG);
    let plan = json(&s, &["plan", "big.json", "--ranks", "8", "--json"]);
    let v = json(
        &s,
        &[
            "estimate", "big.json", "--ranks", "8", "--device", "h100", "--json",
        ],
    );
    assert_eq!(v["model"]["params"], plan["params"]);
    assert_eq!(
        (
            v["ranks"].as_u64(),
            v["accounting"]["w"].as_u64(),
            v["accounting"]["q"].as_u64()
        ),
        (Some(8), Some(2), Some(4))
    );
    assert_eq!(
        (&v["activations"]["batch"], &v["model"]["shape"]["seq"]),
        (&Value::from(4), &Value::from(1024))
    );
    assert_eq!(v["ledger"]["stage"], 0);
    assert_eq!(v["ledger"]["capacity"]["device"], 80u64 << 30);
    let three = s.ok(&[
        "estimate", "big.json", "--ranks", "8", "--device", "h100", "--stage", "3",
    ]);
    assert!(
        three.contains("ledger of a rank: stage 3") && three.contains("fits: yes"),
        "{three}"
    );
    // A folder of which there is only config.json, as many publish it before the weights.
    std::fs::create_dir(s.path("hf")).unwrap();
    s.write("hf/config.json", r#"{"model_type": "llama", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": false, "hidden_act": "silu"}"#);
    let folder = json(
        &s,
        &[
            "estimate", "hf", "--ranks", "64", "--device", "h100", "--json",
        ],
    );
    assert_eq!(folder["model"]["params"].as_u64(), Some(6_738_415_616));
    assert_eq!(
        json(&s, &["estimate", "hf/config.json", "--json"])["model"]["params"],
        folder["model"]["params"]
    );
    // A run's folder has the resolved config.
    s.ok(&["train", "config.json", "--out", "run", "--steps", "1"]);
    let run = json(&s, &["estimate", "run", "--json"]);
    assert_eq!(
        run["model"]["params"],
        json(&s, &["plan", "config.json", "--json"])["params"]
    );
    for (args, parts) in [
        (
            &["estimate", "nothing.json"][..],
            &["nothing.json", "no such file"][..],
        ),
        (
            &["estimate", "corpus"],
            &["corpus/config.json", "not there"],
        ),
        (
            &["estimate", "gpt2-xxl"],
            &["did you mean \"gpt2-xl\"", "config file"],
        ),
        (
            &["estimate", "big.json", "--device", "z"],
            &["--device z", "name one of", "h100 (85.90 GB)"],
        ),
    ] {
        s.refused(args, parts, &[]);
    }
    s.write(
        "hf/config.json",
        r#"{"model_type": "mamba", "vocab_size": 32000}"#,
    );
    s.refused(&["estimate", "hf"], &["hf/config.json", "mamba"], &[]);
    s.write("hf/config.json", r#"{"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 1000000000000, "n_head": 12}"#);
    s.refused(
        &["estimate", "hf"],
        &["hf/config.json", "1000000000000"],
        &[],
    );
    s.refused(
        &[
            "estimate", "big.json", "--ranks", "8", "--device", "h100", "--nodes", "9",
        ],
        &["more nodes"],
        &[],
    );
}

#[test]
fn estimates_that_do_not_fit_say_what_would() {
    let s = Scratch::new();
    for args in [
        &["estimate", "7.5B", "--device", "v100", "--ranks", "4"][..],
        &["estimate", "1T", "--nodes", "1"],
        &[
            "estimate",
            "13B",
            "--device-memory",
            "8GB",
            "--ranks",
            "16",
            "--stage",
            "1",
        ],
        &[
            "estimate", "100B", "--device", "laptop", "--batch", "64", "--keep", "all",
        ],
        &["estimate", "gpt2", "--device", "laptop"],
        &[
            "estimate",
            "10B",
            "--device-memory",
            "32GB",
            "--host",
            "1.5TB",
        ],
        &[
            "estimate",
            "llama2-70b",
            "--device",
            "h100",
            "--ranks",
            "512",
        ],
    ] {
        let v = json(&s, &[args, &["--json"]].concat());
        let fits = v["ledger"]["fits"].as_bool().expect("a verdict");
        let why = v["advice"]["why"].as_str().expect("advice");
        match fits {
            true => assert!(
                !why.contains("no stage fits") && v["advice"]["remedies"].is_null(),
                "{args:?}: {why}"
            ),
            false => assert!(
                !why.contains("everything fits") && v["advice"]["remedies"].is_array(),
                "{args:?}: {why}"
            ),
        }
    }
    // The number of ranks that is named does fit.
    let v = json(
        &s,
        &[
            "estimate", "13B", "--device", "v100", "--ranks", "4", "--json",
        ],
    );
    let why = v["advice"]["why"].as_str().expect("advice");
    let ranks = why
        .split("--ranks ")
        .nth(1)
        .and_then(|r| r.split(')').next())
        .expect("ranks");
    let more = json(
        &s,
        &[
            "estimate", "13B", "--device", "v100", "--ranks", ranks, "--json",
        ],
    );
    assert_eq!(more["ledger"]["fits"], true, "{why}");
}

#[test]
fn one_key_is_explained() {
    let s = Scratch::new();
    let page = s.ok(&[
        "config",
        "explain",
        "zero_optimization.stage3_prefetch_bucket_size",
    ]);
    for part in [
        "meaning",
        "type",
        "default",
        "50000000",
        "DeepSpeed",
        "the same key",
        "zero_optimization.prefetch_bucket_size",
        "example",
        "{\"zero_optimization\": {\"stage3_prefetch_bucket_size\":",
        "--set",
        "conflicts",
    ] {
        assert!(page.contains(part), "{part:?} is not in\n{page}");
    }
    assert!(page.lines().all(|l| l.chars().count() <= 80), "{page}");
    // The end of a path, another spelling, another program's word, and with its value in a config.
    for (query, part) in [
        ("seq_len", "data.seq_len\n"),
        (
            "prefetch_bucket_size",
            "another spelling of zero_optimization.stage3_prefetch_bucket_size",
        ),
        ("bfloat16", "another spelling of bf16"),
        (
            "learning_rate",
            "learning_rate is written optimizer.params.lr here",
        ),
        ("bf16.enabled", "exclude each other"),
        ("optimizer.type", "one of AdamW"),
        ("steps", "run.steps"),
    ] {
        let page = s.ok(&["config", "explain", query]);
        // Whichever lines it is broken into.
        let flat = page.split_whitespace().collect::<Vec<_>>().join(" ");
        let part = part.trim_end();
        assert!(flat.contains(part), "{query}: {part:?} is not in\n{page}");
    }
    let here = s.ok(&["config", "explain", "config.json", "gradient_clipping"]);
    assert!(
        here.contains("here") && here.contains("1.0 (line"),
        "{here}"
    );
    s.refused(
        &["config", "explain", "zero_optimization.stagee"],
        &["unknown key", "did you mean \"zero_optimization.stage\""],
        &[],
    );
    s.refused(
        &["config", "explain", "gradient_cliping"],
        &["did you mean \"gradient_clipping\""],
        &[],
    );
    s.refused(
        &["config", "explain", "qqqq"],
        &["unknown key", "lists every key"],
        &[],
    );
    s.refused(
        &["config", "explain", "run.steps", "--set", "run.steps=3"],
        &["--set without a config"],
        &[],
    );
    s.refused(&["config", "explain", "absent.json"], &["absent.json"], &[]);
    // Every line fits where there is no terminal.
    for args in [
        &["config", "explain"][..],
        &["config", "explain", "config.json"],
    ] {
        let page = s.ok(args);
        let long = page.lines().find(|l| l.chars().count() > 80);
        assert!(long.is_none(), "{args:?}: {long:?}");
    }
    assert!(
        s.ok(&["config", "explain", "--markdown"])
            .starts_with("| key |")
    );
}

#[test]
fn a_checkpoint_in_a_few_lines() {
    let s = Scratch::new();
    s.ok(&[
        "train",
        "config.json",
        "--out",
        "run",
        "--ranks",
        "2",
        "--set",
        "run.keep_last=9",
        "--set",
        "run.checkpoint_every=1",
    ]);
    for path in [
        "run",
        "run/checkpoints/step-00000008",
        "run/model",
        "run/model/model.safetensors",
    ] {
        let short = s.ok(&["checkpoint", "inspect", path]);
        assert!(short.lines().count() <= 15, "{path}:\n{short}");
        assert!(!short.contains("wte.weight"), "{path}:\n{short}");
        let long = s.ok(&["checkpoint", "inspect", path, "--tensors"]);
        assert!(long.contains("wte.weight"), "{path}:\n{long}");
    }
    let short = s.ok(&["checkpoint", "inspect", "run"]);
    assert!(
        short.contains("8 checkpoints")
            && short.contains("3 older")
            && short.contains("step 8, 2 ranks"),
        "{short}"
    );
    assert!(!short.contains("\"steps\""), "{short}");
    assert!(
        s.ok(&["checkpoint", "inspect", "run", "--state"])
            .contains("\"steps\"")
    );
}

#[test]
fn back_ends_are_listed_once() {
    let s = Scratch::new();
    std::fs::create_dir(s.path("plugins")).unwrap();
    let name = format!(
        "{}crossweave_broken{}",
        std::env::consts::DLL_PREFIX,
        std::env::consts::DLL_SUFFIX
    );
    std::fs::write(s.path("plugins").join(name), "junk").unwrap();
    let out = s
        .command(&["backends"])
        .env("CROSSWEAVE_PLUGIN_PATH", s.path("plugins"))
        .output()
        .unwrap();
    let page = String::from_utf8_lossy(&out.stdout).into_owned();
    let mut names: Vec<&str> = page
        .lines()
        .take_while(|l| !l.is_empty())
        .filter(|l| !l.starts_with(' '))
        .filter_map(|l| l.split_whitespace().next())
        .collect();
    assert!(
        names.contains(&"cpu") && names.contains(&"broken"),
        "{page}"
    );
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all, "{page}");
    let cpu = json(&s, &["backends", "--json"])["backends"][0]["devices"][0]["mem_total"].as_u64();
    assert!(page.contains(&size(cpu.expect("bytes"))), "{page}");
    assert!(
        page.contains("missing: ")
            && page.contains("cannot be used here")
            && page.contains("rebuild or copy it again"),
        "{page}"
    );
}

#[test]
fn shells_complete() {
    let s = Scratch::new();
    for (shell, part) in [
        ("bash", "complete -F _crossweave"),
        ("zsh", "#compdef crossweave"),
        ("fish", "complete -c crossweave"),
        ("elvish", "edit:completion"),
        ("powershell", "Register-ArgumentCompleter"),
    ] {
        let script = s.ok(&["completions", shell]);
        assert!(
            script.contains(part) && script.contains("estimate"),
            "{shell}"
        );
    }
    let help = s.ok(&["completions", "--help"]);
    assert!(help.contains("crossweave completions bash >"), "{help}");
    assert_eq!(s.run(&["completions", "csh"]).status.code(), Some(2));
    // bash itself takes it.
    s.write("c.bash", s.ok(&["completions", "bash"]));
    if let Ok(out) = std::process::Command::new("bash")
        .arg("-n")
        .arg(s.path("c.bash"))
        .output()
    {
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
    }
}

/// Where the output is no terminal, a line comes every `steps_per_print` steps, and at the first and the last.
#[test]
fn lines_come_every_steps_per_print_steps() {
    let s = Scratch::new();
    let said = s.ok(&[
        "train",
        "config.json",
        "--out",
        "run",
        "--set",
        "steps_per_print=3",
    ]);
    let steps: Vec<&str> = said
        .lines()
        .filter(|l| l.starts_with("step ") && l.contains("tok/s"))
        .filter_map(|l| l.split('/').next()?.split_whitespace().nth(1))
        .collect();
    assert_eq!(steps, ["1", "3", "6", "8"], "{said}");
}
