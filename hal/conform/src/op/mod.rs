//! `op.*`: every claimed op over every combination of dtypes against an f64 reference, what must be refused, and bits that come again.
//!
//! A cell is an op over one combination of dtypes; its trials are shapes, layouts, parameters and inputs that make wrong algorithms fail. What
//! a result may be off by follows from the error class its plan states, and for fused ops from their decomposition (`bound`); never from
//! who is tested. `gradients` tests the references themselves.

mod activation;
mod attention;
mod attention_ext;
mod attention_parts;
mod attention_reference;
mod bound;
mod cell;
mod cover;
#[cfg(test)]
mod formulas;
#[cfg(test)]
mod gradients;
mod grouped;
mod index;
mod integers;
mod many;
mod matmul;
mod moves;
mod norm;
mod num;
#[cfg(test)]
mod on_cpu;
mod optim;
mod pointwise;
mod program;
mod random;
mod reduce;
mod refuse;
mod rig;
mod search;
mod sizes;
mod softmax;
mod sweep;
mod tensor;
mod trial;

use crate::case::{Case, Check, Effort, pass_with, refused};
use crate::ctx::{Ctx, Rng};
use crate::raw::Plugin;
use crate::threads;
use cell::{About, Cell, Gen};
use crossweave_abi::op::{self, Class, OPS, OpSpec};
use rig::Rig;
pub use rig::{FLUSH, descriptor};
pub use sizes::{WIDTHS, residues_of};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
pub use sweep::{Loaded, Trials, cases_of};
use trial::Trial;

/// Every cell, op by op in the order of the table.
fn cells() -> Vec<Cell> {
    let mut all = Vec::new();
    all.extend(moves::cells());
    all.extend(pointwise::cells());
    all.extend(reduce::cells());
    all.extend(search::cells());
    all.extend(matmul::cells());
    all.extend(grouped::cells());
    all.extend(index::cells());
    all.extend(random::cells());
    all.extend(program::cells());
    all.extend(optim::cells());
    all.extend(norm::cells());
    all.extend(softmax::cells());
    all.extend(attention::cells());
    all.extend(attention_ext::cells());
    all.extend(activation::cells());
    // Stable: cells of one op stay in the order of their file.
    all.sort_by_key(|c| c.op);
    all
}

/// An open device, and of every op that it claims one trial that it claims.
struct Open {
    plugin: Arc<Plugin>,
    rig: Rig,
    claimed: Option<Vec<(&'static OpSpec, Trial)>>,
}

/// The device that the cases of one process share, opened by the first and opened again after one that failed on it.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Option<Open>>>);

impl Shared {
    fn with(&self, ctx: &Ctx, f: impl FnOnce(&mut Open, Gen) -> Check) -> Check {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Taken out: who fails or panics leaves nothing behind.
        let mut open = match held.take() {
            Some(o) if Arc::ptr_eq(&o.plugin, &ctx.plugin) => o,
            _ => Open {
                plugin: ctx.plugin.clone(),
                rig: Rig::new(&ctx.device()?)?,
                claimed: None,
            },
        };
        let verdict = f(&mut open, Gen::new(ctx.rng(), ctx.effort))?;
        *held = Some(open);
        Ok(verdict)
    }
}

impl Open {
    /// Cells of one op (a sample where there are many), each on two streams at once.
    fn at_once(&mut self, cells: &[Cell], of: &[usize], mut g: Gen) -> Check {
        let most = match g.effort {
            Effort::Quick => 2,
            _ => 6,
        };
        let mut tried = 0;
        for i in of.iter().step_by(of.len().div_ceil(most)) {
            let claimed = cells[*i].two_streams(&mut self.rig, &mut g);
            tried += usize::from(claimed.map_err(|e| format!("{}: {e}", cells[*i].id))?);
        }
        match tried {
            0 => refused("not claimed"),
            n => pass_with(format!("{n} combinations of types")),
        }
    }

