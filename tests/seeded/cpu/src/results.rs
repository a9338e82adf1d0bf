//! Results that are wrong: what an op gives is changed after it, or made in its place, over copies of its operands on the host.

use crate::ops::{Fix, Given, Host, Run};
use crate::{combined, specials};
use crossweave_abi::DType;
use crossweave_abi::op::{self, binary, compare, philox, reduce, unary};

pub(crate) fn bf16(v: f32) -> f32 {
    let b = v.to_bits();
    f32::from_bits((b + 0x7FFF + (b >> 16 & 1)) & 0xFFFF_0000)
}

pub(crate) fn wide(b: u16) -> f32 {
    f32::from_bits(u32::from(b) << 16)
}

/// The bf16 that an f32 becomes by `round`, of every element that `of` is true for. cast: dst, src.
fn narrowed(x: &[Host], of: fn(f32) -> bool, round: fn(u32) -> u32) {
    if x[0].is(DType::Bf16) && x[1].is(DType::F32) {
        for i in (0..x[0].n()).filter(|i| of(x[1].get(*i))) {
            x[0].set(i, (round(x[1].get(i)) >> 16) as u16);
        }
    }
}

/// Every number of a cast from f32 to integers of 32 bits.
fn to_whole(x: &[Host], f: fn(f32) -> i32) {
    if x[0].is(DType::I32) && x[1].is(DType::F32) {
        (0..x[0].n()).for_each(|i| x[0].set(i, f(x[1].get(i))));
    }
}

/// cast: wide integers go to bf16 by way of f32.
fn rounded_twice(x: &[Host], _: &Given) {
    if x[0].is(DType::Bf16) && x[1].is(DType::I64) {
        for i in 0..x[0].n() {
            let v = bf16(x[1].get::<i64>(i) as f32);
            x[0].set(i, (v.to_bits() >> 16) as u16);
        }
    }
}

/// Dot products of a matmul of rank 2: `dot(row, column)` for every element of c.
fn products(
    x: &[Host],
    t: DType,
    mut each: impl FnMut(usize, &mut dyn Iterator<Item = (usize, usize)>),
) {
    if x.iter().any(|h| !h.is(t)) || x[0].layout.rank != 2 {
        return;
    }
    let (m, n, k) = (x[0].dim(0), x[0].dim(1), x[1].dim(1));
    for i in 0..m {
        for j in 0..n {
            each(i * n + j, &mut (0..k).map(|l| (i * k + l, l * n + j)));
        }
    }
}

/// matmul: c, a, b.
fn narrow_sums(x: &[Host], _: &Given) {
    if x.len() == 3 {
        products(x, DType::Bf16, |at, pairs| {
            let v = pairs.fold(0.0, |s, (a, b)| {
                bf16(s + wide(x[1].get(a)) * wide(x[2].get(b)))
            });
            x[0].set(at, (v.to_bits() >> 16) as u16);
        });
    }
}

/// matmul: a 0 on either side ends a product, whatever the other is.
fn zeros_skipped(x: &[Host], _: &Given) {
    if x.len() == 3 {
        products(x, DType::F32, |at, pairs| {
            let mut sum = 0.0;
            for (a, b) in pairs {
                let (a, b): (f32, f32) = (x[1].get(a), x[2].get(b));
                sum += if a == 0.0 || b == 0.0 { 0.0 } else { a * b };
            }
            if x[0].get::<f32>(at).is_nan() {
                x[0].set(at, sum);
            }
        });
    }
}

/// matmul with a bias: the sum is rounded before the bias comes to it.
fn bias_late(x: &[Host], given: &Given) {
    if x.len() == 4 && x[3].layout.present() && given.flags == 0 && x[3].is(DType::Bf16) {
        let n = x[0].dim(1);
        let alpha = if given.numbers[0] == 0.0 {
            1.0
        } else {
            given.numbers[0] as f32
        };
        products(&x[..3], DType::Bf16, |at, pairs| {
            let sum: f32 = pairs
                .map(|(a, b)| wide(x[1].get(a)) * wide(x[2].get(b)))
                .sum();
            let v = bf16(bf16(alpha * sum) + wide(x[3].get(at % n)));
            x[0].set(at, (v.to_bits() >> 16) as u16);
        });
    }
}

