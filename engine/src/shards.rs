//! A rank's part of the state for checkpoints: which elements it answers for, a copy of them on the host, and the way back.
//!
//! Every stage saves alike: rank k answers for slice k of each unit's flat layout. Where the state is replicated that spreads the
//! writing over the ranks; where it is sharded it is all the rank has. Padding belongs to no parameter and is not saved.

use crate::error::{Error, Result};
use crate::state::StateKind;
use crate::trainer::Trainer;
use crossweave_hal::{HostBuffer, Tag};
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
        for (unit, s) in self.state.iter().enumerate() {
            let layout = &s.layout;
            let owned = layout.owned(self.spec.rank);
            let numel = owned.iter().map(|p| p.in_slice.end).max().unwrap_or(0);
            let part = |p: &crossweave_zero::Piece| ShardPart {
                param: s.decls[p.param].name.clone(),
                shape: dims(&s.decls[p.param]),
                of_param: p.of_param.clone(),
                at: p.in_slice.start,
            };
            let kinds = StateKind::ALL.into_iter();
            for kind in kinds.filter(|k| numel > 0 && s.keeps(*k)) {
                out.push(Shard {
                    unit,
                    kind,
                    numel,
                    parts: owned.iter().map(part).collect(),
                    from: layout.slice(self.spec.rank).start - s.owned().start,
                });
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
        let kept = self.snapshots.take();
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
            let src = self.state[s.unit].state(s.kind, &(s.from..s.from + s.numel));
            let dst = host.buffer().region(to, 4 * s.numel);
            stream.copy(dst, src.region()).map_err(at)?;
            to += 4 * s.numel;
        }
        self.snapshots = Some(stream);
        Ok(Snapshot {
            shards,
            host,
            rank: self.spec.rank,
            step: self.step,
        })
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
        let mut bytes = vec![];
        while at < end {
            let to = end.min(at.saturating_add(chunk.max(1)));
            let t = self.state[shard.unit].state(shard.kind, &(at..to));
            bytes.resize(4 * (to - at) as usize, 0);
            self.compute
                .read(t.region(), &mut bytes)
                .map_err(|e| self.error("reading state for a checkpoint", e.into()))?;
            take(&bytes)?;
            at = to;
        }
        Ok(())
    }

    /// What this rank must be given to continue a run: the parts of parameters whose state lives here.
    pub fn wanted(&self) -> Vec<(StateKind, ShardPart)> {
        let mut out = vec![];
        for s in &self.state {
            for (i, d) in s.decls.iter().enumerate() {
                let Some((of_param, _)) = s.pieces(i) else {
                    continue;
                };
                for kind in StateKind::ALL.into_iter().filter(|k| s.keeps(*k)) {
                    out.push((
                        kind,
                        ShardPart {
                            param: d.name.clone(),
                            shape: dims(d),
                            of_param: of_param.clone(),
                            at: 0,
                        },
                    ));
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
        let s = &mut self.state[u];
        let n = bytes.len() as u64 / 4;
        let here = s.pieces(i).filter(|(part, _)| {
            let end = from.checked_add(n);
            from >= part.start && end.is_some_and(|e| e <= part.end)
        });
        let Some((part, local)) = here else {
            return Err(Error::Invalid(format!(
                "{param}: elements {from}..{} of a parameter of shape {:?} do not live on rank {}",
                from.saturating_add(n),
                s.decls[i].shape,
                self.spec.rank
            )));
        };
        s.changed();
        let at = local.start + (from - part.start);
        let t = s.state(kind, &(at..at + n));
        self.compute
            .write(t.region(), bytes)
            .map_err(|e| self.error(param, e.into()))
    }
}

fn dims(p: &crossweave_tensor::ParamDecl) -> Vec<usize> {
    p.shape.dims().iter().map(|d| *d as usize).collect()
}
