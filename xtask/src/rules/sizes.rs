//! How large a crate, a type and a function may be.

use super::{Finding, at};
use crate::budget;
use crate::lines::{count, kinds, product};
use crate::modules::{Modules, Target};
use crate::ratchet::Figure;
use crate::tables::shape;
use crate::tree::Tree;
use std::collections::BTreeMap;

/// Code lines of every crate, without its tests.
pub fn crate_lines(tree: &Tree) -> Vec<Figure> {
    let lines = budget::count(tree);
    let folder = |name: &str| {
        tree.packages
            .iter()
            .find(|p| p.name == name)
            .map(|p| p.folder.clone())
    };
    lines
        .into_iter()
        .map(|l| Figure {
            path: folder(&l.name).unwrap_or_default(),
            place: l.name,
            others: Vec::new(),
            line: 0,
            value: l.code,
            detail: String::new(),
        })
        .collect()
}

/// A figure of something with a name in a file.
fn named(path: &str, name: &str, line: usize, value: usize) -> Figure {
    Figure {
        place: format!("{path}: {name}"),
        path: path.to_string(),
        others: Vec::new(),
        line,
        value,
        detail: String::new(),
    }
}

/// Fields of every struct.
pub fn fields(tree: &Tree) -> Vec<Figure> {
    let modules = Modules::of(tree);
    product(tree, &modules)
        .flat_map(|(_, f)| {
            let types = f.syntax.iter().flat_map(|s| &s.types);
            types.map(|t| named(&f.path, &t.name, t.line, t.fields))
        })
        .collect()
}

/// Fields that a part of the crate sees, of every struct with more than [`shape::CLOSED_FIELDS`] fields.
pub fn open_fields(tree: &Tree) -> Vec<Figure> {
    let modules = Modules::of(tree);
    product(tree, &modules)
        .flat_map(|(_, f)| {
            let types = f.syntax.iter().flat_map(|s| &s.types);
            types
                .filter(|t| t.fields > shape::CLOSED_FIELDS)
                .map(|t| named(&f.path, &t.name, t.line, t.open))
        })
        .collect()
}

/// Functions of every type, over all its inherent `impl` blocks; those of traits do not count.
pub fn methods(tree: &Tree) -> Vec<Figure> {
    let modules = Modules::of(tree);
    let mut sums: BTreeMap<(usize, String), usize> = BTreeMap::new();
    for (i, f) in product(tree, &modules) {
        for block in f.syntax.iter().flat_map(|s| &s.impls) {
            let target = modules
                .find(i, block.scope, &block.of)
                .into_iter()
                .find_map(|t| match t {
                    Target::Item(_, name) => Some((modules.file_of(t), name.to_string())),
                    Target::Module(_) => None,
                });
            // What no root reaches is counted where it stands.
            let lone = || Some((i, block.of.last()?.clone()));
            if let Some(of) = target.or_else(lone) {
                *sums.entry(of).or_default() += block.methods;
            }
        }
    }
    sums.into_iter()
        .map(|((i, name), value)| {
            let f = &tree.files[i];
            let types = f.syntax.iter().flat_map(|s| &s.types);
            let line = types
                .filter(|t| t.name == name)
                .map(|t| t.line)
                .next()
                .unwrap_or(0);
            named(&f.path, &name, line, value)
        })
        .collect()
}

/// Code lines of every function, its signature included.
pub fn functions(tree: &Tree) -> Vec<Figure> {
    let modules = Modules::of(tree);
    product(tree, &modules)
        .flat_map(|(_, f)| {
            let kinds = kinds(f);
            let functions = f.syntax.iter().flat_map(|s| &s.functions);
            functions
                .map(|n| named(&f.path, &n.name, n.line, count(&kinds, n.line, n.end)))
                .collect::<Vec<_>>()
        })
        .collect()
}

/// Crates stay below their ceilings.
pub fn of_crates(tree: &Tree) -> Vec<Finding> {
    shape::CRATE_LINES.check(&crate_lines(tree))
}

/// Types stay below their ceilings of fields and methods.
pub fn of_types(tree: &Tree) -> Vec<Finding> {
    let mut found = shape::FIELDS.check(&fields(tree));
    found.extend(shape::METHODS.check(&methods(tree)));
    found
}

/// The fields of a large type are its module's own.
pub fn of_open_fields(tree: &Tree) -> Vec<Finding> {
    shape::OPEN_FIELDS.check(&open_fields(tree))
}

/// Functions stay below their ceilings.
pub fn of_functions(tree: &Tree) -> Vec<Finding> {
    shape::FUNCTION_LINES.check(&functions(tree))
}

