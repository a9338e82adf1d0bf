//! What the host's configuration says, read once.

use crossweave_plugin::Host;
use std::collections::BTreeMap;

/// Keys of the configuration. `cache_dir` is any plugin's; the others are this one's.
pub const KEYS: [&str; 13] = [
    "cuda.library_path",
    "cuda.libcuda",
    "cuda.libnvrtc",
    "cuda.libcublaslt",
    "cuda.libnccl",
    "cuda.libcudnn",
    "cuda.cublaslt",
    "cuda.cudnn",
    "cuda.cudnn_workspace",
    "cuda.wgmma",
    "cuda.exportable",
    "cuda.cache_dir",
    "cache_dir",
];

/// Values of [`KEYS`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings(BTreeMap<&'static str, String>);

impl Settings {
    /// Asks the host.
    pub fn of(host: &Host) -> Settings {
        Settings(
            KEYS.into_iter()
                .filter_map(|k| host.config(k).map(|v| (k, v)))
                .filter(|(_, v)| !v.is_empty())
                .collect(),
        )
    }

    /// The same with another value; a key that is not of [`KEYS`] changes nothing.
    pub fn with(mut self, key: &str, value: impl Into<String>) -> Settings {
        if let Some(k) = KEYS.into_iter().find(|k| *k == key) {
            self.0.insert(k, value.into());
        }
        self
    }

    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }
}
