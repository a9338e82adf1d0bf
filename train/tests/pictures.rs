//! Timelines of steps: those of the documentation are what the plans give, a run leaves what it was seen to do, and the report shows both.

use crate::support::{CONFIG, Job, Scratch, ledger, names};
use crossweave::events::Unwatched;
use crossweave::figures::plan::{Costs, measured};
use crossweave::{Planned, Planning, Team, Trainer};
use crossweave_report as report;
use serde_json::Value;
use std::path::Path;

const SCHEDULES: [&str; 6] = ["1f1b", "gpipe", "interleaved", "zb-h1", "zbv", "dualpipev"];

fn drawn(trainer: Trainer, costs: Costs) -> Planned {
    let what = Planning {
        costs,
        timeline: true,
        ..Planning::default()
    };
    trainer.plan(&what).expect("a plan")
}

/// `UPDATE_EXPECT=1` draws them anew.
#[test]
fn pictures_of_the_documentation_are_what_plans_give() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/pipelines");
    for schedule in SCHEDULES {
        let trainer = Trainer::from_config(folder.join("pictures.json").as_path())
            .set("mesh.pp_schedule", schedule)
            .ranks(Team::Threads(4));
        let planned = drawn(trainer, Costs::Even);
        let timeline = planned.timeline.expect("a timeline");
        let svg = timeline.svg();
        let file = folder.join(format!("{schedule}.svg"));
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            std::fs::write(&file, &svg).expect("a picture");
        }
        let known = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(
            known == svg,
            "docs/pipelines/{schedule}.svg is not what `crossweave plan docs/pipelines/pictures.json --ranks 4 --set mesh.pp_schedule={schedule} --costs even --schedule` draws; UPDATE_EXPECT=1 writes it"
        );
        // Peaks stand beside the stages as the figures have them, to the byte.
        for (stage, rank) in timeline
            .stages
            .iter()
            .zip(planned.figures.pipeline.iter().flat_map(|p| &p.stages))
        {
            assert_eq!(stage.peak, Some(rank.memory.total.peak), "{schedule}");
        }
        let makespan = match schedule {
            "1f1b" | "gpipe" => 33,
            "zb-h1" => 27,
            "interleaved" => 57,
            _ => 51,
        };
        assert_eq!(timeline.end(), makespan, "{schedule}");
    }
}

fn scratch() -> Scratch {
    let s = Scratch::new();
    let mut config: Value = serde_json::from_str(CONFIG).expect("json");
    config["model"] = serde_json::from_str(
        r#"{"family": "llama", "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "max_position_embeddings": 16}"#,
    )
    .expect("json");
    s.write("llama.json", config.to_string());
    s
}

fn job<'a>(s: &'a Scratch, schedule: &str) -> Job<'a> {
    let job = s.job("llama.json").ranks(4).set("mesh.pp=2");
    job.set(&format!("mesh.pp_schedule=\"{schedule}\""))
}

