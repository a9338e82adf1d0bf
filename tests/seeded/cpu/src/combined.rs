//! Defects of combinations: a flag together with an orientation, an operand whose strides are those of another or none, the first launch for
//! all, and special numbers in a part of an op that has a kernel of its own.

use crate::ops::{Asked, Fix, Given, Host, Run};
use crate::results::each1;
use crossweave_abi::op::{self, reduce};
use crossweave_abi::{DType, LAYOUT_CONTIGUOUS, Layout};
use crossweave_plugin::{OpRequest, Result};

/// `WHAT:OP:OPERAND...` of this op: the word and the numbers behind it.
pub fn ruled(bug: &str, id: u32) -> Option<(&str, Vec<usize>)> {
    let mut words = bug.split(':');
    let (what, name) = (words.next()?, words.next()?);
    let numbers: Vec<usize> = words.map_while(|w| w.parse().ok()).collect();
    (op::by_name(name)?.id == id && !numbers.is_empty()).then_some((what, numbers))
}

/// Strides in place of those that an operand has, where all that they reach is there.
fn with_strides(l: &mut Layout, stride: [i64; 8]) -> bool {
    let other = Layout {
        stride,
        flags: l.flags & !LAYOUT_CONTIGUOUS,
        ..*l
    };
    let fits = l.present() && stride != l.stride && other.extent_bytes() <= l.extent_bytes();
    if fits {
        *l = other;
    }
    fits
}

/// Row-major strides of its shape.
fn dense(l: &Layout) -> [i64; 8] {
    let mut stride = [0; 8];
    let mut next = 1;
    for d in (0..l.rank as usize).rev() {
        stride[d] = next;
        next *= l.shape[d];
    }
    stride
}

/// What the back end is asked instead: `dense_instead:OP:OPERAND` ignores the strides of an operand, `strides_of:OP:OPERAND:OTHER` takes
/// those of another one.
pub fn asked(
    bug: &str,
    o: &OpRequest<'_>,
    same: &dyn Fn() -> Result<Vec<u8>>,
) -> Result<Option<Asked>> {
    let mut l = o.operands.to_vec();
    if let Some((what, n)) = ruled(bug, o.id) {
        let stride = match (what, &n[..]) {
            ("dense_instead", [at]) => l.get(*at).map(dense),
            ("strides_of", [at, other]) => match (l.get(*at), l.get(*other)) {
                (Some(a), Some(b)) if a.rank == b.rank => Some(b.stride),
                _ => None,
            },
            _ => None,
        };
        return match stride {
            Some(s) if with_strides(&mut l[n[0]], s) => Ok(Some((l, same()?))),
            _ => Ok(None),
        };
    }
    if o.id == op::MATMUL && l.len() > 2 && l[1].rank > 1 {
        return product(bug, o);
    }
    macro_rules! with {
        ($t:ident, $p:ident, $change:expr) => {{
            let mut $p = o.params::<op::$t>()?;
            $change;
            $p.as_bytes().to_vec()
        }};
    }
    let absent = |l: &mut Vec<Layout>, at: usize| l[at] = Layout::ABSENT;
    let p = match (bug, o.id) {
        ("eps_0_is_the_usual_one", op::LAYER_NORM_FWD | op::RMS_NORM_FWD) => {
            with!(
                NormParams,
                p,
                p.eps = if p.eps == 0.0 { 1e-5 } else { p.eps }
            )
        }
        ("no_residual_without_db", op::LAYER_NORM_BWD) if !l[2].present() && l.len() > 8 => {
            absent(&mut l, 8);
            same()?
        }
        ("no_db_without_residual", op::LAYER_NORM_BWD) if l.get(8).is_none_or(|r| !r.present()) => {
            absent(&mut l, 2);
            same()?
        }
        ("no_second_ignored_without_flag", op::CROSS_ENTROPY_BWD) => {
            with!(XentParams, p, p.flags |= op::FLAG_HAS_IGNORE)
        }
        _ => return Ok(None),
    };
    Ok(Some((l, p)))
}

