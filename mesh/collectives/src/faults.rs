//! Fault injection: collectives that come late, never, wrong or not at all on one rank, so that what finds and names such
//! faults is tested on real runs. A group without faults pays one branch.

use crate::group::Collectives;
use crossweave_hal::{Code, Collective, CommTag, Error, JobRank, Region, Result, Stream};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What goes wrong.
#[derive(Clone, Debug, PartialEq)]
pub enum FaultKind {
    /// The host waits before the call.
    Delay(Duration),
    /// The host waits as long as the bytes would take at this many a second.
    Slow(f64),
    /// The call is left out.
    Drop,
    /// This bit of what is received is flipped.
    Corrupt(u64),
    /// The call fails.
    Error,
    /// The host stops until the job has failed.
    Stall,
    /// The rank ends without a word.
    Kill,
}

/// One fault of this rank.
#[derive(Clone, Debug, PartialEq)]
pub struct FaultRule {
    /// What goes wrong.
    pub kind: FaultKind,
    /// In this optimizer step only.
    pub step: Option<u64>,
    /// Only this one of the matching calls, from 1, counted within `step` where that is given.
    pub call: Option<u64>,
    /// Only for this kind of collective, by its name in the ledger.
    pub op: Option<String>,
    /// Only on groups of this name.
    pub group: Option<String>,
    /// What it is called in messages: `faults[0]`.
    pub name: String,
}

/// How a rank dies where the caller says it can.
pub type Die = dyn Fn() + Send + Sync;

/// What the rules have seen.
struct Seen {
    /// Calls each rule has matched, and how many of them it struck.
    rules: Vec<(u64, u64)>,
    /// Every kind of collective this rank has asked for, with its group.
    calls: BTreeSet<(&'static str, String)>,
}

struct Inner {
    rank: u32,
    rules: Vec<FaultRule>,
    seen: Mutex<Seen>,
    step: AtomicU64,
    die: Box<Die>,
}

/// The faults of one rank, over all its groups. Clones share it.
#[derive(Clone)]
pub struct Faults(Arc<Inner>);

impl Faults {
    /// Faults of rank `rank` of the job. `die` ends the rank without a word; where it returns (threads cannot be ended) the call fails.
    pub fn new(rank: u32, rules: Vec<FaultRule>, die: impl Fn() + Send + Sync + 'static) -> Faults {
        Faults(Arc::new(Inner {
            rank,
            seen: Mutex::new(Seen {
                rules: vec![(0, 0); rules.len()],
                calls: BTreeSet::new(),
            }),
            rules,
            step: AtomicU64::new(0),
            die: Box::new(die),
        }))
    }

    /// What follows belongs to this optimizer step.
    pub fn set_step(&self, step: u64) {
        self.0.step.store(step, Relaxed);
    }

    /// The faults that strike this call.
    fn strike(&self, members: &[Collective<'_>], group: &str) -> Vec<&FaultRule> {
        let step = self.0.step.load(Relaxed);
        let mut seen = self.0.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let calls = members.iter().map(|m| (m.name(), group.to_string()));
        seen.calls.extend(calls);
        let mut all = vec![];
        for (rule, (n, struck)) in self.0.rules.iter().zip(seen.rules.iter_mut()) {
            let op = |o: &String| members.iter().any(|m| m.name() == o.as_str());
            let fits = rule.step.is_none_or(|s| s == step)
                && rule.op.as_ref().is_none_or(op)
                && rule.group.as_ref().is_none_or(|g| g == group)
                && !(matches!(rule.kind, FaultKind::Corrupt(_))
                    && received(members, rule).is_none());
            if !fits {
                continue;
            }
            *n += 1;
            let lasting = matches!(rule.kind, FaultKind::Delay(_) | FaultKind::Slow(_));
            if rule.call.map_or(lasting || *n == 1, |c| c == *n) {
                *struck += 1;
                all.push(rule);
            }
        }
        all
    }

    /// One sentence for every fault that has never struck, and why: a run that ends well behind it has proved nothing.
    pub fn idle(&self) -> Vec<String> {
        let rank = self.0.rank;
        let seen = self.0.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let calls: Vec<String> = (seen.calls.iter())
            .map(|(op, group)| format!("{op} on {group}"))
            .collect();
        let calls = match calls.is_empty() {
            true => "nothing".to_string(),
            false => calls.join(", "),
        };
        let idle = self.0.rules.iter().zip(&seen.rules);
        let idle = idle.filter(|(_, (_, struck))| *struck == 0);
        idle.map(|(rule, (n, _))| {
            let why = match (rule.call, rule.step) {
                (Some(c), _) if *n > 0 => {
                    format!("only {n} of its calls fit, and it is of call {c}")
                }
                (_, Some(step)) => format!(
                    "no call of it in step {step} fits, up to step {}; it asked for {calls}",
                    self.0.step.load(Relaxed)
                ),
                _ => format!("no call of it fits; it asked for {calls}"),
            };
            format!("{} never struck rank {rank}: {why}", rule.name)
        })
        .collect()
    }
}

/// What the rule's op receives into, of a group of ops.
fn received<'a>(members: &[Collective<'a>], rule: &FaultRule) -> Option<Region<'a>> {
    let one = |c: &Collective<'a>| {
        if rule.op.as_ref().is_some_and(|o| o != c.name()) {
            return None;
        }
        match c {
            Collective::AllReduce { buf, .. }
            | Collective::Broadcast { buf, .. }
            | Collective::Reduce { buf, .. }
            | Collective::Recv { buf, .. } => Some(*buf),
            Collective::ReduceScatter { recv, .. }
            | Collective::AllGather { recv, .. }
            | Collective::AllToAll { recv, .. }
            | Collective::AllToAllV { recv, .. }
            | Collective::AllGatherV { recv, .. } => Some(*recv),
            Collective::Send { .. } | Collective::Barrier => None,
        }
    };
    members.iter().find_map(one).filter(|r| r.bytes > 0)
}

