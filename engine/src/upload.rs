//! What goes to the device: a step's batch, all micro-batches through one pinned buffer, and the tables of the model once.

use crate::trainer::{MicroBatch, Trainer};
use crossweave_hal::{DType, Stream, Tag};
use crossweave_tensor::{Batch, Tensor, UnitDecl};
use std::sync::Arc;

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

impl Trainer {
    /// All micro-batches in one pinned buffer, one copy each for tokens and targets.
    pub(crate) fn upload(&mut self, batches: &[MicroBatch<'_>]) -> Tensors<Vec<Batch>> {
        let (b, t) = (self.spec.batch, self.spec.seq_len);
        let n = (b * t) as usize;
        if let Some(bad) = batches
            .iter()
            .find(|m| m.tokens.len() != n || m.targets.len() != n)
        {
            return crossweave_tensor::shape_error(format!(
                "a micro-batch of {} tokens and {} targets, expected {b} x {t}",
                bad.tokens.len(),
                bad.targets.len()
            ));
        }
        let Some(mut staging) = self.inputs.pop_front() else {
            return crossweave_tensor::shape_error("no input buffer is free");
        };
        let out = upload_through(&self.compute, &mut staging, batches, b, t);
        self.inputs.push_back(staging);
        out
    }
}

fn upload_through(
    stream: &Stream,
    staging: &mut crossweave_hal::HostBuffer,
    batches: &[MicroBatch<'_>],
    b: u64,
    t: u64,
) -> Tensors<Vec<Batch>> {
    let bytes = 4 * (b * t) as usize;
    let host = staging.write()?;
    for (i, m) in batches.iter().enumerate() {
        for (j, ids) in [m.tokens, m.targets].into_iter().enumerate() {
            let at = (2 * i + j) * bytes;
            for (dst, id) in host[at..at + bytes].chunks_exact_mut(4).zip(ids) {
                dst.copy_from_slice(&id.to_le_bytes());
            }
        }
    }
    let mut out = vec![];
    for i in 0..batches.len() {
        let ids = |j: usize| -> Tensors<Tensor> {
            let dst = stream
                .device()
                .alloc(stream, bytes as u64, Tag::Activation)?;
            stream.copy(
                dst.all(),
                staging
                    .buffer()
                    .region(((2 * i + j) * bytes) as u64, bytes as u64),
            )?;
            Ok(Tensor::dense(Arc::new(dst), 0, [b, t], DType::I32))
        };
        out.push(Batch {
            tokens: Some(ids(0)?),
            targets: Some(ids(1)?),
        });
    }
    Ok(out)
}

/// The tables of all units, those that several share once.
pub(crate) fn upload_consts(stream: &Stream, units: &[UnitDecl]) -> Tensors<Vec<Vec<Tensor>>> {
    let mut seen: Vec<(*const f32, Tensor)> = vec![];
    let mut all = vec![];
    for u in units {
        let mut mine = vec![];
        for (shape, values) in &u.consts {
            let t = match seen.iter().find(|(p, _)| *p == values.as_ptr()) {
                Some((_, t)) => t.clone(),
                None => {
                    let b = stream
                        .device()
                        .alloc_state(4 * values.len() as u64, Tag::Staging)?;
                    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                    stream.write(b.all(), &bytes)?;
                    let t = Tensor::dense(Arc::new(b), 0, *shape, DType::F32);
                    seen.push((values.as_ptr(), t.clone()));
                    t
                }
            };
            mine.push(t);
        }
        all.push(mine);
    }
    Ok(all)
}
