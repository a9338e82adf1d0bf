//! `op.*`: every claimed op over every combination of dtypes against an f64 reference, what must be refused, and bits that come again.
//!
//! A cell is an op over one combination of dtypes; its trials are shapes, layouts, parameters and inputs that make wrong algorithms fail. What
//! a result may be off by follows from the error class its plan states, and for fused ops from their decomposition (`bound`); never from
//! who is tested. `gradients` tests the references themselves.

mod activation;
mod attention;
mod attention_ext;
mod bound;
mod cell;
#[cfg(test)]
mod gradients;
mod index;
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
mod softmax;
mod tensor;
mod trial;

use crate::case::{Case, Check};
use crate::ctx::{Ctx, Rng};
use crate::raw::Plugin;
use cell::{Cell, Gen};
use crossweave_abi::op::{Class, OPS, OpSpec};
use rig::Rig;
use std::sync::{Arc, Mutex, PoisonError};
use trial::Trial;

/// Every cell, op by op in the order of the table.
fn cells() -> Vec<Cell> {
    let mut all = Vec::new();
    all.extend(moves::cells());
    all.extend(pointwise::cells());
    all.extend(reduce::cells());
    all.extend(matmul::cells());
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
    fn with(&self, ctx: &Ctx, f: impl FnOnce(&mut Open, &mut Gen) -> Check) -> Check {
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
        let verdict = f(&mut open, &mut Gen::new(ctx.rng(), ctx.big))?;
        *held = Some(open);
        Ok(verdict)
    }
}

impl Open {
    fn judge(&mut self, rule: &refuse::Rule, cells: &[Cell]) -> Check {
        // One seed for all rules: a rule asked alone is asked of the same trials.
        let g = &mut Gen::new(Rng::new(1), false);
        let claimed = self
            .claimed
            .take()
            .unwrap_or_else(|| refuse::claimed(cells, &self.rig, g));
        let verdict = refuse::judge(rule, &claimed, &mut self.rig);
        self.claimed = Some(claimed);
        verdict
    }
}

/// Seconds a case may take on the slowest device that is of use.
const LIMIT: u64 = 120;

/// The group's cases; `big` adds sizes that take long.
pub fn cases(_big: bool) -> Vec<Case> {
    let shared = Shared::default();
    let cells: Arc<Vec<Cell>> = Arc::new(cells());
    let rows = |op: u32| match rig::row(op).class {
        Class::Primitive => "op (mandatory)",
        Class::Fused => "op (fused)",
    };
    let mut all = Vec::new();
    for i in 0..cells.len() {
        let (s, own) = (shared.clone(), cells.clone());
        let case = Case::new(cells[i].id.clone(), move |ctx| {
            s.with(ctx, |o, g| own[i].judge(&mut o.rig, g))
        });
        all.push(
            case.row(rows(cells[i].op))
                .demanded(cells[i].demanded)
                .limit(LIMIT),
        );
    }
    for spec in OPS {
        let Some(i) = cells.iter().position(|c| c.op == spec.id) else {
            continue;
        };
        let (s, own) = (shared.clone(), cells.clone());
        let case = Case::new(format!("op.{}.same_bits", spec.name), move |ctx| {
            s.with(ctx, |o, g| own[i].twice(&mut o.rig, g))
        });
        all.push(case.row(rows(spec.id)).limit(LIMIT));
    }
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
            let trials = c.trials(&mut Gen::new(Rng::new(1), false));
            for t in &trials {
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

    /// References answer for themselves: what they say of an output is accepted by the rule they give.
    #[test]
    fn a_perfect_device_passes() {
        for c in cells() {
            for t in c.trials(&mut Gen::new(Rng::new(7), false)) {
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
