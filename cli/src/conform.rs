//! `crossweave conform`: holds a plugin against its contract, and prints what holds. Children of the kit are this program again.
//!
//! Exit codes: 0 everything claimed holds, 1 a claim fails, 2 the plugin cannot be loaded or lacks a mandatory slot, 3 the machine lacks
//! something or not all was run, 4 a case passes that was expected to fail.

use crate::args::ConformArgs;
use crate::backend::{LINKED, plugin_options};
use crate::error::{CliError, Result};
use crate::say::say;
use crate::surroundings::{Plugins, Surroundings};
use crossweave_conform::cells::{self, Card};
use crossweave_conform::expect::Expect;
use crossweave_conform::launch::{Program, read_job};
use crossweave_conform::report::{Status, diff};
use crossweave_conform::run::{FEW_RANKS, RANKS};
use crossweave_conform::{Effort, Options, Report, Target, Trouble, child as kit};
use crossweave_hal::HostServices;
use crossweave_hal::loader::find;
use crossweave_mesh::detect;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The hidden subcommand by which a child is started.
const CHILD: &str = "conform-child";

/// Runs the command.
///
/// # Errors
/// A plugin that cannot be loaded, a machine that lacks something, and a report that is not clean: it is printed, and the error only
/// carries the exit code.
pub fn run(a: &ConformArgs, around: &Surroundings) -> Result<()> {
    if let Some([first, second]) = a.diff.as_deref() {
        return compare(first, second);
    }
    let target = target(a.plugin.as_deref().unwrap_or_default(), &around.plugins)?;
    let expect = match &a.expect {
        Some(path) => Expect::read(path).map_err(Trouble::Environment)?,
        None => Expect::default(),
    };
    let unknown = || std::io::Error::other("the file of this program is not known");
    let program = around.program.clone().ok_or_else(unknown);
    let program = program.map_err(CliError::io("find", Path::new("crossweave")))?;
    let effort = match (a.quick, a.big) {
        (true, _) => Effort::Quick,
        (_, true) => Effort::Big,
        _ => Effort::Default,
    };
    let card = match (a.rest, &a.report) {
        (true, Some(path)) => Some(card(path)?),
        _ => None,
    };
    let only = card.as_ref().map_or_else(|| a.only.clone(), Card::rest);
    let o = Options {
        layers: a.layers.clone(),
        config: config(&target, &a.sets, &around.plugins)?,
        target,
        level: a.level.into(),
        profile: a.profile.map(Into::into),
        devices: a.devices.clone(),
        ranks: match (a.ranks.is_empty(), effort) {
            (true, Effort::Quick) => FEW_RANKS.to_vec(),
            (true, _) => RANKS.to_vec(),
            _ => a.ranks.clone(),
        },
        launcher: a.launcher.into(),
        only,
        replay: a.replay.clone(),
        seed: a.seed,
        expect,
        effort,
        budget: a.budget,
        limit: a.case_limit,
        jobs: a.jobs.map(usize::from),
        program: Program {
            path: program,
            args: vec![CHILD.into()],
            launcher: a.launcher_command.clone(),
        },
    };
    let refused = |why: String| {
        let fix = "give the flags that the card was made with, or make it anew without --rest";
        CliError::refused(why, fix)
    };
    if let Some(card) = &card {
        card.accepts(&o.request()).map_err(refused)?;
        if card.rest().is_empty() {
            say!("the card has met every case; nothing is run");
            return Ok(());
        }
    }
    if a.list {
        for c in o.cases()? {
            say!("{}", c.id);
        }
        return Ok(());
    }
    // A report that cannot be written is known before minutes of work, not after.
    for path in a.report.iter().chain(&a.markdown) {
        writable(path).map_err(|e| {
            let fix = crossweave_files::fix(&e);
            Trouble::Environment(format!("cannot write {}: {e}; fix: {fix}", path.display()))
        })?;
    }
    let verbose = a.verbose || a.replay.is_some();
    let report = o.run(&mut |c| {
        if verbose {
            say!("{:<8}{}   {}", c.status.word(), c.id, c.note);
        } else if c.status == Status::Fail {
            eprintln!("FAIL {}   {}", c.id, c.note);
        }
    })?;
    let report = match card {
        None => report,
        Some(card) => card.with(report).map_err(refused)?,
    };
    say!("{}", report.text().trim_end());
    if let Some(path) = &a.report {
        let text = match is_card(path) {
            true => cells::write(&report).map_err(Trouble::Environment)?,
            false => report.json(),
        };
        put(path, &text).map_err(CliError::io("write", path))?;
    }
    if let Some(path) = &a.markdown {
        put(path, &report.markdown()).map_err(CliError::io("write", path))?;
    }
    match report.exit_code() {
        0 => Ok(()),
        code => Err(CliError::Said { code }),
    }
}

/// Is the report at this path written by families of cases?
fn is_card(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "cells")
}

/// The card at a path, by families of cases.
fn card(path: &Path) -> Result<Card> {
    if !is_card(path) {
        return Err(CliError::refused(
            format!("{} does not end in .cells", path.display()),
            "give a card that `crossweave conform --report NAME.cells` has written",
        ));
    }
    let text = crossweave_files::read_text(path, 64 << 20).map_err(CliError::io("read", path))?;
    cells::read(&path.display().to_string(), &text)
        .map_err(|e| Trouble::Environment(e.to_string()).into())
}

