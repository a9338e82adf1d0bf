//! "Did you mean": the nearest name, by edits where two swapped letters count as one.

/// Number of insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`
/// (optimal string alignment), ignoring case and treating `-` as `_`.
pub fn distance(a: &str, b: &str) -> usize {
    let fold = |s: &str| -> Vec<char> {
        s.chars()
            .map(|c| {
                if c == '-' {
                    '_'
                } else {
                    c.to_ascii_lowercase()
                }
            })
            .collect()
    };
    let (a, b) = (fold(a), fold(b));
    let width = b.len() + 1;
    let mut before = vec![0; width];
    let mut last: Vec<usize> = (0..width).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; width];
        for j in 1..width {
            let cost = usize::from(a[i - 1] != b[j - 1]);
            row[j] = (last[j] + 1).min(row[j - 1] + 1).min(last[j - 1] + cost);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

/// The nearest of `names` to `word`, if it is near enough to be a misspelling of it: at most a
/// third of the longer word's letters differ, or one contains the other.
pub fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_ascii_lowercase();
    names
        .into_iter()
        .filter_map(|name| {
            let edits = distance(word, name);
            let longer = word.chars().count().max(name.chars().count());
            let near = edits * 3 <= longer || (edits == 1 && longer > 1);
            // `micro_batch_size` is no misspelling of `train_micro_batch_size_per_gpu`, but it
            // plainly means it; a long common part counts as two edits.
            let name_lower = name.to_ascii_lowercase();
            let inside = name_lower.contains(&lower) || lower.contains(&name_lower);
            let part = inside && lower.len() >= 4 && name.len() >= 4;
            let score = if part && lower.len() >= 8 {
                edits.min(2)
            } else {
                edits
            };
            (near || part).then_some((score, name))
        })
        .min_by_key(|(score, _)| *score)
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_edits_and_swaps() {
        assert_eq!(distance("stage", "stage"), 0);
        assert_eq!(distance("satge", "stage"), 1);
        assert_eq!(distance("zero_optimisation", "zero_optimization"), 1);
        assert_eq!(distance("", "abc"), 3);
    }

    #[test]
    fn suggests_only_what_is_near() {
        let names = ["optimizer", "scheduler", "train_micro_batch_size_per_gpu"];
        assert_eq!(nearest("optimiser", names), Some("optimizer"));
        assert_eq!(nearest("Optimizer", names), Some("optimizer"));
        assert_eq!(
            nearest("micro_batch_size", names),
            Some("train_micro_batch_size_per_gpu")
        );
        assert_eq!(nearest("qqq", names), None);
    }
}
