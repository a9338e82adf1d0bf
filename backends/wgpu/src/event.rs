//! An event is a point in a stream: (stream, sequence number). Recording again replaces the point; who waited holds the old one.

use crate::device::lock;
use crate::stream::{Cmd, Core, Stream};
use crossweave_plugin::{Code, Result, fail};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A point in a stream.
#[derive(Default)]
pub struct Event {
    point: Mutex<Option<(Arc<Core>, u64)>>,
}

impl Event {
    fn point(&self) -> Option<(Arc<Core>, u64)> {
        lock(&self.point).clone()
    }

    pub(crate) fn record(&self, s: &Stream) -> Result<()> {
        s.sticky()?;
        *lock(&self.point) = Some((s.core.clone(), s.pushed()));
        Ok(())
    }

    pub(crate) fn query(&self) -> Result<bool> {
        let Some((core, seq)) = self.point() else {
            return Ok(true);
        };
        if !core.progress.passed(seq) {
            // Asking must not be what keeps it from happening.
            return Ok(core.wait_done(seq, Some(Duration::ZERO)));
        }
        core.failure_before(seq).map_or(Ok(true), Err)
    }

    pub(crate) fn sync(&self, timeout: Option<Duration>) -> Result<()> {
        let Some((core, seq)) = self.point() else {
            return Ok(());
        };
        if !core.wait_done(seq, timeout) {
            return fail(
                Code::Timeout,
                format!("event_sync: the record was not passed within {timeout:?}"),
            );
        }
        core.failure_before(seq).map_or(Ok(()), Err)
    }

    pub(crate) fn wait_on(&self, s: &Stream) -> Result<()> {
        let Some((core, seq)) = self.point() else {
            return s.sticky();
        };
        if Arc::ptr_eq(&core, &s.core)
            || (core.progress.passed(seq) && core.failure_before(seq).is_none())
        {
            return s.sticky();
        }
        s.push(|_| Cmd::Wait(core, seq))
    }
}
