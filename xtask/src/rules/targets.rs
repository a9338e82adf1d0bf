//! Test harnesses of a crate's own targets: a harness without a test is compiled and linked for
//! nothing, and a test without a harness never runs.

use super::unused::manifest;
use super::{Finding, at};
use crate::tree::{File, Package, Tree};
use toml::{Table, Value};

/// Every `lib` and `bin` has a test harness if there is a `#[test]` in it, and a `lib` has doctests
/// if a doc comment holds Rust code; `test = false` and `doctest = false` state that there is none.
pub fn harnesses(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for p in &tree.packages {
        match manifest(tree, &format!("{}/Cargo.toml", p.folder)) {
            Ok(m) => found.extend(of_package(tree, p, &m)),
            Err(f) => found.push(f),
        }
    }
    found
}

fn of_package(tree: &Tree, p: &Package, m: &Table) -> Vec<Finding> {
    let path = format!("{}/Cargo.toml", p.folder);
    let src = format!("{}/src/", p.folder);
    let (main, bin) = (format!("{src}main.rs"), format!("{src}bin/"));
    let below = |start: &str| -> Vec<&File> {
        let rust = tree.rust().map(|(f, _)| f);
        rust.filter(|f| f.path.starts_with(start)).collect()
    };
    let mut found = Vec::new();
    let mut judge = |target: &str, key: &str, said: bool, there: bool| {
        let why = match (said, there) {
            (true, false) => format!("{target} has nothing to run: write `{key} = false`"),
            (false, true) => format!("{target} says `{key} = false`, and what it has never runs"),
            _ => return,
        };
        found.push(at(&path, 0, why));
    };
    let lib = m.get("lib").and_then(Value::as_table);
    if tree.file(&format!("{src}lib.rs")).is_some() {
        let mut own = below(&src);
        own.retain(|f| f.path != main && !f.path.starts_with(&bin));
        judge(
            "[lib]",
            "test",
            on(lib, "test"),
            own.iter().any(|f| tests(f)),
        );
        // Rustdoc runs no code of a library that Rust cannot link with.
        let linked = lib.is_none_or(|l| !l.contains_key("crate-type"));
        if linked {
            let there = own.iter().any(|f| doctests(f));
            judge("[lib]", "doctest", on(lib, "doctest"), there);
        }
    }
    let named = m.get("bin").and_then(Value::as_array);
    for f in below(&bin).into_iter().chain(tree.file(&main)) {
        // What `main.rs` holds in modules of its own is judged where it has no library beside it.
        let whole = f.path == main && tree.file(&format!("{src}lib.rs")).is_none();
        let there = match whole {
            true => below(&src).iter().any(|f| tests(f)),
            false => tests(f),
        };
        let own = f.path.strip_prefix(&format!("{}/", p.folder));
        let of = |b: &&Table| b.get("path").and_then(Value::as_str) == own;
        let mut all = named.into_iter().flatten().filter_map(Value::as_table);
        let row = all.find(of);
        judge(&f.path, "test", on(row, "test"), there);
    }
    found
}

/// What Cargo assumes of a key that is not there.
fn on(target: Option<&Table>, key: &str) -> bool {
    let said = target.and_then(|t| t.get(key)).and_then(Value::as_bool);
    said.unwrap_or(true)
}

fn tests(f: &File) -> bool {
    let code = f.rust.as_ref().map_or("", |r| r.code.as_str());
    code.contains("#[test]")
}

/// Does a doc comment hold a block that rustdoc compiles?
fn doctests(f: &File) -> bool {
    const COMPILED: [&str; 5] = ["", "rust", "no_run", "should_panic", "compile_fail"];
    let mut inside = false;
    f.text.lines().map(str::trim).any(|l| {
        let doc = l.strip_prefix("///").or_else(|| l.strip_prefix("//!"));
        let Some(words) = doc.and_then(|d| d.trim().strip_prefix("```")) else {
            return false;
        };
        inside = !inside;
        inside && words.split(',').all(|w| COMPILED.contains(&w.trim()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(manifest: &str, files: &[(&str, &str)]) -> Vec<String> {
        let mut all = vec![("a/Cargo.toml", manifest)];
        all.extend(files);
        let mut tree = Tree::of(&all);
        tree.packages = vec![Package {
            name: "a".into(),
            folder: "a".into(),
            dependencies: vec![],
        }];
        harnesses(&tree).into_iter().map(|f| f.text).collect()
    }

    #[test]
    fn a_harness_without_tests_and_tests_without_a_harness_are_found() {
        let (bare, test) = ("pub fn f() {}\n", "#[test]\nfn t() {}\n");
        let doc = "/// ```\n/// f();\n/// ```\npub fn f() {}\n";
        let none = "[lib]\ntest = false\ndoctest = false\n";
        let shown = "[lib]\ntest = false\n";
        assert_eq!(of(none, &[("a/src/lib.rs", bare)]), Vec::<String>::new());
        assert_eq!(of(shown, &[("a/src/lib.rs", doc)]), Vec::<String>::new());
        let found = of("", &[("a/src/lib.rs", bare)]);
        assert_eq!(found.len(), 2, "{found:?}");
        let found = of(none, &[("a/src/lib.rs", bare), ("a/src/b.rs", test)]);
        assert!(found[0].contains("never runs"), "{found:?}");
        let found = of(none, &[("a/src/lib.rs", doc)]);
        assert!(found[0].contains("doctest"), "{found:?}");
        let console = "//! ```console\n//! $ f\n//! ```\n";
        assert_eq!(of(none, &[("a/src/lib.rs", console)]), Vec::<String>::new());
        let plugin = "[lib]\ntest = false\ncrate-type = [\"cdylib\"]\n";
        assert_eq!(of(plugin, &[("a/src/lib.rs", bare)]), Vec::<String>::new());
        assert!(!doctests(&File::new("b.rs", "// ```\n")));
    }

    #[test]
    fn binaries_are_judged_each() {
        let (bare, test) = ("fn main() {}\n", "fn main() {}\n#[test]\nfn t() {}\n");
        let row = "[[bin]]\nname = \"b\"\npath = \"src/bin/b.rs\"\ntest = false\n";
        assert_eq!(of(row, &[("a/src/bin/b.rs", bare)]), Vec::<String>::new());
        assert_eq!(of("", &[("a/src/bin/b.rs", bare)]).len(), 1);
        assert_eq!(of(row, &[("a/src/bin/b.rs", test)]).len(), 1);
        assert_eq!(of("", &[("a/src/main.rs", test)]), Vec::<String>::new());
        let beside = [("a/src/main.rs", bare), ("a/src/m.rs", test)];
        assert_eq!(of("", &beside), Vec::<String>::new());
    }
}
