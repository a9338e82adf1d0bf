//! Signatures over manifests: who wrote a checkpoint, where hashes say only that it is as it was written.
//!
//! A manifest names the hash of every file, so one signature over it speaks for all. It is Ed25519 over a fixed line and the
//! SHA-256 of `manifest.json`, and lies beside it in `manifest.sig`: `crossweave-signature-1 PUBLIC-KEY SIGNATURE`, in
//! hexadecimal. Keys are files of one line too. Nobody who lacks the secret key can make a manifest that verifies.

use crate::error::{CheckpointError, Result};
use crate::files::write_synced;
use crate::hash::{hex, unhex};
use crate::load::check_files;
use crate::manifest::{is_step, list, read_manifest_bytes};
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use sha2::{Digest, Sha256};
use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The signature's file name, beside the manifest.
pub const SIGNATURE: &str = "manifest.sig";
/// What is signed begins with this, so that no signature of another kind of thing is one of a manifest.
const CONTEXT: &[u8] = b"crossweave checkpoint manifest 1\n";
const SIGNATURE_WORD: &str = "crossweave-signature-1";
const SECRET_WORD: &str = "crossweave-secret-key-1";
const PUBLIC_WORD: &str = "crossweave-public-key-1";
/// Bytes of a key's or a signature's file.
const MOST: u64 = 4096;

/// A key that signs. Its text is never shown.
#[derive(Clone)]
pub struct SecretKey(SigningKey);

/// A key that verifies what its secret one has signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey(VerifyingKey);

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey of {}", self.public())
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(self.0.as_bytes()))
    }
}

/// Draws a pair of keys: the secret one to `path`, readable by its owner alone, and the public one to `path` with `.pub` added,
/// which is returned with its place.
///
/// # Errors
/// A file that is there already; the disk.
pub fn keygen(path: &Path) -> Result<(PublicKey, PathBuf)> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(|e| CheckpointError::Target {
        path: path.to_path_buf(),
        reason: format!("the system gives no random bytes: {e}"),
        fix: "make the key on another machine".into(),
    })?;
    let secret = SecretKey(SigningKey::from_bytes(&seed));
    let mut public_path = path.as_os_str().to_owned();
    public_path.push(".pub");
    let public_path = PathBuf::from(public_path);
    for place in [path, &public_path] {
        if place.symlink_metadata().is_ok() {
            return Err(CheckpointError::Target {
                path: place.to_path_buf(),
                reason: "is there already, and a key that is lost verifies nothing any more".into(),
                fix: "name another file".into(),
            });
        }
    }
    let mut how = std::fs::OpenOptions::new();
    how.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut how, 0o600);
    let line = format!("{SECRET_WORD} {}\n", hex(&seed));
    how.open(path)
        .and_then(|mut f| f.write_all(line.as_bytes()).and_then(|()| f.sync_all()))
        .map_err(CheckpointError::io("write the key", path))?;
    let public = secret.public();
    write_synced(&public_path, format!("{PUBLIC_WORD} {public}\n").as_bytes())?;
    Ok((public, public_path))
}

impl SecretKey {
    /// Reads a key's file.
    ///
    /// # Errors
    /// A file that cannot be read, is no secret key, or may be read by others than its owner.
    pub fn read(path: &Path) -> Result<Self> {
        let words = words(path)?;
        let seed = match &words[..] {
            [w, seed] if w == SECRET_WORD => unhex::<32>(seed),
            [w, _] if w == PUBLIC_WORD => {
                return Err(bad_key(
                    path,
                    "is the public key, which signs nothing",
                    SECRET,
                ));
            }
            _ => None,
        };
        let seed = seed.ok_or_else(|| bad_key(path, "is no secret key", SECRET))?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let meta = std::fs::metadata(path).map_err(CheckpointError::io("read", path))?;
            let mode = meta.permissions().mode() & 0o777;
            if mode & 0o077 != 0 {
                let reason = format!("may be used by others than its owner (mode {mode:o})");
                return Err(bad_key(path, &reason, "chmod 600 it, or make a new one"));
            }
        }
        Ok(Self(SigningKey::from_bytes(&seed)))
    }

    /// The key that verifies.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }

    /// The text of `manifest.sig` for the text of a manifest.
    pub(crate) fn sign(&self, manifest: &[u8]) -> String {
        let signature = self.0.sign(&message(&Sha256::digest(manifest).into()));
        let public = self.public();
        format!("{SIGNATURE_WORD} {public} {}\n", hex(&signature.to_bytes()))
    }
}

