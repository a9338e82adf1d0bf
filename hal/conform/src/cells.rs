//! Scorecards as they are committed (`NAME.cells`): a head, a line for each family of cases with the result that most of them have, and a line
//! for each case that differs. With the kit's registry every case's claim and result follow.
//!
//! ```text
//! crossweave.cells/1
//! kit 7
//! abi 0
//! cases 2402
//! differ 540
//! not-run 0
//! plugin {"name":"cpu",…}
//! env {"os":"linux",…}
//! asked {"ranks":[1,2],…}
//!
//! mem.copy 3 9f86d081 pass
//! op.cast 392 60303ae2 pass
//!   op.cast.i8.from_f8e4m3 refused
//! fault.points 4 fd61a03a skip the plugin passes no fault point
//! ```
//!
//! A family is the first two words of an id. Behind it stand the number of its cases and the first eight digits of the SHA-256 of their ids, so
//! that a case cannot come or go unseen. A case of a newer kit is not run; one whose meaning a newer kit has changed is behind. Words are kept
//! for what neither holds nor is refused. `claimed` follows from the result, and is said where it does not (`fail-unclaimed`).

use crate::KIT;
use crate::case::{Case, Level, Profile, selected};
use crate::child::Hello;
use crate::report::{Asked, Cell, Env, Report, Status, levels};
use crossweave_abi::ABI_MINOR;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;

/// The first line.
pub const FORM: &str = "crossweave.cells/1";
/// What to do about a card that this kit cannot complete.
const ANEW: &str = "make the card anew with ci/scorecards NAME";

/// Something wrong with a card, at a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {what}; fix: {fix}")]
pub struct CardError {
    /// The file, as the caller named it.
    pub file: String,
    /// From 1.
    pub line: usize,
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub fix: String,
}

/// A card that was read.
#[derive(Clone, Debug)]
pub struct Card {
    /// The report that it keeps, with the cells that were met, in the order of the registry.
    pub report: Report,
    /// The minor of the ABI for which it was made.
    pub abi: u32,
    /// Cases that it has not met: of a newer kit, or left out when it was made.
    pub not_run: Vec<String>,
    /// Cases that it met in another meaning.
    pub changed: Vec<String>,
    /// Why it is behind this kit, if it is.
    pub behind: Vec<CardError>,
}

impl Card {
    /// Ids of the cases that make it whole: those not run and those that changed.
    pub fn rest(&self) -> Vec<String> {
        [self.not_run.as_slice(), &self.changed].concat()
    }

    /// Would a run that is asked for this complete the card?
    ///
    /// # Errors
    /// A card of another minor of the ABI, of which every case counts anew, or a run that is asked for something else, in words.
    pub fn accepts(&self, run: &Asked) -> Result<(), String> {
        if self.abi != ABI_MINOR {
            return Err(other_abi(self.abi));
        }
        // Where compiled kernels are kept changes with the kernels.
        let named = |asked: &Asked| {
            let mut asked = asked.clone();
            asked.config.retain(|k, _| !k.ends_with(".cache_dir"));
            asked
        };
        let (before, now) = (named(&self.report.request()), named(run));
        if before == now {
            return Ok(());
        }
        Err(format!(
            "the card was made with {}, this run with {}",
            one_line(&before),
            one_line(&now)
        ))
    }

    /// The report of all cases, of which a later run tried those that were missing.
    ///
    /// # Errors
    /// A run of another plugin or that was asked for something else, in words.
    pub fn with(self, mut later: Report) -> Result<Report, String> {
        self.accepts(&later.request())?;
        let (before, now) = (&self.report.plugin, &later.plugin);
        if (&before.name, before.minor) != (&now.name, now.minor) {
            return Err(format!(
                "the card is of {} (ABI 1.{}), this run of {} (ABI 1.{})",
                before.name, before.minor, now.name, now.minor
            ));
        }
        let met: BTreeSet<String> = later.cells.iter().map(|c| c.id.clone()).collect();
        let mut cells = later.cells.clone();
        let kept = |c: &Cell| !met.contains(&c.id);
        cells.extend(self.report.cells.into_iter().filter(kept));
        let order = cases(&later.request()).unwrap_or_default();
        let place: HashMap<&str, usize> = order.iter().map(|c| c.id.as_str()).zip(0..).collect();
        cells.sort_by_key(|c| place.get(c.id.as_str()).copied());
        later.levels = levels(&cells, true);
        later.cells = cells;
        Ok(later)
    }
}

