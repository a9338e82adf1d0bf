//! Values and their moving averages change places, so that the model can be run and read by its averaged weights; the same once more
//! gives back every bit.

use crate::error::Result;
use crate::states::States;
use crate::unit::Unit;
use crate::ways::Ways;
use crate::words::Tensors;
use crossweave_hal::DType;
use crossweave_program::StateKind;

impl States {
    /// Whether moving averages are kept of some parameter.
    pub fn has_ema(&self) -> bool {
        let mut kept = self.units.iter().flat_map(|u| &u.table.params);
        kept.any(|p| p.shapes.iter().any(|(kind, _)| *kind == StateKind::Ema))
    }

    /// Exchanges the values of this rank with their averages, where these are kept. Call [`States::publish`] behind it.
    ///
    /// # Errors
    /// The device, or the host's memory and files.
    pub fn exchange_ema(&self, w: &Ways<'_>) -> Result<()> {
        let each = self.units.iter();
        each.map(|u| u.exchange_ema(w))
            .collect::<Tensors<()>>()
            .map_err(w.at("exchanging values and their averages"))
    }
}

impl Unit {
    fn exchange_ema(&self, w: &Ways<'_>) -> Tensors<()> {
        for (i, p) in self.table.params.iter().enumerate() {
            if self.shape(i, StateKind::Ema).is_none() {
                continue;
            }
            if let Some((part, local)) = &p.owned {
                w.run(|run| -> Tensors<()> {
                    for v in self.views(StateKind::Ema, i) {
                        let at = local.start + v.range.start - part.start;
                        let value = self.value(&(at..at + v.range.end - v.range.start));
                        let ema = v.read(run)?;
                        let kept = run.empty([value.numel()], DType::F32)?;
                        for (to, from) in [(&kept, &value), (&value, &ema), (&ema, &kept)] {
                            w.compute.copy(to.region(), from.region())?;
                        }
                    }
                    Ok(())
                })?;
            }
            if let Some((_, local)) = &p.hosted {
                let value = self.read_owned(w, StateKind::Value, local)?;
                let ema = self.read_owned(w, StateKind::Ema, local)?;
                self.write_hosted(w, StateKind::Value, local.start, &ema)?;
                self.write_hosted(w, StateKind::Ema, local.start, &value)?;
            }
        }
        Ok(())
    }
}
