//! Decides which rank is wrong and writes the message, from the records of all ranks of a group. Pure functions.

use super::collective_record::CollectiveRecord;
pub(super) use super::rank_record::Entry;
use super::rank_record::{Depend, Life, Wait};
use super::words::now;
use crate::error::{Code, Error};
use crossweave_plugin::{GroupRank, JobRank};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Kinds of verdicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// Ranks asked for things that do not fit together.
    Mismatch,
    /// Ranks wait for each other.
    Deadlock,
    /// A rank waits for one that has ended and can never come.
    Ended,
    /// A rank did not come in time.
    Late,
}

/// Why ranks cannot go on together, said once for all of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Which kind.
    pub fault: Fault,
    /// Who, what, where, and what the others did.
    pub sentence: String,
    /// Ranks of the job that deviate; all of a tie or a cycle.
    pub culprits: Vec<u32>,
}

impl Verdict {
    /// As every rank gets it.
    pub fn error(&self) -> Error {
        let code = match self.fault {
            Fault::Mismatch | Fault::Deadlock => Code::Comm,
            // What ended the rank is the cause; this is what follows from it.
            Fault::Ended => Code::Aborted,
            Fault::Late => Code::Timeout,
        };
        Error {
            peer: self.culprits.first().copied().map(JobRank),
            sticky: true,
            ..Error::new(code, "checker", self.sentence.clone())
        }
    }

    pub(super) fn meta(&self) -> u64 {
        let fault = match self.fault {
            Fault::Mismatch => 0,
            Fault::Deadlock => 1,
            Fault::Ended => 2,
            Fault::Late => 3,
        };
        let culprit = self.culprits.first().map_or(0, |c| u64::from(*c) + 1);
        fault | culprit << 8
    }
    pub(super) fn from_parts(sentence: String, meta: u64) -> Verdict {
        let fault = match meta & 0xff {
            0 => Fault::Mismatch,
            1 => Fault::Deadlock,
            2 => Fault::Ended,
            _ => Fault::Late,
        };
        let culprit = (meta >> 8).checked_sub(1).map(|c| c as u32);
        Verdict {
            fault,
            sentence,
            culprits: culprit.into_iter().collect(),
        }
    }
}

/// What one rank shows, taken at one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct View {
    /// Rank in the job, where it is known.
    pub rank: Option<u32>,
    pub pid: u32,
    pub life: Life,
    pub wait: Option<Wait>,
    pub depends: Vec<Depend>,
    pub entries: Vec<(usize, Entry)>,
    pub ops: Vec<CollectiveRecord>,
}

impl View {
    /// Its collectives in a group, by their place in the group's order.
    fn of_group(&self, key: u64) -> BTreeMap<u64, &CollectiveRecord> {
        let ops = self.ops.iter();
        ops.filter(|o| o.key == key && !o.point_to_point())
            .map(|o| (o.seq, o))
            .collect()
    }
}

/// A member of a group: the name it goes by, and its view.
pub(super) struct Member<'a> {
    pub name: JobRank,
    pub index: u32,
    pub view: &'a View,
    pub entry: &'a Entry,
}

/// The rank of the job that a view with this entry is of.
pub(super) fn named(view: &View, entry: &Entry) -> JobRank {
    let alone = || entry.rank_of(GroupRank(entry.index));
    view.rank.map_or_else(alone, JobRank)
}

/// The members of a group that are known, by their place in it.
pub(super) fn members(views: &[View], key: u64) -> Vec<Member<'_>> {
    let mut all = vec![];
    for view in views {
        for (_, entry) in view.entries.iter().filter(|(_, e)| e.key == key) {
            all.push(Member {
                name: named(view, entry),
                index: entry.index,
                view,
                entry,
            });
        }
    }
    all.sort_by_key(|m| m.index);
    all
}

/// "rank 2", "ranks 0 and 1", "ranks 0, 1, 2".
pub(super) fn ranks(names: &[JobRank]) -> String {
    match names {
        [one] => one.to_string(),
        [a, b] => format!("ranks {} and {}", a.0, b.0),
        many => {
            let list: Vec<String> = many.iter().map(|r| r.0.to_string()).collect();
            format!("ranks {}", list.join(", "))
        }
    }
}

pub(super) fn age(at: u64) -> String {
    format!("{:.1} s ago", now().saturating_sub(at) as f64 / 1e9)
}

fn call(n: usize) -> &'static str {
    if n == 1 { "calls" } else { "call" }
}

/// How one rank's order relates to another's from a point on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relation {
    /// It left out this many.
    Missed(usize),
    /// It has this many too many.
    Extra(usize),
    Different,
}

