//! What is asked of an op and what must come out: trials (one prepare, one or more launches) and the rules answers are held against.

use super::bound::Num;
use super::num::{self, MIN_NORMAL, U};
use super::tensor::{T, dense, index_of};
use crossweave_abi::DType;
use crossweave_abi::op::class;

/// An operand of a trial.
#[derive(Clone, Debug)]
pub enum Arg {
    /// Not given.
    Absent,
    /// Its own memory.
    Own(T),
    /// The memory of an earlier or later operand, seen through a layout of its own.
    Alias(T, usize),
}

impl Arg {
    /// The operand, if there.
    pub fn tensor(&self) -> Option<&T> {
        match self {
            Arg::Absent => None,
            Arg::Own(t) | Arg::Alias(t, _) => Some(t),
        }
    }
}
impl From<T> for Arg {
    fn from(t: T) -> Arg {
        Arg::Own(t)
    }
}
impl From<Option<T>> for Arg {
    fn from(t: Option<T>) -> Arg {
        t.map_or(Arg::Absent, Arg::Own)
    }
}

/// A sum as a bound sees it.
#[derive(Clone, Copy, Debug)]
pub struct Sum {
    /// The value.
    pub v: f64,
    /// Numbers added.
    pub n: f64,
    /// Sum of their magnitudes.
    pub mag: f64,
}

/// What an output must hold afterwards.
#[derive(Clone, Debug)]
pub enum Want {
    /// These bits; any NaN for a NaN.
    Exact(Vec<u64>),
    /// These bits, but a zero of either sign.
    Value(Vec<u64>),
    /// One correctly rounded operation in f32, stored: the numbers before storing.
    Rounded(Vec<f64>),
    /// Within so many f32 ulp (4 for a transcendental) of the true value.
    Ulp(Vec<(f64, f64)>),
    /// Sums, by the class the plan states.
    Sum(Vec<Sum>),
    /// Products of matrices: v, k, |A||B|.
    Matmul(Vec<Sum>),
    /// Twice the bound of the decomposition.
    Fused(Vec<Num>),
    /// What was there before, bit for bit.
    Unchanged,
}

impl Want {
    /// Exact numbers, encoded.
    pub fn exact(t: DType, v: impl IntoIterator<Item = f64>) -> Want {
        Want::Exact(v.into_iter().map(|v| num::encode(t, v)).collect())
    }
}

/// One launch of what was prepared.
#[derive(Clone, Debug, Default)]
pub struct Launch {
    /// The op's dyn struct.
    pub dynamic: Vec<u8>,
    /// What each output must hold, by operand.
    pub want: Vec<(usize, Want)>,
}

/// One prepare and its launches, each from the same operands.
#[derive(Clone, Debug, Default)]
pub struct Trial {
    /// Sizes and layout, for messages.
    pub what: String,
    /// The op's params struct.
    pub params: Vec<u8>,
    /// In the op table's order.
    pub args: Vec<Arg>,
    /// What is launched, one after the other without waiting in between.
    pub launches: Vec<Launch>,
    /// Inputs or results lie below the least normal f32: not asked of a device that declares that it flushes them.
    pub subnormal: bool,
}

impl Trial {
    /// One launch without dyn parameters.
    pub fn new(
        what: impl Into<String>,
        params: &[u8],
        args: Vec<Arg>,
        want: Vec<(usize, Want)>,
    ) -> Trial {
        Trial {
            what: what.into(),
            params: params.to_vec(),
            args,
            launches: vec![Launch {
                dynamic: vec![],
                want,
            }],
            subnormal: false,
        }
    }

    /// With a dyn struct for its launch.
    pub fn given(mut self, dynamic: &[u8]) -> Trial {
        self.launches
            .iter_mut()
            .for_each(|l| l.dynamic = dynamic.to_vec());
        self
    }

    /// One more launch of the same op.
    pub fn then(mut self, dynamic: &[u8], want: Vec<(usize, Want)>) -> Trial {
        self.launches.push(Launch {
            dynamic: dynamic.to_vec(),
            want,
        });
        self
    }

