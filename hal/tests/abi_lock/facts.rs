//! What a header promises beside its declarations: the contract in the comment of a slot, field, constant or rule, the
//! signature of an op, profiles, macros and what else a compiler is given, and the manifest's section, prefix and keys. One line each.

use super::scan::{Piece, Text};
use std::collections::HashMap;

/// 64-bit FNV-1a over words: how lines are broken is nobody's contract.
pub fn digest(text: &str) -> String {
    let mut h = 0xCBF2_9CE4_8422_2325u64;
    for b in text
        .split_whitespace()
        .flat_map(|w| w.bytes().chain([b' ']))
    {
        h = (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01B3);
    }
    format!("{h:016x}")
}

/// The first comment, by its title, its rules R1, R2, ... and what comes after them.
fn rules(text: &Text, out: &mut Vec<(String, String)>) {
    let mut lines = text.head.iter();
    out.push((
        format!("{}.title", text.guard),
        lines.next().cloned().unwrap_or_default(),
    ));
    let mut name = "head";
    for line in lines {
        let first = line.split(' ').next().unwrap_or_default();
        let number = first
            .strip_prefix('R')
            .is_some_and(|n| n.parse::<u32>().is_ok());
        match (number, line.is_empty()) {
            (true, _) => name = first,
            (_, true) => name = "common",
            _ => {}
        }
        out.push((format!("{}.{name}", text.guard), line.clone()));
    }
}

/// The name that a piece declares, inside `inside`.
fn declared(code: &str, inside: &str) -> Option<String> {
    let word = |s: &str| -> String {
        s.chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect()
    };
    if let Some(d) = code.strip_prefix("#define ") {
        return Some(word(d));
    }
    if let Some(s) = code.strip_prefix("typedef struct ") {
        return Some(word(s));
    }
    if let Some((_, r)) = code.split_once("(*") {
        let name = word(r);
        return Some(if inside.is_empty() {
            name
        } else {
            format!("{inside}.{name}")
        });
    }
    if let Some(s) = code.strip_prefix("typedef ") {
        return Some(s.trim_end_matches(';').rsplit(' ').next()?.to_string());
    }
    let field = code.split_once(';')?.0;
    let name = field.rsplit(' ').next()?.split('[').next()?;
    (!inside.is_empty()).then(|| format!("{inside}.{}", name.trim_start_matches('*')))
}

/// Every word of the comments, by what it is about, in the order of the header. What is about nothing that is declared has the header's name.
pub fn contracts(text: &Text) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = vec![];
    rules(text, &mut all);
    let mut inside = String::new();
    for p in &text.pieces {
        if p.code.starts_with('}') && !inside.is_empty() {
            all.push((format!("{inside}.end"), p.said.clone()));
            inside.clear();
            continue;
        }
        let other = || {
            let word = p
                .code
                .split(|c: char| !c.is_alphanumeric() && c != '_' && c != '#');
            format!(
                "{}.{}",
                text.guard,
                word.into_iter().next().unwrap_or_default()
            )
        };
        let name = declared(&p.code, &inside).unwrap_or_else(other);
        if p.code.starts_with("typedef struct ") && p.code.ends_with('{') {
            inside.clone_from(&name);
        }
        all.push((name, p.said.clone()));
    }
    for (title, words) in &text.sections {
        all.push((format!("{}.{title}", text.guard), words.clone()));
    }
    for words in &text.foot {
        all.push((format!("{}.foot", text.guard), words.clone()));
    }
    let mut out: Vec<(String, String)> = vec![];
    let mut place: HashMap<String, usize> = HashMap::new();
    for (name, words) in all.into_iter().filter(|a| !a.1.trim().is_empty()) {
        let at = *place.entry(name.clone()).or_insert(out.len());
        match out.get_mut(at) {
            Some((_, said)) => *said += &format!(" {words}"),
            None => out.push((name, words)),
        }
    }
    out
}

/// Lines of what is said: digests, and the signatures of ops.
pub fn contract_lines(text: &Text, contracts: &[(String, String)]) -> Vec<String> {
    let mut out = vec![];
    let line = |name: &str, words: &str| format!("contract {name} {}", digest(words));
    let rules = contracts
        .iter()
        .filter(|c| part(text, &c.0).is_some_and(is_rule));
    out.extend(rules.map(|c| line(&c.0, &c.1)));
    out.extend(manifest(text));
    for (name, words) in contracts.iter().filter(|c| part(text, &c.0).is_none()) {
        let Some((meaning, signature)) = words.split_once(" Operands: ") else {
            out.push(line(name, words));
            continue;
        };
        // Of an op the meaning is a contract, and what follows it a signature.
        let define = format!("#define {name} ");
        let id = text
            .pieces
            .iter()
            .find_map(|p| p.code.strip_prefix(&define));
        let (types, more) = signature
            .split_once(". Revision ")
            .unwrap_or((signature, ""));
        let (revision, class) = more.split_once("; ").unwrap_or((more, ""));
        out.push(format!(
            "op {name} revision {revision} id {} {class} {types}",
            id.unwrap_or_default()
        ));
        out.push(line(name, meaning));
    }
    out
}

