//! Compiled kernels on disk: a file for each source, compiler, driver and architecture, proved by its hash before it is used.
//!
//! A file appears whole (written beside, then renamed), so any number of processes may share the folder. A file that does not prove itself is
//! as good as none and is written anew. Nothing here fails a run: a folder that cannot be written is one warning.

use crate::settings::Settings;
use crossweave_plugin::Host;
use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// First bytes of a file; the number is the format's.
const MAGIC: &[u8; 8] = b"CWIMAGE1";

/// What a compiled kernel is made of.
pub struct Recipe<'a> {
    /// The whole translation unit.
    pub source: &'a str,
    /// The compiler's options.
    pub options: &'a [String],
    /// The compiler's version.
    pub compiler: (i32, i32),
    /// The driver's version.
    pub driver: &'a str,
    /// What it is compiled for.
    pub target: &'a str,
}

pub(crate) type Key = [u8; 32];

impl Recipe<'_> {
    pub(crate) fn key(&self) -> Key {
        let mut h = blake3::Hasher::new();
        let mut field = |b: &[u8]| {
            h.update(&(b.len() as u64).to_le_bytes());
            h.update(b);
        };
        field(MAGIC);
        field(format!("{}.{} {}", self.compiler.0, self.compiler.1, self.driver).as_bytes());
        field(self.target.as_bytes());
        for o in self.options {
            field(o.as_bytes());
        }
        field(self.source.as_bytes());
        *h.finalize().as_bytes()
    }
}

/// The bytes of a file.
fn packed(key: &Key, image: &[u8]) -> Vec<u8> {
    let mut b = Vec::with_capacity(80 + image.len());
    b.extend_from_slice(MAGIC);
    b.extend_from_slice(key);
    b.extend_from_slice(&(image.len() as u64).to_le_bytes());
    b.extend_from_slice(blake3::hash(image).as_bytes());
    b.extend_from_slice(image);
    b
}

/// The image of a file that is what it says, whole.
fn proved(key: &Key, b: &[u8]) -> Option<Vec<u8>> {
    let (head, image) = b.split_at_checked(80)?;
    let whole = head[..8] == MAGIC[..]
        && head[8..40] == key[..]
        && head[40..48] == (image.len() as u64).to_le_bytes()[..]
        && head[48..80] == blake3::hash(image).as_bytes()[..];
    whole.then(|| image.to_vec())
}

pub(crate) struct Cache {
    /// The back end's name.
    vendor: &'static str,
    dir: Option<PathBuf>,
    host: Host,
    written: AtomicU64,
    warned: AtomicBool,
}

impl Cache {
    /// In the back end's own `cache_dir` (`off`: nowhere), else in a folder of its name within any plugin's.
    pub(crate) fn new(host: Host, settings: &Settings) -> Cache {
        let vendor = settings.vendor().name;
        let dir = match settings.own("cache_dir") {
            Some("off") => None,
            Some(own) => Some(PathBuf::from(own)),
            None => settings
                .get("cache_dir")
                .map(|d| PathBuf::from(d).join(vendor)),
        };
        Cache {
            vendor,
            dir,
            host,
            written: AtomicU64::new(0),
            warned: AtomicBool::new(false),
        }
    }

