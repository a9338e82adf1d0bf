//! What may change of the ABI, and by which rule.
//!
//! | change | rule |
//! |---|---|
//! | a slot or field behind the last one of a struct that states its size, and that lies in no other | a new minor |
//! | a constant with a name and a value that its family has not had; a struct, handle, interface or op that is new | free (R3) |
//! | what a slot, field, constant or rule promises | a new minor; a line in `abi/editorial` when only its words change |
//! | an op's operands, modes, types, parameters, class or meaning | a new revision of the op |
//! | everything else: names, places, types, pointees, values, parameters' names, sizes of what lies in arrays, the manifest | never |

use std::collections::{BTreeMap, BTreeSet};

/// A change of words that changes no meaning: what is said, its digest before and after.
pub type Editorial = BTreeSet<(String, String, String)>;

/// The editorial changes of a file: `NAME OLD NEW REASON`, one a line.
pub fn editorial(text: &str) -> Editorial {
    let lines = text.lines().filter(|l| !l.starts_with('#'));
    lines
        .filter_map(|l| {
            let mut w = l.splitn(4, ' ').map(str::to_owned);
            let entry = (w.next()?, w.next()?, w.next()?);
            w.next().filter(|why| !why.trim().is_empty()).map(|_| entry)
        })
        .collect()
}

/// `KIND NAME REST` of the lines of a kind.
fn named<'a>(lines: &'a [String], kind: &str) -> BTreeMap<&'a str, &'a str> {
    let of = lines
        .iter()
        .filter_map(|l| l.strip_prefix(kind)?.split_once(' '));
    of.collect()
}

fn minor(lines: &[String]) -> u32 {
    let line = lines
        .iter()
        .find_map(|l| l.strip_prefix("define CW_ABI_MINOR "));
    line.map_or(0, |v| v.trim_end_matches('u').parse().expect("a minor"))
}

/// `revision N ...` of an op.
fn revision(signature: &str) -> u32 {
    let n = signature
        .strip_prefix("revision ")
        .and_then(|r| r.split(' ').next());
    n.and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// What a new lock breaks of an old one; empty = only what the rules allow.
pub fn violations(old: &[String], new: &[String], editorial: &Editorial) -> Vec<String> {
    let mut out = vec![];
    let ruled = ["struct ", "define CW_ABI_MINOR ", "op ", "contract "];
    for line in old {
        if !ruled.iter().any(|r| line.starts_with(r)) && !new.contains(line) {
            out.push(format!("gone or changed: {line}"));
        }
    }
    let newer = minor(new) > minor(old);
    if minor(new) < minor(old) {
        out.push("CW_ABI_MINOR went down".into());
    }
    grown(old, new, newer, &mut out);
    let (was, is) = (named(old, "op "), named(new, "op "));
    for (name, signature) in &was {
        match is.get(name) {
            None => out.push(format!("gone: op {name}")),
            Some(s) if s == signature || revision(s) > revision(signature) => {}
            Some(s) => out.push(format!(
                "op {name} has another signature and no new revision: {signature}; now {s}"
            )),
        }
    }
    let (said, says) = (named(old, "contract "), named(new, "contract "));
    // What is said anew of what was there is a contract too.
    let both: BTreeSet<&str> = said.keys().chain(says.keys()).copied().collect();
    for name in both.into_iter().filter(|_| !said.is_empty()) {
        let there = said.contains_key(name) || known(old, name);
        let [a, b] = [said.get(name), says.get(name)].map(|d| d.copied().unwrap_or("-"));
        let revised = match (was.get(name), is.get(name)) {
            (Some(was), Some(is)) => revision(is) > revision(was),
            _ => false,
        };
        let entry = (name.to_string(), a.to_string(), b.to_string());
        if there && a != b && !newer && !revised && !editorial.contains(&entry) {
            out.push(format!(
                "the contract of {name} changed: a new minor, or, when only its words do, `{name} {a} {b} WHY` in abi/editorial"
            ));
        }
    }
    families(new, &mut out);
    out
}

/// Was there something of this name before?
fn known(old: &[String], name: &str) -> bool {
    let (of, field) = name.split_once('.').unwrap_or(("", name));
    let place = format!(" {field} : ");
    old.iter().any(|l| match of {
        "" => l.split(' ').nth(1) == Some(name),
        of => l.starts_with(of) && l.contains(&place),
    })
}

/// Structs may grow at their end, with a new minor.
fn grown(old: &[String], new: &[String], newer: bool, out: &mut Vec<String>) {
    let sizes = |lines: &[String]| -> BTreeMap<String, usize> {
        let sized = named(lines, "struct ");
        let of = sized
            .into_iter()
            .filter_map(|(n, s)| Some((n.to_owned(), s.strip_prefix("size ")?.parse().ok()?)));
        of.collect()
    };
    let (before, after) = (sizes(old), sizes(new));
    for (name, size) in &before {
        match after.get(name) {
            None => out.push(format!("gone: struct {name}")),
            Some(n) if n < size => out.push(format!("shrank: struct {name} {size} -> {n}")),
            _ => {}
        }
    }
    let was: BTreeSet<&String> = old.iter().collect();
    let mut grew = false;
    for line in new.iter().filter(|l| !was.contains(l)) {
        let field = line
            .split_once(" @")
            .and_then(|(s, rest)| Some((s, rest.split_once(' ')?.0.parse::<usize>().ok()?)));
        if let Some((s, at)) = field
            && let Some(end) = before.get(s)
        {
            grew = true;
            if at < *end {
                out.push(format!(
                    "not appended: {line} lies inside the old {end} bytes"
                ));
            }
        }
    }
    if grew && !newer {
        out.push("a struct grew and CW_ABI_MINOR did not".into());
    }
}

/// In a family of constants (`CW_COLL_*`) a value has one name.
fn families(new: &[String], out: &mut Vec<String>) {
    let number = |v: &str| -> Option<i64> {
        let v = v.replace("(cw_status)", "");
        let v = v
            .trim_matches(|c| c == '(' || c == ')')
            .trim_end_matches('u');
        match v.strip_prefix("0x") {
            Some(x) => i64::from_str_radix(x, 16).ok(),
            None => v.parse().ok(),
        }
    };
    let mut seen: BTreeMap<(&str, i64), &str> = BTreeMap::new();
    for (name, value) in new
        .iter()
        .filter_map(|l| l.strip_prefix("define ")?.split_once(' '))
    {
        let family = match name.match_indices('_').nth(1) {
            // Limits are sizes, not names of anything.
            Some((at, _)) if !name.starts_with("CW_PROGRAM_MAX") => &name[..at],
            _ => continue,
        };
        let Some(n) = number(value) else { continue };
        if let Some(other) = seen.insert((family, n), name) {
            out.push(format!("{other} and {name} are one value, {value}"));
        }
    }
}
