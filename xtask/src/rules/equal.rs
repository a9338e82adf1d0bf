//! Equal runs of code in two places: what was copied instead of shared.

use super::Finding;
use crate::lines::product;
use crate::modules::Modules;
use crate::ratchet::Figure;
use crate::tables::shape::{EQUAL_LINES, EQUAL_RUN};
use crate::tree::{File, Tree};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A source as it is compared: the lines that say something, each as a number that equal lines share, with its line in the file.
struct Source<'a> {
    file: &'a File,
    lines: Vec<(u32, usize)>,
}

/// Places in two sources, or twice in one, that are equal.
#[derive(Default)]
struct Pair {
    /// The equal lines of the first source, as indices of its `lines`, and of the second.
    equal: [BTreeSet<usize>; 2],
}

/// The code of each line, without comments, its white space made one; nothing for lines of tests and imports and for those that hold
/// only brackets.
fn meaning(file: &File) -> Vec<Option<String>> {
    let (Some(split), Some(syntax)) = (&file.rust, &file.syntax) else {
        return Vec::new();
    };
    // The comments are as long as the text, so that what is not blank in them is taken out of it.
    let uncommented: String = file
        .text
        .chars()
        .zip(split.comments.chars())
        .map(|(t, c)| {
            if c == ' ' || c == '\n' || t == '\n' {
                t
            } else {
                ' '
            }
        })
        .collect();
    let mut lines: Vec<Option<String>> = uncommented
        .lines()
        .map(|l| {
            let words: Vec<&str> = l.split_whitespace().collect();
            let text = words.join(" ");
            text.contains(|c: char| !c.is_whitespace() && !"{}()[];,".contains(c))
                .then_some(text)
        })
        .collect();
    for &(first, last) in syntax.tests.iter().chain(&syntax.uses) {
        for l in lines.iter_mut().take(last).skip(first - 1) {
            *l = None;
        }
    }
    lines
}

fn sources(tree: &Tree) -> Vec<Source<'_>> {
    let modules = Modules::of(tree);
    let mut numbers: HashMap<String, u32> = HashMap::new();
    product(tree, &modules)
        .map(|(_, file)| {
            let mut lines = Vec::new();
            for (i, text) in meaning(file).into_iter().enumerate() {
                if let Some(text) = text {
                    let next = numbers.len() as u32;
                    lines.push((*numbers.entry(text).or_insert(next), i + 1));
                }
            }
            Source { file, lines }
        })
        .collect()
}

fn pairs(sources: &[Source]) -> BTreeMap<(usize, usize), Pair> {
    let mut places: HashMap<[u32; EQUAL_RUN], Vec<(usize, usize)>> = HashMap::new();
    for (s, source) in sources.iter().enumerate() {
        for (at, w) in source.lines.windows(EQUAL_RUN).enumerate() {
            places
                .entry(std::array::from_fn(|i| w[i].0))
                .or_default()
                .push((s, at));
        }
    }
    let mut pairs: BTreeMap<(usize, usize), Pair> = BTreeMap::new();
    for places in places.values() {
        for (i, &(a, from)) in places.iter().enumerate() {
            for &(b, to) in &places[i + 1..] {
                // A run beside itself is one place: a table of like rows.
                if a == b && to - from < EQUAL_RUN {
                    continue;
                }
                let pair = pairs.entry((a, b)).or_default();
                pair.equal[0].extend(from..from + EQUAL_RUN);
                pair.equal[1].extend(to..to + EQUAL_RUN);
            }
        }
    }
    pairs
}

/// The runs in a set of indices, as lines of a file: `3-20, 40-52`.
fn runs(source: &Source, set: &BTreeSet<usize>) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &i in set {
        match runs.last_mut() {
            Some(r) if r.1 + 1 == i => r.1 = i,
            _ => runs.push((i, i)),
        }
    }
    let line = |i: usize| source.lines[i].1;
    let texts: Vec<String> = runs
        .iter()
        .map(|r| format!("{}-{}", line(r.0), line(r.1)))
        .collect();
    texts.join(", ")
}

/// For every two files, or one, how many lines lie in runs of at least [`EQUAL_RUN`] equal lines.
pub fn figures(tree: &Tree) -> Vec<Figure> {
    let sources = sources(tree);
    pairs(&sources)
        .into_iter()
        .map(|((a, b), pair)| {
            let (first, second) = (&sources[a], &sources[b]);
            let (from, to) = (runs(first, &pair.equal[0]), runs(second, &pair.equal[1]));
            let (one, other) = (&first.file.path, &second.file.path);
            Figure {
                place: format!("{one} = {other}"),
                path: one.clone(),
                others: vec![other.clone()],
                line: pair.equal[0].first().map_or(0, |&i| first.lines[i].1),
                value: pair.equal[0].len().max(pair.equal[1].len()),
                detail: format!("lines {from} and {to}"),
            }
        })
        .collect()
}

/// Nothing is written twice, but what the table lists.
pub fn equal(tree: &Tree) -> Vec<Finding> {
    EQUAL_LINES.check(&figures(tree))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ratchet::Ceiling;

    fn body(n: usize) -> String {
        (0..n)
            .map(|i| format!("    let a{i} = f({i}); // one\n"))
            .collect()
    }

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let tree = Tree::of(files)
            .with_package("p", "p")
            .with_package("q", "q");
        let found = Ceiling {
            entries: &[],
            ..EQUAL_LINES
        }
        .check(&figures(&tree));
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_copy_is_found_whatever_its_comments_and_blanks() {
        let one = format!("//! One.\nuse a::b;\nfn f() {{\n{}}}\n", body(EQUAL_RUN));
        let other = format!("//! Other.\nfn g() {{\n  g();\n{}}}\n", body(EQUAL_RUN))
            .replace("// one", "\n\n  /* two */\n  {\n  }")
            .replace("    let", " let ");
        let found = found(&[("p/src/lib.rs", &one), ("q/src/lib.rs", &other)]);
        assert!(
            found.len() == 1
                && found[0].starts_with("p/src/lib.rs:4: p/src/lib.rs = q/src/lib.rs: 12 "),
            "{found:?}"
        );
        assert!(found[0].contains("lines 4-15 and 4-59"), "{found:?}");
    }

    #[test]
    fn a_copy_in_one_file_is_found() {
        let text = format!(
            "fn f() {{\n{}}}\nfn g() {{\n{}}}\n",
            body(EQUAL_RUN),
            body(EQUAL_RUN)
        );
        let found = found(&[("p/src/lib.rs", &text)]);
        assert!(
            found.len() == 1 && found[0].contains("p/src/lib.rs = p/src/lib.rs: 12"),
            "{found:?}"
        );
    }

    #[test]
    fn short_runs_tests_imports_and_like_rows_are_left_alone() {
        let short = format!("fn f() {{\n{}}}\n", body(EQUAL_RUN - 2));
        let names: String = (0..20).map(|i| format!("    a{i},\n")).collect();
        let imports = format!("use a::{{\n{names}}};\n");
        let tests = format!(
            "#[cfg(test)]\nmod tests {{\nfn f() {{\n{}}}\n}}\n",
            body(20)
        );
        let rows = "    0,\n".repeat(EQUAL_RUN + 3);
        let one = format!("{imports}{short}{tests}const A: [u8; 15] = [\n{rows}];\n");
        let other = format!("//! Other.\n{imports}{short}{tests}");
        let found = found(&[("p/src/lib.rs", &one), ("q/src/lib.rs", &other)]);
        assert!(found.is_empty(), "{found:?}");
    }
}
