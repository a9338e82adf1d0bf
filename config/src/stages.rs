//! `mesh.pp_layers`: how the units of the model are divided over pipeline stages.

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
        let stages = s.mesh.pp.max(1);
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
            Some(Layers::Each(each)) if each.len() as u64 != stages => {
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
}
