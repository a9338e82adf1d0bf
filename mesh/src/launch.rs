//! Reads from the variables that launchers set which rank of how many this process is (torchrun's environment
//! variables, MPI's, Slurm's). A function of the variables alone.
//!
//! | Launcher | Variables |
//! |---|---|
//! | `mpirun` of Open MPI | `OMPI_COMM_WORLD_RANK`, `_SIZE`, `_LOCAL_RANK`, `_LOCAL_SIZE` |
//! | `mpirun` of MPICH and its relatives | `PMI_RANK`, `PMI_SIZE`, `MPI_LOCALRANKID`, `MPI_LOCALNRANKS` |
//! | `torchrun` and scripts like it | `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT` |
//! | Slurm's `srun` | `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS`, `SLURM_LOCALID`, `SLURM_NTASKS_PER_NODE` |
//!
//! `srun` sets those of the last line for every step, whether or not it connects the processes: where it does, PMIx's
//! or PMI's are there too and come first ([`Launch::unconnected`]).
//!
//! The first launcher of the table whose variables are set is used: what `mpirun` sets cannot be a leftover, while a job
//! script under Slurm or a shell may carry the other variables along.

use std::fmt;

/// What started the processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// Open MPI's mpirun, or srun with PMIx.
    OpenMpi,
    /// MPICH's mpirun, Intel MPI, MVAPICH, srun with PMI.
    Mpich,
    /// torchrun, or anything that sets its variables: rank 0 connects them, and MPICH is the library that lets it.
    Torchrun,
    /// srun that offers no process manager interface.
    Slurm,
}

impl Launcher {
    /// As the user knows it.
    pub fn name(self) -> &'static str {
        match self {
            Launcher::OpenMpi => "mpirun (Open MPI)",
            Launcher::Mpich => "mpirun (MPICH)",
            Launcher::Torchrun => "torchrun",
            Launcher::Slurm => "srun",
        }
    }
    /// The MPI library whose processes it can connect, where that is known.
    pub fn family(self) -> Option<&'static str> {
        match self {
            Launcher::OpenMpi => Some("openmpi"),
            Launcher::Mpich | Launcher::Torchrun => Some("mpich"),
            Launcher::Slurm => None,
        }
    }
}

/// A process's place among the processes of its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Who says so.
    pub launcher: Launcher,
    /// This process.
    pub rank: u32,
    /// Processes of the job.
    pub world: u32,
    /// This process among those of its machine.
    pub local_rank: u32,
    /// Processes on its machine.
    pub local_size: u32,
    /// Where rank 0 listens, if the launcher says.
    pub master: Option<(String, u16)>,
}

/// Variables by which a user names the library that speaks Slurm's own protocol, which sets none of PMI's in the environment.
const OWN_PMI: [&str; 2] = ["CROSSWEAVE_MPI_LIBRARY", "I_MPI_PMI_LIBRARY"];

impl Launch {
    /// Several processes that no launcher has connected: what is wrong, and what to do about it. `var` reads the environment.
    pub fn unconnected(&self, var: impl Fn(&str) -> Option<String>) -> Option<(String, String)> {
        let set = |n: &&str| var(n).is_some_and(|t| !t.is_empty());
        if self.launcher != Launcher::Slurm || self.world < 2 || OWN_PMI.iter().any(set) {
            return None;
        }
        Some((
            format!(
                "srun has started {} processes (SLURM_STEP_NUM_TASKS) and nothing connects them: neither PMIx nor PMI is offered, and each \
                 would train by itself",
                self.world
            ),
            "start them with `srun --mpi=pmix` for Open MPI or `srun --mpi=pmi2` for MPICH (`srun --mpi=list` shows what this Slurm has); \
             without either, set MASTER_ADDR, MASTER_PORT, RANK=$SLURM_PROCID and WORLD_SIZE=$SLURM_STEP_NUM_TASKS inside srun, as \
             examples/launch/slurm-no-pmi.sbatch does; for a run of one process in this shell, unset SLURM_PROCID"
                .into(),
        ))
    }
}

/// Variables that contradict themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchError {
    /// The variable.
    pub variable: String,
    /// What is wrong with it.
    pub why: String,
}

impl fmt::Display for LaunchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.variable, self.why)
    }
}
impl std::error::Error for LaunchError {}

impl LaunchError {
    /// What to do about it.
    pub fn fix(&self) -> &'static str {
        match TORCHRUN.contains(&self.variable.as_str()) {
            true => {
                "give every process RANK (0 to WORLD_SIZE - 1, each once), WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun does; or unset \
                 them all for a job of one process"
            }
            false => "start the job with mpirun, srun or torchrun",
        }
    }
}

/// What torchrun, or a shell that does its part, passes to a process.
const TORCHRUN: [&str; 6] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
];

/// The names of one launcher's variables: rank, size (the first that is set), local rank, local size.
struct Names {
    launcher: Launcher,
    rank: &'static str,
    size: &'static [&'static str],
    local_rank: &'static str,
    local_size: &'static [&'static str],
}

