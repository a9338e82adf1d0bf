//! What goes to the device: a step's batch, all micro-batches through one pinned buffer, and the tables of the model once.

use crate::in_flight::InFlight;
use crossweave_hal::{DType, HostBuffer, Stream, Tag};
use crossweave_mesh::{Axis, AxisSet, Place};
use crossweave_planner::{Documents, Rows, are_lengths, positions_within};
use crossweave_tensor::rows::cut_at;
use crossweave_tensor::{Batch, Images, Meeting, RowCut, Runs, Tensor, UnitDecl};
use std::sync::Arc;

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

/// One micro-batch on the host.
#[derive(Clone, Copy, Debug, Default)]
pub struct MicroBatch<'a> {
    /// Token ids `[B * T]` of whole rows, also where these are cut over ranks.
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

/// The division of the tokens of a step's rows over the ranks, and of hidden states between units.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cuts {
    over: AxisSet,
    rows: RowCut,
    hidden: AxisSet,
    /// The place of the rank among those that have the tokens of its rows, and how many they are.
    place: [u64; 2],
}

impl Cuts {
    /// The cuts of units that have been placed on the mesh.
    pub fn of(units: &[UnitDecl]) -> Cuts {
        let place = units.first().map_or_else(Place::alone, |u| u.place);
        Cuts {
            over: cut_at(&place),
            rows: units.first().map_or_else(RowCut::default, |u| u.rows),
            hidden: units.first().map_or(AxisSet::NONE, |u| u.hidden_over),
            place: [place.at(Axis::Cp), place.length(Axis::Cp)].map(u64::from),
        }
    }
    /// Whole rows on every rank.
    pub fn none() -> Cuts {
        Cuts::of(&[])
    }
    /// The same with hidden states of all tokens that are here.
    pub fn without_hidden(self) -> Cuts {
        Cuts {
            hidden: AxisSet::NONE,
            ..self
        }
    }
    /// Notes them in a batch of the tokens that are here.
    pub fn note(&self, batch: &mut Batch) {
        (batch.cut_over, batch.rows, batch.hidden_over) = (self.over, self.rows, self.hidden);
    }
    /// Tokens that are here of a row of so many.
    ///
    /// # Errors
    /// A row that is not cut into equal chunks.
    pub fn tokens(&self, row: u64) -> Tensors<u64> {
        let pieces = self.rows.layout.pieces(self.place[1]);
        match self.place[1] == 1 || row >= pieces && row.is_multiple_of(pieces) {
            true => Ok(row / self.place[1]),
            false => crossweave_tensor::shape_error(format!(
                "rows of {row} tokens over {} ranks: they are cut into {pieces} equal pieces; make them {} tokens long",
                self.place[1],
                row.next_multiple_of(pieces)
            )),
        }
    }
    fn runs(&self, row: u64) -> Runs {
        self.rows.layout.runs(self.place, row)
    }
    /// The words of the tokens that are here, given one for each token of rows of `t`. Runs lie in the order of the row.
    pub fn own<I: Iterator>(&self, words: I, t: u64) -> impl Iterator<Item = I::Item> + use<I> {
        let (runs, whole) = (self.runs(t), self.place[1] == 1);
        let here = move |i: u64| runs.iter().any(|[from, n]| (from..from + n).contains(&i));
        let placed = words.zip((0..t.max(1)).cycle());
        placed.filter_map(move |(word, i)| (whole || here(i)).then_some(word))
    }
    /// The cumulative lengths of the documents of whole rows as attention needs them ([`Batch::run_segments`]): for the queries of each run that is here and
    /// for their keys, where these are gathered; for each run of each place, where they go around a ring.
    ///
    /// Under a causal mask the gathered keys of a document end where its last query of the run does, so that the mask counts from there; else they are
    /// those of the row.
    pub fn run_lengths(&self, t: u64) -> Vec<Clip> {
        let causal = self.rows.causal;
        let [own, seen] = [false, true].map(|keys| {
            move |[from, n]: [u64; 2]| match (keys, causal) {
                (false, _) => Clip([from, n].map(|n| n as i32)),
                (true, true) => Clip([0, from + n].map(|n| n as i32)),
                (true, false) => Clip([0, t as i32]),
            }
        });
        match self.rows.meeting {
            _ if self.over == AxisSet::NONE => vec![],
            Meeting::Gather => self
                .runs(t)
                .iter()
                .flat_map(|r| [own(r), seen(r)])
                .collect(),
            Meeting::Heads => vec![],
            Meeting::Ring { .. } => {
                let [_, places] = self.rows.meeting.on_ring(self.place);
                let runs = |p: u64| self.rows.layout.runs([p, places], t);
                (0..places).flat_map(|p| runs(p).iter().map(own)).collect()
            }
        }
    }
}

/// Consecutive tokens of a row, which cumulative lengths of the row are seen in: the first, and how many.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clip([i32; 2]);

