//! `--key value` options of a bench. What a bench takes is what its help lists: anything else is answered before something runs.

use crate::Fallible;
use std::collections::BTreeMap;
use std::fmt;
use std::process::ExitCode;

/// A command line that is wrong.
#[derive(Debug, PartialEq, Eq)]
pub struct Usage(pub String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for Usage {}

/// Options given on the command line.
#[derive(Debug)]
pub struct Options {
    given: BTreeMap<String, String>,
    words: std::vec::IntoIter<String>,
}

/// Runs a bench: `--help` prints `help`, in which a line that begins with `--key` states an option; up to `words` words may stand without
/// one. A wrong command line ends with 2, a failure with 1.
pub fn program(help: &str, words: usize, run: impl FnOnce(Options) -> Fallible<()>) -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|a| a == "--help" || a == "-h") {
        println!("{}", help.trim_end());
        return ExitCode::SUCCESS;
    }
    let done = match Options::parse(args, help, words) {
        Ok(o) => run(o),
        Err(e) => Err(e.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) if e.is::<Usage>() => {
            eprintln!("error: {e}; --help shows every option and an example");
            ExitCode::from(2)
        }
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

/// The options that a help text states.
pub fn stated(help: &str) -> Vec<&str> {
    let key =
        |line: &'_ str| -> Option<usize> { line.trim_start().strip_prefix("--").map(str::len) };
    help.lines()
        .filter(|l| key(l).is_some())
        .filter_map(|l| l.trim_start().strip_prefix("--")?.split_whitespace().next())
        .collect()
}

impl Options {
    /// Reads `--key value` pairs; a key without a value (the next word begins with `--`, or there is none) is `"on"`.
    ///
    /// # Errors
    /// A key that `help` does not state, one given twice, more than `most` words without a key.
    pub fn parse(
        args: impl IntoIterator<Item = String>,
        help: &str,
        most: usize,
    ) -> Result<Options, Usage> {
        let known = stated(help);
        let mut given = BTreeMap::new();
        let mut words = vec![];
        let mut args = args.into_iter().peekable();
        while let Some(a) = args.next() {
            let Some(key) = a.strip_prefix("--") else {
                words.push(a);
                if words.len() > most {
                    let last = &words[most];
                    return Err(Usage(format!(
                        "unexpected argument {last:?}: options are --key value"
                    )));
                }
                continue;
            };
            // `cargo bench` adds this to every program it runs.
            if key == "bench" {
                continue;
            }
            if !known.contains(&key) {
                let near = known.iter().find(|k| {
                    k.starts_with(key) || key.starts_with(*k) || k.trim_end_matches('s') == key
                });
                let fix = near.map_or(String::new(), |n| format!("; did you mean --{n}?"));
                return Err(Usage(format!("unknown option --{key}{fix}")));
            }
            let value = args.next_if(|v| !v.starts_with("--"));
            let value = value.unwrap_or_else(|| "on".into());
            if given.insert(key.to_string(), value).is_some() {
                return Err(Usage(format!("--{key} is given twice")));
            }
        }
        Ok(Options {
            given,
            words: words.into_iter(),
        })
    }
    /// Takes the next word that stands without a key.
    pub fn word(&mut self) -> Option<String> {
        self.words.next()
    }
    /// Takes an option as text.
    pub fn text(&mut self, key: &str) -> Option<String> {
        self.given.remove(key)
    }
    /// Takes an option as one of `words`, the first where it is not given.
    ///
    /// # Errors
    /// None of them.
    pub fn choice(&mut self, key: &str, words: &[&str]) -> Result<String, Usage> {
        let Some(text) = self.text(key) else {
            return Ok(words.first().unwrap_or(&"").to_string());
        };
        one_of(key, &text, words)?;
        Ok(text)
    }
    /// Takes an option as a number of at least `least`, or `default`.
    ///
    /// # Errors
    /// No such number.
    pub fn number(&mut self, key: &str, default: u64, least: u64) -> Result<u64, Usage> {
        let Some(text) = self.text(key) else {
            return Ok(default);
        };
        match text.parse() {
            Ok(n) if n >= least => Ok(n),
            _ => Err(Usage(format!(
                "--{key} {text:?}: wanted a whole number of at least {least}"
            ))),
        }
    }
    /// Takes a comma-separated list, or `default`.
    pub fn list(&mut self, key: &str, default: &str) -> Vec<String> {
        let text = self.text(key).unwrap_or_else(|| default.into());
        text.split(',').map(str::to_string).collect()
    }
    /// Takes a comma-separated list of some of `words`, or `default`.
    ///
    /// # Errors
    /// The first that is none of them.
    pub fn choices(
        &mut self,
        key: &str,
        default: &str,
        words: &[&str],
    ) -> Result<Vec<String>, Usage> {
        let all = self.list(key, default);
        all.iter().try_for_each(|t| one_of(key, t, words))?;
        Ok(all)
    }
    /// Nothing may be left: an option that only another way of running the bench takes.
    ///
    /// # Errors
    /// The first that is left.
    pub fn done(mut self) -> Result<(), Usage> {
        match (self.given.keys().next(), self.words.next()) {
            (None, None) => Ok(()),
            (Some(k), _) => Err(Usage(format!("--{k} has no effect here"))),
            (None, Some(w)) => Err(Usage(format!("unexpected argument {w:?}"))),
        }
    }
}

fn one_of(key: &str, text: &str, words: &[&str]) -> Result<(), Usage> {
    match words.contains(&text) {
        true => Ok(()),
        false => Err(Usage(format!(
            "--{key} {text:?}: wanted {}",
            words.join(", ")
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELP: &str =
        "What.\n\n  --steps 8     steps\n  --presets a,b    models\n\nExample: x --steps 3";

    fn parse(line: &str, most: usize) -> Result<Options, Usage> {
        Options::parse(line.split_whitespace().map(String::from), HELP, most)
    }

    #[test]
    fn what_is_wrong_is_answered() {
        assert_eq!(stated(HELP), ["steps", "presets"]);
        for (line, words) in [
            ("--stepss 3", "did you mean --steps?"),
            ("--preset a", "did you mean --presets?"),
            ("--nothing", "unknown option --nothing"),
            ("--steps 1 --steps 2", "given twice"),
            ("a b", "unexpected argument \"b\""),
        ] {
            let e = parse(line, 1).unwrap_err().0;
            assert!(e.contains(words), "{line}: {e}");
        }
        let number = |line: &str| parse(line, 0).unwrap().number("steps", 8, 1);
        assert_eq!(number(""), Ok(8));
        assert_eq!(number("--steps 3"), Ok(3));
        for bad in ["--steps 0", "--steps -1", "--steps x", "--steps"] {
            assert!(number(bad).is_err(), "{bad}");
        }
        let choices = |line: &str| parse(line, 0).unwrap().choices("presets", "a", &["a", "b"]);
        assert_eq!(choices("--presets b,a").unwrap(), ["b", "a"]);
        assert!(
            choices("--presets b,c")
                .unwrap_err()
                .0
                .contains("wanted a, b")
        );
        assert!(parse("--steps 3", 0).unwrap().done().is_err());
    }

    /// Every option that a bench asks for is in its help, and the help has no other, and an example.
    #[test]
    fn help_says_what_the_program_takes() {
        for (name, source) in [
            ("checker", include_str!("bin/checker.rs")),
            ("checkpoint", include_str!("bin/checkpoint.rs")),
            ("collectives", include_str!("bin/collectives.rs")),
            ("launches", include_str!("bin/launches.rs")),
            ("offload", include_str!("bin/offload.rs")),
            ("ops", include_str!("bin/ops.rs")),
            ("step", include_str!("bin/step.rs")),
            ("tape", include_str!("bin/tape.rs")),
        ] {
            let start = source.find("const HELP: &str = ").expect(name);
            let help = &source[start..][..source[start..].find("\";\n").expect(name)];
            assert!(help.contains(&format!("Example: {name}")), "{name}");
            let mut asked: Vec<&str> = ["text", "number", "list", "choice", "choices"]
                .iter()
                .flat_map(|f| {
                    let call = format!("o.{f}(\"");
                    let named = source.split(call.as_str()).skip(1);
                    let names = named.map(|rest| rest.split('"').next().unwrap_or(""));
                    names.collect::<Vec<&str>>()
                })
                .collect();
            let mut listed = stated(help);
            asked.sort_unstable();
            asked.dedup();
            listed.sort_unstable();
            assert_eq!(asked, listed, "{name}");
        }
    }
}
