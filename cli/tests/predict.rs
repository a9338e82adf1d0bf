//! What the command line says before anything runs: the estimator's published figures.

mod common;

use common::Scratch;
use serde_json::Value;

fn json(s: &Scratch, args: &[&str]) -> Value {
    serde_json::from_str(&s.ok(args)).expect("JSON")
}

fn near(got: &Value, want: f64, relative: f64) {
    let got = got.as_f64().expect("a number");
    assert!((got - want).abs() <= relative * want, "{got} is not {want}");
}

#[test]
fn estimates_are_the_published_figures() {
    let s = Scratch::new();
    let page = s.ok(&["estimate", "gpt2-xl"]);
    assert!(
        page.contains("weights 3.0 GB, model states 24.0 GB"),
        "{page}"
    );
    assert!(page.contains("1557611200 parameters"), "{page}");
    let v = json(&s, &["estimate", "1000", "--json"]);
    let five: Vec<_> = v["components"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|c| c["bytes"].as_u64().expect("bytes"))
        .collect();
    assert_eq!(five, [2000, 2000, 4000, 4000, 4000]);
    let v = json(&s, &["estimate", "7.5B", "--ranks", "64", "--json"]);
    for (stage, (ratio, volume)) in [(1.0, 1.0), (3.821, 1.0), (7.211, 1.0), (64.0, 1.5)]
        .into_iter()
        .enumerate()
    {
        near(&v["stages"][stage]["ratio"], ratio, 1e-4);
        near(&v["stages"][stage]["volume_vs_ddp"], volume, 0.0);
    }
    for accounting in ["mixed", "fp32"] {
        let args = ["estimate", "gpt3-175b", "--accounting", accounting];
        let page = s.ok(&args);
        assert!(page.contains("model states 2.8 TB"), "{page}");
    }
    let v = json(
        &s,
        &[
            "estimate",
            "gpt3-175b",
            "--time",
            "--tflops",
            "34.5",
            "--json",
        ],
    );
    near(&v["time"]["run"]["device_years"], 288.0, 0.01);
}

#[test]
fn estimates_answer_what_fits() {
    let s = Scratch::new();
    let fits = |args: &[&str]| {
        let v = json(&s, &[args, &["--json"]].concat());
        let l = &v["ledger"];
        let tier = l["offload_optimizer"].as_str().map(str::to_string);
        (l["fits"].as_bool(), tier)
    };
    let nvme = [
        "estimate", "1T", "--nodes", "1", "--host", "1.5TB", "--nvme", "28TB",
    ];
    assert_eq!(fits(&nvme), (Some(true), Some("nvme".into())));
    let page = s.ok(&nvme);
    assert!(page.contains("fits: yes"), "{page}");
    let alone = ["estimate", "1T", "--nodes", "1"];
    assert_eq!(fits(&alone).0, Some(false));
    // 10B in 32 GB needs the host, and has it.
    let ten = ["estimate", "10B", "--device-memory", "32GB"];
    assert_eq!(fits(&ten).0, Some(false));
    let host = [&ten[..], &["--host", "1.5TB"]].concat();
    assert_eq!(fits(&host), (Some(true), Some("host".into())));
    let v = json(
        &s,
        &[
            "estimate",
            "1B",
            "--device-memory",
            "16GB",
            "--ranks",
            "1024",
            "--json",
        ],
    );
    near(&v["largest"]["rows"][0]["states_only"], 1e9, 0.0);
    near(&v["largest"]["rows"][1]["states_only"], 4e9, 0.01);
    near(&v["largest"]["rows"][2]["states_only"], 8e9, 0.01);
    // 64-bit sizes hold a hundred trillion.
    let v = json(&s, &["estimate", "100T", "--ranks", "512", "--json"]);
    near(&v["model_states"]["bytes"], 1.6e15, 0.0);
}

#[test]
fn estimates_refuse_in_a_sentence() {
    let s = Scratch::new();
    s.refused(
        &["estimate", "gpt2-xxl"],
        &["did you mean \"gpt2-xl\"", "7.5B"],
        &[],
    );
    s.refused(
        &["estimate", "1B", "--device", "b999"],
        &["--device b999", "h100"],
        &[],
    );
    s.refused(
        &["estimate", "1B", "--ranks", "2", "--nodes", "4"],
        &["more nodes"],
        &[],
    );
    for bad in ["--device-memory=x", "--ranks=0", "--stage=4", "--tflops=-1"] {
        let out = s.run(&["estimate", "1B", bad]);
        assert_eq!(out.status.code(), Some(2), "{bad}");
    }
}
