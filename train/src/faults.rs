//! The config's `faults` as what strikes the collectives of one rank.

use crate::events::Event;
use crate::prepared::Run;
use crossweave_config::Fault;
use crossweave_mesh::{FaultKind, FaultRule, Faults};
use std::time::Duration;

/// The highest bit of the exponent of the first f32: whatever it was, it is far off then.
const BIT: u64 = 30;

/// Faults of a rank; nothing where the config has none for it.
pub fn of_rank(run: &Run, rank: u32) -> Option<Faults> {
    let all = run.job.resolved.settings.faults.iter().enumerate();
    let own = all.filter(|(_, f)| f.rank == u64::from(rank));
    let rules: Vec<FaultRule> = own.filter_map(|(i, f)| rule(i, f)).collect();
    if rules.is_empty() {
        return None;
    }
    let process = run.local_ranks.here().len() < run.job.ranks as usize;
    let events = run.reported.events.clone();
    Some(Faults::new(rank, rules, move || {
        if process {
            events.on(Event::Killed);
        }
    }))
}

/// One entry; the config has been checked, so that each kind has its key.
fn rule(index: usize, f: &Fault) -> Option<FaultRule> {
    let kind = match f.kind.as_str() {
        // Beyond the clock's range is for ever.
        "delay" => {
            FaultKind::Delay(Duration::try_from_secs_f64(f.ms? / 1e3).unwrap_or(Duration::MAX))
        }
        "slow" => FaultKind::Slow(f.bytes_per_s?),
        "drop" => FaultKind::Drop,
        "corrupt" => FaultKind::Corrupt(f.bit.unwrap_or(BIT)),
        "error" => FaultKind::Error,
        "stall" => FaultKind::Stall,
        "kill" => FaultKind::Kill,
        _ => return None,
    };
    Some(FaultRule {
        kind,
        step: f.step,
        call: f.call,
        op: f.op.clone(),
        group: f.group.clone(),
        name: format!("faults[{index}]"),
    })
}