/// Operations looked at beyond a difference.
const AHEAD: usize = 24;

/// Aligns what one rank called from `seq` on with what the others did: where their longest common subsequence begins says what is missing.
pub(super) fn relation(
    one: &BTreeMap<u64, &CollectiveRecord>,
    most: &BTreeMap<u64, &CollectiveRecord>,
    seq: u64,
) -> Relation {
    let (Some(own), Some(theirs)) = (one.get(&seq), most.get(&seq)) else {
        return Relation::Different;
    };
    // For the same thing; at least the same line in the program; or, in branches of their own, another kind of collective than the one they
    // differ in.
    let purpose = |a: &CollectiveRecord, b: &CollectiveRecord| {
        a.fits(b) && (a.site == b.site || !a.about.is_empty())
    };
    let site = |a: &CollectiveRecord, b: &CollectiveRecord| a.alike(b) && a.site == b.site;
    let kind = |a: &CollectiveRecord, b: &CollectiveRecord| a.alike(b) && own.kind != theirs.kind;
    for same in [
        &purpose as &dyn Fn(&CollectiveRecord, &CollectiveRecord) -> bool,
        &site,
        &kind,
    ] {
        let window = |m: &BTreeMap<u64, &CollectiveRecord>| -> Vec<CollectiveRecord> {
            m.range(seq..)
                .take(AHEAD)
                .map(|(_, o)| (*o).clone())
                .collect()
        };
        // What followed this collective earlier: says what is missing while nobody has gone on.
        let follows = || {
            let earlier = most.range(..seq).rev().filter(|(_, o)| same(o, theirs));
            earlier.into_iter().find_map(|(at, _)| {
                let mut next = most.range(at + 1..seq).take(8).map(|(_, o)| o);
                next.position(|o| same(own, o)).map(|k| k + 1)
            })
        };
        let (a, b) = (window(one), window(most));
        match first_common(&a, &b, same) {
            Some((0, j, _)) if j > 0 => return Relation::Missed(j),
            // A rank that has missed one goes on, and comes to another of its kind in time: one thing in common proves little.
            Some((i, 0, length)) if i > 0 => {
                let missed = follows().filter(|k| length == 1 && *k < i);
                return missed.map_or(Relation::Extra(i), Relation::Missed);
            }
            Some(_) => return Relation::Different,
            None => {}
        }
        if let Some(k) = follows() {
            return Relation::Missed(k);
        }
    }
    Relation::Different
}

/// The first pair of a longest common subsequence, and its length.
fn first_common(
    a: &[CollectiveRecord],
    b: &[CollectiveRecord],
    same: &dyn Fn(&CollectiveRecord, &CollectiveRecord) -> bool,
) -> Option<(usize, usize, usize)> {
    let mut best = vec![vec![0usize; b.len() + 1]; a.len() + 1];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            best[i][j] = match same(&a[i], &b[j]) {
                true => best[i + 1][j + 1] + 1,
                false => best[i + 1][j].max(best[i][j + 1]),
            };
        }
    }
    let longest = best[0][0];
    let all = (0..a.len()).flat_map(|i| (0..b.len()).map(move |j| (i, j)));
    let begins =
        |(i, j): &(usize, usize)| same(&a[*i], &b[*j]) && best[*i + 1][*j + 1] + 1 == longest;
    let first = all.filter(begins).min_by_key(|(i, j)| i + j);
    first.map(|(i, j)| (i, j, longest))
}

