//! The output folder of a run of several hosts, which all of them must share: a host that has none of it, or one of its own by the same name,
//! is named before the first step, and not by its first save.

use crate::processes::Processes;
use crate::train_error::{Result, TrainError};
use crossweave_claim::Claim;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

/// A folder over a network may show a new file late.
const LATE: Duration = Duration::from_secs(20);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(50);
/// Hosts that are named at most.
const NAMED: usize = 4;
/// For the answers of all.
const ANSWERS: Duration = Duration::from_secs(120);

/// Every process looks for the claim of rank 0's in the folder `out`. Each calls this.
///
/// # Errors
/// On rank 0's process: a host where it is not, with its ranks. A process that has failed.
pub fn check(processes: &Processes, out: &Path) -> Result<()> {
    // Without a claim, or without JSON of it, there is nothing to look for.
    let claim = || Claim::owner_of(out).and_then(|o| serde_json::to_string(&o).ok());
    let own = claim().unwrap_or_default();
    let first = processes.tell("folder", own.as_bytes(), ANSWERS)?;
    let began = Instant::now();
    let seen = loop {
        let seen = claim().unwrap_or_default().into_bytes() == first;
        if seen || first.is_empty() || began.elapsed() > LATE {
            break seen || first.is_empty();
        }
        std::thread::sleep(PAUSE);
    };
    let all = processes.gather("folder seen", &[u8::from(seen)], ANSWERS)?;
    let hosts = processes.ranks_by_host();
    let blind = all.iter().zip(&hosts).filter(|(seen, _)| ***seen == [0]);
    let mut lacks: Vec<(&str, &Range<u32>)> = blind.map(|(_, h)| (&*h.1, &h.2)).collect();
    lacks.dedup_by_key(|(host, _)| *host);
    if lacks.is_empty() {
        return Ok(());
    }
    let on: &str = hosts.first().map_or("", |h| &h.1);
    let each = lacks.iter().take(NAMED);
    let each = each.map(|(host, ranks)| format!("{host} (rank {})", ranks.start));
    let (each, more) = (
        each.collect::<Vec<_>>().join(", "),
        lacks.len().saturating_sub(NAMED),
    );
    let more = match more {
        0 => String::new(),
        n => format!(" and on {n} more"),
    };
    Err(TrainError::refused(
        format!(
            "--out {}: what rank 0 on {on} has written there is not seen on {each}{more}",
            out.display()
        ),
        "name a folder that all hosts share under one path, as every rank saves its part there",
    ))
}
