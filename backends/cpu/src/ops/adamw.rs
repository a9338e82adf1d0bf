//! adamw: many tensors in one pass, p, g, m, v each read and written once.

use super::view::*;
use crate::kernel::{Kernel, Launch};
use crate::simd::clones;
use crossweave_abi::op;
use crossweave_plugin::{Code, DType, Dyn, Op, Plan, Result, fail};

/// Factors of one launch, rounded to f32 once.
#[derive(Clone, Copy)]
struct Factors {
    grad: f32,
    b1: f32,
    c1: f32,
    b2: f32,
    c2: f32,
    eps: f32,
    /// lr * weight decay (decoupled), else 0.
    decay: f32,
    /// weight decay of the L2 form, else 0.
    l2: f32,
    /// lr / bc1.
    step: f32,
    /// sqrt(bc2).
    root: f32,
}

clones! {
    fn update(p: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32], f: Factors) {
        for (((p, g), m), v) in p.iter_mut().zip(g).zip(m).zip(v) {
            let g = g * f.grad + f.l2 * *p;
            let w = *p - f.decay * *p;
            *m = f.b1 * *m + f.c1 * g;
            *v = f.b2 * *v + f.c2 * (g * g);
            *p = w - f.step * *m / (v.sqrt() / f.root + f.eps);
        }
    }
}

/// One tensor.
struct Group {
    first: usize,
    p: View,
    g: View,
}

struct Adamw {
    groups: Vec<Group>,
    /// Task number of each group's first chunk, and the total.
    tasks: Vec<usize>,
    master: bool,
    params: op::AdamwParams,
}

/// `adamw`.
pub fn adamw(o: &Op<'_>, _: usize) -> Result<(Box<dyn Kernel>, Plan)> {
    let params = o.params::<op::AdamwParams>()?;
    flags(o, params.flags, op::FLAG_MASTER)?;
    if params.mode > 1 {
        return refuse(o, format!("mode {} (0 = AdamW, 1 = L2 Adam)", params.mode));
    }
    let master = params.flags & op::FLAG_MASTER != 0;
    let each = if master { 5 } else { 4 };
    arity(o, 2..=usize::MAX)?;
    if (o.operands.len() - 2) % each != 0 {
        return invalid(
            o,
            format!(
                "{} operands: coef, skip and groups of {each} wanted",
                o.operands.len()
            ),
        );
    }
    for (i, t) in [(0, DType::F32), (1, DType::U32)] {
        if let Some(v) = optional(o, i, &[t])?
            && v.total != 1
        {
            return invalid(o, format!("operand {i}: {} elements, 1 wanted", v.total));
        }
    }
    let (mut groups, mut tasks) = (Vec::new(), vec![0]);
    for first in (2..o.operands.len()).step_by(each) {
        let (p, g) = (output(o, first, FLOATS)?, output(o, first + 1, FLOATS)?);
        for i in 1..each {
            let v = output(o, first + i, if i == 1 { FLOATS } else { F32 })?;
            shape(o, first + i, &v, &p.shape)?;
        }
        tasks.push(tasks[tasks.len() - 1] + p.total.div_ceil(CHUNK));
        groups.push(Group { first, p, g });
    }
    let k = Adamw {
        groups,
        tasks,
        master,
        params,
    };
    Ok((Box::new(k), plan(o, 0)))
}

impl Kernel for Adamw {
    fn check(&self, dynamic: &[u8]) -> Result<()> {
        if Dyn(dynamic).read::<op::AdamwDyn>()?.step == 0 {
            return fail(Code::Invalid, "adamw: step counts from 1, 0 was given");
        }
        Ok(())
    }

    unsafe fn run(&self, l: &Launch<'_>) {
        let d = Dyn(l.dynamic).read::<op::AdamwDyn>().unwrap_or_default();
        let args = Args::of(l);
        // SAFETY: present operands hold one element.
        let (coef, skip) = unsafe {
            (
                if args.at(0).0.is_null() {
                    1.0
                } else {
                    *args.at(0).at::<f32>(0)
                },
                !args.at(1).0.is_null() && *args.at(1).at::<u32>(0) != 0,
            )
        };
        if skip {
            return;
        }
        let p = &self.params;
        let bc = |beta: f64| 1.0 - beta.powf(d.step as f64);
        let l2 = p.mode == 1;
        let f = Factors {
            grad: (d.grad_scale * coef as f64) as f32,
            b1: p.beta1 as f32,
            c1: (1.0 - p.beta1) as f32,
            b2: p.beta2 as f32,
            c2: (1.0 - p.beta2) as f32,
            eps: p.eps as f32,
            decay: if l2 {
                0.0
            } else {
                (d.lr * p.weight_decay) as f32
            },
            l2: if l2 { p.weight_decay as f32 } else { 0.0 },
            step: (d.lr / bc(p.beta1)) as f32,
            root: bc(p.beta2).sqrt() as f32,
        };
        l.team.run(self.tasks[self.groups.len()], &|t| {
            let g = self.tasks.partition_point(|s| *s <= t) - 1;
            let group = &self.groups[g];
            let start = (t - self.tasks[g]) * CHUNK;
            let len = CHUNK.min(group.p.total - start);
            let [pp, gp, mp, vp] = [0, 1, 2, 3].map(|i| args.at(group.first + i));
            let (mut bp, mut bg) = ([0f32; BLOCK], [0f32; BLOCK]);
            blocks(start, len, |at, n| {
                // SAFETY: in range by the chunking; the tensors of a group are distinct, and tasks touch disjoint elements.
                unsafe {
                    let g = group.g.get(gp, at, n, &mut bg);
                    let m = mp.slice_mut::<f32>(at, n);
                    let v = vp.slice_mut::<f32>(at, n);
                    if self.master {
                        let w = args.at(group.first + 4).slice_mut::<f32>(at, n);
                        update(w, g, m, v, f);
                        group.p.store(pp, at, w);
                    } else if group.p.dtype == DType::F32 {
                        update(pp.slice_mut::<f32>(at, n), g, m, v, f);
                    } else {
                        group.p.load(pp, at, &mut bp[..n]);
                        update(&mut bp[..n], g, m, v, f);
                        group.p.store(pp, at, &bp[..n]);
                    }
                }
            });
        });
    }
}
