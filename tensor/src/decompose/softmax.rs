//! Softmax over the last dim: the maximum is taken out first, so that no exponential overflows.

use super::build::{Build, Given};
use crossweave_hal::abi::op::reduce::{MAX, SUM};
use crossweave_hal::{OpRequest, Recipe};

pub(super) fn fwd(o: &OpRequest) -> Option<Recipe> {
    let g = Given(o);
    let (y, x) = (g.view(0)?, g.view(1)?);
    let mut b = Build::default();
    let m = b.along(MAX, &x);
    let e = b.new_map(&x.shape, &[&x, &m], |v| (v[0] - v[1]).exp());
    let s = b.along(SUM, &e);
    b.map(&[&y], &[&e, &s], |v| vec![v[0] / v[1]]);
    Some(b.finish())
}

/// `dx = y (dy - sum(dy y))`.
pub(super) fn bwd(o: &OpRequest) -> Option<Recipe> {
    let g = Given(o);
    let (dx, dy, y) = (g.view(0)?, g.view(1)?, g.view(2)?);
    let mut b = Build::default();
    let t = b.new_map(&y.shape, &[&dy, &y], |v| v[0] * v[1]);
    let s = b.along(SUM, &t);
    b.map(&[&dx], &[&y, &dy, &s], |v| vec![v[0] * (v[1] - v[2])]);
    Some(b.finish())
}
