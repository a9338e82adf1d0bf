//! Dependencies that nothing uses: of the workspace, of a crate, and of the table of crates.

use super::{Finding, at};
use crate::lines::kinds;
use crate::modules::joined;
use crate::source::words;
use crate::tables::{ANY, CRATES, Crate, UNNAMED_DEPENDENCIES};
use crate::tree::{Package, Tree};
use std::collections::{BTreeSet, HashSet};
use toml::{Table, Value};

/// A manifest, read.
///
/// # Errors
/// It is no TOML.
pub fn manifest(tree: &Tree, path: &str) -> Result<Table, Finding> {
    let text = tree.file(path).map_or("", |f| f.text.as_str());
    text.parse().map_err(|e: toml::de::Error| {
        let line = e
            .span()
            .map_or(0, |s| 1 + text[..s.start].matches('\n').count());
        at(path, line, format!("is no TOML: {}", e.message()))
    })
}

/// Every table of dependencies of a manifest, those of a target included.
fn tables(manifest: &Table) -> Vec<&Table> {
    const KINDS: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];
    let targets = manifest.get("target").and_then(Value::as_table);
    let targets = targets
        .into_iter()
        .flat_map(|t| t.values().filter_map(Value::as_table));
    std::iter::once(manifest)
        .chain(targets)
        .flat_map(|t| KINDS.iter().filter_map(|k| t.get(*k)?.as_table()))
        .collect()
}

/// Every row of `[workspace.dependencies]` is named by a member.
pub fn of_workspace(tree: &Tree) -> Vec<Finding> {
    let root = match manifest(tree, "Cargo.toml") {
        Ok(m) => m,
        Err(f) => return vec![f],
    };
    let shared = root
        .get("workspace")
        .and_then(|w| w.get("dependencies"))
        .and_then(Value::as_table);
    let mut used: HashSet<String> = HashSet::new();
    for p in &tree.packages {
        let member = match manifest(tree, &format!("{}/Cargo.toml", p.folder)) {
            Ok(m) => m,
            Err(f) => return vec![f],
        };
        for (name, row) in tables(&member).into_iter().flatten() {
            if row.get("workspace").and_then(Value::as_bool) == Some(true) {
                used.insert(name.clone());
            }
        }
    }
    let names = shared.into_iter().flat_map(|s| s.keys());
    let unused = names.filter(|n| !used.contains(*n));
    unused
        .map(|n| {
            let text = &tree.file("Cargo.toml").map_or("", |f| f.text.as_str());
            let own = |l: &str| {
                l.strip_prefix(n.as_str())
                    .is_some_and(|r| r.trim_start().starts_with(['=', '.']))
            };
            let line = text.lines().position(own).map_or(0, |i| i + 1);
            at(
                "Cargo.toml",
                line,
                format!("no crate uses {n}: remove it from [workspace.dependencies]"),
            )
        })
        .collect()
}

/// The sources of a package: those in its folder, and those of others that its own bring in by `#[path]`.
fn sources(tree: &Tree, p: &Package) -> BTreeSet<usize> {
    let nested = |path: &str| {
        let inner =
            |o: &&Package| o.folder.len() > p.folder.len() && o.folder.starts_with(&p.folder);
        tree.packages
            .iter()
            .filter(inner)
            .any(|o| path.starts_with(&format!("{}/", o.folder)))
    };
    let own = |path: &str| path.starts_with(&format!("{}/", p.folder)) && !nested(path);
    let rust = |i: &usize| tree.files[*i].rust.is_some();
    let mut open: Vec<usize> = (0..tree.files.len())
        .filter(rust)
        .filter(|&i| own(&tree.files[i].path))
        .collect();
    let mut all = BTreeSet::new();
    while let Some(i) = open.pop() {
        let Some(syntax) = tree.files[i].syntax.as_ref().filter(|_| all.insert(i)) else {
            continue;
        };
        let folder = tree.files[i].path.rsplit_once('/').map_or("", |p| p.0);
        for path in syntax
            .scopes
            .iter()
            .flat_map(|s| &s.children)
            .filter_map(|c| c.path.as_ref())
        {
            let path = joined(folder, path);
            // A module in a folder of its own comes with that folder.
            let beside = path.strip_suffix("mod.rs").filter(|f| f.ends_with('/'));
            let comes = |f: &str| f == path || beside.is_some_and(|b| f.starts_with(b));
            open.extend(
                (0..tree.files.len())
                    .filter(rust)
                    .filter(|&i| comes(&tree.files[i].path)),
            );
        }
    }
    all
}