    fn path(dir: &Path, key: &Key) -> PathBuf {
        let hex: String = key[..16].iter().map(|b| format!("{b:02x}")).collect();
        dir.join(format!("{hex}.image"))
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Vec<u8>> {
        let dir = self.dir.as_ref()?;
        proved(key, &std::fs::read(Cache::path(dir, key)).ok()?)
    }

    /// A new file beside, of a name nobody else has: processes (whose numbers repeat between machines and containers that share the folder),
    /// caches of one process, and threads of one cache may all write at once.
    fn beside(&self, dir: &Path) -> std::io::Result<(PathBuf, File)> {
        let (process, cache) = (std::process::id(), std::ptr::from_ref(self) as usize);
        loop {
            let n = self.written.fetch_add(1, Ordering::Relaxed);
            let path = dir.join(format!(".{process}.{cache:x}.{n}.part"));
            match File::create_new(&path) {
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                r => return r.map(|f| (path, f)),
            }
        }
    }

    pub(crate) fn put(&self, key: &Key, image: &[u8]) {
        let Some(dir) = &self.dir else {
            return;
        };
        let write = || {
            std::fs::create_dir_all(dir)?;
            let (beside, mut file) = self.beside(dir)?;
            let done = file
                .write_all(&packed(key, image))
                .and_then(|()| std::fs::rename(&beside, Cache::path(dir, key)));
            if done.is_err() {
                let _ = std::fs::remove_file(&beside);
            }
            done
        };
        if let Err(e) = write()
            && !self.warned.swap(true, Ordering::Relaxed)
        {
            let text = format!(
                "compiled kernels cannot be kept in {}: {e}; every start compiles anew (set {}.cache_dir to a folder that can be written, or to off)",
                dir.display(),
                self.vendor
            );
            self.host.log(2, self.vendor, &text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::About;

    const ABOUT: About = About {
        name: "acme",
        keys: &["acme.cache_dir", "cache_dir"],
        places: &[],
    };

    fn within(dir: &Path) -> Cache {
        let dir = dir.display().to_string();
        Cache::new(
            Host::none(),
            &Settings::new(&ABOUT).with("acme.cache_dir", dir),
        )
    }

    fn recipe<'a>(source: &'a str, options: &'a [String]) -> Recipe<'a> {
        Recipe {
            source,
            options,
            compiler: (12, 8),
            driver: "12.8",
            target: "sm_90a",
        }
    }

    #[test]
    fn everything_that_changes_the_code_changes_the_key() {
        let (a, b) = (["-x".to_string()], ["-".to_string(), "x".to_string()]);
        let k = recipe("s", &a).key();
        assert_eq!(k, recipe("s", &a).key());
        let others = [
            recipe("t", &a).key(),
            recipe("s", &b).key(),
            Recipe {
                compiler: (12, 9),
                ..recipe("s", &a)
            }
            .key(),
            Recipe {
                driver: "12.9",
                ..recipe("s", &a)
            }
            .key(),
            Recipe {
                target: "sm_90",
                ..recipe("s", &a)
            }
            .key(),
        ];
        assert!(others.iter().all(|o| *o != k));
    }

    #[test]
    fn what_was_put_is_got_and_damage_of_any_byte_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let cache = within(&dir.path().join("deep/er"));
        let key = recipe("s", &[]).key();
        assert_eq!(cache.get(&key), None);
        cache.put(&key, b"image");
        assert_eq!(cache.get(&key).as_deref(), Some(&b"image"[..]));
        let file = Cache::path(&dir.path().join("deep/er"), &key);
        let whole = std::fs::read(&file).unwrap();
        for i in 0..whole.len() {
            let mut b = whole.clone();
            b[i] ^= 1;
            std::fs::write(&file, b).unwrap();
            assert_eq!(cache.get(&key), None, "byte {i}");
        }
        for n in [0, 8, 79, whole.len() - 1] {
            std::fs::write(&file, &whole[..n]).unwrap();
            assert_eq!(cache.get(&key), None, "{n} bytes");
        }
        cache.put(&key, b"image");
        assert!(cache.get(&key).is_some());
        // Nothing half written stays.
        assert_eq!(
            std::fs::read_dir(dir.path().join("deep/er"))
                .unwrap()
                .count(),
            1
        );
    }

    #[test]
    fn caches_of_one_folder_write_at_once_and_leave_whole_files() {
        let dir = tempfile::tempdir().unwrap();
        let recipes: Vec<String> = (0..8).map(|i| format!("source {i}")).collect();
        let image = |i: usize| vec![i as u8; 10_000 + i];
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    // Several caches of one process, as of a back end that is linked and one that is loaded.
                    let cache = within(dir.path());
                    for round in 0..5 {
                        for (i, r) in recipes.iter().enumerate() {
                            let key = recipe(r, &[]).key();
                            cache.put(&key, &image(i));
                            assert_eq!(cache.get(&key), Some(image(i)), "round {round}");
                        }
                    }
                });
            }
        });
        let count = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(count, recipes.len());
        // A name that is taken, by another machine's process of this number, is left to it.
        let cache = within(dir.path());
        let (path, _file) = cache.beside(dir.path()).unwrap();
        cache.written.store(0, Ordering::Relaxed);
        let (other, _file) = cache.beside(dir.path()).unwrap();
        assert_ne!(path, other);
    }

    #[test]
    fn a_folder_that_cannot_be_is_no_failure() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let cache = within(&file.join("sub"));
        let key = recipe("s", &[]).key();
        cache.put(&key, b"image");
        assert_eq!(cache.get(&key), None);
        let off = Settings::new(&ABOUT).with("acme.cache_dir", "off");
        let nowhere = Cache::new(Host::none(), &off.with("cache_dir", "/elsewhere"));
        nowhere.put(&key, b"image");
        assert_eq!(nowhere.get(&key), None);
    }
}
