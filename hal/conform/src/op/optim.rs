//! What a step does to every parameter: `adamw`, `multi_scale`.

use super::bound::{Num, num as exact};
use super::cell::{About, Cell, FLOATS, Gen, LISTS};
use super::moves::nans;
use super::tensor::T;
use super::trial::{Arg, Trial, Want};
use crossweave_abi::DType;
use crossweave_abi::op::{self, AdamwDyn, AdamwParams, FLAG_MASTER, NoParams, ScaleDyn};

const F: DType = DType::F32;

/// Every cell of these ops.
pub fn cells() -> Vec<Cell> {
    let mut all = Vec::new();
    for t in FLOATS {
        for tg in FLOATS {
            if tg == F || tg == t {
                let what = format!("{}.grad_{}", t.name(), tg.name());
                all.push(Cell::new(op::ADAMW, &what, move |g| adamw(g, t, tg, false)));
                all.push(Cell::new(op::ADAMW, format!("{what}.master"), move |g| {
                    adamw(g, t, tg, true)
                }));
            }
        }
        all.push(Cell::new(op::MULTI_SCALE, t.name(), move |g| scale(g, t)));
    }
    all
}

/// One tensor's operands before a step.
#[derive(Clone)]
struct Group {
    p: T,
    g: T,
    m: T,
    v: T,
    master: Option<T>,
}

impl Group {
    fn new(g: &mut Gen, t: DType, tg: DType, n: usize, master: bool) -> Group {
        let p = g.real(t, &[n], 1.0);
        let w = p.values();
        // The master is near the parameter and not the same.
        let wide: Vec<f64> = w.iter().map(|v| v + g.unit() * 1e-3).collect();
        let v: Vec<f64> = (0..n).map(|_| (g.unit() + 1.001) * 0.01).collect();
        Group {
            p,
            g: g.real(tg, &[n], 0.5),
            m: g.real(F, &[n], 0.1),
            v: T::new(F, &[n], &v),
            master: master.then(|| T::new(F, &[n], &wide)),
        }
    }
    /// With gradients and moments from 1e-10 up, and second moments from 1e-20.
    fn small(g: &mut Gen, t: DType, tg: DType, n: usize, master: bool) -> Group {
        let mut x = Group::new(g, t, tg, n, master);
        let mut scaled = |from: f64| -> Vec<f64> {
            (0..n)
                .map(|i| g.unit() * 10f64.powf(from * (1.0 - i as f64 / n as f64)))
                .collect()
        };
        let least = if tg == DType::F16 { -3.0 } else { -10.0 };
        x.g = T::new(tg, &[n], &scaled(least));
        x.m = T::new(F, &[n], &scaled(-10.0));
        let second: Vec<f64> = scaled(-20.0).iter().map(|v| v.abs()).collect();
        x.v = T::new(F, &[n], &second);
        x
    }
    fn args(&self) -> Vec<Arg> {
        let mut a: Vec<Arg> = [&self.p, &self.g, &self.m, &self.v]
            .map(|t| t.clone().into())
            .to_vec();
        a.extend(self.master.clone().map(Arg::from));
        a
    }
}

/// torch's AdamW (mode 0) or Adam with L2 decay (mode 1), step by step: p, m, v.
pub fn update(q: &AdamwParams, d: &AdamwDyn, coef: f64, [p, g, m, v]: [Num; 4]) -> [Num; 3] {
    let k = |v: f64| exact(f64::from(v as f32)).rounded_from(v);
    let bc = |beta: f64| 1.0 - beta.powf(d.step as f64);
    let mut g = g * (k(d.grad_scale) * k(coef));
    let mut kept = p;
    if q.mode == 1 {
        g = g + k(q.weight_decay) * p;
    } else {
        kept = p - k(d.lr * q.weight_decay) * p;
    }
    let m = k(q.beta1) * m + k(1.0 - q.beta1) * g;
    let v = k(q.beta2) * v + k(1.0 - q.beta2) * (g * g);
    let p = kept - k(d.lr / bc(q.beta1)) * m / (v.sqrt() / k(bc(q.beta2).sqrt()) + k(q.eps));
    [p, m, v]
}

