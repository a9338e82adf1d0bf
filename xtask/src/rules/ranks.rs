//! A rank is a place on the mesh: above the crates of the mesh its number in the job is for messages to people alone.

use super::{Finding, Place, at, within};
use crate::source::{line_of, words};
use crate::tables::{ABOVE_MESH, JOB_RANK, JOB_RANK_PLACES};
use crate::tree::Tree;

/// Where a rank is known by its place.
pub fn known_by_place(path: &str) -> Place {
    if !within(path, ABOVE_MESH) || !path.contains("/src/") {
        return Place::free("not in ABOVE_MESH of xtask/src/tables.rs, or a test");
    }
    let rows = JOB_RANK_PLACES.iter().filter(|p| p.0 == path);
    let kept = rows.map(|(_, most, why)| format!("but {most} times, {why}"));
    match super::rust(path) {
        Place::Holds(_) => Place::Holds(kept.collect()),
        free => free,
    }
}

/// No algorithm reads the number of a rank in the job; the table counts those who print it, and only shrinks.
pub fn job_ranks(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (f, split) in tree.rust() {
        if !known_by_place(&f.path).holds() {
            continue;
        }
        let code = split.code.split("#[cfg(test)]").next().unwrap_or_default();
        let hits: Vec<usize> = words(code)
            .filter(|w| w.1 == JOB_RANK)
            .map(|w| w.0)
            .collect();
        let row = JOB_RANK_PLACES.iter().find(|p| p.0 == f.path);
        let most = row.map_or(0, |p| p.1);
        if hits.len() < most {
            let text = format!(
                "`{JOB_RANK}`: {} times; lower the {most} in JOB_RANK_PLACES, so that it stays so",
                hits.len()
            );
            found.push(at(&f.path, 0, text));
        }
        for offset in hits.iter().skip(most) {
            let text = format!(
                "`{JOB_RANK}`: an algorithm knows a rank by its coordinate or its index in a group (`Place::at`, `Place::index`); what prints the number stands in JOB_RANK_PLACES"
            );
            found.push(at(&f.path, line_of(code, *offset), text));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::lines;
    use super::*;

    #[test]
    fn an_algorithm_that_reads_a_job_rank_is_found() {
        let once = JOB_RANK_PLACES.iter().find(|p| p.1 == 1).unwrap().0;
        let tree = Tree::of(&[
            (
                "zero/src/a.rs",
                "//! a job_rank\nfn f(p: &Place) -> u32 {\n    p.job_rank() / 2\n}\n#[cfg(test)]\nmod tests { fn g(p: &Place) { p.job_rank(); } }",
            ),
            ("zero/tests/a.rs", "fn f(p: &Place) { p.job_rank(); }"),
            ("mesh/src/a.rs", "fn f(p: &Place) { p.job_rank(); }"),
            ("cli/src/a.rs", "fn f(p: &Place) { p.job_rank(); }"),
            (
                once,
                "fn f(p: &Place) { p.job_rank(); }\nfn g(p: &Place) { p.job_rank(); }",
            ),
        ]);
        assert_eq!(lines(&job_ranks(&tree)), [("zero/src/a.rs", 3), (once, 2)]);
        let fewer = Tree::of(&[(once, "fn f() {}")]);
        assert_eq!(lines(&job_ranks(&fewer)), [(once, 0)]);
    }
}
