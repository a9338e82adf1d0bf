//! Many ops alive at once: trials of which no two are alike, so that one that takes the place of another shows.

use super::tensor::T;
use super::trial::{Trial, Want};
use crossweave_abi::DType;
use crossweave_abi::op::{self, AxpbyParams, ClampParams};

/// So many trials of one number each, no two of them alike: of `axpby` and of `clamp` in turn.
pub fn numbered(n: usize) -> Vec<(u32, Trial)> {
    let f = DType::F32;
    let one = |i: usize| {
        let v = 1.0 + i as f64 / 4.0;
        let (y, x) = (T::poison(f, &[3]), T::new(f, &[3], &[1.0, 2.0, -4.0]));
        let what = format!("op {i}");
        match i % 2 {
            0 => {
                let p = AxpbyParams {
                    alpha: v,
                    ..Default::default()
                };
                let want = Want::exact(f, [v, 2.0 * v, -4.0 * v]);
                let args = vec![y.into(), x.into()];
                (
                    op::AXPBY,
                    Trial::new(what, p.as_bytes(), args, vec![(0, want)]),
                )
            }
            _ => {
                let (lo, hi) = (v, v + 0.125);
                let p = ClampParams {
                    lo,
                    hi,
                    ..Default::default()
                };
                let want = Want::exact(f, [1.0f64, 2.0, -4.0].map(|x| x.max(lo).min(hi)));
                let args = vec![y.into(), x.into()];
                (
                    op::CLAMP,
                    Trial::new(what, p.as_bytes(), args, vec![(0, want)]),
                )
            }
        }
    };
    (0..n).map(one).collect()
}