/// One rank of each stage leaves what it did in the last step that was watched, and the times of its units; the same step as it was planned, with
/// these times, lies beside it, and the report shows both. Other schedules are planned by these times.
#[test]
fn a_run_leaves_what_its_stages_did() {
    let s = scratch();
    for (schedule, micro_batches) in [("1f1b", 4), ("zbv", 4), ("interleaved", 4)] {
        let job = job(&s, schedule).set(&format!("train_batch_size={}", 2 * micro_batches));
        job.run(schedule);
        let ledger = ledger(&s.path(schedule));
        let ranks = ledger["ranks"].as_array().expect("ranks");
        let has: Vec<bool> = ranks.iter().map(|r| r["watched"].is_object()).collect();
        assert_eq!(has, [true, false, true, false], "{schedule}");
        let planned = &ledger["pipeline"]["planned"]["stages"];
        for (stage, rank) in [(0usize, 0), (1, 2)] {
            let seen = &ranks[rank]["watched"];
            assert_eq!(seen["stage"], stage);
            assert_eq!(seen["step"], ranks[0]["watched"]["step"]);
            let count = |spans: &Value, what: &str| -> usize {
                let spans = spans.as_array().expect("spans").iter();
                let own = spans.filter(|s| s["what"] == what);
                // A run may be parted by what it waits for.
                let each = own.map(|s| (s["run"].as_u64(), s["mb"].as_u64()));
                each.collect::<std::collections::BTreeSet<_>>().len()
            };
            let runs = if schedule == "1f1b" { 1 } else { 2 };
            let two_parts = ["forward", "input_grad", "weight_grad"];
            let kinds = match schedule {
                "zbv" => &two_parts[..],
                _ => &["forward", "backward"],
            };
            for what in kinds {
                let (ran, planned) = (&seen["spans"], &planned[stage]["spans"]);
                assert_eq!(count(ran, what), count(planned, what), "{schedule} {what}");
                // The embedding has no products, and its run no second part.
                let least = if *what == "weight_grad" { 1 } else { runs };
                let found = count(ran, what);
                assert!(found >= least * micro_batches, "{schedule} {what}: {found}");
            }
            let times = seen["units"].as_array().expect("units");
            let units = if schedule == "zbv" { 2 + 2 * stage } else { 3 };
            assert_eq!(times.len(), units, "{schedule}: {times:?}");
            assert!(planned[stage]["peak"].as_u64() > Some(0), "{schedule}");
        }
        let page = s.path("report.html");
        let run = report::read(&s.path(schedule), None).expect("a run");
        report::write_page(&run, &page).expect("a page");
        let page = std::fs::read_to_string(page).expect("a page");
        assert_eq!(page.matches("data:image/svg+xml").count(), 2, "{schedule}");
        assert!(page.contains("the plan with the times of its units takes"));
        // Another schedule by the times of this run.
        let costs = measured(&s.path(schedule)).expect("times");
        let other = s.job("llama.json").ranks(2).set("mesh.pp=2");
        let other = other
            .set("mesh.pp_schedule=\"zb-h1\"")
            .trainer(None, Unwatched);
        let planned = drawn(other, costs);
        let timeline = planned.timeline.expect("a timeline");
        assert!(
            timeline.note.contains("as a run has measured"),
            "{}",
            timeline.note
        );
        let seconds = |row: &crossweave::figures::plan::Schedule| row.played.as_ref()?.seconds;
        let rows = planned.figures.pipeline.expect("stages").pipeline.schedules;
        assert!(rows.iter().all(|r| seconds(r) > Some(0.0)), "{rows:?}");
    }
    // One stage has no schedule.
    s.job("llama.json").ranks(1).run("alone");
    let e = measured(&s.path("alone")).unwrap_err();
    names(&e, &["has timed no units", "mesh.pp"]);
}

/// ZeRO's gathers and reductions, messages and the optimizer are drawn where the rates of a device are known, with their times.
#[test]
fn rates_of_a_device_give_communication_its_time() {
    let s = scratch();
    let what = Planning {
        device: Some("h100".into()),
        timeline: true,
        ..Planning::default()
    };
    let job = job(&s, "1f1b").set("zero_optimization.stage=3");
    let job = job
        .set("model.hidden_size=1024")
        .set("model.num_attention_heads=16");
    let planned = job.trainer(None, Unwatched).plan(&what).expect("a plan");
    let timeline = planned.timeline.expect("a timeline");
    for name in [
        "states",
        "grads",
        "gather",
        "reduce",
        "optimizer",
        "forward",
        "backward",
    ] {
        let all = timeline.stages.iter().flat_map(|s| &s.spans);
        let kind =
            |s: &&crossweave_timeline::Span| serde_json::to_value(s.what).is_ok_and(|v| v == name);
        let all: Vec<_> = all.filter(kind).collect();
        assert!(!all.is_empty(), "{name}");
        assert!(all.iter().all(|s| s.time.1 > s.time.0), "{name}");
    }
}
