//! `expect.toml`: what a plugin's author knows does not hold. Two lists, each entry with a reason; a case that passes against its entry
//! fails the run, so that lists do not outlive their bugs.

use crate::case::matches;
use serde::Deserialize;
use std::path::Path;

/// The file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// Never will be.
    #[serde(default)]
    pub unsupported: Vec<Unsupported>,
    /// A bug that is known.
    #[serde(default)]
    pub expected_failure: Vec<ExpectedFailure>,
}

/// A cell the plugin will not serve.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unsupported {
    /// An id or a pattern with `*`.
    pub case: String,
    /// Why not.
    pub reason: String,
}

/// A known bug.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectedFailure {
    /// An id or a pattern with `*`.
    pub case: String,
    /// What is known of it.
    pub reason: String,
    /// Where it is followed.
    pub issue: String,
}

impl Expect {
    /// Reads a file.
    ///
    /// # Errors
    /// A file that is not there, is not TOML, has other keys, or gives no reasons.
    pub fn read(path: &Path) -> Result<Expect, String> {
        let text = crossweave_files::read_text(path, crossweave_files::TEXT).map_err(|e| {
            format!(
                "{}: {e}; fix: {}",
                path.display(),
                crossweave_files::fix(&e)
            )
        })?;
        Expect::parse(&text).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// Reads text.
    ///
    /// # Errors
    /// As [`Expect::read`].
    pub fn parse(text: &str) -> Result<Expect, String> {
        let e: Expect = toml::from_str(text).map_err(|e| e.to_string().trim().to_string())?;
        let entries = e.entries();
        for (case, words) in &entries {
            if case.trim().is_empty() {
                return Err("an entry's `case` is empty: give an id or a pattern".into());
            }
            if words.iter().any(|w| w.trim().is_empty()) {
                return Err(format!(
                    "the entry for {case:?} gives no reason or no issue"
                ));
            }
        }
        Ok(e)
    }

    fn entries(&self) -> Vec<(&str, Vec<&str>)> {
        let u = self
            .unsupported
            .iter()
            .map(|u| (u.case.as_str(), vec![u.reason.as_str()]));
        let f = &self.expected_failure;
        let f = f
            .iter()
            .map(|f| (f.case.as_str(), vec![f.reason.as_str(), f.issue.as_str()]));
        u.chain(f).collect()
    }

    /// Patterns that meet none of these ids: the case was renamed, or the word is misspelt.
    pub fn idle<'a>(&'a self, ids: &[&str]) -> Vec<&'a str> {
        let none = |p: &&str| !ids.iter().any(|id| matches(p, id));
        self.entries()
            .into_iter()
            .map(|e| e.0)
            .filter(none)
            .collect()
    }

    /// Why the case is not served, if it is listed so.
    pub fn unsupported(&self, id: &str) -> Option<&str> {
        let hit = self.unsupported.iter().find(|u| matches(&u.case, id));
        hit.map(|u| u.reason.as_str())
    }

    /// Reason and issue of a known failure.
    pub fn failure(&self, id: &str) -> Option<(&str, &str)> {
        let hit = self.expected_failure.iter().find(|f| matches(&f.case, id));
        hit.map(|f| (f.reason.as_str(), f.issue.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_need_reasons_and_known_keys() {
        let good = Expect::parse(
            "[[unsupported]]\ncase = \"coll.*\"\nreason = \"one device\"\n\n[[expected_failure]]\ncase = \"op.x\"\nreason = \"r\"\nissue = \"#7\"\n",
        )
        .unwrap();
        assert_eq!(good.unsupported("coll.a"), Some("one device"));
        assert_eq!(good.failure("op.x"), Some(("r", "#7")));
        assert_eq!(good.idle(&["op.x"]), ["coll.*"]);
        for bad in [
            "[[unsupported]]\ncase = \"a\"\n",
            "[[unsupported]]\ncase = \"a\"\nreason = \" \"\n",
            "[[expected_failure]]\ncase = \"a\"\nreason = \"r\"\n",
            "[[unsuported]]\ncase = \"a\"\nreason = \"r\"\n",
            "= 1",
        ] {
            assert!(Expect::parse(bad).is_err(), "{bad}");
        }
    }
}
