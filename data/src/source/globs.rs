//! Globs to a sorted list of files; a glob that selects nothing is an error, not an empty corpus.

use super::sniff::sniff;
use super::{Form, SourceFile, saved};
use crate::error::{DataError, Result};
use crate::spec::FilesSource;
use crossweave_files::clip;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Bytes of a glob; no path has more.
const LONGEST: usize = 4096;

/// Files of `source`, each once, sorted by path.
pub(super) fn list(source: &FilesSource, key: &str) -> Result<Vec<SourceFile>> {
    if source.globs.is_empty() {
        return Err(DataError::setting(
            key,
            "no glob is given",
            "name at least one file or glob",
        ));
    }
    let mut all = source.globs.iter().chain(&source.exclude);
    if let Some(long) = all.find(|g| g.len() > LONGEST) {
        return Err(DataError::setting(
            key,
            format!(
                "the glob `{}` is longer than the {LONGEST} bytes of the longest path",
                clip(long, 60)
            ),
            "shorten it, or write several",
        ));
    }
    let exclude = source
        .exclude
        .iter()
        .map(|g| exclusion(g, key))
        .collect::<Result<Vec<_>>>()?;
    let mut found: BTreeSet<PathBuf> = BTreeSet::new();
    for pattern in &source.globs {
        let full = source.base.join(pattern);
        let Some(full) = full.to_str() else {
            return Err(DataError::setting(
                key,
                format!("the path of glob `{pattern}` is not UTF-8"),
                "rename it",
            ));
        };
        let paths = glob::glob(&escape_base(&source.base, pattern, full))
            .map_err(|e| bad_glob(key, pattern, &e))?;
        let (mut any, mut folder, mut excluded) = (false, false, false);
        for path in paths {
            let path = path.map_err(|e| {
                let path = e.path().to_path_buf();
                DataError::io("list", &path)(e.into())
            })?;
            let files = match path.is_dir() {
                true => saved::tables(&path, key)?,
                false => Some(vec![path]),
            };
            folder |= files.is_none();
            for path in files.into_iter().flatten() {
                if exclude.iter().any(|x| is_excluded(x, &path, &source.base)) {
                    excluded = true;
                } else {
                    any = true;
                    found.insert(path);
                }
            }
        }
        if !any {
            let fix = match (folder, excluded) {
                (true, _) => format!(
                    "it names a folder; write `{}/**/*.txt`",
                    pattern.trim_end_matches('/')
                ),
                (_, true) => "every file it matches is excluded; narrow the excluded globs".into(),
                _ => format!("correct the path in `{key}`, or create the file"),
            };
            return Err(DataError::NoMatch {
                key: key.into(),
                glob: pattern.clone(),
                // An empty base is the working directory, which an empty text would not say.
                base: match source.base.as_os_str().is_empty() {
                    true => PathBuf::from("."),
                    false => source.base.clone(),
                },
                fix,
            });
        }
    }
    found
        .into_iter()
        .map(|path| {
            let (packing, form) = sniff(&path, form_of(&path), &source.text_key)?;
            Ok(SourceFile {
                path,
                form,
                packing,
            })
        })
        .collect()
}

/// Joins the base and the glob with the base's own special characters escaped: only what the user wrote is a pattern.
fn escape_base(base: &Path, pattern: &str, full: &str) -> String {
    match base.to_str() {
        Some(base) if !base.is_empty() && !Path::new(pattern).is_absolute() => {
            format!("{}/{pattern}", glob::Pattern::escape(base))
        }
        _ => full.to_string(),
    }
}

fn exclusion(pattern: &str, key: &str) -> Result<glob::Pattern> {
    glob::Pattern::new(pattern.strip_prefix("./").unwrap_or(pattern))
        .map_err(|e| bad_glob(key, pattern, &e))
}

