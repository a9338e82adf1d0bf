//! `crossweave new-plugin`: a plugin project that builds, passes the conformance kit's minimal profile and trains, to start a back end from.
//!
//! The project is the example of this tree (`examples/c-plugin`, `examples/rust-plugin`) under another name, so what users get is what the
//! tests try. It is written beside its place and moved there whole.

mod files;

use crate::args::{Lang, NewPluginArgs};
use crate::backend::LINKED;
use crate::error::{CliError, Result};
use crate::say::say;
use crate::surroundings::Plugins;
use crossweave_hal::loader::discover;
use std::path::{Path, PathBuf};

/// What the examples are called; three spellings of it are replaced.
const EXAMPLE: &str = "softdev";
/// Where the vendor side of the ABI lies, for the example and for a project of its own.
const VENDOR_SIDE: (&str, &str) = ("../../hal/plugin", "vendor/crossweave-plugin");
/// The longest name: it stands in a file name and in a device's name of 64 bytes.
const LONGEST: usize = 32;

/// Makes the project.
pub fn run(a: &NewPluginArgs, plugins: &Plugins) -> Result<()> {
    check_name(&a.name, plugins)?;
    let dir = a.out.clone().unwrap_or_else(|| PathBuf::from(&a.name));
    create(&a.name, a.lang, &dir)?;
    let library = crossweave_hal::loader::file_name(&a.name);
    let (build, at) = match a.lang {
        Lang::C => ("make", library),
        Lang::Rust => ("cargo build --release", format!("target/release/{library}")),
    };
    say!("created {} ({})", dir.display(), a.lang.name());
    if a.lang == Lang::C {
        say!(
            "make and a C compiler build it: on Debian and Ubuntu apt-get install make gcc libc6-dev"
        );
    }
    say!();
    say!("  cd {}", dir.display());
    say!("  {build}");
    say!("  crossweave conform ./{at} --profile minimal");
    say!("  crossweave train CONFIG.json --plugin ./{at}");
    say!();
    say!(
        "README.md in it says what is where; write-a-backend.md leads from here to a back end that is fast."
    );
    Ok(())
}

/// A name becomes a file name, configuration keys, and words of a program.
fn check_name(name: &str, plugins: &Plugins) -> Result<()> {
    let good = name.len() <= LONGEST
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if !good {
        return Err(CliError::refused(
            format!("the name {name:?} cannot be a plugin's"),
            "give a small letter, then small letters, digits and _, at most 32 in all: acme, acme_a100",
        ));
    }
    let found = discover(&plugins.folders);
    if LINKED.contains(&name) || name == "mpi" || found.iter().any(|f| f.name == name) {
        return Err(CliError::refused(
            format!("there is a back end named {name} already"),
            "choose another name; two of one name cannot be distinguished by --backend",
        ));
    }
    // Words of the project itself: the crates that come with it, the headers' guards, keywords and names of its own sources.
    if TAKEN.contains(&name) {
        return Err(CliError::refused(
            format!("{name:?} is a word of the project's own"),
            "choose another name, e.g. with a number or your chip's: acme, acme_a100",
        ));
    }
    Ok(())
}

/// Names under which the generated project would not compile.
const TAKEN: [&str; 28] = [
    "abi",
    "plugin",
    "crossweave",
    "self",
    "backend",
    "device",
    "host",
    "stream",
    "event",
    "mem",
    "error",
    "result",
    "span",
    "ops",
    "op",
    "arc",
    "host_call",
    "code",
    "coll",
    "comm",
    "group",
    "groups",
    "health",
    "launch",
    "member",
    "message",
    "part",
    "support",
];

/// Writes all files into a folder beside `dir`, then renames it; whatever fails leaves nothing.
fn create(name: &str, lang: Lang, dir: &Path) -> Result<()> {
    if dir.symlink_metadata().is_ok() {
        return Err(CliError::refused(
            format!("{} exists", dir.display()),
            "choose another name or --out; nothing is ever overwritten",
        ));
    }
    let Some(last) = dir.file_name() else {
        return Err(CliError::refused(
            format!("--out {} names no new folder", dir.display()),
            "give a path whose last part is the folder to create",
        ));
    };
    let parent = match dir.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    if !parent.is_dir() {
        return Err(CliError::refused(
            format!("{} is no folder", parent.display()),
            "create it first, or give another --out",
        ));
    }
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(last);
    hidden.push(format!(".new-{}", std::process::id()));
    let staged = parent.join(hidden);
    std::fs::create_dir(&staged).map_err(CliError::io("create", &staged))?;
    let whole = write(name, lang, &staged)
        .and_then(|()| std::fs::rename(&staged, dir).map_err(CliError::io("create", dir)));
    if whole.is_err() {
        // The first error is the one to tell.
        let _ = std::fs::remove_dir_all(&staged);
    }
    whole
}

