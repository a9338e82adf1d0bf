//! Moments as people read them: round ones, with their words.

use crate::{Timeline, Unit};

/// A moment of the axis: its place, and its words.
pub type Tick = (u64, String);

/// About `count` round moments from the beginning to the end.
pub fn ticks(t: &Timeline, count: u64) -> Vec<Tick> {
    let end = t.end();
    if end == 0 {
        return vec![];
    }
    if t.unit == Unit::Share {
        let at = |k: u64| (u128::from(end) * u128::from(k) / 10) as u64;
        return (0..=10)
            .step_by(2)
            .map(|k| (at(k), format!("{} %", 10 * k)))
            .collect();
    }
    let rough = end.div_ceil(count.max(1));
    let power = 10u64.pow(rough.ilog10());
    let step = [1, 2, 5, 10].map(|m| m * power);
    let step = step.into_iter().find(|s| *s >= rough).unwrap_or(rough);
    let words = |at: u64| (at, label(t.unit, at, step));
    (0..=end / step).map(|k| words(k * step)).collect()
}

/// A moment in words, to the precision of `step`.
fn label(unit: Unit, at: u64, step: u64) -> String {
    if unit != Unit::Nanoseconds {
        return at.to_string();
    }
    let (name, each) = match step {
        1_000_000_000.. => ("s", 1e9),
        1_000_000.. => ("ms", 1e6),
        1_000.. => ("µs", 1e3),
        _ => ("ns", 1.0),
    };
    format!("{} {name}", at as f64 / each)
}

/// How long the whole takes, in words.
pub fn length(t: &Timeline) -> String {
    let end = t.end() as f64;
    match t.unit {
        Unit::Part => format!("{end} units"),
        Unit::Share => String::new(),
        Unit::Nanoseconds if end < 1e6 => format!("{:.1} µs", end / 1e3),
        Unit::Nanoseconds if end < 1e9 => format!("{:.1} ms", end / 1e6),
        Unit::Nanoseconds => format!("{:.2} s", end / 1e9),
    }
}
