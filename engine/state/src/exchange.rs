//! Values and their moving averages change places, so that the model can be run and read by its averaged weights; the same once more
//! gives back every bit.

use crate::error::Result;
use crate::states::States;
use crate::unit::Unit;
use crate::ways::Ways;
use crate::words::Tensors;
use crossweave_hal::{DType, Tag};
use crossweave_program::StateKind;

/// Exchanges the values of this rank with their averages, where these are kept. Call [`States::publish`] behind it.
///
/// # Errors
/// The device, or the host's memory and files.
pub fn exchange_ema(states: &States, w: &Ways<'_>) -> Result<()> {
    let mut each = states.units.iter();
    each.try_for_each(|u| exchange(u, w))
        .map_err(w.at("exchanging values and their averages"))
}

fn exchange(unit: &Unit, w: &Ways<'_>) -> Tensors<()> {
    for (i, p) in unit.table.params.iter().enumerate() {
        if unit.shape(i, StateKind::Ema).is_none() {
            continue;
        }
        if let Some((part, local)) = &p.owned {
            w.run(|run| -> Tensors<()> {
                for v in unit.views(StateKind::Ema, i) {
                    let at = local.start + v.range.start - part.start;
                    let value = unit.value(&(at..at + v.range.end - v.range.start));
                    let ema = v.read(run)?;
                    let kept = run.empty_for([value.numel()], DType::F32, Tag::Staging)?;
                    for (to, from) in [(&kept, &value), (&value, &ema), (&ema, &kept)] {
                        w.compute.copy(to.region(), from.region())?;
                    }
                }
                Ok(())
            })?;
        }
        if let Some((_, local)) = &p.hosted {
            let value = unit.read_owned(w, StateKind::Value, local)?;
            let ema = unit.read_owned(w, StateKind::Ema, local)?;
            unit.write_hosted(w, StateKind::Value, local.start, &ema)?;
            unit.write_hosted(w, StateKind::Ema, local.start, &value)?;
        }
    }
    Ok(())
}
