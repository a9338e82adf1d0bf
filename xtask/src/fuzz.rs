//! `cargo xtask fuzz-layouts`: starts the test that draws layouts (`train/tests/layouts`) with what the words ask for.

use std::path::Path;
use std::process::Command;

/// The variable of the file that has what became of each layout.
const LOG: &str = "CROSSWEAVE_LOG";
/// The flags, and the variables by which the test hears of them.
const FLAGS: [(&str, &str); 6] = [
    ("--minutes", "CROSSWEAVE_MINUTES"),
    ("--layouts", "CROSSWEAVE_LAYOUTS"),
    ("--layout", "CROSSWEAVE_LAYOUT"),
    ("--seed", "CROSSWEAVE_SEED"),
    ("--only", "CROSSWEAVE_ONLY"),
    ("--log", LOG),
];

/// The variables that flags in pairs with their values set.
fn variables(words: &[&str]) -> Result<Vec<(&'static str, String)>, String> {
    let pair = |pair: &[&str]| {
        let known = FLAGS.iter().find(|f| pair.first() == Some(&f.0));
        match (known, pair) {
            (Some((_, variable)), [_, value]) => Ok((*variable, value.to_string())),
            _ => Err(format!(
                "fuzz-layouts: {} is no flag with a value; there are {}",
                pair.join(" "),
                FLAGS.map(|f| f.0).join(", ")
            )),
        }
    };
    words.chunks(2).map(pair).collect()
}

/// The test of layouts in the checkout at `root`.
pub(crate) fn sweep(root: &Path) -> Command {
    let mut run = Command::new(option_env!("CARGO").unwrap_or("cargo"));
    run.current_dir(root).args([
        "test",
        "--release",
        "--locked",
        "-p",
        "crossweave",
        "--test",
        "suite",
        "--",
    ]);
    run.args(["layouts::sweep", "--exact", "--ignored", "--nocapture"]);
    run
}

/// Draws layouts until the time is over, or one fails.
///
/// # Errors
/// Words that are no flags, no limit, a layout that fails.
pub fn layouts(root: &Path, words: &[&str]) -> Result<(), String> {
    let mut variables = variables(words)?;
    for (name, value) in &mut variables {
        // The test runs in the folder of its crate.
        if *name == LOG {
            let path = std::path::absolute(&*value).map_err(|e| format!("--log {value}: {e}"))?;
            *value = path.to_string_lossy().into_owned();
        }
    }
    let limits = [
        "CROSSWEAVE_MINUTES",
        "CROSSWEAVE_LAYOUTS",
        "CROSSWEAVE_LAYOUT",
    ];
    if !variables.iter().any(|(name, _)| limits.contains(name)) {
        return Err(
            "fuzz-layouts: say for how long, --minutes 10, or how many, --layouts 1000".into(),
        );
    }
    let status = sweep(root).envs(variables).status();
    let status = status.map_err(|e| format!("cargo: {e}"))?;
    crate::gate::ended(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_variables_of_the_test() {
        let set = variables(&["--minutes", "5", "--seed", "9"]).unwrap();
        let set: Vec<_> = set.iter().map(|(k, v)| (*k, v.as_str())).collect();
        assert_eq!(set, [("CROSSWEAVE_MINUTES", "5"), ("CROSSWEAVE_SEED", "9")]);
        for wrong in [&["--minute", "5"][..], &["--seed"], &["5"]] {
            assert!(
                variables(wrong)
                    .unwrap_err()
                    .contains("--minutes, --layouts")
            );
        }
    }

    #[test]
    fn a_limit_is_asked_for() {
        let e = layouts(Path::new("."), &["--seed", "1"]).unwrap_err();
        assert!(e.contains("--minutes 10"), "{e}");
    }
}
