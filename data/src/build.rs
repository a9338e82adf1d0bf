//! Documents to a `.bin/.idx` pair: tokenised in parallel, written in order, once for each content.
//!
//! Work goes in portions of about 32 MiB of text, so a corpus of any size needs memory for one portion (and for the
//! largest single document). The `.idx` gets its name last: where it exists, the `.bin` beside it is whole.

use crate::atomic::{AtomicFile, write_file};
use crate::cache::{Hash, corpus_hash, hash_files, hex};
use crate::error::{DataError, Result};
use crate::example::{ExampleReader, READ};
use crate::index_file::{Index, TokenType};
use crate::indexed::{IndexedDataset, pair};
use crate::progress::{Phase, Progress};
use crate::report::{BuildReport, rows_as_text};
use crate::source::{
    Column, Form, JsonRows, LONGEST_LINE, Packing, Row, STRETCH, SourceFile, Tap, arrow, as_rows,
    csv, list_cargo, list_files, parquet, read_file, row_error, stream_file, table_rows,
    total_bytes,
};
use crate::spec::Source;
use crate::task::{Document, Odd, Recipe, Task, check_unchanged, too_long, uncut};
use crate::tokenizer::Tokenizer;
use crate::workers::Workers;
use sha2::{Digest, Sha256};
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

/// Bytes of text tokenised between two writes.
const PORTION: u64 = 32 << 20;

/// Bytes of a part of a file, and of the parts that are tokenised at once.
const PART: usize = 1 << 20;
const PARTS: u64 = 8 << 20;

/// The most text without a place to cut that is tokenised as one part.
const UNCUT: usize = 64 << 20;

/// A packed text that is so many times as long as its file is suspicious.
const ODD_RATIO: u64 = 1000;

/// A dataset ready to read, and the hash that names its content.
pub(crate) struct Built {
    pub(crate) set: IndexedDataset,
    /// The marks of its tokens that count, where they are examples.
    pub(crate) counts: Option<IndexedDataset>,
    pub(crate) hash: Hash,
    pub(crate) report: BuildReport,
}

/// Finds the dataset of a text source in `cache`, or builds it there.
pub(crate) fn build(
    source: &Source,
    key: &str,
    tokenizer: &Tokenizer,
    examples: Option<&ExampleReader>,
    cache: &Path,
    progress: &dyn Progress,
) -> Result<Built> {
    let (files, column) = match source {
        Source::Files(files) => (list_files(files, key)?, files.column()),
        Source::Cargo(cargo) => (list_cargo(cargo, key)?, Column::TEXT),
        Source::Indexed(prefix) => return ready_made(prefix),
        Source::Given { .. } | Source::Mixture(_) => {
            return Err(DataError::setting(
                key,
                "given batches and mixtures have no documents themselves",
                "use them as a source of their own",
            ));
        }
    };
    let files = match examples {
        Some(_) => as_rows(files)?,
        None => files,
    };
    let recipe = match examples {
        Some(reader) => Recipe::Examples(reader),
        None => Recipe::Field(column),
    };
    let total = total_bytes(&files)?;
    progress.begin(Phase::Hash, total);
    let hashes = hash_files(&files, |n| progress.advance(n))?;
    progress.end();
    let hash = corpus_hash(&files, &hashes, source, tokenizer, examples);
    let prefix = cache.join(format!("corpus-{}", &hex(&hash)[..32]));
    let bytes = hashes.iter().map(|(len, _)| len).sum();
    let built = !pair(&prefix).1.exists();
    let (mut lossy_documents, mut null_rows) = (0, 0);
    if built {
        for (file, (len, _)) in files.iter().zip(&hashes) {
            let holds = file.packing.declared(&file.path)?;
            if let Some(holds) = holds.filter(|n| n / ODD_RATIO > *len) {
                progress.warn(&format!(
                    "{key}: {} holds {holds} bytes in {len}, more than {ODD_RATIO} times as many; fix: exclude it (data.exclude) unless that is meant",
                    file.path.display()
                ));
            }
        }
        progress.begin(Phase::Tokenize, bytes);
        let mut writer = Writer::create(&prefix, tokenizer, recipe)?;
        for (file, (_, hash)) in files.iter().zip(&hashes) {
            writer.file(file, hash, recipe, tokenizer, progress)?;
        }
        writer.flush(recipe, tokenizer, progress)?;
        (lossy_documents, null_rows) = writer.finish()?;
        progress.end();
    }
    let set = IndexedDataset::open(&prefix)?;
    let counts = match recipe {
        Recipe::Examples(_) => Some(counts_of(&set, &prefix)?),
        Recipe::Field(_) => None,
    };
    let (documents, tokens) = (set.documents() as u64, set.tokens());
    let rows_as_text = match source {
        Source::Files(_) => rows_as_text(&files),
        _ => None,
    };
    let files = files.len() as u64;
    Ok(Built {
        hash,
        report: BuildReport {
            built,
            documents,
            tokens,
            bytes,
            files,
            lossy_documents,
            null_rows,
            rows_as_text,
            prefix,
        },
        set,
        counts,
    })
}

