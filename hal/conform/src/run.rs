//! The parent's side: picks the cases, runs each group in a child, goes on in a new child after a crash, a hang or an exit, and applies
//! expectations and the profile.

use crate::case::{
    Case, Effort, Group, Level, Outcome, Profile, Verdict, matches, registry, selected,
};
use crate::child::{Hello, Job, Line, Target};
use crate::expect::Expect;
use crate::launch::{Ended, Launcher, Program, Running};
use crate::report::{Asked, Cell, Report, Status};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// Children in a row that may end before their first case; then the rest of their cases is given up.
const PATIENCE: u32 = 3;
/// Numbers of ranks where none are given.
pub const RANKS: [u32; 7] = [1, 2, 3, 4, 6, 7, 8];
/// The same for [`Effort::Quick`].
pub const FEW_RANKS: [u32; 2] = [2, 3];
/// After a case that hung the next ones of its child's group get no more than this: what hangs once hangs again.
const HURRY: Duration = Duration::from_secs(15);
/// Cases of ops that a child runs where several run at once.
const SHARE: usize = 16;
/// How long a child may take to let communicators and the plugin go.
const LEAVE: Duration = Duration::from_secs(60);

/// How long a case may take, of its own limit and what was asked for. Behind a case that hung it is short, but for a device that was known to
/// be slow.
fn time_of(own: Duration, asked: Option<Duration>, hung: bool) -> Duration {
    match asked {
        Some(asked) if asked > own => asked,
        _ => {
            let limit = asked.unwrap_or(own);
            if hung { limit.min(HURRY) } else { limit }
        }
    }
}

/// What to run, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// What is tested.
    pub target: Target,
    /// Configuration for the plugin.
    pub config: BTreeMap<String, String>,
    /// Layers around the plugin, the first next to it.
    pub layers: Vec<String>,
    /// How far.
    pub level: Level,
    /// What must be claimed.
    pub profile: Option<Profile>,
    /// Devices; empty = those there are, at most two.
    pub devices: Vec<u32>,
    /// Numbers of ranks.
    pub ranks: Vec<u32>,
    /// Who starts ranks.
    pub launcher: Launcher,
    /// Patterns of ids; empty = all.
    pub only: Vec<String>,
    /// One case alone, by its id.
    pub replay: Option<String>,
    /// The run's seed.
    pub seed: u64,
    /// What is known not to hold.
    pub expect: Expect,
    /// How much is tried.
    pub effort: Effort,
    /// Stop starting cases after this.
    pub budget: Option<Duration>,
    /// How long every case may take, in place of its own limit.
    pub limit: Option<Duration>,
    /// Processes that run cases of ops at once; `None`: one for each processor where the devices are processors too, and else one.
    pub jobs: Option<usize>,
    /// How children are started.
    pub program: Program,
}

/// Why there is no report.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// The plugin cannot be loaded or lacks a mandatory slot.
    #[error("{0}")]
    Plugin(String),
    /// The machine lacks something.
    #[error("{0}")]
    Environment(String),
}

impl Trouble {
    /// The exit status.
    pub fn exit_code(&self) -> u8 {
        match self {
            Trouble::Plugin(_) => 2,
            Trouble::Environment(_) => 3,
        }
    }
}

impl Options {
    /// The cases this run would have, in order.
    ///
    /// # Errors
    /// A replay of an unknown case, with the nearest ids; a pattern that meets nothing.
    pub fn cases(&self) -> Result<Vec<Case>, Trouble> {
        let mut all = registry(&self.ranks, self.effort);
        if let Some(id) = &self.replay {
            if !all.iter().any(|c| c.id == *id) {
                let head = id.rsplit_once('.').map_or(id.as_str(), |(h, _)| h);
                let near: Vec<&str> = all
                    .iter()
                    .map(|c| c.id.as_str())
                    .filter(|c| c.starts_with(head))
                    .take(4)
                    .collect();
                return Err(Trouble::Environment(format!(
                    "no case {id:?} for --ranks {}; {}",
                    list(&self.ranks),
                    match near.is_empty() {
                        true => "see --list".into(),
                        false => format!("there are {}", near.join(", ")),
                    }
                )));
            }
            all.retain(|c| c.id == *id);
            return Ok(all);
        }
        // What is named is run, whatever the level.
        if self.only.is_empty() {
            return Ok(selected(&self.ranks, self.effort, self.level, self.profile));
        }
        for p in &self.only {
            if !all.iter().any(|c| matches(p, &c.id)) {
                return Err(Trouble::Environment(format!(
                    "--only {p:?} meets no case; see --list"
                )));
            }
        }
        all.retain(|c| self.only.iter().any(|p| matches(p, &c.id)));
        Ok(all)
    }

