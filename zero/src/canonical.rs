//! The canonical order of sums: the batch is cut into logical shards, whose gradients are added in one tree over the numbers of the
//! shards, whichever ranks computed them. Who holds which shards is the only thing that follows from the number of ranks.
//!
//! The tree is the binary counter's: two sums join when they cover neighbouring runs of `2^k` shards each, the first of which begins at a
//! multiple of `2^(k+1)`; what is left at the end (a number of shards that is no power of two) joins from the right.

use crossweave_plan::{
    Facts, Law, MicroBatch, Pass, Plan, PlanError, Step, StepKind, UnitId, words,
};
use std::ops::Range;

/// A run of neighbouring shards whose sum is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// First shard.
    pub first: u32,
    /// Shards.
    pub len: u32,
}

impl Node {
    /// One shard.
    pub fn shard(first: u32) -> Node {
        Node { first, len: 1 }
    }
    /// Whether the tree adds `self` and its neighbour `next` to each other.
    fn joins(&self, next: &Node) -> bool {
        self.len == next.len && self.first.is_multiple_of(2 * self.len)
    }
}

/// The shards that `rank` of `ranks` computes: neighbours, as even as they go, the first ranks one more.
pub fn shards_of(rank: u32, ranks: u32, shards: u32) -> Range<u32> {
    let ranks = ranks.max(1);
    let (each, more) = (shards / ranks, shards % ranks);
    let start = |r: u32| r * each + r.min(more);
    start(rank)..start(rank + 1)
}

/// Adds `node` behind those of `sums`, and whatever that completes; returns how many sums of two were made.
pub fn push(sums: &mut Vec<Node>, node: Node) -> u32 {
    sums.push(node);
    let mut joins = 0;
    while let [.., a, b] = sums[..]
        && a.joins(&b)
    {
        join(sums);
        joins += 1;
    }
    joins
}

/// Makes the last two of `sums` one.
pub fn join(sums: &mut Vec<Node>) {
    if let Some(b) = sums.pop()
        && let Some(a) = sums.last_mut()
    {
        a.len += b.len;
    }
}

/// What one rank is left with when it has added all it can of its shards.
pub fn roots(shards: Range<u32>) -> Vec<Node> {
    let mut sums = vec![];
    shards.for_each(|s| {
        push(&mut sums, Node::shard(s));
    });
    sums
}

/// Shards, and logical slices of parameters, of the fullest of `ranks` ranks.
pub fn fullest(ranks: u32, shards: u32) -> u32 {
    shards.div_ceil(ranks.max(1))
}

/// The pass that sets each shard's gradient aside behind the last backward that writes it, for the rank that holds the first shards: a
/// plan like that of every other rank, so that the passes behind it place their gathers alike, until [`Own`] makes it a rank's own. It
/// runs when the reductions are placed, which follow the last of the gradients.
#[derive(Clone, Copy, Debug)]
pub struct Canonical {
    /// Shards of the fullest rank.
    pub shards: u32,
    /// Micro-batches of a shard.
    pub micro_batches: u32,
}

impl Pass for Canonical {
    fn name(&self) -> String {
        format!("canonical({})", self.shards)
    }