/// Returns the path prefix of the file that says which tokens of a dataset count.
fn counts_prefix(prefix: &Path) -> PathBuf {
    let mut name = prefix.as_os_str().to_owned();
    name.push("-counted");
    name.into()
}

/// Opens which tokens of `set` count.
fn counts_of(set: &IndexedDataset, prefix: &Path) -> Result<IndexedDataset> {
    let counts = IndexedDataset::open(&counts_prefix(prefix))?;
    let alike = |i: usize| counts.length(i) == set.length(i);
    if counts.sequences() == set.sequences() && (0..set.sequences()).all(alike) {
        return Ok(counts);
    }
    Err(DataError::Corrupt {
        path: counts.idx_path().into(),
        offset: 0,
        reason: format!("it is not of the examples in {}", set.idx_path().display()),
        fix: "delete both; they will be made again".into(),
    })
}

/// Opens a dataset made elsewhere. Its name in the cache follows from its index and length: reading all of a dataset
/// of terabytes at each start is not worth what it would find, since ids are held to the vocabulary when they are read.
pub(crate) fn ready_made(prefix: &Path) -> Result<Built> {
    let set = IndexedDataset::open(prefix)?;
    let hash = Sha256::digest(read_file(set.idx_path())?).into();
    let report = BuildReport::of_ready_made(&set, prefix);
    Ok(Built {
        set,
        counts: None,
        hash,
        report,
    })
}

struct Writer {
    bin: AtomicFile,
    idx: PathBuf,
    /// The same of which tokens count.
    counts: Option<(AtomicFile, PathBuf)>,
    token_type: TokenType,
    lengths: Vec<u32>,
    lossy: u64,
    /// Rows of null that are left out.
    nulls: u64,
    /// Tokens of a document whose parts are still coming, and whether any of its bytes were replaced.
    open: (u32, bool),
    tasks: Vec<Task>,
    weight: u64,
    workers: Workers,
}

impl Writer {
    fn create(prefix: &Path, tokenizer: &Tokenizer, recipe: Recipe<'_>) -> Result<Self> {
        let (bin, idx) = pair(prefix);
        let counts = match recipe {
            Recipe::Field(_) => None,
            Recipe::Examples(_) => {
                let (bin, idx) = pair(&counts_prefix(prefix));
                Some((AtomicFile::create(&bin)?, idx))
            }
        };
        Ok(Self {
            bin: AtomicFile::create(&bin)?,
            idx,
            counts,
            token_type: TokenType::for_vocab(tokenizer.vocab_size()),
            lengths: Vec::new(),
            lossy: 0,
            nulls: 0,
            open: (0, false),
            tasks: Vec::new(),
            weight: 0,
            workers: Workers::start(),
        })
    }

