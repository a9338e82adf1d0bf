//! Results that are wrong at special numbers only: zeros of either sign, NaN, ends of ranges, ties; by the ways in which kernels get there.

use crate::ops::{Fix, Given, Host, Run};
use crate::results::{F, bf16, each1, each2, wide};
use crossweave_abi::DType;
use crossweave_abi::op::{self, activation, binary, compare, reduce, unary};

/// Every element of a dense bf16 dst by that of a bf16 src.
fn each16(x: &[Host], f: impl Fn(f32, f32) -> f32) {
    if x[0].is(DType::Bf16) && x[1].is(DType::Bf16) {
        for i in 0..x[0].n() {
            let v = f(wide(x[0].get(i)), wide(x[1].get(i)));
            x[0].set(i, (bf16(v).to_bits() >> 16) as u16);
        }
    }
}

/// cast of f32 to bytes without a sign: negative numbers wrap.
fn wrapped_bytes(x: &[Host], _: &Given) {
    if x[0].is(DType::U8) && x[1].is(DType::F32) {
        for i in 0..x[0].n() {
            let v: f32 = x[1].get(i);
            if v < 0.0 {
                x[0].set(i, v as i64 as u8);
            }
        }
    }
}

/// cast of f64 to bf16 by way of f32.
fn f64_twice(x: &[Host], _: &Given) {
    if x[0].is(DType::Bf16) && x[1].is(DType::F64) {
        for i in 0..x[0].n() {
            let v = x[1].get::<f64>(i) as f32;
            if !v.is_nan() {
                x[0].set(i, (bf16(v).to_bits() >> 16) as u16);
            }
        }
    }
}

/// cumsum of bf16 along the last of two dims, where there are three lines: the running sum is rounded at every step.
fn narrow_running_sum(x: &[Host], _: &Given) {
    if x[0].is(DType::Bf16) && x[1].is(DType::Bf16) && x[1].layout.rank == 2 && x[1].dim(0) == 3 {
        let d = x[1].dim(1);
        let mut s = 0f32;
        for i in 0..x[1].n() {
            s = if i % d == 0 { 0.0 } else { s };
            s = bf16(s + wide(x[1].get(i)));
            x[0].set(i, (s.to_bits() >> 16) as u16);
        }
    }
}

/// Results below the least normal number are zeros.
fn flushed(x: &[Host], _: &Given) {
    for i in 0..x[0].n() {
        if x[0].is(DType::F32) && x[0].get::<f32>(i).is_subnormal() {
            x[0].set(i, 0f32);
        }
        if x[0].is(DType::Bf16) && wide(x[0].get(i)).is_subnormal() {
            x[0].set(i, 0u16);
        }
    }
}

/// histogram of i32: what lies outside is counted at the ends.
fn outside_at_the_ends(x: &[Host], _: &Given) {
    if x[0].is(DType::I32) && x[1].is(DType::I32) && x[0].n() > 0 {
        let last = x[0].n() - 1;
        for i in 0..x[1].n() {
            let v = x[1].get::<i32>(i);
            let at = match v {
                v if v < 0 => 0,
                v if v as usize > last => last,
                _ => continue,
            };
            x[0].set(at, x[0].get::<i32>(at) + 1);
        }
    }
}

