//! What goes to the device: a step's batch, all micro-batches through one pinned buffer, and the tables of the model once.

use crate::in_flight::InFlight;
use crossweave_hal::{DType, HostBuffer, Stream, Tag};
use crossweave_mesh::AxisSet;
use crossweave_planner::{Documents, Rows, are_lengths, positions_within};
use crossweave_tensor::{Batch, Images, Tensor, UnitDecl};
use std::sync::Arc;

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

/// One micro-batch on the host.
#[derive(Clone, Copy, Debug, Default)]
pub struct MicroBatch<'a> {
    /// Token ids `[B * T]`.
    pub tokens: &'a [i32],
    /// Next tokens `[B * T]`; -100 for a prediction that does not count, where the rank's specification says that there are such.
    pub targets: &'a [i32],
    /// Cumulative lengths of the documents of each row, `[B * (T + 1)]`: 0, the end of each, and behind the last its end again. Nothing where the
    /// rank's specification has a token that ends documents, or no documents.
    pub lengths: &'a [i32],
    /// Patches of the rows' images, as the model reads them; nothing where it reads none.
    pub images: &'a [f32],
    /// Index of its first sequence in the step's global batch: the key of dropout.
    pub first_sequence: u64,
}

/// What of a sample the units read beside its tokens.
pub(crate) fn images(units: &[UnitDecl]) -> Option<Images> {
    units.iter().find_map(|u| u.images)
}

/// The axes over whose ranks the tokens of hidden states between the units are cut in a step.
pub(crate) fn hidden_over(units: &[UnitDecl]) -> AxisSet {
    units.first().map_or(AxisSet::NONE, |u| u.hidden_over)
}

