//! Who may depend on whom: `cargo metadata` against the table of crates.

use super::{Finding, at};
use crate::tables::{ANY, CRATES, Crate};
use crate::tree::{Dependency, Package, Tree};

/// Every declared dependency stands in the table, and points to a lower floor.
pub fn dependencies(tree: &Tree) -> Vec<Finding> {
    tree.packages
        .iter()
        .flat_map(|p| package(p, CRATES))
        .collect()
}

fn package(p: &Package, table: &[Crate]) -> Vec<Finding> {
    let manifest = format!("{}/Cargo.toml", p.folder);
    let Some(row) = table.iter().find(|c| c.name == p.name) else {
        let text = format!(
            "{} is not in CRATES of xtask/src/tables.rs; give it a floor there",
            p.name
        );
        return vec![at(&manifest, 0, text)];
    };
    let mut found = Vec::new();
    for d in &p.dependencies {
        let ours = table.iter().find(|c| c.name == d.name);
        if !allowed(row, d, ours.is_some()) {
            found.push(at(&manifest, 0, format!(
                "{} may not depend on {}{}; if it must, say so in CRATES of xtask/src/tables.rs",
                p.name, d.name, if d.dev { " (dev)" } else { "" }
            )));
        }
        // Tests may look up: a dev-dependency on a higher floor makes no edge of the product.
        if let Some(c) = ours.filter(|c| !d.dev && c.floor >= row.floor) {
            found.push(at(
                &manifest,
                0,
                format!(
                    "{} (floor {}) depends on {} (floor {}); an edge goes down",
                    p.name, row.floor, c.name, c.floor
                ),
            ));
        }
    }
    found
}

fn allowed(row: &Crate, d: &Dependency, ours: bool) -> bool {
    let holds = |list: &[&str]| list == ANY || list.contains(&d.name.as_str());
    holds(if ours { row.ours } else { row.theirs }) || (d.dev && holds(row.dev))
}

/// Every crate inherits the workspace's lints, among which `missing_docs` is denied.
pub fn lints(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    let has = |path: &str, want: &[&str]| {
        let text = tree.file(path).map_or("", |f| f.text.as_str());
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        lines.windows(want.len()).any(|w| w == want)
    };
    for p in &tree.packages {
        let manifest = format!("{}/Cargo.toml", p.folder);
        if !has(&manifest, &["[lints]", "workspace = true"]) {
            found.push(at(&manifest, 0, "does not say `[lints] workspace = true`"));
        }
    }
    if !tree.packages.is_empty() && !has("Cargo.toml", &["missing_docs = \"deny\""]) {
        found.push(at(
            "Cargo.toml",
            0,
            "[workspace.lints.rust] does not deny missing_docs",
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::File;

    fn planted(name: &str, dependency: &str, dev: bool) -> Vec<Finding> {
        let tree = Tree {
            packages: vec![Package {
                name: name.into(),
                folder: "x".into(),
                dependencies: vec![Dependency::new(dependency, dev)],
            }],
            files: vec![],
        };
        dependencies(&tree)
    }

    #[test]
    fn an_edge_that_is_not_in_the_table_is_found() {
        assert_eq!(planted("crossweave-plan", "serde", false), []);
        let found = planted("crossweave-plan", "crossweave-hal", false);
        assert!(found[0].text.contains("may not depend"), "{found:?}");
        assert_eq!(
            planted("crossweave-parallel", "crossweave-zero", false).len(),
            2
        );
        assert_eq!(
            planted("crossweave-nn", "crossweave-engine", false).len(),
            2
        );
        assert_eq!(planted("crossweave-mesh", "rayon", false).len(), 1);
    }

    #[test]
    fn a_test_may_use_what_its_crate_may_not() {
        assert_eq!(
            planted("crossweave-backend-null", "crossweave-hal", true),
            []
        );
        assert_eq!(
            planted("crossweave-backend-null", "crossweave-hal", false).len(),
            2
        );
    }

    #[test]
    fn a_crate_outside_the_table_is_found() {
        assert!(
            planted("crossweave-new", "serde", false)[0]
                .text
                .contains("not in CRATES")
        );
    }

    #[test]
    fn the_table_itself_goes_down_only() {
        for c in CRATES {
            for name in c.ours.iter().filter(|n| **n != "*") {
                let below = CRATES.iter().find(|d| d.name == *name).unwrap();
                assert!(below.floor < c.floor, "{} -> {name}", c.name);
            }
        }
    }

    #[test]
    fn lints_that_are_not_inherited_are_found() {
        let mut tree = Tree {
            packages: vec![Package {
                name: "a".into(),
                folder: "a".into(),
                dependencies: vec![],
            }],
            files: vec![
                File::new(
                    "Cargo.toml",
                    "[workspace.lints.rust]\nmissing_docs = \"deny\"\n",
                ),
                File::new("a/Cargo.toml", "[lints]\nworkspace = true\n"),
            ],
        };
        assert_eq!(lints(&tree), []);
        tree.files[1] = File::new("a/Cargo.toml", "[package]\n");
        assert_eq!(lints(&tree)[0].path, "a/Cargo.toml");
        tree.files[0] = File::new("Cargo.toml", "");
        assert_eq!(lints(&tree).len(), 2);
    }
}
