//! What a vendor's compiler made of a module, kept in the target folder by everything that it depends on, so that a second run compiles only
//! what has changed; and which kernels a run compiles for which architecture.

use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// Set to `all`, every kernel is compiled for every architecture (`CROSSWEAVE_KERNELS=all cargo test --release -p crossweave-kernels`, after a
/// kernel was changed). Otherwise every fourth kernel is, for one of them: all families and all architectures have their turn in a twelfth
/// of the time.
const ALL: &str = "CROSSWEAVE_KERNELS";

/// Is every kernel compiled for every architecture?
pub fn all() -> bool {
    std::env::var(ALL).is_ok_and(|v| v == "all")
}

/// Whether a kernel is compiled for architecture `column` in this run; `columns`: the architectures that have it.
pub fn chosen(entry: &str, column: usize, columns: &[usize], all: bool) -> bool {
    let sum = Sha256::digest(entry.as_bytes());
    all || sum[1].is_multiple_of(4) && columns[sum[0] as usize % columns.len()] == column
}

/// Code and the compiler's words, by compiler, options and source.
pub struct Kept(PathBuf);

impl Kept {
    /// `facts`: everything that the result depends on.
    pub fn of(kind: &str, facts: &[&str]) -> Kept {
        let mut hash = Sha256::new();
        for f in facts {
            hash.update((f.len() as u64).to_le_bytes());
            hash.update(f.as_bytes());
        }
        let name: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join("compiled")
            .join(kind);
        Kept(dir.join(name))
    }

    /// What was kept, else what `make` makes, which is kept where it succeeds.
    pub fn or_make(
        &self,
        make: impl FnOnce() -> Result<(Vec<u8>, String), String>,
    ) -> Result<(Vec<u8>, String), String> {
        let (code, words) = (
            self.0.with_extension("code"),
            self.0.with_extension("words"),
        );
        // The words are written last: where they are, the code is whole.
        if let (Ok(words), Ok(code)) = (std::fs::read_to_string(&words), std::fs::read(&code)) {
            return Ok((code, words));
        }
        let made = make()?;
        let put = |to: &Path, bytes: &[u8]| {
            let part = to.with_extension(format!("part{}", std::process::id()));
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::write(&part, bytes).unwrap();
            std::fs::rename(&part, to).unwrap();
        };
        put(&code, &made.0);
        put(&words, made.1.as_bytes());
        Ok(made)
    }
}

#[test]
fn every_kernel_and_every_architecture_has_its_turn() {
    let entries: Vec<String> = (0..60).map(|i| format!("cw_{i}")).collect();
    let took = |column: usize| {
        let of = entries
            .iter()
            .filter(|e| chosen(e, column, &[0, 1, 2], false));
        of.count()
    };
    let some = (0..3).map(took).sum::<usize>();
    assert!(
        (entries.len() / 6..entries.len() / 3).contains(&some),
        "{some}"
    );
    assert!((0..3).all(|c| took(c) > 2));
    assert!(entries.iter().all(|e| chosen(e, 1, &[0, 1, 2], true)));
    // A kernel of one architecture alone has its turn there.
    let one = entries.iter().filter(|e| chosen(e, 2, &[2], false));
    assert_eq!(one.count(), some);
}

#[test]
fn what_was_compiled_is_kept_by_all_it_depends_on() {
    let unique = format!("test {}", std::process::id());
    let made = |facts: &[&str], words: &str| {
        let kept = Kept::of("test", facts);
        kept.or_make(|| Ok((b"code".to_vec(), words.into())))
            .unwrap()
            .1
    };
    assert_eq!(made(&[&unique, "a"], "first"), "first");
    assert_eq!(made(&[&unique, "a"], "second"), "first");
    assert_eq!(made(&[&unique, "b"], "third"), "third");
    let failed = Kept::of("test", &[&unique, "c"]).or_make(|| Err("no".into()));
    assert_eq!(failed, Err("no".into()));
    assert_eq!(made(&[&unique, "c"], "fourth"), "fourth");
}
