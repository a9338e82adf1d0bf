//! Models that `hf download` (huggingface_hub) has left in its cache, found by their names. Nothing is downloaded here.
//!
//! In the cache `models--ORG--NAME/refs/REVISION` holds a commit, and `snapshots/COMMIT/` the files of it, mostly links into `blobs/`.
//! A download that was cut leaves links without a blob, shards that are missing, or no snapshot at all: each is said with the command
//! that mends it.

use crate::caches::Caches;
use crate::error::{JobError, Result};
use crossweave_config::{Config, Model};
use crossweave_files as files;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What is wanted of a model.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Config and weights.
    Model,
    /// The tokenizer.
    Tokenizer,
}

/// A model's name on the hub, and which of its revisions.
struct Id<'a> {
    name: &'a str,
    revision: Option<&'a str>,
}

impl<'a> Id<'a> {
    /// `org/name` or `name`, then `@revision`; `None` for what can only be a path.
    fn parse(text: &'a str) -> Option<Id<'a>> {
        let (name, revision) = match text.split_once('@') {
            Some((name, revision)) => (name, Some(revision)),
            None => (text, None),
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let part = |p: &str| {
            !p.is_empty() && !p.starts_with(['.', '-']) && !p.ends_with('.') && p.chars().all(plain)
        };
        let named = name.split('/').all(part) && name.split('/').count() <= 2;
        let dated = revision.is_none_or(|r| r.split('/').all(part));
        (named && dated).then_some(Id { name, revision })
    }

    /// The command that brings it.
    fn download(&self) -> String {
        match self.revision {
            Some(r) => format!("hf download {} --revision {r}", self.name),
            None => format!("hf download {}", self.name),
        }
    }
}

/// A snapshot of the cache.
struct Snapshot {
    folder: PathBuf,
    commit: String,
}

/// The folder that `name`, the value of `key`, stands for: the folder itself where there is one, else the model's snapshot in the cache.
/// A path that is no model's name is given back as it is.
///
/// # Errors
/// A model that is not in the cache, or not whole there.
pub fn folder(name: &str, key: &str, part: Part, caches: &Caches) -> Result<PathBuf> {
    match (Path::new(name).exists(), Id::parse(name)) {
        (false, Some(id)) => Ok(find(&id, name, key, part, caches)?.folder),
        _ => Ok(name.into()),
    }
}

/// Replaces the name of a model in `model.hf` by one with the commit that it stands for now, so that a run's record says which it was.
///
/// # Errors
/// As [`folder`].
pub fn pin(config: &mut Config, caches: &Caches) -> Result<()> {
    let Some(Model::Hf(m)) = &config.settings.model else {
        return Ok(());
    };
    let name = m.hf.clone();
    if let (false, Some(id)) = (Path::new(&name).exists(), Id::parse(&name)) {
        let commit = find(&id, &name, "model.hf", Part::Model, caches)?.commit;
        let pinned = Value::from(format!("{}@{commit}", id.name));
        config.set("model.hf", &pinned.to_string())?;
    }
    Ok(())
}

fn find(id: &Id<'_>, given: &str, key: &str, part: Part, caches: &Caches) -> Result<Snapshot> {
    let Some(root) = &caches.models else {
        return Err(JobError::refused(
            format!("{key}: {given:?}: no such model directory, and no cache of models is known"),
            "name a folder, or set HF_HUB_CACHE (or HOME) to where `hf download` puts models",
        ));
    };
    find_in(root, id, given, key, part)
}

fn find_in(root: &Path, id: &Id<'_>, given: &str, key: &str, part: Part) -> Result<Snapshot> {
    let get = format!("`{}`", id.download());
    let refuse = |what: String, fix: String| JobError::refused(format!("{key}: {what}"), fix);
    let model = root.join(format!("models--{}", id.name.replace('/', "--")));
    if !model.is_dir() {
        return Err(refuse(
            format!(
                "{given:?}: no such model directory, and the hub cache {} does not hold a model of this name",
                root.display()
            ),
            format!("{get} puts it there; or correct the path of the folder"),
        ));
    }
    let commit = commit_of(&model, id).ok_or_else(|| {
        let wanted = id.revision.unwrap_or("main");
        let there = revisions(&model);
        let (has, or) = match there.first() {
            None => (String::new(), String::new()),
            Some(one) => (
                format!("; there is {}", there.join(", ")),
                format!(", or write \"{}@{one}\"", id.name),
            ),
        };
        refuse(
            format!("{}: has no revision {wanted}{has}", model.display()),
            format!("{get}{or}"),
        )
    })?;
    let folder = model.join("snapshots").join(&commit);
    if !folder.is_dir() {
        return Err(refuse(
            format!("{}: the snapshot is missing", folder.display()),
            get,
        ));
    }
    if let Some(what) = lack(&folder, part) {
        let cut = match unfinished(&model) {
            true => "; a download of it has not been finished",
            false => "",
        };
        return Err(refuse(
            format!("{}: {what}{cut}", folder.display()),
            format!("{get} completes it"),
        ));
    }
    Ok(Snapshot { folder, commit })
}

/// The commit that a revision stands for: by its name, or a commit itself, whole or its beginning.
fn commit_of(model: &Path, id: &Id<'_>) -> Option<String> {
    let wanted = id.revision.unwrap_or("main");
    let named = model.join("refs").join(wanted);
    if let Ok(text) = files::read_text(&named, files::TEXT) {
        let commit = text.trim();
        let plain = !commit.is_empty() && commit.chars().all(|c| c.is_ascii_alphanumeric());
        return plain.then(|| commit.to_string());
    }
    let starts = |c: &String| c == wanted || (wanted.len() >= 7 && c.starts_with(wanted));
    let mut all = names(&model.join("snapshots")).into_iter().filter(starts);
    let first = all.next()?;
    // A beginning that several share names none of them.
    all.next().is_none().then_some(first)
}

/// What could be asked for instead: named revisions, then commits.
fn revisions(model: &Path) -> Vec<String> {
    let mut all = names(&model.join("refs"));
    all.extend(names(&model.join("snapshots")));
    all.truncate(4);
    all
}

/// Names in a folder, sorted; none where it cannot be read.
fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return vec![];
    };
    let mut all: Vec<String> = entries
        .flatten()
        .filter_map(|e| e.file_name().into_string().ok())
        .collect();
    all.sort();
    all
}

