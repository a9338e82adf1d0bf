//! Tests give no verdict by a clock: a limit of time in one is so long that only a hang exceeds it.

use super::{Finding, Place, at};
use crate::source::line_of;
use crate::tree::Tree;

/// Seconds that nothing takes on any machine, however busy, but a hang.
const HANG: u64 = 60;

/// Sources of tests.
pub fn place(path: &str) -> Place {
    let parts = path.split('/').collect::<Vec<_>>();
    let test = parts[..parts.len() - 1].contains(&"tests") || path.ends_with("/tests.rs");
    match path.ends_with(".rs") && test && !path.starts_with("xtask/") {
        true => Place::Holds(Vec::new()),
        false => Place::free("no test"),
    }
}

/// `x.elapsed() < LIMIT`, in an assertion or the condition of a wait, whose limit is under a minute or is not written as one of seconds.
pub fn limits(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (f, split) in tree.rust() {
        if !place(&f.path).holds() {
            continue;
        }
        for (offset, call) in split.code.match_indices(".elapsed()") {
            let rest = &split.code[offset + call.len()..];
            let (scale, rest) = match rest.trim_start().strip_prefix(".as_secs()") {
                Some(rest) => ("seconds", rest),
                None => ("", rest),
            };
            let Some(limit) = rest.trim_start().strip_prefix('<') else {
                continue;
            };
            let limit = limit.trim_start_matches('=').trim_start();
            if seconds(&split.code, scale, limit).is_none_or(|s| s < HANG) {
                found.push(at(
                    &f.path,
                    line_of(&split.code, offset),
                    format!(
                        "a verdict by a clock: say what comes after what, or give a hang its limit, Duration::from_secs of {HANG} or more"
                    ),
                ));
            }
        }
    }
    found
}

/// The seconds of a limit: a number of them, `Duration::from_secs(N)`, or a constant of this file that is one.
fn seconds(code: &str, scale: &str, limit: &str) -> Option<u64> {
    if scale == "seconds" {
        return number(limit);
    }
    if let Some(n) = limit.strip_prefix("Duration::from_secs(") {
        return number(n);
    }
    let name = limit
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .next();
    let name = name.filter(|n| !n.is_empty() && n.chars().all(|c| !c.is_lowercase()))?;
    let (_, value) = code.split_once(&format!("const {name}: Duration = "))?;
    number(value.strip_prefix("Duration::from_secs(")?)
}

/// The number that a text begins with.
fn number(text: &str) -> Option<u64> {
    let digits = text.chars().take_while(char::is_ascii_digit);
    digits.collect::<String>().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::lines;
    use super::*;

    #[test]
    fn a_short_limit_is_found_however_it_is_written() {
        let text = "const SOON: Duration = Duration::from_secs(20);
const HUNG: Duration = Duration::from_secs(120);
fn f() {
    assert!(began.elapsed() < Duration::from_secs(5));
    assert!(
        began.elapsed() < SOON,
    );
    while no() && began.elapsed() <= Duration::from_millis(100) {}
    assert!(began.elapsed().as_secs() < 59);
    assert!(began.elapsed() < 3 * PATIENCE);
    assert!(began.elapsed() < Duration::from_secs(60));
    assert!(began.elapsed() < HUNG);
    assert!(began.elapsed() >= Duration::from_millis(5));
    assert!(began.elapsed().as_secs() < 600);
    println!(\"{:?}\", began.elapsed());
}
";
        let tree = Tree::of(&[
            ("a/tests/x.rs", text),
            ("a/src/tests.rs", "fn f() { assert!(t.elapsed() < SOON); }"),
            ("a/src/x.rs", "fn f() { assert!(t.elapsed() < SOON); }"),
        ]);
        let all = limits(&tree);
        let mut found = lines(&all);
        found.sort_unstable();
        let own = [4, 6, 8, 9, 10].map(|n| ("a/tests/x.rs", n));
        assert_eq!(found, [&[("a/src/tests.rs", 1)][..], &own].concat());
    }
}
