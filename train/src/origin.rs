//! What is known of a run before it begins: what its user has set, and by which processes and command it was started.

use crate::processes::Processes;
use crossweave_config::Config;
use crossweave_report::moment;
use serde_json::{Value, json};

/// What is known of a run before it begins.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// Keys that the user set: path, value, where.
    pub set: Vec<Value>,
    /// The command line.
    pub command: Vec<String>,
    /// Names of the machines of its processes.
    pub hosts: Vec<String>,
    /// Processes of the job.
    pub processes: u32,
    /// What has started them.
    pub launcher: Option<&'static str>,
    /// Seconds since 1970.
    pub began: u64,
}

impl Origin {
    /// The origin of a run: a config as the user gave it, the processes of the job, and the command line.
    pub fn of(config: &Config, processes: Option<&Processes>, command: &[String]) -> Origin {
        let given = |from: &str| from != "default" && !from.starts_with("preset ");
        // A list whose items have rows of their own says nothing more.
        let listed = |path: &str| {
            let item = format!("{path}[");
            config.rows().iter().any(|r| r.path.starts_with(&item))
        };
        let set = config
            .rows()
            .iter()
            .filter(|r| given(&r.origin) && r.value != "—" && !listed(&r.path))
            .map(|r| json!({"key": r.path, "value": r.value, "from": r.origin}));
        let host = || {
            let name = "/proc/sys/kernel/hostname".as_ref();
            let text = crossweave_files::read_text(name, crossweave_files::TEXT);
            let text = text.unwrap_or_default().trim().to_string();
            vec![text].into_iter().filter(|t| !t.is_empty()).collect()
        };
        Origin {
            set: set.collect(),
            command: command.to_vec(),
            hosts: processes.map_or_else(host, Processes::hosts),
            processes: processes.map_or(1, |p| p.launch.world),
            launcher: processes.map(|p| p.launch.launcher.name()),
            began: moment::unix(),
        }
    }
}
