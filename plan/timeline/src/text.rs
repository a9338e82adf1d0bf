//! A timeline as text: a line of kinds and a line of micro-batches for each stage, a column for each part of the time.

use crate::axis::length;
use crate::{Timeline, What};
use crossweave_words::Size;
use std::fmt::Write as _;

/// Columns that are not exceeded.
const MOST: u64 = 400;

fn letter(what: What) -> char {
    match what {
        What::Forward => 'F',
        What::Recompute => 'R',
        What::Backward => 'B',
        What::InputGrad => 'I',
        What::WeightGrad => 'W',
        _ => 'o',
    }
}

/// A micro-batch as one character.
fn digit(mb: u32) -> char {
    char::from_digit(mb % 36, 36).unwrap_or('?')
}

impl Timeline {
    /// The picture as text.
    pub fn text(&self) -> String {
        let end = self.end();
        let computing = self.stages.iter().flat_map(|s| &s.spans);
        let lengths = computing.filter(|s| s.what < What::Optimizer);
        let lengths = lengths.map(|s| s.time.1 - s.time.0).filter(|n| *n > 0);
        let least = lengths.min().unwrap_or(1);
        let column = least.max(end.div_ceil(MOST)).max(1);
        let mut o = format!("{}\n{}\n", self.title, self.note);
        let width = self.stages.iter().map(|s| s.name.len()).max().unwrap_or(0);
        for s in &self.stages {
            let columns = end.div_ceil(column) as usize;
            let (mut kinds, mut numbers) = (vec!['.'; columns], vec![' '; columns]);
            for span in s.spans.iter().filter(|s| s.what.computes()) {
                // A column shows what its middle falls into.
                let middle = |t: u64| ((t + column / 2) / column) as usize;
                let (from, to) = (middle(span.time.0), middle(span.time.1));
                for k in from..to.min(columns) {
                    kinds[k] = letter(span.what);
                    numbers[k] = span.mb.map_or(' ', digit);
                }
            }
            let kinds: String = kinds.into_iter().collect();
            let numbers: String = numbers.into_iter().collect();
            let peak = s.peak.map_or(String::new(), |p| format!("  {}", Size(p)));
            let _ = writeln!(o, "\n{:<width$}  {kinds}{peak}", s.name);
            let _ = writeln!(o, "{:<width$}  {}", "", numbers.trim_end());
        }
        let length = length(self);
        let length = match length.is_empty() {
            true => length,
            false => format!("{length}, "),
        };
        let _ = writeln!(
            o,
            "\n{length}idle {:.1} % of the time; F forward, R recompute, B backward, I gradient of the input, W gradients of weights, o optimizer; below them the micro-batch, in base 36",
            100.0 * self.idle()
        );
        o
    }
}
