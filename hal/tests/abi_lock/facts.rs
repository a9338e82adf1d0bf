//! What a header promises beside its declarations: the contract in the comment of a slot, field, constant or rule, the
//! signature of an op, and the manifest's section, prefix and keys. One line each.

/// Every such fact of a header's text.
pub fn of(text: &str) -> Vec<String> {
    let mut out = rules(text);
    out.extend(manifest(text));
    out.extend(contracts(text));
    out
}

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

/// The first comment, by its rules R1, R2, ... and what comes after them.
fn rules(text: &str) -> Vec<String> {
    let Some((head, _)) = text.split_once("*/") else {
        return vec![];
    };
    let mut parts: Vec<(String, String)> = vec![("head".into(), String::new())];
    for line in head.lines().skip(1) {
        let line = line.trim().trim_start_matches('*').trim();
        let first = line.split(' ').next().unwrap_or_default();
        let number = first
            .strip_prefix('R')
            .is_some_and(|n| n.parse::<u32>().is_ok());
        match (number, line.is_empty()) {
            (true, _) => parts.push((first.into(), String::new())),
            (_, true) => parts.push(("common".into(), String::new())),
            _ => {}
        }
        if let Some((_, all)) = parts.last_mut() {
            *all += line;
            *all += "\n";
        }
    }
    let guard = text.lines().find_map(|l| l.strip_prefix("#ifndef "));
    let said = parts.into_iter().filter(|p| !p.1.trim().is_empty());
    said.map(|(name, all)| format!("contract {}.{name} {}", guard.unwrap_or("?"), digest(&all)))
        .collect()
}

/// Where the manifest lies, what it begins with, and its keys.
fn manifest(text: &str) -> Vec<String> {
    let spelled =
        |l: &&str| l.starts_with("#define CW_SECTION ") || l.starts_with("#define CW_MANIFEST(");
    let mut out: Vec<String> = text
        .lines()
        .filter(spelled)
        .map(|l| format!("manifest {}", l.trim_start_matches("#define ")))
        .collect();
    let keys = text
        .split_once("CW_MANIFEST(\"")
        .and_then(|(_, r)| r.split_once("\")"));
    if let Some((example, _)) = keys.filter(|k| k.0.contains('=')) {
        for key in example.split(';').filter_map(|f| f.split_once('=')) {
            out.push(format!("manifest key {}", key.0));
        }
    }
    out
}

/// The name that a line of code declares, inside `inside`.
fn declared(line: &str, inside: &str) -> Option<String> {
    let word = |s: &str| -> String {
        s.chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect()
    };
    if let Some(d) = line.strip_prefix("#define ") {
        return Some(word(d));
    }
    if let Some(s) = line.strip_prefix("typedef struct ") {
        return Some(word(s));
    }
    if let Some((_, r)) = line.split_once("(*") {
        let name = word(r);
        return Some(if inside.is_empty() {
            name
        } else {
            format!("{inside}.{name}")
        });
    }
    if let Some(s) = line.strip_prefix("typedef ") {
        return Some(s.trim_end_matches(';').rsplit(' ').next()?.to_string());
    }
    let field = line.split_once(';')?.0;
    let name = field.rsplit(' ').next()?.split('[').next()?;
    (!inside.is_empty()).then(|| format!("{inside}.{}", name.trim_start_matches('*')))
}

/// A digest of the comment before or beside everything that is declared, and the signatures of ops.
fn contracts(text: &str) -> Vec<String> {
    let mut out = vec![];
    let (mut said, mut inside) = (String::new(), String::new());
    let mut rest = text.split_once("*/").map_or(text, |t| t.1);
    while !rest.is_empty() {
        let (line, after) = rest.split_once('\n').unwrap_or((rest, ""));
        let (code, comment) = line.split_once("/*").unwrap_or((line, ""));
        if line.contains("/*") {
            // A comment ends where it ends, on another line perhaps.
            let at = rest.find("/*").unwrap_or_default();
            let (words, behind) = rest[at + 2..].split_once("*/").unwrap_or((comment, after));
            if !words.trim_start().starts_with("---") {
                said += &words.replace("\n *", "\n").replace("\n   *", "\n");
            }
            rest = behind.strip_prefix('\n').unwrap_or(behind);
        } else {
            rest = after;
        }
        let code = code.trim();
        // Conditions come between a comment and what it is about.
        if code.is_empty() || code.starts_with('#') && !code.starts_with("#define ") {
            continue;
        }
        if code.starts_with('}') {
            inside.clear();
        }
        if let Some(name) = declared(code, &inside) {
            if code.starts_with("typedef struct ") && code.ends_with('{') {
                inside.clone_from(&name);
            }
            fact(&name, code, &said, &mut out);
        }
        said.clear();
    }
    out
}

fn fact(name: &str, code: &str, said: &str, out: &mut Vec<String>) {
    let mut said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    // Of an op the meaning is a contract, and what follows it a signature.
    if name.starts_with("CW_OP_")
        && let Some((meaning, signature)) = said.split_once(" Operands: ")
    {
        let id = code.rsplit(' ').next().unwrap_or_default();
        let (types, more) = signature
            .split_once(". Revision ")
            .unwrap_or((signature, ""));
        let (revision, class) = more.split_once("; ").unwrap_or((more, ""));
        out.push(format!(
            "op {name} revision {revision} id {id} {class} {types}"
        ));
        said = meaning.to_string();
    }
    if !said.is_empty() {
        out.push(format!("contract {name} {}", digest(&said)));
    }
}
