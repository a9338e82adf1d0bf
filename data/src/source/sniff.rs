//! What a file of a corpus is, by its first bytes: text, packed text or a table. Anything else is refused by name, since a
//! model would train on its bytes without a word.

use super::json::{Layout, layout};
use super::{Form, Packing};
use crate::error::{DataError, Result};
use crossweave_files as files;
use std::io::Read;
use std::path::Path;

/// Bytes looked at, at the start of a file and in each stretch of a document.
pub(crate) const HEAD: usize = 1 << 16;

/// First bytes of formats that are no text, and their names.
const FORMATS: &[(&[u8], &str)] = &[
    (b"BZh", "a bzip2 archive"),
    (b"\xfd7zXZ\0", "an xz archive"),
    (b"\x04\x22\x4d\x18", "an lz4 archive"),
    (b"PK\x03\x04", "a zip archive (or a PyTorch checkpoint)"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!", "a rar archive"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\x89HDF", "an HDF5 file"),
    (b"%PDF", "a PDF document"),
    (b"\x7fELF", "a program"),
    (b"MZ\x90\0", "a program"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"RIFF", "a sound or video file"),
    (b"OggS", "a sound file"),
    (b"ID3", "a sound file"),
    (b"\x1aE\xdf\xa3", "a Matroska or WebM video"),
    (b"\xff\x06\0\0sNaPpY", "a snappy archive"),
    (
        b"\x80\x02",
        "a Python pickle (or an old PyTorch checkpoint)",
    ),
    (b"\x80\x03", "a Python pickle"),
    (b"\x80\x04", "a Python pickle"),
    (b"\x80\x05", "a Python pickle"),
    (b"Obj\x01", "an Avro file"),
    (b"ORC", "an ORC table"),
    (
        b"MMIDIDX\0",
        "the index of a Megatron dataset: write {\"indexed\": PREFIX}",
    ),
    (b"\xff\xfe\0\0", "UTF-32 text"),
    (b"\0\0\xfe\xff", "UTF-32 text"),
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
];

/// Finds the packing and the form of the file at `path`: by its content, and where that does not
/// show them, by what its name says, `by_name`. `field` is the one that rows have.
pub(super) fn sniff(path: &Path, by_name: Form, field: &str) -> Result<(Packing, Form)> {
    let (file, _) = files::open(path).map_err(DataError::io("open", path))?;
    let head = first(file).map_err(DataError::io("read", path))?;
    let (packing, form) = sniffed(path, &head, by_name, field)?;
    match named(path) {
        // A download that broke off before its first byte would leave out a shard without a word.
        Some(name) if head.is_empty() => Err(binary(
            path,
            &format!("empty, which no {name} file is"),
            AGAIN,
        )),
        Some(name @ ("Parquet" | "Arrow")) if !matches!(form, Form::Parquet | Form::Arrow) => {
            Err(binary(
                path,
                &format!("not the {name} file that its name says"),
                AGAIN,
            ))
        }
        _ => Ok((packing, form)),
    }
}

const AGAIN: &str = "fetch it again, or exclude it (data.exclude)";

/// The format that the name of a file promises, of those that have no empty files.
fn named(path: &Path) -> Option<&'static str> {
    let extension = path.extension()?.to_str()?.to_ascii_lowercase();
    Some(match &extension[..] {
        "gz" | "gzip" => "gzip",
        "zst" | "zstd" => "zstd",
        "parquet" => "Parquet",
        "arrow" | "feather" => "Arrow",
        _ => return None,
    })
}

fn sniffed(path: &Path, head: &[u8], by_name: Form, field: &str) -> Result<(Packing, Form)> {
    let packing = match head {
        [0x1f, 0x8b, ..] => Packing::Gzip,
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Packing::Zstd,
        _ => return Ok((Packing::Plain, form(path, head, by_name, field)?)),
    };
    let inside = first(packing.open(path)?).map_err(|e| packing.broken(path, e))?;
    match form(path, &inside, by_name, field)? {
        Form::Parquet | Form::Arrow => Err(binary(
            path,
            "a packed table",
            "unpack it: its columns are packed already",
        )),
        form => Ok((packing, form)),
    }
}

fn first(from: impl Read) -> std::io::Result<Vec<u8>> {
    let mut head = Vec::with_capacity(HEAD);
    from.take(HEAD as u64).read_to_end(&mut head)?;
    Ok(head)
}

