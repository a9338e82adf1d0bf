//! Where a run's files go: a folder that holds no other run and that no other process writes.
//!
//! The first process of a job claims it before anything of a run in it is read or written, and holds the claim to its end.

use crate::request::{Continued, Request};
use crate::train_error::{Result, TrainError};
use crate::{metrics, resume};
use crossweave_claim::{Claim, ClaimError, Life, Owner, Unseen};
use crossweave_config::Config;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A run's folder, as its first process has it.
pub struct RunFolder {
    /// Where.
    pub path: PathBuf,
    /// Held by this process, where it writes there.
    pub claim: Option<Arc<Claim>>,
    /// What the user should know.
    pub notes: Vec<String>,
}

impl RunFolder {
    /// One that this process does not claim: rank 0's process has, or nothing is written.
    pub fn unclaimed(path: PathBuf) -> RunFolder {
        RunFolder {
            path,
            claim: None,
            notes: vec![],
        }
    }

    fn claimed(path: PathBuf, claim: Claim) -> RunFolder {
        let over = |o: &Owner| {
            let why = match o.life() {
                Life::Unknown => "is on a host that cannot be seen from here, and is lost",
                _ => "was killed or its machine restarted",
            };
            format!(
                "{}: its last job {why}: {o}; this job takes the folder over",
                path.display()
            )
        };
        let notes = claim.replaced().map(over);
        RunFolder {
            notes: notes.into_iter().collect(),
            claim: Some(Arc::new(claim)),
            path,
        }
    }

    /// Claims the folder a command line asks for: `--out`, the folder of `--resume`, `run.out`, or a new one under `runs/`. A folder that
    /// holds a run is never written over; only `--resume` continues it, and with `auto` begins it anew where it has no checkpoint yet. From a
    /// checkpoint that is named a run goes on in another folder.
    ///
    /// # Errors
    /// Another process writes there; it holds a run, or files that a run would write over; it cannot be written.
    pub fn choose(request: &Request, config: &Config) -> Result<RunFolder> {
        let named = request.resume.as_ref().and_then(Continued::folder);
        if let Some(dir) = named {
            resume::check_holds_run(dir)?;
        }
        let job = format!("crossweave train {}", request.config.display());
        let Some(dir) = requested(request, config) else {
            return fresh(&request.config, &job);
        };
        sound("--out ", &dir)?;
        let unseen = match request.take_over {
            true => Unseen::IsLost,
            false => Unseen::Lives,
        };
        let claim = Claim::folder_from(&dir, &job, unseen)?;
        let same = |from: &Path| Some(from.canonicalize().ok()? == dir.canonicalize().ok()?);
        let own = request.resume == Some(Continued::Own) && holds_run(&dir);
        let continues = own || named.and_then(same) == Some(true);
        if !continues && holds_run(&dir) {
            return Err(taken(&dir));
        }
        if let Some(name) = strange(&dir).filter(|_| !continues && claim.replaced().is_none()) {
            return Err(written_over(&dir, name));
        }
        crossweave_checkpoint::check_target(&dir.join("model"))?;
        Ok(RunFolder::claimed(dir, claim))
    }
}

/// Whether `run.out` may become the folder of a new run.
///
/// # Errors
/// It is a file, lies in another run, or holds a run or files that a run would write over.
pub fn free_folder(config: &Config) -> Result<()> {
    let Some(dir) = config.settings.run.out.as_ref().map(PathBuf::from) else {
        return Ok(());
    };
    sound("", &dir)?;
    may_become(&dir)?;
    match (holds_run(&dir), strange(&dir)) {
        (true, _) => Err(taken(&dir)),
        (_, Some(name)) => Err(written_over(&dir, name)),
        _ => Ok(()),
    }
}

/// Whether a folder is there to be written to, or can be made.
///
/// # Errors
/// It is a file, lies beneath one, or nobody may write where it would be made.
pub fn may_become(dir: &Path) -> Result<()> {
    let whole = std::path::absolute(dir).map_err(TrainError::io("find", dir))?;
    let Some(there) = whole.ancestors().find(|a| a.exists()) else {
        return Ok(());
    };
    let facts = std::fs::metadata(there).map_err(TrainError::io("look at", there))?;
    let why = match (facts.is_dir(), facts.permissions().readonly()) {
        (false, _) => "is a file",
        (true, true) => "may not be written to",
        (true, false) => return Ok(()),
    };
    Err(TrainError::refused(
        format!(
            "cannot make the folder {}: {} {why}",
            dir.display(),
            there.display()
        ),
        "name a folder that can be written to",
    ))
}

