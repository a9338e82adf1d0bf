//! `ended.json`: how a run ended, for the one who starts the next, and what has to be trained again.

use crate::common::{losses, trainer};
use crate::support::Scratch;
use crossweave::{EndCause, Ended, LostWork, Team, Trainer};
use std::path::Path;

fn ended(dir: &Path) -> Ended {
    Ended::read(dir).unwrap().expect("a run that has ended")
}

#[test]
fn a_run_that_loses_a_rank_says_which_and_what_is_trained_again() {
    let s = Scratch::new();
    let fault = r#"faults=[{"rank": 1, "kind": "stall", "step": 6, "op": "all_reduce"}]"#;
    let wait = "run.comm_timeout_s=1";
    let (e, _) = s
        .job("config.json")
        .ranks(2)
        .sets(&[fault, wait])
        .fails("out");
    assert!(e.is_lost() && e.exit_code() == 75, "{e}");
    let end = ended(&s.path("out"));
    assert_eq!((end.cause, end.exit, end.saved), (EndCause::Lost, 75, 3));
    assert_eq!((end.steps, &end.ranks[..]), (8, &[1][..]));
    // A step's record is written while the next one goes on.
    assert!((4..=5).contains(&end.step), "{end:?}");
    let LostWork {
        steps,
        seconds,
        tokens,
    } = end.lost;
    assert_eq!((steps, tokens), (end.step - 3, steps * 8 * 16));
    assert!(seconds > 0.0);
    assert!(
        end.error.as_deref().unwrap_or("").contains("rank 1"),
        "{end:?}"
    );
    // The next run takes the place of the last one's end.
    s.job("config.json").ranks(2).resume("out").goes_on();
    let end = ended(&s.path("out"));
    assert_eq!((end.cause, end.exit), (EndCause::Finished, 0));
    assert_eq!(
        (end.step, end.lost, end.error),
        (8, LostWork::default(), None)
    );
}

#[test]
fn a_mistake_is_no_loss() {
    let s = Scratch::new();
    let fault = r#"faults=[{"rank": 1, "kind": "drop", "step": 2, "op": "all_reduce"}]"#;
    let (e, _) = s
        .job("config.json")
        .ranks(2)
        .set(fault)
        .set("run.comm_timeout_s=20")
        .fails("out");
    assert_eq!(e.exit_code(), 1, "{e}");
    let end = ended(&s.path("out"));
    assert_eq!((end.cause, end.saved), (EndCause::Failed, 0));
    assert_eq!(end.error.as_deref(), Some(&*e.to_string()));
}

#[test]
fn a_run_that_is_stopped_says_so_and_none_is_left_while_one_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let mut t = trainer(&out, 1_000_000, 2);
    t.step().unwrap();
    assert_eq!(Ended::read(&out).unwrap(), None);
    t.stop_handle().unwrap().stop();
    let summary = t.run().unwrap().unwrap();
    let end = ended(&out);
    assert_eq!((end.cause, end.exit), (EndCause::Stopped, 130));
    assert_eq!((end.saved, end.steps), (summary.steps, 1_000_000));
    let mut again = trainer(&out, summary.steps + 1, 2).resume(&out);
    assert_eq!(losses(&mut again).len(), 1);
    assert_eq!(Ended::read(&out).unwrap(), None);
    again.finish().unwrap();
    assert_eq!(ended(&out).cause, EndCause::Finished);
}

/// Ranks that come in other numbers than the mesh has, with the batch of the mesh.
#[test]
fn an_elastic_mesh_goes_on_over_the_ranks_that_come() {
    let s = Scratch::new();
    let sets = [
        "mesh.dp=4",
        r#"mesh.elastic=["dp"]"#,
        "run.canonical_shards=4",
        "gradient_accumulation_steps=2",
    ];
    let job = || s.job("config.json").sets(&sets);
    job().run("whole");
    job().steps(3).run("cut");
    for (ranks, steps) in [(2, 6), (1, 8)] {
        let cut = job().ranks(ranks).steps(steps);
        cut.resume("cut").goes_on();
    }
    let losses = |run: &str| crate::support::losses(&s.path(run));
    assert_eq!(losses("whole"), losses("cut"));
    // Without canonical sums to rounding.
    let plain = || {
        let all = ["mesh.dp=4", r#"mesh.elastic=["dp"]"#];
        s.job("config.json").sets(&all)
    };
    plain().run("plain");
    plain().ranks(2).run("other");
    for (a, b) in losses("plain").into_iter().zip(losses("other")) {
        assert!((a - b).abs() < 1e-5 * a, "{a} {b}");
    }
    // Eight sequences over three ranks.
    plain().ranks(3).refused(&["start 2 or 4 ranks"]);
    plain()
        .set(r#"mesh.elastic=["tp"]"#)
        .refused(&["mesh.elastic", "\"dp\""]);
    let trainer = Trainer::from_config(s.path("config.json")).ranks(Team::Threads(3));
    assert!(trainer.check().is_err());
}