/// reduce: the sum of a line, one after the other.
fn one_by_one(x: &[Host], given: &Given) {
    if given.kind == reduce::SUM
        && given.flags == 0
        && x[1].is(DType::F32)
        && x[1].layout.rank == 1
        && x[0].is(DType::F32)
    {
        let sum = (0..x[1].n()).fold(0f32, |s, i| s + x[1].get::<f32>(i));
        x[0].set(0, sum);
    }
}

/// reduce of bf16: sums that are rounded at every step.
fn narrow_line(x: &[Host], given: &Given) {
    if given.kind == reduce::SUM
        && given.flags == 0
        && x[1].is(DType::Bf16)
        && x[1].layout.rank == 1
        && x[0].is(DType::Bf16)
    {
        let sum = (0..x[1].n()).fold(0f32, |s, i| bf16(s + wide(x[1].get(i))));
        x[0].set(0, (sum.to_bits() >> 16) as u16);
    }
}

/// arg_reduce: index, src along the last of two dims.
fn last_of_equals(x: &[Host], _: &Given) {
    if !x[1].is(DType::F32)
        || x[1].layout.rank != 2
        || x[0].layout.dtype != DType::I32.id()
        || x[0].dim(1) != 1
    {
        return;
    }
    let n = x[1].dim(1);
    for r in 0..x[1].dim(0) {
        let best = x[1].get::<f32>(r * n + x[0].get::<i32>(r) as usize);
        let at = (0..n).rev().find(|i| x[1].get::<f32>(r * n + i) == best);
        if let Some(i) = at {
            x[0].set(r, i as i32);
        }
    }
}

/// arg_reduce, largest: a NaN is passed over.
fn nan_passed_over(x: &[Host], given: &Given) {
    if given.kind != 0
        || !x[1].is(DType::F32)
        || x[1].layout.rank != 2
        || !x[0].is(DType::I32)
        || x[0].dim(1) != 1
    {
        return;
    }
    let n = x[1].dim(1);
    for r in 0..x[1].dim(0) {
        let v = |i: usize| x[1].get::<f32>(r * n + i);
        let best = (0..n)
            .filter(|i| !v(*i).is_nan())
            .fold(None, |b: Option<usize>, i| match b {
                Some(b) if v(b) >= v(i) => Some(b),
                _ => Some(i),
            });
        x[0].set(r, best.unwrap_or(0) as i32);
    }
}

/// Runs of equal keys give their values in the other order. sort_pairs and topk: keys and values out.
fn unstable(x: &[Host], t: DType, same: impl Fn(usize, usize) -> bool) {
    if x[0].is(t) && x[1].is(DType::I32) {
        for i in (1..x[0].n()).filter(|i| same(i - 1, *i)) {
            let (a, b) = (x[1].get::<i32>(i - 1), x[1].get::<i32>(i));
            x[1].set(i - 1, b);
            x[1].set(i, a);
        }
    }
}

/// nonfinite_count: count, sources.
fn but_minus_infinity(x: &[Host], _: &Given) {
    for s in x[1..].iter().filter(|s| s.is(DType::F32)) {
        let n = (0..s.n())
            .filter(|i| s.get::<f32>(*i) == f32::NEG_INFINITY)
            .count();
        x[0].set(0, x[0].get::<u32>(0) - n as u32);
    }
}

/// gather_rows: dst, table, index; where `other` gives another row for an index, that one comes.
fn other_rows(x: &[Host], other: impl Fn(i64, usize) -> Option<usize>) {
    if !x[1].is(DType::F32) || !x[0].is(DType::F32) || x[1].layout.rank != 2 {
        return;
    }
    let (rows, w) = (x[1].dim(0), x[1].dim(1));
    for i in 0..x[2].n() {
        let at = match DType::from_id(x[2].layout.dtype) {
            _ if x[2].layout.flags & crossweave_abi::LAYOUT_CONTIGUOUS == 0 => return,
            Some(DType::I64) => x[2].get::<i64>(i),
            _ => i64::from(x[2].get::<i32>(i)),
        };
        if let Some(row) = other(at, rows).filter(|r| *r < rows) {
            (0..w).for_each(|c| x[0].set(i * w + c, x[1].get::<f32>(row * w + c)));
        }
    }
}

