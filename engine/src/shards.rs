//! A rank's part of the state for checkpoints: which elements it answers for, a copy of them on the host, and the way back.
//!
//! Every stage saves alike: rank k answers for slice k of each unit's flat layout. Where the state is replicated that spreads the
//! writing over the ranks; where it is sharded it is all the rank has. Padding belongs to no parameter and is not saved. Of a unit that
//! pipeline stages share, the stage that runs it answers, and all that hold it want it back.

use crate::error::{Error, Result};
use crate::state::{StateKind, UnitState};
use crate::trainer::Trainer;
use crossweave_hal::{HostBuffer, Tag};
use crossweave_tensor::{Decompositions, KernelCache, Run};
use std::cell::RefCell;
use std::ops::Range;

/// A run of one kind of state, contiguous in a unit's flat buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Unit, by its place in run order.
    pub unit: usize,
    /// Which state.
    pub kind: StateKind,
    /// Elements (f32).
    pub numel: u64,
    /// The parameters it is made of, each element in exactly one.
    pub parts: Vec<ShardPart>,
    /// First element in what this rank holds of the unit.
    from: u64,
}

/// A part of a parameter's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardPart {
    /// Name of the parameter.
    pub param: String,
    /// Its full shape.
    pub shape: Vec<usize>,
    /// Elements of the parameter, row-major.
    pub of_param: Range<u64>,
    /// First element inside the shard.
    pub at: u64,
}

/// A rank's shards as they were at one step boundary, on the host. May be handed to another thread.
pub struct Snapshot {
    shards: Vec<Shard>,
    host: HostBuffer,
    rank: u32,
    step: u64,
}

impl Snapshot {
    /// Waits for the copies and gives each shard with its bytes: f32, little-endian.
    ///
    /// # Errors
    /// The device.
    pub fn read(&mut self) -> Result<impl Iterator<Item = (&Shard, &[u8])>> {
        let bytes = self.host.read().map_err(|e| Error::Run {
            rank: self.rank,
            step: self.step,
            at: "copying state for a checkpoint".into(),
            source: e.into(),
        })?;
        let mut at = 0;
        Ok(self.shards.iter().map(move |s| {
            let from = at;
            at += 4 * s.numel as usize;
            (s, &bytes[from..at])
        }))
    }

    /// The memory, for the next snapshot.
    pub fn into_buffer(self) -> HostBuffer {
        self.host
    }
}

impl Trainer {
    /// What this rank saves.
    pub fn shards(&self) -> Vec<Shard> {
        let mut out = vec![];
        let here = |(unit, _): &(usize, &UnitState)| self.runs_here(*unit);
        for (unit, s) in self.state.iter().enumerate().filter(here) {
            let layout = &s.layout;
            let owned = layout.owned(self.spec.rank);
            let numel = owned.iter().map(|p| p.in_slice.end).max().unwrap_or(0);
            let part = |p: &crossweave_zero::Piece| ShardPart {
                param: s.decls[p.param].name.clone(),
                shape: dims(&s.decls[p.param]),
                of_param: p.of_param.clone(),
                at: p.in_slice.start,
            };
            for kind in [StateKind::Value, StateKind::Moment1, StateKind::Moment2] {
                let kept = |p: &&crossweave_zero::Piece| {
                    self.state_shape(unit, p.param, kind).is_some() && numel > 0
                };
                let parts: Vec<ShardPart> = owned.iter().filter(kept).map(part).collect();
                if !parts.is_empty() {
                    out.push(Shard {
                        unit,
                        kind,
                        numel,
                        parts,
                        from: layout.slice(self.spec.rank).start - s.owned.start,
                    });
                }
            }
            // What every rank holds alike is saved by the first.
            let alike = [StateKind::Rows, StateKind::Cols].into_iter();
            for kind in alike.filter(|_| self.spec.rank == 0) {
                for i in 0..s.decls.len() {
                    if let Some(shape) = self.state_shape(unit, i, kind) {
                        out.push(Shard {
                            unit,
                            kind,
                            numel: shape.iter().product(),
                            parts: vec![ShardPart {
                                param: s.decls[i].name.clone(),
                                of_param: 0..shape.iter().product(),
                                shape: shape.iter().map(|d| *d as usize).collect(),
                                at: 0,
                            }],
                            from: 0,
                        });
                    }
                }
            }
        }
        out
    }

