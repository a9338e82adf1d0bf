//! The state of a rank: its units, values that were loaded and wait to be kept, and who leads while ranks read together.

use crate::error::{Error, Result};
use crate::together::Together;
use crate::unit::Unit;
use crate::ways::Ways;
use crate::words::Tensors;
use crossweave_hal::Stream;
use crossweave_machine::Machine;
use crossweave_program::{StateKind, UnitState, clip};
use crossweave_tensor::{ParamDecl, Tensor, UnitDecl};
use std::cell::RefCell;
use std::ops::Range;

/// Values on their way into a state that is not kept in f32: unit, parameter, kind, first element, and where they wait.
pub(crate) struct PendingStateLoad {
    pub unit: usize,
    pub param: usize,
    pub kind: StateKind,
    pub first: u64,
    pub values: Tensor,
}

/// One rank's state.
pub struct States {
    pub(crate) units: Vec<Unit>,
    /// Parameters of all units of the model, wherever they live.
    pub(crate) model: Vec<Vec<ParamDecl>>,
    pub(crate) together: Together,
    pub(crate) seed: u64,
    pub(crate) moving: Moving,
}

/// State on its way.
#[derive(Default)]
pub(crate) struct Moving {
    /// Copies for checkpoints travel here; made by the first of them.
    pub snapshots: RefCell<Option<Stream>>,
    /// What was loaded and waits to be kept.
    pub pending_loads: RefCell<Vec<PendingStateLoad>>,
}

/// Values that are brought to their place at once.
const PIECE: usize = 1 << 20;

impl States {
    /// The state of `units`, where the tables say; `model` are the parameters of all units of the model, of which this rank may hold a part, and
    /// `seed` is that of starting values.
    ///
    /// # Errors
    /// Memory that is not there.
    pub fn new(
        machine: &Machine,
        units: &[UnitDecl],
        tables: Vec<UnitState>,
        model: Vec<Vec<ParamDecl>>,
        (together, seed): (Together, u64),
    ) -> Tensors<States> {
        let each = units.iter().zip(tables);
        let each = each.map(|(u, table)| Unit::new(machine, u.params.clone(), table));
        Ok(States {
            units: each.collect::<Tensors<_>>()?,
            model,
            together,
            seed,
            moving: Moving::default(),
        })
    }

    /// This rank among those that read together.
    pub fn together(&self) -> &Together {
        &self.together
    }
    /// Units.
    pub fn count(&self) -> usize {
        self.units.len()
    }
    /// What lies where of unit `u`.
    pub fn table(&self, u: usize) -> &UnitState {
        &self.units[u].table
    }
    /// The parameters of unit `u` that this rank holds.
    pub fn params(&self, u: usize) -> &[ParamDecl] {
        &self.units[u].decls
    }
    /// Every parameter of the model, in run order, also those of other pipeline stages.
    pub fn model(&self) -> Vec<ParamDecl> {
        self.model.iter().flatten().cloned().collect()
    }

    /// Whether this rank holds any part of a parameter's unit: not where another pipeline stage has it alone.
    pub fn holds(&self, name: &str) -> bool {
        self.units.iter().any(|u| u.find(name).is_some())
    }
    /// Whether the model has a parameter of that name, and only other stages hold it.
    pub fn lives_elsewhere(&self, name: &str) -> bool {
        self.model.iter().flatten().any(|d| d.name == name) && !self.holds(name)
    }

    /// Unit and place in it of a parameter that this rank holds.
    pub(crate) fn find(&self, name: &str) -> Result<(usize, usize)> {
        let mut units = self.units.iter().enumerate();
        units
            .find_map(|(u, s)| s.find(name).map(|i| (u, i)))
            .ok_or_else(|| no_such(name))
    }

    /// Everything as before the first step: padding is read by gathers, optimizer states begin at zero.
    ///
    /// # Errors
    /// The device.
    pub fn clear(&self, stream: &Stream) -> Tensors<()> {
        self.units.iter().try_for_each(|u| u.clear(stream))
    }

    /// Sets elements `from..` of a parameter's value or moment from f32, counted row-major in the whole parameter; this rank takes its part.
    ///
    /// # Errors
    /// A parameter that is not here; elements beyond its end; the device.
    pub fn load(
        &self,
        w: &Ways<'_>,
        name: &str,
        kind: StateKind,
        from: u64,
        values: &[f32],
    ) -> Result<()> {
        if self.lives_elsewhere(name) {
            return Ok(());
        }
        let (u, i) = self.find(name)?;
        let given = from..from.saturating_add(values.len() as u64);
        let numel = self.units[u].shape(i, kind);
        let numel = numel.map_or(given.end, |s| s.iter().product::<u64>());
        if numel < given.end {
            return Err(Error::Invalid(format!(
                "{name}: elements {given:?} of {numel} of its {}",
                kind.name()
            )));
        }
        let p = &self.units[u].table.params[i];
        let mut bytes = vec![];
        let mut put = |held: u64, r: Range<u64>| -> Result<()> {
            let own = &values[(r.start - from) as usize..(r.end - from) as usize];
            // In pieces, so that no second copy of a large parameter is made.
            for (n, piece) in own.chunks(PIECE).enumerate() {
                bytes.resize(4 * piece.len(), 0);
                for (to, v) in bytes.as_chunks_mut().0.iter_mut().zip(piece) {
                    *to = v.to_le_bytes();
                }
                self.put(w, (u, i), kind, held + (n * PIECE) as u64, &bytes)?;
            }
            Ok(())
        };
        if !p.is_cut(kind) {
            return put(from, given);
        }
        for run in p.held.runs(0..p.held.numel()) {
            if let Some(r) = clip(&(run.declared..run.declared + run.len), &given) {
                put(run.held + r.start - run.declared, r)?;
            }
        }
        Ok(())
    }

    /// Brings what was loaded into the form it is kept in, and values to the 16-bit copy beside them.
    ///
    /// # Errors
    /// The device.
    pub fn publish(&self, w: &Ways<'_>) -> Result<()> {
        let landed = self.moving.pending_loads.take();
        w.run(|run| -> Tensors<()> {
            for l in landed {
                for v in self.units[l.unit].views(l.kind, l.param) {
                    if v.range.start == l.first {
                        v.keep(run, &l.values)?;
                    }
                }
            }
            Ok(())
        })
        .map_err(w.at("keeping a loaded state"))?;
        w.run(|run| self.units.iter().try_for_each(|u| u.publish(run)))
            .map_err(w.at("publishing values"))
    }
}

pub(crate) fn no_such(name: &str) -> Error {
    Error::Invalid(format!("the model has no parameter {name}"))
}