    /// Every claimed op beside two others, or beside one.
    fn side_by_side(&mut self, cells: &[Cell], mut g: Gen) -> Check {
        let others = match g.effort {
            Effort::Quick => 1,
            _ => 2,
        };
        let mut large = Vec::new();
        for spec in OPS {
            let mut own = cells.iter().filter(|c| c.op == spec.id);
            let found = own.find_map(|c| c.large_and_small(&self.rig, &mut g));
            large.extend(found.map(|(large, _)| (spec, large)));
        }
        let n = large.len();
        for i in 0..n {
            for other in [(i * 7 + 3) % n, (i + 1) % n].into_iter().take(others) {
                let pair = [&large[i], &large[other]];
                let names = pair.map(|p| p.0.name).join(" beside ");
                let done = self.rig.together(pair.map(|(s, t)| (*s, t)), 2);
                done.map_err(|e| format!("{names}: {e}"))?;
            }
        }
        match n {
            0 => refused("no op is claimed"),
            n => pass_with(format!("{n} ops")),
        }
    }

    /// Trials of one op, or one of each op, from several threads at once on one device: each prepares, launches and is judged.
    fn by_threads(&mut self, ctx: &Ctx, cells: &[Cell], of: Option<u32>, mut g: Gen) -> Check {
        let (threads, rounds) = match g.effort {
            Effort::Quick => (4, 4),
            _ => (threads::MOST, 12),
        };
        let most = if of.is_some() { 8 } else { 1 };
        let mut trials: Vec<(&OpSpec, Trial)> = vec![];
        for spec in OPS.iter().filter(|s| of.is_none_or(|id| s.id == id)) {
            let mut own = cells.iter().filter(|c| c.op == spec.id);
            let found = own.find_map(|c| {
                let mut some = c.trials(&mut g);
                some.retain(|t| {
                    0 < t.bytes() && t.bytes() < 1 << 16 && !(t.subnormal && self.rig.flushes())
                });
                some.retain(|t| self.rig.prepare(spec.id, t, 0).is_ok());
                // The largest of the small ones: what takes a moment is met by others in the middle.
                some.sort_by_key(Trial::bytes);
                (!some.is_empty()).then_some(some)
            });
            let some = found.into_iter().flatten().rev().take(most);
            trials.extend(some.map(|t| (spec, t)));
        }
        if trials.is_empty() {
            return refused("not claimed");
        }
        let dev = ctx.device()?;
        let round = |rig: &mut Rig, thread: usize, n: usize| {
            let (spec, t) = &trials[(thread + n * 3) % trials.len()];
            rig.run(spec, t, rig::Place::Aligned, 0).map(|_| ())
        };
        threads::at_once(threads, rounds, |_| Rig::new(&dev), round)?;
        pass_with(format!("{threads} threads, {rounds} rounds"))
    }

    /// Many ops alive at once, no two alike, each launched once all are prepared.
    fn many_alive(&mut self, g: Gen) -> Check {
        let n = 2 * g.at_once();
        let all = many::numbered(n).into_iter();
        let all: Vec<_> = all.map(|(id, t)| (rig::row(id), t)).collect();
        match self.rig.alive(&all)? {
            true => pass_with(format!("{n} ops")),
            false => refused("not claimed"),
        }
    }

    fn judge(&mut self, rule: &refuse::Rule, cells: &[Cell]) -> Check {
        // One seed for all rules: a rule asked alone is asked of the same trials.
        let g = &mut Gen::new(Rng::new(1), Effort::Default);
        let claimed = self
            .claimed
            .take()
            .unwrap_or_else(|| refuse::claimed(cells, &self.rig, g));
        let verdict = refuse::judge(rule, &claimed, &mut self.rig);
        self.claimed = Some(claimed);
        verdict
    }
}

/// A dim of an operand that varies: a size beyond which a kernel may be wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeOf {
    /// Name of the op.
    pub op: &'static str,
    /// The case that makes it large.
    pub case: String,
    /// The case that gives it every residue.
    pub residues: String,
    /// Number of the operand.
    pub operand: usize,
    /// Its mode in the op table: `in`, `out` or `inout`.
    pub mode: &'static str,
    /// Dims from the last: 1 is the last.
    pub dim: usize,
    /// The most it is in a trial of sizes.
    pub most: usize,
}