    /// The same numbers, where every input lies with gaps: rows of each further apart than those of another. With `lines`
    /// inputs of one dim, too. Answers how many.
    pub fn apart(&self, lines: bool) -> Option<(usize, Trial)> {
        let mut t = self.clone();
        let written = |i: usize| {
            self.launches
                .iter()
                .any(|l| l.want.iter().any(|w| w.0 == i))
        };
        let shared = |i: usize| {
            let of = |a: &Arg| matches!(a, Arg::Alias(_, of) if *of == i);
            self.args.iter().any(of)
        };
        let mut moved = 0;
        for (i, a) in t.args.iter_mut().enumerate() {
            let Arg::Own(x) = a else { continue };
            let many = x.shape.iter().all(|n| *n > 1) && x.stride == dense(&x.shape);
            if written(i) || shared(i) || !many {
                continue;
            }
            *x = match x.shape.len() {
                0 => continue,
                1 if lines => x.clone().spread(2 + i as i64 % 2),
                1 => continue,
                _ => x.clone().padded(1 + i),
            };
            moved += 1;
        }
        t.what += ", inputs with gaps";
        (moved > 0).then_some((moved, t))
    }

    /// The same numbers over and over, at least `least` of them, where all operands are lines as long as each other.
    pub fn repeated(&self, least: usize) -> Option<Trial> {
        let n = self
            .args
            .iter()
            .find_map(|a| Some(a.tensor()?.bits.len()))?;
        let lines = self.args.iter().all(|a| match a {
            Arg::Own(x) => x.shape == [n] && x.stride == [1],
            _ => false,
        });
        if !lines || n < 2 || self.launches.len() > 1 {
            return None;
        }
        let k = least.div_ceil(n);
        let mut t = self.clone();
        for a in &mut t.args {
            if let Arg::Own(x) = a {
                *x = T::of_bits(x.dtype, &[k * n], x.bits.repeat(k));
            }
        }
        for (_, w) in t.launches.iter_mut().flat_map(|l| &mut l.want) {
            match w {
                Want::Exact(v) | Want::Value(v) => *v = v.repeat(k),
                Want::Rounded(v) => *v = v.repeat(k),
                Want::Ulp(v) => *v = v.repeat(k),
                Want::Sum(v) | Want::Matmul(v) => *v = v.repeat(k),
                Want::Fused(v) => *v = v.repeat(k),
                Want::Unchanged => {}
            }
        }
        t.what = format!("{}, {k} times", t.what);
        Some(t)
    }

    /// Bytes of its operands.
    pub fn bytes(&self) -> usize {
        let there = self.args.iter().filter_map(Arg::tensor);
        there.map(T::bytes).sum()
    }

    /// Over numbers that are subnormal in f16, where the operands are of it.
    pub fn subnormal_of_f16(self, t: DType) -> Trial {
        match t {
            DType::F16 => self.subnormal(),
            _ => self,
        }
    }

    /// Over subnormal numbers.
    pub fn subnormal(mut self) -> Trial {
        self.subnormal = true;
        self
    }
}

/// Classes a plan may state for an op whose row says `row`: the same or a stricter one, and either order of a sum.
pub fn admissible(row: u64, stated: u64) -> bool {
    match row {
        class::EXACT | class::CAST => matches!(stated, class::EXACT | class::CAST),
        class::ROUNDED | class::TRANSCENDENTAL => {
            (class::EXACT..=class::TRANSCENDENTAL).contains(&stated)
        }
        class::SUM_SEQUENTIAL | class::SUM_PAIRWISE => {
            (class::EXACT..=class::SUM_PAIRWISE).contains(&stated)
        }
        class::MATMUL => matches!(stated, class::MATMUL | class::EXACT),
        _ => (class::EXACT..=class::FUSED).contains(&stated),
    }
}

/// Name of a class, for messages.
pub fn class_name(c: u64) -> &'static str {
    match c {
        class::EXACT => "exact",
        class::CAST => "cast",
        class::ROUNDED => "rounded",
        class::TRANSCENDENTAL => "transcendental",
        class::SUM_SEQUENTIAL => "sequential sum",
        class::SUM_PAIRWISE => "pairwise sum",
        class::MATMUL => "matmul",
        class::FUSED => "fused",
        _ => "unknown",
    }
}

/// Half an ulp of the storage at `v`.
fn half_ulp(t: DType, v: f64) -> f64 {
    num::ulp(t, v) / 2.0
}

/// Roundings of a sum of `n` numbers under a class.
fn depth(c: u64, n: f64) -> f64 {
    if c == class::SUM_PAIRWISE {
        2.0 * n.max(1.0).log2().ceil()
    } else {
        n
    }
}