/// Prints how two scorecards differ.
fn compare(first: &Path, second: &Path) -> Result<()> {
    let read = |path: &Path| -> Result<Report> {
        if is_card(path) {
            return Ok(card(path)?.report);
        }
        let text =
            crossweave_files::read_text(path, 64 << 20).map_err(CliError::io("read", path))?;
        serde_json::from_str(&text).map_err(|e| {
            CliError::refused(
                format!("{}: {e}", path.display()),
                "give two scorecards that `crossweave conform --report` has written",
            )
        })
    };
    let (text, worse) = diff(&read(first)?, &read(second)?);
    say!("{}", text.trim_end());
    match worse {
        true => Err(CliError::Said { code: 1 }),
        false => Ok(()),
    }
}

/// Where a report for `path` is written first; `None` for what is no file (a pipe, a terminal) and is written as it is. Links stay links.
fn beside(path: &Path) -> std::io::Result<Option<(PathBuf, PathBuf)>> {
    let path = match std::fs::metadata(path) {
        Ok(m) if m.is_dir() => return Err(std::io::ErrorKind::IsADirectory.into()),
        Ok(m) if !m.is_file() => return Ok(None),
        Ok(_) => path.canonicalize()?,
        Err(_) => path.to_path_buf(),
    };
    let mut part = path.as_os_str().to_owned();
    part.push(format!(".{}.part", std::process::id()));
    Ok(Some((part.into(), path)))
}

/// Can a report be put there? What is there stays as it is.
fn writable(path: &Path) -> std::io::Result<()> {
    match beside(path)? {
        Some((part, _)) => std::fs::write(&part, "").and_then(|()| std::fs::remove_file(&part)),
        None => Ok(()),
    }
}

/// Writes a report whole: an earlier one is there until this one is.
fn put(path: &Path, text: &str) -> std::io::Result<()> {
    let Some((part, path)) = beside(path)? else {
        return std::fs::write(path, text);
    };
    let done = std::fs::write(&part, text).and_then(|()| std::fs::rename(&part, path));
    if done.is_err() {
        let _ = std::fs::remove_file(&part);
    }
    done
}

/// A path, a linked back end's name, or a plugin's name.
fn target(word: &str, plugins: &Plugins) -> Result<Target> {
    let path = PathBuf::from(word);
    if LINKED.contains(&word) {
        return Ok(Target::Linked(word.into()));
    }
    if path.components().count() > 1 || path.extension().is_some() || path.exists() {
        return Ok(Target::File(path));
    }
    let found = find(word, &plugins.folders).map_err(|e| Trouble::Plugin(e.to_string()))?;
    Ok(Target::File(found))
}

/// The plugin's configuration: two devices where it lets itself be divided, and what the user sets, in the environment and here.
fn config(target: &Target, sets: &[String], plugins: &Plugins) -> Result<BTreeMap<String, String>> {
    let mut config = BTreeMap::new();
    let name = match target {
        Target::Linked(name) => Some(name.clone()),
        Target::File(path) => {
            let m = crossweave_hal::manifest::Manifest::read(path);
            m.ok().map(|m| m.name)
        }
    };
    if let Some(name) = name {
        config.insert(format!("{name}.devices"), "2".into());
        let own = format!("{name}.");
        let options = plugin_options(plugins).into_iter();
        config.extend(options.filter(|(k, _)| k == "cache_dir" || k.starts_with(&own)));
    }
    if let Some(library) = &plugins.mpi {
        config.insert("mpi.library".into(), library.to_string_lossy().into_owned());
    }
    for s in sets {
        let Some((key, value)) = s.split_once('=') else {
            return Err(CliError::refused(
                format!("--set {s:?} is not KEY=VALUE"),
                "give the plugin's key and its value, such as --set cpu.threads=1",
            ));
        };
        config.insert(key.trim().into(), value.trim().into());
    }
    Ok(config)
}

/// Runs a child's job.
///
/// # Errors
/// A job that cannot be read: a person has called the hidden subcommand.
pub fn child(job: &Path, around: &Surroundings) -> Result<()> {
    let mut job = read_job(job).map_err(Trouble::Environment)?;
    // A job that leaves the rank open is started by a launcher.
    let place = match job.team.is_some() && job.rank.is_none() {
        true => {
            detect(|name| around.variable(name)).map_err(|e| Trouble::Environment(e.to_string()))?
        }
        false => None,
    };
    if let Some(family) = place.as_ref().and_then(|l| l.launcher.family()) {
        let key = "mpi.family".to_string();
        job.config.entry(key).or_insert_with(|| family.to_string());
    }
    let linked = |name: &str| match name {
        "cpu" => Some(crossweave_backend_cpu::entry()),
        "null" => Some(crossweave_backend_null::entry()),
        _ => None,
    };
    let outputs = &around.plugins.outputs;
    let layered = |raw, spec: &str, host: &HostServices| {
        crate::layers::around(raw, spec, host, outputs).map_err(|e| e.to_string())
    };
    kit::serve(&job, &linked, &layered, place.map(|l| l.rank))
        .map_err(CliError::io("write to", Path::new("standard output")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_takes_the_place_of_the_last_one_when_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let (out, link) = (dir.path().join("out.json"), dir.path().join("link.json"));
        std::fs::write(&out, "old").unwrap();
        writable(&out).unwrap();
        assert_eq!(std::fs::read_to_string(&out).unwrap(), "old");
        put(&out, "new").unwrap();
        assert_eq!(std::fs::read_to_string(&out).unwrap(), "new");
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(&out, &link).unwrap();
            put(&link, "newer").unwrap();
            assert!(link.is_symlink());
            assert_eq!(std::fs::read_to_string(&out).unwrap(), "newer");
            std::fs::remove_file(&link).unwrap();
        }
        assert!(writable(dir.path()).is_err());
        assert!(writable(&dir.path().join("no/such/folder.json")).is_err());
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }
}