const TABLE: [Names; 5] = [
    Names {
        launcher: Launcher::OpenMpi,
        rank: "OMPI_COMM_WORLD_RANK",
        size: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_size: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
    },
    Names {
        launcher: Launcher::Mpich,
        rank: "PMI_RANK",
        size: &["PMI_SIZE"],
        local_rank: "MPI_LOCALRANKID",
        local_size: &["MPI_LOCALNRANKS"],
    },
    Names {
        launcher: Launcher::Torchrun,
        rank: "RANK",
        size: &["WORLD_SIZE"],
        local_rank: "LOCAL_RANK",
        local_size: &["LOCAL_WORLD_SIZE"],
    },
    // srun --mpi=pmix: the size is Slurm's to tell.
    Names {
        launcher: Launcher::OpenMpi,
        rank: "PMIX_RANK",
        size: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local_rank: "SLURM_LOCALID",
        local_size: &["SLURM_NTASKS_PER_NODE"],
    },
    // SLURM_NTASKS alone is also set in a job script, outside any srun.
    Names {
        launcher: Launcher::Slurm,
        rank: "SLURM_PROCID",
        size: &["SLURM_STEP_NUM_TASKS"],
        local_rank: "SLURM_LOCALID",
        local_size: &["SLURM_NTASKS_PER_NODE"],
    },
];

/// Reads the launcher's variables through `var`; `None` when no launcher has set any.
///
/// # Errors
/// A variable that is no number, a rank outside its world, `torchrun`'s variables without an address to meet at, or with only one of rank
/// and size.
pub fn detect(var: impl Fn(&str) -> Option<String>) -> Result<Option<Launch>, LaunchError> {
    let number = |name: &str| -> Result<Option<u32>, LaunchError> {
        let Some(text) = var(name).filter(|t| !t.is_empty()) else {
            return Ok(None);
        };
        text.trim().parse().map(Some).map_err(|_| LaunchError {
            variable: name.into(),
            why: format!("{text:?} is not a whole number"),
        })
    };
    let first = |names: &'static [&'static str]| -> Result<Option<(&str, u32)>, LaunchError> {
        for name in names {
            if let Some(n) = number(name)? {
                return Ok(Some((name, n)));
            }
        }
        Ok(None)
    };
    for names in &TABLE {
        // A rank without a size, or the reverse, is somebody else's variable.
        let set = |n: &str| var(n).is_some_and(|t| !t.is_empty());
        if !set(names.rank) || !names.size.iter().any(|n| set(n)) {
            continue;
        }
        let (Some(rank), Some((size_name, world))) = (number(names.rank)?, first(names.size)?)
        else {
            continue;
        };
        if rank >= world {
            return Err(LaunchError {
                variable: names.rank.into(),
                why: format!("rank {rank} of {world} ({size_name}): ranks count from 0"),
            });
        }
        let local_rank = number(names.local_rank)?;
        // Slurm writes lists there (`4(x2),3`); then every process counts as alone on its machine.
        let local_size = first(names.local_size).ok().flatten().map(|(_, n)| n);
        let master = match names.launcher {
            Launcher::Torchrun => Some(master(&var)?),
            _ => None,
        };
        let local_size = local_size.unwrap_or(match names.launcher {
            Launcher::Slurm => 1,
            _ => world,
        });
        return Ok(Some(Launch {
            launcher: names.launcher,
            rank,
            world,
            local_rank: local_rank.unwrap_or(rank % local_size.max(1)),
            local_size: local_size.max(1),
            master,
        }));
    }
    half(&var).map_or(Ok(None), Err)
}

/// A start by hand that forgot one of `RANK` and `WORLD_SIZE`: every process would train by itself, and all write the same files. A lone
/// variable of such a name is somebody else's.
fn half(var: &impl Fn(&str) -> Option<String>) -> Option<LaunchError> {
    let there: Vec<&str> = TORCHRUN
        .into_iter()
        .filter(|n| var(n).is_some_and(|t| !t.is_empty()))
        .collect();
    let missing = match (there.contains(&"RANK"), there.contains(&"WORLD_SIZE")) {
        (true, false) => "WORLD_SIZE",
        (false, true) if var("WORLD_SIZE").is_some_and(|n| n.trim() != "1") => "RANK",
        _ => return None,
    };
    (there.len() > 1).then(|| LaunchError {
        variable: missing.into(),
        why: format!("not set, though {} are", there.join(", ")),
    })
}

fn master(var: &impl Fn(&str) -> Option<String>) -> Result<(String, u16), LaunchError> {
    let need = |name: &str| {
        var(name).filter(|t| !t.is_empty()).ok_or_else(|| LaunchError {
            variable: name.into(),
            why: "not set, though RANK and WORLD_SIZE are; torchrun sets it, and other launchers must".into(),
        })
    };
    let (host, port) = (need("MASTER_ADDR")?, need("MASTER_PORT")?);
    match port.trim().parse() {
        // All have to know it beforehand, so that it cannot be left to the system.
        Ok(port) if port > 0 => Ok((host, port)),
        _ => Err(LaunchError {
            variable: "MASTER_PORT".into(),
            why: format!("{port:?} is not a port (1 to 65535)"),
        }),
    }
}
