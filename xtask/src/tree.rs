//! What the rules look at: the files of the checkout and the packages of the workspace, as plain data, so that a rule's test can plant a violation.

use crate::source::{self, Split};
use crate::syntax::{self, Syntax};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// A text file of the checkout.
#[derive(Clone, Debug)]
pub struct File {
    /// From the root, with forward slashes.
    pub path: String,
    /// The whole text.
    pub text: String,
    /// Code and comments apart; of Rust sources only.
    pub rust: Option<Split>,
    /// What a parser finds in it; of Rust sources only.
    pub syntax: Option<Syntax>,
}

impl File {
    /// A file with this text; `.rs` files are split into code and comments.
    pub fn new(path: &str, text: &str) -> File {
        File {
            path: path.to_string(),
            text: text.to_string(),
            rust: path.ends_with(".rs").then(|| source::split(text)),
            syntax: path.ends_with(".rs").then(|| syntax::read(text)),
        }
    }
}

/// One dependency as a manifest declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dependency {
    /// Package name.
    pub name: String,
    /// Only for tests, examples and benches.
    pub dev: bool,
    /// The name that code gives it.
    pub code: String,
}

impl Dependency {
    /// One that code calls by its own name.
    pub fn new(name: &str, dev: bool) -> Dependency {
        Dependency {
            name: name.to_string(),
            dev,
            code: name.replace('-', "_"),
        }
    }
}

/// A package of the workspace.
#[derive(Clone, Debug, Default)]
pub struct Package {
    /// Package name.
    pub name: String,
    /// Folder of its manifest, from the root.
    pub folder: String,
    /// What it depends on.
    pub dependencies: Vec<Dependency>,
}

/// A checkout.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// Every text file that is not a build output.
    pub files: Vec<File>,
    /// Every package of the workspace.
    pub packages: Vec<Package>,
}

/// Why a checkout cannot be read.
#[derive(Debug)]
pub struct ReadError(String);

impl std::fmt::Display for ReadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ReadError {}

impl Tree {
    /// Reads the checkout at `root`: its files, and its packages from `cargo metadata` (offline).
    pub fn read(root: &Path) -> Result<Tree, ReadError> {
        let mut files = Vec::new();
        walk(root, "", &mut files)?;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Tree {
            files,
            packages: packages(root)?,
        })
    }

    /// The Rust sources.
    pub fn rust(&self) -> impl Iterator<Item = (&File, &Split)> {
        self.files
            .iter()
            .filter_map(|f| Some((f, f.rust.as_ref()?)))
    }

    /// The file at a path from the root.
    pub fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|f| f.path == path)
    }

    /// A tree of these files and no packages, for the rules' own tests.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Tree {
        Tree {
            files: files.iter().map(|(p, t)| File::new(p, t)).collect(),
            packages: Vec::new(),
        }
    }

    /// With a package of no dependencies.
    #[cfg(test)]
    pub fn with_package(mut self, name: &str, folder: &str) -> Tree {
        self.packages.push(Package {
            name: name.into(),
            folder: folder.into(),
            dependencies: Vec::new(),
        });
        self
    }
}

/// What no rule looks at, wherever it is.
const SKIP: &[&str] = &[
    "target",
    "runs",
    "__pycache__",
    "node_modules",
    ".git",
    ".venv",
];

/// Files above this size are data, not text that somebody reads.
const MAX_TEXT: u64 = 4 << 20;

