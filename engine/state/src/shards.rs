//! A rank's part of the state for checkpoints: which elements it answers for, a copy of them on the host, and the way back.
//!
//! Every stage saves alike: rank k answers for slice k of each unit's flat layout. Where the state is replicated that spreads the
//! writing over the ranks; where it is sharded it is all the rank has. Padding belongs to no parameter and is not saved. Of a unit that
//! pipeline stages share, the stage that runs it answers, and all that hold it want it back. Of ranks that hold the same and see the
//! same tokens the first answers; where ranks hold other parts of a parameter, each says of which slice of the declared tensor its
//! elements are.

use crate::error::{Error, Result};
use crate::owned::Piece;
use crate::peers::Leg;
use crate::states::States;
use crate::unit::Unit;
use crate::ways::Ways;
use crate::words::Tensors;
use crossweave_hal::{HostBuffer, Tag};
use crossweave_mesh::BoxPiece;
use crossweave_program::StateKind;
use crossweave_tensor::Run;
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
    /// The slice of it in which elements are counted, `[first, count]` of each dim: what the rank holds, or a part of that. Empty: the
    /// whole parameter.
    pub slice: Vec<[u64; 2]>,
    /// Elements of the slice, row-major.
    pub of_param: Range<u64>,
    /// First element inside the shard; of what is wanted, the first among those that the ranks of its flat hold.
    pub at: u64,
}

impl ShardPart {
    /// Elements `r` of what a rank holds of the state of a parameter, which begin `at` some element.
    fn of(
        unit: &Unit,
        (i, kind): (usize, StateKind),
        shape: &[u64],
        (r, at): (Range<u64>, u64),
    ) -> impl Iterator<Item = ShardPart> + use<> {
        let (name, held) = (unit.decls[i].name.clone(), &unit.table.params[i]);
        let (shape, first) = (sizes(shape), r.start);
        let pieces = match held.is_cut(kind) {
            true => held.held.pieces(r),
            false => vec![BoxPiece {
                slice: vec![],
                at: r.start,
                of_slice: r,
            }],
        };
        pieces.into_iter().map(move |p| ShardPart {
            param: name.clone(),
            shape: shape.clone(),
            slice: p.slice,
            of_param: p.of_slice,
            at: at + p.at - first,
        })
    }
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

impl States {
    /// What this rank saves: of the units that it runs, and does not only hold for others that are tied to it.
    pub fn shards(&self, w: &Ways<'_>) -> Vec<Shard> {
        let mut out = vec![];
        let own = match w.peers {
            Some(p) => p.legs(),
            None => vec![Leg::all(self.units.len())],
        };
        for unit in own.into_iter().flat_map(|l| l.units) {
            let (s, saved) = (&self.units[unit], &self.units[unit].table.saved);
            for kind in StateKind::CUT {
                let kept = saved.parts.iter();
                let kept = kept.filter(|(i, ..)| saved.numel > 0 && s.shape(*i, kind).is_some());
                let part = |(i, held, at): &(usize, Range<u64>, u64)| {
                    let shape = s.decls[*i].shape.dims();
                    ShardPart::of(s, (*i, kind), shape, (held.clone(), *at))
                };
                let parts: Vec<ShardPart> = kept.flat_map(part).collect();
                if !parts.is_empty() {
                    out.push(Shard {
                        unit,
                        kind,
                        numel: saved.numel,
                        parts,
                        from: saved.from,
                    });
                }
            }
            // What every rank holds alike is saved by the first.
            let alike = StateKind::ALL.into_iter().filter(|k| k.is_replicated());
            for kind in alike.filter(|_| self.together.is_speaker()) {
                for i in 0..s.decls.len() {
                    let Some(shape) = s.shape(i, kind) else {
                        continue;
                    };
                    let numel = shape.iter().product();
                    out.push(Shard {
                        unit,
                        kind,
                        numel,
                        parts: ShardPart::of(s, (i, kind), &shape, (0..numel, 0)).collect(),
                        from: 0,
                    });
                }
            }
        }
        out
    }

