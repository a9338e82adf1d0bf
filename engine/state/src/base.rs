//! What adapters sit on: a unit's second flat, beside that of its trained parameters. It has no gradient, no master, no optimizer state and
//! no part in checkpoints; it is held in the type blocks compute in, and sharded only where whole parameters come and go (stage 3).
//!
//! In the unit's whole buffer it lies behind the trained parameters. A rank's slice of it rests beside the slots, or with the other
//! parameters off the device (`offload_param`), from where it comes for each gather.

use crate::error::{Error, Result};
use crate::unit::Unit;
use crate::ways::Ways;
use crate::words::Tensors;
use crossweave_hal::abi::op;
use crossweave_hal::{DType, Tag};
use crossweave_program::clip;
use crossweave_tensor::{Run, Tensor};

/// `to` takes the values of `from`, each in its type, one of which is f32.
fn take(run: &Run<'_>, to: &Tensor, from: &Tensor) -> Tensors<()> {
    if to.dtype() == from.dtype() {
        return Ok(run.stream().copy(to.region(), from.region())?);
    }
    let none = op::NoParams::default();
    run.launch(op::CAST, &[Some(to), Some(from)], none.as_bytes(), &[])
}

impl Unit {
    /// Sets elements `from..` of what this rank's flat has of a base parameter, as far as they live here; how many did.
    pub fn put_base(&self, w: &Ways<'_>, i: usize, from: u64, bytes: &[u8]) -> Result<u64> {
        w.run(|run| {
            let values = run.empty_for([bytes.len() as u64 / 4], DType::F32, Tag::Staging)?;
            w.compute.write(values.region(), bytes)?;
            self.keep_base(w, i, from, &values)
        })
        .map_err(w.at("loading a parameter"))
    }

    /// Brings f32 values of such elements `first..` to where this rank keeps them; how many live here.
    pub fn keep_base(&self, w: &Ways<'_>, i: usize, first: u64, values: &Tensor) -> Tensors<u64> {
        let given = first..first.saturating_add(values.numel());
        let owned = self.table.params[i].owned.as_ref();
        let here = owned.and_then(|(part, local)| Some((clip(part, &given)?, part, local)));
        let Some((here, part, local)) = here else {
            return Ok(0);
        };
        let n = here.end - here.start;
        let at = local.start + here.start - part.start;
        let source = values.narrow(0, here.start - first, n);
        let compute = self.table.compute;
        w.run(|run| {
            let held = self.base(&(at..at + n));
            let to = match &held {
                Some(t) => t.clone(),
                None => run.empty_for([n], compute, Tag::Staging)?,
            };
            take(run, &to, &source)?;
            if held.is_none() {
                let mut bytes = vec![0u8; to.extent() as usize];
                w.compute.read(to.region(), &mut bytes)?;
                let room = self.table.base.room;
                w.host()?.write(room, 0, compute.bytes(at), &bytes)?;
            }
            Ok(n)
        })
    }

    /// All this rank holds of a unit's base, in f32.
    pub fn base_slice(&self, w: &Ways<'_>) -> Tensors<Tensor> {
        let table = &self.table;
        let (n, compute) = (table.base.owned, table.compute);
        w.run(|run| {
            if n == 0 {
                return run.empty_for([0], DType::F32, Tag::Staging);
            }
            let held = match self.base(&(0..n)) {
                Some(held) => held,
                None => {
                    let all = 0..compute.bytes(n);
                    let bytes = w.host()?.read(table.base.room, 0, all)?;
                    let held = run.empty_for([n], compute, Tag::Staging)?;
                    w.compute.write(held.region(), &bytes)?;
                    held
                }
            };
            let wide = run.empty_for([n], DType::F32, Tag::Staging)?;
            take(run, &wide, &held)?;
            Ok(wide)
        })
    }

    /// A base parameter that lies here whole, on the host.
    pub fn read_base(&self, w: &Ways<'_>, i: usize) -> Result<Vec<f32>> {
        let Some((part, here)) = &self.table.params[i].owned else {
            return Ok(vec![]);
        };
        if part.end - part.start < self.table.params[i].held.numel() {
            return Err(Error::Invalid(format!(
                "{}: rank {} holds a part of it only",
                self.decls[i].name, w.rank
            )));
        }
        let all = self.base_slice(w);
        all.and_then(|all| w.words(&all.narrow(0, here.start, here.end - here.start)))
            .map_err(w.at("reading a parameter"))
    }
}