/// Whether a download of the model was cut.
fn unfinished(model: &Path) -> bool {
    let blobs = names(&model.join("blobs"));
    blobs.iter().any(|b| b.ends_with(".incomplete"))
}

/// What a snapshot lacks, in words.
fn lack(folder: &Path, part: Part) -> Option<String> {
    let has = |name: &str| folder.join(name).exists();
    let all = names(folder);
    let dangling: Vec<&String> = all.iter().filter(|n| !has(n)).collect();
    let concerns = |n: &str| match part {
        Part::Model => n == "config.json" || n.contains(".safetensors"),
        Part::Tokenizer => n.starts_with("tokenizer") || n == "special_tokens_map.json",
    };
    if let Some(first) = dangling.iter().find(|n| concerns(n)) {
        return Some(match dangling.len() {
            1 => format!("the contents of {first} are missing (its link leads nowhere)"),
            n => format!(
                "the contents of {first} and {} more files are missing (their links lead nowhere)",
                n - 1
            ),
        });
    }
    if part == Part::Tokenizer {
        return None;
    }
    if !has("config.json") {
        return Some("there is no config.json".into());
    }
    const INDEX: &str = "model.safetensors.index.json";
    if has("model.safetensors") {
        return None;
    }
    if !has(INDEX) {
        // Weights of another kind are reported by the code that opens the folder.
        let other = all.iter().any(|n| n.starts_with("pytorch_model"));
        return (!other).then(|| "there are no weights (model.safetensors)".into());
    }
    let missing = missing_shards(folder, &folder.join(INDEX))?;
    let first = missing.first()?;
    Some(match missing.len() {
        1 => format!("the shard {first} is missing"),
        n => format!("{n} shards are missing, the first of them {first}"),
    })
}