impl Clip {
    /// A length of the row as it is seen there.
    pub fn of(self, cu: i32) -> i32 {
        let Clip([from, n]) = self;
        (cu - from).clamp(0, n)
    }
}

/// 32-bit words that go to the device for a micro-batch: the tokens and targets that are here, lengths of documents and positions.
pub(crate) fn input_words(cuts: &Cuts, rows: &Rows) -> u64 {
    let (b, t) = (rows.batch, rows.seq_len);
    let here = rows.tokens() / cuts.place[1];
    let attention = rows.documents.is_some_and(|d| d.attention);
    let positions = rows.documents.is_some_and(|d| d.positions);
    let runs = cuts.run_lengths(t).len() as u64;
    let lengths = if attention {
        b * (t + 1) * (1 + runs)
    } else {
        0
    };
    2 * here + lengths + if positions { here } else { 0 }
}

/// The tokens that are here of all micro-batches, in one pinned buffer, one copy each for tokens and targets and, where documents share rows, for where they end, and where
/// there are images, for these and for where they stand.
pub(crate) fn upload(
    in_flight: &mut InFlight,
    stream: &Stream,
    (rows, cuts): (&Rows, &Cuts),
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
    cuts.tokens(t)?;
    let beside = (cuts, rows.documents, images);
    let staged =
        |staging: &mut HostBuffer| upload_through(stream, staging, batches, [b, t], beside);
    let mut out = in_flight.staging(staged)?;
    for batch in &mut out {
        batch.ignores = rows.labelled;
        cuts.note(batch);
    }
    Ok(out)
}

/// The first of the lengths of parts.
const RUNS: usize = 6;

fn upload_through(
    stream: &Stream,
    staging: &mut HostBuffer,
    batches: &[MicroBatch<'_>],
    [b, t]: [u64; 2],
    (cuts, documents, images): (&Cuts, Option<Documents>, Option<Images>),
) -> Tensors<Vec<Batch>> {
    let here = cuts.tokens(t)?;
    let n = (b * here) as usize;
    let runs = cuts.run_lengths(t);
    let attention = documents.filter(|d| d.attention);
    let positions = documents.filter(|d| d.positions);
    let lengths = match attention {
        Some(_) => (b * (t + 1)) as usize,
        None => 0,
    };
    // Words of each part: tokens, targets, cumulative lengths, positions, places of features, images; lengths of parts.
    let mut parts = vec![
        n,
        n,
        lengths,
        if positions.is_some() { n } else { 0 },
        if images.is_some() { n } else { 0 },
        batches.first().map_or(0, |m| m.images.len()),
    ];
    parts.extend(runs.iter().map(|_| lengths));
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
            None => put(0, &mut cuts.own(m.tokens.iter().copied(), t)),
            Some(i) => {
                put(0, &mut i.words_only(m.tokens));
                put(4, &mut i.places(m.tokens, t as usize));
                put(5, &mut m.images.iter().map(|x| x.to_bits() as i32));
            }
        }
        put(1, &mut cuts.own(m.targets.iter().copied(), t));
        if let Some(d) = &attention {
            put(2, &mut *lengths_of(d, m.tokens, m.lengths, t));
            for (i, run) in runs.iter().enumerate() {
                let mut all = lengths_of(d, m.tokens, m.lengths, t).map(|cu| run.of(cu));
                put(RUNS + i, &mut all);
            }
        }
        if let Some(d) = &positions {
            let all = positions_of(d, m.tokens, m.lengths, t);
            put(3, &mut cuts.own(all, t));
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
        let places = |_| copied(3, &[b, here]);
        let run_of = |i: usize| copied(RUNS + i, &[b, t + 1]);
        let by_run = (0..runs.len()).filter(|_| attention.is_some()).map(run_of);
        out.push(Batch {
            run_segments: by_run.collect::<Tensors<_>>()?,
            tokens: Some(copied(0, &[b, here])?),
            targets: Some(copied(1, &[b, here])?),
            ignores: false,
            segments: attention.map(lengths).transpose()?,
            positions: positions.map(places).transpose()?,
            images: images.map(seen).transpose()?,
            places: images.map(|_| copied(4, &[b, here])).transpose()?,
            ..Batch::default()
        });
    }
    Ok(out)
}

/// Why rows are refused: they have other numbers of tokens, or of words of images, than rows of this shape.
pub(crate) fn unfit_rows(
    units: &[UnitDecl],
    tokens: &[i32],
    images_of_rows: &[f32],
    [batch, seq]: [u64; 2],
) -> Option<String> {
    let expected = batch * images(units).map_or(0, |i| i.words());
    let found = images_of_rows.len();
    if found as u64 != expected {
        let what = format!("{found} values of images for {batch} rows, expected {expected}");
        return Some(what);
    }
    let wrong = tokens.len() as u64 != batch * seq;
    wrong.then(|| format!("{} token ids for {batch} x {seq}", tokens.len()))
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