/// What a step must leave in a group whose first operand is `at`.
fn wanted(q: &AdamwParams, d: &AdamwDyn, coef: f64, x: &Group, at: usize) -> Vec<(usize, Want)> {
    let col = |t: &T| t.values().into_iter().map(exact).collect::<Vec<_>>();
    let base = x.master.as_ref().unwrap_or(&x.p);
    let (p, g, m, v) = (col(base), col(&x.g), col(&x.m), col(&x.v));
    let new: Vec<[Num; 3]> = (0..p.len())
        .map(|i| update(q, d, coef, [p[i], g[i], m[i], v[i]]))
        .collect();
    let of = |k: usize| Want::Fused(new.iter().map(|n| n[k]).collect());
    let mut w = vec![(at, of(0)), (at + 2, of(1)), (at + 3, of(2))];
    if x.master.is_some() {
        w.push((at + 4, of(0)));
    }
    w
}

fn adamw(g: &mut Gen, t: DType, tg: DType, master: bool) -> Vec<Trial> {
    let each = if master { 5 } else { 4 };
    let q = |mode: u32| AdamwParams {
        flags: if master { FLAG_MASTER } else { 0 },
        mode,
        beta1: 0.9,
        beta2: 0.95,
        // One that counts before the corrections are near 1, and the usual one.
        eps: [1e-3, 1e-8][mode as usize],
        weight_decay: 0.1,
        ..Default::default()
    };
    let d = |lr, grad_scale, step| AdamwDyn {
        lr,
        grad_scale,
        step,
        ..Default::default()
    };
    // A trial over groups, with the launches given.
    let run = |what: &str,
               q: &AdamwParams,
               coef: Option<f64>,
               skip: Option<u64>,
               groups: &[Group],
               launches: &[AdamwDyn]| {
        let scalar = coef.map(|c| T::new(F, &[1], &[c]));
        let c = scalar.as_ref().map_or(1.0, |t| t.values()[0]);
        let mut args: Vec<Arg> = vec![
            scalar.into(),
            skip.map(|s| T::of_bits(DType::U32, &[1], vec![s])).into(),
        ];
        groups.iter().for_each(|x| args.extend(x.args()));
        let want = |d: &AdamwDyn| -> Vec<(usize, Want)> {
            groups
                .iter()
                .enumerate()
                .flat_map(|(i, x)| {
                    let w = wanted(q, d, c, x, 2 + i * each);
                    // Skipped: every bit stays.
                    w.into_iter().map(|(k, w)| {
                        (
                            k,
                            if skip.unwrap_or(0) != 0 {
                                Want::Unchanged
                            } else {
                                w
                            },
                        )
                    })
                })
                .collect()
        };
        let mut t =
            Trial::new(what, q.as_bytes(), args, want(&launches[0])).given(launches[0].as_bytes());
        for d in &launches[1..] {
            t = t.then(d.as_bytes(), want(d));
        }
        t
    };
    let mut all = Vec::new();
    if g.about == About::Lists {
        for n in LISTS {
            let sizes = (0..n).map(|i| if i == 7 { 0 } else { 1 + i * 13 % 50 });
            let x: Vec<Group> = sizes.map(|s| Group::new(g, t, tg, s, master)).collect();
            let what = format!("{n} tensors");
            all.push(run(
                &what,
                &q(0),
                Some(0.5),
                Some(0),
                &x,
                &[d(1e-2, 1.0, 7)],
            ));
        }
        return all;
    }
    if g.about == About::Models {
        for (beta1, beta2, eps, weight_decay) in [
            (0.9, 0.95, 1e-8, 0.1),
            (0.9, 0.98, 1e-9, 0.01),
            (0.9, 0.999, 1e-6, 0.012_345_678),
            (0.95, 0.9999, 1e-15, 0.05),
            (0.123_456_789, 0.987_654_321, 3.3e-7, 0.333_333_333),
        ] {
            for mode in [0, 1] {
                let other = AdamwParams {
                    beta1,
                    beta2,
                    eps,
                    weight_decay,
                    ..q(mode)
                };
                let x = [Group::small(g, t, tg, 65, master)];
                let steps = [
                    d(3e-4, 1.0, 1),
                    d(1.234_567e-3, 0.333_333, 2),
                    d(6e-4, 1.0, 1000),
                ];
                let what = format!(
                    "betas {beta1} and {beta2}, eps {eps}, decay {weight_decay}, mode {mode}"
                );
                all.push(run(&what, &other, Some(0.123_456_789), Some(0), &x, &steps));
            }
        }
        return all;
    }
    if g.about == About::Pairs {
        let betas = [(0.9, 0.95), (0.123_456_789, 0.9999), (0.95, 0.98)];
        let lists: [&[usize]; 3] = [&[100], &[33, 1, 0, 257], &[5; 33]];
        for row in g.covering([2, 2, 3, 3, 3, 3, 3, 3, 2]) {
            let [mode, coef, skip, beta, eps, decay, step, list, small] = row;
            let of = AdamwParams {
                beta1: betas[beta].0,
                beta2: betas[beta].1,
                eps: [1e-8, 1e-3, 3.3e-7][eps],
                weight_decay: [0.0, 0.1, 0.333_333_333][decay],
                ..q(mode as u32)
            };
            let step = [
                d(3e-4, 1.0, 1),
                d(1.234_567e-3, 0.333_333, 2),
                d(6e-4, 8.0, 1000),
            ][step];
            let make = [Group::new, Group::small][small];
            let sizes = lists[list].iter();
            let x: Vec<Group> = sizes.map(|n| make(g, t, tg, *n, master)).collect();
            let (coef, skip) = ([None, Some(0.37)][coef], [None, Some(0), Some(1)][skip]);
            let what = format!("{of:?}, coef {coef:?}, skip {skip:?}, {} tensors", x.len());
            all.push(run(&what, &of, coef, skip, &x, &[step]));
        }
        return all;
    }
    if g.about == About::Launches {
        let x = [Group::new(g, t, tg, 3, master)];
        let of = |i: usize| {
            d(
                1e-3 * (1 + i % 50) as f64,
                0.25 + i as f64 / 512.0,
                1 + i as u64 / 3,
            )
        };
        let steps: Vec<AdamwDyn> = (0..g.at_once()).map(of).collect();
        let what = format!("{} launches in flight", steps.len());
        return vec![run(&what, &q(0), None, None, &x, &steps)];
    }
    let mut sizes = vec![0, 1, 7, 257, 1000];
    if g.sizes() {
        sizes = [g.beyond(), g.grid()].concat();
    }
    for n in &sizes {
        let x = [Group::new(g, t, tg, *n, master)];
        all.push(run(
            &format!("[{n}] step 1"),
            &q(0),
            None,
            None,
            &x,
            &[d(1e-2, 1.0, 1)],
        ));
    }
    if g.sizes() {
        // What a step does at all, where tensors are large too.
        for n in sizes {
            let x = [Group::new(g, t, tg, n, master)];
            let other = AdamwParams { eps: 0.1, ..q(1) };
            let far = [d(3e-3, 0.125, 65_538)];
            let what = format!("[{n}] L2 decay, a coefficient and a far step");
            all.push(run(&what, &other, Some(0.5), Some(0), &x, &far));
            let what = format!("[{n}] skipped");
            all.push(run(&what, &q(0), None, Some(1), &x, &far));
        }
        return all;
    }
    let x = [Group::new(g, t, tg, 100, master)];
    // Prepared once: rate, scale and step come with the launch.
    let three = [
        d(1e-2, 1.0, 1),
        d(3e-3, 0.125, 2),
        // Whose low 16 bits are 2, and whose low 32 bits are 1.
        d(5e-2, 4.0, 65_538),
        d(5e-2, 4.0, (1 << 32) + 1),
    ];
    all.push(run(
        "steps 1, 2, 65538 and 2^32 + 1 of one prepared op",
        &q(0),
        None,
        None,
        &x,
        &three,
    ));
    all.push(run("L2 decay", &q(1), None, None, &x, &[d(1e-2, 0.5, 3)]));
    all.push(run(
        "clipped by a device factor",
        &q(0),
        Some(0.37),
        None,
        &x,
        &[d(1e-2, 0.5, 3)],
    ));
    all.push(run(
        "not skipped",
        &q(0),
        Some(1.0),
        Some(0),
        &x,
        &[d(1e-2, 1.0, 2)],
    ));
    all.push(run(
        "skipped",
        &q(0),
        Some(f64::NAN),
        Some(1),
        &x,
        &[d(1e-2, 1.0, 2)],
    ));
    all.push(run(
        "skipped by any word but 0",
        &q(0),
        None,
        Some(0x8000_0000),
        &x,
        &[d(1e-2, 1.0, 2)],
    ));
    let x: Vec<Group> = [33, 1, 0, 257]
        .into_iter()
        .map(|n| Group::new(g, t, tg, n, master))
        .collect();
    all.push(run(
        "four tensors",
        &q(0),
        Some(0.5),
        Some(0),
        &x,
        &[d(1e-2, 1.0, 7)],
    ));
    let mut x = Group::new(g, t, tg, 33, master);
    x.m.bits.splice(3..13, nans(F));
    let what = "a moment that is NaN of every kind";
    all.push(run(what, &q(0), None, None, &[x], &[d(1e-2, 1.0, 3)]));
    let mut x = Group::new(g, t, tg, 33, master);
    // A gradient of nothing and moments of nothing: no division by zero comes through.
    (x.g, x.m, x.v) = (
        T::full(tg, &[33], 0.0),
        T::full(F, &[33], 0.0),
        T::full(F, &[33], 0.0),
    );
    all.push(run(
        "nothing but decay",
        &q(0),
        None,
        None,
        &[x],
        &[d(1e-2, 1.0, 1)],
    ));
    all
}