/// The change of results that a defect is, if it is one of this op.
pub fn fix(bug: &str, id: u32) -> Option<Fix> {
    let after = |run: Run| {
        Some(Fix {
            instead: false,
            writes: &[0],
            run,
        })
    };
    match (bug, id) {
        ("subnormals_are_flushed", op::UNARY | op::BINARY | op::CAST) => after(flushed),
        ("neg_by_subtraction", op::UNARY) => after(|x, g| {
            if g.kind == unary::NEG {
                each1(x, |_, x| 0.0 - x);
            }
        }),
        ("abs_by_comparison", op::UNARY) => after(|x, g| {
            if g.kind == unary::ABS {
                each1(x, |_, x| if x < 0.0 { -x } else { x });
            }
        }),
        ("log_of_nothing_is_large", op::UNARY) => after(|x, g| {
            if g.kind == unary::LOG {
                each1(x, |y, x| if x == 0.0 { -103.28 } else { y });
            }
        }),
        ("exp_ends_at_88", op::UNARY) => after(|x, g| {
            if g.kind == unary::EXP {
                each1(x, |y, x| if x > 88.0 { f32::INFINITY } else { y });
            }
        }),
        ("sigmoid_by_e_to_x", op::UNARY) => after(|x, g| {
            if g.kind == unary::SIGMOID {
                each1(x, |y, x| if x > 88.8 { f32::NAN } else { y });
            }
        }),
        ("floor_of_large_wraps", op::UNARY) => after(|x, g| {
            if g.kind == unary::FLOOR {
                each1(x, |y, x| {
                    if x.is_finite() && x.abs() > 2.2e9 {
                        (x as i64 as i32) as f32
                    } else {
                        y
                    }
                });
            }
        }),
        ("max_of_16_bits_drops_nan", op::BINARY) => after(|x, g| {
            if g.kind == binary::MAX && x[0].is(DType::Bf16) && x[2].is(DType::Bf16) {
                each16(x, |y, a| if y.is_nan() && !a.is_nan() { a } else { y });
            }
        }),
        ("quotients_by_reciprocals", op::BINARY) => after(|x, g| {
            if g.kind == binary::DIV {
                each2(x, F, |_: f32, a: f32, b: f32| a * (1.0 / b));
            }
        }),
        ("ne_of_nan_is_false", op::COMPARE) => after(|x, g| {
            if g.kind == compare::NE {
                each2(x, (DType::U8, DType::F32), |d: u8, a: f32, b: f32| {
                    if a.is_nan() || b.is_nan() { 0 } else { d }
                });
            }
        }),
        ("ge_is_not_lt", op::COMPARE) => after(|x, g| {
            if g.kind == compare::GE {
                each2(x, (DType::U8, DType::F32), |_: u8, a: f32, b: f32| {
                    u8::from(a.partial_cmp(&b) != Some(std::cmp::Ordering::Less))
                });
            }
        }),
        ("true_is_255", op::COMPARE) => after(|x, _| {
            if x[0].is(DType::U8) {
                for i in (0..x[0].n()).filter(|i| x[0].get::<u8>(*i) == 1) {
                    x[0].set(i, 255u8);
                }
            }
        }),
        ("relu_drops_nan", op::ACTIVATION_FWD) => after(|x, g| {
            if g.kind == activation::RELU {
                each1(x, |_, x| x.max(0.0));
            }
        }),
        ("relu_gradient_at_zero_is_one", op::ACTIVATION_BWD) => after(|x, g| {
            if g.kind == activation::RELU {
                each2(
                    x,
                    F,
                    |d: f32, dy: f32, x: f32| if x == 0.0 { dy } else { d },
                );
            }
        }),
        ("gelu_of_large_is_nan", op::ACTIVATION_FWD) => after(|x, g| {
            if g.kind == activation::GELU_TANH {
                each1(x, |y, x| if x > 12.0 { f32::NAN } else { y });
            }
        }),
        ("silu_of_far_below_is_nan", op::ACTIVATION_FWD) => after(|x, g| {
            if g.kind == activation::SILU {
                each1(x, |y, x| if x < -89.0 { f32::NAN } else { y });
            }
        }),
        ("swiglu_of_far_below_is_nan", op::SWIGLU_FWD) => after(|x, _| {
            each2(
                x,
                F,
                |y: f32, gate: f32, _| if gate < -89.0 { f32::NAN } else { y },
            );
        }),
        ("negative_floats_wrap_to_bytes", op::CAST) => after(wrapped_bytes),
        ("f64_rounds_twice", op::CAST) => after(f64_twice),
        ("running_sum_in_bf16", op::CUMSUM) => after(narrow_running_sum),
        ("outside_is_counted_at_the_ends", op::HISTOGRAM) => after(outside_at_the_ends),
        ("max_begins_at_zero", op::REDUCE) => after(|x, g| {
            if g.kind == reduce::MAX {
                each1(x, |y, _| y.max(0.0));
            }
        }),
        ("max_of_nothing_but_minus_infinity", op::REDUCE) => after(|x, g| {
            if g.kind == reduce::MAX {
                each1(x, |y, _| if y == f32::NEG_INFINITY { f32::MIN } else { y });
            }
        }),
        ("zero_of_either_sign_is_filled", op::FILL_STRIDED) => after(|x, _| {
            if x[0].is(DType::F32) {
                for i in (0..x[0].n()).filter(|i| x[0].get::<f32>(*i) == 0.0) {
                    x[0].set(i, 0f32);
                }
            }
        }),
        // 0 times what is not a number.
        ("hidden_values_spread", op::ATTENTION_FWD) => after(|x, _| spread(x, 4)),
        ("hidden_keys_spread", op::ATTENTION_BWD) => after(|x, _| spread(x, 6)),
        ("rows_not_added_spread", op::EMBEDDING_BWD) => after(|x, _| spread(x, 2)),
        ("rows_not_scattered_spread", op::SCATTER_ADD_ROWS) => after(|x, _| spread(x, 1)),
        ("sums_beyond_f16_are_its_largest", op::REDUCE) => after(|x, g| {
            let finite = |i| x[1].get::<u16>(i) & 0x7C00 != 0x7C00;
            let sum = g.kind == reduce::SUM && x[0].is(DType::F16) && x[1].is(DType::F16);
            if sum && (0..x[1].n()).all(finite) {
                for i in (0..x[0].n()).filter(|i| x[0].get::<u16>(*i) & 0x7FFF == 0x7C00) {
                    x[0].set(i, x[0].get::<u16>(i) - 1);
                }
            }
        }),
        ("a_tile_of_minus_infinity_is_nan", op::SOFTMAX_FWD) => after(|x, _| {
            if x[0].is(DType::F32)
                && x[1].is(DType::F32)
                && x[1].layout.rank == 2
                && x[1].dim(1) > 64
            {
                for at in (0..x[1].n()).step_by(x[1].dim(1)) {
                    if (at..at + 64).all(|i| x[1].get::<f32>(i) == f32::NEG_INFINITY) {
                        x[0].set(at, f32::NAN);
                    }
                }
            }
        }),
        _ => None,
    }
}

/// A NaN of an operand reaches what is given first.
fn spread(x: &[Host], operand: usize) {
    let nan = |i: &usize| x[operand].get::<f32>(*i).is_nan();
    if x[0].is(DType::F32) && x[operand].is(DType::F32) && (0..x[operand].n()).any(|i| nan(&i)) {
        x[0].set(0, f32::NAN);
    }
}
