//! What rests off the device: optimizer states and the update itself on the host, parameters between gathers. The host executor
//! (`crossweave_offload`) holds it in rooms; this file knows which of them is what of which unit.

use crate::error::{Error, Result};
use crate::state::StateKind;
use crate::trainer::Trainer;
use crossweave_hal::{DType, Device};
use crossweave_offload::{Executor, FileTier};
use crossweave_planner::{OffloadSpec, OptimizerOffload};
use crossweave_program::Room;
use crossweave_store::NoFaults;
use crossweave_tensor::{Decompositions, Run};
use crossweave_zero::lower::{HostShare, Words};
use crossweave_zero::{Flat, Tier};
use std::ops::Range;
use std::sync::Arc;

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

/// The host executor, and what it holds of each unit.
pub(crate) struct Offload {
    pub executor: Executor,
    units: Vec<Hosted>,
}

/// What the host holds of one unit.
struct Hosted {
    /// Elements.
    elements: u64,
    /// Which part of its room each state is that it keeps: value and moments.
    parts: [Option<usize>; 3],
}

impl Offload {
    /// Allocates the host's side and starts its thread.
    pub fn start(
        device: &Device,
        (offload, how): (&OffloadSpec, OptimizerOffload),
        (rooms, flats): (Vec<Room>, &[Flat]),
        rank: u32,
    ) -> Tensors<Offload> {
        let [moment1, moment2] = HostShare::MOMENTS;
        let states = [HostShare::VALUE, moment1, moment2];
        let units = flats.iter().zip(&rooms).map(|(f, room)| Hosted {
            elements: f.host,
            parts: states.map(|mem| room.part(mem)),
        });
        let units = units.collect();
        let files = (how.tier == Tier::Nvme).then(|| FileTier {
            folder: offload.folder.clone(),
            settings: offload.files.clone(),
            layer: match &offload.faults {
                Some(f) => f.0.clone(),
                None => Arc::new(NoFaults),
            },
        });
        let name = format!("host-{rank}");
        let devices = (device, &offload.host.0);
        Ok(Offload {
            executor: Executor::start(devices, rooms, Words::READ, files, name)?,
            units,
        })
    }

    /// Elements of unit `u` on the host.
    pub fn hosted(&self, u: usize) -> u64 {
        self.units[u].elements
    }
    /// The part of a unit's room that is a state of this kind, where it keeps one.
    fn part(&self, u: usize, kind: StateKind) -> Option<usize> {
        let parts = &self.units[u].parts;
        match kind {
            StateKind::Value => parts[0],
            StateKind::Moment1 => parts[1],
            StateKind::Moment2 => parts[2],
            StateKind::Rows | StateKind::Cols => None,
        }
    }
    /// The room of the base of unit `u`.
    fn base_room(&self, u: usize) -> usize {
        self.units.len() + u
    }

    /// Every copy asked for of this unit's parameters has been enqueued: later work on them waits by itself.
    pub fn wait_params(&self, u: usize) -> Tensors<()> {
        self.executor.wait_room(u)?;
        self.executor.wait_room(self.base_room(u))
    }

    /// Puts bytes of the base of unit `u`, in compute type, to where they rest.
    pub fn put_base(&self, u: usize, at: u64, bytes: &[u8]) -> Tensors<()> {
        self.executor.write(self.base_room(u), 0, at, bytes)
    }

    /// Bytes of the base of unit `u` from where they rest.
    pub fn get_base(&self, u: usize, r: Range<u64>) -> Tensors<Vec<u8>> {
        self.executor.read(self.base_room(u), 0, r)
    }
}

/// The way to the host's thread, where there is one.
pub(crate) fn required(offload: &mut Option<Offload>) -> Tensors<&mut Executor> {
    match offload {
        Some(o) => Ok(&mut o.executor),
        None => no_host("the host's thread"),
    }
}

fn no_host<T>(what: &str) -> Tensors<T> {
    crossweave_tensor::shape_error(format!("the plan asks for {what} and nothing is offloaded"))
}

impl Trainer {
    /// A step has failed: nothing of it is in the machine or with the host any more.
    pub(crate) fn forget_step(&mut self) {
        let taken = self.machine.clear();
        if let Some(o) = &self.offload {
            o.executor.forget(taken);
        }
    }

    /// Elements of unit `u` that the host updates.
    pub(crate) fn hosted(&self, u: usize) -> u64 {
        self.offload.as_ref().map_or(0, |o| o.hosted(u))
    }

    /// What the host was asked to do with this unit's parameters is enqueued.
    pub(crate) fn wait_params(&self, u: usize) -> Tensors<()> {
        self.offload.as_ref().map_or(Ok(()), |o| o.wait_params(u))
    }

    /// The same for every unit whose parameters unit `u` reads.
    pub(crate) fn wait_units(&self, u: usize) -> Tensors<()> {
        if self.offload.is_some() {
            self.wait_params(u)?;
            for (o, _) in &self.blocks.units[u].borrowed {
                self.wait_params(*o)?;
            }
        }
        Ok(())
    }