/// How far from `v` an element may be, `None` where the rule is about bits.
fn tolerance(want: &Want, i: usize, t: DType, stated: u64) -> Option<(f64, f64)> {
    let stored = |v: f64, e: f64| half_ulp(t, v.abs() + e);
    let narrow = t != DType::F32;
    match want {
        Want::Exact(_) | Want::Value(_) | Want::Unchanged => None,
        Want::Rounded(v) => {
            let r = v[i];
            // A class weaker than `rounded` is held to 4 ulp.
            let e = match stated {
                class::TRANSCENDENTAL => 4.0 * num::ulp(DType::F32, r),
                _ => return None,
            };
            Some((
                r,
                e + if narrow {
                    stored(r, e) + num::ulp(t, r)
                } else {
                    0.0
                },
            ))
        }
        Want::Ulp(v) => {
            let (v, mut ulps) = v[i];
            // A plan that states no error is held to it: the nearest number there is.
            if matches!(stated, class::EXACT | class::CAST) {
                ulps = 0.5;
            }
            let e = ulps * num::ulp(DType::F32, v);
            Some((v, if narrow { e + 1.5 * num::ulp(t, v) } else { e }))
        }
        Want::Sum(s) => {
            let s = s[i];
            let e = depth(stated, s.n) * U * s.mag;
            Some((s.v, e + stored(s.v, e)))
        }
        Want::Matmul(s) => {
            let s = s[i];
            let e = s.n * U * s.mag;
            Some((s.v, e + stored(s.v, e).max(half_ulp(t, 0.0))))
        }
        Want::Fused(n) => {
            let n = n[i];
            Some((n.v, 2.0 * (n.e + stored(n.v, n.e)) + 2.0 * MIN_NORMAL))
        }
    }
}

/// Compares an output with its rule. `Ok` is the worst error as a part of what was allowed.
pub fn check(want: &Want, before: &T, got: &[u64], stated: u64) -> Result<f64, String> {
    let t = before.dtype;
    let mut worst = 0.0f64;
    for (i, &bits) in got.iter().enumerate() {
        let at = |text: String| Err(format!("element {} {text}", index_of(&before.shape, i)));
        let show = |bits: u64| {
            let width = 2 * num::size(t);
            if num::is_float(t) {
                format!(
                    "{:?} ({bits:#0width$x})",
                    num::decode(t, bits),
                    width = width + 2
                )
            } else {
                num::int_of(t, bits).to_string()
            }
        };
        let same_bits = |w: u64, zero: bool| {
            let nan = |b: u64| num::is_float(t) && num::decode(t, b).is_nan();
            w == bits
                || nan(w) && nan(bits)
                || zero && num::decode(t, w) == 0.0 && num::decode(t, bits) == 0.0
        };
        let exact = match want {
            Want::Exact(w) => Some((w[i], false)),
            Want::Value(w) => Some((w[i], true)),
            Want::Unchanged => Some((before.bits[i], false)),
            Want::Rounded(v) if tolerance(want, i, t, stated).is_none() => {
                Some((num::encode(t, v[i]), false))
            }
            _ => None,
        };
        if let Some((w, zero)) = exact {
            if !same_bits(w, zero) {
                let near = match want {
                    Want::Rounded(v) => {
                        let off = (num::decode(t, bits) - v[i]).abs();
                        off <= 4.0 * num::ulp(DType::F32, v[i]) + num::ulp(t, v[i])
                    }
                    _ => false,
                };
                let claim = match near {
                    true => "; a plan that states CW_CLASS_TRANSCENDENTAL may be off by 4 ulp",
                    false => "",
                };
                return at(format!(
                    "is {}, must be exactly {}{claim}",
                    show(bits),
                    show(w)
                ));
            }
            continue;
        }
        let Some((v, tol)) = tolerance(want, i, t, stated) else {
            continue;
        };
        let g = num::decode(t, bits);
        if v.is_nan() || g.is_nan() {
            if v.is_nan() != g.is_nan() {
                return at(format!("is {}, must be {v:e}", show(bits)));
            }
            continue;
        }
        let top = num::largest(t);
        // Infinity stands for everything beyond the largest number, give or take the bound.
        let fits = if v.is_infinite() {
            g == v
        } else if g.is_infinite() {
            g.signum() == v.signum() && v.abs() + tol > top
        } else {
            (g - v).abs() <= tol
        };
        if !fits {
            return at(format!(
                "is {}, must be {v:e} within {tol:.3e}: off by {:.3e}",
                show(bits),
                (g - v).abs()
            ));
        }
        if g.is_finite() && tol > 0.0 {
            worst = worst.max((g - v).abs() / tol);
        }
    }
    Ok(worst)
}