    /// Copies this rank's shards to the host, behind the steps enqueued so far and beside those to come. Returns at once; who reads
    /// the snapshot waits. `spare` is the memory of an earlier one.
    ///
    /// # Errors
    /// The device, or no pinned memory for a copy of the rank's state.
    pub fn snapshot(&mut self, spare: Option<HostBuffer>) -> Result<Snapshot> {
        let shards = self.shards();
        // A stream of its own: the next step's forward runs beside the copies, its update waits for them.
        let kept = self.saving.snapshots.take();
        let at = |e: crossweave_hal::Error| self.error("copying state for a checkpoint", e.into());
        let stream = match kept {
            Some(s) => s,
            None => self.device().stream("snapshot", 0).map_err(at)?,
        };
        let bytes = shards.iter().map(|s| 4 * s.numel).sum::<u64>().max(1);
        let host = match spare.filter(|b| b.buffer().bytes() == bytes) {
            Some(b) => b,
            None => self.device().alloc_host(bytes, Tag::Staging).map_err(at)?,
        };
        let mut to = 0;
        for s in &shards {
            if self.hosted(s.unit) > 0 {
                to += 4 * s.numel;
                continue;
            }
            let pieces = self
                .shard_pieces(s, &(s.from..s.from + s.numel))
                .map_err(|e| self.error("copying state for a checkpoint", e))?;
            for (src, local) in pieces {
                let dst = host
                    .buffer()
                    .region(to + 4 * (local - s.from), src.extent());
                stream.copy(dst, src.region()).map_err(at)?;
            }
            to += 4 * s.numel;
        }
        self.saving.snapshots = Some(stream);
        let host = self
            .snapshot_hosted(&shards, host)
            .map_err(|e| self.error("copying state for a checkpoint", e))?;
        Ok(Snapshot {
            shards,
            host,
            rank: self.spec.job_rank(),
            step: self.step,
        })
    }

    /// What rests on the host is there already: it is copied at once, when its update is over.
    fn snapshot_hosted(
        &self,
        shards: &[Shard],
        mut host: HostBuffer,
    ) -> std::result::Result<HostBuffer, crossweave_tensor::Error> {
        let mut to = 0;
        for s in shards {
            let end = to + 4 * s.numel as usize;
            if self.hosted(s.unit) > 0 {
                let bytes = self.read_local(s.unit, s.kind, &(s.from..s.from + s.numel))?;
                host.write()?[to..end].copy_from_slice(&bytes);
            }
            to = end;
        }
        Ok(host)
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
        let end = shard.from + shard.numel;
        let mut at = shard.from;
        let mut bytes: Vec<u8> = vec![];
        while at < end {
            let to = end.min(at.saturating_add(chunk.max(1)));
            if self.hosted(shard.unit) > 0 {
                let local = self.read_local(shard.unit, shard.kind, &(at..to));
                let local = local.map_err(|e| self.error("reading state for a checkpoint", e))?;
                take(&local)?;
                at = to;
                continue;
            }
            bytes.clear();
            bytes.resize(4 * (to - at) as usize, 0);
            let failed = |e| self.error("reading state for a checkpoint", e);
            for (t, local) in self.shard_pieces(shard, &(at..to)).map_err(failed)? {
                let here = 4 * (local - at) as usize;
                self.lanes
                    .compute
                    .read(t.region(), &mut bytes[here..here + t.extent() as usize])
                    .map_err(|e| failed(e.into()))?;
            }
            take(&bytes)?;
            at = to;
        }
        Ok(())
    }

    /// What this rank must be given to continue a run: the parts of parameters whose state lives here.
    pub fn wanted(&self) -> Vec<(StateKind, ShardPart)> {
        let mut out = vec![];
        for (unit, s) in self.state.iter().enumerate() {
            for (i, d) in s.decls.iter().enumerate() {
                for kind in StateKind::ALL {
                    let Some(shape) = self.state_shape(unit, i, kind) else {
                        continue;
                    };
                    let away = s.hosted(i).map(|(part, _)| part);
                    let here = s.views(kind, i).into_iter().map(|v| v.range);
                    for of_param in away.into_iter().chain(here) {
                        out.push((
                            kind,
                            ShardPart {
                                param: d.name.clone(),
                                shape: shape.iter().map(|d| *d as usize).collect(),
                                of_param,
                                at: 0,
                            },
                        ));
                    }
                }
            }
        }
        out
    }

    /// Sets elements `from..` of a parameter's state that [`Trainer::wanted`] names. Call [`Trainer::publish`] after the last.
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
        let (u, i) = self.find(param)?;
        let n = bytes.len() as u64 / 4;
        if self.put_state((u, i), kind, from, bytes)? != n {
            return Err(Error::Invalid(format!(
                "{param}: elements {from}..{} of its {} do not live on rank {}",
                from.saturating_add(n),
                kind.name(),
                self.spec.job_rank()
            )));
        }
        Ok(())
    }

    /// What lies in elements `range` of a shard's buffer.
    fn shard_pieces(
        &self,
        s: &Shard,
        range: &Range<u64>,
    ) -> std::result::Result<Vec<crate::kept::Piece>, crossweave_tensor::Error> {
        let cache = RefCell::new(KernelCache::default());
        let run = Run::new(&self.lanes.compute, &Decompositions, &cache);
        let state = &self.state[s.unit];
        if !matches!(s.kind, StateKind::Rows | StateKind::Cols) {
            return self.state_pieces(&run, state, s.kind, range);
        }
        let mut out = vec![];
        let named = |p: &ShardPart| state.decls.iter().position(|d| d.name == p.param);
        for i in s.parts.iter().filter_map(named) {
            for v in state.views(s.kind, i) {
                let all = v.read(&run)?;
                out.push((
                    all.narrow(0, range.start, range.end - range.start),
                    range.start,
                ));
            }
        }
        Ok(out)
    }
}

fn dims(p: &crossweave_tensor::ParamDecl) -> Vec<usize> {
    p.shape.dims().iter().map(|d| *d as usize).collect()
}
