//! No circle of imports between folders of modules, and circles inside of a folder that only shrink.

use super::Finding;
use crate::modules::{Edge, Modules, circles, way_round};
use crate::ratchet::{Ceiling, Figure};
use crate::tables::shape::{self, WITHOUT_SHAPE};
use crate::tree::{Package, Tree};
use std::collections::{BTreeMap, BTreeSet};

/// What lies in a folder of modules.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// A module with a folder of its own, with everything below it, or a single file; from the root.
    pub path: String,
    /// Which of the two.
    pub folder: bool,
}

/// Parts of one folder that reach one another by imports: at least two, in the order of their paths.
pub struct Circle {
    /// The folder in which they lie.
    pub inside: String,
    /// What makes the circle.
    pub parts: Vec<Part>,
    /// A shortest way round, one sentence for each step.
    pub way: Vec<String>,
}

/// The part of a folder to which a file belongs; none for files outside and for the folder's own head, which is one with all below it.
fn part(folders: &BTreeSet<&str>, folder: &str, file: &str) -> Option<Part> {
    let rest = file.strip_prefix(folder)?.strip_prefix('/')?;
    if let Some((name, _)) = rest.split_once('/') {
        return Some(Part {
            path: format!("{folder}/{name}"),
            folder: true,
        });
    }
    if ["mod.rs", "lib.rs", "main.rs"].contains(&rest) {
        return None;
    }
    let beside = file.strip_suffix(".rs")?;
    let folder = folders.contains(beside);
    let path = if folder { beside } else { file };
    Some(Part {
        path: path.to_string(),
        folder,
    })
}

/// The circles between the parts of every folder of modules; `folders_only` leaves single files out of sight.
pub fn find(tree: &Tree, folders_only: bool) -> Vec<Circle> {
    // A file that only re-exports another's names uses nothing of it.
    let edges: Vec<Edge> = Modules::of(tree)
        .edges()
        .into_iter()
        .filter(|e| !e.exported)
        .collect();
    let mut found = Vec::new();
    let shaped = |p: &&Package| {
        !WITHOUT_SHAPE
            .iter()
            .any(|w| format!("{}/", p.folder).starts_with(w))
    };
    for p in tree.packages.iter().filter(shaped) {
        let src = format!("{}/src", p.folder);
        let inside = |i: usize| tree.files[i].path.starts_with(&format!("{src}/"));
        let own: Vec<&Edge> = edges
            .iter()
            .filter(|e| inside(e.from) && inside(e.to))
            .collect();
        let paths = tree.files.iter().map(|f| f.path.as_str());
        let paths = paths.filter(|p| p.starts_with(&format!("{src}/")) && p.ends_with(".rs"));
        let above = paths.flat_map(|p| p.match_indices('/').map(move |(n, _)| &p[..n]));
        let folders: BTreeSet<&str> = above.filter(|f| f.len() >= src.len()).collect();
        for folder in &folders {
            found.extend(inside_of(tree, &folders, folder, &own, folders_only));
        }
    }
    found
}

fn inside_of(
    tree: &Tree,
    folders: &BTreeSet<&str>,
    folder: &str,
    edges: &[&Edge],
    folders_only: bool,
) -> Vec<Circle> {
    let part = |file: usize| part(folders, folder, &tree.files[file].path);
    let mut arrows: BTreeMap<(Part, Part), &Edge> = BTreeMap::new();
    for e in edges {
        let (Some(a), Some(b)) = (part(e.from), part(e.to)) else {
            continue;
        };
        if a != b && (!folders_only || a.folder && b.folder) {
            arrows.entry((a, b)).or_insert(e);
        }
    }
    let parts: BTreeSet<&Part> = arrows.keys().flat_map(|(a, b)| [a, b]).collect();
    let parts: Vec<&Part> = parts.into_iter().collect();
    let number = |p: &Part| parts.iter().position(|q| *q == p).unwrap_or_default();
    let pairs: Vec<(usize, usize)> = arrows.keys().map(|(a, b)| (number(a), number(b))).collect();
    let step = |w: &[usize]| {
        let e = arrows.get(&(parts[w[0]].clone(), parts[w[1]].clone()))?;
        let (from, to) = (&tree.files[e.from].path, &tree.files[e.to].path);
        Some(format!("{from}:{} names {} of {to}", e.line, e.name))
    };
    circles(parts.len(), &pairs)
        .into_iter()
        .map(|c| Circle {
            inside: folder.to_string(),
            way: way_round(c[0], &c, &pairs)
                .windows(2)
                .filter_map(step)
                .collect(),
            parts: c.iter().map(|&i| parts[i].clone()).collect(),
        })
        .collect()
}

/// The figures of circles. A circle is named by one of its parts: by the one that has a row, else by its first.
pub fn figures(circles: &[Circle], ceiling: &Ceiling) -> Vec<Figure> {
    circles
        .iter()
        .map(|c| {
            let rows = c.parts.iter().filter_map(|p| ceiling.entry(&p.path));
            let best = rows.max_by_key(|e| e.ceiling).map(|e| e.place);
            let parts: Vec<&str> = c
                .parts
                .iter()
                .map(|p| &p.path[c.inside.len() + 1..])
                .collect();
            Figure {
                place: best.unwrap_or(&c.parts[0].path).to_string(),
                path: c.parts[0].path.clone(),
                others: c.parts[1..].iter().map(|p| p.path.clone()).collect(),
                line: 0,
                value: c.parts.len(),
                detail: format!(
                    "{} of {}; one way round: {}",
                    parts.join(", "),
                    c.inside,
                    c.way.join(", ")
                ),
            }
        })
        .collect()
}

