//! What a command line asks for, as the plain values that preparing and running a job take.

use crate::args::{BackendArgs, ExploreArgs, TrainArgs};
use crate::backend::BackendChoice;
use crate::ranks::Ranks;
use crate::screen::Screen;
use crate::surroundings::Surroundings;
use crate::train::explore::Exploration;
use crate::train::{Lines, Request};
use std::path::Path;
use std::sync::Arc;

impl From<&BackendArgs> for BackendChoice {
    fn from(args: &BackendArgs) -> BackendChoice {
        BackendChoice {
            name: args.backend.clone(),
            plugin: args.plugin.clone(),
            layers: args.layers.clone(),
        }
    }
}

/// Returns a request for the config in a file, before flags are laid over it.
pub fn of(config: &Path, around: &Surroundings) -> Request {
    Request::new(config.into(), around.clone(), Arc::new(Screen::default()))
}

impl TrainArgs {
    /// The run that is asked for.
    pub fn request(self, around: Surroundings) -> Request {
        let args = self;
        Request {
            backend: BackendChoice::from(&args.backend),
            sets: args.sets,
            ranks: args.ranks,
            steps: args.steps,
            out: args.out,
            resume: args.resume,
            take_over: args.take_over,
            trace: args.trace,
            lines: match (args.quiet, args.verbose) {
                (true, _) => Lines::Quiet,
                (_, true) => Lines::Each,
                _ => Lines::Configured,
            },
            ..of(&args.config, &around)
        }
    }
}

impl ExploreArgs {
    /// What is to be explored.
    pub fn exploration(&self, around: Surroundings) -> Exploration {
        let args = self;
        Exploration {
            request: Request {
                sets: args.sets.clone(),
                ranks: args.ranks.map(Ranks::Count),
                backend: BackendChoice::from(&args.backend),
                steps: Some(args.steps),
                ..of(&args.config, &around)
            },
            seeds: match args.seed {
                Some(seed) => seed..seed.saturating_add(1),
                None => 0..args.seeds,
            },
            order: args.schedule,
        }
    }
}