    /// What the run is asked for, as its report has it.
    pub fn request(&self) -> Asked {
        Asked {
            profile: self.profile.map(|p| p.name().into()),
            level: self.level.name().into(),
            ranks: self.ranks.clone(),
            launcher: self.launcher.name().into(),
            seed: self.seed,
            effort: self.effort,
            config: self.config.clone(),
            layers: self.layers.clone(),
        }
    }

    fn job(&self, cases: Vec<String>, team: Option<u32>) -> Job {
        Job {
            target: self.target.clone(),
            config: self.config.clone(),
            layers: self.layers.clone(),
            seed: self.seed,
            devices: self.devices.clone(),
            ranks: self.ranks.clone(),
            effort: self.effort,
            cases,
            team: team.map(|n| (n, std::path::PathBuf::new())),
            rank: None,
        }
    }

    /// Runs everything. `ended` is called with each case as it ends.
    ///
    /// # Errors
    /// When the plugin cannot be loaded or children cannot be started.
    pub fn run(&self, ended: &mut dyn FnMut(&Cell)) -> Result<Report, Trouble> {
        let cases = self.cases()?;
        let hello = self.probe()?;
        if let Some(bad) = self
            .devices
            .iter()
            .find(|d| **d as usize >= hello.devices.len())
        {
            return Err(Trouble::Environment(format!(
                "--devices {bad}: {} has {} (0 to {})",
                hello.name,
                hello.devices.len(),
                hello.devices.len() - 1
            )));
        }
        let start = Instant::now();
        let mut cells = Vec::new();
        let jobs = self.jobs.unwrap_or_else(|| match hello.on_processors {
            true => std::thread::available_parallelism().map_or(1, usize::from),
            false => 1,
        });
        for unit in self.units(&cases) {
            let mut take = |c: Cell| {
                ended(&c);
                cells.push(c);
            };
            match unit.group == Group::Op && jobs > 1 && unit.cases.len() > SHARE {
                true => self.share(&unit, jobs, start, &mut take)?,
                false => self.unit(&unit, start, &mut take)?,
            }
        }
        let place: HashMap<&str, usize> = cases.iter().map(|c| c.id.as_str()).zip(0..).collect();
        cells.sort_by_key(|c| place.get(c.id.as_str()).copied());
        let idle = match self.only.is_empty() && self.replay.is_none() {
            true => {
                let all = registry(&self.ranks, self.effort);
                let ids: Vec<&str> = all.iter().map(|c| c.id.as_str()).collect();
                let idle = self.expect.idle(&ids);
                idle.into_iter().map(str::to_owned).collect()
            }
            false => vec![],
        };
        Ok(Report::new(self, hello, cells, idle, start.elapsed()))
    }

    /// Loads the plugin in a child and asks what it is.
    fn probe(&self) -> Result<Hello, Trouble> {
        let job = self.job(vec![], None);
        let mut child =
            Running::start(&self.program, Launcher::Threads, &job).map_err(Trouble::Environment)?;
        match child.next(Duration::from_secs(120), false) {
            Ok(Line::Hello(h)) => {
                child.leave(
                    LEAVE
                        .min(self.limit.unwrap_or(LEAVE))
                        .min(Duration::from_secs(20)),
                );
                Ok(*h)
            }
            Ok(Line::Broken { why, environment }) => Err(match environment {
                true => Trouble::Environment(why),
                false => Trouble::Plugin(why),
            }),
            Ok(_) => Err(Trouble::Environment("a child spoke out of turn".into())),
            Err(Ended::Late) => Err(Trouble::Plugin(format!(
                "{}: loading it and opening its devices did not end within 120 s",
                self.target.text()
            ))),
            Err(Ended::Itself { status, .. }) => Err(Trouble::Plugin(format!(
                "{}: loading it and opening its devices ended the process: {status}{}",
                self.target.text(),
                tail(&child)
            ))),
        }
    }

