//! Locked packages to their unpacked sources: real text that every machine able to build this already has.
//!
//! Crates.io packages are immutable, so the files of `name-version` are the same everywhere; only the folder above them
//! differs, and it takes no part in order or content.

use super::{Form, Packing, SourceFile};
use crate::error::{DataError, Result};
use crate::spec::CargoSource;
use std::path::{Path, PathBuf};

/// A package of the lock file that comes from a registry.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Package {
    name: String,
    version: String,
}

/// Files of the chosen packages, by name, version and path.
pub(super) fn list(source: &CargoSource, key: &str) -> Result<Vec<SourceFile>> {
    let text = crossweave_files::read_text(&source.lock, crossweave_files::TABLE)
        .map_err(DataError::io("read the lock file", &source.lock))?;
    let packages = choose(parse(&text), &source.packages, key, &source.lock)?;
    let registry = source.cargo_home.join("registry").join("src");
    let registries = if registry.is_dir() {
        sorted_entries(&registry)?
    } else {
        Vec::new()
    };
    let mut files = Vec::new();
    for Package { name, version } in packages {
        let folder = format!("{name}-{version}");
        let Some(root) = registries
            .iter()
            .map(|r| r.join(&folder))
            .find(|p| p.is_dir())
        else {
            return Err(DataError::PackageMissing {
                key: key.into(),
                package: folder,
                registry,
                lock: source.lock.clone(),
            });
        };
        walk(&root, &source.extensions, &mut files)?;
    }
    if files.is_empty() {
        let reason = format!(
            "the chosen packages hold no file ending in {:?}",
            source.extensions
        );
        return Err(DataError::setting(
            key,
            reason,
            "name other packages or extensions",
        ));
    }
    Ok(files)
}

/// Registry packages of a lock file, sorted. Cargo writes the file itself, one `key = "value"` a line.
fn parse(lock: &str) -> Vec<Package> {
    let value = |block: &str, field: &str| {
        block.lines().find_map(|line| {
            let (name, value) = line.split_once(" = ")?;
            (name == field).then(|| value.trim().trim_matches('"').to_string())
        })
    };
    let mut packages: Vec<Package> = lock
        .split("[[package]]")
        .skip(1)
        .filter(|block| {
            value(block, "source")
                .is_some_and(|s| s.starts_with("registry+") || s.starts_with("sparse+"))
        })
        .filter_map(|block| {
            Some(Package {
                name: value(block, "name")?,
                version: value(block, "version")?,
            })
        })
        .collect();
    packages.sort();
    packages
}

/// Keeps the packages that `wanted` names, all when it names none; each name must be in the lock.
fn choose(
    packages: Vec<Package>,
    wanted: &[String],
    key: &str,
    lock: &Path,
) -> Result<Vec<Package>> {
    let names = |wish: &str, p: &Package| match wish.split_once('@') {
        Some((name, version)) => p.name == name && p.version == version,
        None => p.name == wish,
    };
    if let Some(absent) = wanted
        .iter()
        .find(|wish| !packages.iter().any(|p| names(wish, p)))
    {
        let reason = format!(
            "package `{absent}` is not a registry package of {}",
            lock.display()
        );
        return Err(DataError::setting(
            key,
            reason,
            "name packages as the lock file does, `name` or `name@version`",
        ));
    }
    Ok(packages
        .into_iter()
        .filter(|p| wanted.is_empty() || wanted.iter().any(|w| names(w, p)))
        .collect())
}

fn sorted_entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).map_err(DataError::io("list", folder))?;
    let mut paths = entries
        .map(|e| e.map(|e| e.path()))
        .collect::<std::io::Result<Vec<_>>>()
        .map_err(DataError::io("list", folder))?;
    paths.sort();
    Ok(paths)
}

/// Adds the files below `folder`, depth first in name order; links are not followed.
fn walk(folder: &Path, extensions: &[String], files: &mut Vec<SourceFile>) -> Result<()> {
    for path in sorted_entries(folder)? {
        let kind = std::fs::symlink_metadata(&path)
            .map_err(DataError::io("read", &path))?
            .file_type();
        if kind.is_dir() {
            walk(&path, extensions, files)?;
        } else if kind.is_file()
            && path
                .extension()
                .and_then(|e| e.to_str())
                .is_some_and(|e| extensions.iter().any(|x| x == e))
        {
            files.push(SourceFile {
                path,
                form: Form::Text,
                packing: Packing::Plain,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = r#"# This file is automatically @generated by Cargo.
version = 4

[[package]]
name = "zed"
version = "1.0.0"
source = "registry+https://github.com/rust-lang/crates.io-index"
checksum = "00"
dependencies = [
 "abc 0.2.0",
]

[[package]]
name = "abc"
version = "0.2.0"
source = "registry+https://github.com/rust-lang/crates.io-index"

[[package]]
name = "abc"
version = "0.1.0"
source = "registry+https://github.com/rust-lang/crates.io-index"

[[package]]
name = "ours"
version = "0.1.0"
"#;

    fn home(registry: &str) -> (tempfile::TempDir, CargoSource) {
        let dir = tempfile::tempdir().unwrap();
        let lock = dir.path().join("Cargo.lock");
        std::fs::write(&lock, LOCK).unwrap();
        for file in [
            "abc-0.1.0/src/lib.rs",
            "abc-0.2.0/src/b.rs",
            "abc-0.2.0/src/a/x.rs",
            "abc-0.2.0/README.md",
        ] {
            let path = dir.path().join("registry/src").join(registry).join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, file).unwrap();
        }
        let cargo_home = dir.path().to_path_buf();
        (
            dir,
            CargoSource {
                lock,
                cargo_home,
                packages: vec!["abc".into()],
                extensions: vec!["rs".into()],
            },
        )
    }

    fn contents(source: &CargoSource) -> Vec<String> {
        let files = list(source, "data.train").unwrap();
        files
            .iter()
            .map(|f| std::fs::read_to_string(&f.path).unwrap())
            .collect()
    }

    #[test]
    fn order_does_not_depend_on_the_registry_folder() {
        let expected = [
            "abc-0.1.0/src/lib.rs",
            "abc-0.2.0/src/a/x.rs",
            "abc-0.2.0/src/b.rs",
        ];
        for registry in ["index.crates.io-aa", "zz-mirror"] {
            let (_dir, mut source) = home(registry);
            assert_eq!(contents(&source), expected);
            source.packages = vec!["abc@0.1.0".into()];
            assert_eq!(contents(&source), expected[..1]);
        }
    }

    #[test]
    fn a_missing_package_says_how_to_fetch_it() {
        let (_dir, mut source) = home("r");
        source.packages.clear();
        let error = list(&source, "data.train").unwrap_err().to_string();
        assert!(
            error.contains("zed-1.0.0") && error.contains("cargo fetch --locked"),
            "{error}"
        );
        source.packages = vec!["ours".into()];
        let error = list(&source, "data.train").unwrap_err().to_string();
        assert!(
            error.contains("`ours`") && error.contains("data.train"),
            "{error}"
        );
        source.cargo_home = source.cargo_home.join("nowhere");
        source.packages = vec!["abc".into()];
        assert!(matches!(
            list(&source, "k"),
            Err(DataError::PackageMissing { .. })
        ));
        source.lock = source.lock.with_file_name("none.lock");
        assert!(
            list(&source, "k")
                .unwrap_err()
                .to_string()
                .contains("none.lock")
        );
    }
}
