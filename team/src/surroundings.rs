//! What lies around a job and is in no config: folders of plugins, caches and models, the launcher's variables, the command line. A program
//! fills the fields in; nothing here reads the environment.

use crate::outputs::Outputs;
pub use crossweave_job::Caches;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

/// The variable by which users set options of plugins.
pub const OPTIONS: &str = "CROSSWEAVE_PLUGIN_OPTIONS";

/// The surroundings of a job. By default nothing is known: only back ends that are linked are found, nothing is cached outside of the
/// run's folder, no launcher has started the process, and the run's record names no command.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// The command line, for the record of a run.
    pub command: Vec<String>,
    /// The file of this program, which is started again to ask a plugin what it has.
    pub program: Option<PathBuf>,
    /// A folder for files that are gone at the end.
    pub scratch: PathBuf,
    /// The variables by which a launcher names the place of a process.
    pub launcher: BTreeMap<String, String>,
    /// Where plugins are and what is set for them.
    pub plugins: Plugins,
    /// Where models and tokens are kept from run to run.
    pub caches: Caches,
}

/// Where plugins are and what is set for them.
#[derive(Clone, Debug, Default)]
pub struct Plugins {
    /// The folders that are searched for plugins, in this order.
    pub folders: Vec<PathBuf>,
    /// `key=value;key=value`; the keys are in each plugin's README.
    pub options: String,
    /// The folder in which plugins keep what they may make again, such as compiled kernels.
    pub cache: Option<PathBuf>,
    /// The library of MPI, in place of the one that is found.
    pub mpi: Option<OsString>,
    /// What becomes of their errors and warnings.
    pub log: Log,
    /// The files that layers around them write.
    pub outputs: Outputs,
}

/// What becomes of the errors and warnings that plugins log. By default nothing.
#[derive(Clone, Default)]
pub struct Log(Option<Sink>);

type Sink = Arc<dyn Fn(&str, &str) + Send + Sync>;

impl Log {
    /// `sink` gets the name of what speaks, and the message.
    pub fn to(sink: impl Fn(&str, &str) + Send + Sync + 'static) -> Log {
        Log(Some(Arc::new(sink)))
    }

    /// The function that host services take. What is less than a warning is for a debugger of plugins.
    pub fn sink(&self) -> impl Fn(u32, &str, &str) + Send + Sync + 'static {
        let sink = self.0.clone();
        move |level, target, message| {
            if let Some(sink) = sink.as_ref().filter(|_| level <= 2) {
                sink(target, message);
            }
        }
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Log").field(&self.0.is_some()).finish()
    }
}

impl Surroundings {
    /// A variable of the launcher.
    pub fn variable(&self, name: &str) -> Option<String> {
        self.launcher.get(name).cloned()
    }
}
