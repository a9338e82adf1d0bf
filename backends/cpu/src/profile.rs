//! Where the time goes: wall time of every kernel, by op and shapes, gathered on the streams' threads when `cpu.profile` is on.

use crate::stream::lock;
use crossweave_plugin::{DType, OpRequest};
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

/// Sums of one device.
#[derive(Default)]
pub(crate) struct Profile {
    sums: Mutex<HashMap<String, (u64, Duration)>>,
}

impl Profile {
    pub(crate) fn add(&self, label: &str, time: Duration) {
        let mut sums = lock(&self.sums);
        match sums.get_mut(label) {
            Some((n, t)) => {
                *n += 1;
                *t += time;
            }
            None => {
                sums.insert(label.to_string(), (1, time));
            }
        }
    }

    /// A line for each op and set of shapes, the costliest first: milliseconds, calls, label.
    pub(crate) fn text(&self) -> String {
        let sums = lock(&self.sums);
        let mut all: Vec<_> = sums.iter().collect();
        all.sort_by_key(|(_, (_, t))| std::cmp::Reverse(*t));
        let line = |(label, (n, t)): (&String, &(u64, Duration))| {
            format!("{:.3} ms {n} {label}\n", t.as_secs_f64() * 1e3)
        };
        all.into_iter().map(line).collect()
    }
}

/// Name, dtypes and shapes of an op.
pub(crate) fn label(name: &str, o: &OpRequest<'_>) -> String {
    let operands = o.operands.iter().take(8).map(|l| {
        DType::from_id(l.dtype)
            .filter(|_| l.present())
            .map_or("-".to_string(), |d| {
                format!("{}{:?}", d.name(), &l.shape[..(l.rank as usize).min(8)])
            })
    });
    format!("{name} {}", operands.collect::<Vec<_>>().join(" "))
}
