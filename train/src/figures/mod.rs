//! What is known of a job before it runs, and of a model without a job: checks, plans, routes, estimates and probes, as values with fields.

pub mod check;
pub mod probe;

pub use crossweave_figures::estimate::count;
pub use crossweave_figures::{devices, estimate, explain, plan, probed};

#[cfg(test)]
mod tests {
    use super::estimate::{Estimation, Hardware, Home, Ranks, Training, estimate};
    use super::explain::{PeakRates, explain};
    use super::plan::{Planning, plan, program};
    use super::*;
    use crate::events::Unwatched;
    use crate::ranks::Ranks as RanksOfJob;
    use crate::request::Request;
    use crate::surroundings::Surroundings;
    use serde_json::json;
    use std::sync::Arc;

    #[test]
    fn counts_are_read() {
        assert_eq!(count("7.5B"), Ok(7_500_000_000));
        assert_eq!(count("1t"), Ok(1_000_000_000_000));
        assert_eq!(count("175e9"), Ok(175_000_000_000));
        assert_eq!(count("1000"), Ok(1000));
        for bad in ["", "B", "-1B", "nan", "1X", "inf", "1e30T", "é"] {
            assert!(count(bad).is_err(), "{bad}");
        }
    }

    fn request(sets: &[&str], ranks: u32) -> Request {
        let text = json!({
            "model": {"family": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": 16},
            "data": {"train": "none.txt", "tokenizer": "bytes"},
            "run": {"steps": 1, "backend": "cpu"},
            "train_micro_batch_size_per_gpu": 2,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.1}},
        });
        Request {
            text: Some(text.to_string()),
            sets: sets.iter().map(|s| s.to_string()).collect(),
            ranks: Some(RanksOfJob::Count(ranks)),
            ..Request::new(
                "a.json".into(),
                Surroundings::default(),
                Arc::new(Unwatched),
            )
        }
    }

    fn on_a100() -> Planning {
        Planning {
            device: Some("a100".into()),
            ..Planning::default()
        }
    }

    #[test]
    fn a_plan_is_a_value_and_its_json_says_the_same() {
        let three = request(&["zero_optimization.stage=3"], 4);
        let planned = plan(&three, &on_a100()).unwrap();
        let rank = &planned.figures.rank;
        assert_eq!((rank.job.ranks, rank.job.stage), (4, 3));
        assert_eq!(planned.params, rank.job.params);
        // Each rank has a quarter of master copies and of both moments, by the ledgers and by the formulas.
        let formulas = rank.states_formula.as_ref().unwrap();
        assert_eq!(rank.memory.tags["moment"].bytes, formulas.moment.bytes);
        assert_eq!(formulas.moment.bytes, 8 * rank.job.layout.shard);
        assert!(rank.memory.total.peak > rank.memory.total.bytes);
        assert_eq!(rank.verdict.fits, Some(true));
        assert_eq!(rank.verdict.needed, rank.memory.total.peak);
        let sent: Vec<_> = rank
            .moved
            .traffic
            .iter()
            .map(|a| (&*a.axis, a.ranks))
            .collect();
        assert_eq!(sent, [("dp", 4)]);
        let v = json!(planned.figures);
        assert_eq!(v["memory"]["total"]["peak"], rank.memory.total.peak);
        assert_eq!(v["peak"]["bytes"], rank.peak.at.bytes);
        assert_eq!(v["advice"]["why"], planned.figures.advice.why);
        assert!(v.get("pipeline").is_none() && planned.stages().len() == 1);
    }

    #[test]
    fn a_plan_of_a_pipeline_has_each_stage_and_shows_the_fullest() {
        let two = request(&["mesh.pp=2", "gradient_accumulation_steps=2"], 2);
        let planned = plan(&two, &on_a100()).unwrap();
        let pipeline = planned.figures.pipeline.as_ref().unwrap();
        assert_eq!((pipeline.pipeline.stages, pipeline.stages.len()), (2, 2));
        let peaks = pipeline.stages.iter().map(|s| s.memory.total.peak);
        assert_eq!(Some(planned.figures.rank.memory.total.peak), peaks.max());
        let units = |k: usize| pipeline.stages[k].stage.as_ref().unwrap().units;
        assert_eq!(units(0)[1], units(1)[0]);
        assert_eq!(units(1)[1] as usize, planned.units.len());
    }

    #[test]
    fn a_rank_that_the_job_does_not_have_is_an_error() {
        let what = Planning {
            rank: 2,
            ..on_a100()
        };
        let why = plan(&request(&[], 2), &what).unwrap_err();
        assert!(
            why.to_string().contains("the job has ranks 0 to 1"),
            "{why}"
        );
    }

    #[test]
    fn what_cannot_be_planned_has_its_place_in_the_config() {
        let offload = "zero_optimization.offload_optimizer.device=cpu";
        let lamb = request(
            &["optimizer.type=Lamb", "zero_optimization.stage=1", offload],
            2,
        );
        let whys = [
            plan(&lamb, &on_a100()).map(drop).unwrap_err(),
            program(&lamb, &on_a100()).map(drop).unwrap_err(),
        ];
        for why in whys.map(|e| e.to_string()) {
            let placed = "optimizer.type: the host updates what looks at one element";
            assert!(why.contains(placed), "{why}");
        }
    }

    #[test]
    fn routes_are_values_whose_sums_are_those_of_the_rows() {
        let peak = PeakRates {
            tflops: Some(1.0),
            gbps: Some(100.0),
        };
        let explained = explain(&request(&[], 2), peak).unwrap();
        let found = &explained.found;
        assert_eq!((&*found.config, found.ranks), ("a.json", 2));
        let launches = found.ops.iter().map(|r| r.launches).sum::<u64>();
        assert!(launches > 0 && launches == found.totals.op_launches);
        assert!(
            found
                .ops
                .iter()
                .all(|r| r.est_ns.is_some() && r.error.is_none())
        );
        assert!(found.collectives.iter().any(|c| c.kind == "all_reduce"));
        assert_eq!(json!(found)["totals"]["op_launches"], launches);
        assert!(!explained.all_routed().unwrap().routes.is_empty());
    }

    #[test]
    fn an_estimate_is_a_value_and_its_json_says_the_same() {
        let what = Estimation {
            ranks: Ranks {
                ranks: Some(64),
                ..Ranks::default()
            },
            machine: Hardware {
                device_memory: Some(32_000_000_000),
                ..Hardware::default()
            },
            training: Training {
                stage: Some(3),
                offload_optimizer: Some(Home::Host),
                ..Training::default()
            },
            ..Estimation::default()
        };
        let e = estimate("gpt2-xl", &what, &Surroundings::default()).unwrap();
        // 16 bytes for each of 1.5 billion parameters, over 64 ranks.
        assert_eq!(e.states.model_states.bytes, 24_000_000_000);
        assert_eq!(e.states.stages[3].bytes, 375_000_000);
        assert_eq!(e.ledger.fits, Some(true));
        assert!(e.ledger.total.host > 0 && e.offload_traffic.device_to_host > 0);
        assert!(e.times.is_none() && e.traffic.is_none() && e.largest.is_some());
        let v = json!(e);
        assert_eq!(v["stages"][3]["bytes"], 375_000_000);
        assert_eq!(v["ledger"]["offload_optimizer"], "host");
        assert_eq!(v["ranks"], 64);
        assert!(v.get("time").is_none());
        let unknown = estimate("gpt2-xxl", &what, &Surroundings::default());
        let why = unknown.unwrap_err();
        assert!(why.to_string().contains("no model of that name"), "{why}");
    }
}