fn other_abi(abi: u32) -> String {
    format!("the card was made for ABI 1.{abi}, and this is ABI 1.{ABI_MINOR}")
}

/// The cases that a run is asked, or why there is no such run.
fn cases(asked_for: &Asked) -> Result<Vec<Case>, String> {
    let level = Level::ALL.into_iter().find(|l| l.name() == asked_for.level);
    let level = level.ok_or_else(|| format!("there is no level {:?}", asked_for.level))?;
    let profile = match &asked_for.profile {
        None => None,
        Some(name) => {
            Some(Profile::by_name(name).ok_or_else(|| format!("there is no profile {name:?}"))?)
        }
    };
    let mut all = selected(&asked_for.ranks, asked_for.effort, level, profile);
    // Measurements are no claims.
    all.retain(|c| Level::of(c.group()) != Level::Perf);
    Ok(all)
}

/// The first two words of an id.
fn family(id: &str) -> &str {
    let words = if id.starts_with("draft.") { 3 } else { 2 };
    let end = id.match_indices('.').nth(words - 1);
    end.map_or(id, |(at, _)| &id[..at])
}

/// Families in the order of their first case, each with its cases.
fn families(cases: &[Case]) -> Vec<(&str, Vec<&Case>)> {
    let mut all: Vec<(&str, Vec<&Case>)> = Vec::new();
    let mut place: HashMap<&str, usize> = HashMap::new();
    for c in cases {
        let name = family(&c.id);
        let at = *place.entry(name).or_insert_with(|| {
            all.push((name, Vec::new()));
            all.len() - 1
        });
        all[at].1.push(c);
    }
    all
}

/// Stands for the ids of these cases.
fn digest(cases: &[&Case]) -> String {
    let mut of = Sha256::new();
    for c in cases {
        of.update(c.id.as_bytes());
        of.update(b"\n");
    }
    of.finalize()[..4]
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

/// Results by the word that a line has for them.
const WORDS: [(Status, &str); 8] = [
    (Status::Pass, "pass"),
    (Status::Fail, "fail"),
    (Status::Xfail, "xfail"),
    (Status::Xpass, "xpass"),
    (Status::Refused, "refused"),
    (Status::Skip, "skip"),
    (Status::Draft, "draft"),
    (Status::NotRun, "notrun"),
];

/// What a line says of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ending {
    status: Status,
    claimed: bool,
    note: String,
}

impl Ending {
    const NOT_RUN: Ending = Ending {
        status: Status::NotRun,
        claimed: false,
        note: String::new(),
    };

    fn of(c: &Cell) -> Ending {
        Ending {
            status: c.status,
            claimed: c.claimed,
            note: match c.status {
                Status::Pass | Status::Refused => String::new(),
                _ => c.note.clone(),
            },
        }
    }

    /// What is claimed where nothing is said of it.
    fn usual_claim(status: Status) -> bool {
        !matches!(status, Status::Refused | Status::Skip | Status::NotRun)
    }

    fn text(&self) -> String {
        let word = WORDS.iter().find(|w| w.0 == self.status);
        let mut text = word.map_or("", |w| w.1).to_string();
        if self.claimed != Ending::usual_claim(self.status) {
            text.push_str(if self.claimed {
                "-claimed"
            } else {
                "-unclaimed"
            });
        }
        if !self.note.is_empty() {
            let note = self.note.replace('\\', "\\\\").replace('\n', "\\n");
            text.push(' ');
            text.push_str(&note.replace('\r', "\\r"));
        }
        text
    }

