//! The layer `only` as `conform` sees it. What trains within it: `train/tests/profiles.rs`.

use crate::common::Scratch;

/// The layer takes away what the profile does not ask for: else those of training would compare the CPU with itself.
#[test]
fn the_layer_takes_everything_else_away() {
    let s = Scratch::new();
    let report = |layer: &str| -> Vec<(String, String)> {
        let out = s.path("report.json");
        let mut args = vec!["conform", "cpu", "--ranks", "2", "--quick", "--report"];
        args.extend([out.to_str().expect("a path"), "--layer", layer]);
        for case in [
            "op.adamw.f32*",
            "op.unary.neg.f32",
            "op.unary.neg.bf16",
            "coll.all_reduce.*.r2",
        ] {
            args.extend(["--only", case]);
        }
        s.ok(&args);
        let text = std::fs::read_to_string(&out).expect("a report");
        let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let cells = report["cells"].as_array().expect("cells").iter();
        let word = |c: &serde_json::Value, k: &str| c[k].as_str().unwrap_or_default().to_string();
        cells.map(|c| (word(c, "id"), word(c, "result"))).collect()
    };
    for (profile, half, sums) in [("minimal", false, false), ("train", true, true)] {
        let cells = report(&format!("only={profile}"));
        let passes = |what: &dyn Fn(&str) -> bool| {
            let mut of = cells.iter().filter(|(id, _)| what(id)).peekable();
            assert!(of.peek().is_some(), "{cells:?}");
            of.any(|(_, result)| result == "pass")
        };
        assert!(passes(&|id| id == "op.unary.neg.f32"), "{cells:?}");
        assert!(!passes(&|id| id.starts_with("op.adamw")), "{cells:?}");
        assert_eq!(passes(&|id| id == "op.unary.neg.bf16"), half, "{cells:?}");
        assert_eq!(
            passes(&|id| id.starts_with("coll.all_reduce")),
            sums,
            "{cells:?}"
        );
    }
}