    /// Cases that share a child: of one group, and of one number of ranks where ranks are processes.
    fn units<'a>(&self, cases: &'a [Case]) -> Vec<Unit<'a>> {
        let mut units: Vec<Unit<'a>> = Vec::new();
        for c in cases {
            let team = c.ranks.filter(|_| self.launcher != Launcher::Threads);
            let last = units
                .iter_mut()
                .rev()
                .find(|u| u.group == c.group() && u.team == team && !u.alone && !c.alone);
            match last {
                Some(u) => u.cases.push(c),
                None => units.push(Unit {
                    group: c.group(),
                    team,
                    alone: c.alone,
                    cases: vec![c],
                }),
            }
        }
        units
    }

    /// Runs the cases of a unit in `jobs` children at once, each of them a few: what is compared takes one thread's time, and cases of
    /// ops know nothing of one another. Neighbours, which take alike long, go to different children.
    fn share(
        &self,
        unit: &Unit<'_>,
        jobs: usize,
        start: Instant,
        ended: &mut dyn FnMut(Cell),
    ) -> Result<(), Trouble> {
        let n = unit.cases.len().div_ceil(SHARE);
        let share = |at| unit.cases.iter().skip(at).step_by(n).copied().collect();
        let shares: Vec<Vec<&Case>> = (0..n).map(share).collect();
        let next = AtomicUsize::new(0);
        let (cells, came) = channel();
        std::thread::scope(|s| {
            let worker = |cells: Sender<Cell>| -> Result<(), Trouble> {
                while let Some(cases) = shares.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let share = Unit {
                        cases: cases.clone(),
                        ..*unit
                    };
                    self.unit(&share, start, &mut |c| drop(cells.send(c)))?;
                }
                Ok(())
            };
            let workers: Vec<_> = (0..jobs.min(shares.len()))
                .map(|_| {
                    let cells = cells.clone();
                    s.spawn(move || worker(cells))
                })
                .collect();
            drop(cells);
            came.iter().for_each(ended);
            let mut all = workers.into_iter().map(|w| w.join());
            all.try_for_each(|w| w.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    }

    fn unit(
        &self,
        unit: &Unit<'_>,
        start: Instant,
        ended: &mut dyn FnMut(Cell),
    ) -> Result<(), Trouble> {
        let mut left: &[&Case] = &unit.cases;
        let mut silent = 0;
        let mut hung = false;
        while !left.is_empty() {
            if self.budget.is_some_and(|b| start.elapsed() >= b) {
                for c in left {
                    ended(Cell::not_run(c, "the budget was spent"));
                }
                return Ok(());
            }
            let ids = left.iter().map(|c| c.id.clone()).collect();
            let mut child = Running::start(&self.program, self.launcher, &self.job(ids, unit.team))
                .map_err(|e| Trouble::Environment(format!("cannot start a child: {e}")))?;
            let before = left.len();
            let quiet = self.listen(&mut child, &mut left, start, &mut hung, ended);
            if left.len() < before {
                silent = 0;
                continue;
            }
            // A child that brings nothing about is not asked for ever.
            let Some(why) = quiet else { continue };
            silent += 1;
            let given_up = if silent < PATIENCE { 1 } else { left.len() };
            for c in &left[..given_up] {
                ended(self.cell(c, Err(why.clone())));
            }
            left = &left[given_up..];
        }
        Ok(())
    }

    /// Takes a child's lines until it ends, and moves `left` behind what is judged. Answers why it ended, where no case was running.
    fn listen(
        &self,
        child: &mut Running,
        left: &mut &[&Case],
        start: Instant,
        hung: &mut bool,
        ended: &mut dyn FnMut(Cell),
    ) -> Option<String> {
        let mut running: Option<&Case> = None;
        // What a case found is kept until its child goes on: a crash behind it is its own.
        let mut kept: Option<(&Case, Result<Verdict, String>)> = None;
        let mut limit = Duration::from_secs(120);
        loop {
            let spent = self.budget.is_some_and(|b| start.elapsed() >= b);
            if spent && running.is_none() && !left.is_empty() {
                if let Some((c, found)) = kept {
                    ended(self.cell(c, found));
                }
                return None;
            }
            let why = match child.next(limit, running.is_some()) {
                Ok(Line::Begin { id }) => {
                    if let Some((c, found)) = kept.take() {
                        ended(self.cell(c, found));
                    }
                    if let Some(at) = left.iter().position(|c| c.id == id) {
                        // A case the child did not know is not lost silently.
                        for c in &left[..at] {
                            ended(self.cell(c, Err("the child did not know this case".into())));
                        }
                        *left = &left[at..];
                        running = Some(left[0]);
                        limit = time_of(left[0].limit, self.limit, *hung);
                    }
                    continue;
                }
                Ok(Line::End { id, found }) => {
                    if let Some(c) = running.take().filter(|c| c.id == id) {
                        *left = &left[1..];
                        kept = Some((c, found));
                    }
                    limit = Duration::from_secs(60);
                    continue;
                }
                Ok(Line::Done) => match child.leave(LEAVE.min(self.limit.unwrap_or(LEAVE))) {
                    Ended::Itself { well: true, .. } => {
                        if let Some((c, found)) = kept {
                            ended(self.cell(c, found));
                        }
                        return Some("the child knew none of the cases".into());
                    }
                    Ended::Itself { status, .. } => {
                        format!("ended the process badly: {status}{}", tail(child))
                    }
                    Ended::Late => "the process did not end in time".into(),
                },
                Ok(Line::Hello(_)) => continue,
                Ok(Line::Broken { why, .. }) => {
                    return Some(format!("the plugin did not load again: {why}"));
                }
                Err(Ended::Late) => {
                    *hung = true;
                    format!("hung: no answer within {} s", limit.as_secs())
                }
                Err(Ended::Itself { status, .. }) => {
                    format!("ended the process: {status}{}", tail(child))
                }
            };
            if let Some(c) = running {
                ended(self.cell(c, Err(why)));
                *left = &left[1..];
            } else if let Some((c, found)) = kept {
                let after = |_| Err(format!("after the case: {why}"));
                ended(self.cell(c, found.and_then(after)));
            } else {
                return Some(format!("before the case began: {why}"));
            }
            return None;
        }
    }

    /// Applies profile and expectations to what a case found.
    fn cell(&self, case: &Case, found: Result<Verdict, String>) -> Cell {
        let demanded = self.profile.filter(|p| case.demanded.by(*p));
        let (mut status, claimed, mut note, bound, error) = match found {
            Err(why) => (Status::Fail, true, why, None, None),
            Ok(v) => {
                let s = match v.outcome {
                    Outcome::Pass => Status::Pass,
                    Outcome::Fail => Status::Fail,
                    Outcome::Refused => Status::Refused,
                    Outcome::Skip => Status::Skip,
                };
                (
                    s,
                    matches!(v.outcome, Outcome::Pass | Outcome::Fail),
                    v.note,
                    v.bound,
                    v.error,
                )
            }
        };
        let mut off_profile = false;
        if let Some(p) = demanded {
            // Without an interface of its own a plugin's ranks are carried by the host, except where carrying is the whole point.
            let carried = case.group() == Group::Coll && p != Profile::CollectiveOnly;
            if status == Status::Refused || (status == Status::Skip && !carried) {
                status = Status::Fail;
                off_profile = true;
                note = format!(
                    "not claimed ({note}), and the profile {} demands it",
                    p.name()
                );
            }
        }
        if case.is_draft() && status == Status::Fail {
            status = Status::Draft;
        }
        let excused = match status {
            Status::Fail => refusal(&note) || off_profile,
            s => matches!(s, Status::Pass | Status::Refused | Status::Skip),
        };
        let unsupported = self.expect.unsupported(&case.id);
        if let Some(reason) = unsupported.filter(|_| excused) {
            if status == Status::Pass {
                status = Status::Xpass;
                note = format!("listed as unsupported ({reason}) and passes: take it off the list");
            } else {
                status = Status::Xfail;
                note = format!("unsupported: {reason}");
            }
        } else if let Some((reason, issue)) = self.expect.failure(&case.id) {
            match status {
                Status::Pass => {
                    status = Status::Xpass;
                    note = format!(
                        "listed as an expected failure ({reason}, {issue}) and passes: take it off the list"
                    );
                }
                Status::Fail => {
                    status = Status::Xfail;
                    note = format!("expected: {reason} ({issue}); found: {note}");
                }
                _ => {}
            }
        } else if let (Some(reason), Status::Fail) = (unsupported, status) {
            note += &format!(
                "; listed as unsupported ({reason}), which excuses a refusal with UNSUPPORTED and nothing else: a known bug is an \
                 [[expected_failure]]"
            );
        }
        Cell {
            id: case.id.clone(),
            row: case.row.into(),
            ranks: case.ranks,
            demanded: demanded.is_some(),
            claimed,
            status,
            note: crate::report::named(&note),
            bound,
            error,
        }
    }
}

/// Cases of one child.
struct Unit<'a> {
    group: Group,
    team: Option<u32>,
    alone: bool,
    cases: Vec<&'a Case>,
}