/// Every dependency of a crate is named in its code: a dependency of the product outside tests.
pub fn of_crates(tree: &Tree) -> Vec<Finding> {
    tree.packages
        .iter()
        .flat_map(|p| of_crate(tree, p, UNNAMED_DEPENDENCIES))
        .collect()
}

fn of_crate(tree: &Tree, p: &Package, excepted: &[(&str, &str, &str)]) -> Vec<Finding> {
    if p.dependencies.is_empty() {
        return Vec::new();
    }
    let (mut product, mut anywhere) = (HashSet::new(), HashSet::new());
    for i in sources(tree, p) {
        let f = &tree.files[i];
        let beside = f.path.strip_prefix(&p.folder).unwrap_or(&f.path);
        let in_product = beside.starts_with("/src/") || beside == "/build.rs";
        let Some(split) = &f.rust else { continue };
        for (line, (_, test)) in split.code.lines().zip(kinds(f)) {
            for (_, w) in words(line) {
                anywhere.insert(w);
                if in_product && !test {
                    product.insert(w);
                }
            }
        }
    }
    let mut found = Vec::new();
    let path = format!("{}/Cargo.toml", p.folder);
    for d in &p.dependencies {
        let named = if d.dev { &anywhere } else { &product };
        let row = excepted.iter().find(|e| e.0 == p.name && e.1 == d.name);
        let is_named = named.contains(d.code.as_str());
        let text = match (is_named, row) {
            (true, Some(_)) => format!(
                "names {} in its code: remove its row in UNNAMED_DEPENDENCIES of xtask/src/tables.rs",
                d.name
            ),
            (false, None) if !d.dev && anywhere.contains(d.code.as_str()) => {
                format!("only tests name {}: make it a dev-dependency", d.name)
            }
            (false, None) => format!(
                "no code of {} names {}: remove the dependency",
                p.name, d.name
            ),
            _ => continue,
        };
        found.push(at(&path, 0, text));
    }
    for e in excepted
        .iter()
        .filter(|e| e.0 == p.name && !p.dependencies.iter().any(|d| d.name == e.1))
    {
        found.push(at(&path, 0, format!("does not depend on {}: remove its row in UNNAMED_DEPENDENCIES of xtask/src/tables.rs", e.1)));
    }
    found
}

/// The table of crates allows nothing that no manifest asks for.
pub fn of_table(tree: &Tree) -> Vec<Finding> {
    tree.packages.iter().flat_map(|p| rows(p, CRATES)).collect()
}

