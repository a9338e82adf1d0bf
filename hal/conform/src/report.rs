//! Scorecards: text for a person, JSON (`crossweave.conform/1`) for programs, Markdown for a page. The same run gives the same bytes.

use crate::KIT;
use crate::case::{Case, Group, Level};
use crate::child::Hello;
use crate::run::{Options, list};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// How a case ended, with expectations applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// The claim holds.
    Pass,
    /// It does not.
    Fail,
    /// It does not, as is known.
    Xfail,
    /// It does, against the list.
    Xpass,
    /// Not claimed, and refused as it must be.
    Refused,
    /// Nothing to judge.
    Skip,
    /// A draft that does not hold.
    Draft,
    /// The budget was spent before.
    NotRun,
}

impl Status {
    /// As the report spells it.
    pub fn word(self) -> &'static str {
        match self {
            Status::Pass => "PASS",
            Status::Fail => "FAIL",
            Status::Xfail => "XFAIL",
            Status::Xpass => "XPASS",
            Status::Refused => "REFUSED",
            Status::Skip => "SKIP",
            Status::Draft => "DRAFT",
            Status::NotRun => "NOTRUN",
        }
    }
}

/// One case's line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// The case.
    pub id: String,
    /// Its row of the table.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub row: String,
    /// Ranks it ran on.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ranks: Option<u32>,
    /// Does the profile demand it?
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub demanded: bool,
    /// Does the plugin claim it?
    pub claimed: bool,
    /// How it ended.
    #[serde(rename = "result")]
    pub status: Status,
    /// In words.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub note: String,
    /// The bound it was held to.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bound: Option<String>,
    /// The worst error, as a part of the bound.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<f64>,
}

impl Cell {
    pub(crate) fn not_run(case: &Case, why: &str) -> Cell {
        Cell {
            id: case.id.clone(),
            row: case.row.into(),
            ranks: case.ranks,
            demanded: false,
            claimed: false,
            status: Status::NotRun,
            note: why.into(),
            bound: None,
            error: None,
        }
    }
}

/// Where it ran.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Env {
    /// The system.
    pub os: String,
    /// The processor's family.
    pub arch: String,
    /// Devices of the plugin.
    pub devices: Vec<String>,
}

/// A run's result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// `crossweave.conform/1`.
    pub schema: String,
    /// The kit's version.
    pub kit: String,
    /// What was tested.
    pub plugin: Hello,
    /// Where.
    pub env: Env,
    /// What had to be claimed.
    pub profile: Option<String>,
    /// How far the run went.
    pub level: String,
    /// Numbers of ranks.
    pub ranks: Vec<u32>,
    /// Who started them.
    pub launcher: String,
    /// The seed.
    pub seed: u64,
    /// Configuration the plugin was given.
    pub config: BTreeMap<String, String>,
    /// Per level: `pass`, `fail`, `incomplete` (not all was run), `partial` (not all was asked for) or `not judged`.
    pub levels: BTreeMap<String, String>,
    /// Every case.
    pub cells: Vec<Cell>,
    /// Measurements (level `perf`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub perf: Vec<Cell>,
    /// Entries of the list of expectations that meet no case.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub idle: Vec<String>,
    #[serde(skip)]
    replay: String,
    #[serde(skip)]
    seconds: f64,
}

impl Report {
    pub(crate) fn new(
        o: &Options,
        hello: Hello,
        cells: Vec<Cell>,
        idle: Vec<String>,
        took: Duration,
    ) -> Report {
        let whole = o.only.is_empty() && o.replay.is_none();
        let levels = levels(&cells, whole);
        let (perf, cells) = cells
            .into_iter()
            .partition(|c| Group::of(&c.id) == Some(Group::Perf));
        let mut again = format!("crossweave conform {}", o.target.text());
        if o.ranks != [1, 2, 3, 4, 8] {
            let _ = write!(again, " --ranks {}", list(&o.ranks));
        }
        if o.seed != 0 {
            let _ = write!(again, " --seed {}", o.seed);
        }
        if o.big {
            again.push_str(" --big");
        }
        if o.launcher.name() != "threads" {
            let _ = write!(again, " --launcher {}", o.launcher.name());
        }
        // What the command sets by itself need not be said again.
        let own = |k: &str, v: &str| k == format!("{}.devices", hello.name) && v == "2";
        for (k, v) in o.config.iter().filter(|(k, v)| !own(k, v)) {
            let _ = write!(again, " --set {k}={v}");
        }
        Report {
            schema: "crossweave.conform/1".into(),
            kit: KIT.into(),
            env: Env {
                os: std::env::consts::OS.into(),
                arch: std::env::consts::ARCH.into(),
                devices: hello.devices.clone(),
            },
            plugin: hello,
            profile: o.profile.map(|p| p.name().into()),
            level: o.level.name().into(),
            ranks: o.ranks.clone(),
            launcher: o.launcher.name().into(),
            seed: o.seed,
            config: o.config.clone(),
            levels,
            cells,
            perf,
            idle,
            replay: again,
            seconds: took.as_secs_f64(),
        }
    }

