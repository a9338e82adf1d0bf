//! Reads, loads and copies of this rank's state (`crossweave_state`), and what rank 0 asks of the others.

use super::Engine;
use crate::error::{Error, Result};
use crossweave_hal::HostBuffer;
use crossweave_program::StateKind;
use crossweave_state::{Request, Shard, ShardPart, Snapshot, Ways, exchange_ema};

impl Engine {
    /// What state is moved with.
    pub(super) fn ways(&self) -> Ways<'_> {
        Ways {
            compute: &self.lanes.compute,
            messages: self.lanes.reductions(),
            host: self.host.as_ref(),
            mesh: self.groups.mesh(),
            peers: self.pipe.as_ref().map(|p| &p.peers),
            rank: self.lowered.spec.place.job_rank(),
            step: self.step,
        }
    }

    /// Starting values by seed and name; moments at zero.
    pub fn init(&mut self) -> Result<()> {
        self.state.init_base(&self.ways())?;
        self.init_trained()
    }

    /// Starting values of all but the base that adapters sit on; moments at zero.
    ///
    /// # Errors
    /// The device.
    pub fn init_trained(&mut self) -> Result<()> {
        self.state.init_trained(&self.ways())?;
        self.publish()
    }

    /// Sets elements `from..` of a parameter's value or moment from f32, counted row-major in the whole parameter; each rank takes its part, and one
    /// whose stage does not hold the parameter nothing. Call [`Engine::publish`] after the last.
    ///
    /// # Errors
    /// No such parameter; elements beyond its end; the device.
    pub fn load(&mut self, name: &str, kind: StateKind, from: u64, values: &[f32]) -> Result<()> {
        Ok(self.state.load(&self.ways(), name, kind, from, values)?)
    }

    /// Sets elements of a parameter's state from `from` on, which counts as [`ShardPart::at`] of what [`Engine::wanted`] names. Call [`Engine::publish`] after the last.
    ///
    /// # Errors
    /// Elements that do not live here; the device.
    pub fn load_part(
        &mut self,
        param: &str,
        kind: StateKind,
        from: u64,
        bytes: &[u8],
    ) -> Result<()> {
        let w = self.ways();
        Ok(self.state.load_part(&w, param, kind, from, bytes)?)
    }

    /// Casts loaded values into the compute dtype.
    pub fn publish(&mut self) -> Result<()> {
        self.state.publish(&self.ways())?;
        for u in 0..self.state.count() {
            let calls = self.lowered.outside[u].param_in.clone();
            self.run_outside(calls, String::new())
                .map_err(|e| self.error("publishing values", e))?;
            self.whole.changed(u);
        }
        Ok(())
    }

    /// Returns true if moving averages of the parameters are kept, on this rank or on others: a stage may train nothing.
    pub fn has_ema(&self) -> bool {
        self.lowered.spec.optim.base.ema.is_some()
    }

    /// Exchanges the parameters with their moving averages: what is run, read and saved until the next call are the averages, and then
    /// everything is to the bit as it was. No step may be made in between.
    ///
    /// # Errors
    /// The device, or the host's memory and files.
    pub fn exchange_ema(&mut self) -> Result<()> {
        self.settle_offload()?;
        exchange_ema(&self.state, &self.ways())?;
        self.publish()
    }

    /// Whether this rank holds any part of a parameter's unit: not where another pipeline stage has it alone.
    pub fn holds(&self, name: &str) -> bool {
        self.state.holds(name)
    }

    /// What this rank must be given to continue a run: the parts of parameters whose state lives here.
    pub fn wanted(&self) -> Vec<(StateKind, ShardPart)> {
        self.state.wanted()
    }

    /// What this rank saves.
    pub fn shards(&self) -> Vec<Shard> {
        self.state.shards(&self.ways())
    }

    /// Copies this rank's shards to the host, behind the steps enqueued so far and beside those to come. Returns at once; what reads
    /// the snapshot waits. `spare` is the memory of an earlier one.
    ///
    /// # Errors
    /// The device, or no pinned memory for a copy of the rank's state.
    pub fn snapshot(&mut self, spare: Option<HostBuffer>) -> Result<Snapshot> {
        Ok(self.state.snapshot(&self.ways(), spare)?)
    }

    /// The bytes of one shard, read in parts of at most `chunk` elements: for saves that keep no copy of the state.
    ///
    /// # Errors
    /// The device, or what `take` returns.
    pub fn read_shard<E: From<Error>>(
        &self,
        shard: &Shard,
        chunk: u64,
        mut take: impl FnMut(&[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        shard.cut(chunk).try_for_each(|r| {
            let bytes = self.state.read_shard(&self.ways(), shard, r);
            take(&bytes.map_err(Error::from)?)
        })
    }

    /// Whether reading takes all ranks.
    pub fn reads_together(&self) -> bool {
        self.state.together().is_needed()
    }

    /// A parameter's value or moment in f32, empty where that moment is not kept; waits for the device. Where
    /// [`Engine::reads_together`], rank 0 calls this while all other ranks are in [`Engine::serve_reads`].
    pub fn read(&self, name: &str, kind: StateKind) -> Result<Vec<f32>> {
        Ok(self.state.read(&self.ways(), name, kind)?)
    }

    /// From here to [`Engine::done_reading`] rank 0 works alone while the others serve it: it may also run the model
    /// ([`Engine::logits`]), for which they put units together. Nothing changes where nothing is sharded.
    pub fn lead(&self) {
        self.state.together().lead();
    }

    /// Rank 0 has read what it wanted: the other ranks go on.
    pub fn done_reading(&self) -> Result<()> {
        Ok(self.state.together().done(&self.ways())?)
    }

    /// Serves rank 0 until it has done; returns at once where nothing is sharded. Every rank but 0 calls this while rank 0 reads.
    pub fn serve_reads(&mut self) -> Result<()> {
        if !self.reads_together() || self.lowered.spec.place.is_first() {
            return Ok(());
        }
        loop {
            let heard = self.state.together().hear(&self.ways());
            match heard.map_err(|e| self.error("serving reads", e))? {
                Request::Done => return Ok(()),
                Request::Read(u, i, kind) => {
                    self.state.answer(&self.ways(), u, i, kind)?;
                }
                Request::Whole(u) => self
                    .gather_unit(u)
                    .and_then(|()| self.release_unit(u))
                    .map_err(|e| self.error("serving reads", e))?,
                Request::Forward { shape, continues } => {
                    self.forward_together(None, (shape, continues))?;
                }
            }
        }
    }

    /// A step has failed: nothing of it is in the machine or with the host any more.
    pub(super) fn forget_step(&mut self) {
        let taken = self.machine.clear();
        if let Some(host) = &self.host {
            host.forget(taken);
        }
    }

    /// Waits for what the host was given; its failure, if it has failed.
    ///
    /// # Errors
    /// A full or broken disk; the device.
    pub fn settle_offload(&self) -> Result<()> {
        (0..self.state.count())
            .try_for_each(|u| self.wait_params(u))
            .map_err(|e| self.error("the update on the host", e))
    }
}
