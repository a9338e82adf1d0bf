//! What a rank reads in each step: tokens, targets and images of its micro-batches.

use crate::error::Result;
use crate::{Division, Job, spec};
use crossweave_data::{Batches, TokenBatch};
use crossweave_mesh::Place;
use std::ops::Range;

/// A micro-batch of a rank, sequence after sequence.
pub struct Micro {
    /// Ids of the tokens.
    pub tokens: Vec<i32>,
    /// Ids of what is to be predicted, -100 where nothing is.
    pub targets: Vec<i32>,
    /// Cumulative lengths of the texts of each row; empty where a row is one text, or tokens end documents.
    pub lengths: Vec<i32>,
    /// Patches of the rows' images; empty where rows have none.
    pub images: Vec<f32>,
    /// Number in its global batch of the first sequence.
    pub first: u64,
}

impl Micro {
    fn new(b: TokenBatch, first: u64) -> Micro {
        // Ids were held to a vocabulary far below 2^31 when they were read.
        Micro {
            tokens: b.inputs().into_iter().map(|i| i as i32).collect(),
            targets: b.labels(),
            lengths: b.lengths.unwrap_or_default(),
            images: b.images,
            first,
        }
    }
}

/// The batches of one rank.
pub struct Feed {
    batches: Batches,
    /// Sequences held back.
    validation: Option<Batches>,
    /// Shares of the global batch that this rank computes: its own, or those of its logical shards.
    replicas: Range<u32>,
    /// The most shares that any rank computes.
    most: u32,
    /// Predictions of a step over all ranks.
    predictions: u64,
    /// Tokens of a step over all ranks, with those that rows are filled up with.
    tokens: u64,
}

impl Feed {
    /// The batches of the rank at a place; `validation` has the sequences held back.
    pub fn new(
        job: &Job,
        (batches, validation): (&Batches, Option<&Batches>),
        division: &Division,
        place: Place,
    ) -> Feed {
        let spec = spec(job, division, place);
        Feed {
            batches: batches.clone(),
            validation: validation.cloned(),
            replicas: spec.own_replicas(),
            most: spec.most_replicas(),
            predictions: job.tokens_per_step(),
            tokens: job.resolved.batch.global * job.tokens_per_row(),
        }
    }

    /// The micro-batches of the step that follows `done` steps.
    ///
    /// # Errors
    /// Rows that cannot be read.
    pub fn step(&self, done: u64) -> Result<Vec<Micro>> {
        let shape = self.batches.shape();
        let read = |(replica, m): (u64, u64)| -> Result<Micro> {
            let batch = self.batches.at_step(done, replica, m)?;
            Ok(Micro::new(batch, self.batches.first_of(replica, m)))
        };
        let each = |r: u32| (0..shape.accumulation).map(move |m| (u64::from(r), m));
        self.replicas.clone().flat_map(each).map(read).collect()
    }

    /// How many predictions of the step that follows `done` steps count, and how many there are, over all ranks; none where all count. Every
    /// rank reads off the data what counts on all of them, so that nothing need be exchanged.
    ///
    /// # Errors
    /// Rows that cannot be read.
    pub fn counted(&self, done: u64) -> Result<Option<(u64, u64)>> {
        if !self.batches.labelled() {
            return Ok(None);
        }
        let counted = self.batches.counted(done..done + 1)?;
        Ok(Some((counted, self.predictions)))
    }

    /// Tokens that are trained on in `steps` over all ranks. What rows are filled up with is none of them; of each text every token but one is,
    /// whether it has a row of its own or shares one.
    ///
    /// # Errors
    /// Rows that cannot be read.
    pub fn tokens(&self, steps: Range<u64>) -> Result<u64> {
        match self.batches.padded() {
            true => Ok(self.batches.filled(steps)?),
            false => Ok(steps.end.saturating_sub(steps.start) * self.tokens),
        }
    }

    /// What a validation reads; none where no sequences are held back.
    pub fn held_back(&self) -> Option<HeldBack<'_>> {
        let batches = self.validation.as_ref()?;
        Some(HeldBack {
            feed: self,
            batches,
        })
    }
}

/// The sequences held back, as one rank reads them in turns: as many as the rank with the most shares has.
pub struct HeldBack<'a> {
    feed: &'a Feed,
    batches: &'a Batches,
}

impl<'a> HeldBack<'a> {
    /// Turns of every rank.
    pub fn turns(&self) -> u32 {
        self.feed.most
    }

    /// Turns in which this rank reads a share of its own. In those behind it reads the last again, because units are gathered by all ranks
    /// together.
    pub fn own_turns(&self) -> usize {
        self.feed.replicas.len()
    }

    /// Micro-batches of a turn, blank ones among them.
    pub fn micro_batches(&self) -> u64 {
        self.batches.full_pass() * self.batches.shape().accumulation
    }

    /// The micro-batches of a turn that hold rows.
    pub fn turn(&self, turn: u32) -> impl Iterator<Item = Result<Micro>> + 'a {
        let replicas = &self.feed.replicas;
        let replica = (replicas.start + turn).min(replicas.end - 1);
        let batches = self.batches;
        let accumulation = batches.shape().accumulation;
        let steps =
            (0..batches.full_pass()).flat_map(move |s| (0..accumulation).map(move |m| (s, m)));
        let full = steps.filter(move |(step, m)| !batches.is_blank(*step, *m));
        full.map(move |(step, m)| {
            let batch = batches.at_step(step, u64::from(replica), m)?;
            Ok(Micro::new(batch, 0))
        })
    }

    /// Predictions that count, and all there are, over all ranks.
    ///
    /// # Errors
    /// Rows that cannot be read.
    pub fn counted(&self) -> Result<(u64, u64)> {
        let steps = self.batches.full_pass();
        let counted = self.batches.counted(0..steps)?;
        Ok((counted, steps * self.feed.predictions))
    }
}