/// What of the whole header a contract is about, if it is about that.
fn part<'a>(text: &Text, name: &'a str) -> Option<&'a str> {
    name.strip_prefix(&text.guard)?.strip_prefix('.')
}

/// Is it a part of the first comment that the lock has had from its beginning?
fn is_rule(part: &str) -> bool {
    let number = part
        .strip_prefix('R')
        .is_some_and(|n| n.parse::<u32>().is_ok());
    number || ["head", "common"].contains(&part)
}

/// Lines of what is about the whole header, of its profiles, and of what a compiler is given beside declarations.
pub fn whole(text: &Text, contracts: &[(String, String)]) -> Vec<String> {
    let own = |c: &(String, String)| part(text, &c.0).is_some_and(|p| !is_rule(p));
    let mut out: Vec<String> = contracts
        .iter()
        .filter(|c| own(c))
        .map(|c| format!("contract {} {}", c.0, digest(&c.1)))
        .collect();
    for words in &text.foot {
        out.extend(profile(words));
    }
    out.extend(text.pieces.iter().filter_map(given));
    out
}

/// The demands of a profile, one a line.
fn profile(words: &str) -> Vec<String> {
    let name = words.split_once(": ").and_then(|(name, rows)| {
        let name = match name.strip_prefix("profile ") {
            Some(name) => name,
            None => name.starts_with("train also").then_some("collective")?,
        };
        Some((name, rows.split_once(". ").map_or(rows, |r| r.0)))
    });
    let Some((name, rows)) = name else {
        return vec![];
    };
    let mut out = vec![];
    for row in rows.trim_end_matches('.').split("; ") {
        let (op, types) = row.split_once(' ').unwrap_or((row, ""));
        let each = types
            .split(" | ")
            .map(|t| format!("profile {name} {op} {t}"));
        out.extend(each);
    }
    out
}

/// A constant that every compiler has, and its value.
pub fn constant(p: &Piece) -> Option<(&str, &str)> {
    let (name, value) = p.directive("define")?.split_once(' ')?;
    let attribute = value.contains("__attribute__") || value.contains("__declspec");
    let plain = p.when.is_empty() && !name.contains('(') && !attribute;
    plain.then_some((name, value))
}

/// What a compiler is given that is neither a constant nor a type: macros and attributes, packing, linkage, assertions, other headers.
pub fn given(p: &Piece) -> Option<String> {
    if constant(p).is_some() {
        return None;
    }
    if let Some(d) = p.directive("define") {
        let end = d.find(|c: char| !c.is_alphanumeric() && c != '_');
        let (name, rest) = d.split_at(end.unwrap_or(d.len()));
        return Some(format!("macro {name} [{}] {}", p.when, rest.trim_start()));
    }
    for kind in ["include", "pragma"] {
        if let Some(d) = p.directive(kind) {
            return Some(format!("{kind} [{}] {d}", p.when));
        }
    }
    if p.code.starts_with('#') {
        return Some(format!("directive [{}] {}", p.when, p.code));
    }
    if let Some(a) = p.code.strip_prefix("CW_ASSERT_") {
        return Some(format!("assert {}", a.trim_end_matches(';')));
    }
    let linkage = p.code.starts_with("extern ") || p.code == "}";
    linkage.then(|| format!("linkage [{}] {}", p.when, p.code))
}

/// Where the manifest lies, what it begins with, and its keys.
fn manifest(text: &Text) -> Vec<String> {
    let spelled = |p: &&Piece| {
        p.code.starts_with("#define CW_SECTION ") || p.code.starts_with("#define CW_MANIFEST(")
    };
    let mut out: Vec<String> = text
        .pieces
        .iter()
        .filter(spelled)
        .map(|p| format!("manifest {}", p.code.trim_start_matches("#define ")))
        .collect();
    let example = text.pieces.iter().find_map(|p| {
        let (_, rest) = p.said.split_once("CW_MANIFEST(\"")?;
        Some(rest.split_once("\")")?.0)
    });
    for key in example
        .into_iter()
        .flat_map(|e| e.split(';'))
        .filter_map(|f| f.split_once('='))
    {
        out.push(format!("manifest key {}", key.0));
    }
    out
}
