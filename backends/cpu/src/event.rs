//! An event is a point in a stream: (stream, sequence number). Recording again replaces the point; who waited holds the old one.

use crate::stream::{Cmd, Shared, Stream, lock};
use crossweave_plugin::{Code, Error, Result, fail};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Where the latest record is, and when it was passed.
#[derive(Default)]
pub(crate) struct Mark {
    latest: Mutex<Latest>,
}

#[derive(Default)]
struct Latest {
    id: u64,
    point: Option<(Arc<Shared>, u64)>,
    passed: Option<Instant>,
}

impl Mark {
    /// The stream passes record `id`; an older one than the latest leaves no trace.
    pub(crate) fn stamp(&self, id: u64) {
        let mut l = lock(&self.latest);
        if l.id == id {
            l.passed = Some(Instant::now());
        }
    }
}

/// A point in a stream of a CPU device.
#[derive(Default)]
pub struct Event {
    mark: Arc<Mark>,
}

impl Event {
    fn point(&self) -> Option<(Arc<Shared>, u64)> {
        lock(&self.mark.latest).point.clone()
    }

    pub(crate) fn record(&self, s: &Stream) -> Result<()> {
        s.begin();
        // The lock is held over the push, so that the thread cannot stamp before the point is set.
        let mut l = lock(&self.mark.latest);
        let id = l.id + 1;
        let seq = s.push_locked(|_| Cmd::Record(self.mark.clone(), id))?;
        *l = Latest {
            id,
            point: Some((s.shared().clone(), seq)),
            passed: None,
        };
        drop(l);
        s.point();
        Ok(())
    }

    pub(crate) fn query(&self) -> Result<bool> {
        let Some((stream, seq)) = self.point() else {
            return Ok(true);
        };
        if !stream.passed(seq) {
            stream.poll();
            return Ok(false);
        }
        stream.failure_before(seq).map_or(Ok(true), Err)
    }

    pub(crate) fn sync(&self, timeout: Option<Duration>) -> Result<()> {
        let Some((stream, seq)) = self.point() else {
            return Ok(());
        };
        if !stream.wait(seq, timeout, None) {
            return fail(
                Code::Timeout,
                format!("event_sync: the record was not passed within {timeout:?}"),
            );
        }
        stream.failure_before(seq).map_or(Ok(()), Err)
    }

    pub(crate) fn wait_on(&self, s: &Stream) -> Result<()> {
        // Also where there is nothing to wait for.
        s.not_captured()?;
        let Some((stream, seq)) = self.point() else {
            return Ok(());
        };
        if Arc::ptr_eq(&stream, s.shared()) {
            return Ok(());
        }
        if stream.passed(seq) && stream.failure_before(seq).is_none() {
            return Ok(());
        }
        s.push(|_| Cmd::Wait(stream, seq)).map(|_| ())
    }

    pub(crate) fn elapsed(&self, to: &Event) -> Result<u64> {
        let at = |e: &Event, which: &str| {
            let l = lock(&e.mark.latest);
            match (l.point.is_some(), l.passed) {
                (_, Some(t)) => Ok(t),
                (false, None) => fail(
                    Code::Invalid,
                    format!("event_elapsed: the {which} event was never recorded"),
                ),
                (true, None) => Err(Error::new(
                    Code::Invalid,
                    format!("event_elapsed: the {which} event has not been passed yet; sync first"),
                )
                .retryable()),
            }
        };
        let (from, to) = (at(self, "first")?, at(to, "second")?);
        Ok(to.saturating_duration_since(from).as_nanos() as u64)
    }
}
