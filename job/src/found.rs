//! Faults of a config that only its files, the model or a back end show: each with its place in the config, all of them together.

use crate::error::{ConfigFault, ConfigFaults, Placeable, Result};
use crossweave_config::{Config, Problem, is_path};

/// The faults that were found, in the order in which they were.
#[derive(Default)]
pub struct Found(Vec<ConfigFault>);

impl Found {
    /// The value, or nothing where it is a fault; one that names no key of its own is that of `key`.
    pub fn take<T, E: Placeable>(
        &mut self,
        config: &Config,
        key: &str,
        result: std::result::Result<T, E>,
    ) -> Option<T> {
        let faults = match result {
            Ok(value) => return Some(value),
            Err(e) => place(config, key, e),
        };
        for fault in faults.0 {
            if !self.0.iter().any(|f| f.problem == fault.problem) {
                self.0.push(fault);
            }
        }
        None
    }

    /// All faults as one error.
    ///
    /// # Errors
    /// There are some.
    pub fn end(self) -> Result<()> {
        match self.0.is_empty() {
            true => Ok(()),
            false => Err(ConfigFaults(self.0).into()),
        }
    }
}

/// The value, or its error with a place in the config: see [`Found::take`].
///
/// # Errors
/// That one.
pub fn at<T, E: Placeable + From<ConfigFaults>>(
    config: &Config,
    key: &str,
    result: std::result::Result<T, E>,
) -> std::result::Result<T, E> {
    result.map_err(|e| place(config, key, e).into())
}

/// An error as faults of the config: its own, else one of the key that its words begin with, else of one that they name, else of `key`.
fn place(config: &Config, key: &str, e: impl Placeable) -> ConfigFaults {
    let code = e.code();
    let problem = match e.placed() {
        Ok(faults) => return faults,
        Err(e) => problem(config, key, e.parts()),
    };
    ConfigFaults(vec![ConfigFault { code, problem }])
}

fn problem(config: &Config, key: &str, (what, fix): (String, Option<String>)) -> Problem {
    let fix = fix.unwrap_or_else(|| format!("see `crossweave config explain {key}`"));
    let (first, rest) = what.split_once(": ").unwrap_or(("", &what));
    let first = first.trim_matches('`');
    if is_path(first) {
        return config.problem(first, rest.to_string(), fix);
    }
    let clean = |c: char| !(c.is_alphanumeric() || "._[]".contains(c));
    let words = what.split([' ', ',', ';', '=']);
    let mut words = words.map(|w| w.trim_matches(clean));
    let named = words.find(|w| is_path(w) && config.place(w).is_some());
    let path = named.or(of_value(config, &what)).unwrap_or(key).to_string();
    config.problem(&path, what, fix)
}

/// The key whose value, a text such as a path, the error quotes.
fn of_value<'a>(config: &'a Config, what: &str) -> Option<&'a str> {
    let given = config
        .rows()
        .iter()
        .filter(|r| config.place(&r.path).is_some());
    let quoted = given.filter(|r| {
        let value: String = serde_json::from_str(&r.value).unwrap_or_default();
        value.len() > 2 && what.contains(&value)
    });
    let longest = quoted.max_by_key(|r| r.value.len());
    longest.map(|r| &*r.path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::JobError;

    #[test]
    fn an_error_stands_where_its_key_does() {
        let text = "{\n \"mesh\": {\"pp\": 9},\n \"zero_optimization\": {\"offload_optimizer\": {\"device\": \"cpu\"}}\n}";
        let config = Config::load("c.json", text, &[]).unwrap();
        let said = |what: &str, fix: &str| {
            let mut found = Found::default();
            let e: Result<()> = Err(JobError::refused(what, fix));
            assert!(found.take(&config, "model", e).is_none());
            found.end().unwrap_err().to_string()
        };
        assert_eq!(
            said("mesh.pp: 9 are too many", "fewer"),
            "c.json:2:17: mesh.pp: 9 are too many; fix: fewer"
        );
        // A key that is not given stands where its section does.
        assert!(
            said("mesh.pp_layers: x", "y").starts_with("c.json:2:10: mesh.pp_layers: x; fix: y")
        );
        assert!(said("`data.train`: x", "y").starts_with("c.json: data.train: x; fix: y"));
        let inner = said(
            "states go, by zero_optimization.offload_optimizer.device, away",
            "stay",
        );
        assert!(inner.starts_with("c.json:3:"), "{inner}");
        assert!(said("a file is gone", "make it").starts_with("c.json: model: a file is gone"));
        let text = "{\"data\": {\"train\": \"a\",\n \"tokenizer\": {\"file\": \"none.json\"}}}";
        let config = Config::load("c.json", text, &[]).unwrap();
        let mut found = Found::default();
        let e: Result<()> = Err(JobError::refused("cannot read none.json", "make it"));
        found.take(&config, "data", e);
        let said = found.end().unwrap_err().to_string();
        assert!(said.starts_with("c.json:2:"), "{said}");
        let mut found = Found::default();
        for what in ["a", "b", "a"] {
            let e: Result<()> = Err(JobError::refused(what, "x"));
            found.take(&config, "run.out", e);
        }
        assert_eq!(found.end().unwrap_err().to_string().lines().count(), 2);
    }
}