/// Refuses a file, and a folder that is a part of another run.
fn sound(option: &str, dir: &Path) -> Result<()> {
    if dir.exists() && !dir.is_dir() {
        return Err(TrainError::refused(
            format!("{option}{}: is a file", dir.display()),
            "name a folder",
        ));
    }
    if is_root(dir) {
        return Err(TrainError::refused(
            format!("{option}{}: is the root of the file system", dir.display()),
            "name a folder in it",
        ));
    }
    match inside_a_run(dir) {
        Some((run, part)) => Err(TrainError::refused(
            format!(
                "{}: lies in {part}/ of the run {}, which keeps files of its own there",
                dir.display(),
                run.display()
            ),
            "name a folder beside that run",
        )),
        None => Ok(()),
    }
}

fn taken(dir: &Path) -> TrainError {
    TrainError::refused(
        format!("{} already holds a run", dir.display()),
        format!(
            "continue it with `--resume {}`, or choose another --out",
            dir.display()
        ),
    )
}

fn written_over(dir: &Path, name: &str) -> TrainError {
    TrainError::refused(
        format!(
            "{} holds a {name} and no run: the run's own would be written over it",
            dir.display()
        ),
        "choose another --out",
    )
}

/// The folder that is named, if one is.
pub fn requested(request: &Request, config: &Config) -> Option<PathBuf> {
    let resume = request.resume.as_ref();
    // From a checkpoint that is named a run goes on elsewhere: its own folder may hold later ones.
    let whole = |dir: &&Path| crossweave_checkpoint::run_and_step(dir).is_none();
    let of_resume = || Some(resume?.folder().filter(whole)?.to_path_buf());
    let given = request.out.clone().or_else(of_resume);
    let given = given.or_else(|| config.settings.run.out.as_ref().map(PathBuf::from));
    // The same command finds its run again.
    let own = resume == Some(&Continued::Own);
    given.or_else(|| own.then(|| of_config(&request.config)))
}

/// `runs/NAME`, where NAME is the config's.
fn of_config(config: &Path) -> PathBuf {
    Path::new("runs").join(config.file_stem().unwrap_or("run".as_ref()))
}

/// `runs/NAME`; nobody chose it, so where there is a run or a job the next of `runs/NAME-2`, … is taken.
fn fresh(config: &Path, job: &str) -> Result<RunFolder> {
    let first = of_config(config);
    let (mut taken, mut n) = (None, 0u64);
    loop {
        n += 1;
        let mut dir = first.clone().into_os_string();
        if n > 1 {
            dir.push(format!("-{n}"));
        }
        let dir = PathBuf::from(dir);
        if dir.exists() && (!dir.is_dir() || holds_run(&dir) || strange(&dir).is_some()) {
            taken.get_or_insert("holds a run");
            continue;
        }
        let claim = match Claim::folder(&dir, job) {
            Ok(claim) => claim,
            Err(ClaimError::Held { .. } | ClaimError::Unreadable { .. }) => {
                taken.get_or_insert("is in use by another job");
                continue;
            }
            Err(e) => return Err(e.into()),
        };
        // The job that had it may have ended since it was looked at.
        if holds_run(&dir) {
            taken.get_or_insert("holds a run");
            continue;
        }
        crossweave_checkpoint::check_target(&dir.join("model"))?;
        let mut folder = RunFolder::claimed(dir, claim);
        if let Some(why) = taken {
            let note = format!(
                "{} {why}: this run goes to {}",
                first.display(),
                folder.path.display()
            );
            folder.notes.push(note);
        }
        return Ok(folder);
    }
}

/// Is it the root, by whatever path?
fn is_root(dir: &Path) -> bool {
    dir.canonicalize().is_ok_and(|d| d.parent().is_none())
}

fn holds_run(dir: &Path) -> bool {
    let filled = |name: &str| std::fs::metadata(dir.join(name)).is_ok_and(|m| m.len() > 0);
    filled(metrics::FILE) || dir.join("checkpoints").is_dir()
}

/// The run that would take this folder for a part of itself, and which part. Links are followed as far as the path exists.
fn inside_a_run(dir: &Path) -> Option<(PathBuf, &'static str)> {
    let whole = std::path::absolute(dir).ok()?;
    let (there, rest) = whole.ancestors().find_map(|a| {
        let rest = whole.strip_prefix(a).ok()?;
        Some((a.canonicalize().ok()?, rest))
    })?;
    let whole = there.join(rest);
    whole.ancestors().find_map(|at| {
        let (run, name) = (at.parent()?, at.file_name()?);
        let part = ["checkpoints", "model"].into_iter().find(|p| name == *p)?;
        let is_run = holds_run(run) || Claim::owner_of(run).is_some();
        is_run.then(|| (run.to_path_buf(), part))
    })
}

/// A file that no run has written and that a run would write over. A run's own stands beside its metrics.
fn strange(dir: &Path) -> Option<&'static str> {
    let there = |name: &str| dir.join(name).exists();
    let names = ["config.json", crossweave_report::RECORD];
    let mut found = names.into_iter().filter(|n| there(n));
    found.next().filter(|_| !there(metrics::FILE))
}
