//! The gate: one list of steps, run by `cargo xtask ci`, by `ci/test` and so by the hosted CI. What
//! is answered fastest comes first, and a red step of style or lints ends the run.

#[cfg(unix)]
mod memory;
mod scores;
mod tests_log;
#[cfg(unix)]
mod tools;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tests_log::Log;

/// The lints that clippy is not asked for: kernels index several arrays by one number and take as
/// many arguments as an op has operands.
const ALLOWED: [&str; 3] = [
    "clippy::needless_range_loop",
    "clippy::too_many_arguments",
    "clippy::type_complexity",
];

/// The test harness's variable for how many tests run at once.
const THREADS: &str = "RUST_TEST_THREADS";
/// The variable that names what tests may not skip (`crossweave_tests::tools`).
const REQUIRE: &str = "CROSSWEAVE_TESTS_REQUIRE";

/// What the gate is asked for.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// Runs every step, though an earlier one failed.
    pub keep_going: bool,
    /// What is tested, in the words of `cargo test`; empty: everything.
    pub scope: Vec<String>,
}

impl Ask {
    /// Reads the arguments of `ci`.
    pub fn parse(words: &[&str]) -> Ask {
        let keep_going = words.contains(&"--keep-going");
        let scope = words.iter().filter(|w| **w != "--keep-going");
        Ask {
            keep_going,
            scope: scope.map(|w| w.to_string()).collect(),
        }
    }
}

/// One step of the gate.
struct Step {
    name: &'static str,
    /// Ends the run when it fails: what follows takes minutes and would be run again anyway.
    first: bool,
    run: fn(&mut Gate) -> Result<(), String>,
}

/// Every step, in order.
#[rustfmt::skip]
const STEPS: &[Step] = &[
    Step { name: "fmt", first: true, run: Gate::fmt },
    Step { name: "tidy", first: true, run: |gate| (gate.tidy)() },
    Step { name: "clippy", first: true, run: Gate::clippy },
    Step { name: "packages", first: true, run: Gate::packages },
    Step { name: "build", first: true, run: |gate| gate.cargo(&["plugins", "--release", "--locked", "--quiet"]) },
    Step { name: "ci/gpu", first: false, run: Gate::gpu },
    Step { name: "test", first: false, run: Gate::test },
    Step { name: "doc", first: false, run: Gate::doc },
];

struct Gate {
    root: PathBuf,
    scope: Vec<String>,
    tidy: fn() -> Result<(), String>,
    required: Option<String>,
    log: Log,
    /// Further lines of the report.
    notes: Vec<String>,
    /// The `PATH` of the caller, which installs; the steps have that of the declared programs.
    path: std::ffi::OsString,
    /// The folder of the declared programs ([`tools`]).
    tools: Option<PathBuf>,
}

/// Runs the gate in the checkout at `root`; `tidy` is the command of that name. The closing lines of
/// the test programs come last, and after them one line with their sum.
///
/// # Errors
/// The steps that failed, by name.
pub fn run(root: &Path, ask: Ask, tidy: fn() -> Result<(), String>) -> Result<(), String> {
    let started = Instant::now();
    let mut gate = Gate {
        root: root.to_path_buf(),
        scope: ask.scope,
        tidy,
        required: std::env::var(REQUIRE).ok(),
        log: Log::default(),
        notes: scores::lines(&std::fs::read_to_string(root.join(scores::FILE)).unwrap_or_default()),
        path: std::env::var_os("PATH").unwrap_or_default(),
        tools: None,
    };
    let mut times: Vec<(&str, Duration)> = vec![];
    let mut failed = vec![];
    for step in STEPS {
        println!("\n== {}", step.name);
        let begun = Instant::now();
        let done = gate.take(step);
        times.push((step.name, begun.elapsed()));
        if let Err(why) = done {
            println!("{}: {why}", step.name);
            failed.push(step.name);
            if step.first && !ask.keep_going {
                println!("(the other steps are not run; --keep-going runs them)");
                break;
            }
        }
    }
    println!("\n== times");
    for (name, time) in times {
        println!("{name:<10}{:>6.0} s", time.as_secs_f64());
    }
    gate.notes.iter().for_each(|note| println!("{note}"));
    print!("{}", gate.log.closing());
    if !failed.is_empty() {
        println!("failed: {}", failed.join(", "));
    }
    println!("{} in {} s", gate.log.sum(), started.elapsed().as_secs());
    match failed.is_empty() {
        true => Ok(()),
        false => Err(format!("ci: failed: {}", failed.join(", "))),
    }
}