    /// 0 everything claimed holds, 1 a claim fails, 3 not all was run, 4 an unexpected pass.
    pub fn exit_code(&self) -> u8 {
        let any = |s: Status| self.cells.iter().any(|c| c.status == s);
        if any(Status::Fail) {
            1
        } else if any(Status::Xpass) {
            4
        } else if any(Status::NotRun) {
            3
        } else {
            0
        }
    }

    /// The rows of the table: name and count by status.
    fn rows(&self) -> Vec<(&str, [usize; 5])> {
        let mut rows: Vec<(&str, [usize; 5])> = Vec::new();
        for c in &self.cells {
            let at = match rows.iter().position(|r| r.0 == c.row) {
                Some(i) => i,
                None => {
                    rows.push((&c.row, [0; 5]));
                    rows.len() - 1
                }
            };
            let row = &mut rows[at].1;
            row[0] += usize::from(c.claimed);
            match c.status {
                Status::Pass => row[1] += 1,
                Status::Fail | Status::Xpass => row[2] += 1,
                Status::Xfail | Status::Draft => row[3] += 1,
                Status::Refused => row[4] += 1,
                Status::Skip | Status::NotRun => {}
            }
        }
        rows
    }

    fn count(&self, s: Status) -> usize {
        self.cells.iter().filter(|c| c.status == s).count()
    }

    fn head(&self) -> String {
        let devices = match self.env.devices.as_slice() {
            [] => "no device".into(),
            [one] => one.clone(),
            many => format!("{} x {}", many.len(), many[0]),
        };
        format!(
            "{} {}   ABI 1.{}   {devices}   ranks {} ({})   seed {}   kit {}   {}",
            self.plugin.name,
            self.plugin.version,
            self.plugin.minor,
            list(&self.ranks),
            self.launcher,
            self.seed,
            self.kit,
            match &self.profile {
                Some(p) => format!("profile {p}"),
                None => "no profile: only what is claimed".into(),
            }
        )
    }

    fn verdict(&self) -> String {
        let mut good = vec![];
        let mut rest = vec![];
        for l in Level::ALL.map(Level::name) {
            match self.levels.get(l).map(String::as_str) {
                None => {}
                Some("pass") => good.push(l),
                Some("fail") => rest.push(format!("{l} NOT conformant")),
                Some("partial") => rest.push(format!("{l} looked at in part, and no claim fails")),
                Some(word) => rest.push(format!("{l} {word}")),
            }
        }
        if !good.is_empty() {
            rest.insert(0, format!("{} conformant", good.join(", ")));
        }
        rest.join("; ")
    }

    /// For a person.
    pub fn text(&self) -> String {
        let mut t = format!("{}\n", self.head());
        let _ = writeln!(
            t,
            "{:<22}{:>8}{:>7}{:>7}{:>7}{:>9}",
            "", "claimed", "pass", "fail", "xfail", "refused"
        );
        for (name, [claimed, pass, fail, xfail, refused]) in self.rows() {
            let _ = writeln!(
                t,
                "{name:<22}{claimed:>8}{pass:>7}{fail:>7}{xfail:>7}{refused:>9}"
            );
        }
        for c in &self.cells {
            match c.status {
                Status::Fail | Status::Xpass => {
                    let again = format!("{} --replay {}", self.replay, c.id);
                    let _ = writeln!(
                        t,
                        "{} {}   {}\n      replay: {again}",
                        c.status.word(),
                        c.id,
                        c.note
                    );
                }
                Status::Draft | Status::Xfail => {
                    let _ = writeln!(t, "{} {}   {}", c.status.word(), c.id, c.note);
                }
                _ => {}
            }
        }
        for c in &self.perf {
            let _ = writeln!(t, "perf  {:<34} {}", c.id, c.note);
        }
        for p in &self.idle {
            let _ = writeln!(t, "note: the expectation for {p:?} meets no case");
        }
        let _ = writeln!(
            t,
            "{} passed, {} failed, {} refused as they must be, {} skipped, {} not run, {:.1} s",
            self.count(Status::Pass),
            self.count(Status::Fail) + self.count(Status::Xpass),
            self.count(Status::Refused),
            self.count(Status::Skip),
            self.count(Status::NotRun),
            self.seconds
        );
        let _ = writeln!(t, "LEVEL: {}", self.verdict());
        t
    }