/// The same of products.
fn product(bug: &str, o: &OpRequest<'_>) -> Result<Option<Asked>> {
    let mut l = o.operands.to_vec();
    let mut p = o.params::<op::MatmulParams>()?;
    let r = l[1].rank as usize;
    let turned = |x: &Layout| {
        let r = x.rank as usize;
        r > 1 && x.shape[r - 1] > 1 && x.stride[r - 1] != 1
    };
    let biased = l.len() > 3 && l[3].present();
    let one_row = l[1].shape[r - 2] == 1;
    let plain = |p: &mut op::MatmulParams| p.flags &= !op::FLAG_ACCUM;
    match bug {
        "no_sum_with_b_turned" if turned(&l[2]) && !turned(&l[1]) => plain(&mut p),
        "no_sum_with_a_turned" if turned(&l[1]) && !turned(&l[2]) => plain(&mut p),
        "no_bias_with_a_turned" if turned(&l[1]) && !turned(&l[2]) && biased => {
            l[3] = Layout::ABSENT
        }
        "no_sum_in_batches" if r == 3 => plain(&mut p),
        "no_bias_in_batches" if r == 3 && biased => l[3] = Layout::ABSENT,
        "no_alpha_in_batches" if r == 3 => p.alpha = 0.0,
        "no_sum_of_one_row" if one_row => plain(&mut p),
        "no_bias_of_one_row" if one_row && biased => l[3] = Layout::ABSENT,
        "alpha_of_16_bits" => {
            p.alpha = f64::from(f32::from_bits((p.alpha as f32).to_bits() & 0xFFFF_0000));
        }
        "b_is_never_turned_in_batches" if r == 3 => {
            let dense = dense(&l[2]);
            if !with_strides(&mut l[2], dense) {
                return Ok(None);
            }
        }
        "bias_is_never_spread" if biased => {
            let dense = dense(&l[3]);
            if !with_strides(&mut l[3], dense) {
                return Ok(None);
            }
        }
        _ => return Ok(None),
    }
    Ok(Some((l, p.as_bytes().to_vec())))
}

/// Rows of two dense dims: `f(row, first element, elements)`.
fn rows(x: &Host, mut f: impl FnMut(usize, usize, usize)) {
    if x.layout.rank == 2 {
        let d = x.dim(1);
        (0..x.dim(0)).for_each(|r| f(r, r * d, d));
    }
}

/// arg_reduce: nothing is larger than the number that a line begins with.
fn nothing_beyond_infinity(x: &[Host], g: &Given) {
    let far = if g.kind == 0 {
        f32::NEG_INFINITY
    } else {
        f32::INFINITY
    };
    if x[0].is(DType::I32) && x[1].is(DType::F32) && x[0].layout.rank == 2 && x[0].dim(1) == 1 {
        rows(&x[1], |r, at, d| {
            if (at..at + d).all(|i| x[1].get::<f32>(i) == far) {
                x[0].set(r, -1i32);
            }
        });
    }
}

/// cross_entropy_bwd: dlogits, logits, lse, target, dloss; rows of a target out of range have the gradient of no target.
fn gradient_out_of_range(x: &[Host], _: &Given) {
    if x[0].is(DType::F32) && x[1].is(DType::F32) && x[3].is(DType::I32) {
        rows(&x[0], |r, at, d| {
            if !(0..d as i32).contains(&x[3].get::<i32>(r)) {
                for i in (at..at + d).filter(|i| x[0].get::<f32>(*i).is_nan()) {
                    x[0].set(i, (x[1].get::<f32>(i) - x[2].get::<f32>(r)).exp());
                }
            }
        });
    }
}

/// sort_pairs of one line: keys by their low 32 bits, or by their high 20.
fn by_a_part(x: &[Host], g: &Given) {
    let n = x[0].n();
    if x[2].layout.rank != 1 || !x[3].is(DType::I32) || g.flags != 0 {
        return;
    }
    let mut ix: Vec<usize> = (0..n).collect();
    if x[2].is(DType::I64) {
        ix.sort_by_key(|i| x[2].get::<i64>(*i) as i32);
        ix.iter()
            .enumerate()
            .for_each(|(k, i)| x[0].set(k, x[2].get::<i64>(*i)));
    } else if x[2].is(DType::F32) {
        let key = |i: usize| {
            let b = x[2].get::<i32>(i);
            (b ^ ((b >> 31) as u32 >> 1) as i32) >> 12
        };
        ix.sort_by_key(|i| key(*i));
        ix.iter()
            .enumerate()
            .for_each(|(k, i)| x[0].set(k, x[2].get::<f32>(*i)));
    } else {
        return;
    }
    ix.iter()
        .enumerate()
        .for_each(|(k, i)| x[1].set(k, x[3].get::<i32>(*i)));
}

