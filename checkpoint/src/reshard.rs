//! The same checkpoint written for another number of ranks: every element is read once and written once, in chunks.

use crate::dtype::{Dtype, num_elements};
use crate::error::{CheckpointError, Result};
use crate::load::Checkpoint;
use crate::manifest::{list, root_of};
use crate::safewrite::TensorOut;
use crate::save::{RankWriter, Writer};
use crossweave_claim::Claim;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Elements in memory at once, per thread.
const CHUNK_ELEMENTS: u64 = 1 << 20;

/// Tensors that lie end to end in one flat buffer and are cut together: (logical name, first element in the buffer).
struct Unit {
    blob: String,
    dtype: Dtype,
    tensors: Vec<(String, u64)>,
    numel: u64,
}

/// Writes the checkpoint for `ranks` ranks under `out/checkpoints`, with `state` to remember; every rank gets an equal slice of
/// each unit. Tensors that shared a blob stay together, in their order. `out` must hold no checkpoints yet. Returns the step's
/// folder.
///
/// # Errors
/// Damage of what is read; a target that is taken; the disk.
pub fn reshard(
    from: &Checkpoint,
    out: impl AsRef<Path>,
    ranks: usize,
    state: Value,
) -> Result<PathBuf> {
    let out = out.as_ref();
    // What a run leaves unfinished is cleared below: no run may be writing there.
    let _claim = Claim::folder(out, "checkpoint reshard")?;
    if !list(out)?.is_empty() {
        return Err(CheckpointError::Target {
            path: root_of(out),
            reason: "holds checkpoints already".into(),
            fix: "name a new folder".into(),
        });
    }
    let units = units_of(from);
    let writer = Writer::begin(out, from.step(), ranks)?;
    let next = AtomicUsize::new(0);
    let work = || -> Result<()> {
        loop {
            let rank = next.fetch_add(1, Ordering::Relaxed);
            if rank >= ranks {
                return Ok(());
            }
            let mut file = writer.rank(rank)?;
            for unit in &units {
                add(&mut file, from, unit, rank as u64, ranks as u64)?;
            }
            file.finish()?;
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(8));
    std::thread::scope(|s| {
        // A thread that cannot start costs speed only.
        let start = |_| std::thread::Builder::new().spawn_scoped(s, work).ok();
        let others: Vec<_> = (1..threads.min(ranks)).filter_map(start).collect();
        let mine = work();
        others.into_iter().fold(mine, |done, t| {
            let bug =
                || CheckpointError::write("a rank's file", "its writer panicked", "report a bug");
            done.and(t.join().unwrap_or_else(|_| Err(bug())))
        })
    })?;
    writer.commit(state)
}

/// Rank and offset of a tensor's first piece in its blob, and its name.
type Member = (usize, u64, String);

fn units_of(from: &Checkpoint) -> Vec<Unit> {
    // By blob and type, then by place in it; a tensor without a piece has no elements and comes first.
    let mut groups: BTreeMap<(String, String), Vec<Member>> = BTreeMap::new();
    for (name, logical) in &from.manifest().layout {
        let first = logical.pieces.iter().min_by_key(|p| (p.rank, p.offset));
        let (blob, rank, offset) =
            first.map_or((name.as_str(), 0, 0), |p| (&p.tensor, p.rank, p.offset));
        groups
            .entry((blob.to_string(), format!("{:?}", logical.dtype)))
            .or_default()
            .push((rank, offset, name.clone()));
    }
    let mut units = vec![];
    for ((blob, _), mut members) in groups {
        members.sort();
        let mut unit = Unit {
            blob,
            dtype: Dtype::F32,
            tensors: vec![],
            numel: 0,
        };
        for (_, _, name) in members {
            let logical = &from.manifest().layout[&name];
            unit.dtype = logical.dtype;
            let n = num_elements(&logical.shape).unwrap_or(0);
            unit.tensors.push((name, unit.numel));
            unit.numel += n;
        }
        // Two types under one name would otherwise meet in one file.
        if units.iter().any(|u: &Unit| u.blob == unit.blob) {
            unit.blob = format!("{}.{:?}", unit.blob, unit.dtype);
        }
        units.push(unit);
    }
    units
}

/// Adds slice `rank` of `unit` to the rank's file.
fn add<'a>(
    file: &mut RankWriter<'a>,
    from: &'a Checkpoint,
    unit: &'a Unit,
    rank: u64,
    ranks: u64,
) -> Result<()> {
    let slice = unit.numel.div_ceil(ranks);
    let (start, end) = (
        (rank * slice).min(unit.numel),
        ((rank + 1) * slice).min(unit.numel),
    );
    let mut parts = vec![];
    for (name, at) in &unit.tensors {
        let shape = &from.logical_info(name)?.shape;
        let n = num_elements(shape).unwrap_or(0);
        let (a, b) = (start.max(*at), end.min(at + n));
        // A tensor of no elements is declared by rank 0, so that it is not lost.
        if a < b || (n == 0 && rank == 0) {
            let len = b.saturating_sub(a);
            let (a, offset) = if n == 0 { (*at, 0) } else { (a, a - start) };
            file.owns(name, unit.dtype, shape, a - at, len, &unit.blob, offset)?;
            parts.push((name, a - at, len));
        }
    }
    let stream = move |out: &mut dyn std::io::Write| {
        for (name, first, len) in parts {
            let mut done = 0;
            while done < len {
                let n = CHUNK_ELEMENTS.min(len - done);
                let bytes = from
                    .logical_range(name, first + done..first + done + n)
                    .map_err(std::io::Error::other)?;
                out.write_all(&bytes)?;
                done += n;
            }
        }
        Ok(())
    };
    if end > start || rank == 0 {
        let shape = [(end - start) as usize];
        file.put_tensor(TensorOut::stream(&unit.blob, unit.dtype, &shape, stream));
    }
    Ok(())
}
