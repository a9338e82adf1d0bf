//! Running the built `crossweave` binary in a folder of its own, and reading what it leaves.
#![allow(dead_code)]

#[path = "../../../train/tests/support/corpus.rs"]
mod corpus;
#[path = "../../../train/tests/support/folder.rs"]
mod folder;
pub mod mpi;

pub use corpus::{CONFIG, Scratch};
use crossweave_tests::system::within;
pub use folder::{copy_dir, figures, losses, model_bytes, records, same};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

/// A command that has not ended by then never will, on any machine.
const HUNG: Duration = Duration::from_secs(900);

impl Scratch {
    /// A folder that imitated hosts share: each of them has a `/dev/shm` of its own.
    pub fn of_hosts() -> Scratch {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"));
        Scratch::within(dir.expect("a folder"))
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut c = Command::new(env!("CARGO_BIN_EXE_crossweave"));
        c.current_dir(self.dir.path())
            .args(args)
            .env_remove("CROSSWEAVE_PLUGIN_PATH")
            .env("CROSSWEAVE_CACHE", self.path("cache"));
        c
    }

    pub fn run(&self, args: &[&str]) -> Output {
        within(HUNG, &mut self.command(args))
    }

    /// Runs a command that must succeed; returns its standard output.
    pub fn ok(&self, args: &[&str]) -> String {
        let out = self.run(args);
        let err = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{args:?}: {}\n{err}", out.status);
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// Runs a command that must fail with exit code 1 and one clear error that holds all of `parts`, leaving `absent` absent.
    pub fn refused(&self, args: &[&str], parts: &[&str], absent: &[&str]) -> String {
        let out = self.run(args);
        let err = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(1), "{args:?}: {err}");
        assert_eq!(err.matches("error: ").count(), 1, "{args:?}: {err}");
        assert!(!err.contains("panicked"), "{err}");
        for p in parts {
            assert!(err.contains(p), "{args:?}: {p:?} not in: {err}");
        }
        for name in absent {
            assert!(
                !self.path(name).exists(),
                "{args:?}: {name} was left: {err}"
            );
        }
        err
    }
}

/// The CPU back end as a plugin file.
pub fn cpu_plugin() -> PathBuf {
    crossweave_tests::built::plugin("crossweave_cpu")
}