    fn read(text: &str) -> Option<Ending> {
        let (word, note) = text.split_once(' ').unwrap_or((text, ""));
        let (word, claimed) = match word.split_once('-') {
            None => (word, None),
            Some((word, "claimed")) => (word, Some(true)),
            Some((word, "unclaimed")) => (word, Some(false)),
            Some(_) => return None,
        };
        let status = WORDS.iter().find(|w| w.1 == word)?.0;
        Some(Ending {
            status,
            claimed: claimed.unwrap_or(Ending::usual_claim(status)),
            note: unescaped(note),
        })
    }
}

fn unescaped(note: &str) -> String {
    let mut out = String::new();
    let mut rest = note.chars();
    while let Some(c) = rest.next() {
        out.push(match c {
            '\\' => match rest.next() {
                Some('n') => '\n',
                Some('r') => '\r',
                other => other.unwrap_or('\\'),
            },
            c => c,
        });
    }
    out
}

fn one_line<T: Serialize>(value: &T) -> String {
    // Plain data: numbers, text and lists.
    serde_json::to_string(value).unwrap_or_default()
}

/// A report as a card. Cases of its level that it lacks are not run; measurements are left out.
///
/// # Errors
/// A report of no level or profile of this kit, in words.
pub fn write(report: &Report) -> Result<String, String> {
    let cases = cases(&report.request())?;
    let met: HashMap<&str, &Cell> = report.cells.iter().map(|c| (c.id.as_str(), c)).collect();
    let ending = |c: &&Case| match met.get(c.id.as_str()) {
        Some(cell) => Ending::of(cell),
        None => Ending::NOT_RUN,
    };
    let mut lines = String::new();
    let (mut differ, mut not_run) = (0, 0);
    for (name, cases) in families(&cases) {
        let endings: Vec<Ending> = cases.iter().map(ending).collect();
        not_run += endings
            .iter()
            .filter(|e| e.status == Status::NotRun)
            .count();
        let count = |e: &Ending| endings.iter().filter(|o| *o == e).count();
        // The first of those that most have, so that a card has one form.
        let most = endings.iter().map(count).max().unwrap_or(0);
        let Some(usual) = endings.iter().find(|e| count(e) == most) else {
            continue;
        };
        let (n, digest) = (cases.len(), digest(&cases));
        let _ = writeln!(lines, "{name} {n} {digest} {}", usual.text());
        for (c, e) in cases.iter().zip(&endings).filter(|(_, e)| *e != usual) {
            differ += 1;
            let _ = writeln!(lines, "  {} {}", c.id, e.text());
        }
    }
    Ok(format!(
        "{FORM}\nkit {KIT}\nabi {ABI_MINOR}\ncases {}\ndiffer {differ}\nnot-run {not_run}\nplugin {}\nenv {}\nasked {}\n\n{lines}",
        cases.len(),
        one_line(&report.plugin),
        one_line(&report.env),
        one_line(&report.request()),
    ))
}

/// The lines of a card that are still to be read.
struct Lines<'a> {
    file: &'a str,
    left: std::iter::Zip<std::str::Lines<'a>, std::ops::RangeFrom<usize>>,
    at: usize,
}

impl<'a> Lines<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let (line, at) = self.left.next()?;
        self.at = at;
        Some(line)
    }

    fn wrong(&self, what: impl Into<String>, fix: &str) -> CardError {
        CardError {
            file: self.file.to_string(),
            line: self.at.max(1),
            what: what.into(),
            fix: fix.to_string(),
        }
    }

    /// The value of the next line of the head.
    fn head<T: DeserializeOwned>(&mut self, key: &str) -> Result<T, CardError> {
        let line = self.next().unwrap_or_default();
        let value = line.strip_prefix(key).and_then(|v| v.strip_prefix(' '));
        let value = value.ok_or_else(|| {
            self.wrong(
                format!("{key:?} and its value stand here, not {line:?}"),
                ANEW,
            )
        })?;
        serde_json::from_str(value).map_err(|e| self.wrong(format!("{key}: {e}"), ANEW))
    }
}

