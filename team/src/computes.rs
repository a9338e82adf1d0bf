//! What computes the ranks of a job: back ends and their devices, for its ledger and record.

use crossweave_hal::{DeviceInfo, Plugin};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// A back end and the ranks it computes, as `ledger.json` has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Computes {
    /// As `--ranks` names it.
    pub named: String,
    name: String,
    version: String,
    path: Option<PathBuf>,
    /// Its ranks.
    pub ranks: Vec<u32>,
    /// Its devices: one of each kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub machines: Vec<Machine>,
}

impl Computes {
    /// A back end of this process, as `--ranks` names it, with its ranks.
    pub fn of((named, plugin, ranks): (&str, &Plugin, Vec<u32>)) -> Computes {
        Computes {
            named: named.into(),
            name: plugin.name().into(),
            version: plugin.version().to_string(),
            path: plugin.path().map(Path::to_path_buf),
            ranks,
            machines: vec![],
        }
    }

    /// The back end's own version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Is it the CPU's, linked or loaded?
    pub fn is_cpu(&self) -> bool {
        self.name == "cpu"
    }

    /// Puts it to the others: the same back end in several processes is one.
    pub fn join(self, all: &mut Vec<Computes>) {
        let same = |c: &&mut Computes| {
            (&c.named, &c.name, &c.version, &c.path)
                == (&self.named, &self.name, &self.version, &self.path)
        };
        match all.iter_mut().find(same) {
            Some(c) => {
                c.ranks.extend(&self.ranks);
                for m in self.machines {
                    c.knows(m);
                }
            }
            None => all.push(self),
        }
    }

    /// One of its devices; alike ones count once.
    pub fn knows(&mut self, machine: Machine) {
        if !self.machines.contains(&machine) {
            self.machines.push(machine);
        }
    }
}

/// A device as a run's record names it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// As its driver names it.
    pub name: String,
    /// Its architecture.
    pub arch: String,
}

impl Machine {
    /// The machine as a device describes itself.
    pub fn of(info: &DeviceInfo) -> Machine {
        Machine {
            name: info.name.clone(),
            arch: info.arch.clone(),
        }
    }
}