fn write(name: &str, lang: Lang, dir: &Path) -> Result<()> {
    for f in files::of(lang) {
        let path = dir.join(f.path);
        if let Some(p) = path.parent() {
            std::fs::create_dir_all(p).map_err(CliError::io("create", p))?;
        }
        let text = if f.own {
            render(f.text, name)
        } else {
            f.text.to_owned()
        };
        std::fs::write(&path, text).map_err(CliError::io("write", &path))?;
    }
    Ok(())
}

/// The example's text under another name: `softdev`, `SOFTDEV` and `Softdev`.
fn render(text: &str, name: &str) -> String {
    let camel: String = name
        .split('_')
        .filter_map(|part| part.chars().next().map(|c| (c, &part[1..])))
        .map(|(first, rest)| format!("{}{rest}", first.to_ascii_uppercase()))
        .collect();
    let mut title = EXAMPLE.to_owned();
    title[..1].make_ascii_uppercase();
    text.replace(VENDOR_SIDE.0, VENDOR_SIDE.1)
        .replace(EXAMPLE, name)
        .replace(&EXAMPLE.to_uppercase(), &name.to_uppercase())
        .replace(&title, &camel)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn all_three_spellings_change() {
        let text = "softdev.devices SOFTDEV_H struct Softdev libcrossweave_softdev.so";
        assert_eq!(
            render(text, "acme_a1"),
            "acme_a1.devices ACME_A1_H struct AcmeA1 libcrossweave_acme_a1.so"
        );
    }

    #[test]
    fn names_that_are_no_words_are_refused() {
        for bad in [
            "",
            "Acme",
            "9a",
            "a-b",
            "a/b",
            "../a",
            "a b",
            "ä",
            "_a",
            "cpu",
            "null",
            "mpi",
            "self",
            "device",
            "plugin",
            &"a".repeat(33),
        ] {
            let e = check_name(bad, &Plugins::default())
                .unwrap_err()
                .to_string();
            assert!(e.contains("fix:") && !e.contains('\n'), "{bad:?}: {e}");
        }
        for good in ["acme", "a", "acme_a100", "device_2", "x9"] {
            assert!(check_name(good, &Plugins::default()).is_ok(), "{good}");
        }
    }

    /// Every source below a folder of this tree, as `files` spells it.
    fn sources(dir: &str) -> BTreeSet<String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(dir);
        let (mut found, mut todo) = (BTreeSet::new(), vec![root.clone()]);
        while let Some(at) = todo.pop() {
            for e in std::fs::read_dir(&at).expect("a folder") {
                let path = e.expect("an entry").path();
                let ext = path.extension().and_then(|x| x.to_str()).unwrap_or("");
                if path.is_dir() && !path.ends_with("target") {
                    todo.push(path);
                } else if ["rs", "c", "h"].contains(&ext) {
                    let name = path.strip_prefix(&root).expect("below the root");
                    found.insert(name.to_string_lossy().into_owned());
                }
            }
        }
        found
    }

    #[test]
    fn no_source_of_the_example_or_the_abi_is_forgotten() {
        for (lang, from, to) in [
            (Lang::C, "examples/c-plugin", ""),
            (Lang::C, "hal/include", "include/"),
            (Lang::Rust, "examples/rust-plugin/src", "src/"),
            (Lang::Rust, "hal/abi/src", "vendor/crossweave-abi/src/"),
            (
                Lang::Rust,
                "hal/plugin/src",
                "vendor/crossweave-plugin/src/",
            ),
        ] {
            let carried: BTreeSet<&str> = files::of(lang).map(|f| f.path).collect();
            let missing: Vec<String> = sources(from)
                .into_iter()
                .filter(|s| !carried.contains(format!("{to}{s}").as_str()))
                .collect();
            assert!(
                missing.is_empty(),
                "new-plugin does not carry {missing:?} of {from}"
            );
        }
    }
}
