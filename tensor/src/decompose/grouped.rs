//! Products by groups of rows whose ends are on the device: one product of all rows with each group's weight, of which each row takes its own.
//! What a group costs does not depend on its rows, so that E groups cost E products of all rows: the price of knowing no count on the host.
//! Rows are chosen and never multiplied by 0, so that what stands behind the last group is not looked at, NaN or not.

use super::build::{Build, Given, View};
use crossweave_hal::abi::op;
use crossweave_hal::{DType, OpRequest, Recipe};

/// For each of `n` rows whether it stands before the end of group `e`: u8 `[n, 1]`.
fn before(b: &mut Build, rows: &View, ends: &View, e: u64) -> View {
    let n = rows.numel();
    let t = b.temp(DType::U8, &[n]);
    b.kind(
        op::COMPARE,
        op::compare::LT,
        &[&t, rows, &ends.at(e).over(&[n])],
    );
    t.reshape(&[n, 1])
}

/// `grouped_matmul`: from the last group to the first, rows before a group's end take its product.
pub(super) fn product(o: &OpRequest) -> Option<Recipe> {
    let g = Given(o);
    let (y, x, w, ends) = (g.view(0)?, g.view(1)?, g.view(2)?, g.view(3)?);
    let ([n, _], [groups, out, _]) = (x.dims()?, w.dims()?);
    let mut b = Build::default();
    let zero = b.constant(0.0);
    let mut found = zero.over(&[n, out]);
    let rows = b.count(DType::I32, n);
    let x = x.repeat(0, 1);
    for e in (0..groups).rev() {
        let here = before(&mut b, &rows, &ends, e);
        let of = b.matmul(&x, &w.at(e).permute(&[0, 2, 1]), 1.0);
        let next = b.temp(DType::F32, &[n, out]);
        let of = of.reshape(&[n, out]);
        b.launch(op::SELECT, &[&next, &here.over(&[n, out]), &of, &found]);
        found = next;
    }
    b.copy(&y, &found);
    Some(b.finish())
}

/// `grouped_matmul_dw`: for each group the rows of both that are its own, and zeros in place of all others.
pub(super) fn weights(o: &OpRequest) -> Option<Recipe> {
    let g = Given(o);
    let p: op::GroupedParams = g.params()?;
    let (dw, dy, x, ends) = (g.view(0)?, g.view(1)?, g.view(2)?, g.view(3)?);
    let ([groups, out, k], [n, _]) = (dw.dims()?, dy.dims()?);
    let product = op::MatmulParams {
        flags: p.flags & op::FLAG_ACCUM,
        ..Default::default()
    };
    let mut b = Build::default();
    let rows = b.count(DType::I32, n);
    let zero = b.constant(0.0);
    let zero = match dy.dtype {
        DType::F32 => zero,
        narrow => {
            let t = b.temp(narrow, &[1]);
            b.copy(&t, &zero);
            t
        }
    };
    let mut earlier: Option<View> = None;
    for e in 0..groups {
        let here = before(&mut b, &rows, &ends, e);
        let own = [(&dy, out), (&x, k)].map(|(all, width)| {
            let shape = [n, width];
            let mut own = b.temp(all.dtype, &shape);
            let (here, zero) = (here.over(&shape), zero.over(&shape));
            b.launch(op::SELECT, &[&own, &here, all, &zero]);
            if let Some(earlier) = &earlier {
                let rest = b.temp(all.dtype, &shape);
                b.launch(op::SELECT, &[&rest, &earlier.over(&shape), &zero, &own]);
                own = rest;
            }
            own
        });
        let [dy, x] = &own;
        let operands = [
            Some(&dw.at(e).reshape(&[out, k])),
            Some(&dy.permute(&[1, 0])),
            Some(x),
            None,
        ];
        b.op(op::MATMUL, product.as_bytes(), &operands, None);
        earlier = Some(here);
    }
    Some(b.finish())
}