/// What to do about a checkpoint that is not signed by the key it must be.
pub(crate) const UNSIGNED_FIX: &str = "take a checkpoint that is signed by this key, or sign one you trust with `crossweave checkpoint sign`";
const SECRET: &str = "name the file that `crossweave checkpoint keygen` wrote";
const PUBLIC: &str = "name the .pub file that `crossweave checkpoint keygen` wrote";

impl PublicKey {
    /// Reads a key's file.
    ///
    /// # Errors
    /// A file that cannot be read or is no public key.
    pub fn read(path: &Path) -> Result<Self> {
        let words = words(path)?;
        let key = match &words[..] {
            [w, key] if w == PUBLIC_WORD => unhex::<32>(key),
            [w, _] if w == SECRET_WORD => {
                let reason = "is a secret key; only the public one is needed to verify";
                return Err(bad_key(path, reason, PUBLIC));
            }
            _ => None,
        };
        key.and_then(|k| VerifyingKey::from_bytes(&k).ok())
            .map(Self)
            .ok_or_else(|| bad_key(path, "is no public key", PUBLIC))
    }

    /// Holds the signature in a step's folder against the SHA-256 of its manifest. The error is a reason.
    pub(crate) fn check(
        &self,
        step: &Path,
        manifest: &[u8; 32],
    ) -> std::result::Result<(), String> {
        let path = step.join(SIGNATURE);
        let text = match crossweave_files::read_text(&path, MOST) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(format!("is not signed (there is no {SIGNATURE})"));
            }
            other => other.map_err(|e| format!("its {SIGNATURE} cannot be read: {e}"))?,
        };
        let words: Vec<&str> = text.split_whitespace().collect();
        let (key, signature) = match words[..] {
            [SIGNATURE_WORD, key, signature] => (key, unhex::<64>(signature)),
            _ => ("", None),
        };
        let Some(signature) = signature else {
            return Err(format!("its {SIGNATURE} is no signature of this version"));
        };
        if key != self.to_string() {
            return Err(format!(
                "is signed by another key ({key:.12}…) than the one given ({:.12}…)",
                self.to_string()
            ));
        }
        self.0
            .verify_strict(&message(manifest), &Signature::from_bytes(&signature))
            .map_err(|_| {
                "does not match its signature: it is not what the owner of the key wrote".into()
            })
    }
}

/// Signs the checkpoint at `dir`, or every checkpoint of the run there, each after all of its bytes are verified. Returns the steps'
/// folders. An earlier signature is replaced.
///
/// # Errors
/// No checkpoint; damage; the disk.
pub fn sign(dir: &Path, key: &SecretKey) -> Result<Vec<PathBuf>> {
    let steps = match is_step(dir) {
        true => vec![dir.to_path_buf()],
        false => list(dir)?.into_iter().map(|f| f.path).collect(),
    };
    if steps.is_empty() {
        return Err(CheckpointError::NotFound {
            path: dir.to_path_buf(),
            reason: "holds no checkpoint to sign".into(),
            fix: "name a run's directory, or one of the folders in its checkpoints/".into(),
        });
    }
    for step in &steps {
        check_files(step).map_err(|(file, reason)| {
            CheckpointError::header(&file, reason, "sign what verifies only")
        })?;
        let bytes = read_manifest_bytes(step)?;
        let place = step.join(SIGNATURE);
        let partial = step.join(format!(".{SIGNATURE}.partial"));
        write_synced(&partial, key.sign(&bytes).as_bytes())?;
        std::fs::rename(&partial, &place)
            .map_err(CheckpointError::io("rename into place", &place))?;
        crate::files::sync_dir(step)?;
    }
    Ok(steps)
}

fn message(manifest: &[u8; 32]) -> Vec<u8> {
    [CONTEXT, manifest].concat()
}

fn words(path: &Path) -> Result<Vec<String>> {
    let text = crossweave_files::read_text(path, MOST)
        .map_err(CheckpointError::io("read the key", path))?;
    Ok(text.split_whitespace().map(str::to_string).collect())
}

fn bad_key(path: &Path, reason: &str, fix: &str) -> CheckpointError {
    CheckpointError::NotFound {
        path: path.to_path_buf(),
        reason: reason.into(),
        fix: fix.into(),
    }
}