/// The first collective of a group in which its members differ, at `seq` or before it.
pub(super) fn mismatch(views: &[View], key: u64, seq: u64) -> Option<Verdict> {
    let members = members(views, key);
    let orders: Vec<BTreeMap<u64, &CollectiveRecord>> =
        members.iter().map(|m| m.view.of_group(key)).collect();
    let differs = |s: &u64| {
        let mut at = orders.iter().filter_map(|o| o.get(s));
        let first = at.next();
        first.is_some_and(|f| at.any(|o| !o.fits(f)))
    };
    let first = orders
        .iter()
        .filter_map(|o| o.keys().next())
        .min()
        .copied()?;
    let seq = (first..=seq).find(differs)?;
    // Classes of members that fit together, the largest first.
    let mut classes: Vec<Vec<usize>> = vec![];
    for (i, order) in orders.iter().enumerate() {
        let Some(op) = order.get(&seq) else {
            continue;
        };
        let fits = |c: &&mut Vec<usize>| orders[c[0]].get(&seq).is_some_and(|o| o.fits(op));
        match classes.iter_mut().find(fits) {
            Some(c) => c.push(i),
            None => classes.push(vec![i]),
        }
    }
    classes.sort_by_key(|c| (std::cmp::Reverse(c.len()), c[0]));
    let names = |c: &[usize]| c.iter().map(|i| members[*i].name).collect::<Vec<JobRank>>();
    let op = |i: usize| orders[i].get(&seq).copied();
    let (most, next) = (classes.first()?, classes.get(1)?);
    let (theirs, group) = (op(most[0])?, &members[most[0]].entry.name);
    let place =
        |i: usize, o: &CollectiveRecord| format!("{}{}", o.place(), beside(members[i].view, o));
    if most.len() == next.len() {
        // Nobody is in the majority: everybody is named.
        let all: Vec<usize> = classes.iter().flatten().copied().collect();
        let mut sentence = format!(
            "{} differ at collective #{seq} of {group}: ",
            ranks(&sorted(names(&all)))
        );
        let one = |c: &Vec<usize>| {
            let o = op(c[0]);
            let what = o.map_or(String::new(), |o| {
                format!("{} ({})", o.what(), place(c[0], o))
            });
            format!("{} {} {what}", ranks(&names(c)), call(c.len()))
        };
        sentence += &classes.iter().map(one).collect::<Vec<_>>().join(", ");
        let hint = |a: usize, b: usize| match relation(&orders[a], &orders[b], seq) {
            Relation::Missed(_) => op(b).map(|o| {
                let name = o.what();
                format!("; {} goes on as if it had missed {name}", members[a].name)
            }),
            _ => None,
        };
        if let Some(h) = hint(next[0], most[0]).or_else(|| hint(most[0], next[0])) {
            sentence += &h;
        }
        sentence += &op(next[0]).map_or(String::new(), |o| other_purpose(o, theirs));
        return Some(Verdict {
            fault: Fault::Mismatch,
            sentence,
            culprits: numbers(&sorted(names(&all))),
        });
    }
    let others = ranks(&names(most));
    let mut parts = vec![];
    for class in &classes[1..] {
        let own = op(class[0])?;
        let (who, s) = (
            ranks(&names(class)),
            if class.len() == 1 { "s" } else { "" },
        );
        let part = match relation(&orders[class[0]], &orders[most[0]], seq) {
            Relation::Missed(n) => {
                let more = if n > 1 {
                    format!(" and {} more", n - 1)
                } else {
                    String::new()
                };
                format!(
                    "{who} missed {}{more}, which {others} {}; {who} {} at {} ({})",
                    theirs.say(),
                    call(most.len()),
                    if class.len() == 1 { "is" } else { "are" },
                    own.what(),
                    place(class[0], own)
                )
            }
            Relation::Extra(n) => {
                let many = if n > 1 {
                    format!("{n} collectives too many, first ")
                } else {
                    "an extra ".into()
                };
                format!(
                    "{who} call{s} {many}{}; {others} {} {} ({}) there",
                    own.say(),
                    call(most.len()),
                    theirs.what(),
                    place(most[0], theirs)
                )
            }
            Relation::Different => {
                format!(
                    "{who} call{s} {} as collective {}, where {others} {} {} ({})",
                    format_args!("{} ({})", own.what(), place(class[0], own)),
                    own.id(),
                    call(most.len()),
                    theirs.what(),
                    place(most[0], theirs)
                )
            }
        };
        parts.push(part + &other_purpose(own, theirs));
    }
    let culprits: Vec<JobRank> = classes[1..].iter().flat_map(|c| names(c)).collect();
    Some(Verdict {
        fault: Fault::Mismatch,
        sentence: parts.join("; "),
        culprits: numbers(&sorted(culprits)),
    })
}

/// What else was asked for in the same call, if it was a call of several.
fn beside(view: &View, op: &CollectiveRecord) -> String {
    const NAMED: usize = 8;
    let all: Vec<&CollectiveRecord> = (view.ops.iter())
        .filter(|o| o.launch == op.launch)
        .collect();
    let [first, _, ..] = all[..] else {
        return String::new();
    };
    let mut list: Vec<String> = all.iter().take(NAMED).map(|o| o.what()).collect();
    if all.len() > NAMED {
        list.push("...".into());
    }
    let at = op.number - first.number;
    format!(", member {at} of one call of [{}]", list.join(", "))
}

/// Where all but the purpose of two operations agrees: that it is the purpose, and what to do.
fn other_purpose(a: &CollectiveRecord, b: &CollectiveRecord) -> String {
    if a.fits(b) || !a.alike(b) {
        return String::new();
    }
    let mut s = "; they are of one size and type, but not for the same".to_string();
    let silent = a.about.is_empty() && b.about.is_empty();
    if silent && !a.point_to_point() && a.site != b.site {
        s += ": where two lines are to meet, say the same by about() before both";
    }
    s
}