fn walk(root: &Path, rel: &str, files: &mut Vec<File>) -> Result<(), ReadError> {
    let dir = root.join(rel);
    let say = |p: &Path, e: std::io::Error| ReadError(format!("{}: {e}", p.display()));
    for entry in std::fs::read_dir(&dir).map_err(|e| say(&dir, e))? {
        let entry = entry.map_err(|e| say(&dir, e))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if rel.is_empty() {
            name.clone()
        } else {
            format!("{rel}/{name}")
        };
        if SKIP.contains(&name.as_str()) {
            continue;
        }
        let kind = entry.file_type().map_err(|e| say(&entry.path(), e))?;
        if kind.is_dir() {
            if !entry.path().join("CACHEDIR.TAG").exists() {
                walk(root, &path, files)?;
            }
        } else if kind.is_file() {
            let size = entry.metadata().map_err(|e| say(&entry.path(), e))?.len();
            let bytes = match size {
                ..=MAX_TEXT => std::fs::read(entry.path()).map_err(|e| say(&entry.path(), e))?,
                _ => continue,
            };
            // What is not UTF-8 is data.
            if let Ok(text) = String::from_utf8(bytes) {
                files.push(File::new(&path, &text));
            }
        }
    }
    Ok(())
}

fn packages(root: &Path) -> Result<Vec<Package>, ReadError> {
    let cargo = option_env!("CARGO").unwrap_or("cargo");
    let out = Command::new(cargo)
        .args([
            "metadata",
            "--no-deps",
            "--offline",
            "--format-version",
            "1",
        ])
        .current_dir(root)
        .output()
        .map_err(|e| ReadError(format!("{cargo} metadata: {e}")))?;
    if !out.status.success() {
        let why = String::from_utf8_lossy(&out.stderr).into_owned();
        return Err(ReadError(format!("{cargo} metadata failed: {why}")));
    }
    let json: Value = serde_json::from_slice(&out.stdout)
        .map_err(|e| ReadError(format!("{cargo} metadata: {e}")))?;
    let here = json["workspace_root"].as_str().unwrap_or_default();
    let list = json["packages"].as_array();
    Ok(list
        .into_iter()
        .flatten()
        .map(|p| package(p, here))
        .collect())
}

fn package(p: &Value, root: &str) -> Package {
    let text = |v: &Value| v.as_str().unwrap_or_default().to_string();
    let folder = text(&p["manifest_path"]).replace('\\', "/");
    let folder = folder.strip_suffix("/Cargo.toml").unwrap_or(&folder);
    let folder = folder
        .strip_prefix(&root.replace('\\', "/"))
        .unwrap_or(folder);
    let dependencies = p["dependencies"].as_array().into_iter().flatten();
    Package {
        name: text(&p["name"]),
        folder: folder.trim_start_matches('/').to_string(),
        dependencies: dependencies
            .map(|d| {
                let name = text(&d["name"]);
                let code = d["rename"].as_str().unwrap_or(&name).replace('-', "_");
                let dev = d["kind"] == "dev";
                Dependency { name, dev, code }
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_read_from_metadata() {
        let json = serde_json::json!({
            "name": "crossweave-plan", "manifest_path": "/r/plan/Cargo.toml",
            "dependencies": [{ "name": "serde", "kind": null }, { "name": "proptest", "kind": "dev", "rename": "pro-p" }],
        });
        let p = package(&json, "/r");
        assert_eq!(
            (p.name.as_str(), p.folder.as_str()),
            ("crossweave-plan", "plan")
        );
        let kinds: Vec<bool> = p.dependencies.iter().map(|d| d.dev).collect();
        assert_eq!(kinds, [false, true]);
        let code: Vec<&str> = p.dependencies.iter().map(|d| d.code.as_str()).collect();
        assert_eq!(code, ["serde", "pro_p"]);
    }

    #[test]
    fn build_outputs_are_not_read() {
        let dir = std::env::temp_dir().join(format!("crossweave-xtask-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("target")).unwrap();
        std::fs::create_dir_all(dir.join("a")).unwrap();
        std::fs::write(dir.join("target/x.rs"), "x").unwrap();
        std::fs::write(dir.join("a/y.rs"), "y").unwrap();
        std::fs::write(dir.join("a/data.bin"), [0xff, 0xfe, 0x00]).unwrap();
        let mut files = Vec::new();
        walk(&dir, "", &mut files).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        let paths: Vec<&str> = files.iter().map(|f| f.path.as_str()).collect();
        assert_eq!(paths, ["a/y.rs"]);
    }
}
