//! The exponential moving average of parameters, behind the update that it follows.
//!
//! The rule is that of `torch.optim.swa_utils.get_ema_multi_avg_fn`: the first update copies the parameter, each later one moves the average
//! towards it by `1 - decay`. An update that is skipped, whose gradients were not finite, moves nothing.

use super::{Step, constant, rest, run_of};
use crate::StateName;
use crossweave_program::{Given, On, Scalar, View};

/// A run of elements, and their average.
pub struct Averaged<'v> {
    /// f32.
    pub value: View<'v>,
    /// f32.
    pub ema: View<'v>,
}

/// The averages of a group.
pub(super) fn update(s: &Step<'_, '_>, decay: f64) {
    let one = |(at, packed, len)| Averaged {
        value: run_of(&s.flat.value, at, len),
        ema: s.packed(StateName::Ema, packed, len),
    };
    let runs: Vec<_> = s.group.runs().into_iter().map(one).collect();
    write(&s.on, decay, &runs, s.k.skip.as_ref());
}

/// Writes `ema += (1 - decay) (value - ema)`; at the first update `ema = value`. Unless `skip` is 0 nothing changes.
pub fn write<'c>(on: &On<'c>, decay: f64, runs: &[Averaged<'c>], skip: Option<&View<'c>>) {
    // 0 at the first update, 1 at all others.
    let before = Scalar::Sub(on.scalar(Scalar::Given(Given::Update)), constant(on, 1.0));
    let later = on.scalar(Scalar::Min(constant(on, 1.0), on.scalar(before)));
    let weight = rest(on, on.scalar(Scalar::Mul(constant(on, decay), later)));
    for r in runs {
        let skip = skip.map(|s| s.everywhere(&[r.value.numel()]));
        let mut ins = vec![&r.ema, &r.value];
        ins.extend(&skip);
        on.map(&[&r.ema], &ins, &[weight], |x| {
            let (ema, value) = (x[0], x[1]);
            let moved = ema + ema.scalar(0) * (value - ema);
            vec![x.get(2).map_or(moved, |skip| skip.choose(ema, moved))]
        });
    }
}