    fn needs(&self) -> &'static [&'static str] {
        &[words::PLACED]
    }

    fn conflicts(&self) -> &'static [&'static str] {
        &[words::UPDATES, words::BUCKETS]
    }

    fn run(&self, mut plan: Plan, facts: &Facts) -> Result<Plan, PlanError> {
        let each = self.micro_batches.max(1);
        // Per unit the micro-batch whose backward came last, and per shard and unit the step of its last.
        let mut before: Vec<Option<MicroBatch>> = vec![None; facts.units.len()];
        let mut last = vec![vec![None; self.shards as usize]; facts.units.len()];
        for (index, step) in plan.steps.iter().enumerate() {
            let (Some(writer), Some(mb)) = (step.op.writes_grad(), step.op.micro_batch()) else {
                continue;
            };
            for unit in facts.touched(writer).filter(|&u| facts.has_grads(u)) {
                let before = &mut before[unit as usize];
                if before.is_some_and(|b| b > mb) {
                    return Err(PlanError::at(
                        &plan,
                        index,
                        Law::PassOrder,
                        format!(
                            "unit {unit} writes the gradient of micro-batch {mb} behind that of a later one; the canonical order of sums needs a schedule whose backwards run in the order of micro-batches"
                        ),
                    ));
                }
                *before = Some(mb);
                if let Some(at) = last[unit as usize].get_mut((mb / each) as usize) {
                    *at = Some(index);
                }
            }
        }
        let mut folds: Vec<(usize, UnitId, u32)> = vec![];
        for (unit, last) in last.iter().enumerate() {
            let mut sums = vec![];
            for (shard, at) in (0..self.shards).zip(last) {
                let Some(at) = at else { continue };
                let joins = push(&mut sums, Node::shard(shard));
                folds.push((*at, unit as UnitId, joins));
            }
        }
        folds.sort_unstable();
        let mut folds = folds.into_iter().peekable();
        let mut out = Vec::with_capacity(plan.steps.len() + folds.len());
        for (index, step) in std::mem::take(&mut plan.steps).into_iter().enumerate() {
            out.push(step);
            while let Some((_, unit, joins)) = folds.next_if(|f| f.0 == index) {
                out.push(Step::new(StepKind::Fold { unit, joins }));
            }
        }
        Ok(plan.rebuild(out))
    }
}

/// The pass that makes the plan of the first rank a rank's own: sums are joined as the numbers of its shards ask, and where shards do not
/// divide evenly, a rank with fewer of them gathers and reduces with the others, and computes nothing meanwhile. It runs when every gather
/// has its place.
#[derive(Clone, Debug)]
pub struct Own {
    /// The shards of the rank.
    pub shards: Range<u32>,
    /// Micro-batches of a shard.
    pub micro_batches: u32,
}

impl Pass for Own {
    fn name(&self) -> String {
        format!("own({}..{})", self.shards.start, self.shards.end)
    }