    /// Takes the documents of a file whose bytes must still have the digest the cache entry was named after.
    fn file(
        &mut self,
        file: &SourceFile,
        hash: &Hash,
        recipe: Recipe<'_>,
        tokenizer: &Tokenizer,
        progress: &dyn Progress,
    ) -> Result<()> {
        match file.form {
            Form::Text => {
                let len =
                    crossweave_files::len(&file.path).map_err(DataError::io("read", &file.path))?;
                let long = len > PARTS || file.packing != Packing::Plain;
                if long && tokenizer.has_cuts() {
                    return self.parts(file, hash, recipe, tokenizer, progress);
                }
                self.push(
                    Task::File {
                        path: file.path.clone(),
                        hash: *hash,
                        packing: file.packing,
                    },
                    len,
                    recipe,
                    tokenizer,
                    progress,
                )
            }
            Form::JsonLines | Form::JsonValues => {
                self.rows(file, hash, recipe, tokenizer, progress)
            }
            Form::Parquet | Form::Arrow | Form::Separated(_) => {
                self.table(file, hash, recipe, tokenizer, progress)
            }
        }
    }

    /// One document in parts, so that a file of any length needs memory for a few of them.
    fn parts(
        &mut self,
        source: &SourceFile,
        hash: &Hash,
        recipe: Recipe<'_>,
        tokenizer: &Tokenizer,
        progress: &dyn Progress,
    ) -> Result<()> {
        let (path, packing) = (&source.path, source.packing);
        self.flush(recipe, tokenizer, progress)?;
        let (file, len) = crossweave_files::open(path).map_err(DataError::io("open", path))?;
        let mut hasher = Sha256::new();
        let eat = |bytes: &[u8]| {
            hasher.update(bytes);
            progress.advance(bytes.len() as u64);
        };
        let inside = packing.unpack(Tap { file, eat });
        let mut inside = inside.map_err(|e| packing.broken(path, e))?;
        let (mut text, mut at) = (vec![], 0u64);
        let odd = |holds: u64| holds / ODD_RATIO > len && packing != Packing::Plain;
        let mut warned = packing.declared(path)?.is_some_and(odd);
        loop {
            let wanted = PART.max(text.len());
            let n = (&mut inside)
                .take(wanted as u64)
                .read_to_end(&mut text)
                .map_err(|e| packing.broken(path, e))?;
            if packing != Packing::Plain && at + text.len() as u64 > LONGEST_LINE {
                return Err(too_long(path));
            }
            if !warned && odd(at + text.len() as u64) {
                warned = true;
                progress.warn(&format!(
                    "{} holds more than {ODD_RATIO} times its {len} bytes, and does not say how much; fix: exclude it (data.exclude) unless that is \
                     meant",
                    path.display()
                ));
            }
            let last = n < wanted;
            let end = match last {
                true => text.len(),
                // Without a place to cut, more of it is read. What stays is long enough to be judged by its bytes.
                false => {
                    let most = text.len().saturating_sub(STRETCH);
                    tokenizer.cut(&text[..most]).unwrap_or(0)
                }
            };
            if text.len() - end > UNCUT || end > UNCUT {
                return Err(uncut(path, UNCUT));
            }
            if end > 0 || last {
                let rest = text.split_off(end);
                let bytes = std::mem::replace(&mut text, rest);
                self.weight += end as u64;
                let path = path.clone();
                self.tasks.push(Task::Part {
                    path,
                    at,
                    bytes,
                    last,
                });
                at += end as u64;
            }
            if self.weight >= PARTS || last {
                self.flush(recipe, tokenizer, progress)?;
            }
            if last {
                break;
            }
        }
        drop(inside);
        check_unchanged(path, hasher, hash)
    }

    fn table(
        &mut self,
        file: &SourceFile,
        hash: &Hash,
        recipe: Recipe<'_>,
        tokenizer: &Tokenizer,
        progress: &dyn Progress,
    ) -> Result<()> {
        let path = &file.path;
        // A table is read from its end, so its bytes are held to the digest on their own.
        let mut hasher = Sha256::new();
        stream_file(path, |piece| hasher.update(piece))?;
        check_unchanged(path, hasher, hash)?;
        if let Recipe::Examples(_) = recipe {
            return table_rows(file, READ, &mut |row: Row| {
                let (weight, path) = (row.bytes.len() as u64, path.clone());
                self.push(Task::Row { path, row }, weight, recipe, tokenizer, progress)?;
                Ok(true)
            });
        }
        let column = recipe.column();
        let mut eat = |text: Option<&str>| {
            let Some(text) = text else {
                self.nulls += 1;
                return Ok(());
            };
            let (weight, path, text) = (text.len() as u64, path.clone(), text.to_string());
            self.push(
                Task::Cell { path, text },
                weight,
                recipe,
                tokenizer,
                progress,
            )
        };
        match file.form {
            Form::Parquet => parquet(path, column, &mut eat),
            Form::Separated(by) => {
                let failed = |e| file.packing.broken(path, e);
                let from = file.packing.open(path)?;
                csv(path, from, by, recipe.field(), failed, &mut eat)
            }
            _ => arrow(path, column, &mut eat),
        }
    }

