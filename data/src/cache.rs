//! Names of cached files: a hash over everything their bytes follow from, and nothing else.
//!
//! The place of a corpus takes no part, so moving it, or cloning onto another machine, rebuilds nothing.

use crate::error::Result;
use crate::example::ExampleReader;
use crate::source::{Form, Packing, SourceFile, stream_file};
use crate::spec::Source;
use crate::tokenizer::Tokenizer;
use crate::workers::Workers;
use sha2::{Digest, Sha256};

/// Changes whenever this crate would write other bytes for the same input.
const FORMAT: &str = "crossweave corpus 2";

/// A SHA-256 digest.
pub(crate) type Hash = [u8; 32];

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|b| [b >> 4, b & 15])
        .filter_map(|n| char::from_digit(n.into(), 16))
        .collect()
}

/// Length and digest of a file's bytes.
pub(crate) fn hash_file(file: &SourceFile) -> Result<(u64, Hash)> {
    let (mut hasher, mut len) = (Sha256::new(), 0);
    stream_file(&file.path, |piece| {
        hasher.update(piece);
        len += piece.len() as u64;
    })?;
    Ok((len, hasher.finalize().into()))
}

/// Digests of all files in order; `seen` receives each file's length as it is done.
pub(crate) fn hash_files(
    files: &[SourceFile],
    seen: impl Fn(u64) + Sync,
) -> Result<Vec<(u64, Hash)>> {
    let hash = |file| hash_file(file).inspect(|(len, _)| seen(*len));
    Workers::start().each(files.iter().collect(), hash)
}

/// Name of the dataset that `tokenizer` makes of these files.
pub(crate) fn corpus_hash(
    files: &[SourceFile],
    hashes: &[(u64, Hash)],
    source: &Source,
    tokenizer: &Tokenizer,
    examples: Option<&ExampleReader>,
) -> Hash {
    let mut all = Sha256::new();
    all.update(FORMAT);
    all.update([0]);
    all.update(tokenizer.identity());
    all.update([0]);
    match (source, examples) {
        (_, Some(reader)) => all.update(reader.identity()),
        (Source::Files(source), None) => {
            all.update(&source.text_key);
            all.update(if source.skip_null {
                &b"\0skip"[..]
            } else {
                b""
            });
        }
        _ => {}
    }
    for (file, (len, hash)) in files.iter().zip(hashes) {
        all.update([match file.form {
            Form::Text => 1,
            Form::JsonLines => 2,
            Form::Parquet => 3,
            Form::Arrow => 4,
            Form::JsonValues => 6,
            Form::Separated(by) => by,
        }]);
        // Once the bytes of such a file were the document themselves.
        if file.packing != Packing::Plain {
            all.update([5]);
        }
        all.update(len.to_le_bytes());
        all.update(hash);
    }
    all.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{FilesSource, TokenizerKind, TokenizerSpec};

    #[test]
    fn a_packed_file_has_another_name_than_its_bytes_as_text() {
        let tokenizer = Tokenizer::open(&TokenizerSpec::new(TokenizerKind::Bytes), None).unwrap();
        let source = Source::Files(FilesSource::new("", ["a.txt.gz"]));
        let name = |packing| {
            let file = SourceFile {
                path: "a.txt.gz".into(),
                form: Form::Text,
                packing,
            };
            corpus_hash(&[file], &[(9, [7; 32])], &source, &tokenizer, None)
        };
        assert_ne!(name(Packing::Plain), name(Packing::Gzip));
    }
}