    fn needs(&self) -> &'static [&'static str] {
        &[words::UPDATES]
    }

    fn run(&self, mut plan: Plan, facts: &Facts) -> Result<Plan, PlanError> {
        let mut steps = std::mem::take(&mut plan.steps);
        let micro_batches = self.shards.len() as u32 * self.micro_batches;
        let mut folded: Vec<(u32, Vec<Node>)> =
            vec![(self.shards.start, vec![]); facts.units.len()];
        steps.retain_mut(|s| {
            let StepKind::Fold { unit, joins } = &mut s.op else {
                return s.op.micro_batch().is_none_or(|mb| mb < micro_batches);
            };
            let (shard, sums) = &mut folded[*unit as usize];
            let mine = *shard < self.shards.end;
            if mine {
                *joins = push(sums, Node::shard(*shard));
                *shard += 1;
            }
            mine
        });
        Ok(plan.rebuild(steps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tree as text, from the sums that `ranks` ranks make and one owner puts together.
    fn tree(ranks: u32, shards: u32) -> String {
        type Sums = (Vec<Node>, Vec<String>);
        fn add(into: &mut Sums, node: Node, text: String) {
            let joins = push(&mut into.0, node);
            into.1.push(text);
            (0..joins).for_each(|_| pair(&mut into.1));
        }
        fn pair(texts: &mut Vec<String>) {
            let (b, a) = (texts.pop().unwrap(), texts.pop().unwrap());
            texts.push(format!("({a} {b})"));
        }
        let mut owner: Sums = Default::default();
        for rank in 0..ranks {
            let mut mine: Sums = Default::default();
            for s in shards_of(rank, ranks, shards) {
                add(&mut mine, Node::shard(s), s.to_string());
            }
            assert_eq!(mine.0, roots(shards_of(rank, ranks, shards)));
            for (node, text) in mine.0.into_iter().zip(mine.1) {
                add(&mut owner, node, text);
            }
        }
        while owner.0.len() > 1 {
            join(&mut owner.0);
            pair(&mut owner.1);
        }
        owner.1.pop().unwrap()
    }

    #[test]
    fn any_number_of_ranks_builds_the_same_tree() {
        assert_eq!(tree(1, 8), "(((0 1) (2 3)) ((4 5) (6 7)))");
        assert_eq!(tree(1, 7), "(((0 1) (2 3)) ((4 5) 6))");
        for shards in 1..=33 {
            let alone = tree(1, shards);
            for ranks in 1..=shards {
                assert_eq!(
                    tree(ranks, shards),
                    alone,
                    "{shards} shards on {ranks} ranks"
                );
                let all = (0..ranks).flat_map(|r| shards_of(r, ranks, shards));
                assert!(all.eq(0..shards));
                let most = (0..ranks).map(|r| shards_of(r, ranks, shards).len()).max();
                assert_eq!(most, Some(fullest(ranks, shards) as usize));
                assert!((0..ranks).all(|r| !shards_of(r, ranks, shards).is_empty()));
            }
        }
    }

    /// What a rank sends is one gradient where powers of two meet, else at most one for each scale twice.
    #[test]
    fn a_rank_is_left_with_few_sums() {
        for k in 0..6 {
            for n in 0..=k {
                let (ranks, shards) = (1 << n, 1 << k);
                assert!((0..ranks).all(|r| roots(shards_of(r, ranks, shards)).len() == 1));
            }
        }
        for shards in 1..100u32 {
            for ranks in 1..=shards {
                let most = 2 * (32 - shards.leading_zeros()) as usize;
                assert!((0..ranks).all(|r| roots(shards_of(r, ranks, shards)).len() <= most));
            }
        }
    }

    /// Three ranks of five shards of two micro-batches: the last has one shard fewer, gathers as often, and every plan is lawful.
    #[test]
    fn ranks_with_fewer_shards_gather_with_the_others() {
        use crate::{Place, Prefetch, Updates, ZeroStage};
        use crossweave_plan::axes::{Axis, Topology};
        use crossweave_plan::{PassManager, UnitFacts, check, check_world};
        let unit = UnitFacts {
            params: 8,
            param_bytes: 16,
            grad_bytes: 32,
            ..UnitFacts::default()
        };
        let mut facts = Facts::uniform(2, 4, 3, unit);
        let mut line = String::new();
        for mb in 0..4 {
            line += &format!("F0.{mb} F1.{mb} B1.{mb} B0.{mb} ");
        }
        let plan = |rank: u32, facts: &Facts| {
            PassManager::new()
                .with(Place(ZeroStage::Three))
                .with(Canonical {
                    shards: fullest(3, 5),
                    micro_batches: 2,
                })
                .with(Updates::default())
                .with(Prefetch {
                    depth: 2,
                    slots: u32::MAX,
                    elements: None,
                })
                .with(Own {
                    shards: shards_of(rank, 3, 5),
                    micro_batches: 2,
                })
                .run(line.parse().unwrap(), facts)
                .unwrap()
        };
        let plans: Vec<Plan> = (0..3).map(|r| plan(r, &facts)).collect();
        let mesh = Topology::new(&[(Axis::Dp, 3)]).unwrap();
        let ranks: Vec<_> = plans.iter().map(|p| (p, &facts)).collect();
        check_world(&mesh, &ranks).unwrap();
        for (rank, p) in plans.iter().enumerate() {
            facts.micro_batches = [4, 4, 2][rank];
            check(p, &facts).unwrap();
        }
        let folds = |p: &Plan| -> Vec<String> {
            let all = p.steps.iter().map(|s| s.to_string());
            all.filter(|s| s.starts_with("fold0")).collect()
        };
        assert_eq!(folds(&plans[0]), ["fold0", "fold0+1"]);
        assert_eq!(folds(&plans[2]), ["fold0"]);
        let gathers = |p: &Plan| {
            p.steps
                .iter()
                .filter(|s| matches!(s.op, StepKind::Gather { .. }))
                .count()
        };
        assert_eq!(gathers(&plans[0]), gathers(&plans[2]));
    }
}
