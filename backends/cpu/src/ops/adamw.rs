//! adamw: many tensors in one pass, p, g, m, v each read and written once.

use super::view::*;
use crate::kernel::{Kernel, Launch};
use crate::simd::clones;
use crossweave_abi::op;
use crossweave_plugin::op::Adamw as Request;
use crossweave_plugin::{Code, DType, Dyn, OpRequest, Plan, Result, fail};

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
pub fn adamw(o: &OpRequest<'_>, _: usize) -> Result<(Box<dyn Kernel>, Plan)> {
    let r = Request::read(o)?;
    let (master, params) = (r.master, r.params);
    let (mut groups, mut tasks) = (Vec::new(), vec![0]);
    for (first, p, g) in r.tensors {
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

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    /// Tensors of the golden values of AdamW.
    fn golden(mode: u32, p_type: DType, master: bool) -> Vec<f64> {
        let params = op::AdamwParams {
            flags: if master { op::FLAG_MASTER } else { 0 },
            mode,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.1,
            ..Default::default()
        };
        let start = [1.0, -2.0, 0.5, 3.0];
        let mut t = vec![
            Tensor::absent(),
            Tensor::absent(),
            Tensor::new(p_type, &[4], &start),
            Tensor::new(DType::F32, &[4], &[0.0; 4]),
            Tensor::new(DType::F32, &[4], &[0.0; 4]),
            Tensor::new(DType::F32, &[4], &[0.0; 4]),
        ];
        if master {
            t.push(Tensor::new(DType::F32, &[4], &start));
        }
        for step in 1..=3u64 {
            let i = step as f64;
            t[3] = Tensor::new(DType::F32, &[4], &[0.1 * i, -0.2 * i, 0.3 * i, -0.4 * i]);
            let d = op::AdamwDyn {
                lr: 1e-2,
                grad_scale: 1.0,
                step,
                ..Default::default()
            };
            run(op::ADAMW, params.as_bytes(), d.as_bytes(), &mut t);
        }
        if master {
            close("p follows master", &t[2].values(), &t[6].values(), |_| 0.02);
            t[6].values()
        } else {
            t[2].values()
        }
    }

    #[test]
    fn three_steps_reach_the_golden_values() {
        let adamw = [
            0.9678008103979174,
            -1.96480380837238,
            0.4692993095047496,
            3.020211187140389,
        ];
        let l2 = [0.9702142477, -1.9702168703, 0.4706109464, 3.0274517536];
        close("adamw", &golden(0, DType::F32, false), &adamw, |_| 3e-7);
        close("adamw bf16", &golden(0, DType::Bf16, true), &adamw, |_| {
            3e-7
        });
        close("l2", &golden(1, DType::F32, false), &l2, |_| 3e-7);
    }

    #[test]
    fn many_tensors_scale_skip_and_f64_reference() {
        let params = op::AdamwParams {
            beta1: 0.8,
            beta2: 0.95,
            eps: 1e-6,
            weight_decay: 0.05,
            ..Default::default()
        };
        let d = op::AdamwDyn {
            lr: 3e-3,
            grad_scale: 0.5,
            step: 100_000,
            ..Default::default()
        };
        for p_type in STORAGES {
            let mut rng = Rng(5);
            for skip in [0.0, 1.0] {
                let mut t = vec![
                    Tensor::new(DType::F32, &[1], &[0.25]),
                    Tensor::new(DType::U32, &[1], &[skip]),
                ];
                for n in SIZES {
                    t.push(Tensor::new(p_type, &[n], &rng.floats(n, 2.0)));
                    t.push(Tensor::new(DType::Bf16, &[n], &rng.floats(n, 3.0)));
                    t.push(Tensor::new(DType::F32, &[n], &rng.floats(n, 1.0)));
                    let v: Vec<f64> = rng.floats(n, 1.0).iter().map(|x| x * x).collect();
                    t.push(Tensor::new(DType::F32, &[n], &v));
                }
                let before = t.clone();
                run(op::ADAMW, params.as_bytes(), d.as_bytes(), &mut t);
                if skip != 0.0 {
                    assert!(
                        t.iter().zip(&before).all(|(a, b)| a.data == b.data),
                        "skip writes nothing"
                    );
                    continue;
                }
                for g in 0..SIZES.len() {
                    let old = |i: usize| before[2 + 4 * g + i].values();
                    let (p, gr, m, v) = (old(0), old(1), old(2), old(3));
                    let (bc1, bc2) = (1.0 - 0.8f64.powi(100_000), 1.0 - 0.95f64.powi(100_000));
                    let mut want = [Vec::new(), Vec::new(), Vec::new()];
                    for i in 0..p.len() {
                        let gs = gr[i] * 0.5 * 0.25;
                        let m = 0.8 * m[i] + (1.0 - 0.8) * gs;
                        let v = 0.95 * v[i] + (1.0 - 0.95) * gs * gs;
                        let w = p[i] - 3e-3 * 0.05 * p[i];
                        want[0].push(w - 3e-3 / bc1 * m / (v.sqrt() / bc2.sqrt() + 1e-6));
                        want[1].push(m);
                        want[2].push(v);
                    }
                    let got = |i: usize| t[2 + 4 * g + i].values();
                    close("p", &got(0), &want[0], |i| {
                        rounding(p_type, want[0][i], 2.0) + 1e-6
                    });
                    close("m", &got(2), &want[1], |i| {
                        rounding(DType::F32, want[1][i], 4.0) + 3e-7
                    });
                    close("v", &got(3), &want[2], |i| {
                        rounding(DType::F32, want[2][i], 8.0)
                    });
                }
            }
        }
    }

    #[test]
    fn refusals() {
        let one = || Tensor::new(DType::F32, &[3], &[0.0; 3]);
        let mut t = vec![Tensor::absent(), Tensor::absent(), one(), one(), one()];
        let p = op::AdamwParams::default();
        assert_eq!(
            refusal(op::ADAMW, p.as_bytes(), &t),
            Some(Code::Invalid),
            "short group"
        );
        t.push(Tensor::new(DType::F32, &[4], &[0.0; 4]));
        assert_eq!(
            refusal(op::ADAMW, p.as_bytes(), &t),
            Some(Code::Invalid),
            "sizes differ"
        );
        t[5] = Tensor::new(DType::Bf16, &[3], &[0.0; 3]);
        assert_eq!(
            refusal(op::ADAMW, p.as_bytes(), &t),
            Some(Code::Unsupported),
            "16-bit moments"
        );
        t[5] = one();
        assert_eq!(refusal(op::ADAMW, p.as_bytes(), &t), None);
        let layouts: Vec<_> = t.iter().map(|t| t.layout).collect();
        let (k, _) = adamw(&OpRequest::new(op::ADAMW, &layouts, p.as_bytes(), 0), 1).unwrap();
        assert!(
            k.check(op::AdamwDyn::default().as_bytes()).is_err(),
            "step 0"
        );
    }
}