/// Shards that an index names and a folder lacks; `None` for an index that is damaged, which is reported where it is read.
fn missing_shards(folder: &Path, index: &Path) -> Option<Vec<String>> {
    let bytes = files::read(index, files::TABLE).ok()?;
    let index: Value = serde_json::from_slice(&bytes).ok()?;
    let shards: BTreeSet<&str> = index["weight_map"]
        .as_object()?
        .values()
        .filter_map(Value::as_str)
        .collect();
    let missing = shards.into_iter().filter(|s| !folder.join(s).exists());
    Some(missing.map(str::to_string).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_models_are_told_from_paths() {
        for (text, name, revision) in [
            ("gpt2", "gpt2", None),
            ("openai-community/gpt2", "openai-community/gpt2", None),
            ("a/b.c-2_x@refs/pr/1", "a/b.c-2_x", Some("refs/pr/1")),
            ("a/b@main", "a/b", Some("main")),
        ] {
            let id = Id::parse(text).unwrap();
            assert_eq!((id.name, id.revision), (name, revision), "{text}");
        }
        for path in [
            "", "/a/b", "./a", "../a", "a/b/c", "a//b", "a/", "~/a", "a b", "a/b@", "a/b@../x",
            "a/b@/x", "a\\b", "C:/a", "-x", "a/..", "é/a",
        ] {
            assert!(Id::parse(path).is_none(), "{path}");
        }
    }

    struct Cache(tempfile::TempDir);

    impl Cache {
        fn new() -> Cache {
            Cache(tempfile::tempdir().unwrap())
        }
        fn write(&self, name: &str, text: &str) {
            let path = self.0.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        fn find(&self, text: &str, part: Part) -> Result<Snapshot> {
            find_in(
                self.0.path(),
                &Id::parse(text).unwrap(),
                text,
                "model.hf",
                part,
            )
        }
        /// The sentence, which must have all of `parts`.
        fn fails(&self, text: &str, part: Part, parts: &[&str]) {
            let e = self.find(text, part).err().unwrap().to_string();
            for p in parts {
                assert!(e.contains(p), "{p:?} not in: {e}");
            }
            assert!(
                e.starts_with("model.hf: ") && e.contains("fix: `hf download"),
                "{e}"
            );
        }
    }

    const AT: &str = "models--org--name";
    const A: &str = "0123456789012345678901234567890123456789";

    #[test]
    fn a_model_of_the_cache_is_found_by_name_revision_and_commit() {
        let c = Cache::new();
        c.write(&format!("{AT}/refs/main"), &format!("{A}\n"));
        c.write(&format!("{AT}/refs/refs/pr/1"), A);
        c.write(&format!("{AT}/snapshots/{A}/config.json"), "{}");
        c.write(&format!("{AT}/snapshots/{A}/model.safetensors"), "");
        for text in [
            "org/name".to_string(),
            "org/name@main".into(),
            "org/name@refs/pr/1".into(),
            format!("org/name@{A}"),
            format!("org/name@{}", &A[..8]),
        ] {
            let s = c
                .find(&text, Part::Model)
                .unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(s.commit, A);
            assert!(s.folder.join("config.json").is_file());
        }
        c.fails(
            "org/other",
            Part::Model,
            &["does not hold", "hf download org/other"],
        );
        c.fails(
            "org/name@v2",
            Part::Model,
            &[
                "no revision v2",
                "main",
                "hf download org/name --revision v2",
            ],
        );
    }

    #[test]
    fn what_a_cut_download_left_is_named_with_the_command_that_mends_it() {
        let c = Cache::new();
        c.write(&format!("{AT}/refs/main"), A);
        let at = format!("{AT}/snapshots/{A}");
        c.fails("org/name", Part::Model, &["snapshot is missing", A]);
        c.write(&format!("{at}/tokenizer.json"), "{}");
        c.fails("org/name", Part::Model, &["no config.json"]);
        assert!(c.find("org/name", Part::Tokenizer).is_ok());
        c.write(&format!("{at}/config.json"), "{}");
        c.fails("org/name", Part::Model, &["no weights"]);
        c.write(
            &format!("{at}/model.safetensors.index.json"),
            r#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-3.safetensors"}}"#,
        );
        c.write(&format!("{at}/model-1.safetensors"), "");
        c.write(&format!("{AT}/blobs/abc.incomplete"), "");
        c.fails(
            "org/name",
            Part::Model,
            &[
                "2 shards are missing",
                "model-2.safetensors",
                "not been finished",
            ],
        );
        // A commit of which there is no name.
        std::fs::remove_file(c.0.path().join(AT).join("refs/main")).unwrap();
        c.fails(
            "org/name",
            Part::Model,
            &["no revision main", &format!("org/name@{A}")],
        );
        std::fs::remove_dir_all(c.0.path().join(AT)).unwrap();
        c.write(&format!("{AT}/refs/main"), "../../../etc");
        c.fails("org/name", Part::Model, &["no revision main"]);
    }

    #[cfg(unix)]
    #[test]
    fn links_that_lead_nowhere_are_named() {
        let c = Cache::new();
        c.write(&format!("{AT}/refs/main"), A);
        c.write(&format!("{AT}/blobs/1"), "{}");
        let at = c.0.path().join(AT).join("snapshots").join(A);
        std::fs::create_dir_all(&at).unwrap();
        let link = |name: &str, blob: &str| {
            std::os::unix::fs::symlink(format!("../../blobs/{blob}"), at.join(name)).unwrap();
        };
        link("config.json", "1");
        link("model.safetensors", "2");
        link("tokenizer.json", "1");
        link("README.md", "3");
        c.fails(
            "org/name",
            Part::Model,
            &["model.safetensors", "lead nowhere"],
        );
        assert!(c.find("org/name", Part::Tokenizer).is_ok());
        std::fs::write(c.0.path().join(AT).join("blobs/2"), "").unwrap();
        assert!(c.find("org/name", Part::Model).is_ok());
    }
}
