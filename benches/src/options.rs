//! `--key value` options of a bench: each asked for by name, leftovers are errors.

use std::collections::BTreeMap;

/// Options given on the command line.
pub struct Options {
    given: BTreeMap<String, String>,
}

impl Options {
    /// Reads `--key value` pairs; a key without a value (the next word begins with `--`, or there is none) is `"on"`.
    pub fn from_args() -> Result<Options, String> {
        let mut given = BTreeMap::new();
        let mut args = std::env::args().skip(1).peekable();
        while let Some(a) = args.next() {
            let Some(key) = a.strip_prefix("--") else {
                return Err(format!(
                    "unexpected argument {a:?}; options are --key value"
                ));
            };
            // `cargo bench` adds this to every program it runs.
            if key == "bench" {
                continue;
            }
            let value = args.next_if(|v| !v.starts_with("--"));
            given.insert(key.to_string(), value.unwrap_or_else(|| "on".into()));
        }
        Ok(Options { given })
    }
    /// Takes an option as text.
    pub fn text(&mut self, key: &str) -> Option<String> {
        self.given.remove(key)
    }
    /// Takes an option as a number, or `default`.
    pub fn number(&mut self, key: &str, default: u64) -> Result<u64, String> {
        self.text(key).map_or(Ok(default), |v| {
            v.parse()
                .map_err(|_| format!("--{key} {v:?}: must be a whole number"))
        })
    }
    /// Takes a comma-separated list, or `default`.
    pub fn list(&mut self, key: &str, default: &str) -> Vec<String> {
        let text = self.text(key).unwrap_or_else(|| default.into());
        text.split(',').map(str::to_string).collect()
    }
    /// Nothing may be left.
    pub fn done(self) -> Result<(), String> {
        match self.given.keys().next() {
            None => Ok(()),
            Some(k) => Err(format!("unknown option --{k}")),
        }
    }
}
