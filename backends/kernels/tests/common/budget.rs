//! A committed table of what compiled kernels take: a row a kernel, a column an architecture, the figures of a column between slashes.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// What a table is of.
pub struct Form {
    /// Its first line, without the mark of a comment.
    pub title: &'static str,
    pub columns: &'static [&'static str],
    /// Names of the figures. A column whose first figure is 0 says that the kernel is not for that architecture.
    pub figures: &'static [&'static str],
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Bytes of parameters.
    pub params: u32,
    pub columns: Vec<Vec<u32>>,
}

pub type Table = BTreeMap<String, Row>;

impl Form {
    /// A row with no column filled in yet.
    pub fn row(&self) -> Row {
        Row {
            params: 0,
            columns: vec![vec![0; self.figures.len()]; self.columns.len()],
        }
    }

    pub fn write(&self, table: &Table) -> String {
        let mut s = format!("# {}\n", self.title);
        for (name, row) in table {
            let _ = write!(s, "{name}\t{}", row.params);
            for c in &row.columns {
                let words: Vec<String> = c.iter().map(u32::to_string).collect();
                let _ = write!(s, "\t{}", words.join("/"));
            }
            s.push('\n');
        }
        s
    }

    /// The rows that are whole; a damaged one is missing then, which `differences` says.
    pub fn read(&self, text: &str) -> Table {
        let line = |l: &str| {
            let mut words = l.split('\t');
            let name = words.next()?.to_string();
            let params = words.next()?.parse().ok()?;
            let columns: Vec<Vec<u32>> = words
                .map(|w| w.split('/').map(|n| n.parse().ok()).collect())
                .collect::<Option<_>>()?;
            let whole = columns.len() == self.columns.len()
                && columns.iter().all(|c| c.len() == self.figures.len());
            whole.then_some((name, Row { params, columns }))
        };
        let rows = text.lines().filter(|l| !l.starts_with('#'));
        rows.filter_map(line).collect()
    }

    /// The budget of what is compiled: a column of a kernel that is not, by name and number, is left out of it, and so is a kernel that exists
    /// and has no column left.
    pub fn of(
        &self,
        budget: &Table,
        compiled: impl Fn(&str, usize) -> bool,
        exists: impl Fn(&str) -> bool,
    ) -> Table {
        let mut out = budget.clone();
        for (name, row) in &mut out {
            for (column, figures) in row.columns.iter_mut().enumerate() {
                if !compiled(name, column) {
                    figures.fill(0);
                }
            }
        }
        let built = |row: &Row| row.columns.iter().flatten().any(|f| *f > 0);
        out.retain(|name, row| built(row) || !exists(name));
        out
    }

    /// What grew beyond the budget, or is not in it.
    pub fn differences(&self, budget: &Table, found: &Table) -> String {
        let mut s = String::new();
        for (name, now) in found {
            let Some(was) = budget.get(name) else {
                let _ = writeln!(s, "+ {name}: not in the budget");
                continue;
            };
            if was.params != now.params {
                let (w, n) = (was.params, now.params);
                let _ = writeln!(s, "! {name}: parameter bytes {w} -> {n}");
            }
            for (i, arch) in self.columns.iter().enumerate() {
                if was.columns[i][0] > 0 && now.columns[i][0] == 0 {
                    let _ = writeln!(s, "- {name} for {arch}: in the budget, but not built");
                }
                for (f, what) in self.figures.iter().enumerate() {
                    let (was, now) = (was.columns[i][f], now.columns[i][f]);
                    if now > was {
                        let _ = writeln!(s, "+ {name} for {arch}: {what} {was} -> {now}");
                    }
                }
            }
        }
        for name in budget.keys().filter(|n| !found.contains_key(*n)) {
            let _ = writeln!(s, "- {name}: in the budget, but no kernel any more");
        }
        s
    }
}