/// embedding_bwd: dtable, dpos?, dy, index; of rows that come twice only the last counts.
fn no_duplicates(x: &[Host], _: &Given) {
    if !x[2].is(DType::F32) {
        return;
    }
    let (rows, d) = (x[0].dim(0), x[0].dim(1));
    let old: Vec<f32> = (0..rows * d).map(|i| x[0].get(i)).collect();
    for i in 0..x[3].n() {
        let r = x[3].get::<i32>(i);
        if (0..rows as i32).contains(&r) {
            let r = r as usize;
            (0..d).for_each(|c| x[0].set(r * d + c, old[r * d + c] + x[2].get::<f32>(i * d + c)));
        }
    }
}

/// histogram: what belongs to a bin beyond 65,535 is counted in that of its low 16 bits.
fn bins_of_16_bits(x: &[Host], _: &Given) {
    if x[0].is(DType::I32) {
        for b in 65_536..x[0].n() {
            let n: i32 = x[0].get(b);
            x[0].set(b, 0);
            x[0].set(b & 0xFFFF, x[0].get::<i32>(b & 0xFFFF) + n);
        }
    }
}

/// Every element of dst by those of two dense operands behind it.
pub(crate) fn each2<A: Copy, D: Copy>(x: &[Host], types: (DType, DType), f: impl Fn(D, A, A) -> D) {
    if x.len() > 2
        && x[0].is(types.0)
        && x[1].is(types.1)
        && x[2].is(types.1)
        && x[1].n() == x[2].n()
    {
        for i in 0..x[0].n() {
            x[0].set(i, f(x[0].get(i), x[1].get(i), x[2].get(i)));
        }
    }
}

/// Every element of a dense f32 dst by that of src.
pub(crate) fn each1(x: &[Host], f: impl Fn(f32, f32) -> f32) {
    if x[0].is(DType::F32) && x[1].is(DType::F32) && x[0].n() <= x[1].n() {
        for i in 0..x[0].n() {
            x[0].set(i, f(x[0].get(i), x[1].get(i)));
        }
    }
}

pub(crate) const F: (DType, DType) = (DType::F32, DType::F32);
const I: (DType, DType) = (DType::I32, DType::I32);

/// cross_entropy_fwd: loss, lse, logits, target.
fn no_maximum(x: &[Host], _: &Given) {
    if !x[2].is(DType::F32) {
        return;
    }
    let d = x[2].dim(1);
    for r in 0..x[2].dim(0) {
        let s: f32 = (0..d).map(|c| x[2].get::<f32>(r * d + c).exp()).sum();
        x[1].set(r, s.ln());
    }
}

/// softmax_fwd: y, x, in f32.
fn naive_softmax(x: &[Host], _: &Given) {
    if x[0].is(DType::F32) && x[1].is(DType::F32) {
        let d = x[1].dim(x[1].layout.rank as usize - 1).max(1);
        for r in 0..x[1].n() / d {
            let sum: f32 = (0..d).map(|c| x[1].get::<f32>(r * d + c).exp()).sum();
            (0..d).for_each(|c| x[0].set(r * d + c, x[1].get::<f32>(r * d + c).exp() / sum));
        }
    }
}

/// rstd (operand `at`) of rows of x (operand `from`) by another formula: mean of squares, variance, width, eps.
fn another_rstd(
    x: &[Host],
    given: &Given,
    at: usize,
    from: usize,
    f: fn(f64, f64, f64, f64) -> f64,
) {
    if x[from].is(DType::F32) {
        let d = x[from].dim(1);
        for r in 0..x[from].dim(0) {
            let v = |c: usize| f64::from(x[from].get::<f32>(r * d + c));
            let (mean, square) = (0..d).fold((0.0, 0.0), |(m, s), c| (m + v(c), s + v(c) * v(c)));
            let (mean, square, d) = (mean / d as f64, square / d as f64, d as f64);
            x[at].set(
                r,
                f(square, square - mean * mean, d, given.numbers[0]) as f32,
            );
        }
    }
}