fn rows(p: &Package, table: &[Crate]) -> Vec<Finding> {
    let Some(row) = table.iter().find(|c| c.name == p.name) else {
        return Vec::new();
    };
    let has = |name: &str, dev: bool| {
        p.dependencies
            .iter()
            .any(|d| d.name == name && d.dev == dev)
    };
    let lists = [
        ("ours", row.ours, false),
        ("theirs", row.theirs, false),
        ("dev", row.dev, true),
    ];
    let mut found = Vec::new();
    for (list, names, dev) in lists.into_iter().filter(|l| l.1 != ANY) {
        for name in names.iter().filter(|n| !has(n, dev)) {
            let text = format!(
                "CRATES lets {} depend on {name}, and its manifest does not: remove {name} from `{list}`",
                p.name
            );
            found.push(at("xtask/src/tables.rs", 0, text));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Dependency;

    fn texts(found: &[Finding]) -> Vec<String> {
        found.iter().map(ToString::to_string).collect()
    }

    fn package(name: &str, dependencies: &[(&str, bool)]) -> Package {
        Package {
            name: name.into(),
            folder: name.into(),
            dependencies: dependencies
                .iter()
                .map(|(n, dev)| Dependency::new(n, *dev))
                .collect(),
        }
    }

    #[test]
    fn a_workspace_dependency_that_no_crate_uses_is_found() {
        let root = "[workspace.dependencies]\nserde = \"1\"\nserde_json = \"1\"\nlibc = \"0.2\"\nhalf = { version = \"2\" }\nglob = \"1\"\n";
        let mut tree = Tree::of(&[
            ("Cargo.toml", root),
            (
                "a/Cargo.toml",
                "[dependencies]\nserde_json.workspace = true\n# serde.workspace = true\n",
            ),
            (
                "b/Cargo.toml",
                "[target.'cfg(unix)'.dependencies]\nlibc = { workspace = true }\n[dev-dependencies]\nhalf.workspace = true\nglob = \"1\"\n",
            ),
        ]);
        tree.packages = vec![package("a", &[]), package("b", &[])];
        let found = texts(&of_workspace(&tree));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].starts_with("Cargo.toml:6: no crate uses glob"),
            "{found:?}"
        );
        assert!(
            found[1].starts_with("Cargo.toml:2: no crate uses serde:"),
            "{found:?}"
        );
    }

    #[test]
    fn a_manifest_that_does_not_parse_is_a_finding() {
        let tree = Tree::of(&[("Cargo.toml", "[workspace.dependencies]\nserde =\n")]);
        assert!(texts(&of_workspace(&tree))[0].starts_with("Cargo.toml:2: is no TOML"));
    }

    #[test]
    fn a_dependency_that_the_code_does_not_name_is_found() {
        let mut tree = Tree::of(&[
            (
                "a/src/lib.rs",
                "use half_float as h;\n// glob\nmod m;\n#[cfg(test)]\nmod tests { use libc::c_int; }",
            ),
            (
                "a/tests/t.rs",
                "#[path = \"../../b/tests/common/mod.rs\"]\nmod common;",
            ),
            ("a/b/src/lib.rs", "use serde::X;"),
            ("b/tests/common/mod.rs", "mod deep;"),
            ("b/tests/common/deep.rs", "use tempfile::X;"),
        ]);
        tree.packages = vec![
            package(
                "a",
                &[
                    ("half-float", false),
                    ("glob", false),
                    ("libc", false),
                    ("tempfile", true),
                    ("serde", true),
                    ("rows", false),
                ],
            ),
            Package {
                folder: "a/b".into(),
                ..package("inner", &[("serde", false)])
            },
        ];
        let rows = [
            ("a", "rows", "for its features"),
            ("a", "half-float", "x"),
            ("a", "gone", "x"),
            ("inner", "serde", "x"),
        ];
        let found = texts(&of_crate(&tree, &tree.packages[0], &rows));
        let want = [
            "a/Cargo.toml: names half-float in its code: remove its row",
            "a/Cargo.toml: no code of a names glob: remove the dependency",
            "a/Cargo.toml: only tests name libc: make it a dev-dependency",
            "a/Cargo.toml: no code of a names serde: remove the dependency",
            "a/Cargo.toml: does not depend on gone: remove its row",
        ];
        assert_eq!(found.len(), want.len(), "{found:?}");
        for (f, w) in found.iter().zip(want) {
            assert!(f.starts_with(w), "{f}");
        }
        assert_eq!(of_crate(&tree, &tree.packages[1], &[]), []);
    }

    #[test]
    fn a_row_that_allows_more_than_the_manifest_asks_is_found() {
        const TABLE: &[Crate] = &[
            Crate {
                name: "a",
                floor: 1,
                ours: &["b"],
                theirs: &["serde", "glob"],
                dev: &["tempfile", "libc"],
            },
            Crate {
                name: "b",
                floor: 0,
                ours: ANY,
                theirs: ANY,
                dev: ANY,
            },
        ];
        let a = package(
            "a",
            &[
                ("b", false),
                ("serde", false),
                ("glob", true),
                ("libc", true),
            ],
        );
        let found = texts(&rows(&a, TABLE));
        assert!(
            found.len() == 2
                && found[0].contains("depend on glob")
                && found[1].contains("depend on tempfile"),
            "{found:?}"
        );
        assert_eq!(rows(&package("b", &[]), TABLE), []);
    }
}