    /// Copies this rank's shards to the host, behind the steps enqueued so far and beside those to come. Returns at once; what reads
    /// the snapshot waits. `spare` is the memory of an earlier one.
    ///
    /// # Errors
    /// The device, or no pinned memory for a copy of the rank's state.
    pub fn snapshot(&self, w: &Ways<'_>, spare: Option<HostBuffer>) -> Result<Snapshot> {
        let shards = self.shards(w);
        let copied = || -> Tensors<HostBuffer> {
            // A stream of its own: the next step's forward runs beside the copies, its update waits for them.
            let stream = match self.moving.snapshots.take() {
                Some(stream) => stream,
                None => w.device().stream("snapshot", 0)?,
            };
            let bytes = shards.iter().map(|s| 4 * s.numel).sum::<u64>().max(1);
            let host = match spare.filter(|b| b.buffer().bytes() == bytes) {
                Some(b) => b,
                None => w.device().alloc_host(bytes, Tag::Staging)?,
            };
            let mut to = 0;
            for shard in shards.iter() {
                if self.units[shard.unit].table.host == 0 {
                    let pieces =
                        w.run(|run| pieces(&self.units[shard.unit], run, shard, &shard.range()))?;
                    for (src, local) in pieces {
                        let at = to + 4 * (local - shard.from);
                        let dst = host.buffer().region(at, src.extent());
                        stream.copy(dst, src.region())?;
                    }
                }
                to += 4 * shard.numel;
            }
            self.moving.snapshots.replace(Some(stream));
            self.copy_hosted(w, &shards, host)
        };
        let host = copied().map_err(w.at("copying state for a checkpoint"))?;
        Ok(Snapshot {
            shards,
            host,
            rank: w.rank,
            step: w.step,
        })
    }

    /// What rests on the host is there already: it is copied at once, when its update is over.
    fn copy_hosted(
        &self,
        w: &Ways<'_>,
        shards: &[Shard],
        mut host: HostBuffer,
    ) -> Tensors<HostBuffer> {
        let mut to = 0;
        for s in shards {
            let end = to + 4 * s.numel as usize;
            if self.units[s.unit].table.host > 0 {
                let bytes = self.units[s.unit].read_owned(w, s.kind, &s.range())?;
                host.write()?[to..end].copy_from_slice(&bytes);
            }
            to = end;
        }
        Ok(host)
    }

    /// The bytes of a part of one shard ([`Shard::cut`]): for saves that keep no copy of the state.
    ///
    /// # Errors
    /// The device, or the host's thread.
    pub fn read_shard(&self, w: &Ways<'_>, shard: &Shard, r: Range<u64>) -> Result<Vec<u8>> {
        let unit = &self.units[shard.unit];
        let bytes = match unit.table.host > 0 {
            true => unit.read_owned(w, shard.kind, &r),
            false => read_pieces(unit, w, shard, r),
        };
        bytes.map_err(w.at("reading state for a checkpoint"))
    }

    /// What this rank must be given to continue a run: the parts of parameters whose state lives here.
    pub fn wanted(&self) -> Vec<(StateKind, ShardPart)> {
        let mut out = vec![];
        for s in &self.units {
            for i in 0..s.decls.len() {
                for kind in StateKind::ALL {
                    let Some(shape) = s.shape(i, kind) else {
                        continue;
                    };
                    let away = s.table.params[i].hosted.iter();
                    let away = away.map(|(part, _)| part.clone());
                    let here = s.views(kind, i).into_iter().map(|v| v.range);
                    for held in away.chain(here) {
                        let at = held.start;
                        let parts = ShardPart::of(s, (i, kind), &shape, (held, at));
                        out.extend(parts.map(|part| (kind, part)));
                    }
                }
            }
        }
        out
    }
}

impl Shard {
    /// Parts of at most `most` elements, one after another.
    pub fn cut(&self, most: u64) -> impl Iterator<Item = Range<u64>> + use<> {
        let (end, most) = (self.from + self.numel, most.max(1));
        let mut at = self.from;
        std::iter::from_fn(move || {
            let from = at;
            at = end.min(at.saturating_add(most));
            (from < at).then_some(from..at)
        })
    }
    /// Its elements among those that the rank owns of the unit.
    fn range(&self) -> Range<u64> {
        self.from..self.from + self.numel
    }
}

fn sizes(dims: &[u64]) -> Vec<usize> {
    dims.iter().map(|d| *d as usize).collect()
}

/// What lies in elements `range` of a shard's buffer.
fn pieces(unit: &Unit, run: &Run<'_>, s: &Shard, range: &Range<u64>) -> Tensors<Vec<Piece>> {
    if !s.kind.is_replicated() {
        return unit.pieces(run, s.kind, range);
    }
    let mut out = vec![];
    for i in s.parts.iter().filter_map(|p| unit.find(&p.param)) {
        for v in unit.views(s.kind, i) {
            let all = v.read(run)?;
            let part = all.narrow(0, range.start, range.end - range.start);
            out.push((part, range.start));
        }
    }
    Ok(out)
}

fn read_pieces(unit: &Unit, w: &Ways<'_>, shard: &Shard, r: Range<u64>) -> Tensors<Vec<u8>> {
    let mut bytes = vec![0; 4 * (r.end - r.start) as usize];
    w.run(|run| {
        for (t, local) in pieces(unit, run, shard, &r)? {
            let here = 4 * (local - r.start) as usize;
            let to = &mut bytes[here..here + t.extent() as usize];
            w.compute.read(t.region(), to)?;
        }
        Ok(())
    })
    .map(|()| bytes)
}