    fn rows(
        &mut self,
        source: &SourceFile,
        hash: &Hash,
        recipe: Recipe<'_>,
        tokenizer: &Tokenizer,
        progress: &dyn Progress,
    ) -> Result<()> {
        let (path, packing) = (&source.path, source.packing);
        let (file, _) = crossweave_files::open(path).map_err(DataError::io("open", path))?;
        let mut hasher = Sha256::new();
        let eat = |bytes: &[u8]| hasher.update(bytes);
        let inside = packing.unpack(Tap { file, eat });
        let inside = inside.map_err(|e| packing.broken(path, e))?;
        let mut rows = JsonRows::new(BufReader::with_capacity(1 << 20, inside), source.form);
        while let Some(row) = rows
            .next()
            .map_err(|e| row_error(e, source, recipe.field()))?
        {
            let (weight, path) = (row.bytes.len() as u64, path.clone());
            self.push(Task::Row { path, row }, weight, recipe, tokenizer, progress)?;
        }
        drop(rows);
        check_unchanged(path, hasher, hash)
    }

    fn push(
        &mut self,
        task: Task,
        weight: u64,
        recipe: Recipe<'_>,
        tokenizer: &Tokenizer,
        progress: &dyn Progress,
    ) -> Result<()> {
        self.tasks.push(task);
        self.weight += weight;
        if self.weight >= PORTION {
            self.flush(recipe, tokenizer, progress)
        } else {
            Ok(())
        }
    }