/// What a card says of its cases: of each family the line, and of each case that differs.
#[derive(Default)]
struct Body {
    families: HashMap<String, (usize, Ending)>,
    cases: HashMap<String, (usize, Ending)>,
}

/// The lines of a card before those of its families.
struct Head {
    kit: u32,
    abi: u32,
    behind: Vec<CardError>,
    /// Cases, lines that differ and cases not run, and the line at which they end.
    counted: [usize; 3],
    at_counts: usize,
    plugin: Hello,
    env: Env,
    asked: Asked,
}

impl Head {
    fn read(lines: &mut Lines<'_>) -> Result<Head, CardError> {
        if lines.next() != Some(FORM) {
            let what = format!("this is no scorecard: its first line is not {FORM}");
            return Err(lines.wrong(
                what,
                "give a file that `crossweave conform --report NAME.cells` has written",
            ));
        }
        let kit: u32 = lines.head("kit")?;
        if kit > KIT {
            let what = format!("the card is of kit {kit}, and this is kit {KIT}");
            return Err(lines.wrong(
                what,
                "read it with the program that made it, or a newer one",
            ));
        }
        let mut behind = Vec::new();
        let abi: u32 = lines.head("abi")?;
        if abi != ABI_MINOR {
            behind.push(lines.wrong(other_abi(abi), ANEW));
        }
        let counted = [
            lines.head("cases")?,
            lines.head("differ")?,
            lines.head("not-run")?,
        ];
        Ok(Head {
            kit,
            abi,
            behind,
            counted,
            at_counts: lines.at,
            plugin: lines.head("plugin")?,
            env: lines.head("env")?,
            asked: lines.head("asked")?,
        })
    }
}

/// Reads a card; `file` is how errors call it.
///
/// # Errors
/// A form or a kit that is not known, an id that no case has, two lines for one case, a family whose cases are not those of this kit, with the
/// line. What is only behind is in [`Card::behind`].
pub fn read(file: &str, text: &str) -> Result<Card, CardError> {
    let mut lines = Lines {
        file,
        left: text.lines().zip(1..),
        at: 0,
    };
    let head = Head::read(&mut lines)?;
    let cases = cases(&head.asked).map_err(|e| lines.wrong(e, ANEW))?;
    read_cells(lines, head, cases)
}

/// Reads what stands behind the head, of a run that would have these cases now.
fn read_cells(mut lines: Lines<'_>, head: Head, cases: Vec<Case>) -> Result<Card, CardError> {
    let of_card: Vec<(&str, Vec<&Case>)> = families(&cases)
        .into_iter()
        .map(|(name, mut all)| {
            all.retain(|c| c.since <= head.kit);
            (name, all)
        })
        .filter(|(_, all)| !all.is_empty())
        .collect();
    let body = read_body(&mut lines, head.kit, &cases, &of_card)?;
    let all: usize = of_card.iter().map(|f| f.1.len()).sum();
    let differ = body.cases.len();
    let (kit, counted, at_counts) = (head.kit, head.counted, head.at_counts);
    let mut card = Card {
        report: Report::kept(kit, head.plugin, head.env, head.asked, vec![]),
        abi: head.abi,
        not_run: vec![],
        changed: vec![],
        behind: head.behind,
    };
    let mut met = cells_of(&mut lines, &mut card, kit, &body, &of_card)?;
    let found = [all, differ, all - met.len()];
    if found != counted {
        lines.at = at_counts;
        let what = format!(
            "the head counts {counted:?} cases, lines that differ and cases not run, and there are {found:?}: the card is cut off, or edited"
        );
        return Err(lines.wrong(what, ANEW));
    }
    for c in cases {
        match met.remove(&c.id) {
            Some(cell) => card.report.cells.push(cell),
            None => card.not_run.push(c.id),
        }
    }
    card.report.levels = levels(&card.report.cells, true);
    Ok(card)
}