/// Circles inside of a folder.
pub fn in_folders(tree: &Tree) -> Vec<Figure> {
    figures(&find(tree, false), &shape::CIRCLES)
}

/// Circles of modules with folders of their own.
pub fn of_folders(tree: &Tree) -> Vec<Figure> {
    figures(&find(tree, true), &shape::FOLDER_CIRCLES)
}

/// Circles inside of a folder are as large as the table says, and no larger.
pub fn inside_folders(tree: &Tree) -> Vec<Finding> {
    shape::CIRCLES.check(&in_folders(tree))
}

/// Modules with folders of their own reach one another in no circle, unless one lies in the other or the table says so.
pub fn between_folders(tree: &Tree) -> Vec<Finding> {
    shape::FOLDER_CIRCLES.check(&of_folders(tree))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ratchet::Entry;

    #[test]
    fn a_circle_between_folders_is_found() {
        let tree = Tree::of(&[
            ("p/src/lib.rs", "mod a; mod b; mod c;"),
            ("p/src/a/mod.rs", "mod x;"),
            ("p/src/a/x.rs", "use crate::b::y::Y;\npub struct X;"),
            ("p/src/b.rs", "pub mod y;"),
            ("p/src/b/y.rs", "pub struct Y;\nfn f() { crate::c::g(); }"),
            ("p/src/c/mod.rs", "pub fn g() -> crate::a::x::X {}"),
        ])
        .with_package("p", "p");
        let none = Ceiling {
            entries: &[],
            ..shape::FOLDER_CIRCLES
        };
        let found = none.check(&figures(&find(&tree, true), &none));
        assert_eq!(found.len(), 1, "{found:?}");
        let text = found[0].to_string();
        assert!(text.starts_with("p/src/a: p/src/a: 3 "), "{text}");
        assert!(text.contains("a, b, c of p/src; one way round: p/src/a/x.rs:1 names crate::b::y::Y of p/src/b/y.rs"), "{text}");
    }

    #[test]
    fn a_circle_of_folders_through_a_single_file_is_one_of_parts() {
        let tree = Tree::of(&[
            ("p/src/lib.rs", "mod a; mod b; mod c;"),
            ("p/src/a/mod.rs", "pub fn f() { crate::c::f() }"),
            ("p/src/b/mod.rs", "pub fn f() { crate::a::f() }"),
            ("p/src/c.rs", "pub fn f() { crate::b::f() }"),
        ])
        .with_package("p", "p");
        assert!(find(&tree, true).is_empty());
        let parts = figures(
            &find(&tree, false),
            &Ceiling {
                entries: &[],
                ..shape::CIRCLES
            },
        );
        assert_eq!(
            (parts.len(), parts[0].value, parts[0].place.as_str()),
            (1, 3, "p/src/a")
        );
    }

    #[test]
    fn a_parent_and_its_child_are_one_and_folders_may_stand_on_one_another() {
        let tree = Tree::of(&[
            (
                "p/src/lib.rs",
                "mod a; mod b;\npub struct Error;\nfn f() { a::f(); b::f(); }",
            ),
            (
                "p/src/a/mod.rs",
                "mod inner;\npub fn f() { inner::deep::g(); crate::Error; }",
            ),
            ("p/src/a/inner/mod.rs", "pub mod deep;"),
            ("p/src/a/inner/deep.rs", "pub fn g() { super::super::f(); }"),
            (
                "p/src/b/mod.rs",
                "pub fn f() { crate::a::f(); crate::Error; }",
            ),
        ])
        .with_package("p", "p");
        assert!(find(&tree, true).is_empty() && find(&tree, false).is_empty());
    }

    const FILES: &[(&str, &str)] = &[
        ("p/src/lib.rs", "mod a; mod b; mod c;\npub use a::A;"),
        ("p/src/a.rs", "pub struct A;\nfn f() { crate::b::g(); }"),
        ("p/src/b.rs", "pub fn g() { crate::c::h(); }"),
        ("p/src/c.rs", "use crate::A;\npub fn h(a: A) {}"),
    ];

    fn found(entries: &'static [Entry]) -> Vec<String> {
        let tree = Tree::of(FILES).with_package("p", "p");
        let ceiling = Ceiling {
            entries,
            ..shape::CIRCLES
        };
        let found = ceiling.check(&figures(&find(&tree, false), &ceiling));
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_circle_inside_of_a_folder_needs_a_row_of_its_size() {
        let none = found(&[]);
        assert!(
            none.len() == 1 && none[0].starts_with("p/src/a.rs: "),
            "{none:?}"
        );
        assert!(
            none[0].contains("p/src/c.rs:1 names crate::A of p/src/a.rs"),
            "{none:?}"
        );
        // Any of its parts may name it.
        const ROW: &[Entry] = &[Entry {
            place: "p/src/b.rs",
            ceiling: 3,
            why: "x",
        }];
        assert!(found(ROW).is_empty());
        const LOW: &[Entry] = &[Entry {
            place: "p/src/b.rs",
            ceiling: 2,
            why: "x",
        }];
        assert!(found(LOW)[0].contains("at most 2 by its row"));
        const HIGH: &[Entry] = &[Entry {
            place: "p/src/b.rs",
            ceiling: 4,
            why: "x",
        }];
        assert!(found(HIGH)[0].contains("lower the row to 3"));
        // Two circles that became one have two rows, of which one is too many.
        const TWO: &[Entry] = &[
            Entry {
                place: "p/src/b.rs",
                ceiling: 3,
                why: "x",
            },
            Entry {
                place: "p/src/c.rs",
                ceiling: 2,
                why: "x",
            },
        ];
        assert!(found(TWO)[0].contains("nothing bears out the row of p/src/c.rs"));
    }
}