impl Gate {
    /// Runs a step with the declared programs, and fails it where it starts another one.
    #[cfg(unix)]
    fn take(&mut self, step: &Step) -> Result<(), String> {
        // Anew: a step may install.
        let list = std::fs::read_to_string(self.root.join(tools::LIST));
        let list = list.map_err(|e| format!("{}: {e}", tools::LIST))?;
        let folder = tools::Folder::make(&self.root.join("target/tools"), &list, &self.path)?;
        self.tools = Some(folder.bin());
        let done = (step.run)(self);
        let judged = folder.judge();
        match (done, judged) {
            (Err(why), Err(also)) => Err(format!("{why}; {also}")),
            (done, judged) => done.and(judged),
        }
    }

    #[cfg(not(unix))]
    fn take(&mut self, step: &Step) -> Result<(), String> {
        (step.run)(self)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root).stdin(Stdio::null());
        if let Some(tools) = &self.tools {
            command.env("PATH", tools);
        }
        command
    }

    fn cargo(&self, args: &[&str]) -> Result<(), String> {
        finish(self.command(cargo()).args(args))
    }

    /// Does this toolchain have `cargo WHAT`? Where not, that step says so and passes.
    fn has(&self, what: &str, component: &str) -> bool {
        let asked = self.command(cargo()).args([what, "--version"]).output();
        let there = asked.is_ok_and(|a| a.status.success());
        if !there {
            println!("skipped: cargo {what} (rustup component add {component})");
        }
        there
    }

    fn fmt(&mut self) -> Result<(), String> {
        match self.has("fmt", "rustfmt") {
            true => self.cargo(&["fmt", "--all", "--check"]),
            false => Ok(()),
        }
    }

    fn clippy(&mut self) -> Result<(), String> {
        if !self.has("clippy", "clippy") {
            return Ok(());
        }
        let mut args = vec!["clippy", "--release", "--workspace", "--all-targets"];
        // An example that is not built otherwise: its peer takes a minute to compile.
        args.extend(["--features", "crossweave-backend-cpu/peers"]);
        args.extend(["--locked", "--quiet", "--", "-D", "warnings"]);
        args.extend(ALLOWED.iter().flat_map(|lint| ["-A", *lint]));
        self.cargo(&args)
    }

    /// Installs what tests need of the system, and keeps what the last line requires of them.
    fn packages(&mut self) -> Result<(), String> {
        let mut script = self.command("ci/packages");
        // It installs, with programs of the system that no test may count on.
        script.env("PATH", &self.path);
        let mut child = script
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("ci/packages: {e}"))?;
        let lines = child.stdout.take().map(BufReader::new);
        for line in lines.into_iter().flat_map(BufRead::lines) {
            let line = line.map_err(|e| e.to_string())?;
            println!("{line}");
            if let Some(tools) = line.strip_prefix("require: ") {
                // What the caller requires beyond that stays required.
                let more = self.required.take().filter(|r| !r.is_empty());
                let all = more.map_or(tools.to_string(), |r| format!("{r},{tools}"));
                self.required = Some(all);
            }
        }
        ended(child.wait().map_err(|e| e.to_string())?)
    }

    /// The script for machines with a GPU packs, and what it packs runs to its end where no device is.
    fn gpu(&mut self) -> Result<(), String> {
        if Path::new("/dev/nvidia0").exists() {
            println!("skipped: this machine has a device; run ci/gpu itself");
            return Ok(());
        }
        let target = self.root.join("target");
        let archive = target.join("crossweave-gpu.tar.gz");
        finish(self.command("ci/gpu").arg("pack").arg(&archive))?;
        finish(
            self.command("tar")
                .arg("-xzf")
                .arg(&archive)
                .arg("-C")
                .arg(&target),
        )?;
        let unpacked = target.join("crossweave-gpu/gpu");
        for args in [&[][..], &["forward"]] {
            let ran = self
                .command(&unpacked.to_string_lossy())
                .args(args)
                .output()
                .map_err(|e| format!("{}: {e}", unpacked.display()))?;
            let said = String::from_utf8_lossy(&ran.stdout);
            print!("{said}");
            if !ran.status.success() || !said.contains("no device") {
                return Err("the unpacked script did not end with \"no device\"".into());
            }
        }
        Ok(())
    }

    /// Every test of every crate; doc tests and the lessons under `examples/` are among them.
    fn test(&mut self) -> Result<(), String> {
        let mut cargo = self.command(cargo());
        // Test programs are started by `xtask timed`, which asks them for the time of each test.
        let own = std::env::current_exe().map_err(|e| e.to_string())?;
        let runner = format!("target.'cfg(all())'.runner = [{own:?}, \"timed\"]");
        cargo.args(["--config", &runner, "test", "--release", "--locked"]);
        cargo.arg("--no-fail-fast");
        match self.scope.is_empty() {
            true => cargo.arg("--workspace"),
            false => cargo.args(&self.scope),
        };
        if let Some(required) = &self.required {
            cargo.env(REQUIRE, required);
        }
        // Many tests wait for processes or limits of time: one more than there are cores keeps these busy.
        if std::env::var_os(THREADS).is_none() {
            let cores = std::thread::available_parallelism().map_or(2, usize::from);
            cargo.env(THREADS, (cores + 1).to_string());
        }
        // Mesa's software driver compiles each shader once and runs it on a few elements: without LLVM's passes it is done sooner.
        cargo.env("GALLIVM_PERF", "nopt");
        #[cfg(unix)]
        let files = memory::Folder::make();
        #[cfg(unix)]
        match &files {
            Some(folder) => _ = cargo.env("TMPDIR", folder.path()),
            None => self.notes.push(
                "files of tests were on a disk, since there is no room for them in memory".into(),
            ),
        }
        let (reader, writer) = std::io::pipe().map_err(|e| e.to_string())?;
        cargo.stdout(writer.try_clone().map_err(|e| e.to_string())?);
        cargo.stderr(writer);
        let mut child = cargo.spawn().map_err(|e| format!("cargo test: {e}"))?;
        // The pipe ends when every process that holds its other end has; this one is among them.
        drop(cargo);
        let file = self.root.join("target/ci-test.log");
        let mut copy = std::fs::File::create(&file).map_err(|e| e.to_string())?;
        for line in BufReader::new(reader).split(b'\n') {
            let line = line.map_err(|e| e.to_string())?;
            let line = String::from_utf8_lossy(&line);
            println!("{line}");
            writeln!(copy, "{line}").map_err(|e| e.to_string())?;
            self.log.take(&line);
        }
        ended(child.wait().map_err(|e| e.to_string())?)?;
        match self.log.passed() {
            0 => Err("no test was run".into()),
            _ => Ok(()),
        }
    }

    fn doc(&mut self) -> Result<(), String> {
        let args = ["doc", "--release", "--workspace", "--no-deps", "--locked"];
        let mut doc = self.command(cargo());
        doc.args(args)
            .arg("--quiet")
            .env("RUSTDOCFLAGS", "-D warnings");
        finish(&mut doc)
    }
}