/// The cells that the lines make, by id; what a newer kit judges in another way is noted in the card.
fn cells_of(
    lines: &mut Lines<'_>,
    card: &mut Card,
    kit: u32,
    body: &Body,
    of_card: &[(&str, Vec<&Case>)],
) -> Result<HashMap<String, Cell>, CardError> {
    let profile = card.report.profile.as_deref().and_then(Profile::by_name);
    let mut met = HashMap::new();
    for (name, all) in of_card {
        let Some(usual) = body.families.get(*name) else {
            let what = format!("the card ends without a line for {name}");
            return Err(lines.wrong(what, ANEW));
        };
        for c in all {
            let (at, e) = body.cases.get(&c.id).unwrap_or(usual);
            if e.status == Status::NotRun {
                continue;
            }
            if c.version > kit {
                lines.at = *at;
                let what = format!(
                    "{} is judged in another way since kit {}, and the card is of kit {kit}",
                    c.id, c.version
                );
                let fix = "try it again with ci/scorecards NAME --rest";
                card.behind.push(lines.wrong(what, fix));
                card.changed.push(c.id.clone());
            }
            let cell = Cell {
                id: c.id.clone(),
                row: c.row.into(),
                ranks: c.ranks,
                demanded: profile.is_some_and(|p| c.demanded.by(p)),
                claimed: e.claimed,
                status: e.status,
                note: e.note.clone(),
                bound: None,
                error: None,
            };
            met.insert(c.id.clone(), cell);
        }
    }
    Ok(met)
}

