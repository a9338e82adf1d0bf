//! Ceilings that only go down by themselves: a figure above its general limit needs a row in a table, a figure above its row is refused,
//! and a row that is higher than it must be is refused as well.

use crate::finding::{Finding, at};

/// A row of a table of exceptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What the row is for: a crate, a file, or a file and a name in it.
    pub place: &'static str,
    /// The ceiling.
    pub ceiling: usize,
    /// Why it is above the general limit.
    pub why: &'static str,
}

/// Where the rows lie.
pub const FIGURES: &str = "xtask/src/tables/figures.rs";

/// A kind of figure with its limit and its exceptions.
#[derive(Clone, Copy, Debug)]
pub struct Ceiling {
    /// The table's name in [`FIGURES`].
    pub table: &'static str,
    /// What is counted, as a sentence goes on after the number.
    pub unit: &'static str,
    /// The general limit: what has a figure above it needs a row.
    pub limit: usize,
    /// A row is a multiple of this.
    pub step: usize,
    /// How much a row may exceed the figure's own next multiple of `step`.
    pub slack: usize,
    /// What to do instead of a higher row.
    pub fix: &'static str,
    /// The exceptions.
    pub entries: &'static [Entry],
}

/// The figure of one thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    /// As a row names it.
    pub place: String,
    /// The file to which a finding points, from the root.
    pub path: String,
    /// Further files and folders that it concerns.
    pub others: Vec<String>,
    /// The line there, from 1; 0 for the whole.
    pub line: usize,
    /// The figure.
    pub value: usize,
    /// What else a reader of a finding needs; may be empty.
    pub detail: String,
}

impl Ceiling {
    /// The row that a figure gets today; none where the general limit is enough.
    pub fn row(&self, value: usize) -> Option<usize> {
        (value > self.limit).then(|| value.next_multiple_of(self.step))
    }

