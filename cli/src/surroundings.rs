//! What lies around the job of this process. The environment is read in this file alone.

use crate::error::{CliError, Result};
use crossweave::outputs::Outputs;
pub use crossweave::surroundings::{Caches, Log, OPTIONS, Plugins, Surroundings};
use crossweave_hal::loader::search_dirs;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

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
            outputs: Outputs::default(),
        },
        caches: Caches {
            tokens: token_cache(),
            models: hub_cache(),
            cargo: set("CARGO_HOME").or_else(|| Some(home()?.join(".cargo"))),
        },
        program,
    })
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
