//! Classes of equal ranks: those that hold the same sizes, take as many rows and run the same pipeline stage do the same on other data.

use crate::error::Result;
use crate::{Division, Job};
use crossweave_mesh::{Axis, Place};
use std::collections::BTreeMap;

/// Ranks that do the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// The first of them, which stands for all.
    pub first: u32,
    /// All of them, in order.
    pub ranks: Vec<u32>,
    /// Sequences of their micro-batch.
    pub rows: u64,
    /// Which sizes they hold, numbered over the job: classes of one number differ in stage or rows alone.
    pub sizes: usize,
}

/// Axes along which the ranks of a stage may hold other sizes.
const CUT: [Axis; 4] = [Axis::Cp, Axis::Tp, Axis::Ep, Axis::Etp];

/// The classes of a job, in the order of their first ranks.
///
/// # Errors
/// As [`Job::units`].
pub fn classes(job: &Job, division: &Division) -> Result<Vec<Class>> {
    let mut held: Vec<Vec<u64>> = vec![];
    let mut sizes_of: BTreeMap<[u32; CUT.len()], usize> = BTreeMap::new();
    let mut index: BTreeMap<(u32, usize, u64), usize> = BTreeMap::new();
    let mut all: Vec<Class> = vec![];
    for rank in 0..job.ranks {
        let place = job.place(rank);
        let cut = CUT.map(|axis| place.at(axis));
        let sizes = match sizes_of.get(&cut) {
            Some(known) => *known,
            None => {
                let own = sizes(job, &place)?;
                let known = held.iter().position(|other| *other == own);
                let known = known.unwrap_or(held.len());
                if known == held.len() {
                    held.push(own);
                }
                sizes_of.insert(cut, known);
                known
            }
        };
        let rows = division.rows_of(job, &place);
        let next = all.len();
        let at = *index
            .entry((place.at(Axis::Pp), sizes, rows))
            .or_insert(next);
        match all.get_mut(at) {
            Some(class) => class.ranks.push(rank),
            None => all.push(Class {
                first: rank,
                ranks: vec![rank],
                rows,
                sizes,
            }),
        }
    }
    Ok(all)
}

/// Elements of each parameter on the rank at a place.
fn sizes(job: &Job, place: &Place) -> Result<Vec<u64>> {
    let units = job.units(place)?;
    let params = units.iter().flat_map(|u| &u.params);
    Ok(params.map(|p| p.local().numel()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Opened, Shares, spec};
    use crossweave_config::Config;
    use crossweave_plan::UnitFacts;

    fn job(mesh: &str, ranks: u64) -> Job {
        let text = format!(
            r#"{{"model": {{"family": "gpt2", "n_layer": 3, "n_embd": 24, "n_head": 6, "n_positions": 16, "vocab_size": 257}},
                "data": {{"train": "none.txt", "tokenizer": "bytes"}}, "train_micro_batch_size_per_gpu": 4,
                "optimizer": {{"type": "AdamW", "params": {{"lr": 1e-3}}}}, {mesh}}}"#
        );
        let config = Config::load("c.json", &text, &[]).unwrap();
        Opened::sizes(config, ranks, &Default::default()).unwrap()
    }

    /// Ranks of a class do the same, those of two classes do not, and every rank is in one.
    #[test]
    fn classes_are_all_ranks_by_what_they_do() {
        let facts: Vec<UnitFacts> = vec![];
        for (ranks, mesh, count) in [
            (1, r#""mesh": {}, "run": {"steps": 5}"#, 1),
            (4, r#""mesh": {}, "run": {"steps": 5}"#, 1),
            // 257 rows of a vocabulary over two ranks: the second has one fewer.
            (2, r#""mesh": {"tp": 2}, "run": {"steps": 5}"#, 2),
            (6, r#""mesh": {"tp": 3}, "run": {"steps": 5}"#, 2),
            (8, r#""mesh": {"tp": 2, "pp": 2}, "run": {"steps": 5}"#, 4),
            (4, r#""mesh": {"pp": 4}, "run": {"steps": 5}"#, 4),
            (4, r#""run": {"steps": 5, "balance": "3,1,1,3"}"#, 2),
            (
                12,
                r#""mesh": {"tp": 2, "pp": 3, "order": "tp,pp,cp,dp"}, "run": {"steps": 5}"#,
                6,
            ),
        ] {
            let job = job(mesh, ranks);
            let division = Division::new(&job, (&facts, (4, 16)), Shares::Given).unwrap();
            let all = classes(&job, &division).unwrap();
            assert_eq!(all.len(), count, "{mesh}");
            let of = |rank: u32| {
                let place = job.place(rank);
                let s = spec(&job, &division, place);
                (s.stage(), s.rows.batch, sizes(&job, &place).unwrap())
            };
            let mut seen: Vec<u32> = vec![];
            for (i, class) in all.iter().enumerate() {
                assert_eq!(class.first, class.ranks[0]);
                assert!(class.ranks.iter().all(|r| of(*r) == of(class.first)));
                assert!(all[..i].iter().all(|c| of(c.first) != of(class.first)));
                seen.extend(&class.ranks);
            }
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..job.ranks), "{mesh}");
        }
    }

    /// A job of a million ranks is classed without a look at the sizes of each.
    #[test]
    fn many_ranks_have_few_classes() {
        let job = job(
            r#""mesh": {"tp": 2, "pp": 2}, "run": {"steps": 5}"#,
            1 << 18,
        );
        let facts: Vec<UnitFacts> = vec![];
        let division = Division::new(&job, (&facts, (4, 16)), Shares::Even).unwrap();
        let all = classes(&job, &division).unwrap();
        assert_eq!(all.len(), 4);
        assert_eq!(all.iter().map(|c| c.ranks.len()).sum::<usize>(), 1 << 18);
    }
}
