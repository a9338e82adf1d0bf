//! What the host's configuration says, read once.

use crossweave_plugin::Host;
use std::collections::BTreeMap;

/// What a back end says of its vendor.
#[derive(Debug, PartialEq, Eq)]
pub struct About {
    /// The back end's name, with which its own keys begin.
    pub name: &'static str,
    /// Keys of the configuration: its own, and those of any plugin.
    pub keys: &'static [&'static str],
    /// Where the vendor's installers put libraries that the system's loader may not know.
    pub places: &'static [&'static str],
}

/// Values of a back end's keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    about: &'static About,
    values: BTreeMap<&'static str, String>,
}

impl Settings {
    /// None is set.
    pub fn new(about: &'static About) -> Settings {
        Settings {
            about,
            values: BTreeMap::new(),
        }
    }

    /// Asks the host.
    pub fn of(about: &'static About, host: &Host) -> Settings {
        let values = about.keys.iter();
        let values = values.filter_map(|k| host.config(k).map(|v| (*k, v)));
        Settings {
            about,
            values: values.filter(|(_, v)| !v.is_empty()).collect(),
        }
    }

    /// The same with another value; a key that is not the back end's changes nothing.
    pub fn with(mut self, key: &str, value: impl Into<String>) -> Settings {
        if let Some(k) = self.about.keys.iter().find(|k| **k == key) {
            self.values.insert(k, value.into());
        }
        self
    }

    /// The value of a key by its whole name.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    /// The value of a key of the back end's own, by its name without the back end's.
    pub fn own(&self, key: &str) -> Option<&str> {
        let named = |k: &str| {
            k.split_once('.')
                .is_some_and(|(of, k)| of == self.about.name && k == key)
        };
        let mut all = self.values.iter();
        all.find(|(k, _)| named(k)).map(|(_, v)| v.as_str())
    }

    /// Whose they are.
    pub fn vendor(&self) -> &'static About {
        self.about
    }
}
