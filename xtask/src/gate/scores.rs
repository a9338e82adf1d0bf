//! How many of the mutants of each op the kit names, for the gate's report: tests hold the committed scores to what is so.

/// The committed scores: op, mutants named, mutants in all, those that are missed.
pub const FILE: &str = "tests/seeded/mutants.tsv";

/// A line with the sum, and one for each op of which a mutant is missed.
pub fn lines(scores: &str) -> Vec<String> {
    let row = |l: &str| {
        let mut words = l.split('\t');
        let name = words.next()?.to_string();
        let [named, of] = [words.next()?.parse().ok()?, words.next()?.parse().ok()?];
        Some((
            name,
            named,
            of,
            words.next().unwrap_or_default().to_string(),
        ))
    };
    let rows: Vec<(String, usize, usize, String)> = scores.lines().filter_map(row).collect();
    let named: usize = rows.iter().map(|r| r.1).sum();
    let of: usize = rows.iter().map(|r| r.2).sum();
    let ops = rows.iter().filter(|r| r.2 > 0).count();
    let mut all = vec![format!(
        "mutants of the op table: {named} of {of} are named, of {ops} ops ({FILE})"
    )];
    let some = rows.iter().filter(|r| r.1 < r.2);
    all.extend(some.map(|(name, named, of, missed)| {
        format!("  {name}: {named} of {of}; not named: {missed}")
    }));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_and_what_is_missed_are_said() {
        let text = "add\t0\t0\t\nrope\t5\t5\t\ntopk\t2\t4\tparam:topk:dim:previous param:topk:dim:default\n";
        assert_eq!(
            lines(text),
            [
                "mutants of the op table: 7 of 9 are named, of 2 ops (tests/seeded/mutants.tsv)",
                "  topk: 2 of 4; not named: param:topk:dim:previous param:topk:dim:default",
            ]
        );
    }
}