    /// For programs.
    pub fn json(&self) -> String {
        // A report is plain data: numbers, text and lists.
        let mut t = serde_json::to_string_pretty(self).unwrap_or_default();
        t.push('\n');
        t
    }

    /// For a page.
    pub fn markdown(&self) -> String {
        let p = &self.plugin;
        let mut t = format!("# Conformance of {} {}\n\n", p.name, p.version);
        let _ = writeln!(t, "{}\n", self.head());
        let _ = writeln!(t, "Interfaces: {}.\n", p.interfaces.join(", "));
        t.push_str(
            "| | claimed | pass | fail | xfail | refused as it must |\n|---|---|---|---|---|---|\n",
        );
        for (name, [claimed, pass, fail, xfail, refused]) in self.rows() {
            let _ = writeln!(
                t,
                "| {name} | {claimed} | {pass} | {fail} | {xfail} | {refused} |"
            );
        }
        let _ = writeln!(t, "\n**Level: {}**", self.verdict());
        let listed: Vec<&Cell> = self
            .cells
            .iter()
            .filter(|c| !matches!(c.status, Status::Pass | Status::Refused | Status::Skip))
            .collect();
        if !listed.is_empty() {
            t.push_str("\n| case | | |\n|---|---|---|\n");
            for c in listed {
                let _ = writeln!(
                    t,
                    "| `{}` | {} | {} |",
                    c.id,
                    c.status.word(),
                    cell_text(&c.note)
                );
            }
        }
        let refused = self.refused_by_family();
        if !refused.is_empty() {
            t.push_str("\nNot claimed, and refused without side effects:\n\n");
            for (family, n) in refused {
                let _ = writeln!(t, "- `{family}` ({n})");
            }
        }
        if !self.perf.is_empty() {
            t.push_str("\n| measured | |\n|---|---|\n");
            for c in &self.perf {
                let _ = writeln!(t, "| `{}` | {} |", c.id, cell_text(&c.note));
            }
        }
        t
    }

    /// Ids of refused cells by their first three words.
    fn refused_by_family(&self) -> BTreeMap<String, usize> {
        let mut m = BTreeMap::new();
        for c in self.cells.iter().filter(|c| c.status == Status::Refused) {
            let words: Vec<&str> = c.id.split('.').take(3).collect();
            *m.entry(words.join(".")).or_insert(0) += 1;
        }
        m
    }
}

/// What the cells make of each level that they belong to; `whole` = none of its cases was left out. Skipped cells judge nothing.
pub fn levels(cells: &[Cell], whole: bool) -> BTreeMap<String, String> {
    let mut of: BTreeMap<&str, Vec<Status>> = BTreeMap::new();
    for c in cells {
        if let Some(g) = Group::of(&c.id).filter(|g| *g != Group::Perf) {
            of.entry(Level::of(g).name()).or_default().push(c.status);
        }
    }
    let word = |all: &[Status]| match all {
        s if s.iter().any(|s| matches!(s, Status::Fail | Status::Xpass)) => "fail",
        s if s.contains(&Status::NotRun) => "incomplete",
        s if s.iter().all(|s| *s == Status::Skip) => "not judged",
        _ if !whole => "partial",
        _ => "pass",
    };
    let each = of.iter().map(|(l, s)| (l.to_string(), word(s).into()));
    each.collect()
}

/// Text that does not end a cell of a table.
fn cell_text(s: &str) -> String {
    s.replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_what_its_judged_cells_make_of_it() {
        let word = |statuses: &[Status], whole: bool| {
            let cell = |status: &Status| Cell {
                id: "coll.x".into(),
                row: "coll".into(),
                ranks: None,
                demanded: false,
                claimed: false,
                status: *status,
                note: String::new(),
                bound: None,
                error: None,
            };
            let cells: Vec<Cell> = statuses.iter().map(cell).collect();
            levels(&cells, whole)["coll"].clone()
        };
        use Status::*;
        assert_eq!(word(&[Skip, Skip], true), "not judged");
        assert_eq!(word(&[Skip, Refused], true), "pass");
        assert_eq!(word(&[Skip, Pass], false), "partial");
        assert_eq!(word(&[Pass, NotRun], false), "incomplete");
        assert_eq!(word(&[NotRun, Xpass], true), "fail");
        assert!(levels(&[], true).is_empty());
    }
}