/// A source that the parser refuses has no shape.
pub fn parsed(tree: &Tree) -> Vec<Finding> {
    let refused = |f: &crate::tree::File| {
        let (line, why) = f.syntax.as_ref()?.error.clone()?;
        Some(at(&f.path, line, format!("does not parse: {why}")))
    };
    tree.files.iter().filter_map(refused).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ratchet::Ceiling;

    fn tree(files: &[(&str, &str)]) -> Tree {
        Tree::of(files).with_package("p", "p")
    }

    /// The findings without the rows of this checkout.
    fn found(ceiling: &Ceiling, figures: &[Figure]) -> Vec<String> {
        let found = Ceiling {
            entries: &[],
            ..*ceiling
        }
        .check(figures);
        found.iter().map(ToString::to_string).collect()
    }

    fn fields_of(n: usize, vis: &str) -> String {
        (0..n).map(|i| format!("{vis} f{i}: u8,")).collect()
    }

    #[test]
    fn a_type_with_too_many_fields_is_found() {
        let most = shape::FIELDS.limit;
        let text = format!(
            "struct A {{ {} }}\n\nstruct B {{ {} }}\n#[cfg(test)]\nmod tests {{ struct C {{ {} }} }}",
            fields_of(most, ""),
            fields_of(most + 1, ""),
            fields_of(most + 1, "")
        );
        let found = found(
            &shape::FIELDS,
            &fields(&tree(&[("p/src/lib.rs", &text), ("p/tests/t.rs", &text)])),
        );
        assert!(
            found.len() == 1 && found[0].starts_with("p/src/lib.rs:3: p/src/lib.rs: B: "),
            "{found:?}"
        );
    }

    #[test]
    fn a_field_that_the_crate_sees_is_found_on_a_large_type_only() {
        let text = format!(
            "struct A {{ {} }}\nstruct B {{ pub(crate) a: u8, {} }}\nstruct C {{ pub(super) a: u8, {} }}\npub struct D {{ {} }}",
            fields_of(5, "pub(crate)"),
            fields_of(5, ""),
            fields_of(4, ""),
            fields_of(6, "pub"),
        );
        let found = found(
            &shape::OPEN_FIELDS,
            &open_fields(&tree(&[("p/src/lib.rs", &text)])),
        );
        assert!(
            found.len() == 1 && found[0].contains("p/src/lib.rs: B: 1 "),
            "{found:?}"
        );
    }

    #[test]
    fn methods_are_counted_over_all_blocks_of_a_type() {
        let half = shape::METHODS.limit / 2;
        let fns: String = (0..half)
            .map(|i| format!("fn m{i}(&self) {{}}\n"))
            .collect();
        let block = |name: &str| format!("impl {name} {{\n{fns}}}\n");
        let rest = shape::METHODS.limit + 1 - 2 * half;
        let last: String = (0..rest).map(|i| format!("fn n{i}() {{}}\n")).collect();
        let lib = format!(
            "mod more;\npub use more::Kind;\npub struct A;\npub struct B;\n{}{}",
            block("A"),
            block("B")
        );
        let more = format!(
            "pub enum Kind {{}}\n{}{}impl crate::A {{\n{last}}}\nimpl Drop for super::B {{\n{last}}}\n",
            block("crate::A"),
            block("super::B"),
        );
        let tree = tree(&[("p/src/lib.rs", &lib), ("p/src/more.rs", &more)]);
        let found = found(&shape::METHODS, &methods(&tree));
        assert!(
            found.len() == 1 && found[0].starts_with("p/src/lib.rs:3: p/src/lib.rs: A: "),
            "{found:?}"
        );
    }

    #[test]
    fn a_long_function_is_found_by_its_lines_of_code() {
        let most = shape::FUNCTION_LINES.limit;
        let body = |n: usize| "    g();\n    // why\n\n".repeat(n);
        let text = format!(
            "fn a() {{\n{}}}\nimpl A {{\nfn b() {{\n{}}}\n}}\n#[test]\nfn c() {{\n{}}}\n",
            body(most - 2),
            body(most - 1),
            body(most)
        );
        let found = found(
            &shape::FUNCTION_LINES,
            &functions(&tree(&[("p/src/lib.rs", &text)])),
        );
        assert!(
            found.len() == 1 && found[0].contains(": p/src/lib.rs: A::b: "),
            "{found:?}"
        );
    }

    #[test]
    fn a_large_crate_is_found_and_its_tests_do_not_count() {
        let most = shape::CRATE_LINES.limit;
        let lines = |n: usize| "const A: u8 = 0;\n// why\n".repeat(n);
        let tests = format!(
            "{}#[cfg(test)]\nmod tests {{\n{}}}\n",
            lines(most),
            lines(9)
        );
        assert!(
            found(
                &shape::CRATE_LINES,
                &crate_lines(&tree(&[("p/src/lib.rs", &tests)]))
            )
            .is_empty()
        );
        let more = ("p/src/a.rs", "fn f() {}\n");
        let found = found(
            &shape::CRATE_LINES,
            &crate_lines(&tree(&[("p/src/lib.rs", &tests), more])),
        );
        assert!(
            found.len() == 1 && found[0].starts_with("p: p: "),
            "{found:?}"
        );
    }

    #[test]
    fn a_source_that_does_not_parse_is_found() {
        let tree = tree(&[
            ("p/src/lib.rs", "fn f() {}\nfn }\n"),
            ("p/src/a.rs", "fn f() {}"),
        ]);
        let found = parsed(&tree);
        assert_eq!(super::super::lines(&found), [("p/src/lib.rs", 2)]);
    }
}