/// Flips one bit of a region, behind everything enqueued.
pub(crate) fn flip(s: &Stream, r: Region<'_>, bit: u64) -> Result<()> {
    let at = r.offset + bit / 8 % r.bytes;
    let byte = r.buffer.region(at, 1);
    let mut value = [0u8];
    s.read(byte, &mut value)?;
    value[0] ^= 1 << (bit % 8);
    s.write(byte, &value)
}

/// The host comes late. Under a schedule no time passes: others may run first, as the seed decides.
fn late(s: &Stream, by: Duration) -> Result<()> {
    if !s.device().pass_turn()? {
        std::thread::sleep(by);
    }
    Ok(())
}

impl Collectives {
    /// From now on these faults strike.
    pub fn inject(&mut self, faults: &Faults) {
        self.faults = Some(faults.clone());
    }

    /// [`Collectives::group`] with the faults that strike it. A corruption strikes behind the call, before values are held against each other.
    #[track_caller]
    pub(crate) fn group_with_faults(
        &mut self,
        faults: &Faults,
        s: &Stream,
        members: &[Collective<'_>],
        tag: CommTag,
    ) -> Result<()> {
        let rank = faults.0.rank;
        let step = faults.0.step.load(Relaxed);
        let name = members.first().map_or("group", Collective::name);
        let group = self.comm.name().to_string();
        let at = |rule: &FaultRule| format!("{} in step {step}: {name} on {group}", rule.name);
        let failed = |rule: &FaultRule, what: &str| Error {
            peer: Some(JobRank(rank)),
            ..Error::new(
                Code::Comm,
                "fault",
                format!("rank {rank} {what} ({})", at(rule)),
            )
        };
        let mut flips = vec![];
        for rule in faults.strike(members, &group) {
            match &rule.kind {
                FaultKind::Delay(t) => late(s, *t)?,
                FaultKind::Slow(rate) => {
                    let bytes: u64 = members.iter().map(|m| self.comm.bytes(m)).sum();
                    // A rate so low that the clock cannot hold it is for ever.
                    let time = Duration::try_from_secs_f64(bytes as f64 / rate);
                    late(s, time.unwrap_or(Duration::MAX))?;
                }
                FaultKind::Drop => return Ok(()),
                FaultKind::Corrupt(bit) => {
                    flips.extend(received(members, rule).map(|r| (r, *bit)));
                }
                FaultKind::Error => return Err(failed(rule, "fails on purpose")),
                FaultKind::Stall => {
                    let job = self.comm.abort_handle();
                    while !job.aborted() && job.health().is_ok() {
                        // Under a schedule nobody else runs while this rank sleeps, and its end is the job's.
                        match s.device().pass_turn() {
                            Ok(true) => {}
                            Ok(false) => std::thread::sleep(Duration::from_millis(5)),
                            Err(_) => break,
                        }
                    }
                    let why = format!("rank {rank} had stalled on purpose ({})", at(rule));
                    return Err(Error::new(Code::Aborted, "fault", why));
                }
                FaultKind::Kill => {
                    (faults.0.die)();
                    return Err(failed(rule, "was killed on purpose"));
                }
            }
        }
        self.run_held(s, members, tag, &flips)
    }
}
