//! What a sweep has seen, as the page `tests/layouts.md`: how often each choice and each two axes.

use super::axes::AXES;
use super::draw::{Draws, TRIES};
use super::log::Line;
use std::fmt::Write as _;

/// The page of what became of these layouts, which were drawn so.
pub fn page(lines: &[Line], draws: &Draws) -> String {
    let seen = &draws.seen;
    let drawn = || lines.iter().filter(|l| !l.refused);
    let sum = |of: &dyn Fn(&Line) -> u64| drawn().map(of).sum::<u64>();
    let [layouts, by_bits, planned] = [sum(&|_| 1), sum(&|l| l.by_bits), sum(&|l| l.planned)];
    let seconds: f64 = drawn().map(|l| l.seconds).sum();
    let failed = lines.iter().filter(|l| !l.fault.is_empty());
    let failed = failed.map(|l| format!("seed {}: {}: {}", l.seed, l.words, l.fault));
    let failed: Vec<String> = failed.collect();
    let mut seeds: Vec<(u64, u64)> = vec![];
    for l in drawn() {
        match seeds.last_mut() {
            Some((seed, n)) if *seed == l.seed => *n += 1,
            _ => seeds.push((l.seed, 1)),
        }
    }
    let command = |(seed, n): &(u64, u64)| {
        format!("    cargo xtask fuzz-layouts --layouts {n} --seed {seed} --log FILE\n")
    };
    let commands: String = seeds.iter().map(command).collect();
    let mut out = format!(
        "# Layouts that were drawn\n\n{commands}\n\
         drew {layouts} distinct layouts of `train/tests/layouts`, of which {} failed. Each trained as one rank alone does; {by_bits} comparisons were bit for bit too, of {planned} \
         memory and traffic were held against `plan`, and {} more, which break a rule, were refused by its key. On average one took {:.2} s. The command writes this page.\n\n",
        failed.len(),
        lines.len() as u64 - layouts,
        seconds / layouts as f64,
    );
    out += "| | axis | times | choices |\n|---|---|---|---|\n";
    for (i, axis) in AXES.iter().enumerate() {
        let each = axis.choices.iter().zip(&seen.choices[i]);
        let each: Vec<String> = each.map(|(c, n)| format!("{} {n}", c.name)).collect();
        let times = layouts - seen.choices[i][0];
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
    if !failed.is_empty() {
        let _ = write!(out, "\nThose that failed:\n\n- {}\n", failed.join("\n- "));
    }
    if !few.is_empty() {
        let _ = write!(out, "\nSeen less than ten times:\n\n{few}");
    }
    out
}
