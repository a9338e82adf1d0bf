//! The programs that the steps of the gate may start: those that `ci/tools` declares, as links in one folder, which is the `PATH` of the steps.
//! Every other program of the machine stands there too, as a script that writes down its name and fails: a step that starts it is red by that
//! name, whatever the test makes of the failure.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::ErrorKind::{AlreadyExists, NotFound};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// The list, from the root of the checkout.
pub const LIST: &str = "ci/tools";
/// The group whose programs install the others: no step of the gate has them.
const SETUP: &str = "setup";
/// Where programs lie, whatever the `PATH` of the caller.
const SYSTEM: [&str; 6] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];
/// What stands for a program that is not declared. It uses nothing but the shell itself.
const REFUSES: &str = r#"#!/bin/sh
name=${0##*/}
read -r parent 2>/dev/null <"/proc/$PPID/comm" || parent='another program'
printf '%s (started by %s)\n' "$name" "$parent" >>"${0%/*}/../undeclared"
printf '%s: ci/tools does not declare this program\n' "$name" >&2
exit 127
"#;

/// One line of the list.
#[derive(Debug, PartialEq, Eq)]
pub struct Tool {
    /// What it is for: `base`, `build`, `mpi`, ….
    pub group: String,
    /// Debian's packages; empty where none brings it.
    pub packages: Vec<String>,
    /// The commands; empty for a library.
    pub programs: Vec<String>,
}

/// Reads the list.
///
/// # Errors
/// A line without its four columns, or a program that stands twice.
pub fn read(text: &str) -> Result<Vec<Tool>, String> {
    let mut seen = BTreeSet::new();
    let mut tools = vec![];
    for (i, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let [group, packages, programs, _who, ..] = words[..] else {
            let at = format!("{LIST}, line {}", i + 1);
            return Err(format!("{at}: group, packages, programs, who needs them"));
        };
        let list = |words: &str| -> Vec<String> {
            let words = words.split(',').filter(|w| *w != "-");
            words.map(String::from).collect()
        };
        let tool = Tool {
            group: group.into(),
            packages: list(packages),
            programs: list(programs),
        };
        if let Some(twice) = tool.programs.iter().find(|p| !seen.insert((*p).clone())) {
            return Err(format!("{LIST}, line {}: {twice} stands twice", i + 1));
        }
        tools.push(tool);
    }
    Ok(tools)
}

/// The folder of links.
#[derive(Debug)]
pub struct Folder {
    at: PathBuf,
}

impl Folder {
    /// Makes `at/bin` anew: of the programs that lie on `path` and in the folders of the system, links to the declared ones, and a refusal for
    /// every other.
    ///
    /// # Errors
    /// A list that cannot be read, or a folder that cannot be written.
    pub fn make(at: &Path, list: &str, path: &OsStr) -> Result<Folder, String> {
        let folder = Folder { at: at.into() };
        let declared: BTreeSet<String> = read(list)?
            .into_iter()
            .filter(|t| t.group != SETUP)
            .flat_map(|t| t.programs)
            .collect();
        let failed = |e: std::io::Error| format!("{}: {e}", at.display());
        let bin = folder.bin();
        match std::fs::remove_dir_all(at) {
            Err(e) if e.kind() != NotFound => return Err(failed(e)),
            _ => std::fs::create_dir_all(&bin).map_err(failed)?,
        }
        let refuses = at.join("refuses");
        std::fs::write(&refuses, REFUSES).map_err(failed)?;
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&refuses, executable).map_err(failed)?;
        for (name, program) in programs(path, &bin) {
            let to = match declared.contains(&name) {
                true => &program,
                false => &refuses,
            };
            match symlink(to, bin.join(&name)) {
                Err(e) if e.kind() != AlreadyExists => return Err(failed(e)),
                _ => {}
            }
        }
        Ok(folder)
    }

    /// The one folder that is the `PATH` of a step.
    pub fn bin(&self) -> PathBuf {
        self.at.join("bin")
    }

    /// Fails by the names of the programs that were started and are not declared, and forgets them.
    ///
    /// # Errors
    /// There are such programs.
    pub fn judge(&self) -> Result<(), String> {
        let log = self.at.join("undeclared");
        let text = match std::fs::read(&log) {
            Err(e) if e.kind() == NotFound => return Ok(()),
            Err(e) => return Err(format!("{}: {e}", log.display())),
            Ok(text) => String::from_utf8_lossy(&text).into_owned(),
        };
        let _ = std::fs::remove_file(&log);
        let names: BTreeSet<&str> = text.lines().collect();
        let names: Vec<&str> = names.into_iter().collect();
        Err(format!(
            "{LIST} does not declare what was started: {}; fix: use a call of a library, or declare the program with its package",
            names.join(", ")
        ))
    }
}

