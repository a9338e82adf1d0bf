//! What may change of the ABI, and by which rule.
//!
//! | change | rule |
//! |---|---|
//! | a slot or field behind the last one of a struct that states its size, and that lies in no other | a new minor |
//! | a constant with a name and a value that its family has not had; a struct, handle, interface or op that is new | free (R3) |
//! | what a slot, field, constant, section or rule promises | a new minor; a line in `abi/editorial` when only its words change |
//! | what a profile demands, more or less | a new minor |
//! | an op's operands, modes, types, parameters, class or meaning | a new revision of the op |
//! | a field behind the last one of an op's parameters, and what is said of these | a new revision of every op that has them |
//! | a macro of a new name | free |
//! | another flag or capability than a single bit, a type whose low byte is not its bits | never |
//! | everything else: names, places, types, pointees, values, parameters' names, sizes of what lies in arrays, the manifest, macros, attributes, packing, linkage, other headers, assertions left out | never |

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

/// Is this an op of a new revision, or a struct (or a field of it) that ops have as parameters, all of a new revision?
fn is_revised(was: &BTreeMap<&str, &str>, is: &BTreeMap<&str, &str>, name: &str) -> bool {
    let own = name.split_once('.').map_or(name, |(of, _)| of);
    let has = |signature: &str| {
        let words = signature.rsplit_once("Params: ").map_or("", |s| s.1);
        words.split([' ', ';']).any(|w| w == own)
    };
    // An op that a lock of ops does not have was not there; a lock of before has none at all.
    let there = |op: &&str| was.is_empty() || was.contains_key(op);
    let signed = was.iter().chain(is);
    let of = signed
        .filter(|(op, s)| **op == own || has(s))
        .map(|(op, _)| *op);
    let of: BTreeSet<&str> = of.filter(there).collect();
    let newer = |op: &&str| {
        let [before, now] = [was, is].map(|ops| ops.get(op).map(|s| revision(s)));
        now > before.or(Some(1))
    };
    !of.is_empty() && of.iter().all(newer)
}

/// What a new lock breaks of an old one; empty = only what the rules allow.
pub fn violations(old: &[String], new: &[String], editorial: &Editorial) -> Vec<String> {
    let mut out = vec![];
    let ruled = [
        "struct ",
        "define CW_ABI_MINOR ",
        "op ",
        "contract ",
        "profile ",
        "assert ",
        "kinds ",
    ];
    for line in old {
        if !ruled.iter().any(|r| line.starts_with(r)) && !new.contains(line) {
            out.push(format!("gone or changed: {line}"));
        }
    }
    let newer = minor(new) > minor(old);
    if minor(new) < minor(old) {
        out.push("CW_ABI_MINOR went down".into());
    }
    let (was, is) = (named(old, "op "), named(new, "op "));
    let revised = |name: &str| is_revised(&was, &is, name);
    grown(old, new, &|name| newer || revised(name), &mut out);
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
        let there = declared(old, name) || !declared(new, name);
        let [a, b] = [said.get(name), says.get(name)].map(|d| d.copied().unwrap_or("-"));
        if there && a != b && !newer && !revised(name) && !only_words(editorial, name, a, b) {
            out.push(format!(
                "the contract of {name} changed: a new minor, or, when only its words do, `{name} {a} {b} WHY` in abi/editorial"
            ));
        }
    }
    whole(old, new, newer, &mut out);
    assertions(old, new, &mut out);
    families(new, &mut out);
    bits(new, &mut out);
    out
}

/// Do entries, one after the other, lead from these words to those?
fn only_words(editorial: &Editorial, name: &str, from: &str, to: &str) -> bool {
    let mut reached = vec![from];
    let mut at = 0;
    while let Some(&here) = reached.get(at) {
        at += 1;
        for (n, a, b) in editorial {
            if n == name && a == here && !reached.contains(&b.as_str()) {
                reached.push(b);
            }
        }
    }
    reached.contains(&to)
}

/// Is there a declaration of this name?
fn declared(lines: &[String], name: &str) -> bool {
    let (of, field) = name.split_once('.').unwrap_or(("", name));
    let (begin, place) = (format!("{of} @"), format!(" {field} : "));
    lines.iter().any(|l| match of {
        "" => !l.starts_with("contract ") && l.split(' ').nth(1) == Some(name),
        _ => l.starts_with(&begin) && l.contains(&place),
    })
}

