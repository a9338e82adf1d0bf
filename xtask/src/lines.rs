//! Which lines of a checkout are code of the product: no comment, no blank, no test, bench or example of a crate.

use crate::modules::Modules;
use crate::tables::shape::WITHOUT_SHAPE;
use crate::tree::{File, Package, Tree};

/// The package a file belongs to: the one with the longest folder above it.
pub fn owner<'a>(tree: &'a Tree, path: &str) -> Option<&'a Package> {
    let above = |folder: &str| {
        path.strip_prefix(folder)
            .is_some_and(|rest| rest.starts_with('/'))
    };
    tree.packages
        .iter()
        .filter(|p| above(&p.folder))
        .max_by_key(|p| p.folder.len())
}

/// The Rust sources of the product, with their index: below `src` of a crate that is neither tests nor examples, and not declared for
/// tests only.
pub fn product<'a>(
    tree: &'a Tree,
    modules: &Modules,
) -> impl Iterator<Item = (usize, &'a File)> + use<'a> {
    let tests: Vec<bool> = (0..tree.files.len()).map(|i| modules.is_test(i)).collect();
    tree.files.iter().enumerate().filter(move |(i, f)| {
        let crates =
            owner(tree, &f.path).filter(|p| f.path.starts_with(&format!("{}/src/", p.folder)));
        let shaped = !WITHOUT_SHAPE.iter().any(|w| f.path.starts_with(w));
        f.rust.is_some() && crates.is_some() && shaped && !tests[*i]
    })
}

/// For each line of a source whether it holds code, and whether that is a test.
pub fn kinds(file: &File) -> Vec<(bool, bool)> {
    let (Some(split), Some(syntax)) = (&file.rust, &file.syntax) else {
        return Vec::new();
    };
    let mut kinds: Vec<(bool, bool)> = split
        .code
        .lines()
        .map(|l| (!l.trim().is_empty(), false))
        .collect();
    for &(first, last) in &syntax.tests {
        for k in kinds.iter_mut().take(last).skip(first - 1) {
            k.1 = true;
        }
    }
    kinds
}

/// How many lines of these, from 1 and both included, hold code.
pub fn count(kinds: &[(bool, bool)], first: usize, last: usize) -> usize {
    kinds
        .iter()
        .take(last)
        .skip(first - 1)
        .filter(|k| k.0)
        .count()
}
