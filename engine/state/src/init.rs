//! Starting values: philox keyed by seed and parameter name, so that they are the same on any mesh, and moments at zero. A parameter that is
//! cut is made whole first, so that every element has the value it has on one rank; one parameter at a time, so that sharding is
//! not undone by starting. Of a parameter whose other parts other ranks hold, windows are made in which this rank's box has elements.

use crate::error::Result;
use crate::states::States;
use crate::unit::Unit;
use crate::ways::Ways;
use crate::words::Tensors;
use crossweave_hal::abi::op;
use crossweave_hal::{DType, Tag};
use crossweave_program::StateKind;
use crossweave_tensor::{Init, ParamDecl, Run, Tensor};
use std::ops::Range;

/// FNV-1a, 64 bit: a parameter's philox stream.
fn stream_of(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| {
        (h ^ b as u64).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Elements of a parameter that are drawn at once where this rank holds a box of it: whole blocks of the generator.
const WINDOW: u64 = 1 << 22;

/// Fills `all`, flat f32, with the starting values of a parameter, where they are drawn from element `from` on, which begins a block of
/// the generator.
fn draw(run: &Run<'_>, p: &ParamDecl, seed: u64, (from, all): (u64, &Tensor)) -> Tensors<()> {
    let (kind, lo, hi) = match p.init {
        Init::Zeros => return Ok(run.stream().fill(all.region(), 0, 1)?),
        Init::Ones => {
            let one = 1.0f32.to_bits() as u64;
            return Ok(run.stream().fill(all.region(), one, 4)?);
        }
        Init::Normal(std) => (op::philox::NORMAL, 0.0, std as f64),
        Init::Uniform(bound) => (op::philox::UNIFORM, -(bound as f64), bound as f64),
    };
    let params = op::PhiloxParams {
        kind,
        lo,
        hi,
        ..Default::default()
    };
    let key = op::PhiloxDyn {
        seed,
        offset: from / 4,
        stream: stream_of(&p.name),
        ..Default::default()
    };
    run.launch(op::PHILOX, &[Some(all)], params.as_bytes(), key.as_bytes())
}

/// Fills `here` with elements `part` of the box that this rank holds of a parameter.
fn draw_box(
    run: &Run<'_>,
    p: &ParamDecl,
    seed: u64,
    (part, here): (&Range<u64>, &Tensor),
) -> Tensors<()> {
    let mut window = (0..0, None);
    for r in p.held.part.runs(part.clone()) {
        let end = r.declared + r.len;
        let (mut at, mut to) = (r.declared, r.held - part.start);
        while at < end {
            if !window.0.contains(&at) {
                let from = at - at % WINDOW;
                window.0 = from..p.shape.numel().min(from + WINDOW);
                // What is no longer read goes back first.
                window.1 = None;
                let n = window.0.end - from;
                let values = run.empty_for([n], DType::F32, Tag::Staging)?;
                draw(run, p, seed, (from, &values))?;
                window.1 = Some(values);
            }
            let n = window.0.end.min(end) - at;
            if let Some(values) = &window.1 {
                let values = values.narrow(0, at - window.0.start, n);
                let here = here.narrow(0, to, n);
                run.stream().copy(here.region(), values.region())?;
            }
            at += n;
            to += n;
        }
    }
    Ok(())
}

impl Unit {
    /// Fills `here` with elements `part` of what this rank holds of parameter `i`.
    fn fill_one(
        &self,
        run: &Run<'_>,
        (i, part): (usize, &Range<u64>),
        seed: u64,
        here: &Tensor,
    ) -> Tensors<()> {
        let p = &self.decls[i];
        let drawn = matches!(p.init, Init::Normal(_) | Init::Uniform(_));
        if part.end - part.start == p.shape.numel() || !drawn {
            return draw(run, p, seed, (0, here));
        }
        if !p.held.part.is_whole() {
            return draw_box(run, p, seed, (part, here));
        }
        let all = run.empty_for([p.shape.numel()], DType::F32, Tag::Staging)?;
        draw(run, p, seed, (0, &all))?;
        let from = all.buffer().region(4 * part.start, here.extent());
        Ok(run.stream().copy(here.region(), from)?)
    }

    /// Fills what this rank owns of its values, none of which the host updates, and clears its moments.
    fn fill(&self, run: &Run<'_>, seed: u64) -> Tensors<()> {
        for (i, p) in self.table.params.iter().enumerate() {
            if let Some((part, local)) = p.owned.as_ref().filter(|_| !p.base) {
                self.fill_one(run, (i, part), seed, &self.value(local))?;
            }
        }
        self.publish(run)?;
        self.clear_moments(run.stream())
    }

    /// Starting values of a unit whose state rests on the host: made on the device a parameter at a time, then moved.
    fn fill_hosted(&self, w: &Ways<'_>, seed: u64) -> Tensors<()> {
        for (i, p) in self.table.params.iter().enumerate() {
            let Some((part, local)) = p.owned.as_ref().filter(|_| !p.base) else {
                continue;
            };
            let bytes = w.run(|run| -> Tensors<Vec<u8>> {
                let here = run.empty_for([local.end - local.start], DType::F32, Tag::Staging)?;
                self.fill_one(run, (i, part), seed, &here)?;
                let mut bytes = vec![0u8; here.extent() as usize];
                w.compute.read(here.region(), &mut bytes)?;
                Ok(bytes)
            })?;
            self.write_values(w, local.start, &bytes)?;
        }
        let zeros = vec![0u8; 4 * self.table.host as usize];
        for kind in [StateKind::Moment1, StateKind::Moment2, StateKind::Ema] {
            if self.table.part(kind).is_some() {
                self.write_hosted(w, kind, 0, &zeros)?;
            }
        }
        self.clear_moments(w.compute)
    }

    /// Casts the values into the resident 16-bit copy, where there is one.
    pub fn publish(&self, run: &Run<'_>) -> Tensors<()> {
        let rest = self.table.rest();
        let Some(copy) = self.copy().filter(|_| rest.end > rest.start) else {
            return Ok(());
        };
        let value = self.value(&rest);
        let p = op::NoParams::default();
        run.launch(op::CAST, &[Some(&copy), Some(&value)], p.as_bytes(), &[])
    }
}

impl States {
    /// Starting values of what adapters sit on.
    ///
    /// # Errors
    /// The device.
    pub fn init_base(&self, w: &Ways<'_>) -> Result<()> {
        let fill = |(u, i): (usize, usize)| {
            w.run(|run| {
                let unit = &self.units[u];
                let n = unit.table.params[i].held.numel();
                let values = run.empty_for([n], DType::F32, Tag::Staging)?;
                unit.fill_one(run, (i, &(0..n)), self.seed, &values)?;
                unit.keep_base(w, i, 0, &values).map(|_| ())
            })
        };
        for (u, unit) in self.units.iter().enumerate() {
            let bases = unit.table.params.iter().enumerate();
            let mut bases = bases.filter(|(_, p)| p.base);
            bases
                .try_for_each(|(i, _)| fill((u, i)))
                .map_err(w.at("starting values"))?;
        }
        Ok(())
    }

    /// Starting values of all but what adapters sit on; moments at zero. [`States::publish`] is called behind it.
    ///
    /// # Errors
    /// The device, or the host's thread.
    pub fn init_trained(&self, w: &Ways<'_>) -> Result<()> {
        let (there, here): (Vec<usize>, Vec<usize>) =
            (0..self.units.len()).partition(|u| self.units[*u].table.host > 0);
        w.run(|run| {
            let mut here = here.iter();
            here.try_for_each(|u| self.units[*u].fill(run, self.seed))
        })
        .and_then(|()| {
            there
                .iter()
                .try_for_each(|u| self.units[*u].fill_hosted(w, self.seed))
        })
        .map_err(w.at("starting values"))
    }
}
