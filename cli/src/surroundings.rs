//! What lies around a job and is in no config: folders of plugins, caches and models, the launcher's variables, the command line. The
//! environment is read in this file alone; a program that trains without a command line fills in the fields itself.

use crate::error::{CliError, Result};
use crossweave_hal::loader::search_dirs;
pub use crossweave_job::Caches;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
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
    /// Those of this process.
    ///
    /// # Errors
    /// Options of plugins that are not UTF-8.
    pub fn of_process() -> Result<Surroundings> {
        let program = std::env::current_exe().ok();
        let options = match std::env::var(OPTIONS) {
            Ok(text) => text,
            Err(std::env::VarError::NotPresent) => String::new(),
            Err(e) => {
                return Err(CliError::refused(
                    format!("{OPTIONS}: {e}"),
                    "write it in UTF-8, as key=value;key=value",
                ));
            }
        };
        let in_words = |(name, value): (OsString, OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Ok(Surroundings {
            command: std::env::args_os()
                .map(|a| a.to_string_lossy().into_owned())
                .collect(),
            scratch: std::env::temp_dir(),
            launcher: std::env::vars_os().filter_map(in_words).collect(),
            plugins: Plugins {
                folders: search_dirs(
                    std::env::var_os("CROSSWEAVE_PLUGIN_PATH").as_deref(),
                    program.as_deref(),
                ),
                options,
                cache: plugin_cache(),
                mpi: std::env::var_os("CROSSWEAVE_MPI_LIBRARY"),
                log: Log::to(|target, message| eprintln!("{target}: {message}")),
            },
            caches: Caches {
                tokens: token_cache(),
                models: hub_cache(),
                cargo: set("CARGO_HOME").or_else(|| Some(home()?.join(".cargo"))),
            },
            program,
        })
    }

    /// A variable of the launcher.
    pub fn variable(&self, name: &str) -> Option<String> {
        self.launcher.get(name).cloned()
    }
}

/// A path that a variable names.
fn set(name: &str) -> Option<PathBuf> {
    let value = std::env::var_os(name).filter(|v| !v.is_empty())?;
    Some(PathBuf::from(value))
}

/// The user's home folder.
fn home() -> Option<PathBuf> {
    std::env::var_os("HOME")
        .or_else(|| std::env::var_os("USERPROFILE"))
        .filter(|h| !h.is_empty())
        .map(PathBuf::from)
}

/// `CROSSWEAVE_CACHE`, else the user's folder for such things.
fn plugin_cache() -> Option<PathBuf> {
    set("CROSSWEAVE_CACHE").or_else(|| {
        set("XDG_CACHE_HOME")
            .or_else(|| Some(set("HOME")?.join(".cache")))
            .filter(|d| d.is_absolute())
            .map(|d| d.join("crossweave"))
    })
}

/// `CROSSWEAVE_CACHE`, else the user's cache folder.
fn token_cache() -> Option<PathBuf> {
    set("CROSSWEAVE_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|d| d.join("crossweave")))
        .or_else(|| home().map(|h| h.join(".cache/crossweave")))
}

/// The hub cache, by the variables that huggingface_hub reads.
fn hub_cache() -> Option<PathBuf> {
    let var = |name: &str| {
        let value = set(name)?;
        // These variables are often written with a tilde, which their own library expands too.
        match Path::new(&value).strip_prefix("~") {
            Ok(rest) => Some(home()?.join(rest)),
            Err(_) => Some(value),
        }
    };
    let own = || var("HF_HUB_CACHE").or_else(|| var("HUGGINGFACE_HUB_CACHE"));
    let of_home = || var("HF_HOME").map(|d| d.join("hub"));
    let of_user = || {
        let caches = var("XDG_CACHE_HOME").or_else(|| Some(home()?.join(".cache")))?;
        Some(caches.join("huggingface").join("hub"))
    };
    own().or_else(of_home).or_else(of_user)
}