    /// The row of a place.
    pub fn entry(&self, place: &str) -> Option<&'static Entry> {
        self.entries.iter().find(|e| e.place == place)
    }

    /// Everything that is above its ceiling, and every row that is higher than it must be. Of several figures with one place the
    /// highest counts.
    pub fn check(&self, figures: &[Figure]) -> Vec<Finding> {
        let Ceiling {
            table,
            unit,
            limit,
            fix,
            ..
        } = self;
        let mut found = Vec::new();
        for f in figures {
            let detail = if f.detail.is_empty() {
                String::new()
            } else {
                format!(" ({})", f.detail)
            };
            let value = f.value;
            match (self.row(value), self.entry(&f.place)) {
                (Some(row), None) => {
                    let text = format!(
                        "{}: {value} {unit}, of at most {limit}{detail}; {fix}, or give it the row {row} with a reason in {table} of {FIGURES}",
                        f.place
                    );
                    found.push(at(&f.path, f.line, text));
                }
                (Some(_), Some(e)) if value > e.ceiling => {
                    let text = format!(
                        "{}: {value} {unit}, of at most {} by its row in {table} of {FIGURES}{detail}; {fix}",
                        f.place, e.ceiling
                    );
                    found.push(at(&f.path, f.line, text));
                }
                _ => {}
            }
        }
        for (i, e) in self.entries.iter().enumerate() {
            let values = figures
                .iter()
                .filter(|f| f.place == e.place)
                .map(|f| f.value);
            let text = match values.max() {
                _ if self.entries[..i].iter().any(|o| o.place == e.place) => {
                    format!("{table} has two rows for {}", e.place)
                }
                _ if e.why.trim().is_empty() => {
                    format!("the row of {} in {table} says no reason", e.place)
                }
                None => format!(
                    "nothing bears out the row of {} in {table}: remove it",
                    e.place
                ),
                Some(v) => match self.row(v) {
                    None => format!(
                        "{} has {v} {unit}, and everything may have {limit}: remove its row in {table}",
                        e.place
                    ),
                    Some(row) if e.ceiling > row + self.slack => format!(
                        "{} has {v} {unit}, and its row in {table} says {}: lower the row to {row}",
                        e.place, e.ceiling
                    ),
                    Some(_) => continue,
                },
            };
            found.push(at(FIGURES, 0, text));
        }
        found
    }

    /// The table with today's figures in the form of [`FIGURES`]; reasons of rows that stay are kept, a new row's is empty.
    pub fn print(&self, figures: &[Figure]) -> String {
        use std::fmt::Write;
        let mut rows: Vec<(&str, usize)> = Vec::new();
        for f in figures {
            let Some(value) = self.row(f.value) else {
                continue;
            };
            // A row within its slack stays as it is, so that refreshing the tables changes what must change.
            let value = match self.entry(&f.place) {
                Some(e) if e.ceiling >= value && e.ceiling <= value + self.slack => e.ceiling,
                _ => value,
            };
            match rows.iter_mut().find(|r| r.0 == f.place) {
                Some(r) => r.1 = r.1.max(value),
                None => rows.push((&f.place, value)),
            }
        }
        rows.sort();
        let mut out = format!("pub const {}: &[Entry] = &[\n", self.table);
        for (place, ceiling) in rows {
            let why = self.entry(place).map_or("", |e| e.why);
            let _ = writeln!(
                out,
                "    Entry {{ place: {place:?}, ceiling: {ceiling}, why: {why:?} }},"
            );
        }
        out.push_str("];\n");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: &[Entry] = &[
        Entry {
            place: "a",
            ceiling: 30,
            why: "it holds much",
        },
        Entry {
            place: "gone",
            ceiling: 30,
            why: "it held much",
        },
    ];

    fn ceiling(entries: &'static [Entry]) -> Ceiling {
        Ceiling {
            table: "T",
            unit: "legs",
            limit: 10,
            step: 10,
            slack: 10,
            fix: "walk",
            entries,
        }
    }

    fn figure(place: &str, value: usize) -> Figure {
        Figure {
            place: place.into(),
            path: format!("{place}.rs"),
            others: Vec::new(),
            line: 7,
            value,
            detail: String::new(),
        }
    }

    fn texts(entries: &'static [Entry], figures: &[Figure]) -> Vec<String> {
        ceiling(entries)
            .check(figures)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn a_figure_above_the_limit_needs_a_row() {
        assert!(texts(&[], &[figure("b", 10)]).is_empty());
        let found = texts(&[], &[figure("b", 11)]);
        assert!(
            found[0].contains("b.rs:7: b: 11 legs, of at most 10; walk"),
            "{found:?}"
        );
        assert!(found[0].contains("the row 20"), "{found:?}");
    }

    #[test]
    fn only_an_edit_raises_a_row_and_a_high_row_is_found() {
        let rows = &ROWS[..1];
        for (value, want) in [
            (31, "at most 30 by its row"),
            (10, "remove its row"),
            (5, "remove its row"),
        ] {
            let found = texts(rows, &[figure("a", value)]);
            assert!(
                found.len() == 1 && found[0].contains(want),
                "{value}: {found:?}"
            );
        }
        // 11 to 20 would get the row 20, and ten more are left alone.
        for value in [11, 20, 30] {
            assert!(texts(rows, &[figure("a", value)]).is_empty(), "{value}");
        }
        const HIGH: &[Entry] = &[Entry {
            place: "a",
            ceiling: 40,
            why: "x",
        }];
        let found = texts(HIGH, &[figure("a", 20)]);
        assert!(found[0].contains("lower the row to 20"), "{found:?}");
    }

    #[test]
    fn a_row_without_a_thing_or_a_reason_or_twice_is_found() {
        let found = texts(ROWS, &[figure("a", 25)]);
        assert!(
            found.len() == 1 && found[0].contains("nothing bears out the row of gone"),
            "{found:?}"
        );
        const BARE: &[Entry] = &[Entry {
            place: "a",
            ceiling: 30,
            why: " ",
        }];
        assert!(texts(BARE, &[figure("a", 25)])[0].contains("says no reason"));
        const TWICE: &[Entry] = &[ROWS[0], ROWS[0]];
        assert!(texts(TWICE, &[figure("a", 25)])[0].contains("two rows for a"));
    }

    #[test]
    fn the_printed_table_keeps_reasons_and_drops_what_is_gone() {
        let text = ceiling(ROWS).print(&[
            figure("b", 12),
            figure("a", 22),
            figure("a", 13),
            figure("c", 1),
        ]);
        assert_eq!(
            text,
            "pub const T: &[Entry] = &[\n    Entry { place: \"a\", ceiling: 30, why: \"it holds much\" },\n    \
             Entry { place: \"b\", ceiling: 20, why: \"\" },\n];\n"
        );
    }
}
