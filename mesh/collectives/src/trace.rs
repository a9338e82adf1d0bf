//! A collective as a span of the trace: its kind, group, bytes, and which messages of other ranks it meets.

use crate::group::Collectives;
use crossweave_hal::trace::{CollectiveWork, Message, Tracer, Work};
use crossweave_hal::{Collective, CommTag, Result, Stream};
use std::collections::BTreeMap;

/// The tracer of a group, and what has been counted for it.
pub(crate) struct Traced {
    tracer: Tracer,
    calls: u64,
    /// Messages so far by direction and peer.
    messages: BTreeMap<(bool, u32), u64>,
}

impl Collectives {
    /// From now on every collective is a span of `tracer`. All members of the group do this at the same point, or none.
    pub fn trace(&mut self, tracer: &Tracer) {
        self.traced = Some(Traced {
            tracer: tracer.clone(),
            calls: 0,
            messages: BTreeMap::new(),
        });
    }

    /// [`Collectives::group`] as a span, composed collectives with all their parts.
    #[track_caller]
    pub(crate) fn group_traced(
        &mut self,
        mut traced: Traced,
        s: &Stream,
        members: &[Collective<'_>],
        tag: CommTag,
    ) -> Result<()> {
        let work = self.work(&mut traced, members);
        let open = traced.tracer.begin([s]);
        let done = self.asked(s, members, tag);
        let name = || match members {
            [] => "empty group".to_string(),
            [one] => format!("{} {tag}", one.name()),
            [first, ..] if members.iter().all(|m| m.name() == first.name()) => {
                format!("{} x{} {tag}", first.name(), members.len())
            }
            _ => format!("group of {} {tag}", members.len()),
        };
        let work = || Work::Collective(Box::new(work.clone()));
        traced.tracer.end(open, [s], &name, &work);
        self.traced = Some(traced);
        done
    }

    fn work(&self, traced: &mut Traced, members: &[Collective<'_>]) -> CollectiveWork {
        traced.calls += 1;
        let mut messages = vec![];
        let mut root = None;
        for m in members {
            let (sends, peer) = match m {
                Collective::Send { peer, .. } => (true, *peer),
                Collective::Recv { peer, .. } => (false, *peer),
                Collective::Broadcast { root: r, .. } | Collective::Reduce { root: r, .. } => {
                    root = Some(*r);
                    continue;
                }
                _ => continue,
            };
            let index = traced.messages.entry((sends, peer)).or_default();
            messages.push(Message {
                sends,
                peer,
                index: *index,
            });
            *index += 1;
        }
        CollectiveWork {
            group: self.comm.name().to_string(),
            scope: self.comm.scope().to_string(),
            call: traced.calls,
            bytes: members.iter().map(|m| self.comm.bytes(m)).sum(),
            rank: self.comm.rank(),
            size: self.comm.size(),
            root,
            messages,
        }
    }
}