/// The lines behind the head, each held against the cases that this kit has and those that the card's kit had.
fn read_body(
    lines: &mut Lines<'_>,
    kit: u32,
    cases: &[Case],
    of_card: &[(&str, Vec<&Case>)],
) -> Result<Body, CardError> {
    let known: HashMap<&str, &Case> = cases.iter().map(|c| (c.id.as_str(), c)).collect();
    let mut body = Body::default();
    let mut family_now = "";
    while let Some(line) = lines.next() {
        if line.is_empty() {
            continue;
        }
        let unread =
            "a line is FAMILY CASES DIGEST RESULT [WORDS], or two spaces and ID RESULT [WORDS]";
        if let Some(line) = line.strip_prefix("  ") {
            let (id, rest) = line.split_once(' ').unwrap_or((line, ""));
            let Some(case) = known.get(id) else {
                let what = format!(
                    "no case of kit {KIT} has the id {id:?} in a run that was asked for this"
                );
                return Err(lines.wrong(what, "take the line out if the case is gone, and make the card anew with ci/scorecards NAME"));
            };
            if case.since > kit {
                let what = format!(
                    "{id} came with kit {}, and the card is of kit {kit}",
                    case.since
                );
                return Err(lines.wrong(what, ANEW));
            }
            if family(id) != family_now {
                let what = format!("{id} stands below the family {family_now:?}");
                return Err(lines.wrong(what, "put it below the line of its own family"));
            }
            let ending = Ending::read(rest)
                .ok_or_else(|| lines.wrong(format!("{rest:?} is no result"), unread))?;
            if let Some((first, _)) = body.cases.insert(id.to_string(), (lines.at, ending)) {
                let what = format!("{id} has two lines, the first is line {first}");
                return Err(lines.wrong(what, "keep one of them"));
            }
            continue;
        }
        let mut words = line.splitn(4, ' ');
        let (name, n, hash, rest) = (words.next(), words.next(), words.next(), words.next());
        let ending = rest.and_then(Ending::read);
        let (Some(name), Some(n), Some(hash), Some(ending)) = (name, n, hash, ending) else {
            return Err(lines.wrong(format!("{line:?} is not understood"), unread));
        };
        let Some((name, all)) = of_card.iter().find(|f| f.0 == name) else {
            let what = format!(
                "no case of kit {kit} belongs to the family {name:?} in a run that was asked for this"
            );
            return Err(lines.wrong(what, ANEW));
        };
        if n != all.len().to_string() || hash != digest(all) {
            let what = format!(
                "{name} had {n} cases when the card was made, and has {} of kit {kit} now, or others: a case is gone, or came without `since`",
                all.len()
            );
            return Err(lines.wrong(what, "say `since` of the case that came; for one that is gone make the card anew with ci/scorecards NAME"));
        }
        if let Some((first, _)) = body.families.insert(name.to_string(), (lines.at, ending)) {
            let what = format!("{name} has two lines, the first is line {first}");
            return Err(lines.wrong(what, "keep one of them"));
        }
        family_now = name;
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A card of this kit on which every case passes.
    fn card() -> String {
        let asked = Asked {
            profile: None,
            level: "abi".into(),
            ranks: vec![2],
            launcher: "threads".into(),
            seed: 0,
            effort: crate::Effort::Quick,
            config: Default::default(),
            layers: vec![],
        };
        let env = Env {
            os: String::new(),
            arch: String::new(),
            devices: vec![],
        };
        let cell = |c: Case| Cell {
            id: c.id,
            row: c.row.into(),
            ranks: c.ranks,
            demanded: false,
            claimed: true,
            status: Status::Pass,
            note: String::new(),
            bound: None,
            error: None,
        };
        let cells = cases(&asked).unwrap().into_iter().map(cell).collect();
        write(&Report::kept(KIT, Hello::default(), env, asked, cells)).unwrap()
    }

    /// Reads it by a registry that is changed.
    fn read_by(change: impl Fn(&mut Vec<Case>)) -> Result<Card, CardError> {
        let text = card();
        let mut lines = Lines {
            file: "a.cells",
            left: text.lines().zip(1..),
            at: 0,
        };
        let head = Head::read(&mut lines)?;
        let mut cases = cases(&head.asked).unwrap();
        change(&mut cases);
        read_cells(lines, head, cases)
    }

    fn new_case(id: &str) -> Case {
        Case::new(id, |_| crate::case::pass())
    }

    #[test]
    fn a_case_of_a_newer_kit_is_not_run_and_says_so() {
        let whole = read_by(|_| ()).unwrap();
        assert_eq!((whole.rest(), whole.behind), (vec![], vec![]));
        // In a family that is there, and in one of its own.
        let card = read_by(|all| {
            all.insert(1, new_case("abi.file.of_tomorrow").since(KIT + 1));
            all.push(new_case("life.tomorrow").since(KIT + 1));
        });
        let card = card.unwrap();
        assert_eq!(card.not_run, ["abi.file.of_tomorrow", "life.tomorrow"]);
        assert_eq!(card.report.cells.len(), whole.report.cells.len());
        assert_eq!(card.behind, []);
        assert_eq!(card.report.levels["abi"], "pass");
    }

    #[test]
    fn a_case_that_is_judged_in_another_way_is_behind_until_it_is_tried_again() {
        let card = read_by(|all| {
            let one = all.remove(0);
            all.insert(0, one.judged_since(KIT + 1));
        });
        let card = card.unwrap();
        let first = card.report.cells[0].id.clone();
        assert_eq!(card.rest(), [first.as_str()]);
        let said = card.behind[0].to_string();
        assert!(said.starts_with("a.cells:11: "), "{said}");
        assert!(said.contains(&first) && said.contains("--rest"), "{said}");
    }

    #[test]
    fn a_case_cannot_come_or_go_unseen() {
        for wrong in [
            read_by(|all| all.insert(1, new_case("abi.file.of_today"))),
            read_by(|all| {
                all.remove(0);
            }),
            read_by(|all| {
                let at = all.iter().position(|c| c.id.starts_with("abi.file."));
                all[at.unwrap()].id.push('x');
            }),
        ] {
            let e = wrong.unwrap_err();
            assert!(e.line >= 11 && e.fix.contains("anew"), "{e}");
        }
    }
}