/// Every size of every op whose name holds `only`, by the first cell of the op, and how large it is at this effort: what seeded
/// defects of the kind "wrong beyond" are made from.
pub fn sizes_of_ops(effort: Effort, only: &str) -> Vec<SizeOf> {
    /// The most elements that each operand has in each dim, which counts from the last.
    fn most(trials: &[Trial]) -> BTreeMap<(usize, usize), usize> {
        let mut all = BTreeMap::new();
        for t in trials {
            for (i, a) in t.args.iter().enumerate() {
                let shape = a.tensor().map_or(&[][..], |x| &x.shape);
                for (d, n) in shape.iter().rev().enumerate() {
                    let m: &mut usize = all.entry((i, d + 1)).or_default();
                    *m = (*m).max(*n);
                }
            }
        }
        all
    }
    let cells = cells();
    let mut all = vec![];
    for spec in OPS.iter().filter(|s| s.name.contains(only)) {
        let Some(c) = cells.iter().find(|c| c.op == spec.id) else {
            continue;
        };
        let g = |effort| Gen::new(Rng::new(1), effort);
        let usual = most(&c.trials(&mut g(Effort::Default)));
        let large = most(&c.trials(&mut g(effort).about(About::Sizes)));
        for ((operand, dim), n) in usual {
            // Lists repeat; a dim of one element is one; layouts of many dims are one matter, sizes another.
            let listed = operand < spec.operands.len() && n > 1 && dim <= 4;
            let Some(row) = spec.operand(operand).filter(|_| listed) else {
                continue;
            };
            all.push(SizeOf {
                op: spec.name,
                case: format!("{}{}", c.id, About::Sizes.suffix()),
                residues: format!("{}{}", c.id, About::Residues.suffix()),
                operand,
                mode: row.mode,
                dim,
                most: large.get(&(operand, dim)).copied().unwrap_or(0),
            });
        }
    }
    all
}

/// Seconds a case may take on the slowest device that is of use.
const LIMIT: u64 = 120;
/// The same for large sizes, where a device that compiles for each may be busy with that.
const LONG: u64 = 600;

/// A case of an op, which no kit before the op has.
fn by_age(id: u32, case: Case) -> Case {
    match id {
        op::GROUPED_MATMUL | op::GROUPED_MATMUL_DW => case.since(10),
        _ => case,
    }
}

/// Parts of rows that are put together, of both directions.
fn merged(shared: &Shared) -> [Case; 2] {
    let both = [
        (op::ATTENTION_EXT_FWD, false),
        (op::ATTENTION_EXT_BWD, true),
    ];
    both.map(|(id, back)| {
        let s = shared.clone();
        let case = Case::new(format!("op.{}.merged", rig::row(id).name), move |ctx| {
            s.with(ctx, |o, mut g| {
                attention_parts::merged(&mut o.rig, &mut g, back)
            })
        });
        case.row("op (parts)").limit(LIMIT).since(11)
    })
}