/// The programs of the machine by name, the first on `path` of each.
fn programs(path: &OsStr, own: &Path) -> BTreeMap<String, PathBuf> {
    let given = std::env::split_paths(path).filter(|p| p.is_absolute() && p != own);
    let mut all = BTreeMap::new();
    for folder in given.chain(SYSTEM.iter().map(PathBuf::from)) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            // The link's end: a link that leads nowhere is no program.
            let file = std::fs::metadata(entry.path());
            if file.is_ok_and(|f| f.is_file() && f.permissions().mode() & 0o111 != 0) {
                all.entry(name).or_insert_with(|| entry.path());
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn list() -> String {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        std::fs::read_to_string(root.join(LIST)).unwrap()
    }

    /// A machine with these programs, each of which prints its name.
    fn machine(name: &str, programs: &[&str]) -> PathBuf {
        let at = std::env::temp_dir().join(format!("crossweave-{}-{name}", std::process::id()));
        let bin = at.join("machine");
        std::fs::create_dir_all(&bin).unwrap();
        for p in programs {
            let file = bin.join(p);
            std::fs::write(&file, format!("#!/bin/sh\necho this is {p}\n")).unwrap();
            let executable = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(file, executable).unwrap();
        }
        at
    }

    /// What a step says, and whether it ended well.
    fn step(folder: &Folder, script: &str) -> (String, bool) {
        let out = Command::new("/bin/sh")
            .args(["-c", script])
            .env("PATH", folder.bin())
            .output()
            .unwrap();
        let said = [out.stdout, out.stderr].concat();
        (
            String::from_utf8_lossy(&said).into_owned(),
            out.status.success(),
        )
    }

    #[test]
    fn a_test_that_starts_an_undeclared_program_fails_by_its_name() {
        let at = machine("undeclared", &["ps", "make", "apt-get"]);
        let path = at.join("machine");
        let folder = Folder::make(&at.join("tools"), &list(), path.as_os_str()).unwrap();
        // Declared: the machine's own, and nothing is held against it.
        assert_eq!(step(&folder, "make"), ("this is make\n".into(), true));
        folder.judge().unwrap();
        let (said, well) = step(&folder, "ps -e");
        assert!(!well && said.contains("ps: ci/tools"), "{said}");
        let why = folder.judge().unwrap_err();
        assert!(why.contains("ps (started by sh)"), "{why}");
        folder.judge().unwrap();
        // A test that takes the failure for a reason to skip fails all the same; what installs is not for tests.
        assert!(step(&folder, "ps 2>/dev/null || true; apt-get || true").1);
        let why = folder.judge().unwrap_err();
        assert!(why.contains("apt-get (") && why.contains("ps ("), "{why}");
        // What no machine has is missing as ever.
        let (said, well) = step(&folder, "no_such_program_anywhere");
        assert!(!well && said.contains("not found"), "{said}");
        std::fs::remove_dir_all(at).unwrap();
    }

    #[test]
    fn a_folder_is_made_anew_and_is_not_taken_for_the_machine() {
        let at = machine("anew", &["make", "gone"]);
        let path = std::env::join_paths([at.join("tools/bin"), at.join("machine")]).unwrap();
        let make = || Folder::make(&at.join("tools"), &list(), &path).unwrap();
        make();
        std::fs::remove_file(at.join("machine/gone")).unwrap();
        let folder = make();
        assert!(!folder.bin().join("gone").exists());
        assert_eq!(step(&folder, "make").0, "this is make\n");
        std::fs::remove_dir_all(at).unwrap();
    }

    #[test]
    fn the_list_is_whole_and_a_bad_line_is_named() {
        let tools = read(&list()).unwrap();
        for group in ["base", "build", "rust", "mpi", "hip", SETUP] {
            let has = |t: &Tool| t.group == group && !t.programs.is_empty();
            assert!(tools.iter().any(has), "{group}");
        }
        // What is no part of Rust can be installed.
        let bare = |t: &Tool| t.packages.is_empty() && t.group != "rust";
        assert!(!tools.iter().any(bare));
        let e = read("base bash bash\n").unwrap_err();
        assert!(e.contains("line 1") && e.contains("who needs"), "{e}");
        let twice = "base a sh tests\n\nbase b sh tests\n";
        assert!(read(twice).unwrap_err().contains("line 3: sh stands twice"));
    }
}
