//! Folders that are resumed although something in them is odd, and folders that are no run's to take.

use crate::support::{Scratch, copy_dir, figures, model_bytes, names, same};
use std::path::Path;

fn entries(dir: &Path) -> Vec<String> {
    let all = std::fs::read_dir(dir).unwrap().flatten();
    let mut all: Vec<String> = all.map(|e| e.file_name().into_string().unwrap()).collect();
    all.sort();
    all
}

#[test]
fn checkpoints_numbered_past_the_last_step_do_not_fail_a_run() {
    let s = Scratch::new();
    let steps = |n: u32| s.job("config.json").steps(n);
    steps(10).run("whole");
    steps(8).run("cut");
    let at = |step: u64| s.path(&format!("cut/checkpoints/step-{step:08}"));
    // A copy under another number, a damaged one, and an empty folder.
    for (step, keeps) in [(900, "rank-00000.safetensors"), (901, "manifest.json")] {
        std::fs::create_dir(at(step)).unwrap();
        std::fs::copy(at(8).join(keeps), at(step).join(keeps)).unwrap();
    }
    std::fs::create_dir(at(902)).unwrap();
    let few = || steps(10).set("run.keep_last=1");
    let err = few().resume("cut").goes_on().said;
    for part in [
        "step 900 is passed over",
        "step 902 is passed over",
        "from step 8",
    ] {
        assert!(err.contains(part), "{part:?} not in {err}");
    }
    same(&s.path("whole"), &s.path("cut"));
    // A whole copy: what the run has just written is neither exported from it nor pruned for it.
    steps(8).run("copied");
    let at = |step: u64| s.path(&format!("copied/checkpoints/step-{step:08}"));
    std::fs::create_dir(at(900)).unwrap();
    for file in entries(&at(8)) {
        std::fs::copy(at(8).join(&file), at(900).join(&file)).unwrap();
    }
    few().resume("copied").goes_on();
    same(&s.path("whole"), &s.path("copied"));
    assert!(at(10).is_dir());
}

#[test]
fn a_resume_without_its_metrics_says_so_and_goes_on() {
    let s = Scratch::new();
    let steps = |n: u32| s.job("config.json").steps(n);
    steps(10).run("whole");
    steps(8).run("cut");
    let file = s.path("cut/metrics.jsonl");
    let text = std::fs::read_to_string(&file).unwrap();
    let part: String = text.split_inclusive('\n').take(3).collect();
    for (left, says) in [
        (None, "is missing or empty"),
        (Some(part), "ends at step 3"),
    ] {
        let run = s.path("again");
        let _ = std::fs::remove_dir_all(&run);
        copy_dir(&s.path("cut"), &run);
        match &left {
            None => std::fs::remove_file(run.join("metrics.jsonl")).unwrap(),
            Some(part) => std::fs::write(run.join("metrics.jsonl"), part).unwrap(),
        }
        let err = steps(10).resume("again").goes_on().said;
        let note = format!("again/metrics.jsonl {says}: records of the steps up to 8 are lost");
        assert!(err.contains(&note), "{err}");
        assert!(model_bytes(&s.path("whole")) == model_bytes(&run));
        let after = |run: &Path| {
            figures(run)
                .into_iter()
                .filter(|f| f.0 > 8)
                .collect::<Vec<_>>()
        };
        assert_eq!(after(&run), after(&s.path("whole")));
    }
}

#[test]
fn a_run_whose_record_holds_no_config_is_refused_in_a_few_words() {
    let s = Scratch::new();
    for text in ["null", "[]", "\"x\""] {
        std::fs::create_dir_all(s.path("run")).unwrap();
        s.write("run/config.json", text);
        let job = s.job("config.json").resume("run");
        let err = job.refused(&["run", "holds no config", "fix:"]);
        assert!(err.len() < 500, "{err}");
    }
}

#[test]
fn a_folder_that_is_part_of_a_run_is_no_run_of_its_own() {
    let s = Scratch::new();
    let job = s.job("config.json").steps(2);
    job.run("run");
    #[cfg(unix)]
    std::os::unix::fs::symlink("run/checkpoints", s.path("link")).unwrap();
    let before = entries(&s.path("run/checkpoints"));
    for (out, part) in [
        ("run/checkpoints", "checkpoints/ of the run"),
        ("run/checkpoints/a/b", "checkpoints/ of the run"),
        ("run/model", "model/ of the run"),
        ("./run/../run/model/x", "model/ of the run"),
        #[cfg(unix)]
        ("link/c", "checkpoints/ of the run"),
    ] {
        names(&job.fails(out).0, &[out, part, "fix:"]);
    }
    assert_eq!(entries(&s.path("run/checkpoints")), before);
    // A folder beside them is nobody's.
    job.run("run/more");
    // And folders of these names are a run's where they lie in none.
    job.run("model");
}