/// The group's cases.
pub fn cases() -> Vec<Case> {
    let shared = Shared::default();
    let cells: Arc<Vec<Cell>> = Arc::new(cells());
    let rows = |op: u32| match rig::row(op).class {
        Class::Primitive => "op (mandatory)",
        Class::Fused => "op (fused)",
    };
    let mut all = Vec::new();
    let mut judged = |about: About, row: &dyn Fn(u32) -> &'static str| {
        for (i, cell) in cells.iter().enumerate() {
            if !cell.is_about(about) {
                continue;
            }
            let (s, own) = (shared.clone(), cells.clone());
            let id = format!("{}{}", cell.id, about.suffix());
            let case = Case::new(id, move |ctx| {
                s.with(ctx, |o, g| own[i].judge(&mut o.rig, &mut g.about(about)))
            });
            let mut case = case.row(row(cell.op)).demanded(cell.demanded);
            // Held to FUSED before, and to what their rows say since.
            if [op::EMBEDDING_FWD, op::MULTI_SCALE].contains(&cell.op) {
                case = case.judged_since(8);
            }
            if !matches!(about, About::Usual | About::Sizes | About::Lists) {
                case = case.since(9);
            }
            case = match about {
                About::Parts => case.since(11),
                About::Pairs => case.since(12),
                _ => by_age(cell.op, case),
            };
            all.push(case.limit(if about == About::Sizes { LONG } else { LIMIT }));
        }
    };
    judged(About::Usual, &rows);
    judged(About::Sizes, &|_| "op (sizes)");
    judged(About::Residues, &|_| "op (residues)");
    judged(About::Models, &|_| "op (models)");
    judged(About::Unread, &|_| "op (unread)");
    judged(About::Parts, &|_| "op (parts)");
    judged(About::Pairs, &|_| "op (pairs)");
    judged(About::Lists, &|_| "op (lists)");
    judged(About::Launches, &|_| "op (launches)");
    for spec in OPS {
        let Some(i) = cells.iter().position(|c| c.op == spec.id) else {
            continue;
        };
        let (s, own) = (shared.clone(), cells.clone());
        let case = Case::new(format!("op.{}.same_bits", spec.name), move |ctx| {
            s.with(ctx, |o, mut g| own[i].twice(&mut o.rig, &mut g))
        });
        all.push(by_age(spec.id, case.row(rows(spec.id)).limit(LIMIT)));
    }
    all.extend(merged(&shared));
    for spec in OPS {
        let of: Vec<usize> = (0..cells.len())
            .filter(|i| cells[*i].op == spec.id)
            .collect();
        let (s, own) = (shared.clone(), cells.clone());
        let id = format!("op.{}.two_streams", spec.name);
        let case = Case::new(id, move |ctx| s.with(ctx, |o, g| o.at_once(&own, &of, g)));
        all.push(by_age(spec.id, case.row("op (streams)").limit(LONG)));
    }
    let (s, own) = (shared.clone(), cells.clone());
    let case = Case::new("op.two_streams.different_ops", move |ctx| {
        s.with(ctx, |o, g| o.side_by_side(&own, g))
    });
    all.push(case.row("op (streams)").limit(LONG));
    for spec in OPS {
        let (s, own) = (shared.clone(), cells.clone());
        let case = Case::new(format!("op.{}.threads", spec.name), move |ctx| {
            s.with(ctx, |o, g| o.by_threads(ctx, &own, Some(spec.id), g))
        });
        all.push(by_age(
            spec.id,
            case.row("op (threads)").limit(LIMIT).since(9),
        ));
    }
    let (s, own) = (shared.clone(), cells.clone());
    let case = Case::new("op.threads.different_ops", move |ctx| {
        s.with(ctx, |o, g| o.by_threads(ctx, &own, None, g))
    });
    all.push(case.row("op (threads)").limit(LIMIT).since(9));
    let s = shared.clone();
    let case = Case::new("op.many_prepared", move |ctx| s.with(ctx, Open::many_alive));
    all.push(case.row("op (launches)").limit(LIMIT).since(9));
    let s = shared.clone();
    let id = Case::new("op.refuse.unknown_id", move |ctx| {
        s.with(ctx, |o, _| refuse::unknown_id(&o.rig))
    });
    all.push(id.row("op (refusals)"));
    for rule in refuse::RULES {
        let (s, own) = (shared.clone(), cells.clone());
        let case = Case::new(format!("op.refuse.{}", rule.name), move |ctx| {
            s.with(ctx, |o, _| o.judge(rule, &own))
        });
        all.push(case.row("op (refusals)").limit(LIMIT));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Demanded;
    use crossweave_abi::op::class;
    use crossweave_abi::{DType, profile};

    #[test]
    fn every_op_of_the_table_has_cells_and_every_cell_has_trials() {
        let cells = cells();
        for spec in OPS {
            assert!(
                cells.iter().any(|c| c.op == spec.id),
                "{} has no cell",
                spec.name
            );
        }
        for c in &cells {
            let trials = c.trials(&mut Gen::new(Rng::new(1), Effort::Default));
            for t in &trials {
                let there = t.args.iter().filter_map(trial::Arg::tensor);
                let types: Vec<DType> = there.map(|x| x.dtype).collect();
                let asked = profile::op_need(c.op, &types, DType::Bf16);
                let want = asked.map_or(Demanded::NOWHERE, Demanded::From);
                assert_eq!(c.demanded, want, "{}: {}: {types:?}", c.id, t.what);
                assert!(
                    !t.launches.is_empty() && !t.launches[0].want.is_empty(),
                    "{}: {}",
                    c.id,
                    t.what
                );
                for a in t.args.iter().filter_map(trial::Arg::tensor) {
                    assert_eq!(
                        tensor::count(&a.shape),
                        a.bits.len(),
                        "{}: {}",
                        c.id,
                        t.what
                    );
                }
            }
        }
    }

    /// A size that no trial makes large is one beyond which a kernel may be wrong unseen: every dim of every operand that
    /// varies in the usual trials is beyond 1,024 in some trial of sizes.
    #[test]
    fn every_size_of_every_op_is_large_in_some_trial() {
        let small: Vec<String> = sizes_of_ops(Effort::Default, "")
            .into_iter()
            .filter(|s| s.most <= 1024)
            .map(|s| format!("{} operand {} dim -{}: {}", s.op, s.operand, s.dim, s.most))
            .collect();
        assert_eq!(small, Vec::<String>::new());
    }

    /// The class by which a rule judges. A rounding and a sum are judged by the class that the plan states.
    fn class_of(w: &trial::Want) -> u64 {
        match w {
            trial::Want::Exact(_)
            | trial::Want::Value(_)
            | trial::Want::Unchanged
            | trial::Want::Rounded(_) => class::EXACT,
            trial::Want::Ulp(v) => match v.iter().all(|v| v.1 <= 4.0) {
                true => class::TRANSCENDENTAL,
                false => class::FUSED,
            },
            trial::Want::Sum(_) => class::SUM_SEQUENTIAL,
            trial::Want::Matmul(_) => class::MATMUL,
            trial::Want::Fused(_) => class::FUSED,
        }
    }

    /// No rule is weaker than the class in the row of its op, but where the row's words say so.
    #[test]
    fn no_rule_is_weaker_than_the_row_of_its_op() {
        let mut weaker = std::collections::BTreeSet::new();
        for c in cells() {
            let row = rig::row(c.op);
            for t in c.trials(&mut Gen::new(Rng::new(3), Effort::Default)) {
                for (i, w) in t.launches.iter().flat_map(|l| &l.want) {
                    let held = class_of(w);
                    if !trial::admissible(row.error, held) && !row.doc.contains("CW_CLASS_FUSED") {
                        let names = [row.error, held].map(trial::class_name);
                        weaker.insert(format!("{} operand {i}: {names:?}", row.name));
                    }
                }
            }
        }
        assert_eq!(weaker.into_iter().collect::<Vec<_>>(), [""; 0]);
    }

    /// References answer for themselves: what they say of an output is accepted by the rule they give.
    #[test]
    fn a_perfect_device_passes() {
        for c in cells() {
            for t in c.trials(&mut Gen::new(Rng::new(7), Effort::Default)) {
                for l in &t.launches {
                    for (i, w) in &l.want {
                        let Some(x) = t.args[*i].tensor() else {
                            panic!("{}: {} wants an absent operand", c.id, t.what)
                        };
                        let perfect: Vec<u64> = match w {
                            trial::Want::Exact(b) | trial::Want::Value(b) => b.clone(),
                            trial::Want::Rounded(v) => {
                                v.iter().map(|v| num::encode(x.dtype, *v)).collect()
                            }
                            trial::Want::Ulp(v) => {
                                v.iter().map(|v| num::encode(x.dtype, v.0)).collect()
                            }
                            trial::Want::Sum(s) | trial::Want::Matmul(s) => {
                                s.iter().map(|s| num::encode(x.dtype, s.v)).collect()
                            }
                            trial::Want::Fused(n) => {
                                n.iter().map(|n| num::encode(x.dtype, n.v)).collect()
                            }
                            trial::Want::Unchanged => x.bits.clone(),
                        };
                        let class = rig::row(c.op).error;
                        if let Err(e) = trial::check(w, x, &perfect, class) {
                            panic!("{}: {}: operand {i}: {e}", c.id, t.what);
                        }
                    }
                }
            }
        }
    }
}
