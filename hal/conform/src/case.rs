//! A case: one claim about a plugin under a stable id, what judging it may say, and which profiles demand it.

use crate::ctx::Ctx;
pub use crossweave_abi::Profile;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Cases that run in one child process, in the order of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    /// Layouts, negotiation, records, symbols.
    Abi,
    /// Handles and threads come and go.
    Life,
    /// Memory and what writes it.
    Mem,
    /// Streams and events.
    Order,
    /// Compute.
    Op,
    /// Collectives.
    Coll,
    /// Failures on purpose.
    Fault,
    /// What is left behind.
    Leak,
    /// Measurements; they never fail.
    Perf,
}

impl Group {
    /// All, in the order they run.
    pub const ALL: [Group; 9] = [
        Group::Abi,
        Group::Life,
        Group::Mem,
        Group::Order,
        Group::Op,
        Group::Coll,
        Group::Fault,
        Group::Leak,
        Group::Perf,
    ];

    /// The first word of its cases' ids.
    pub fn name(self) -> &'static str {
        match self {
            Group::Abi => "abi",
            Group::Life => "life",
            Group::Mem => "mem",
            Group::Order => "order",
            Group::Op => "op",
            Group::Coll => "coll",
            Group::Fault => "fault",
            Group::Leak => "leak",
            Group::Perf => "perf",
        }
    }

    /// The group of a case id.
    pub fn of(id: &str) -> Option<Group> {
        let id = id.strip_prefix("draft.").unwrap_or(id);
        let head = id.split('.').next()?;
        Group::ALL.into_iter().find(|g| g.name() == head)
    }
}

/// How far a run goes; each level includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// `abi`, `life`.
    Abi,
    /// And `mem`, `order`, `leak`.
    Device,
    /// And `op`.
    Ops,
    /// And `coll`.
    Coll,
    /// And `fault`.
    Fault,
    /// And `perf`.
    Perf,
}

impl Level {
    /// All, lowest first.
    pub const ALL: [Level; 6] = [
        Level::Abi,
        Level::Device,
        Level::Ops,
        Level::Coll,
        Level::Fault,
        Level::Perf,
    ];

    /// As the command line spells it.
    pub fn name(self) -> &'static str {
        match self {
            Level::Abi => "abi",
            Level::Device => "device",
            Level::Ops => "ops",
            Level::Coll => "coll",
            Level::Fault => "fault",
            Level::Perf => "perf",
        }
    }

    /// The level at which a group is first run.
    pub fn of(group: Group) -> Level {
        match group {
            Group::Abi | Group::Life => Level::Abi,
            Group::Mem | Group::Order | Group::Leak => Level::Device,
            Group::Op => Level::Ops,
            Group::Coll => Level::Coll,
            Group::Fault => Level::Fault,
            Group::Perf => Level::Perf,
        }
    }
}

/// How much is tried: of a case's inputs and sizes, and of the cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Effort {
    /// What a vendor runs after every change: half a minute.
    Quick,
    /// What a scorecard is made with: minutes.
    #[default]
    Default,
    /// Training sizes too.
    Big,
}

/// Who demands that a case's cell is claimed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Demanded {
    /// Nobody: claiming is free, and what is claimed must hold.
    #[default]
    Nowhere,
    /// This profile and those that ask for more.
    From(Profile),
    /// Every profile with collectives, of a plugin that offers them.
    Collective,
}

impl Demanded {
    /// By none.
    pub const NOWHERE: Demanded = Demanded::Nowhere;
    /// From `minimal` up.
    pub const MINIMAL: Demanded = Demanded::From(Profile::Minimal);
    /// Required of every plugin that offers collectives, by `train`, `moe` and `collective-only`.
    pub const COLLECTIVE: Demanded = Demanded::Collective;

    /// Does `profile` demand it?
    pub fn by(self, profile: Profile) -> bool {
        match self {
            Demanded::Nowhere => false,
            Demanded::From(least) => profile.asks(least),
            Demanded::Collective => profile.asks_collectives(),
        }
    }
}

/// How a case ended, before expectations are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The claim holds.
    Pass,
    /// It does not.
    Fail,
    /// The plugin does not claim the cell, and refused it as it must.
    Refused,
    /// Nothing to judge here: the slot, the interface or the machine's part is not there.
    Skip,
}

/// What a case found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// How it ended.
    pub outcome: Outcome,
    /// In words; empty when there is nothing to say.
    pub note: String,
    /// The bound it was held to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<String>,
    /// The worst error seen, as a part of the bound (1 = at the bound).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<f64>,
}

impl Verdict {
    fn new(outcome: Outcome, note: impl Into<String>) -> Verdict {
        Verdict {
            outcome,
            note: note.into(),
            bound: None,
            error: None,
        }
    }

    /// With the bound it was held to and the worst error as a part of it.
    pub fn within(mut self, bound: impl Into<String>, error: f64) -> Verdict {
        (self.bound, self.error) = (Some(bound.into()), Some(error));
        self
    }
}

/// What a case's function answers: a verdict, or why the claim fails.
pub type Check = Result<Verdict, String>;

/// The claim holds.
pub fn pass() -> Check {
    Ok(Verdict::new(Outcome::Pass, ""))
}

/// It holds, and there is something to say.
pub fn pass_with(note: impl Into<String>) -> Check {
    Ok(Verdict::new(Outcome::Pass, note))
}

/// Not claimed, refused as it must be.
pub fn refused(note: impl Into<String>) -> Check {
    Ok(Verdict::new(Outcome::Refused, note))
}

/// Nothing to judge.
pub fn skip(note: impl Into<String>) -> Check {
    Ok(Verdict::new(Outcome::Skip, note))
}

