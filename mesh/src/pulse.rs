//! The heartbeat between hosts: whether the processes of other hosts are still there, which no connection shows where a link is cut or a host
//! is stopped or loses its power.
//!
//! Rank 0's process asks each process of another host six times within the limit, and each answers. Who hears nothing for the whole limit,
//! rank 0's process or the other, takes the other for lost. TCP repeats what got lost at intervals that double, so that a connection may stay
//! silent for as long again as its link was cut; a process that hears nothing therefore also comes by a new connection, and a cut that mends
//! within the limit costs only time. What passed while this process itself was stopped does not count.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a process is asked within the limit.
const BEATS: u32 = 6;
/// Bounds of the time between two beats.
const BEAT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// For how long each process that is watched has been silent.
#[derive(Default)]
pub(crate) struct Pulse(Mutex<BTreeMap<u32, Duration>>);

impl Pulse {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Duration>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Process `process` has said something.
    pub fn heard(&self, process: u32) {
        if let Some(silent) = self.lock().get_mut(&process) {
            *silent = Duration::ZERO;
        }
    }

    /// Process `process` has said farewell, and owes no sign of life.
    pub fn forget(&self, process: u32) {
        self.lock().remove(&process);
    }

    /// Watches `processes` until one of them has been silent for `limit`, and returns all that are about to be. `beat` asks for a sign of
    /// life: its arguments are the processes that are watched and, of those, the ones that have missed a beat. `None` once `beat` returns
    /// false or nobody is left to watch.
    pub fn watch(
        &self,
        processes: &[u32],
        limit: Duration,
        mut beat: impl FnMut(&[u32], &[u32]) -> bool,
    ) -> Option<Vec<u32>> {
        let tick = (limit / BEATS).clamp(BEAT.0, BEAT.1);
        *self.lock() = processes.iter().map(|p| (*p, Duration::ZERO)).collect();
        loop {
            let now = self.lock().clone();
            if now.values().any(|silent| *silent >= limit) {
                // All processes of a host fall silent together, within a beat of each other.
                let gone = now.iter().filter(|(_, s)| **s + tick * 2 > limit);
                return Some(gone.map(|(p, _)| *p).collect());
            }
            let all: Vec<u32> = now.keys().copied().collect();
            let missed = now.iter().filter(|(_, s)| **s > tick + tick / 2);
            let missed: Vec<u32> = missed.map(|(p, _)| *p).collect();
            let began = Instant::now();
            if all.is_empty() || !beat(&all, &missed) {
                return None;
            }
            std::thread::sleep(tick.saturating_sub(began.elapsed()));
            // A clock that jumps means that this process was stopped, or its machine: others may have spoken meanwhile, unheard.
            let passed = began.elapsed().min(tick * 2);
            self.lock().values_mut().for_each(|s| *s += passed);
        }
    }
}

/// What is said of processes that are lost, behind their ranks.
pub(crate) fn words(there: &str, here: &str, limit: Duration) -> String {
    format!(
        "on {there} gave no sign of life to {here} for {:.1} s (run.heartbeat_s): the link between them is cut, or {there} is stopped or has no \
         power; resume on the hosts that are left (--resume), or mend it first",
        limit.as_secs_f64()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_silent_for_the_limit_is_lost_with_its_host() {
        let (pulse, limit) = (Pulse::default(), Duration::from_millis(600));
        let mut missed_by = vec![];
        let lost = pulse.watch(&[1, 2, 3, 4], limit, |all, missed| {
            // Process 4 ends well; 1 goes on.
            pulse.heard(1);
            pulse.forget(4);
            assert!(all.starts_with(&[1, 2, 3]));
            missed_by.push(missed.to_vec());
            true
        });
        assert_eq!(lost, Some(vec![2, 3]));
        assert!(missed_by[0].is_empty());
        assert_eq!(missed_by.last(), Some(&vec![2, 3]));
    }

    #[test]
    fn a_process_that_was_stopped_itself_counts_no_more_than_two_beats() {
        let (pulse, limit) = (Pulse::default(), Duration::from_millis(600));
        let mut beats = 0;
        let lost = pulse.watch(&[1], limit, |_, _| {
            beats += 1;
            // As if the machine had slept: longer than the limit.
            if beats == 2 {
                std::thread::sleep(limit * 2);
            } else if beats > 2 {
                pulse.heard(1);
            }
            beats < 6
        });
        assert_eq!((lost, beats), (None, 6));
        assert_eq!(pulse.watch(&[], limit, |_, _| true), None);
    }
}
