//! A tape beside that of a block: what is computed in another environment of the same unit, for nobody's backward.

use crate::env::Env;
use crate::error::Result;
use crate::spmd::Spmd;
use crate::tape::{Origin, Var};
use crate::{Cx, Tensor};

/// Runs something on a tape of its own, which is given up, and brings what it makes of `ins` into the block. The dry run looks at it too.
///
/// # Errors
/// Those of `run`.
pub fn aside(
    cx: &mut Cx<'_>,
    env: &Env<'_>,
    ins: &[Var],
    run: impl FnOnce(&mut Cx<'_>, Vec<Var>) -> Result<Vec<Var>>,
) -> Result<Vec<Var>> {
    let types: Vec<Spmd> = ins.iter().map(|v| cx.type_of(*v)).collect();
    let values = ins.iter().map(|v| cx.val(*v).cloned());
    let values = values.collect::<Result<Vec<_>>>()?;
    let mut alone = Cx::new(env);
    alone.check = cx.check.as_ref().map(|c| c.lent(types));
    let ins = values.into_iter().map(|t| alone.input(t)).collect();
    let made = run(&mut alone, ins).and_then(|outs| {
        let each = outs.into_iter();
        let each = each.map(|v| Ok((alone.val(v)?.clone(), alone.type_of(v))));
        each.collect::<Result<Vec<(Tensor, Spmd)>>>()
    });
    if let (Some(own), Some(lent)) = (&mut cx.check, alone.check) {
        own.take_back(lent);
    }
    let outs = made?.into_iter().map(|(t, ty)| {
        let v = cx.push_val(t, u32::MAX, Origin::Own, false);
        cx.typed(v, |_| ty);
        v
    });
    Ok(outs.collect())
}
