//! `estimate` and `plan` of the same job on a mesh: what a rank has, and what it sends over each axis by which link, against formulas
//! worked out by hand and against each other.

use crate::common::Scratch;
use serde_json::{Value, json};

/// One job: axes, ZeRO stage, micro-batches, layers recomputed.
struct Case {
    tp: u64,
    pp: u64,
    dp: u64,
    stage: u64,
    g: u64,
    full: bool,
}

const H: u64 = 768;
const LAYERS: u64 = 12;
const VOCAB: u64 = 50_304;
const SEQ: u64 = 1024;
const BATCH: u64 = 2;

const fn case(tp: u64, pp: u64, dp: u64, stage: u64, g: u64, full: bool) -> Case {
    Case {
        tp,
        pp,
        dp,
        stage,
        g,
        full,
    }
}

const CONFIG: &str = r#"{"model": {"family": "gpt2", "vocab_size": 50304, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12},
    "data": {"train": "corpus/*.txt"}, "run": {"steps": 10}, "bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": 2}"#;

const CASES: [Case; 14] = [
    case(1, 1, 8, 0, 1, false),
    case(1, 1, 16, 3, 2, false),
    case(2, 1, 1, 0, 1, false),
    case(2, 1, 4, 1, 2, false),
    case(2, 1, 8, 2, 2, false),
    case(4, 1, 8, 3, 2, false),
    case(4, 1, 2, 3, 1, true),
    case(6, 1, 2, 1, 3, true),
    case(12, 1, 1, 0, 1, false),
    case(1, 2, 4, 1, 4, false),
    case(1, 4, 2, 0, 4, true),
    case(2, 2, 2, 1, 4, false),
    case(4, 2, 4, 0, 2, false),
    case(2, 7, 1, 0, 7, true),
];

fn near(got: f64, want: f64, within: f64, what: &str) {
    assert!(
        (got - want).abs() <= within * want.abs() + 8.0,
        "{what}: {got}, worked out {want}"
    );
}

#[test]
fn axes_move_what_the_formulas_say_over_the_link_that_they_are_on() {
    let s = Scratch::new();
    s.write("config.json", CONFIG);
    for c in &CASES {
        let Case {
            tp,
            pp,
            dp,
            stage,
            g,
            full,
        } = *c;
        let what = format!("tp {tp} pp {pp} dp {dp} stage {stage} g {g} full {full}");
        let ranks = (tp * pp * dp).to_string();
        let sets = [
            format!("mesh.tp={tp}"),
            format!("mesh.pp={pp}"),
            format!("zero_optimization.stage={stage}"),
            format!("gradient_accumulation_steps={g}"),
            format!("model.recompute={}", if full { "full" } else { "none" }),
        ];
        // An estimate takes no `--set`.
        let mut config: Value = serde_json::from_str(CONFIG).expect("JSON");
        for set in &sets {
            let (path, value) = set.split_once('=').expect("a pair");
            let (section, key) = path
                .split_once('.')
                .map_or((None, path), |(a, b)| (Some(a), b));
            let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
            match section {
                Some(section) => config[section][key] = value,
                None => config[key] = value,
            }
        }
        s.write("job.json", config.to_string());
        let json = |command: &str| -> Value {
            let args = [
                command, "job.json", "--ranks", &ranks, "--device", "h100", "--json",
            ];
            serde_json::from_str(&s.ok(&args)).expect("JSON")
        };
        let (e, p) = (json("estimate"), json("plan"));
        let row = |v: &Value, axis: &str| -> Option<Value> {
            let rows = v["traffic"].as_array()?.iter();
            rows.into_iter().find(|r| r["axis"] == axis).cloned()
        };
        let bytes = |v: &Value, axis: &str| {
            row(v, axis).map_or(0.0, |r| r["bytes"].as_f64().expect("bytes"))
        };
        // What stage 0 has of the model: blocks, norms whole and matrices cut, rows of the vocabulary, positions.
        let block = |t: u64| 12 * H * H / t + (3 * H + 4 * H) / t + 2 * H + 4 * H;
        let layers_here = e["mesh"]["layers_on_a_rank"].as_u64().unwrap_or(LAYERS);
        if pp == 1 {
            let here = LAYERS * block(tp) + VOCAB.div_ceil(tp) * H + SEQ * H + 2 * H;
            let found = e["mesh"]["params_on_a_rank"]
                .as_u64()
                .unwrap_or(e["model"]["params"].as_u64().expect("n"));
            near(found as f64, here as f64, 1e-3, &what);
            let n = dp as f64;
            let (part, p4, p2) = ((n - 1.0) / n, 4.0 * found as f64, 2.0 * found as f64);
            let (gf, reduced) = (g as f64, if stage >= 2 { g as f64 } else { 1.0 });
            let want = match stage {
                0 => 2.0 * p4 * part,
                3 => (reduced * p4 + 2.0 * gf * p2) * part,
                _ => (reduced * p4 + p2) * part,
            };
            if tp > 1 {
                near(
                    bytes(&e, "dp"),
                    if dp > 1 { want } else { 0.0 },
                    1e-9,
                    &what,
                );
            }
            near(
                bytes(&p, "dp"),
                if dp > 1 { want } else { 0.0 },
                2e-2,
                &what,
            );
        }
        let flow = (BATCH * SEQ * H * 2) as f64;
        if tp > 1 {
            let ring = 2.0 * (tp - 1) as f64 / tp as f64;
            let sums = if full { 6 } else { 4 };
            let (first, last) = match pp {
                1 => (1, 1),
                // The stage that the pages show is the fullest; in these cases the first.
                _ => (1, 0),
            };
            let loss = f64::from(last) * (BATCH * SEQ * (tp + 1) * 2) as f64;
            let each = (sums * layers_here + 1 + u64::from(last > 0) * first) as f64 * flow + loss;
            near(bytes(&e, "tp"), g as f64 * ring * each, 1e-9, &what);
        }
        // A plan shows the same, where it takes the same stage for the fullest.
        if pp == 1 || p["pipeline"]["fullest_stage"] == 0 {
            near(bytes(&e, "tp"), bytes(&p, "tp"), 2e-2, &what);
            near(bytes(&e, "pp"), bytes(&p, "pp"), 2e-2, &what);
        }
        if pp > 1 {
            assert_eq!(bytes(&e, "pp"), g as f64 * flow, "{what}");
        }
        // A node has 8 ranks, tp fastest: an axis lies in it where it reaches no further.
        for (axis, reach) in [("tp", tp), ("dp", tp * dp), ("pp", tp * dp * pp)] {
            if let Some(r) = row(&e, axis) {
                let link = if reach <= 8 {
                    "within a node"
                } else {
                    "between nodes"
                };
                assert_eq!(r["link"], link, "{what}: {axis}");
                let rate = if reach <= 8 { 450e9 } else { 50e9 };
                near(
                    r["seconds"].as_f64().expect("s") * rate,
                    bytes(&e, axis),
                    1e-9,
                    &what,
                );
            }
        }
    }
    // On a processor no time is given, and the page says why.
    let page = s.ok(&["estimate", "config.json", "--ranks", "2", "--time"]);
    assert!(
        page.contains("speed is not known") && !page.contains(" TFLOP/s each"),
        "{page}"
    );
}

