//! Reads a rank's ring buffer of operations back, with their texts.

use super::collective_record::CollectiveRecord;
use super::purpose::named;
use super::rank_record::{Entry, RING, RankRecord, STREAMS};
use crossweave_abi as abi;
use crossweave_plugin::GroupRank;
use std::collections::HashMap;
use std::sync::Arc;

/// The texts of records, each made once for all that share it.
struct Texts<'a> {
    record: &'a RankRecord,
    groups: HashMap<u16, (Entry, Arc<str>)>,
    sites: HashMap<u16, (Arc<str>, Arc<str>)>,
    names: HashMap<u16, Arc<str>>,
}

impl Texts<'_> {
    fn site(&mut self, n: u16) -> (Arc<str>, Arc<str>) {
        let text = || {
            let (site, tag) = self.record.site_text(n);
            (site.into(), tag.into())
        };
        self.sites.entry(n).or_insert_with(text).clone()
    }
    /// Name of the plan step, and words of the caller.
    fn names(&mut self, n: u16) -> (Arc<str>, Arc<str>) {
        let (n, given) = named(n);
        let text = || self.record.name_text(n).into();
        let text = self.names.entry(n).or_insert_with(text).clone();
        match given {
            true => (Arc::default(), text),
            false => (text, Arc::default()),
        }
    }
}

impl RankRecord {
    /// The operations that are still remembered, oldest first.
    pub fn ops(&self) -> Vec<CollectiveRecord> {
        self.ops_from(1)
    }

    /// Those of them with this number or a later one; the last in any case.
    pub fn ops_from(&self, first: u64) -> Vec<CollectiveRecord> {
        let head = self.head();
        let oldest = head.saturating_sub(RING as u64 - 1).max(1);
        let mut texts = Texts {
            record: self,
            groups: self.named(),
            sites: HashMap::new(),
            names: HashMap::new(),
        };
        let numbers = first.min(head).max(oldest)..=head;
        numbers.filter_map(|n| self.op(n, &mut texts)).collect()
    }

    /// Its communicators and their names.
    fn named(&self) -> HashMap<u16, (Entry, Arc<str>)> {
        let each = self.entries().into_iter();
        let one = |(n, e): (usize, Entry)| {
            let name = Arc::from(&*e.name);
            (n as u16, (e, name))
        };
        each.map(one).collect()
    }

    fn op(&self, number: u64, texts: &mut Texts<'_>) -> Option<CollectiveRecord> {
        let r = self.raw(number)?;
        let (entry, group) = texts.groups.get(&r.entry)?;
        let (key, group) = (entry.key, group.clone());
        let other = match r.print.kind {
            abi::COLL_SEND | abi::COLL_RECV => Some(r.print.peer),
            abi::COLL_BROADCAST | abi::COLL_REDUCE => Some(r.print.root),
            _ => None,
        };
        let other = other.map(|m| entry.rank_of(GroupRank(m)).0);
        let (site, tag) = texts.site(r.site);
        let (name, about) = texts.names(r.step);
        let (call, plan) = self.carried(number);
        let step = match (plan, &*name) {
            (0, _) => name,
            (plan, "") => (plan - 1).to_string().into(),
            (plan, name) => format!("{} {name}", plan - 1).into(),
        };
        let counts = match r.print.kind {
            abi::COLL_ALL_GATHER_V => self.counts(r.entry, r.seq, r.print.splits),
            _ => vec![],
        };
        Some(CollectiveRecord {
            number,
            group,
            key,
            seq: r.seq,
            kind: r.print.kind,
            dtype: r.print.dtype,
            reduce: r.print.reduce,
            count: r.print.count,
            root: r.print.root,
            peer: r.print.peer,
            other,
            in_place: r.print.in_place,
            splits: r.print.splits,
            counts,
            purpose: r.print.purpose,
            stream: r.stream,
            launch: r.launch,
            site,
            tag,
            step,
            about,
            at: r.at,
            call,
            // Streams beyond those there is room for count as done: what is not known is no accusation.
            done: call > 0 && (r.stream as usize >= STREAMS || call <= self.done(r.stream)),
        })
    }
}