/// Did a case end because a slot answered UNSUPPORTED, and not because something was wrong?
fn refusal(why: &str) -> bool {
    let ranked = why.strip_prefix("rank ").and_then(|r| r.split_once(": "));
    let why = ranked.map_or(why, |r| r.1);
    let Some((slot, answer)) = why.split_once(": ") else {
        return false;
    };
    let word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    let said = answer.strip_prefix("UNSUPPORTED");
    slot.bytes().all(word)
        && said.is_some_and(|m| m.is_empty() || m.starts_with(" (") && m.ends_with(')'))
}

fn tail(child: &Running) -> String {
    match child.errors() {
        e if e.is_empty() => String::new(),
        e => format!("; its last words: {e}"),
    }
}

pub(crate) fn list(n: &[u32]) -> String {
    let v: Vec<String> = n.iter().map(u32::to_string).collect();
    v.join(",")
}

#[cfg(test)]
mod tests {
    use super::{HURRY, refusal, time_of};
    use std::time::Duration;

    #[test]
    fn what_was_asked_for_takes_the_place_of_a_cases_own_limit() {
        let [short, own, long] = [20, 120, 3600].map(Duration::from_secs);
        assert_eq!(time_of(own, None, false), own);
        assert_eq!(time_of(own, Some(short), false), short);
        assert_eq!(time_of(own, Some(long), false), long);
        for asked in [None, Some(short)] {
            assert_eq!(time_of(own, asked, true), HURRY);
        }
        assert_eq!(time_of(own, Some(long), true), long);
    }

    #[test]
    fn only_an_unsupported_answer_is_a_refusal() {
        for (why, yes) in [
            ("copy_2d: UNSUPPORTED", true),
            ("copy_2d: UNSUPPORTED (no rows here (yet))", true),
            ("rank 1: comm_split: UNSUPPORTED (no)", true),
            ("copy_2d: INVALID (UNSUPPORTED)", false),
            ("launch: INVALID: UNSUPPORTED is wanted", false),
            ("device_open: UNSUPPORTED (no), and not INVALID", false),
            ("a wait was forgotten: UNSUPPORTED", false),
            ("the sum is wrong", false),
        ] {
            assert_eq!(refusal(why), yes, "{why}");
        }
    }
}