fn sorted(mut names: Vec<JobRank>) -> Vec<JobRank> {
    names.sort_unstable();
    names
}

/// Ranks as a verdict keeps them.
pub(super) fn numbers(names: &[JobRank]) -> Vec<u32> {
    names.iter().map(|r| r.0).collect()
}

/// The first message from `from` to `to` (places in the group) whose ends differ, up to number `seq` of the pair.
pub(super) fn message(views: &[View], key: u64, from: u32, to: u32, seq: u64) -> Option<Verdict> {
    use crossweave_abi::{COLL_RECV, COLL_SEND};
    let members = members(views, key);
    let of = |index: u32| members.iter().find(|m| m.index == index);
    let (sender, receiver) = (of(from)?, of(to)?);
    let list = |m: &Member<'_>, kind: u32, peer: u32| -> BTreeMap<u64, CollectiveRecord> {
        let ops = m.view.ops.iter();
        ops.filter(|o| o.key == key && o.kind == kind && o.peer == peer)
            .map(|o| (o.seq, o.clone()))
            .collect()
    };
    let sends = list(sender, COLL_SEND, to);
    let recvs = list(receiver, COLL_RECV, from);
    let differs = |s: &u64| {
        let both = sends.get(s).zip(recvs.get(s));
        both.is_some_and(|(a, b)| a.print().message() != b.print().message())
    };
    let seq = sends.keys().copied().filter(|s| *s <= seq).find(differs)?;
    let (s, r) = (sends.get(&seq)?, recvs.get(&seq)?);
    // What has come behind the message before, whenever that was sent earlier: who asks for something else leaves the order.
    let usual = || {
        // Both ends have it: it is the first difference, and not the first that is remembered.
        let before = sends
            .get(&(seq - 1))
            .filter(|_| recvs.contains_key(&(seq - 1)))?;
        let same = |o: &CollectiveRecord| o.print().message() == before.print().message();
        let mut earlier = sends.range(..seq - 1).rev();
        let (n, _) = earlier.find(|(_, o)| same(o))?;
        sends.get(&(n + 1)).map(|o| o.print().message())
    };
    let fits = |o: &CollectiveRecord, usual: u64| o.print().message() == usual;
    let missed = match usual().map(|u| (fits(s, u), fits(r, u))) {
        Some((true, false)) => vec![receiver.name],
        Some((false, true)) => vec![sender.name],
        _ => vec![],
    };
    let lead = match &missed[..] {
        [one] => format!("{one} leaves the order of messages: "),
        _ => String::new(),
    };
    let body = |o: &CollectiveRecord| o.what().split(" of ").nth(1).unwrap_or("").to_string();
    let sized = |o: &CollectiveRecord| body(o).split([' ']).take(3).collect::<Vec<_>>().join(" ");
    Some(Verdict {
        fault: Fault::Mismatch,
        sentence: format!(
            "{lead}{} sends {} to {} as message #{seq} of the pair on {} ({}{}), which receives {} ({}{}){}",
            sender.name,
            sized(s),
            receiver.name,
            sender.entry.name,
            s.place(),
            beside(sender.view, s),
            sized(r),
            r.place(),
            beside(receiver.view, r),
            other_purpose(s, r)
        ),
        culprits: match missed.is_empty() {
            true => numbers(&sorted(vec![sender.name, receiver.name])),
            false => numbers(&missed),
        },
    })
}

/// The counts of an all_to_all_v: what one rank sends another and what that one expects.
pub(super) fn splits(
    views: &[View],
    key: u64,
    seq: u64,
    from: u32,
    sends: u64,
    to: u32,
    expects: u64,
) -> Option<Verdict> {
    let members = members(views, key);
    let of = |index: u32| members.iter().find(|m| m.index == index);
    let (a, b) = (of(from)?, of(to)?);
    let place = |m: &Member<'_>| {
        let order = m.view.of_group(key);
        order.get(&seq).map_or(String::new(), |o| o.place())
    };
    Some(Verdict {
        fault: Fault::Mismatch,
        sentence: format!(
            "{} sends {sends} elements to {} in all_to_all_v #{seq} of {} ({}), which expects {expects} ({})",
            a.name,
            b.name,
            a.entry.name,
            place(a),
            place(b)
        ),
        culprits: numbers(&sorted(vec![a.name, b.name])),
    })
}