fn scale(g: &mut Gen, t: DType) -> Vec<Trial> {
    let none = NoParams::default();
    let of = |s: f64| ScaleDyn {
        scale: s,
        ..Default::default()
    };
    let run = |what: &str, coef: Option<f64>, x: Vec<T>, scales: &[f64]| {
        let c = coef.map(|c| T::new(F, &[1], &[c]));
        let k = c.as_ref().map_or(1.0, |t| t.values()[0]);
        let want = |s: f64| -> Vec<(usize, Want)> {
            // The factor is one number of f32, and each element one product with it.
            let f = s as f32 * k as f32;
            let scaled = |x: &T| {
                x.values()
                    .into_iter()
                    .map(|v| f64::from(v as f32 * f))
                    .collect()
            };
            let each = x.iter().enumerate();
            each.map(|(i, x)| (i + 1, Want::Rounded(scaled(x))))
                .collect()
        };
        let mut args: Vec<Arg> = vec![c.into()];
        args.extend(x.iter().cloned().map(Arg::from));
        let mut t = Trial::new(what, none.as_bytes(), args, want(scales[0]))
            .given(of(scales[0]).as_bytes());
        for s in &scales[1..] {
            t = t.then(of(*s).as_bytes(), want(*s));
        }
        t
    };
    let mut all = Vec::new();
    if g.about == About::Lists {
        for n in LISTS {
            let sizes = (0..n).map(|i| if i == 7 { 0 } else { 1 + i * 13 % 50 });
            let x = sizes.map(|s| g.real(t, &[s], 4.0)).collect();
            all.push(run(&format!("{n} tensors"), Some(0.7), x, &[0.5]));
        }
        return all;
    }
    if g.about == About::Models {
        for (coef, scale) in [
            (None, 0.123_456_789),
            (Some(0.987_654_321), 1.0 / 3.0),
            (Some(1.0 / 1024.0), 1e-3),
        ] {
            let x = vec![g.real(t, &[65], 4.0), g.real(t, &[9], 4.0)];
            all.push(run(
                &format!("by {scale} and {coef:?}"),
                coef,
                x,
                &[scale, 0.7],
            ));
        }
        return all;
    }
    if g.about == About::Launches {
        let scales: Vec<f64> = (0..g.at_once()).map(|i| 0.5 + i as f64 / 256.0).collect();
        let x = vec![g.real(t, &[5], 4.0)];
        let what = format!("{} launches in flight", scales.len());
        return vec![run(&what, None, x, &scales)];
    }
    let mut sizes = vec![0, 1, 257, 1000];
    if g.sizes() {
        sizes = [g.beyond(), g.grid()].concat();
    }
    for n in &sizes {
        let x = g.real(t, &[*n], 4.0);
        // With a factor of the device's where that is large too.
        let coef = g.sizes().then_some(0.7);
        all.push(run(&format!("[{n}]"), coef, vec![x], &[0.3]));
    }
    if g.sizes() {
        return all;
    }
    let x = vec![
        g.real(t, &[33], 4.0),
        g.real(t, &[5, 7], 4.0),
        g.real(t, &[0], 1.0),
        g.real(t, &[100], 4.0),
    ];
    all.push(run(
        "four tensors, a device factor, three launches",
        Some(0.7),
        x,
        &[0.5, 2.0, 0.125],
    ));
    all
}
