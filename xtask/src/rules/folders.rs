//! Folders of the root: crates of one import those of another in one direction, and the architecture lists them in that order.

use super::{Finding, Place, at};
use crate::modules::{circles, way_round};
use crate::tables::{ANY, ARCHITECTURE, CRATES, Crate, FOLDER_LIST};
use crate::tree::Tree;
use std::collections::{BTreeMap, BTreeSet};

/// A dependency that leads from one folder of the root into another: both folders, and the two crates.
type Arrows<'a> = BTreeMap<(&'a str, &'a str), (&'a str, &'a str)>;

/// Where the rule looks: at manifests, and at the list.
pub fn looked_at(path: &str) -> Place {
    match path.ends_with("Cargo.toml") || path == ARCHITECTURE {
        true => Place::Holds(Vec::new()),
        false => Place::free("neither a manifest nor the list of folders"),
    }
}

/// The folders of the root that hold crates, with the first crate that leads from one into another by its row of the table. What tests
/// use is no arrow, nor is anything of a crate that may use all: nothing stands on it.
fn graph<'a>(tree: &'a Tree, table: &[Crate]) -> (Vec<&'a str>, Arrows<'a>) {
    let of: BTreeMap<&str, &str> = tree
        .packages
        .iter()
        .map(|p| {
            (
                p.name.as_str(),
                p.folder.split('/').next().unwrap_or_default(),
            )
        })
        .collect();
    let mut arrows = Arrows::new();
    for row in table.iter().filter(|c| c.ours != ANY) {
        for below in row.ours {
            let ends = of.get_key_value(row.name).zip(of.get_key_value(below));
            let Some(((from, a), (to, b))) = ends.filter(|((_, a), (_, b))| a != b) else {
                continue;
            };
            arrows.entry((*a, *b)).or_insert((*from, *to));
        }
    }
    let folders: BTreeSet<&str> = of.into_values().collect();
    (folders.into_iter().collect(), arrows)
}

/// Folders of the root reach one another in no circle, and stand in the list of the architecture behind those that they use.
pub fn of_root(tree: &Tree) -> Vec<Finding> {
    judged(tree, CRATES)
}

fn judged(tree: &Tree, table: &[Crate]) -> Vec<Finding> {
    let (folders, arrows) = graph(tree, table);
    let mut found = Vec::new();
    let number = |f: &str| folders.binary_search(&f).unwrap_or_default();
    let pairs: Vec<(usize, usize)> = arrows.keys().map(|(a, b)| (number(a), number(b))).collect();
    for circle in circles(folders.len(), &pairs) {
        let way: Vec<String> = way_round(circle[0], &circle, &pairs)
            .windows(2)
            .filter_map(|w| arrows.get(&(folders[w[0]], folders[w[1]])))
            .map(|(from, to)| format!("{from} depends on {to}"))
            .collect();
        let names: Vec<&str> = circle.iter().map(|&i| folders[i]).collect();
        let text = format!(
            "folders that use one another in a circle: {} ({}); move a crate into the folder of those that it stands beside, or cut a dependency",
            names.join(", "),
            way.join(", ")
        );
        found.push(at("xtask/src/tables.rs", 0, text));
    }
    found.extend(listed(tree, &folders, &arrows));
    found
}

/// The list of the architecture names every folder once, each behind all that it uses.
fn listed(tree: &Tree, folders: &[&str], arrows: &Arrows<'_>) -> Vec<Finding> {
    let Some(page) = tree.file(ARCHITECTURE) else {
        return Vec::new();
    };
    let lines = || page.text.lines().enumerate();
    let Some((first, _)) = lines().find(|(_, l)| l.starts_with(FOLDER_LIST)) else {
        let text = format!("has no paragraph that begins with \"{FOLDER_LIST}\"");
        return vec![at(ARCHITECTURE, 0, text)];
    };
    let list: Vec<&str> = lines()
        .skip(first)
        .take_while(|(_, l)| !l.is_empty())
        .flat_map(|(_, l)| l.split('`').skip(1).step_by(2))
        .filter_map(|span| span.strip_suffix('/'))
        .collect();
    let mut texts = Vec::new();
    for (i, folder) in list.iter().enumerate() {
        if list[..i].contains(folder) {
            texts.push(format!("lists `{folder}/` twice"));
        }
    }
    let place = |f: &str| list.iter().position(|l| *l == f);
    for folder in folders.iter().filter(|f| place(f).is_none()) {
        texts.push(format!("does not list `{folder}/`, which holds a crate"));
    }
    for ((from, to), (user, used)) in arrows {
        if place(from) < place(to) && place(from).is_some() {
            texts.push(format!(
                "lists `{from}/` before `{to}/`, and {user} depends on {used}"
            ));
        }
    }
    let found = texts
        .into_iter()
        .map(|text| at(ARCHITECTURE, first + 1, text));
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::super::lines;
    use super::*;

    const fn row(name: &'static str, ours: &'static [&'static str]) -> Crate {
        Crate {
            name,
            floor: 0,
            ours,
            theirs: &[],
            dev: &["a"],
        }
    }

    /// Crates a, b in `low/` and c in `high/`, with what the page says.
    fn planted(page: &str) -> Tree {
        Tree::of(&[(ARCHITECTURE, page)])
            .with_package("a", "low")
            .with_package("b", "low/b")
            .with_package("c", "high/c")
            .with_package("t", "tests")
    }

    const PAGE: &str =
        "# x\n\nFolders, lowest first: `low/` (`b`), `high/` →\n`tests/` and `ci/`.\n\n`gone/`\n";

    #[test]
    fn a_circle_of_folders_is_found_with_a_way_round_though_no_crates_make_one() {
        let down = [row("a", &[]), row("b", &["a"]), row("c", &["b"])];
        assert_eq!(judged(&planted(PAGE), &down), []);
        // a, c, b is a chain of crates; its folders are low, high, low.
        let circle = [row("a", &["c"]), row("b", &[]), row("c", &["b"])];
        let found = judged(&planted(PAGE), &circle);
        assert_eq!(
            lines(&found),
            [("xtask/src/tables.rs", 0), (ARCHITECTURE, 3)]
        );
        for word in ["high, low", "a depends on c", "c depends on b"] {
            assert!(found[0].text.contains(word), "{word}: {}", found[0]);
        }
    }

    #[test]
    fn tests_and_what_may_use_everything_make_no_arrow() {
        let table = [row("a", &[]), row("c", &["a"]), row("t", ANY)];
        assert_eq!(judged(&planted(PAGE), &table), []);
    }

    #[test]
    fn a_list_that_lacks_a_folder_or_has_them_in_another_order_is_found() {
        let table = [row("a", &[]), row("c", &["a"])];
        let said = |list: &str| {
            let page = format!("\n{FOLDER_LIST} {list}\n");
            let found = judged(&planted(&page), &table);
            found.into_iter().map(|f| f.text).collect::<Vec<_>>()
        };
        assert_eq!(said("`low/`, `high/`, `tests/`"), Vec::<String>::new());
        assert_eq!(
            said("`high/`, `low/`, `tests/`"),
            ["lists `high/` before `low/`, and c depends on a"]
        );
        assert_eq!(
            said("`low/`, `low/`, `high/`, `ci/`"),
            [
                "lists `low/` twice",
                "does not list `tests/`, which holds a crate"
            ]
        );
        let found = judged(&planted("# x\n"), &table);
        assert_eq!(lines(&found), [(ARCHITECTURE, 0)]);
    }
}