fn binary(path: &Path, what: &str, fix: &str) -> DataError {
    DataError::Binary {
        path: path.into(),
        what: what.into(),
        fix: fix.into(),
    }
}

fn form(path: &Path, head: &[u8], by_name: Form, field: &str) -> Result<Form> {
    let known = FORMATS.iter().find(|(magic, _)| head.starts_with(magic));
    // A text may begin with the word ORC, but not with bytes that no text has.
    let certain = |magic: &[u8]| magic.iter().any(|b| !b.is_ascii() || *b < b'\t');
    let sure = known.filter(|(magic, _)| certain(magic));
    let what = unreadable(head).or_else(|| sure.map(|(_, name)| name.to_string()));
    if let Some(what) = what {
        if head.starts_with(b"PAR1") {
            return Ok(Form::Parquet);
        }
        // A file, or a stream: a continuation mark and the length of a schema.
        let stream = head.starts_with(b"\xff\xff\xff\xff") && head.get(6..8) == Some(&[0, 0]);
        if head.starts_with(b"ARROW1\0\0") || stream {
            return Ok(Form::Arrow);
        }
        let tar = head.get(257..262).is_some_and(|mark| mark == b"ustar");
        let name = known
            .map(|(_, name)| *name)
            .or(tar.then_some("a tar archive"));
        let fix = match name {
            Some("UTF-16 text" | "UTF-32 text") | None => {
                "save it as UTF-8 text, or exclude it (data.exclude)"
            }
            Some(_) => {
                "exclude it (data.exclude), or turn it into text: .txt, .jsonl, .parquet or .arrow, packed by gzip or zstd if you like"
            }
        };
        return Err(binary(path, name.unwrap_or(&what), fix));
    }
    Ok(match layout(head, head.len() < HEAD, field) {
        Some(Layout::Lines) => Form::JsonLines,
        Some(Layout::Values) => Form::JsonValues,
        None => by_name,
    })
}

/// Says why some stretch of a document is no text, with the byte at which the stretch starts: a
/// file may begin as text and go on as something else. `before` bytes of it precede.
pub(crate) fn unreadable_within(text: &[u8], before: u64) -> Option<String> {
    let starts = (0..text.len()).step_by(HEAD);
    // The last stretch is as long as the others, since of a few bytes nothing can be said.
    let mut starts = starts.map(|at| at.min(text.len().saturating_sub(HEAD)));
    starts.find_map(|at| {
        let what = unreadable(&text[at..text.len().min(at + HEAD)])?;
        Some(match at as u64 + before {
            0 => what,
            at => what.replacen("its first bytes", &format!("its bytes from {at} on"), 1),
        })
    })
}

