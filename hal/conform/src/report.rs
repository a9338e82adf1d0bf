//! Scorecards: text for a person, JSON (`crossweave.conform/1`) for programs, Markdown for a page. The same run gives the same bytes.

use crate::KIT;
use crate::case::{Case, Effort, Group, Level};
use crate::child::Hello;
use crate::run::{FEW_RANKS, Options, RANKS, list};
use crossweave_abi::DType;
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

/// What a run was asked for, as its report says it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asked {
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
    /// How much was tried.
    pub effort: Effort,
    /// Configuration the plugin was given.
    pub config: BTreeMap<String, String>,
    /// Layers around the plugin.
    pub layers: Vec<String>,
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
    /// How much was tried.
    #[serde(default)]
    pub effort: Effort,
    /// Layers around the plugin.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<String>,
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
        let usual: &[u32] = match o.effort {
            Effort::Quick => &FEW_RANKS,
            _ => &RANKS,
        };
        if o.ranks != usual {
            let _ = write!(again, " --ranks {}", list(&o.ranks));
        }
        if o.seed != 0 {
            let _ = write!(again, " --seed {}", o.seed);
        }
        match o.effort {
            Effort::Quick => again.push_str(" --quick"),
            Effort::Default => {}
            Effort::Big => again.push_str(" --big"),
        }
        if o.launcher.name() != "threads" {
            let _ = write!(again, " --launcher {}", o.launcher.name());
        }
        for l in &o.layers {
            let _ = write!(again, " --layer {l}");
        }
        // What the command sets by itself need not be said again.
        let own = |k: &str, v: &str| k == format!("{}.devices", hello.name) && v == "2";
        for (k, v) in o.config.iter().filter(|(k, v)| !own(k, v)) {
            let _ = write!(again, " --set {k}={v}");
        }
        let env = Env {
            os: std::env::consts::OS.into(),
            arch: std::env::consts::ARCH.into(),
            devices: hello.devices.clone(),
        };
        Report {
            levels,
            perf,
            idle,
            replay: again,
            seconds: took.as_secs_f64(),
            ..Report::kept(KIT, hello, env, o.request(), cells)
        }
    }

    /// A report that was kept as a scorecard, with what its cells make of each level.
    pub(crate) fn kept(
        kit: u32,
        plugin: Hello,
        env: Env,
        asked: Asked,
        cells: Vec<Cell>,
    ) -> Report {
        Report {
            schema: "crossweave.conform/1".into(),
            kit: kit.to_string(),
            plugin,
            env,
            profile: asked.profile,
            level: asked.level,
            ranks: asked.ranks,
            launcher: asked.launcher,
            seed: asked.seed,
            config: asked.config,
            effort: asked.effort,
            layers: asked.layers,
            levels: levels(&cells, true),
            cells,
            perf: vec![],
            idle: vec![],
            replay: String::new(),
            seconds: 0.0,
        }
    }

    /// What the run was asked for.
    pub fn request(&self) -> Asked {
        Asked {
            profile: self.profile.clone(),
            level: self.level.clone(),
            ranks: self.ranks.clone(),
            launcher: self.launcher.clone(),
            seed: self.seed,
            effort: self.effort,
            config: self.config.clone(),
            layers: self.layers.clone(),
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
        // Who computes in place of a device says so by its name, and a card of it is none of a device.
        let named = |word: &str| self.env.devices.iter().any(|d| d.contains(word));
        let label = match (named("SIMULATED"), named("FORWARDED")) {
            (true, _) => "executed against simulator: ",
            (_, true) => "calls forwarded to a device of another vendor: ",
            _ => "",
        };
        format!("{label}{}", rest.join("; "))
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
        let lacking = unclaimed(&self.cells);
        if !lacking.is_empty() {
            let _ = writeln!(t, "not claimed:");
            for (what, types) in lacking {
                let _ = writeln!(t, "  {what:<24} {types}");
            }
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
        let lacking = unclaimed(&self.cells);
        if !lacking.is_empty() {
            t.push_str("\nNot claimed, and refused without side effects:\n\n");
            for (what, types) in lacking {
                let _ = writeln!(t, "- `{what}` {types}");
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
}

/// What is not claimed, by op or collective: all of it, or the types it is not claimed in. Cases about sizes and the like
/// repeat what their cells say.
fn unclaimed(cells: &[Cell]) -> Vec<(String, String)> {
    let names: Vec<&str> = DType::ALL.into_iter().map(DType::name).collect();
    let kind = |c: &Cell| -> Option<(String, String)> {
        let cell = matches!(c.row.as_str(), "op (mandatory)" | "op (fused)" | "coll");
        let mut words = c.id.split('.');
        let (group, what) = (words.next()?, words.next()?);
        let is_type = |w: &&str| {
            let w = w.trim_start_matches("from_").trim_start_matches("of_");
            names.contains(&w.trim_start_matches("with_").trim_start_matches("grad_"))
        };
        let words: Vec<&str> = words.filter(is_type).collect();
        (cell && !words.is_empty()).then(|| (format!("{group}.{what}"), words.join(" ")))
    };
    let mut of: BTreeMap<String, BTreeMap<String, [usize; 2]>> = BTreeMap::new();
    for c in cells {
        if let Some((what, types)) = kind(c) {
            let n = of.entry(what).or_default().entry(types).or_default();
            n[usize::from(c.status == Status::Refused)] += 1;
        }
    }
    let mut all = vec![];
    for (what, types) in of {
        if types.values().all(|n| n[0] == 0) {
            all.push((what, "in no type".into()));
            continue;
        }
        let lacks = types.iter().filter(|(_, n)| n[1] > 0);
        let lacks: Vec<String> = lacks
            .map(|(t, n)| match n[0] {
                0 => t.clone(),
                _ => format!("{t} (in part)"),
            })
            .collect();
        if !lacks.is_empty() {
            all.push((what, lacks.join(", ")));
        }
    }
    all
}

/// Ids of element types in a plugin's words, with their names: `0x508 (f8e4m3)`.
pub(crate) fn named(note: &str) -> String {
    let mut out = String::with_capacity(note.len());
    let mut rest = note;
    while let Some(at) = rest.find("0x") {
        let digits = &rest[at + 2..];
        let n = digits
            .find(|c: char| !c.is_ascii_hexdigit())
            .unwrap_or(digits.len());
        let id = u32::from_str_radix(&digits[..n], 16).ok();
        out.push_str(&rest[..at + 2 + n]);
        if let Some(t) = id.and_then(DType::from_id).filter(|_| n <= 4) {
            out.push_str(&format!(" ({})", t.name()));
        }
        rest = &digits[n..];
    }
    out + rest
}

/// How two scorecards differ, in lines for a person, and whether the second is worse: something that held or was claimed in the
/// first does not or is not in the second.
pub fn diff(a: &Report, b: &Report) -> (String, bool) {
    let of = |r: &Report| -> BTreeMap<String, Cell> {
        let cells = r.cells.iter();
        cells.map(|c| (c.id.clone(), c.clone())).collect()
    };
    let (old, new) = (of(a), of(b));
    let mut t = String::new();
    let mut worse = false;
    let (first, second) = (a.head(), b.head());
    let _ = writeln!(t, "A  {first}\nB  {second}");
    for (id, c) in &new {
        let Some(was) = old.get(id) else { continue };
        if was.status == c.status {
            continue;
        }
        let bad = |s: Status| matches!(s, Status::Fail | Status::Xpass);
        // What is skipped now has nothing to judge any more: a slot or an interface is gone.
        let lost = was.status == Status::Pass && c.status != Status::NotRun;
        worse |= lost || (bad(c.status) && !bad(was.status));
        let (from, to) = (was.status.word(), c.status.word());
        let _ = writeln!(t, "{from:>8} -> {to:<8} {id}   {}", c.note);
    }
    let only = |x: &BTreeMap<String, Cell>, y: &BTreeMap<String, Cell>| {
        x.keys().filter(|id| !y.contains_key(*id)).count()
    };
    for (name, n) in [("A", only(&old, &new)), ("B", only(&new, &old))] {
        if n > 0 {
            let _ = writeln!(t, "{n} cases are in {name} only");
        }
    }
    let failing: Vec<&String> = new
        .iter()
        .filter(|(id, c)| c.status == Status::Fail && !old.contains_key(*id))
        .map(|(id, _)| id)
        .collect();
    for id in failing {
        worse = true;
        let _ = writeln!(t, "     new -> FAIL     {id}   {}", new[id].note);
    }
    let _ = writeln!(
        t,
        "{}",
        match worse {
            true => "B is worse than A",
            false => "nothing that A has is lost in B",
        }
    );
    (t, worse)
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

    fn card(cells: &[(&str, Status)]) -> Report {
        let cells: Vec<_> = cells
            .iter()
            .map(|(id, s)| serde_json::json!({"id": id, "claimed": true, "result": s}))
            .collect();
        let plugin = Hello::default();
        let text = serde_json::json!({
            "schema": "crossweave.conform/1", "kit": KIT.to_string(), "plugin": plugin, "profile": null, "level": "fault", "ranks": [2],
            "env": {"os": "", "arch": "", "devices": []}, "launcher": "threads", "seed": 0, "config": {}, "levels": {},
            "cells": cells,
        });
        serde_json::from_value(text).expect("a scorecard")
    }

    #[test]
    fn a_scorecard_is_worse_when_something_that_held_does_not() {
        use Status::*;
        for (before, after, worse) in [
            (Pass, Pass, false),
            (Pass, Fail, true),
            (Pass, Refused, true),
            // A slot or an interface is gone.
            (Pass, Skip, true),
            // The budget ended the run.
            (Pass, NotRun, false),
            (Refused, Pass, false),
            (Refused, Fail, true),
            (Fail, Fail, false),
            (Fail, Pass, false),
            (Skip, Fail, true),
        ] {
            let (a, b) = (card(&[("mem.map", before)]), card(&[("mem.map", after)]));
            let (text, is) = diff(&a, &b);
            assert_eq!(is, worse, "{before:?} to {after:?}: {text}");
            assert_eq!(text.contains("mem.map"), before != after, "{text}");
        }
        // A case that one of them has not been asked is no loss, and one that is new and fails is.
        let (some, more) = (
            card(&[("mem.map", Pass)]),
            card(&[("mem.map", Pass), ("mem.fill", Fail)]),
        );
        assert!(!diff(&more, &some).1);
        assert!(diff(&some, &more).1);
    }

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
