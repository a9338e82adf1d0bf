//! Units over pipeline stages that are not equally fast, or whose units are not equally long: by what the slowest stage takes for all its runs.

use std::ops::Range;

/// The number of units of each run, none empty. Run `k` is of stage `stage_of[k]`, which `weights` says is how fast; `costs` are those of the units.
/// The slowest stage (the cost of its runs over its weight) is fast, and stages differ little.
///
/// With one run a stage no cut has a faster slowest stage. With several the runs of a stage are apart, and what is best for the sum of them is
/// searched for: from the best cut of all runs by themselves, and from an even one, runs give units to their neighbours, two boundaries or all from one
/// to another at a time, for as long as that helps.
pub fn divide(costs: &[f64], weights: &[f64], stage_of: &[usize]) -> Vec<u32> {
    let of_run: Vec<f64> = stage_of.iter().map(|s| weights[*s]).collect();
    let apart = one_each(costs, &of_run);
    let apart: Vec<u32> = apart.iter().map(|r| r.end - r.start).collect();
    if stage_of.len() == weights.len() {
        return apart;
    }
    let (n, runs) = (costs.len() as u32, stage_of.len() as u32);
    let even = (0..runs).map(|k| n / runs + u32::from(k < n % runs));
    let stages = Stages::new(costs, weights, stage_of);
    let found = [apart, even.collect()].map(|cut| stages.improved(ends(&cut)));
    let best = found.into_iter().min_by(|a, b| order(a.0, b.0));
    let ends = best.map_or(vec![], |(_, ends)| ends);
    let starts = std::iter::once(&0).chain(&ends);
    ends.iter()
        .zip(starts)
        .map(|(end, start)| end - start)
        .collect()
}

/// The unit behind each run, of runs of so many units.
fn ends(each: &[u32]) -> Vec<u32> {
    let sum = |at: &mut u32, n: &u32| {
        *at += n;
        Some(*at)
    };
    each.iter().scan(0, sum).collect()
}

/// The worth of a cut: the time of the slowest stage, and the squares of all.
type Time = (f64, f64);

fn order(a: Time, b: Time) -> std::cmp::Ordering {
    a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
}

/// Stages of several runs.
struct Stages<'a> {
    /// The cost of all units before each.
    before: Vec<f64>,
    weights: &'a [f64],
    stage_of: &'a [usize],
}

impl<'a> Stages<'a> {
    fn new(costs: &[f64], weights: &'a [f64], stage_of: &'a [usize]) -> Stages<'a> {
        Stages {
            before: sums(costs),
            weights,
            stage_of,
        }
    }

    fn time(&self, ends: &[u32]) -> Time {
        let mut each = vec![0.0; self.weights.len()];
        let mut start = 0;
        for (end, stage) in ends.iter().zip(self.stage_of) {
            let weight = self.weights[*stage].max(f64::MIN_POSITIVE);
            each[*stage] += (self.before[*end as usize] - self.before[start]) / weight;
            start = *end as usize;
        }
        let most = each.iter().copied().fold(0.0, f64::max);
        (most, each.iter().map(|t| t * t).sum())
    }

    /// Moves boundaries by a unit or two for as long as that helps, the best move first: two of them, or all from one to another.
    fn improved(&self, mut ends: Vec<u32>) -> (Time, Vec<u32>) {
        const STEPS: [i32; 5] = [0, -1, 1, -2, 2];
        // The last run ends where the model does.
        let inner = ends.len() - 1;
        let mut time = self.time(&ends);
        loop {
            let mut best: Option<(Time, Vec<u32>)> = None;
            for (a, b) in (0..inner).flat_map(|a| (a..inner).map(move |b| (a, b))) {
                let each = STEPS
                    .iter()
                    .flat_map(|x| STEPS.iter().map(move |y| (*x, *y)));
                for (x, y, all) in each.flat_map(|(x, y)| [(x, y, false), (x, y, true)]) {
                    let mut moved = ends.clone();
                    for k in (a..=b).filter(|k| all || [a, b].contains(k)) {
                        let by = if k == b { y } else { x };
                        moved[k] = moved[k].saturating_add_signed(by);
                    }
                    if moved[0] == 0 || !moved.is_sorted_by(|a, b| a < b) {
                        continue;
                    }
                    let found = self.time(&moved);
                    let least = best.as_ref().map_or(time, |(t, _)| *t);
                    // Sums of the same numbers in another order are no gain.
                    let gains = found.0 < least.0 * (1.0 - 1e-9)
                        || found.0 <= least.0 * (1.0 + 1e-9) && found.1 < least.1 * (1.0 - 1e-9);
                    if gains {
                        best = Some((found, moved));
                    }
                }
            }
            match best {
                Some(found) => (time, ends) = found,
                None => return (time, ends),
            }
        }
    }
}

/// The sum of all that stand before each, and of all.
fn sums(costs: &[f64]) -> Vec<f64> {
    let mut before = vec![0.0];
    for c in costs {
        before.push(before[before.len() - 1] + c.max(0.0));
    }
    before
}