/// Runs both commands of the README on a bare machine (`ci/bare`, which has the words and says what it does).
///
/// # Errors
/// How the script ended.
pub fn bare(root: &Path, words: &[&str]) -> Result<(), String> {
    finish(Command::new("ci/bare").args(words).current_dir(root))
}

/// Runs a test program and asks it for the time of each test, which is an unstable option of the
/// test harness. Everything else that cargo starts is run as it is. Returns only on an error.
///
/// # Errors
/// The program cannot be started.
pub fn timed(words: &[&str]) -> Result<(), String> {
    let [program, args @ ..] = words else {
        return Err("cargo xtask timed PROGRAM [ARGS]".into());
    };
    let mut run = Command::new(program);
    run.args(args);
    let folder = Path::new(program).parent().and_then(Path::file_name);
    if folder.is_some_and(|f| f == "deps") {
        println!(
            "     Testing {}",
            std::env::var("CARGO_PKG_NAME").unwrap_or_default()
        );
        run.args(["-Zunstable-options", "--report-time"]);
        run.env("RUSTC_BOOTSTRAP", "1");
    }
    replace(&mut run, program)
}

#[cfg(unix)]
fn replace(run: &mut Command, program: &str) -> Result<(), String> {
    let e = std::os::unix::process::CommandExt::exec(run);
    Err(format!("{program}: {e}"))
}

#[cfg(not(unix))]
fn replace(run: &mut Command, program: &str) -> Result<(), String> {
    let status = run.status().map_err(|e| format!("{program}: {e}"))?;
    std::process::exit(status.code().unwrap_or(1))
}

fn cargo() -> &'static str {
    option_env!("CARGO").unwrap_or("cargo")
}

fn finish(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    ended(command.status().map_err(|e| format!("{program}: {e}"))?)
}

/// The exit status of a program as a result.
///
/// # Errors
/// The status, where it is no success.
pub(crate) fn ended(status: std::process::ExitStatus) -> Result<(), String> {
    match status.success() {
        true => Ok(()),
        false => Err(status.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_answered_fastest_comes_first() {
        let names: Vec<&str> = STEPS.iter().map(|s| s.name).collect();
        assert_eq!(names[..3], ["fmt", "tidy", "clippy"]);
        assert!(STEPS[..3].iter().all(|s| s.first));
    }

    #[test]
    fn the_rest_of_the_words_narrows_the_tests() {
        let ask = Ask::parse(&["--keep-going", "-p", "crossweave-plan", "laws"]);
        assert!(ask.keep_going);
        assert_eq!(ask.scope, ["-p", "crossweave-plan", "laws"]);
        assert_eq!(Ask::parse(&[]), Ask::default());
    }
}
