//! The closest existing name to one that was not found, for error messages.

/// The candidate with the smallest edit distance to `name`, if at most a third of its length differs.
pub(crate) fn nearest<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<String> {
    let limit = (name.len() / 3).clamp(2, 24);
    candidates
        .into_iter()
        .filter(|c| c.len().abs_diff(name.len()) <= limit)
        // The bound keeps thousands of names from costing thousands of full tables.
        .take(4096)
        .map(|c| (strsim::osa_distance(name, c), c))
        .filter(|&(d, _)| d <= limit)
        .min()
        .map(|(_, c)| c.to_string())
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn finds_the_typo_and_not_the_stranger() {
        let names = ["transformer.wte.weight", "transformer.wpe.weight"];
        assert_eq!(
            nearest("transformer.wt.weight", names).as_deref(),
            Some(names[0])
        );
        assert_eq!(nearest("score", names), None);
    }
}