/// Says why these bytes are no text, whatever they begin with. Some bytes that are not UTF-8 are
/// accepted, as documents of old encodings have them.
fn unreadable(head: &[u8]) -> Option<String> {
    let percent = |n: usize| 100.0 * n as f64 / head.len() as f64;
    let nul = percent(head.iter().filter(|b| **b == 0).count());
    if nul > 0.1 {
        return Some(format!("binary ({nul:.1} % of its first bytes are NUL)"));
    }
    let (mut rest, mut invalid) = (head, 0);
    while let Err(e) = std::str::from_utf8(rest) {
        // What the end of the sample cuts in two is no mistake.
        let Some(len) = e.error_len() else { break };
        invalid += len;
        rest = &rest[e.valid_up_to() + len..];
    }
    let invalid = percent(invalid);
    // Of a few bytes nothing can be said.
    (invalid > 25.0 && head.len() >= 64).then(|| {
        format!("binary or of another encoding ({invalid:.0} % of its first bytes are not UTF-8)")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &[u8]) -> Result<(Packing, Form)> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, bytes).unwrap();
        sniff(&path, Form::Text, "text")
    }

    fn refused(bytes: &[u8]) -> String {
        of(bytes).unwrap_err().to_string()
    }

    #[test]
    fn every_format_is_refused_by_its_name() {
        for (magic, name) in FORMATS {
            let said = refused(&[magic, &b"\0\x01\0\0\x80\xff"[..]].concat());
            assert!(said.contains(name) && said.contains("fix: "), "{said}");
        }
        let mut tar = b"name\0\0".to_vec();
        tar.resize(257, 0);
        tar.extend(b"ustar  \0");
        assert!(refused(&tar).contains("tar archive"));
    }

    #[test]
    fn text_is_text_and_what_is_not_is_not() {
        let plain = Ok((Packing::Plain, Form::Text));
        let same = |bytes: &[u8]| of(bytes).map_err(|e| e.to_string());
        assert_eq!(same("Grüße, 世界\n".repeat(9000).as_bytes()), plain);
        assert_eq!(same(b""), plain);
        // French in Latin-1 is accepted, and reported later.
        assert_eq!(
            same(&b"d\xe9j\xe0 vu, na\xefve et d\xe9cid\xe9, comme toujours; ".repeat(9)),
            plain
        );
        let noise: Vec<u8> = (0..4096u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8 | 0x80)
            .collect();
        assert!(refused(&noise).contains("not UTF-8"));
        assert!(refused(&[b"weights\0\0".repeat(20), noise].concat()).contains("NUL"));
        // A text may begin with what is also the start of a format.
        for word in [
            "ORC, BZh and RIFF",
            "PAR1 for the course",
            "ID3 tags",
            "GIF8 and MZ",
        ] {
            assert_eq!(same(word.as_bytes()), plain, "{word}");
        }
        // Of an archive that stores text as it is, nearly all bytes are text.
        let stored = [
            &b"PK\x03\x04\x14\0"[..],
            &b"plain text, stored. ".repeat(9000),
        ]
        .concat();
        assert!(refused(&stored).contains("zip archive"));
        assert!(refused(&b"\xff\xfe\0\0a\0\0\0".repeat(40)).contains("UTF-32"));
        assert_eq!(same(b"PAR1\x15\0\x15\0").unwrap().1, Form::Parquet);
        assert_eq!(same(b"ARROW1\0\0").unwrap().1, Form::Arrow);
    }

    #[test]
    fn packed_text_is_seen_through_and_packed_binary_refused() {
        use std::io::Write;
        let zip = |bytes: &[u8]| {
            let mut to = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
            to.write_all(bytes).unwrap();
            to.finish().unwrap()
        };
        assert_eq!(of(&zip(b"text")).unwrap(), (Packing::Gzip, Form::Text));
        assert_eq!(
            of(&zstd::encode_all(&b"text"[..], 1).unwrap()).unwrap(),
            (Packing::Zstd, Form::Text)
        );
        assert!(refused(&zip(b"\x93NUMPY\x01\0")).contains("NumPy"));
        assert!(refused(&zip(b"PAR1\x15\0")).contains("packed table"));
        let mut cut = zip(&b"text that is long enough to be cut".repeat(99));
        cut.truncate(20);
        assert!(refused(&cut).contains("damaged"), "{}", refused(&cut));
    }

    #[test]
    fn a_file_that_is_not_what_its_name_says_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let said = |name: &str, bytes: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            sniff(&path, Form::JsonLines, "text").map_err(|e| e.to_string())
        };
        for name in [
            "a.jsonl.gz",
            "a.txt.ZST",
            "a.parquet",
            "a.arrow",
            "a.feather",
        ] {
            let empty = said(name, b"").unwrap_err();
            assert!(
                empty.contains(name) && empty.contains("is empty, which no"),
                "{empty}"
            );
        }
        assert!(said("a.jsonl", b"").is_ok());
        let other = said("b.parquet", b"{\"text\": \"lines\"}\n").unwrap_err();
        assert!(
            other.contains("not the Parquet file that its name says"),
            "{other}"
        );
        // A client may have unpacked a file while it fetched it.
        assert!(said("b.jsonl.gz", b"{\"text\": \"lines\"}\n").is_ok());
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n";
        for name in ["c.parquet", "c.jsonl", "c.txt"] {
            let said = said(name, pointer).unwrap_err();
            assert!(
                said.contains("Git LFS pointer") && said.contains("git lfs pull"),
                "{said}"
            );
        }
    }

    #[test]
    fn what_goes_on_as_something_else_is_found() {
        let text = "Plain text, and more of it.\n".repeat(9000).into_bytes();
        assert_eq!(unreadable_within(&text, 0), None);
        assert_eq!(unreadable_within(b"", 0), None);
        assert_eq!(unreadable_within("世".repeat(70_000).as_bytes(), 0), None);
        let noise: Vec<u8> = (0..90_000u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 23) as u8)
            .collect();
        let found = unreadable_within(&[&text[..], &noise].concat(), 0).unwrap();
        assert!(found.contains("its bytes from "), "{found}");
        // A file system that lost power leaves zeros.
        let found = unreadable_within(&[&text[..], &[0; 4096]].concat(), 0).unwrap();
        assert!(found.contains("NUL"), "{found}");
    }
}