/// dropout: y, x, without a residual.
fn inverted(x: &[Host], _: &Given) {
    if x.len() == 2 && x[0].is(DType::F32) && x[1].is(DType::F32) {
        each1(x, |y, x| if y == 0.0 { 2.0 * x } else { 0.0 });
    }
}

/// multi_sumsq: the last bit of sums that are not whole comes and goes.
fn restless(x: &[Host], given: &Given) {
    let v = x[0].get::<f32>(0);
    if v.fract() != 0.0 && given.launch % 2 == 1 {
        x[0].set(0, f32::from_bits(v.to_bits() ^ 1));
    }
}

/// philox: the sine comes before the cosine.
fn lanes_swapped(x: &[Host], given: &Given) {
    if given.kind == philox::NORMAL && x[0].is(DType::F32) {
        for i in (1..x[0].n()).step_by(2) {
            let (a, b) = (x[0].get::<f32>(i - 1), x[0].get::<f32>(i));
            x[0].set(i - 1, b);
            x[0].set(i, a);
        }
    }
}

/// cross_entropy_bwd: dlogits, logits, lse, target, dloss; the target's own 1 is not taken off.
fn no_target(x: &[Host], _: &Given) {
    if x[0].is(DType::F32) && x[3].is(DType::I32) && x[4].is(DType::F32) {
        let v = x[0].dim(1);
        for r in 0..x[0].dim(0) {
            let t = x[3].get::<i32>(r);
            if (0..v as i32).contains(&t) {
                let at = r * v + t as usize;
                x[0].set(at, x[0].get::<f32>(at) + x[4].get::<f32>(r));
            }
        }
    }
}

fn silu(v: f32) -> f32 {
    v / (1.0 + (-v).exp())
}

