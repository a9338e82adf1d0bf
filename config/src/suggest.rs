//! "Did you mean": the nearest name by edits (optimal string alignment, from `strsim`).

/// Number of insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`, ignoring
/// case and treating `-` as `_`.
pub fn distance(a: &str, b: &str) -> usize {
    let fold = |s: &str| s.to_lowercase().replace('-', "_");
    strsim::osa_distance(&fold(a), &fold(b))
}

/// Bytes of a word that may be a misspelling of a key.
const LONGEST: usize = 200;

/// The nearest of `names` to `word`, if it is near enough to be a misspelling of it: at most a third of the
/// longer word's letters differ, or one is most of the other.
pub fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > LONGEST {
        return None;
    }
    let lower = word.to_lowercase();
    let score = |name: &'a str| {
        let edits = distance(word, name);
        let (len, wanted) = (word.chars().count(), name.chars().count());
        let (shorter, longer) = (len.min(wanted), len.max(wanted));
        let near = edits * 3 <= longer || (edits == 1 && longer > 1);
        let name_lower = name.to_lowercase();
        let inside = name_lower.contains(&lower) || lower.contains(&name_lower);
        let part = inside && shorter >= 4 && shorter * 2 > longer;
        // A long common part counts as two edits.
        let score = if part && len >= 8 {
            edits.min(2)
        } else {
            edits
        };
        (near || part).then_some((score, name))
    };
    let scored = names.into_iter().filter_map(score);
    scored.min_by_key(|(score, _)| *score).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_edits_and_swaps() {
        assert_eq!(distance("stage", "stage"), 0);
        assert_eq!(distance("satge", "stage"), 1);
        assert_eq!(distance("Zero-Optimisation", "zero_optimization"), 1);
        assert_eq!(distance("", "abc"), 3);
    }

    #[test]
    fn suggests_only_what_is_near() {
        let names = [
            "optimizer",
            "scheduler",
            "train_micro_batch_size_per_gpu",
            "seed",
        ];
        assert_eq!(nearest("optimiser", names), Some("optimizer"));
        assert_eq!(nearest("Optimizer", names), Some("optimizer"));
        assert_eq!(
            nearest("train_micro_batch_size", names),
            Some("train_micro_batch_size_per_gpu")
        );
        assert_eq!(nearest("qqq", names), None);
        // A word that is only a small part of a key says nothing about it.
        assert_eq!(nearest("seed_of_all_the_things", names), None);
        assert_eq!(nearest("size", names), None);
    }
}
