//! What a job gives its ranks, as text, for [`crate::listing`].

use super::gate::Shared;
use super::rank::Ids;
use super::request::Request;
use super::setup::{Job, prepare};
use super::{threads, with_offload};
use crate::backend::open_linked;
use crate::rehearse::Nobody;
use crate::train_error::Result;
use crossweave_engine::Trainer;
use crossweave_hal::CheckerState;
use crossweave_mesh::Axis;
use std::fmt::Write;
use std::sync::Arc;

/// Texts about all ranks.
pub struct Listed {
    /// Which ranks do the same, in the form `0-1,4/2-3`.
    pub classes: String,
    /// Rows, stages, sizes, and what each class is asked to do.
    pub division: String,
    /// The program of each class.
    pub program: String,
    /// What every rank reads.
    pub batches: String,
}

/// The job of a command line, divided; nothing is written.
pub fn begin(args: &Request) -> Result<Job> {
    let mut job = prepare(args, None, false)?;
    super::shared_layers::check(&job)?;
    job.balance(None)?;
    if job.stages.is_some() {
        job.check_world()?;
    }
    Ok(job)
}

/// Trains the job of a command line to its end.
pub fn train(args: &Request) -> Result<()> {
    let job = Arc::new(prepare(args, None, true)?);
    let shared = Arc::new(Shared::new(Arc::default(), None));
    threads::run(&job, &shared, None);
    shared.first_error().map_or(Ok(()), Err)
}

/// Ranks of the same stage, boxes of parameters and rows.
fn classes(job: &Job) -> Result<Vec<Vec<u32>>> {
    let mut all: Vec<(String, Vec<u32>)> = vec![];
    for rank in 0..job.ranks {
        let place = job.place(rank);
        let units = super::units(&job.source, &job.resolved, &place)?;
        let sizes = units.iter().flat_map(|u| &u.params);
        let sizes: Vec<u64> = sizes.map(|p| p.local().numel()).collect();
        let rows = job.batches.micro_batch(place.at(Axis::Dp).into());
        let key = format!("{} {rows} {sizes:?}", place.at(Axis::Pp));
        match all.iter_mut().find(|(k, _)| *k == key) {
            Some((_, ranks)) => ranks.push(rank),
            None => all.push((key, vec![rank])),
        }
    }
    Ok(all.into_iter().map(|(_, ranks)| ranks).collect())
}

/// Everything that the ranks of a job are given.
pub fn of(job: &Job) -> Result<Listed> {
    let classes = classes(job)?;
    let mut l = Listed {
        classes: String::new(),
        division: format!(
            "ranks {} steps {} rows {:?} stages {:?} islands {:?}\n",
            job.ranks, job.steps, job.rows, job.stages, job.islands
        ),
        program: String::new(),
        batches: String::new(),
    };
    for ranks in &classes {
        let first = ranks[0];
        let plugin = open_linked("null", &job.host)?;
        let null = plugin.with_checker(&CheckerState::default()).open(0)?;
        let spec = with_offload(job.rank_spec(first), &job.resolved, &null, true);
        let dry = job.dry(first);
        let words = crossweave_report::listed(ranks).replace(' ', "");
        let separator = if l.classes.is_empty() { "" } else { "/" };
        let _ = write!(l.classes, "{separator}{words}");
        let _ = writeln!(
            l.division,
            "{words}: {:?} seed {} {:?} {} x {} x {} weight {} clip {} {:?} {:?} bucket {} overlap {} {:?} {:?} shards {:?} {:?} labelled {} \
             of {} parameters, {:?}",
            spec.place,
            spec.seed,
            spec.compute,
            spec.micro_batches,
            spec.batch,
            spec.seq_len,
            spec.weight,
            spec.clip,
            spec.optim,
            spec.recompute,
            spec.bucket_bytes,
            spec.overlap,
            spec.zero,
            spec.precision,
            spec.canonical,
            spec.documents,
            spec.labelled,
            dry.params,
            dry.units,
        );
        let units = super::units(&job.source, &job.resolved, &job.place(first))?;
        let trainer = Trainer::new(&null, units, spec, dry, &Nobody)?;
        let _ = writeln!(l.program, "{words}:\n{}", trainer.program_text());
    }
    let mut steps = vec![job.resume.step, job.resume.step + 1, job.steps - 1];
    steps.retain(|s| *s < job.steps);
    for step in steps {
        let _ = writeln!(
            l.batches,
            "counted {}",
            job.batches.counted(step..step + 1)?
        );
        for rank in 0..job.ranks {
            for ids in Ids::of_step(job, &job.rank_spec(rank), step)? {
                let m = ids.micro_batch();
                let pixels: Vec<u32> = m.images.iter().map(|x| x.to_bits()).collect();
                let _ = writeln!(
                    l.batches,
                    "{step} {rank} {} {:?} {:?} {pixels:?}",
                    m.first_sequence, m.tokens, m.targets
                );
            }
        }
    }
    if let Some(v) = &job.validation {
        let shape = v.shape();
        let _ = writeln!(l.batches, "validation {} in {}", v.used(), v.full_pass());
        for replica in 0..shape.ranks {
            let batch = v.at_step(0, replica, 0)?;
            let _ = writeln!(
                l.batches,
                "{replica} {:?} {:?}",
                batch.inputs(),
                batch.labels()
            );
        }
    }
    Ok(l)
}
