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
        .map(|c| (distance(name, c), c))
        .filter(|&(d, _)| d <= limit)
        .min()
        .map(|(_, c)| c.to_string())
}

fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, &x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &y) in b.iter().enumerate() {
            let substitute = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
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