/// A pattern excludes a file by its path below the base, by its whole path, or, when it has no slash, by its name.
fn is_excluded(pattern: &glob::Pattern, path: &Path, base: &Path) -> bool {
    let options = glob::MatchOptions {
        require_literal_separator: true,
        ..Default::default()
    };
    let relative = path.strip_prefix(base).unwrap_or(path);
    let name = path.file_name().map(Path::new);
    let by_name = !pattern.as_str().contains('/')
        && name.is_some_and(|n| pattern.matches_path_with(n, options));
    by_name
        || pattern.matches_path_with(relative, options)
        || pattern.matches_path_with(path, options)
}

fn bad_glob(key: &str, pattern: &str, error: &glob::PatternError) -> DataError {
    let reason = format!(
        "the glob `{pattern}` is malformed at character {}: {}",
        error.pos + 1,
        error.msg
    );
    DataError::setting(
        key,
        reason,
        "correct the glob, or escape special characters as `[*]`",
    )
}

/// Returns the form of a file by its name.
fn form_of(path: &Path) -> Form {
    match &inner_extension(path)[..] {
        "jsonl" | "ndjson" => Form::JsonLines,
        "csv" => Form::Separated(b','),
        "tsv" | "tab" => Form::Separated(b'\t'),
        "psv" => Form::Separated(b'|'),
        _ => Form::Text,
    }
}

/// The extension of a file in small letters, without that of its packing: `a.jsonl.gz` is lines of JSON, packed.
pub(crate) fn inner_extension(path: &Path) -> String {
    let extension = |path: &Path| {
        let own = path.extension().and_then(|e| e.to_str());
        own.unwrap_or_default().to_ascii_lowercase()
    };
    match &extension(path)[..] {
        "gz" | "gzip" | "zst" | "zstd" => extension(&path.with_extension("")),
        own => own.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(names: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::Builder::new().prefix("a[b]").tempdir().unwrap();
        for name in names {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, name).unwrap();
        }
        dir
    }

    fn names(dir: &Path, source: &FilesSource) -> Vec<String> {
        let files = list(source, "data.train").unwrap();
        files
            .iter()
            .map(|f| f.path.strip_prefix(dir).unwrap().display().to_string())
            .collect()
    }

    #[test]
    fn files_are_sorted_and_listed_once() {
        let dir = tree(&["z.txt", "a/b.txt", "a/c.jsonl", "a/skip.txt", "m.rs"]);
        let mut source = FilesSource::new(dir.path(), ["z.txt", "**/*.txt", "a/*.jsonl"]);
        source.exclude = vec!["skip.*".into()];
        assert_eq!(
            names(dir.path(), &source),
            ["a/b.txt", "a/c.jsonl", "z.txt"]
        );
        assert_eq!(list(&source, "k").unwrap()[1].form, Form::JsonLines);
        source.exclude = vec!["./a/**".into()];
        source.globs = vec!["**/*.txt".into()];
        assert_eq!(names(dir.path(), &source), ["z.txt"]);
        source = FilesSource::new(
            "/nowhere",
            [dir.path()
                .join("m.rs")
                .display()
                .to_string()
                .replace("[b]", "?b?")],
        );
        assert_eq!(names(dir.path(), &source), ["m.rs"]);
    }

    #[test]
    fn a_glob_of_nothing_names_itself_its_key_and_the_fix() {
        let dir = tree(&["a/b.txt", "c.txt"]);
        let error = |globs: &[&str], exclude: &[&str]| {
            let mut source = FilesSource::new(dir.path(), globs.iter().copied());
            source.exclude = exclude.iter().map(|s| s.to_string()).collect();
            list(&source, "data.train").unwrap_err().to_string()
        };
        let missing = error(&["c.txt", "*.md"], &[]);
        for part in ["data.train", "`*.md`", "looked under /", "fix:"] {
            assert!(missing.contains(part), "{missing}");
        }
        assert!(error(&["a"], &[]).contains("a/**/*.txt"));
        assert!(error(&["*.txt"], &["*.txt"]).contains("excluded"));
        assert!(error(&["[a"], &[]).contains("malformed"));
        assert!(error(&[], &[]).contains("no glob"));
    }
}
