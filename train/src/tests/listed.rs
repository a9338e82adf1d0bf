//! What a job gives its ranks, as text, for the listing beside this.

use crate::backend::open_linked;
use crate::gate::Shared;
use crate::prepared::Run;
use crate::rank::Order;
use crate::request::Request;
use crate::setup::prepare;
use crate::threads::Threads;
use crate::train_error::Result;
use crossweave_engine::rehearsal;
use crossweave_hal::CheckerState;
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
pub fn begin(args: &Request) -> Result<Run> {
    let run = prepare(args, None, false)?;
    crate::shared_layers::check(&run.job, &run.computes)?;
    run.balance(None)
}

/// Trains the job of a command line to its end.
pub fn train(args: &Request) -> Result<()> {
    let run = Arc::new(prepare(args, None, true)?);
    let shared = Arc::new(Shared::new(Arc::default(), None));
    let mut threads = Threads::start(&run, &shared, None);
    threads.order(&Order::Steps);
    threads.order(&Order::End);
    threads.wait();
    shared.first_error().map_or(Ok(()), Err)
}

/// Everything that the ranks of a job are given.
pub fn of(run: &Run) -> Result<Listed> {
    let mut l = Listed {
        classes: String::new(),
        division: format!(
            "ranks {} steps {} rows {:?} stages {:?} islands {:?}\n",
            run.job.ranks,
            run.reads.steps,
            run.layout.division.rows,
            run.layout.division.stages,
            run.islands
        ),
        program: String::new(),
        batches: String::new(),
    };
    for class in &run.layout.classes {
        let (ranks, first) = (&class.ranks, class.first);
        let plugin = open_linked("null", &run.host)?;
        let null = plugin.with_checker(&CheckerState::default()).open(0)?;
        let spec = run.rank_spec(first);
        let dry = run.layout.dry_of(class);
        // Of buckets and lanes the line speaks before, as it did when they were no part of ZeRO's choices.
        let zero = format!("{:?}", spec.zero);
        let zero = zero.split(", bucket_bytes").next().unwrap_or(&zero);
        let words = crossweave_report::listed(ranks).replace(' ', "");
        let separator = if l.classes.is_empty() { "" } else { "/" };
        let _ = write!(l.classes, "{separator}{words}");
        let _ = writeln!(
            l.division,
            "{words}: {:?} seed {} {:?} {} x {} x {} weight {} clip {} {:?} {:?} bucket {} overlap {} {} }} {:?} shards {:?} {:?} labelled {} \
             of {} parameters, {:?}",
            spec.place,
            spec.seed,
            spec.compute,
            spec.micro_batches,
            spec.rows.batch,
            spec.rows.seq_len,
            spec.rows.weight,
            spec.clip,
            spec.optim,
            spec.recompute,
            spec.zero.bucket_bytes,
            spec.zero.overlap,
            zero,
            spec.precision,
            spec.canonical,
            spec.rows.documents,
            spec.rows.labelled,
            dry.params,
            dry.units,
        );
        let units = run.job.units(&run.job.place(first))?;
        let engine = rehearsal(&null, units, &spec, dry)?;
        let _ = writeln!(l.program, "{words}:\n{}", engine.program_text());
    }
    let mut steps = vec![run.resume.step, run.resume.step + 1, run.reads.steps - 1];
    steps.retain(|s| *s < run.reads.steps);
    for step in steps {
        let _ = writeln!(
            l.batches,
            "counted {}",
            run.reads.batches.counted(step..step + 1)?
        );
        for rank in 0..run.job.ranks {
            for m in run.feed(rank).step(step)? {
                let pixels: Vec<u32> = m.images.iter().map(|x| x.to_bits()).collect();
                let _ = writeln!(
                    l.batches,
                    "{step} {rank} {} {:?} {:?} {pixels:?}",
                    m.first, m.tokens, m.targets
                );
            }
        }
    }
    if let Some(v) = &run.reads.validation {
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
