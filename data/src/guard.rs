//! Libraries that panic on damaged files: a panic of one of them is an error of the file here, and none of this program.

use crossweave_files::clip;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The beginnings of the names of the folders of crates that read files for this one, and of those
/// that they read with; the version follows.
const LIBRARIES: &[&str] = &[
    "arrow-",
    "parquet-",
    "flatbuffers-",
    "snap-",
    "lz4_flex-",
    "zstd-",
    "flate2-",
    "zlib-rs-",
    "miniz_oxide-",
    "tokenizers-",
    "spm_precompiled-",
    "fancy-regex-",
    "onig-",
    "daachorse-",
    "unicode-normalization-alignments-",
    "bytes-",
    "half-",
];

/// Does a panic at this source file belong to a library that is only called under a guard? The error that follows names the file that
/// was read, so a panic hook has nothing to add.
pub fn is_guarded(source: &str) -> bool {
    let mut folders = source.split(['/', '\\']);
    folders.any(|folder| {
        let rest = LIBRARIES.iter().find_map(|l| folder.strip_prefix(l));
        rest.is_some_and(|r| !r.ends_with(".rs") && r.contains(|c: char| c.is_ascii_digit()))
    })
}

/// Runs `f`, which calls a library. Sound to go on after a panic, since nothing but the value being made is touched.
///
/// # Errors
/// It panicked; the words of the panic.
pub(crate) fn guarded<T>(f: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|e| {
        let text = e.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| e.downcast_ref::<&str>().copied());
        clip(text.unwrap_or("no reason given"), 200).to_string()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_of_libraries_are_known_by_their_folder() {
        for theirs in [
            "registry/src/index-1949cf8c/arrow-buffer-60.1.0/src/buffer/scalar.rs",
            "registry\\src\\a\\parquet-60.1.0\\src\\x.rs",
            "/vendor/tokenizers-0.23.2/src/lib.rs",
            "/r/spm_precompiled-0.1.4/src/lib.rs",
            "/r/zstd-safe-7.2.4/src/lib.rs",
        ] {
            assert!(is_guarded(theirs), "{theirs}");
        }
        for ours in [
            "data/src/source/tables.rs",
            "cli/src/tokenizers-of-config.rs",
            "/rustc/5980/library/core/src/slice/index.rs",
            "/r/indexmap-2.1.0/src/map.rs",
        ] {
            assert!(!is_guarded(ours), "{ours}");
        }
        assert_eq!(guarded(|| 3), Ok(3));
    }
}