/// Runs of units, one for each weight, none empty: of all cuts one whose slowest stage (cost over weight) is fastest; where several are found
/// for a run of stages, the one whose stages differ less.
fn one_each(costs: &[f64], weights: &[f64]) -> Vec<Range<u32>> {
    let (n, stages) = (costs.len(), weights.len().max(1));
    let before = sums(costs);
    let time = |s: usize, from: usize, to: usize| {
        let weight = weights.get(s).copied().unwrap_or(1.0);
        (before[to] - before[from]) / weight.max(f64::MIN_POSITIVE)
    };
    // best[s][end]: the slowest of stages 0..=s over units 0..end, the sum of squares, and where stage s begins.
    let none = (f64::INFINITY, f64::INFINITY, 0);
    let mut best = vec![vec![none; n + 1]; stages];
    for end in 1..=n {
        let t = time(0, 0, end);
        best[0][end] = (t, t * t, 0);
    }
    for s in 1..stages {
        for end in s + 1..=n {
            for from in s..end {
                let (worst, squares, _) = best[s - 1][from];
                let t = time(s, from, end);
                let found = (worst.max(t), squares + t * t, from);
                let kept = best[s][end];
                if (found.0, found.1) < (kept.0, kept.1) {
                    best[s][end] = found;
                }
            }
        }
    }
    let mut cuts = vec![];
    let mut end = n;
    for s in (0..stages).rev() {
        let from = best[s][end].2;
        cuts.push(from as u32..end as u32);
        end = from;
    }
    cuts.reverse();
    cuts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cuts(costs: &[f64], weights: &[f64]) -> Vec<(u32, u32)> {
        let one: Vec<usize> = (0..weights.len()).collect();
        let ends = ends(&divide(costs, weights, &one));
        let starts = std::iter::once(0).chain(ends.iter().copied());
        starts.zip(ends.iter().copied()).collect()
    }

    #[test]
    fn units_follow_weights_and_every_stage_has_one() {
        assert_eq!(cuts(&[1.0; 6], &[1.0, 1.0]), [(0, 3), (3, 6)]);
        assert_eq!(cuts(&[1.0; 8], &[3.0, 1.0]), [(0, 6), (6, 8)]);
        assert_eq!(cuts(&[1.0; 8], &[1.0, 3.0]), [(0, 2), (2, 8)]);
        // A stage that is hardly there still has a unit, and free units are somebody's.
        assert_eq!(cuts(&[1.0; 4], &[1.0, 1e-9, 1.0]).len(), 3);
        assert_eq!(cuts(&[0.0, 4.0, 4.0, 0.0], &[1.0, 1.0]), [(0, 2), (2, 4)]);
        for stages in 1..5usize {
            let found = cuts(&[2.0, 1.0, 1.0, 5.0, 1.0], &vec![1.0; stages]);
            assert_eq!(found.len(), stages);
            let mut next = 0;
            for (start, end) in found {
                assert!(start == next && end > start);
                next = end;
            }
            assert_eq!(next, 5);
        }
    }

    /// Against every cut there is.
    #[test]
    fn the_slowest_stage_is_as_fast_as_any_cut_makes_it() {
        let costs = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0];
        for weights in [[1.0, 1.0, 1.0], [2.0, 1.0, 3.0], [0.5, 4.0, 1.0]] {
            let slowest = |ends: [usize; 4]| -> f64 {
                let each =
                    (0..3).map(|s| costs[ends[s]..ends[s + 1]].iter().sum::<f64>() / weights[s]);
                each.fold(0.0, f64::max)
            };
            let mut least = f64::INFINITY;
            for a in 1..6 {
                for b in a + 1..7 {
                    least = least.min(slowest([0, a, b, 7]));
                }
            }
            let found = cuts(&costs, &weights);
            let ends = [0, found[1].0 as usize, found[2].0 as usize, 7];
            assert_eq!(slowest(ends), least, "{weights:?}: {found:?}");
        }
    }

    /// Several runs a stage, in the form of a ring and of a V, with a heavy head, a free embedding and stages of other speeds: against every cut.
    #[test]
    fn the_runs_of_a_stage_count_together() {
        let mut seed = 3u64;
        let mut roll = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % n
        };
        let mut exact = 0;
        for round in 0..60 {
            let stages = 2 + roll(2) as usize;
            let runs = 2 * stages;
            let units = runs + roll(5) as usize;
            let mut costs: Vec<f64> = (0..units).map(|_| 10.0 + roll(10) as f64).collect();
            (costs[0], costs[units - 1]) = (0.0, 10.0 + roll(60) as f64);
            let weights: Vec<f64> = (0..stages).map(|_| 1.0 + roll(3) as f64 / 2.0).collect();
            let stage_of: Vec<usize> = match round % 2 {
                0 => (0..runs).map(|k| k % stages).collect(),
                _ => (0..runs).map(|k| k.min(runs - 1 - k)).collect(),
            };
            let all = Stages::new(&costs, &weights, &stage_of);
            let mut least = (f64::INFINITY, f64::INFINITY);
            let mut cut: Vec<u32> = (1..=runs as u32).collect();
            cut[runs - 1] = units as u32;
            loop {
                let time = all.time(&cut);
                if order(time, least).is_lt() {
                    least = time;
                }
                // The next choice of boundaries, in order of their numbers.
                let room = |k: &usize| cut[*k] < (units - (runs - 1 - k)) as u32;
                let Some(k) = (0..runs - 1).rev().find(room) else {
                    break;
                };
                cut[k] += 1;
                for j in k + 1..runs - 1 {
                    cut[j] = cut[j - 1] + 1;
                }
            }
            let found = divide(&costs, &weights, &stage_of);
            assert_eq!(found.iter().sum::<u32>() as usize, units);
            assert!(found.iter().all(|n| *n > 0), "{found:?}");
            let time = all.time(&ends(&found)).0;
            exact += usize::from(time <= least.0 * 1.0001);
            // A unit is a tenth of what a stage has here and more; half of one may be missed.
            assert!(
                time <= least.0 * 1.05,
                "{costs:?} over {weights:?}: {found:?} takes {time}, {} is possible",
                least.0
            );
        }
        assert!(exact >= 57, "{exact} of 60 are the best there is");
    }
}