/// scatter_add_rows: the last row first.
fn last_first(x: &[Host], g: &Given) {
    if g.flags != 0 || !x[1].is(DType::F32) || !x[0].is(DType::F32) || x[0].layout.rank != 2 {
        return;
    }
    let w = x[0].dim(1);
    for i in (0..x[2].n()).rev() {
        let at = match x[2].is(DType::I64) {
            true => x[2].get::<i64>(i),
            false => i64::from(x[2].get::<i32>(i)),
        };
        if (0..x[0].dim(0) as i64).contains(&at) {
            for c in 0..w {
                let k = at as usize * w + c;
                x[0].set(k, x[0].get::<f32>(k) + x[1].get::<f32>(i * w + c));
            }
        }
    }
}

/// The change of results that a defect is, if it is one of this op.
pub fn fix(bug: &str, id: u32) -> Option<Fix> {
    let of = |writes: &'static [usize], instead: bool, run: Run| {
        Some(Fix {
            instead,
            writes,
            run,
        })
    };
    let after = |run: Run| of(&[0], false, run);
    match (bug, id) {
        ("nothing_beyond_infinity", op::ARG_REDUCE) => after(nothing_beyond_infinity),
        ("minus_infinity_is_not_among_them", op::TOPK) => of(&[1], false, |x, _| {
            if x[0].is(DType::F32) && x[1].is(DType::I32) {
                for i in (0..x[0].n()).filter(|i| x[0].get::<f32>(*i) == f32::NEG_INFINITY) {
                    x[1].set(i, -1i32);
                }
            }
        }),
        ("targets_out_of_range_have_gradients", op::CROSS_ENTROPY_BWD) => {
            after(gradient_out_of_range)
        }
        ("dropped_nan_stays_with_a_residual", op::DROPOUT) => after(|x, _| {
            if x.len() > 2 && x[2].layout.present() {
                each1(x, |y, x| if x.is_finite() { y } else { f32::NAN });
            }
        }),
        ("keys_by_a_part", op::SORT_PAIRS) => of(&[0, 1], false, by_a_part),
        ("values_of_32_bits", op::SORT_PAIRS) => of(&[1], false, |x, _| {
            if x[1].is(DType::I64) {
                (0..x[1].n()).for_each(|i| x[1].set(i, i64::from(x[1].get::<i64>(i) as i32)));
            }
        }),
        ("i32_counts_in_f32", op::IOTA) => after(|x, _| {
            if x[0].is(DType::I32) {
                (0..x[0].n()).for_each(|i| x[0].set(i, x[0].get::<i32>(i) as f32 as i32));
            }
        }),
        ("running_nan_is_dropped", op::CUMSUM) => after(|x, _| {
            if x[0].is(DType::F32) {
                for i in (0..x[0].n()).filter(|i| x[0].get::<f32>(*i).is_nan()) {
                    x[0].set(i, 0f32);
                }
            }
        }),
        ("products_by_logarithms", op::REDUCE) => after(|x, g| {
            if g.kind == reduce::PROD && x[0].is(DType::F32) {
                for i in (0..x[0].n()).filter(|i| x[0].get::<f32>(*i) == 0.0) {
                    x[0].set(i, f32::NAN);
                }
            }
        }),
        ("products_drop_nan", op::REDUCE) => after(|x, g| {
            if g.kind == reduce::PROD && x[0].is(DType::F32) {
                for i in (0..x[0].n()).filter(|i| x[0].get::<f32>(*i).is_nan()) {
                    x[0].set(i, 1f32);
                }
            }
        }),
        ("infinities_of_two_signs_cancel", op::REDUCE) => after(|x, g| {
            if g.kind == reduce::SUM && x[0].is(DType::F32) && x[1].is(DType::F32) && x[1].n() > 0 {
                let nan = (0..x[1].n()).any(|i| x[1].get::<f32>(i).is_nan());
                for i in (0..x[0].n()).filter(|i| !nan && x[0].get::<f32>(*i).is_nan()) {
                    x[0].set(i, 0f32);
                }
            }
        }),
        ("last_rows_first", op::SCATTER_ADD_ROWS) => of(&[0], true, last_first),
        ("loss_of_minus_infinity_is_large", op::CROSS_ENTROPY_FWD) => after(|x, _| {
            if x[0].is(DType::F32) {
                for i in (0..x[0].n()).filter(|i| x[0].get::<f32>(*i) == f32::INFINITY) {
                    x[0].set(i, 1e30f32);
                }
            }
        }),
        _ => None,
    }
}
