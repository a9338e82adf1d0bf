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
        // Not only looked at: asking must not be what keeps it from happening.
        let done = core.wait_done(seq, Some(Duration::ZERO));
        core.failure_before(seq).map_or(Ok(done), Err)
    }

    pub(crate) fn sync(&self, timeout: Option<Duration>) -> Result<()> {
        let Some((core, seq)) = self.point() else {
            return Ok(());
        };
        let done = core.wait_done(seq, timeout);
        match core.failure_before(seq) {
            Some(e) => Err(e),
            None if done => Ok(()),
            None => fail(
                Code::Timeout,
                format!("event_sync: the record was not passed within {timeout:?}"),
            ),
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crossweave_plugin::Error;

    #[test]
    fn a_query_tells_the_failure_of_what_was_recorded_and_of_nothing_later() {
        let core = Arc::new(Core::new(Arc::default()));
        let at = |seq| Event {
            point: Mutex::new(Some((core.clone(), seq))),
        };
        assert!(!at(1).query().expect("not yet"));
        core.progress.fail(2, Error::new(Code::Oom, "no room"));
        // The failure is known before the stream learns how far it came, and stays.
        for _ in 0..2 {
            let e = at(2).query().expect_err("command 2 failed");
            assert_eq!(e.code, Code::Oom);
            let e = at(2).sync(Some(Duration::ZERO)).expect_err("as the query");
            assert_eq!(e.code, Code::Oom);
            core.progress.pass(2);
        }
        assert!(at(1).query().expect("what came before did not fail"));
    }
}