/// Lines of a kind that may not be new: of what is about a whole header, or about something that was there.
fn whole(old: &[String], new: &[String], newer: bool, out: &mut Vec<String>) {
    let had = old.iter().find_map(|l| l.strip_prefix("kinds "));
    let Some(had) = had else { return };
    let has = new
        .iter()
        .find_map(|l| l.strip_prefix("kinds "))
        .unwrap_or_default();
    for kind in had.split(' ').filter(|k| !has.split(' ').any(|h| h == *k)) {
        out.push(format!("a kind of lines is no longer locked: {kind}"));
    }
    let was: BTreeSet<&String> = old.iter().collect();
    for line in new.iter().filter(|l| !was.contains(l)) {
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        if !had.split(' ').any(|k| k == kind) {
            continue;
        }
        let name = rest.split(' ').next().unwrap_or_default();
        match kind {
            "macro" if !named(old, "macro ").contains_key(name) => {}
            "profile" if newer => {}
            "assert" => {}
            "profile" => out.push(format!("a demand is new and CW_ABI_MINOR is not: {line}")),
            _ => out.push(format!("not of the lock: {line}")),
        }
    }
    let is: BTreeSet<&String> = new.iter().collect();
    for line in old.iter().filter(|l| l.starts_with("profile ") && !newer) {
        if !is.contains(line) {
            out.push(format!(
                "a demand is gone and CW_ABI_MINOR is not new: {line}"
            ));
        }
    }
}

/// What was asserted of a struct is asserted, and an assertion is true.
fn assertions(old: &[String], new: &[String], out: &mut Vec<String>) {
    // `SIZE(cw_str, 16)` and `AT(cw_str, len, 8)`, by what they are about.
    let of = |lines: &[String]| -> BTreeMap<String, String> {
        let split = lines.iter().filter_map(|l| {
            let (about, n) = l
                .strip_prefix("assert ")?
                .trim_end_matches(')')
                .rsplit_once(", ")?;
            Some((about.to_owned(), n.to_owned()))
        });
        split.collect()
    };
    let (before, after) = (of(old), of(new));
    for about in before.keys().filter(|a| !after.contains_key(*a)) {
        out.push(format!("no longer asserted: {about})"));
    }
    for (about, n) in &after {
        let line = match about.split_once('(') {
            Some(("SIZE", name)) => format!(" {name} size {n}"),
            Some((_, place)) => {
                let (name, field) = place.split_once(", ").unwrap_or((place, ""));
                format!("{name} @{n} {field} : ")
            }
            None => String::new(),
        };
        let holds = |l: &String| match about.starts_with("SIZE") {
            true => l.strip_prefix("struct").or(l.strip_prefix("leaf")) == Some(&line),
            false => l.starts_with(&line),
        };
        if line.is_empty() || !new.iter().any(holds) {
            out.push(format!("an assertion that is not so: {about}, {n})"));
        }
    }
}

/// Numbers that are joined by `|` are single bits, and the low byte of a type is the bits of an element.
fn bits(new: &[String], out: &mut Vec<String>) {
    let joined = ["CAP", "ERRF", "FLAG", "LAYOUT", "MATH", "COLLF"];
    for (name, value) in constants(new) {
        let (family, own) = name["CW_".len()..]
            .split_once('_')
            .unwrap_or((&name[3..], ""));
        let Some(n) = number(value) else { continue };
        if joined.contains(&family) && n.count_ones() != 1 {
            out.push(format!("{name} is no single bit: {value}"));
        }
        let digits = own.trim_start_matches(|c: char| c.is_ascii_alphabetic());
        let end = digits
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(digits.len());
        if family == "DT" && digits[..end].parse() != Ok(n & 0xFF) {
            out.push(format!("the low byte of {name} is not its bits: {value}"));
        }
    }
}

/// Structs may grow at their end, with a new minor or, where they are parameters, with new revisions of their ops.
fn grown(old: &[String], new: &[String], newer: &dyn Fn(&str) -> bool, out: &mut Vec<String>) {
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
            grew |= !newer(s);
            if at < *end {
                out.push(format!(
                    "not appended: {line} lies inside the old {end} bytes"
                ));
            }
        }
    }
    if grew {
        out.push("a struct grew and CW_ABI_MINOR did not".into());
    }
}

/// The constants of a lock and their values.
fn constants(lines: &[String]) -> impl Iterator<Item = (&str, &str)> {
    let defined = lines.iter().filter_map(|l| l.strip_prefix("define "));
    defined
        .filter_map(|d| d.split_once(' '))
        .filter(|d| d.0.starts_with("CW_"))
}

/// `((cw_status)-1)`, `0x10u`, `4u`.
pub fn number(text: &str) -> Option<i64> {
    let t = text.replace("(cw_status)", "");
    let t = t
        .trim_matches(|c| c == '(' || c == ')')
        .trim_end_matches('u');
    match t.strip_prefix("0x") {
        Some(x) => i64::from_str_radix(x, 16).ok(),
        None => t.parse().ok(),
    }
}

/// In a family of constants (`CW_COLL_*`) a value has one name.
fn families(new: &[String], out: &mut Vec<String>) {
    let mut seen: BTreeMap<(&str, i64), &str> = BTreeMap::new();
    for (name, value) in constants(new) {
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
