//! Where `unsafe` may be written, and that each use states why it is sound.

use super::{Finding, Place, at, within};
use crate::source::{line_of, words};
use crate::tables::UNSAFE_PLACES;
use crate::tree::Tree;

/// Where `unsafe` is forbidden.
pub fn forbidden(path: &str) -> Place {
    match within(path, UNSAFE_PLACES) {
        true => Place::free("in UNSAFE_PLACES of xtask/src/tables.rs"),
        false => super::rust(path),
    }
}

/// Crates outside the list forbid `unsafe` at their root, and nobody outside the list writes it.
pub fn places(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (f, split) in tree.rust().filter(|(f, _)| forbidden(&f.path).holds()) {
        let root = f.path.ends_with("src/lib.rs") || f.path.ends_with("src/main.rs");
        // An empty library has nothing to forbid yet.
        let empty = split.code.trim().is_empty();
        if root && !empty && !split.code.contains("#![forbid(unsafe_code)]") {
            found.push(at(
                &f.path,
                0,
                "a crate root without `#![forbid(unsafe_code)]`",
            ));
        }
        for (offset, _) in words(&split.code).filter(|w| w.1 == "unsafe") {
            let text = "`unsafe` outside hal, back ends and tensor";
            found.push(at(&f.path, line_of(&split.code, offset), text));
        }
    }
    found
}

/// What an `unsafe` introduces.
#[derive(PartialEq)]
enum Use {
    /// A block or an impl: somebody claims that the conditions hold.
    Claim,
    /// A function or trait: somebody states conditions.
    Condition,
    /// A function pointer's type, an attribute, a method whose trait states the conditions.
    Other,
}

/// Every block and impl has a `SAFETY:` comment above it; every function and trait a `# Safety` section.
pub fn explained(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (f, split) in tree.rust() {
        let code: Vec<&str> = split.code.lines().collect();
        let comments: Vec<&str> = split.comments.lines().collect();
        for (offset, _) in words(&split.code).filter(|w| w.1 == "unsafe") {
            let line = line_of(&split.code, offset);
            let indent = code[line - 1].len() - code[line - 1].trim_start().len();
            let (mark, what) = match kind(&split.code[offset..], &split.code[..offset], indent) {
                Use::Claim => ("SAFETY:", "no `// SAFETY:` comment says why this holds"),
                Use::Condition => (
                    "# Safety",
                    "no `# Safety` section states what the caller must keep",
                ),
                Use::Other => continue,
            };
            if !marked(&code, &comments, line - 1, mark) {
                found.push(at(&f.path, line, what));
            }
        }
    }
    found
}

fn kind(from: &str, before: &str, indent: usize) -> Use {
    let rest = from["unsafe".len()..].trim_start();
    if rest.starts_with('{') || rest.starts_with("impl") {
        return Use::Claim;
    }
    if rest.starts_with('(') || rest.starts_with("extern \"") && !rest.contains("fn") {
        return Use::Other; // `#[unsafe(no_mangle)]`
    }
    let Some(at) = rest.find("fn").filter(|_| !rest.starts_with("trait")) else {
        return Use::Condition;
    };
    // A slot of a C table: its contract is the header's, stated there once for every host and plugin.
    let slot = rest.starts_with("extern") && !before.trim_end().ends_with("pub");
    let named = rest[at + 2..]
        .trim_start()
        .starts_with(|c: char| c.is_alphabetic() || c == '_' || c == '$');
    if slot || !named || (indent > 0 && in_trait_impl(before)) {
        return Use::Other;
    }
    Use::Condition
}

/// Whether the innermost open brace belongs to `impl Trait for Type`.
fn in_trait_impl(before: &str) -> bool {
    let mut depth = 0;
    for (i, c) in before.char_indices().rev() {
        match c {
            '}' => depth += 1,
            '{' if depth > 0 => depth -= 1,
            '{' => {
                let head = &before[..i];
                let start = head.rfind(['}', ';', '{']).map_or(0, |n| n + 1);
                let words: Vec<&str> = words(&head[start..]).map(|w| w.1).collect();
                return words.contains(&"impl") && words.contains(&"for");
            }
            _ => {}
        }
    }
    false
}

/// Looks for the mark on the line, and above it: through comments, attributes, and the lines of the same expression.
fn marked(code: &[&str], comments: &[&str], line: usize, mark: &str) -> bool {
    let has = |i: usize| comments[i].contains(mark);
    if has(line) {
        return true;
    }
    for i in (0..line).rev() {
        if has(i) {
            return true;
        }
        let c = code[i].trim();
        let comment = c.is_empty() && !comments[i].trim().is_empty();
        let attribute = c.starts_with("#[");
        // The claim may lie in a later line of its statement, inside braces that the statement opened.
        let opens = c.ends_with('{') && !words(c).any(|w| ["fn", "impl", "mod"].contains(&w.1));
        let ended = c.ends_with([';', '}']) || c.ends_with('{') && !opens || c.is_empty();
        if !comment && !attribute && ended {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::super::lines;
    use super::*;

    #[test]
    fn unsafe_outside_its_places_is_found() {
        let tree = Tree::of(&[
            ("nn/src/lib.rs", "//! x\nfn f() { unsafe { g() } }"),
            (
                "zero/src/lib.rs",
                "#![forbid(unsafe_code)]\n// unsafe\nlet s = \"unsafe\";",
            ),
            ("hal/src/lib.rs", "unsafe {}"),
        ]);
        assert_eq!(
            lines(&places(&tree)),
            [("nn/src/lib.rs", 0), ("nn/src/lib.rs", 2)]
        );
    }

    #[test]
    fn a_block_without_a_reason_is_found() {
        let text = "fn f() {\n    // SAFETY: p is live.\n    let a =\n        unsafe { *p };\n    let b = unsafe { *p };\n    // SAFETY: q is live.\n    let c = f(|| {\n        unsafe { *q }\n    });\n}\nunsafe impl Send for A {}\n// SAFETY: no state.\nunsafe impl Sync for A {}\n";
        let tree = Tree::of(&[("hal/src/a.rs", text)]);
        assert_eq!(
            lines(&explained(&tree)),
            [("hal/src/a.rs", 5), ("hal/src/a.rs", 11)]
        );
    }

    #[test]
    fn a_function_without_conditions_is_found() {
        let text = "/// Reads.\n///\n/// # Safety\n/// `p` is live.\n#[inline]\npub unsafe fn a() {}\n/// Reads.\npub unsafe fn b() {}\ntype F = unsafe extern \"C\" fn(u8);\nimpl T for A {\n    unsafe fn c() {}\n}\n#[unsafe(no_mangle)]\npub unsafe extern \"C\" fn d() {}\nunsafe extern \"C\" fn e() {}\n";
        let tree = Tree::of(&[("hal/src/a.rs", text)]);
        assert_eq!(
            lines(&explained(&tree)),
            [("hal/src/a.rs", 8), ("hal/src/a.rs", 14)]
        );
    }
}
