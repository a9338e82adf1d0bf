//! What a sweep has seen, as the page `tests/layouts.md`: how often each choice and each two axes.

use super::axes::AXES;
use super::draw::{Draws, TRIES};
use std::fmt::Write as _;

/// What is said of a sweep beside its counts.
#[derive(Default)]
pub struct Sweep {
    pub seed: u64,
    pub layouts: u64,
    pub seconds: f64,
    pub by_bits: u64,
    pub planned: u64,
    pub refused: u64,
    /// Those that fail, with the reason.
    pub failed: Vec<String>,
}

/// The page.
pub fn page(s: &Sweep, draws: &Draws) -> String {
    let seen = &draws.seen;
    let mut out = format!(
        "# Layouts that were drawn\n\n    cargo xtask fuzz-layouts --layouts {} --seed {}\n\n\
         drew {} distinct layouts of `train/tests/layouts`, of which {} failed. Each trained as one rank alone does; {} were compared bit for bit too, of {} \
         memory and traffic were held against `plan`, and {} more, which break a rule, were refused by its key. On average one took {:.2} s. The command writes this page.\n\n",
        s.layouts,
        s.seed,
        s.layouts,
        s.failed.len(),
        s.by_bits,
        s.planned,
        s.refused,
        s.seconds / s.layouts as f64,
    );
    out += "| | axis | times | choices |\n|---|---|---|---|\n";
    for (i, axis) in AXES.iter().enumerate() {
        let each = axis.choices.iter().zip(&seen.choices[i]);
        let each: Vec<String> = each.map(|(c, n)| format!("{} {n}", c.name)).collect();
        let times = s.layouts - seen.choices[i][0];
        let _ = writeln!(
            out,
            "| {} | {} | {times} | {} |",
            i + 1,
            axis.name,
            each.join(", ")
        );
    }
    out += "\nThe first choice of an axis is what a layout has that says nothing of it, and is none of its times.\n\n## Two axes at once\n\n```text\n    ";
    for j in 1..AXES.len() {
        let _ = write!(out, "{j:>4}");
    }
    out.push('\n');
    let (mut refused, mut few) = (String::new(), String::new());
    for i in 1..AXES.len() {
        let _ = write!(out, "{:>4}", i + 1);
        for j in 0..i {
            let (tries, key) = draws.never[i][j];
            let n = seen.pairs[i][j];
            let pair = format!("{} and {}", AXES[j].name, AXES[i].name);
            match n {
                0 if tries >= TRIES => {
                    out += "   -";
                    let why = if key.is_empty() {
                        "one asks for what the other is not".into()
                    } else {
                        format!("refused by `{key}`")
                    };
                    let _ = writeln!(refused, "- {pair}: {why}");
                }
                _ => {
                    let _ = write!(out, "{n:>4}");
                    if n < 10 {
                        let _ = writeln!(few, "- {pair}: {n}");
                    }
                }
            }
        }
        out.push('\n');
    }
    let _ = write!(out, "```\n\nThose that do not go together:\n\n{refused}");
    if !s.failed.is_empty() {
        let _ = write!(out, "\nThose that failed:\n\n- {}\n", s.failed.join("\n- "));
    }
    if !few.is_empty() {
        let _ = write!(out, "\nSeen less than ten times:\n\n{few}");
    }
    out
}
