//! The file of `record`: what it holds, how it is written, and how a damaged or truncated one is distinguished from a complete one.
//!
//! After a first line come records: kind (1 byte), length (4 bytes), the first 8 bytes of the payload's BLAKE3 hash, payload. A call is a
//! JSON object; contents are records of their own, named by their whole hash and written once. An end record says how many records lie
//! before it; a file whose last record is no end was cut.

use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// First line of a file.
const HEAD: &[u8] = b"crossweave record 1\n";
const CALL: u8 = b'C';
const CONTENT: u8 = b'B';
const END: u8 = b'E';
/// Longest record that is believed.
const LONGEST: u32 = 1 << 30;

/// Why a file cannot be used.
#[derive(Debug)]
pub enum TapeError {
    /// The system's reason.
    Io(PathBuf, std::io::Error),
    /// It is something else.
    Foreign(PathBuf),
    /// Bytes are not what was written.
    Damaged(PathBuf, u64, String),
    /// It stops before its end.
    Cut(PathBuf, u64),
}

impl std::fmt::Display for TapeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TapeError::Io(p, e) => write!(
                f,
                "cannot read {}: {e}; fix: {}",
                p.display(),
                crossweave_files::fix(e)
            ),
            TapeError::Foreign(p) => write!(
                f,
                "{}: no recording of calls; make one with `crossweave train CONFIG --layer record=FILE`",
                p.display()
            ),
            TapeError::Damaged(p, at, why) => {
                write!(
                    f,
                    "{}: damaged at byte {at}: {why}; copy or record it again",
                    p.display()
                )
            }
            TapeError::Cut(p, n) => write!(
                f,
                "{}: cut off after {n} records: the recorded run did not end, or the file is not whole; --partial replays what is there",
                p.display()
            ),
        }
    }
}
impl std::error::Error for TapeError {}

/// A file that is being written.
pub(crate) struct Writer {
    file: BufWriter<File>,
    records: u64,
    contents: HashSet<String>,
    /// The first failure; nothing is written after it.
    pub broken: Option<std::io::Error>,
}

impl Writer {
    pub fn to(path: &Path) -> std::io::Result<Writer> {
        let mut file = BufWriter::new(File::create(path)?);
        file.write_all(HEAD)?;
        file.flush()?;
        Ok(Writer {
            file,
            records: 0,
            contents: HashSet::new(),
            broken: None,
        })
    }

    fn record(&mut self, kind: u8, payload: &[u8]) {
        if self.broken.is_some() {
            return;
        }
        let sum = blake3::hash(payload);
        let mut write = || {
            self.file.write_all(&[kind])?;
            self.file.write_all(&(payload.len() as u32).to_le_bytes())?;
            self.file.write_all(&sum.as_bytes()[..8])?;
            self.file.write_all(payload)
        };
        match write() {
            Ok(()) => self.records += 1,
            Err(e) => self.broken = Some(e),
        }
    }

    pub fn call(&mut self, v: &Value) {
        self.record(CALL, v.to_string().as_bytes());
    }

    /// Keeps bytes, and answers the name they have.
    pub fn content(&mut self, bytes: &[u8]) -> String {
        let name = blake3::hash(bytes).to_hex().to_string();
        if self.contents.insert(name.clone()) {
            // Longer ones are cut into records that follow each other under one name.
            let mut rest = bytes;
            loop {
                let (now, later) = rest.split_at(rest.len().min(1 << 24));
                let mut payload = name.as_bytes().to_vec();
                payload.extend_from_slice(now);
                self.record(CONTENT, &payload);
                rest = later;
                if rest.is_empty() {
                    break;
                }
            }
        }
        name
    }

    pub fn end(&mut self) {
        let n = self.records.to_string();
        self.record(END, n.as_bytes());
        self.flush();
    }

    pub fn flush(&mut self) {
        if let Err(e) = self.file.flush() {
            self.broken.get_or_insert(e);
        }
    }
}

/// A recording in memory.
#[derive(Debug, Default)]
pub struct Recording {
    /// Calls, in their order.
    pub calls: Vec<Value>,
    /// Contents by hash.
    pub contents: HashMap<String, Vec<u8>>,
}