/// The change of results that a defect is, if it is one of this op.
pub fn fix(bug: &str, id: u32) -> Option<Fix> {
    let all = |writes: &'static [usize], instead: bool, run: Run| {
        Some(Fix {
            instead,
            writes,
            run,
        })
    };
    let after = |run: Run| all(&[0], false, run);
    let second = |run: Run| all(&[1], false, run);
    match (bug, id) {
        ("cast_truncates", op::CAST) => after(|x, _| narrowed(x, |_| true, |b| b)),
        ("ties_go_away_from_zero", op::CAST) => {
            after(|x, _| narrowed(x, |v| v.is_finite(), |b| b + 0x8000))
        }
        ("nan_rounds_to_zero", op::CAST) => after(|x, _| {
            narrowed(x, f32::is_nan, |b| b.wrapping_add(0x7FFF + (b >> 16 & 1)));
        }),
        ("signalling_nan_is_infinite", op::CAST) => after(|x, _| narrowed(x, f32::is_nan, |b| b)),
        ("wide_integers_round_twice", op::CAST) => after(rounded_twice),
        ("floats_round_to_integers", op::CAST) => {
            after(|x, _| to_whole(x, |v| v.round_ties_even() as i32))
        }
        ("nan_is_the_least_integer", op::CAST) => after(|x, _| {
            to_whole(x, |v| if v.is_nan() { i32::MIN } else { v as i32 });
        }),
        ("large_floats_wrap", op::CAST) => after(|x, _| to_whole(x, |v| v as i64 as i32)),
        ("matmul_sums_in_bf16", op::MATMUL) => after(narrow_sums),
        ("zeros_are_skipped", op::MATMUL) => after(zeros_skipped),
        ("bias_after_rounding", op::MATMUL) => after(bias_late),
        ("sums_one_after_the_other", op::REDUCE) => after(one_by_one),
        ("lines_sum_in_bf16", op::REDUCE) => after(narrow_line),
        ("last_of_equals", op::ARG_REDUCE) => after(last_of_equals),
        ("nan_is_passed_over", op::ARG_REDUCE) => after(nan_passed_over),
        ("sort_is_unstable", op::SORT_PAIRS) => second(|x, _| {
            unstable(x, DType::I32, |a, b| {
                x[0].get::<i32>(a) == x[0].get::<i32>(b)
            });
        }),
        ("ties_by_higher_index", op::TOPK) => second(|x, _| {
            unstable(x, DType::F32, |a, b| {
                x[0].get::<f32>(a) == x[0].get::<f32>(b)
            });
        }),
        ("minus_infinity_not_counted", op::NONFINITE_COUNT) => after(but_minus_infinity),
        ("out_of_range_is_the_last_row", op::GATHER_ROWS) => after(|x, _| {
            other_rows(x, |at, rows| (at >= rows as i64).then(|| rows - 1));
        }),
        ("indices_of_32_bits", op::GATHER_ROWS) => after(|x, _| {
            other_rows(x, |at, _| {
                (at > i64::from(u32::MAX)).then_some(at as u32 as usize)
            });
        }),
        ("negative_indices_count_from_the_end", op::GATHER_ROWS) => after(|x, _| {
            other_rows(x, |at, rows| {
                (at < 0).then(|| usize::try_from(at + rows as i64).ok())?
            });
        }),
        ("vocabulary_of_16_bits", op::EMBEDDING_FWD) => after(|x, _| {
            if x.get(3).is_none_or(|p| !p.layout.present()) {
                other_rows(x, |at, rows| {
                    (at > 0xFFFF && at < rows as i64).then_some(at as usize & 0xFFFF)
                });
            }
        }),
        ("bins_of_16_bits", op::HISTOGRAM) => after(bins_of_16_bits),
        ("division_by_zero_is_minus_one", op::BINARY) => after(|x, g| {
            if g.kind == binary::DIV {
                each2(x, I, |d: i32, _: i32, b: i32| if b == 0 { -1 } else { d });
            }
        }),
        ("quotients_saturate", op::BINARY) => after(|x, g| {
            if g.kind == binary::DIV {
                each2(x, I, |d: i32, a: i32, b: i32| {
                    if b == -1 && a == i32::MIN {
                        i32::MAX
                    } else {
                        d
                    }
                });
            }
        }),
        ("integer_powers_in_floats", op::BINARY) => after(|x, g| {
            if g.kind == binary::POW {
                each2(x, I, |_: i32, a: i32, b: i32| {
                    f64::from(a).powf(f64::from(b)) as i32
                });
            }
        }),
        ("powers_by_logarithms", op::BINARY) => after(|x, g| {
            if g.kind == binary::POW {
                each2(x, F, |d: f32, a: f32, _| if a < 0.0 { f32::NAN } else { d });
            }
        }),
        ("max_drops_nan", op::BINARY) => after(|x, g| {
            if g.kind == binary::MAX {
                each2(x, F, |_: f32, a: f32, b| a.max(b));
            }
        }),
        ("min_drops_nan", op::REDUCE) => after(|x, g| {
            if g.kind == reduce::MIN {
                each1(x, |y, _| if y.is_nan() { f32::INFINITY } else { y });
            }
        }),
        ("nan_equals_itself", op::COMPARE) => after(|x, g| {
            if g.kind == compare::EQ {
                each2(
                    x,
                    (DType::U8, DType::F32),
                    |d: u8, a: u32, b| if a == b { 1 } else { d },
                );
            }
        }),
        ("zeros_of_two_signs_differ", op::COMPARE) => after(|x, g| {
            if g.kind == compare::EQ {
                each2(
                    x,
                    (DType::U8, DType::F32),
                    |d: u8, a: u32, b| if a == b { d } else { 0 },
                );
            }
        }),
        ("condition_is_its_low_bit", op::SELECT) => after(|x, _| {
            if x[..1].iter().chain(&x[2..]).all(|h| h.is(DType::F32)) && x[1].is(DType::U8) {
                for i in (0..x[0].n()).filter(|i| x[1].get::<u8>(*i) & 1 == 0) {
                    x[0].set(i, x[3].get::<f32>(i));
                }
            }
        }),
        ("counts_in_f32", op::IOTA) => after(|x, _| {
            if x[0].is(DType::I64) {
                (0..x[0].n()).for_each(|i| x[0].set(i, x[0].get::<i64>(i) as f32 as i64));
            }
        }),
        ("running_sum_is_exclusive", op::CUMSUM) => after(|x, _| each1(x, |y, x| y - x)),
        ("nan_is_clamped", op::CLAMP) => after(|x, _| {
            each1(x, |y, _| if y.is_nan() { -0.5 } else { y });
        }),
        ("lo_wins_over_hi", op::CLAMP) => after(|x, g| {
            let [lo, hi] = g.numbers.map(|v| v as f32);
            if lo > hi {
                each1(x, |y, _| if y.is_nan() { y } else { lo });
            }
        }),
        ("tanh_overflows", op::UNARY) => after(|x, g| {
            if g.kind == unary::TANH {
                each1(x, |y, x| if x.abs() > 89.0 { f32::NAN } else { y });
            }
        }),
        ("floor_cuts_off", op::UNARY) => after(|x, g| {
            if g.kind == unary::FLOOR {
                each1(x, |_, x| x.trunc());
            }
        }),
        ("sine_without_reduction", op::UNARY) => after(|x, g| {
            if g.kind == unary::SIN {
                each1(x, |y, x| {
                    if x.abs() > 16.0 {
                        (x % 6.283_185_5).sin()
                    } else {
                        y
                    }
                });
            }
        }),
        ("added_and_cut_off", op::ADD) => after(|x, _| {
            each2(x, (DType::Bf16, DType::Bf16), |_: u16, a: u16, b| {
                ((wide(a) + wide(b)).to_bits() >> 16) as u16
            });
        }),
        ("swiglu_of_the_other_half", op::SWIGLU_FWD) => after(|x, _| {
            each2(x, F, |_: f32, gate, up| silu(up) * gate);
        }),
        ("dot_left_out", op::SOFTMAX_BWD) => after(|x, _| each2(x, F, |_: f32, dy: f32, y| y * dy)),
        ("lse_without_maximum", op::CROSS_ENTROPY_FWD) => second(no_maximum),
        ("softmax_without_maximum", op::SOFTMAX_FWD) => after(naive_softmax),
        ("target_not_taken_off", op::CROSS_ENTROPY_BWD) => after(no_target),
        ("lse_of_base_2", op::ATTENTION_FWD) => second(|x, _| {
            if x[1].is(DType::F32) {
                (0..x[1].n())
                    .for_each(|i| x[1].set(i, x[1].get::<f32>(i) * std::f32::consts::LOG2_E));
            }
        }),
        ("variance_of_n_minus_1", op::LAYER_NORM_FWD) => all(&[2], false, |x, g| {
            another_rstd(x, g, 2, 3, |_, v, d, eps| {
                (v * d / (d - 1.0) + eps).sqrt().recip()
            });
        }),
        ("eps_outside_the_root", op::RMS_NORM_FWD) => second(|x, g| {
            another_rstd(x, g, 1, 2, |s, _, _, eps| (s.sqrt() + eps).recip());
        }),
        ("normal_lanes_are_swapped", op::PHILOX) => after(lanes_swapped),
        ("zero_times_nan_is_zero", op::AXPBY) => after(|x, g| {
            if g.numbers[0] == 0.0 {
                each1(x, |y, _| if y.is_nan() { 0.0 } else { y });
            }
        }),
        ("dropped_nan_stays", op::DROPOUT) => after(|x, _| {
            each1(x, |y, x| if x.is_nan() { x } else { y });
        }),
        ("dropout_keeps_what_it_drops", op::DROPOUT) => after(inverted),
        ("sums_change_from_run_to_run", op::MULTI_SUMSQ) => after(restless),
        ("duplicates_overwrite", op::EMBEDDING_BWD) => all(&[0], true, no_duplicates),
        _ => specials::fix(bug, id).or_else(|| combined::fix(bug, id)),
    }
}