#[cfg(test)]
mod tests {
    use super::super::bound::num as exact;
    use super::*;

    fn one(t: DType, v: f64) -> (T, Vec<u64>) {
        let x = T::new(t, &[1], &[v]);
        let bits = x.bits.clone();
        (x, bits)
    }

    #[test]
    fn rules_accept_what_is_right_and_nothing_else() {
        let ok = |w: &Want, t: DType, got: f64, c: u64| {
            let (x, bits) = one(t, got);
            check(w, &x, &bits, c).is_ok()
        };
        let f = DType::F32;
        let up = |v: f32, n: u32| f32::from_bits(v.to_bits() + n) as f64;
        assert!(ok(&Want::exact(f, [0.0]), f, 0.0, class::EXACT));
        assert!(!ok(&Want::exact(f, [0.0]), f, -0.0, class::EXACT));
        assert!(ok(&Want::Value(vec![0]), f, -0.0, class::EXACT));
        assert!(ok(&Want::exact(f, [f64::NAN]), f, f64::NAN, class::EXACT));
        // Correct rounding, or 4 ulp when the plan says no more.
        let third = Want::Rounded(vec![(1.0f32 / 3.0) as f64]);
        assert!(ok(&third, f, (1.0f32 / 3.0) as f64, class::ROUNDED));
        assert!(!ok(&third, f, up(1.0 / 3.0, 1), class::ROUNDED));
        assert!(ok(&third, f, up(1.0 / 3.0, 4), class::TRANSCENDENTAL));
        assert!(!ok(&third, f, up(1.0 / 3.0, 5), class::TRANSCENDENTAL));
        // 4 ulp, infinity only where the largest number is near.
        let e = Want::Ulp(vec![(1.0, 4.0)]);
        assert!(ok(&e, f, up(1.0, 4), class::TRANSCENDENTAL));
        assert!(!ok(&e, f, up(1.0, 5), class::TRANSCENDENTAL));
        assert!(!ok(&e, f, f64::INFINITY, class::TRANSCENDENTAL));
        assert!(ok(
            &Want::Ulp(vec![(1e39, 4.0)]),
            f,
            f64::INFINITY,
            class::TRANSCENDENTAL
        ));
        // The order of a sum decides how much it may be off.
        let s = Want::Sum(vec![Sum {
            v: 0.0,
            n: 1024.0,
            mag: 1024.0,
        }]);
        assert!(ok(&s, f, 1024.0 * 1000.0 * U, class::SUM_SEQUENTIAL));
        assert!(!ok(&s, f, 1024.0 * 1000.0 * U, class::SUM_PAIRWISE));
        assert!(ok(&s, f, 1024.0 * 19.0 * U, class::SUM_PAIRWISE));
        assert!(ok(
            &Want::Fused(vec![exact(1.0)]),
            f,
            up(1.0, 1),
            class::FUSED
        ));
        assert!(!ok(
            &Want::Fused(vec![exact(1.0)]),
            f,
            up(1.0, 3),
            class::FUSED
        ));
        assert!(!ok(
            &Want::Fused(vec![exact(f64::NAN)]),
            f,
            1.0,
            class::FUSED
        ));
        assert!(!ok(
            &Want::Fused(vec![exact(1.0)]),
            f,
            f64::NAN,
            class::FUSED
        ));
    }

    #[test]
    fn a_plan_may_be_stricter_than_the_table_and_not_weaker() {
        assert!(admissible(class::SUM_PAIRWISE, class::SUM_SEQUENTIAL));
        assert!(admissible(class::SUM_SEQUENTIAL, class::SUM_PAIRWISE));
        assert!(admissible(class::ROUNDED, class::TRANSCENDENTAL));
        assert!(!admissible(class::EXACT, class::FUSED));
        assert!(!admissible(class::ROUNDED, class::FUSED));
        assert!(!admissible(class::MATMUL, class::FUSED));
        for c in [0, 9, u64::MAX] {
            for row in class::EXACT..=class::FUSED {
                assert!(!admissible(row, c));
            }
        }
    }
}
