//! The tree keeps its own rules: `cargo xtask tidy` as a test.

use std::path::Path;
use xtask::{Tree, tidy};

#[test]
fn the_tree_is_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let tree = Tree::read(&root).unwrap();
    // A walk that found nothing would pass every rule.
    assert!(tree.packages.len() > 20 && tree.rust().count() > 100);
    let found: Vec<String> = tidy(&tree).iter().map(ToString::to_string).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}
