//! The state of a rank: its units, values that were loaded and wait to be kept, and who leads while ranks read together.

use crate::error::{Error, Result};
use crate::together::Together;
use crate::unit::Unit;
use crate::ways::Ways;
use crate::words::Tensors;
use crossweave_hal::Stream;
use crossweave_machine::Machine;
use crossweave_program::{StateKind, UnitState};
use crossweave_tensor::{ParamDecl, Tensor, UnitDecl};
use std::cell::RefCell;

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

    /// Sets a parameter's value or moment from f32 (row-major, whole parameter; this rank takes its part).
    ///
    /// # Errors
    /// A parameter that is not here; another number of values than its state has; the device.
    pub fn load(&self, w: &Ways<'_>, name: &str, kind: StateKind, values: &[f32]) -> Result<()> {
        if self.lives_elsewhere(name) {
            return Ok(());
        }
        let (u, i) = self.find(name)?;
        let shape = self.units[u].shape(i, kind);
        let numel = shape.as_ref().map(|s| s.iter().product::<u64>());
        if numel.is_some_and(|n| n != values.len() as u64) {
            return Err(Error::Invalid(format!(
                "{name}: {} values for a {} of shape {:?}",
                values.len(),
                kind.name(),
                shape.unwrap_or_default()
            )));
        }
        let p = &self.units[u].table.params[i];
        let held = p.is_cut(kind).then(|| p.held.take(values));
        let values = held.as_deref().unwrap_or(values);
        // In pieces, so that no second copy of a large parameter is made.
        let mut bytes = vec![];
        for (n, piece) in values.chunks(PIECE).enumerate() {
            bytes.resize(4 * piece.len(), 0);
            for (to, v) in bytes.as_chunks_mut().0.iter_mut().zip(piece) {
                *to = v.to_le_bytes();
            }
            self.put(w, (u, i), kind, (n * PIECE) as u64, &bytes)?;
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