/// All micro-batches, whose rows and whose hidden states are cut over these axes, in one pinned buffer, one copy each for tokens and targets and, where documents share rows, for where they end, and where
/// there are images, for these and for where they stand.
pub(crate) fn upload(
    in_flight: &mut InFlight,
    stream: &Stream,
    (rows, [cut_over, hidden_over]): (&Rows, [AxisSet; 2]),
    images: Option<Images>,
    batches: &[MicroBatch<'_>],
) -> Tensors<Vec<Batch>> {
    let (b, t) = (rows.batch, rows.seq_len);
    let n = (b * t) as usize;
    let words = (b * images.map_or(0, |i| i.words())) as usize;
    if let Some(bad) = batches.iter().find(|m| m.images.len() != words) {
        return crossweave_tensor::shape_error(format!(
            "a micro-batch of {} values of images, expected {words}",
            bad.images.len()
        ));
    }
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
    if let Some(why) = batches
        .iter()
        .find_map(|m| unfit_lengths(m.lengths, rows.documents, [b, t]))
    {
        return crossweave_tensor::shape_error(why);
    }
    let beside = (rows.documents, images);
    let staged =
        |staging: &mut HostBuffer| upload_through(stream, staging, batches, [b, t], beside);
    let mut out = in_flight.staging(staged)?;
    for batch in &mut out {
        batch.ignores = rows.labelled;
        (batch.cut_over, batch.hidden_over) = (cut_over, hidden_over);
    }
    Ok(out)
}

fn upload_through(
    stream: &Stream,
    staging: &mut HostBuffer,
    batches: &[MicroBatch<'_>],
    [b, t]: [u64; 2],
    (documents, images): (Option<Documents>, Option<Images>),
) -> Tensors<Vec<Batch>> {
    let n = (b * t) as usize;
    let attention = documents.filter(|d| d.attention);
    let positions = documents.filter(|d| d.positions);
    // Words of each part: tokens, targets, cumulative lengths, positions, places of features, images.
    let parts = [
        n,
        n,
        if attention.is_some() {
            n + b as usize
        } else {
            0
        },
        if positions.is_some() { n } else { 0 },
        if images.is_some() { n } else { 0 },
        batches.first().map_or(0, |m| m.images.len()),
    ];
    let all: usize = parts.iter().sum();
    let begin = |i: usize, j: usize| 4 * (i * all + parts[..j].iter().sum::<usize>());
    let host = staging.write()?;
    for (i, m) in batches.iter().enumerate() {
        let mut put = |j: usize, words: &mut dyn Iterator<Item = i32>| {
            let at = begin(i, j);
            let to = host[at..at + 4 * parts[j]].chunks_exact_mut(4);
            for (dst, word) in to.zip(words) {
                dst.copy_from_slice(&word.to_le_bytes());
            }
        };
        match &images {
            None => put(0, &mut m.tokens.iter().copied()),
            Some(i) => {
                put(0, &mut i.words_only(m.tokens));
                put(4, &mut i.places(m.tokens, t as usize));
                put(5, &mut m.images.iter().map(|x| x.to_bits() as i32));
            }
        }
        put(1, &mut m.targets.iter().copied());
        if let Some(d) = &attention {
            put(2, &mut *lengths_of(d, m.tokens, m.lengths, t));
        }
        if let Some(d) = &positions {
            put(3, &mut *positions_of(d, m.tokens, m.lengths, t));
        }
    }
    let mut out = vec![];
    for i in 0..batches.len() {
        let copied_as = |j: usize, shape: &[u64], dtype: DType| -> Tensors<Tensor> {
            let bytes = 4 * parts[j] as u64;
            let dst = stream.device().alloc(stream, bytes, Tag::Activation)?;
            stream.copy(
                dst.all(),
                staging.buffer().region(begin(i, j) as u64, bytes),
            )?;
            Ok(Tensor::dense(Arc::new(dst), 0, shape, dtype))
        };
        let copied = |j: usize, shape: &[u64]| copied_as(j, shape, DType::I32);
        let seen = |i: Images| copied_as(5, &[b * i.row, i.patches, i.patch], DType::F32);
        let lengths = |_| copied(2, &[b, t + 1]);
        let places = |_| copied(3, &[b, t]);
        out.push(Batch {
            tokens: Some(copied(0, &[b, t])?),
            targets: Some(copied(1, &[b, t])?),
            ignores: false,
            segments: attention.map(lengths).transpose()?,
            positions: positions.map(places).transpose()?,
            images: images.map(seen).transpose()?,
            places: images.map(|_| copied(4, &[b, t])).transpose()?,
            cut_over: AxisSet::NONE,
            hidden_over: AxisSet::NONE,
        });
    }
    Ok(out)
}

/// Why the lengths of documents that came with a batch cannot be used.
pub(crate) fn unfit_lengths(
    lengths: &[i32],
    documents: Option<Documents>,
    [b, t]: [u64; 2],
) -> Option<String> {
    let right = lengths.is_empty()
        || (documents.is_some()
            && lengths.len() as u64 == b * (t + 1)
            && are_lengths(lengths, t as usize));
    (!right).then(|| {
        format!(
            "{} lengths of documents with {b} rows of {t} tokens: give {} ascending ones a row, from 0 to {t} at most, in a job that has documents",
            lengths.len(),
            t + 1
        )
    })
}

/// Cumulative lengths of the documents of a batch: as they came with it, else by the tokens that end documents.
pub(crate) fn lengths_of<'a>(
    documents: &'a Documents,
    tokens: &'a [i32],
    given: &'a [i32],
    t: u64,
) -> Box<dyn Iterator<Item = i32> + 'a> {
    match given {
        [] => Box::new(documents.lengths(tokens, t as usize)),
        _ => Box::new(given.iter().copied()),
    }
}

/// The position of every token of a batch in its document, by the same.
pub(crate) fn positions_of<'a>(
    documents: &'a Documents,
    tokens: &'a [i32],
    given: &'a [i32],
    t: u64,
) -> Box<dyn Iterator<Item = i32> + 'a> {
    match given {
        [] => Box::new(documents.positions(tokens, t as usize)),
        _ => Box::new(positions_within(given, t as usize)),
    }
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
