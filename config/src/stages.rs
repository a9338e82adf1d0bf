//! `mesh.pp_layers`, `mesh.pp_schedule` and `mesh.pp_chunks`: how the units of the model are divided over pipeline stages, and what a schedule asks
//! of micro-batches.

use crate::resolve::Resolver;
use crate::settings::{Mesh, Settings};

const KEY: &str = "mesh.pp_layers";

/// The numbers of units of the stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layers {
    /// As many as the others, or by `run.balance`.
    Even,
    /// So many each, from the first stage to the last.
    Each(Vec<u64>),
}

impl Mesh {
    /// Runs of units that each stage has.
    pub fn chunks(&self) -> u64 {
        match &*self.pp_schedule {
            "interleaved" => self.pp_chunks.unwrap_or(2),
            "zbv" | "dualpipev" => 2,
            _ => 1,
        }
    }

    /// Runs of units in all.
    pub fn runs(&self) -> u64 {
        match self.pp {
            0 | 1 => 1,
            stages => stages * self.chunks(),
        }
    }

    /// `mesh.pp_layers`, read; `None` when it is no value of that key.
    pub fn layers(&self) -> Option<Layers> {
        match self.pp_layers.trim() {
            "even" => Some(Layers::Even),
            list => {
                let count = |n: &str| n.trim().parse().ok().filter(|n: &u64| *n > 0);
                let all: Option<Vec<u64>> = list.split(',').map(count).collect();
                all.map(Layers::Each)
            }
        }
    }
}

impl Resolver<'_> {
    /// The key by itself, and with what it contradicts.
    pub(crate) fn pipeline_layers(&mut self, s: &Settings) {
        let (stages, runs) = (s.mesh.pp.max(1), s.mesh.runs());
        self.pipeline_chunks(s);
        match s.mesh.layers() {
            None => {
                let what = format!(
                    "wanted a division of the model's units, got {:?}",
                    s.mesh.pp_layers
                );
                self.error(
                    KEY,
                    what,
                    "write \"even\", or how many units each stage runs, e.g. \"3,4,3\"; embedding and head are a unit each",
                );
            }
            Some(Layers::Even) => {}
            Some(Layers::Each(each)) if runs != stages && each.len() as u64 != runs => {
                let of = s.mesh.chunks();
                let what = format!(
                    "{} numbers for {stages} pipeline stages of {of} runs each",
                    each.len()
                );
                self.error(KEY, what, format!("give {runs}, one for each run of units"));
            }
            Some(Layers::Each(each)) if each.len() as u64 != runs => {
                let what = format!("{} numbers for {stages} pipeline stages", each.len());
                self.error(
                    KEY,
                    what,
                    format!("give {stages}, or set mesh.pp to {}", each.len()),
                );
            }
            Some(Layers::Each(_)) if s.run.balance.trim() != "even" => {
                let what =
                    "the division of the units is given here, and run.balance asks for another";
                self.error(KEY, what, "set one of the two to \"even\"");
            }
            Some(Layers::Each(_)) => {}
        }
    }
    /// The number of runs by itself, and with what the schedule asks.
    fn pipeline_chunks(&mut self, s: &Settings) {
        const CHUNKS: &str = "mesh.pp_chunks";
        let (mesh, schedule) = (&s.mesh, &s.mesh.pp_schedule);
        let fixed = schedule != "interleaved";
        if let Some(given) = mesh.pp_chunks.filter(|n| fixed && *n != mesh.chunks()) {
            let own = mesh.chunks();
            let what = format!(
                "{given} runs a stage, and with mesh.pp_schedule {schedule} each has {own}"
            );
            self.error(
                CHUNKS,
                what,
                "remove it, or set mesh.pp_schedule to \"interleaved\"",
            );
        }
    }

    /// The micro-batches of a step, as the schedule asks for them.
    pub(crate) fn pipeline_micro_batches(&mut self, s: &Settings, micro_batches: u64) {
        const KEY: &str = "gradient_accumulation_steps";
        let stages = s.mesh.pp.max(1);
        match &*s.mesh.pp_schedule {
            _ if stages == 1 => {}
            "interleaved" if !micro_batches.is_multiple_of(stages) => {
                let what = format!(
                    "{micro_batches} micro-batches over {stages} pipeline stages: mesh.pp_schedule interleaved takes a multiple of the stages"
                );
                let next = micro_batches.next_multiple_of(stages);
                self.error(KEY, what, format!("set it to {next}"));
            }
            "dualpipev" if micro_batches < 2 * stages => {
                let what = format!(
                    "{micro_batches} micro-batches over {stages} pipeline stages: mesh.pp_schedule dualpipev takes two for each stage at least"
                );
                let fix = format!(
                    "set it to {} or more, or mesh.pp_schedule to \"zbv\"",
                    2 * stages
                );
                self.error(KEY, what, fix);
            }
            _ => {}
        }
    }
}