    /// Tokenises what is waiting and appends it in order.
    fn flush(
        &mut self,
        recipe: Recipe<'_>,
        tokenizer: &Tokenizer,
        progress: &dyn Progress,
    ) -> Result<()> {
        self.weight = 0;
        let (token_type, tasks) = (self.token_type, std::mem::take(&mut self.tasks));
        let run = |task: Task| task.run(recipe, tokenizer, token_type, progress);
        let documents: Vec<Document> = self.workers.each(tasks, run)?;
        for document in documents {
            self.nulls += u64::from(document.odd == Some(Odd::Null));
            self.bin.write(&document.bytes)?;
            if let Some((counts, _)) = &mut self.counts {
                counts.write(&document.counted)?;
            }
            let (before, lossy) = self.open;
            let tokens = before
                .checked_add(document.tokens)
                .filter(|n| *n <= i32::MAX as u32);
            let tokens = tokens.ok_or_else(|| {
                let reason = "a file holds a document of more tokens than the format can";
                let fix = "split the document into files below 2 GiB";
                DataError::setting("data.train", reason, fix)
            })?;
            self.open = (tokens, lossy || document.odd == Some(Odd::Lossy));
            if !document.goes_on && tokens > 0 {
                self.lengths.push(tokens);
                self.lossy += u64::from(self.open.1);
                self.open = (0, false);
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<(u64, u64)> {
        if let Some((bin, idx)) = self.counts {
            bin.commit()?;
            let index = Index::of_documents(TokenType::U8, self.lengths.clone());
            write_file(&idx, &index.to_bytes())?;
        }
        self.bin.commit()?;
        write_file(
            &self.idx,
            &Index::of_documents(self.token_type, self.lengths).to_bytes(),
        )?;
        Ok((self.lossy, self.nulls))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::NoProgress;
    use crate::spec::{CargoSource, FilesSource, TokenizerKind, TokenizerSpec};
    use std::sync::Mutex;

    fn bytes_tokenizer(append: bool) -> Tokenizer {
        let spec = TokenizerSpec {
            append_eod: Some(append),
            ..TokenizerSpec::new(TokenizerKind::Bytes)
        };
        Tokenizer::open(&spec, None).unwrap()
    }

    fn files(dir: &Path, globs: &[&str]) -> Source {
        Source::Files(FilesSource::new(dir, globs.iter().copied()))
    }

    fn run(source: &Source, tokenizer: &Tokenizer, cache: &Path) -> Result<Built> {
        build(source, "data.train", tokenizer, None, cache, &NoProgress)
    }

    #[test]
    fn the_golden_dataset_is_byte_equal() {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in [
            ("a", &[1u8, 2, 3][..]),
            ("b", &[4, 5]),
            ("c", &[6]),
            ("d", &[]),
        ] {
            std::fs::write(dir.path().join(name), bytes).unwrap();
        }
        let cache = tempfile::tempdir().unwrap();
        let built = run(
            &files(dir.path(), &["*"]),
            &bytes_tokenizer(false),
            cache.path(),
        )
        .unwrap();
        let bin = std::fs::read(built.set.bin_path()).unwrap();
        assert_eq!(bin, [1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0]);
        let idx = std::fs::read(built.set.idx_path()).unwrap();
        assert_eq!(idx.len(), 102);
        assert_eq!(
            idx,
            Index::of_documents(TokenType::U16, vec![3, 2, 1]).to_bytes()
        );
        let report = BuildReport {
            built: true,
            documents: 3,
            tokens: 6,
            bytes: 6,
            files: 4,
            lossy_documents: 0,
            null_rows: 0,
            rows_as_text: None,
            prefix: built.report.prefix.clone(),
        };
        assert_eq!(built.report, report);
        assert_eq!(std::fs::read_dir(cache.path()).unwrap().count(), 2);
    }

    #[test]
    fn the_second_start_builds_nothing_and_content_decides() {
        let dir = tempfile::tempdir().unwrap();
        let cache = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.txt"), "one").unwrap();
        std::fs::write(
            dir.path().join("b.jsonl"),
            "{\"text\":\"two\"}\n\n{\"text\":\"\"}\r\n{\"text\":\"x\"}",
        )
        .unwrap();
        let source = files(dir.path(), &["*"]);
        let first = run(&source, &bytes_tokenizer(true), cache.path()).unwrap();
        assert!(first.report.built);
        assert_eq!(
            (first.report.documents, first.report.tokens),
            (3, 3 + 3 + 1 + 3)
        );
        let mut tokens = [0; 4];
        first.set.read(1, 0, None, &mut tokens).unwrap();
        assert_eq!(tokens, [116, 119, 111, 256]);
        let stamp = std::fs::metadata(first.set.bin_path())
            .unwrap()
            .modified()
            .unwrap();
        let second = run(&source, &bytes_tokenizer(true), cache.path()).unwrap();
        assert!(!second.report.built && second.hash == first.hash);
        assert_eq!(second.report.tokens, first.report.tokens);
        assert_eq!(
            std::fs::metadata(second.set.bin_path())
                .unwrap()
                .modified()
                .unwrap(),
            stamp
        );
        // Another place with the same content is the same corpus; another tokenizer or content is not.
        let moved = tempfile::tempdir().unwrap();
        for name in ["a.txt", "b.jsonl"] {
            std::fs::copy(dir.path().join(name), moved.path().join(name)).unwrap();
        }
        assert!(
            !run(
                &files(moved.path(), &["*"]),
                &bytes_tokenizer(true),
                cache.path()
            )
            .unwrap()
            .report
            .built
        );
        assert!(
            run(&source, &bytes_tokenizer(false), cache.path())
                .unwrap()
                .report
                .built
        );
        std::fs::write(dir.path().join("a.txt"), "onE").unwrap();
        assert!(
            run(&source, &bytes_tokenizer(true), cache.path())
                .unwrap()
                .report
                .built
        );
    }

    #[test]
    fn a_failed_build_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let cache = tempfile::tempdir().unwrap();
        std::fs::write(
            dir.path().join("b.jsonl"),
            "{\"text\":\"two\"}\n{\"text\":2}\n",
        )
        .unwrap();
        let error = run(
            &files(dir.path(), &["*.jsonl"]),
            &bytes_tokenizer(true),
            cache.path(),
        )
        .err()
        .unwrap()
        .to_string();
        assert!(error.contains("b.jsonl:2:"), "{error}");
        assert_eq!(std::fs::read_dir(cache.path()).unwrap().count(), 0);
    }

    #[test]
    fn bytes_that_are_not_text_are_kept_or_counted() {
        let dir = tempfile::tempdir().unwrap();
        let cache = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.txt"), b"a\xff\xfeb").unwrap();
        let source = files(dir.path(), &["a.txt"]);
        assert_eq!(
            run(&source, &bytes_tokenizer(false), cache.path())
                .unwrap()
                .report
                .lossy_documents,
            0
        );
        let gpt2 = Tokenizer::open(&TokenizerSpec::new(TokenizerKind::Gpt2), None).unwrap();
        let built = run(&source, &gpt2, cache.path()).unwrap();
        assert_eq!(built.report.lossy_documents, 1);
        assert_eq!(built.set.token_type(), TokenType::U16);
    }

    #[test]
    fn portions_keep_the_order_and_progress_adds_up() {
        struct Seen(Mutex<Vec<(Option<Phase>, u64)>>);
        impl Progress for Seen {
            fn begin(&self, phase: Phase, total: u64) {
                self.0.lock().unwrap().push((Some(phase), total));
            }
            fn advance(&self, bytes: u64) {
                self.0.lock().unwrap().last_mut().unwrap().1 -= bytes;
            }
            fn end(&self) {
                self.0.lock().unwrap().push((None, 0));
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let cache = tempfile::tempdir().unwrap();
        let sizes = [PORTION as usize - 10, 20, 5, 7];
        for (i, size) in sizes.iter().enumerate() {
            std::fs::write(
                dir.path().join(format!("{i}.txt")),
                vec![b'0' + i as u8; *size],
            )
            .unwrap();
        }
        let seen = Seen(Mutex::new(Vec::new()));
        let built = build(
            &files(dir.path(), &["*.txt"]),
            "k",
            &bytes_tokenizer(false),
            None,
            cache.path(),
            &seen,
        )
        .unwrap();
        for (i, size) in sizes.iter().enumerate() {
            assert_eq!(built.set.length(i), Some(*size as u32));
            let mut one = [0];
            built.set.read(i, 3, None, &mut one).unwrap();
            assert_eq!(one[0], u32::from(b'0') + i as u32);
        }
        let expected = [
            (Some(Phase::Hash), 0),
            (None, 0),
            (Some(Phase::Tokenize), 0),
            (None, 0),
        ];
        assert_eq!(*seen.0.lock().unwrap(), expected);
    }

    #[test]
    fn a_long_file_in_parts_is_the_document_that_it_was_whole() {
        let dir = tempfile::tempdir().unwrap();
        let line = |i: usize| match i % 7 {
            0 => format!("  indented {i},\t\u{e9}t\u{e9};\n"),
            1 => "\n\n".to_string(),
            2 => format!("x{i}();\r\n"),
            _ => format!("line {i} of a text, 'tis long.\n"),
        };
        let text: String = (0..400_000).map(line).collect();
        assert!(text.len() as u64 > PARTS);
        std::fs::write(dir.path().join("a.txt"), &text).unwrap();
        let packed = zstd::encode_all(text.as_bytes(), 1).unwrap();
        std::fs::write(dir.path().join("b.txt.zst"), packed).unwrap();
        // No place to cut at, and one without a letter behind a line.
        std::fs::write(dir.path().join("c.txt"), " 1\n".repeat(3_000_000)).unwrap();
        for kind in [TokenizerKind::Bytes, TokenizerKind::Gpt2] {
            let tokenizer = Tokenizer::open(&TokenizerSpec::new(kind), None).unwrap();
            let cache = tempfile::tempdir().unwrap();
            let built = run(&files(dir.path(), &["*"]), &tokenizer, cache.path()).unwrap();
            assert_eq!(built.report.documents, 3);
            let mut expected = tokenizer.encode(text.as_bytes()).unwrap().tokens;
            expected.extend(tokenizer.eod());
            for i in 0..2 {
                let mut got = vec![0; built.set.length(i).unwrap() as usize];
                built.set.read(i, 0, None, &mut got).unwrap();
                assert!(got == expected, "document {i}");
            }
        }
    }

    #[test]
    fn a_file_that_packs_a_thousand_times_its_bytes_is_named_before_it_is_read() {
        struct Warned(Mutex<Vec<String>>);
        impl Progress for Warned {
            fn begin(&self, phase: Phase, _: u64) {
                self.0.lock().unwrap().push(format!("{phase:?}"));
            }
            fn advance(&self, _: u64) {}
            fn end(&self) {}
            fn warn(&self, words: &str) {
                self.0.lock().unwrap().push(words.into());
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let (odd, plain) = (vec![b'a'; 8 << 20], b"some text\n".repeat(20));
        let write =
            |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).unwrap();
        write("odd.txt.zst", &zstd::bulk::compress(&odd, 1).unwrap());
        // Written as a stream, it does not say how much it holds.
        write("open.txt.zst", &zstd::encode_all(&odd[..], 1).unwrap());
        write("plain.txt.zst", &zstd::bulk::compress(&plain, 1).unwrap());
        let said = Warned(Mutex::default());
        let source = files(dir.path(), &["*.zst"]);
        let cache = dir.path().join("cache");
        build(&source, "k", &bytes_tokenizer(true), None, &cache, &said).unwrap();
        let said = said.0.into_inner().unwrap();
        assert_eq!(said.len(), 4, "{said:?}");
        assert!(
            said[1].starts_with("k: ") && said[1].contains("odd.txt.zst holds 8388608 bytes"),
            "{said:?}"
        );
        assert_eq!(said[2], "Tokenize");
        assert!(
            said[3].contains("open.txt.zst holds more than 1000 times"),
            "{said:?}"
        );
    }

    #[test]
    fn text_without_a_place_to_cut_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let spaces = zstd::encode_all(&vec![b' '; 2 * UNCUT + 9][..], 1).unwrap();
        std::fs::write(dir.path().join("a.txt.zst"), spaces).unwrap();
        let gpt2 = Tokenizer::open(&TokenizerSpec::new(TokenizerKind::Gpt2), None).unwrap();
        let cache = dir.path().join("cache");
        let e = run(&files(dir.path(), &["*"]), &gpt2, &cache)
            .err()
            .unwrap();
        let said = e.to_string();
        for part in ["data.train", "a.txt.zst", "67108864 bytes", "fix:"] {
            assert!(said.contains(part), "{said}");
        }
        assert_eq!(std::fs::read_dir(cache).unwrap().count(), 0);
    }

    #[test]
    fn a_cargo_corpus_and_a_ready_made_dataset_are_sources() {
        let home = tempfile::tempdir().unwrap();
        let lock = home.path().join("Cargo.lock");
        std::fs::write(
            &lock,
            "[[package]]\nname = \"p\"\nversion = \"1.0.0\"\nsource = \"registry+x\"\n",
        )
        .unwrap();
        let root = home.path().join("registry/src/r/p-1.0.0");
        std::fs::create_dir_all(&root).unwrap();
        std::fs::write(root.join("lib.rs"), "fn main() {}").unwrap();
        let source = Source::Cargo(CargoSource {
            lock,
            cargo_home: home.path().into(),
            packages: vec![],
            extensions: vec!["rs".into()],
        });
        let cache = tempfile::tempdir().unwrap();
        let built = run(&source, &bytes_tokenizer(true), cache.path()).unwrap();
        assert_eq!(built.report.tokens, 13);
        let ready = run(
            &Source::Indexed(built.report.prefix.clone()),
            &bytes_tokenizer(true),
            cache.path(),
        )
        .unwrap();
        assert_eq!((ready.report.built, ready.report.tokens), (false, 13));
    }
}