/// The moving average of the weights is 4 bytes a parameter, sharded and offloaded as the optimizer's states: in the states of an estimate,
/// in its ledger, and in a plan, whose formula is what the rehearsal holds.
#[test]
fn an_average_of_the_weights_is_four_bytes_a_parameter() {
    let s = Scratch::new();
    let read = |name: &str, command: &str, more: &[&str]| -> Value {
        let args = [&[command, name, "--ranks", "4", "--json"], more].concat();
        serde_json::from_str(&s.ok(&args)).expect("JSON")
    };
    for (stage, offload) in [(0, false), (1, false), (2, true), (3, false)] {
        let mut config: Value = serde_json::from_str(CONFIG).expect("JSON");
        config["zero_optimization"] = json!({"stage": stage});
        if offload {
            config["zero_optimization"]["offload_optimizer"] = json!({"device": "cpu"});
        }
        s.write("plain.json", config.to_string());
        config["run"]["ema_decay"] = json!(0.999);
        s.write("ema.json", config.to_string());
        let [plain, ema] = ["plain.json", "ema.json"].map(|name| read(name, "estimate", &[]));
        let params = plain["model"]["params"].as_u64().expect("a number");
        let of = |v: &Value| v["components"].as_array().expect("a list").clone();
        assert_eq!((of(&plain).len(), of(&ema).len()), (5, 6));
        let last = &of(&ema)[5];
        assert_eq!(
            (&last["what"], &last["bytes"]),
            (&json!("ema"), &json!(4 * params))
        );
        let bytes = |v: &Value| v["stages"][stage]["bytes"].as_u64().expect("bytes");
        let here = params.div_ceil(if stage > 0 { 4 } else { 1 });
        assert_eq!(bytes(&ema) - bytes(&plain), 4 * here, "stage {stage}");
        let rows = ema["ledger"]["rows"].as_array().expect("rows");
        let row = rows.iter().find(|r| r["what"] == "ema").expect("a row");
        let tier = if offload { "host" } else { "device" };
        assert_eq!(
            (&row["tier"], &row["bytes"]),
            (&json!(tier), &json!(4 * here))
        );
        // A plan holds it as a moment.
        let device = ["--device", "h100"];
        let [plain, ema] = ["plain.json", "ema.json"].map(|name| read(name, "plan", &device));
        let held = |v: &Value| v["memory"]["moment"]["bytes"].as_u64().expect("bytes");
        let (what, given) = match offload {
            true => continue,
            false => (held(&ema), &ema["states_formula"]["moment"]),
        };
        assert!(stage == 0 || json!(what) == given["bytes"], "stage {stage}");
        assert!(
            given["formula"]
                .as_str()
                .is_some_and(|f| f.starts_with("(4 + 4 + 4) ")),
            "{given}"
        );
        assert_eq!(held(&plain) / 2, what / 3, "stage {stage}");
    }
    let page = s.ok(&["estimate", "ema.json", "--ranks", "4"]);
    assert!(
        page.contains("\n  ema ") && page.contains("22 B/param"),
        "{page}"
    );
}
