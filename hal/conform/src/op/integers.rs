//! `binary` over integers: what wraps, what cannot be divided, and powers that leave the range.

use super::cell::{Gen, SIZES, kind};
use super::num;
use super::sizes;
use super::tensor::{T, count};
use super::trial::{Trial, Want};
use crossweave_abi::DType;
use crossweave_abi::op::binary;

/// Trials of a function of two integers.
pub fn trials(g: &mut Gen, k: u32, t: DType) -> Vec<Trial> {
    let p = kind(k);
    let run = |what: &str, a: T, b: T| {
        let v = a
            .integers()
            .into_iter()
            .zip(b.integers())
            .map(|(a, b)| match k {
                binary::ADD => a + b,
                binary::SUB => a - b,
                binary::MUL => a.wrapping_mul(b),
                binary::DIV if b == 0 => 0,
                binary::DIV => a / b,
                binary::MAX => a.max(b),
                binary::MIN => a.min(b),
                _ => power(a, b),
            });
        let want = Want::Exact(v.map(|v| num::int_bits(t, v)).collect());
        let dst = T::poison(t, &a.shape);
        Trial::new(
            what,
            p.as_bytes(),
            vec![dst.into(), a.into(), b.into()],
            vec![(0, want)],
        )
    };
    let right = |g: &mut Gen, n: usize| -> Vec<i64> {
        (0..n)
            .map(|_| match k {
                binary::DIV => 1 + g.below(60) as i64,
                binary::POW => g.below(4) as i64,
                _ => g.below(100) as i64,
            })
            .collect()
    };
    let signed = matches!(t, DType::I8 | DType::I32 | DType::I64);
    let left = |g: &mut Gen, n: usize| -> Vec<i64> {
        (0..n)
            .map(|_| g.below(100) as i64 - if signed { 50 } else { 0 })
            .collect()
    };
    let mut all = Vec::new();
    if g.sizes() {
        for (what, b) in sizes::inputs(g, |g, s| T::ints(t, s, &right(g, count(s)))) {
            let a = T::ints(t, &b.shape, &left(g, b.bits.len()));
            all.push(run(&what, a, b));
        }
        return all;
    }
    for n in SIZES {
        let (a, b) = (left(g, n), right(g, n));
        all.push(run(
            &format!("[{n}]"),
            T::ints(t, &[n], &a),
            T::ints(t, &[n], &b),
        ));
    }
    let (a, b) = (left(g, 63), right(g, 63));
    all.push(run(
        "[9,7] row broadcast",
        T::ints(t, &[9, 7], &a),
        T::ints(t, &[9, 7], &b).broadcast(&[0]),
    ));
    // What f32 cannot hold, and what wraps.
    let w = 8 * num::size(t) as u32;
    let top = if signed {
        (1i128 << (w - 1)) - 1
    } else {
        (1i128 << w) - 1
    };
    let bits = |v: &[i128]| {
        T::of_bits(
            t,
            &[v.len()],
            v.iter().map(|v| num::int_bits(t, *v)).collect(),
        )
    };
    let odd = top / 2 + 1;
    let (a, b) = match k {
        binary::DIV => ([top, odd, top - 1, odd + 1], [1, 3, 2, 7]),
        binary::POW => ([3, 5, 7, 2], [3, 2, 1, 6]),
        _ => ([top, odd, odd + 1, top - 1], [1, odd, odd, 2]),
    };
    all.push(run("large numbers", bits(&a), bits(&b)));
    // What has no answer among the integers has one in the op table: x / 0 is 0, quotients and powers wrap.
    let least = if signed { -top - 1 } else { 0 };
    if k == binary::DIV {
        let m = if signed { -1 } else { top };
        let (a, b) = ([least, 7, least, 0, top, top], [m, 0, 0, m, m, top]);
        all.push(run("by 0, by -1, and the ends", bits(&a), bits(&b)));
    }
    if k == binary::POW && signed {
        let (a, b) = (
            [2, 1, -1, -1, 0, -3, -2, least],
            [-1, -5, -3, -4, 0, 3, -1, 2],
        );
        all.push(run("negative powers", bits(&a), bits(&b)));
    }
    if k == binary::POW {
        let (a, b) = ([3, 2, top, 10, 0, 1], [41, 70, 3, 25, 9, top]);
        all.push(run("powers that wrap", bits(&a), bits(&b)));
    }
    let (a, b) = (
        [least, top, least, top, 1, 0],
        [top, least, least, top, least, top],
    );
    if k != binary::DIV && k != binary::POW {
        all.push(run("ends of the range", bits(&a), bits(&b)));
    }
    all
}

/// A power of integers: of a negative exponent the fraction is cut off.
fn power(a: i128, b: i128) -> i128 {
    match (a, b) {
        (1, _) => 1,
        (-1, _) => 1 - 2 * (b & 1),
        (_, ..0) => 0,
        _ => {
            let (mut r, mut s, mut e) = (1i128, a, b);
            while e > 0 {
                if e & 1 == 1 {
                    r = r.wrapping_mul(s);
                }
                s = s.wrapping_mul(s);
                e >>= 1;
            }
            r
        }
    }
}