    /// Starting values of a unit whose state rests on the host: made on the device a parameter at a time, then moved.
    pub(crate) fn fill_hosted(&mut self, u: usize) -> Tensors<()> {
        for i in 0..self.state[u].decls.len() {
            let cache = Default::default();
            let Some((_, local)) = self.state[u].pieces(i) else {
                continue;
            };
            let run = Run::new(&self.lanes.compute, &Decompositions, &cache);
            let here = run.empty([local.end - local.start], DType::F32)?;
            crate::init::fill_one(&run, &self.state[u], i, self.spec.seed, &here)?;
            let mut bytes = vec![0u8; here.extent() as usize];
            self.lanes.compute.read(here.region(), &mut bytes)?;
            self.write_values(u, local.start, &bytes)?;
        }
        let zeros = vec![0u8; 4 * self.hosted(u) as usize];
        for kind in [StateKind::Moment1, StateKind::Moment2] {
            let kept = self.offload.as_ref().and_then(|o| o.part(u, kind));
            if kept.is_some() {
                self.write_hosted(u, kind, 0, &zeros)?;
            }
        }
        self.state[u].clear_moments(&self.lanes.compute)
    }

    /// Elements of a unit's state as f32 bytes, wherever they rest: local elements of what this rank owns.
    pub(crate) fn read_local(&self, u: usize, kind: StateKind, r: &Range<u64>) -> Tensors<Vec<u8>> {
        let k = self.hosted(u);
        let mut bytes = match &self.offload {
            Some(o) if r.start < k => {
                let here = 4 * r.start..4 * r.end.min(k);
                match o.part(u, kind) {
                    Some(part) => o.executor.read(u, part, here)?,
                    // Nothing the host holds of the unit has such a state (it is frozen, say), and what the device holds may.
                    None => vec![0; (here.end - here.start) as usize],
                }
            }
            _ => vec![],
        };
        let rest = r.start.max(k)..r.end;
        if rest.start < rest.end {
            bytes.resize(4 * (r.end - r.start) as usize, 0);
            let cache = Default::default();
            let run = Run::new(&self.lanes.compute, &Decompositions, &cache);
            for (t, at) in self.state_pieces(&run, &self.state[u], kind, &rest)? {
                let here = 4 * (at - r.start) as usize;
                let to = &mut bytes[here..here + t.extent() as usize];
                self.lanes.compute.read(t.region(), to)?;
            }
        }
        Ok(bytes)
    }

    /// Sets elements of the values from `from` on, wherever they rest.
    fn write_values(&self, u: usize, from: u64, bytes: &[u8]) -> Tensors<()> {
        let (k, end) = (self.hosted(u), from + bytes.len() as u64 / 4);
        let split = 4 * (k.clamp(from, end) - from) as usize;
        if split > 0 {
            self.write_hosted(u, StateKind::Value, from, &bytes[..split])?;
        }
        if split < bytes.len() {
            let here = self.state[u].value(&(from.max(k)..end));
            self.lanes.compute.write(here.region(), &bytes[split..])?;
        }
        Ok(())
    }

    /// Sets elements of a state on the host from `from` on.
    fn write_hosted(&self, u: usize, kind: StateKind, from: u64, bytes: &[u8]) -> Tensors<()> {
        let part = self
            .offload
            .as_ref()
            .and_then(|o| Some((o, o.part(u, kind)?)));
        match part {
            Some((o, part)) => o.executor.write(u, part, 4 * from, bytes),
            None => no_host("a state on the host"),
        }
    }

    /// Puts values to elements `from..` of a parameter's state on the host, as far as they live here; how many did.
    pub(crate) fn put_hosted(
        &self,
        (u, i): (usize, usize),
        kind: StateKind,
        from: u64,
        bytes: &[u8],
    ) -> Result<u64> {
        let Some((part, local)) = self.state[u].hosted(i) else {
            return Ok(0);
        };
        if self.state_shape(u, i, kind).is_none() {
            return Ok(0);
        }
        let end = from.saturating_add(bytes.len() as u64 / 4);
        let (a, b) = (part.start.max(from), part.end.min(end));
        if a >= b {
            return Ok(0);
        }
        let bytes = &bytes[4 * (a - from) as usize..4 * (b - from) as usize];
        self.write_hosted(u, kind, local.start + a - part.start, bytes)
            .map_err(|e| self.error("loading a state", e))?;
        Ok(b - a)
    }

    /// Bytes this rank has moved through files, if state rests in any: (read, written).
    pub fn file_traffic(&self) -> Option<(u64, u64)> {
        self.offload.as_ref()?.executor.file_traffic()
    }

    /// Waits for what the host was given; its failure, if it has failed.
    ///
    /// # Errors
    /// A full or broken disk; the device.
    pub fn settle_offload(&self) -> Result<()> {
        let Some(o) = &self.offload else {
            return Ok(());
        };
        let all = || (0..o.units.len()).try_for_each(|u| o.wait_params(u));
        all().map_err(|e| -> Error { self.error("the update on the host", e) })
    }
}