/// The kit from which on scorecards say which cases they have met: all of its cases are of it.
const FIRST: u32 = 7;

/// One claim.
pub struct Case {
    /// Stable: `group.what.dtype…`; the part before the first dot is the group.
    pub id: String,
    /// Row of the text report; the group's name by default.
    pub row: &'static str,
    /// Profiles that need it.
    pub demanded: Demanded,
    /// After this the child is stopped and the case has failed.
    pub limit: Duration,
    /// Ranks it runs on, for cases about communicators.
    pub ranks: Option<u32>,
    /// It wants a child of its own: what it does to a process is not undone.
    pub alone: bool,
    /// The kit in which it came: a scorecard of an older one has not met it.
    pub since: u32,
    /// The version of its meaning: the kit that first judged it as it is judged now. What an older scorecard says of it is void.
    pub version: u32,
    run: Box<dyn Fn(&Ctx) -> Check + Send + Sync>,
}

impl Case {
    /// A case that no profile demands, with the usual time limit.
    ///
    /// # Panics
    /// When the id names no group: that is a mistake in the kit.
    pub fn new(id: impl Into<String>, run: impl Fn(&Ctx) -> Check + Send + Sync + 'static) -> Case {
        let id = id.into();
        let group = Group::of(&id);
        Case {
            row: group.map_or("", Group::name),
            id,
            demanded: Demanded::NOWHERE,
            limit: Duration::from_secs(60),
            ranks: None,
            alone: false,
            since: FIRST,
            version: FIRST,
            run: Box::new(run),
        }
    }

    /// Who demands it.
    pub fn demanded(mut self, by: Demanded) -> Case {
        self.demanded = by;
        self
    }

    /// Another row of the report, such as `op (fused)`.
    pub fn row(mut self, row: &'static str) -> Case {
        self.row = row;
        self
    }

    /// Another time limit.
    pub fn limit(mut self, seconds: u64) -> Case {
        self.limit = Duration::from_secs(seconds);
        self
    }

    /// It runs on so many ranks.
    pub fn on_ranks(mut self, n: u32) -> Case {
        self.ranks = Some(n);
        self
    }

    /// In a child of its own.
    pub fn alone(mut self) -> Case {
        self.alone = true;
        self
    }

    /// It came with this kit.
    pub fn since(mut self, kit: u32) -> Case {
        (self.since, self.version) = (kit, kit);
        self
    }

    /// Its meaning changed with this kit: it demands something else, or judges it in another way.
    pub fn judged_since(mut self, kit: u32) -> Case {
        self.version = kit;
        self
    }

    /// Its group.
    pub fn group(&self) -> Group {
        Group::of(&self.id).unwrap_or(Group::Abi)
    }

    /// A draft is reported and never fails a run: a test becomes part of the standard once two independent back ends pass it.
    pub fn is_draft(&self) -> bool {
        self.id.starts_with("draft.")
    }

    pub(crate) fn judge(&self, ctx: &Ctx) -> Check {
        (self.run)(ctx)
    }
}

/// Every case of the kit for these numbers of ranks, in the order they run.
pub fn registry(ranks: &[u32], effort: Effort) -> Vec<Case> {
    let mut all = Vec::new();
    all.extend(crate::abi::cases());
    all.extend(crate::life::cases());
    all.extend(crate::threads::cases());
    all.extend(crate::capacity::cases());
    all.extend(crate::mem::cases(effort));
    all.extend(crate::order::cases());
    all.extend(crate::graph::cases());
    all.extend(crate::op::cases());
    all.extend(crate::coll::cases(ranks));
    all.extend(crate::fault::cases(ranks));
    all.extend(crate::leak::cases(ranks));
    all.extend(crate::perf::cases(ranks));
    all
}

/// The cases of a run up to a level, in the order they run, of which a plugin that only carries messages is asked none about ops.
pub fn selected(
    ranks: &[u32],
    effort: Effort,
    level: Level,
    profile: Option<Profile>,
) -> Vec<Case> {
    let ops = profile != Some(Profile::CollectiveOnly);
    let mut all = registry(ranks, effort);
    all.retain(|c| Level::of(c.group()) <= level && (ops || c.group() != Group::Op));
    all
}

/// Does an id match a pattern in which `*` stands for anything?
pub fn matches(pattern: &str, id: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or("");
    let Some(mut rest) = id.strip_prefix(first) else {
        return false;
    };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else {
        return rest.is_empty();
    };
    for p in parts {
        match rest.find(p) {
            Some(at) => rest = &rest[at + p.len()..],
            None => return false,
        }
    }
    rest.len() >= last.len() && rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (p, id, yes) in [
            ("coll.*", "coll.all_reduce.f32", true),
            ("coll.*", "collx", false),
            ("*.f32.*", "coll.all_reduce.f32.sum", true),
            ("a*b*b", "ab", false),
            ("a*b*b", "abb", true),
            ("mem.fill", "mem.fill", true),
            ("mem.fill", "mem.fill_2", false),
            ("*", "x", true),
        ] {
            assert_eq!(matches(p, id), yes, "{p} {id}");
        }
    }

    #[test]
    fn ids_are_unique_and_name_a_group() {
        let all = registry(&[1, 2, 3, 4, 8], Effort::Big);
        let mut seen = std::collections::HashSet::new();
        for c in &all {
            assert!(Group::of(&c.id).is_some(), "{}", c.id);
            assert!(seen.insert(c.id.clone()), "{} twice", c.id);
            let told = FIRST <= c.since && c.since <= c.version && c.version <= crate::KIT;
            assert!(told, "{}: since {}, version {}", c.id, c.since, c.version);
        }
    }
}