impl Recording {
    /// Reads a file. `partial`: one that was cut is taken as far as it goes.
    ///
    /// # Errors
    /// A file that cannot be read, is something else, damaged, or cut.
    pub fn read(path: &Path, partial: bool) -> Result<Recording, TapeError> {
        let bytes = crossweave_files::read(path, crossweave_files::BULK)
            .map_err(|e| TapeError::Io(path.into(), e))?;
        let Some(mut rest) = bytes.strip_prefix(HEAD) else {
            return Err(TapeError::Foreign(path.into()));
        };
        let mut out = Recording::default();
        let (mut records, mut ended) = (0u64, false);
        while !rest.is_empty() {
            let at = (bytes.len() - rest.len()) as u64;
            let bad = |why: &str| TapeError::Damaged(path.into(), at, why.into());
            let cut = || TapeError::Cut(path.into(), records);
            let Some((head, after)) = rest.split_at_checked(13) else {
                if partial {
                    break;
                }
                return Err(cut());
            };
            let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]);
            if ![CALL, CONTENT, END].contains(&head[0]) || length > LONGEST {
                return Err(bad("no record begins here"));
            }
            let Some((payload, after)) = after.split_at_checked(length as usize) else {
                if partial {
                    break;
                }
                return Err(cut());
            };
            if blake3::hash(payload).as_bytes()[..8] != head[5..13] {
                return Err(bad("the bytes of a record are not those that were written"));
            }
            ended = false;
            match head[0] {
                CALL => {
                    let v = serde_json::from_slice(payload).map_err(|e| bad(&e.to_string()))?;
                    out.calls.push(v);
                }
                CONTENT => {
                    let (name, body) = payload
                        .split_at_checked(64)
                        .ok_or_else(|| bad("a content without a name"))?;
                    let name = String::from_utf8_lossy(name).into_owned();
                    out.contents
                        .entry(name)
                        .or_default()
                        .extend_from_slice(body);
                }
                _ => {
                    if payload != records.to_string().as_bytes() {
                        return Err(bad(&format!(
                            "{records} records lie before it, and it counts another number"
                        )));
                    }
                    ended = true;
                }
            }
            records += 1;
            rest = after;
        }
        if !ended && !partial {
            return Err(TapeError::Cut(path.into(), records));
        }
        for (name, body) in &out.contents {
            if blake3::hash(body).to_hex().as_str() != name && !partial {
                return Err(TapeError::Damaged(
                    path.into(),
                    0,
                    format!("content {name} is not whole"),
                ));
            }
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_damaged_or_cut_is_told_and_never_read_as_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r");
        let mut w = Writer::to(&path).unwrap();
        let long = vec![7u8; (1 << 24) + 5];
        for i in 0..3 {
            w.call(&json!({"c": "copy", "i": i}));
        }
        let name = w.content(&long);
        assert_eq!(w.content(&long), name);
        w.end();
        drop(w);
        let whole = Recording::read(&path, false).unwrap();
        assert_eq!(
            (whole.calls.len(), whole.contents[&name].len()),
            (3, long.len())
        );
        let bytes = std::fs::read(&path).unwrap();
        // Truncated anywhere near the start and at the end: reported as truncated, and read in part when asked.
        for at in (HEAD.len()..HEAD.len() + 90).chain([bytes.len() - 1]) {
            std::fs::write(&path, &bytes[..at]).unwrap();
            let e = Recording::read(&path, false).unwrap_err().to_string();
            assert!(
                e.contains("cut off") || e.contains("not whole"),
                "{at}: {e}"
            );
            assert!(Recording::read(&path, true).is_ok(), "{at}");
        }
        // Every bit of the first records, and the start of the file.
        for at in (0..HEAD.len() + 90).step_by(7) {
            let mut b = bytes.clone();
            b[at] ^= 1;
            std::fs::write(&path, &b).unwrap();
            assert!(Recording::read(&path, false).is_err(), "{at}");
        }
    }
}
