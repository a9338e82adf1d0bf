//! A corpus from its description to its batches: what a training run sees, and what it must never see change.

use crossweave_data::*;
use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A folder of documents, each counting up from its own letter so that a row shows where it came from.
struct Fixture {
    dir: tempfile::TempDir,
}

const SEQ: usize = 16;

impl Fixture {
    fn new(documents: usize, len: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for d in 0..documents {
            let text: Vec<u8> = (0..len).map(|i| ((d * 31 + i) % 126) as u8 + 1).collect();
            std::fs::write(dir.path().join(format!("{d:03}.txt")), text).unwrap();
        }
        Self { dir }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn cache(&self) -> PathBuf {
        self.path().join("cache")
    }

    fn spec(&self) -> DataSpec {
        DataSpec {
            objective: Objective::Causal,
            train: Source::Files(FilesSource::new(self.path(), ["*.txt"])),
            examples: None,
            validation: Validation::None,
            tokenizer: Some(TokenizerSpec::new(TokenizerKind::Bytes)),
            model_vocab: None,
        }
    }

    fn open(&self, change: impl FnOnce(&mut DataSpec)) -> Result<Corpus> {
        let mut spec = self.spec();
        change(&mut spec);
        open(&spec, &self.cache(), &NoProgress)
    }
}

fn rows(batches: &Batches, consumed: u64) -> Vec<u32> {
    let BatchShape {
        ranks,
        accumulation,
        ..
    } = batches.shape();
    (0..ranks)
        .flat_map(|r| (0..accumulation).map(move |m| (r, m)))
        .flat_map(|(r, m)| batches.after(consumed, r, m).unwrap().tokens)
        .collect()
}

fn shape(global_batch: u64, ranks: u64, accumulation: u64) -> BatchShape {
    BatchShape {
        global_batch,
        ranks,
        accumulation,
    }
}

#[test]
fn the_same_seed_gives_the_same_batches_on_any_number_of_ranks_and_after_any_restart() {
    let f = Fixture::new(20, 333);
    let source = || f.open(|_| ()).unwrap().train(SEQ, 24 * 40, 5).unwrap();
    let one = Batches::training(source(), shape(24, 1, 1), "data.train").unwrap();
    let steps: Vec<Vec<u32>> = (0..40).map(|s| rows(&one, s * 24)).collect();
    for (ranks, accumulation) in [(1, 4), (2, 1), (2, 3), (3, 2), (4, 1), (8, 3)] {
        // Each division opens the corpus again, as a restarted process would, and begins in the middle.
        let batches =
            Batches::training(source(), shape(24, ranks, accumulation), "data.train").unwrap();
        for s in (17..40).chain(0..17) {
            assert_eq!(
                rows(&batches, s * 24),
                steps[s as usize],
                "{ranks} x {accumulation}"
            );
        }
    }
    let other = f.open(|_| ()).unwrap().train(SEQ, 24 * 40, 6).unwrap();
    assert_ne!(
        rows(&Batches::training(other, shape(24, 1, 1), "k").unwrap(), 0),
        steps[0]
    );
    // A longer run begins with the same batches.
    let longer = f.open(|_| ()).unwrap().train(SEQ, 24 * 400, 5).unwrap();
    let longer = Batches::training(longer, shape(24, 2, 1), "k").unwrap();
    for s in 0..40 {
        assert_eq!(rows(&longer, s * 24), steps[s as usize]);
    }
}

#[test]
fn an_epoch_trains_on_every_token_once() {
    let f = Fixture::new(12, 100);
    let corpus = f.open(|s| s.model_vocab = Some(300)).unwrap();
    let tokens = 12 * 101;
    assert_eq!(
        (corpus.train_tokens(), corpus.vocab_size()),
        (tokens, Some(257))
    );
    let source = corpus.train(SEQ, 3 * tokens / SEQ as u64, 1).unwrap();
    let per_epoch = tokens.div_ceil(SEQ as u64);
    let mut row = vec![0; SEQ + 1];
    let (mut counts, mut orders) = (HashMap::new(), Vec::new());
    for i in 0..2 * per_epoch {
        source.read(i, &mut row).unwrap();
        orders.push(row.clone());
        // Within a document, ids rise by one; a break is the end of a document and the start of any other.
        for pair in row.windows(2) {
            assert!(
                pair[1] == pair[0] % 126 + 1 || pair[1] == 256 || pair[0] == 256,
                "{row:?}"
            );
        }
        if i < per_epoch {
            row[..SEQ]
                .iter()
                .for_each(|t| *counts.entry(*t).or_insert(0u32) += 1);
        }
    }
    // The last sample of the epoch may run up to SEQ - 1 tokens into the next.
    assert!((12..=13).contains(&counts[&256]), "{}", counts[&256]);
    assert_ne!(orders[..10], orders[per_epoch as usize..][..10]);
}

#[test]
fn the_second_start_makes_nothing() {
    let f = Fixture::new(5, 200);
    let first = f
        .open(|s| s.validation = Validation::Fraction(0.2))
        .unwrap();
    assert!(first.reports()[0].built);
    first.train(SEQ, 100, 1).unwrap();
    first.validation(SEQ).unwrap().unwrap();
    let list = |dir: &Path| {
        let entry = |e: std::io::Result<std::fs::DirEntry>| {
            let e = e.unwrap();
            (e.file_name(), e.metadata().unwrap().modified().unwrap())
        };
        let mut names: Vec<_> = std::fs::read_dir(dir).unwrap().map(entry).collect();
        names.sort();
        names
    };
    let before = list(&f.cache());
    assert_eq!(before.len(), 2 + 4 + 4);
    let second = f
        .open(|s| s.validation = Validation::Fraction(0.2))
        .unwrap();
    assert!(!second.reports()[0].built);
    assert_eq!(second.fingerprint(), first.fingerprint());
    second.train(SEQ, 100, 1).unwrap();
    second.validation(SEQ).unwrap().unwrap();
    assert_eq!(list(&f.cache()), before);
}

#[test]
fn validation_is_held_back_whichever_way_it_is_asked_for() {
    let f = Fixture::new(10, 99);
    let parts = |validation| {
        let corpus = f.open(|s| s.validation = validation).unwrap();
        (corpus.train_tokens(), corpus.validation_tokens())
    };
    assert_eq!(parts(Validation::None), (1000, 0));
    assert_eq!(parts(Validation::Fraction(0.05)), (950, 50));
    assert_eq!(parts(Validation::Split("8,2".into())), (800, 200));
    let own = Validation::Source(Source::Files(FilesSource::new(f.path(), ["00[01].txt"])));
    assert_eq!(parts(own.clone()), (1000, 200));

    let corpus = f.open(|s| s.validation = own).unwrap();
    assert_eq!(corpus.reports().len(), 2);
    let valid = corpus.validation(SEQ).unwrap().unwrap();
    assert_eq!(valid.sequences(), 199 / SEQ as u64);
    // Validation reads its documents from the first on, and four ranks evaluate what one does.
    let one = Batches::evaluation(valid.clone(), shape(8, 1, 1), u64::MAX).unwrap();
    let four = Batches::evaluation(valid, shape(8, 4, 2), u64::MAX).unwrap();
    assert_eq!(
        one.after(0, 0, 0).unwrap().tokens[..SEQ],
        (1..=SEQ as u32).collect::<Vec<_>>()
    );
    for s in 0..one.full_pass() {
        assert_eq!(rows(&one, s * 8), rows(&four, s * 8));
    }
    let short = f
        .open(|s| s.validation = Validation::Fraction(0.01))
        .unwrap();
    let error = short.validation(SEQ).err().unwrap().to_string();
    assert!(
        error.contains("data.validation_fraction") && error.contains("10 tokens"),
        "{error}"
    );
}

#[test]
fn ready_made_and_given_tokens_are_corpora_without_a_tokenizer() {
    let f = Fixture::new(4, 100);
    let made = f.open(|_| ()).unwrap();
    let prefix = made.reports()[0].prefix.clone();
    let ready = |vocab| {
        f.open(|s| {
            s.train = Source::Indexed(prefix.clone());
            s.tokenizer = None;
            s.model_vocab = vocab;
        })
        .unwrap()
    };
    let (a, b) = (
        made.train(SEQ, 9, 1).unwrap(),
        ready(Some(257)).train(SEQ, 9, 1).unwrap(),
    );
    assert_eq!(
        (ready(None).vocab_size(), ready(None).train_tokens()),
        (None, 404)
    );
    let batch = |s| Batches::training(s, shape(4, 1, 1), "data.train").unwrap();
    // The order follows from the seed and the lengths, not from how the dataset was named.
    assert_eq!(rows(&batch(a), 0), rows(&batch(b), 0));
    let small = batch(ready(Some(100)).train(SEQ, 40, 1).unwrap());
    let error = (0..10)
        .find_map(|s| small.at_step(s, 0, 0).err())
        .unwrap()
        .to_string();
    assert!(
        error.contains(".bin") && error.contains("vocabulary of 100"),
        "{error}"
    );

    let given = f.path().join("t.safetensors");
    let ids: Vec<u8> = (0..2 * 4 * 5i64).flat_map(i64::to_le_bytes).collect();
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::I64, vec![2, 4, 5], &ids);
    std::fs::write(
        &given,
        safetensors::serialize([("ids", view.unwrap())], None).unwrap(),
    )
    .unwrap();
    let source = Source::Given {
        file: given,
        key: "ids".into(),
        labels: None,
    };
    let corpus = f
        .open(|s| {
            s.train = source.clone();
            s.model_vocab = Some(40);
        })
        .unwrap();
    assert_eq!(
        (
            corpus.sequence_len(),
            corpus.fixed_batch(),
            corpus.fixed_steps()
        ),
        (Some(4), Some(4), Some(2))
    );
    let batches = Batches::training(
        corpus.train(4, 8, 1).unwrap(),
        shape(4, 2, 1),
        "data.tokens",
    );
    assert_eq!(batches.unwrap().at_step(1, 0, 0).unwrap().tokens[0], 20);
    let error = f
        .open(|s| {
            s.train = source;
            s.validation = Validation::Fraction(0.1);
        })
        .err()
        .unwrap();
    assert!(error.to_string().contains("cannot be split"), "{error}");
}

#[test]
fn impossible_corpora_are_refused_in_words() {
    let f = Fixture::new(1, 10);
    let says = |error: DataError, parts: &[&str]| {
        let text = error.to_string();
        parts
            .iter()
            .for_each(|p| assert!(text.contains(p), "{text}"));
    };
    let corpus = f.open(|_| ()).unwrap();
    says(
        corpus.train(SEQ, 1, 0).err().unwrap(),
        &["data.train", "11 tokens", "needs 17", "fix:"],
    );
    let two = Batches::training(corpus.train(5, 8, 0).unwrap(), shape(8, 4, 1), "data.train");
    says(
        two.err().unwrap(),
        &["data.train", "4 ranks", "2 sequences", "fix:"],
    );
    says(
        f.open(|s| s.tokenizer = None).err().unwrap(),
        &["data.tokenizer", "gpt2"],
    );
    says(
        f.open(|s| s.model_vocab = Some(200)).err().unwrap(),
        &["model.vocab_size", "200", "256"],
    );
    let nothing = Validation::Source(Source::Files(FilesSource::new(f.path(), ["*.md"])));
    says(
        f.open(|s| s.validation = nothing).err().unwrap(),
        &["data.validation", "*.md", "fix:"],
    );
}

#[test]
fn a_damaged_cache_is_named_and_not_trained_on() {
    let f = Fixture::new(3, 100);
    f.open(|_| ()).unwrap();
    for (extension, cut) in [("idx", 7), ("bin", 1)] {
        let file = f.open(|_| ()).unwrap().reports()[0]
            .prefix
            .with_extension(extension);
        let good = std::fs::read(&file).unwrap();
        std::fs::write(&file, &good[..good.len() - cut]).unwrap();
        let error = f.open(|_| ()).err().unwrap().to_string();
        assert!(
            error.contains(&format!(".{extension}")) && error.contains("delete it"),
            "{error}"
        );
        std::fs::write(&file, good).unwrap();
    }
}

const TEXTS: [&str; 3] = [
    "first document\nof two lines",
    "das zweite: größer",
    "third",
];

fn json_lines() -> String {
    let line = |t: &&str| format!("{{\"id\": 1, \"body\": {t:?}}}\n");
    TEXTS.iter().map(line).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut to = flate2::write::GzEncoder::new(vec![], flate2::Compression::default());
    to.write_all(bytes).unwrap();
    to.finish().unwrap()
}

fn parquet_table(column: &str) -> Vec<u8> {
    use parquet::data_type::{ByteArray, ByteArrayType};
    use parquet::file::{properties::WriterProperties, writer::SerializedFileWriter};
    let schema = format!("message m {{ REQUIRED INT64 id; REQUIRED BINARY {column} (UTF8); }}");
    let schema = parquet::schema::parser::parse_message_type(&schema).unwrap();
    let how = WriterProperties::builder().set_compression(parquet::basic::Compression::SNAPPY);
    let mut to = SerializedFileWriter::new(vec![], schema.into(), how.build().into()).unwrap();
    // Two row groups.
    for texts in TEXTS.chunks(2) {
        let mut group = to.next_row_group().unwrap();
        let ids: Vec<i64> = (0..texts.len() as i64).collect();
        let mut c = group.next_column().unwrap().unwrap();
        c.typed::<parquet::data_type::Int64Type>()
            .write_batch(&ids, None, None)
            .unwrap();
        c.close().unwrap();
        let values: Vec<ByteArray> = texts.iter().map(|t| ByteArray::from(*t)).collect();
        let mut c = group.next_column().unwrap().unwrap();
        c.typed::<ByteArrayType>()
            .write_batch(&values, None, None)
            .unwrap();
        c.close().unwrap();
        group.close().unwrap();
    }
    to.into_inner().unwrap()
}

fn arrow_table(column: &str, stream: bool) -> Vec<u8> {
    use arrow_array::{ArrayRef, Int32Array, RecordBatch, StringArray};
    let ids: ArrayRef = Arc::new(Int32Array::from(vec![1, 2, 3]));
    let texts: ArrayRef = Arc::new(StringArray::from(TEXTS.to_vec()));
    let batch = RecordBatch::try_from_iter([("id", ids), (column, texts)]).unwrap();
    if stream {
        let mut to = arrow_ipc::writer::StreamWriter::try_new(vec![], &batch.schema()).unwrap();
        to.write(&batch).unwrap();
        return to.into_inner().unwrap();
    }
    let mut to = arrow_ipc::writer::FileWriter::try_new(vec![], &batch.schema()).unwrap();
    to.write(&batch).unwrap();
    to.into_inner().unwrap()
}

/// A stream whose column is a dictionary, as pandas writes categories.
fn dictionary_table() -> Vec<u8> {
    use arrow_array::{ArrayRef, DictionaryArray, RecordBatch, types::Int32Type};
    let texts: DictionaryArray<Int32Type> = TEXTS.into_iter().collect();
    let texts: ArrayRef = Arc::new(texts);
    let batch = RecordBatch::try_from_iter([("body", texts)]).unwrap();
    let mut to = arrow_ipc::writer::StreamWriter::try_new(vec![], &batch.schema()).unwrap();
    to.write(&batch).unwrap();
    to.write(&batch.slice(0, 0)).unwrap();
    to.into_inner().unwrap()
}

/// The tokens of one file as a corpus whose documents are in the column `body`.
fn tokens_of(name: &str, bytes: &[u8]) -> Result<Vec<u32>> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(name), bytes).unwrap();
    let mut source = FilesSource::new(dir.path(), [name]);
    source.text_key = "body".into();
    let spec = DataSpec {
        objective: Objective::Causal,
        train: Source::Files(source),
        examples: None,
        validation: Validation::None,
        tokenizer: Some(TokenizerSpec::new(TokenizerKind::Bytes)),
        model_vocab: None,
    };
    let corpus = open(&spec, &dir.path().join("cache"), &NoProgress)?;
    let set = IndexedDataset::open(&corpus.reports()[0].prefix)?;
    let mut out = vec![];
    for d in 0..set.documents() {
        let mut ids = vec![0; set.length(d).unwrap() as usize];
        set.read(d, 0, None, &mut ids)?;
        out.extend(ids);
    }
    Ok(out)
}

#[test]
fn every_form_of_the_same_documents_gives_the_same_tokens() {
    let lines = json_lines();
    let plain = tokens_of("a.jsonl", lines.as_bytes()).unwrap();
    let text: u64 = TEXTS.iter().map(|t| t.len() as u64 + 1).sum();
    assert_eq!(plain.len() as u64, text);
    let members = [gzip(&lines.as_bytes()[..30]), gzip(&lines.as_bytes()[30..])].concat();
    for (name, bytes) in [
        ("a.jsonl.gz", gzip(lines.as_bytes())),
        ("members.jsonl.gz", members),
        (
            "a.jsonl.zst",
            zstd::encode_all(lines.as_bytes(), 3).unwrap(),
        ),
        ("a.parquet", parquet_table("body")),
        ("a.arrow", arrow_table("body", false)),
        ("d.arrow", dictionary_table()),
        // Device blocks are filled up with zeros.
        (
            "padded.jsonl.gz",
            [gzip(lines.as_bytes()), vec![0; 600]].concat(),
        ),
        // As Hugging Face datasets writes it, and under any name.
        ("data-00000-of-00001", arrow_table("body", true)),
    ] {
        assert_eq!(tokens_of(name, &bytes).unwrap(), plain, "{name}");
    }
    let text = tokens_of("a.txt", TEXTS[1].as_bytes()).unwrap();
    let packed = gzip(TEXTS[1].as_bytes());
    assert_eq!(tokens_of("a.txt.gz", &packed).unwrap(), text);
    let marked = [b"\xef\xbb\xbf", TEXTS[1].as_bytes()].concat();
    assert_eq!(tokens_of("marked.txt", &marked).unwrap(), text);
}

#[test]
fn tables_and_packed_files_that_cannot_be_read_say_why() {
    let said = |name: &str, bytes: &[u8]| tokens_of(name, bytes).unwrap_err().to_string();
    for (name, bytes) in [
        ("a.parquet", parquet_table("text")),
        ("a.arrow", arrow_table("text", false)),
        ("s.arrow", arrow_table("text", true)),
    ] {
        let missing = said(name, &bytes);
        assert!(
            missing.contains("no column \"body\", but \"id\", \"text\"")
                && missing.contains("data.field"),
            "{missing}"
        );
        let cut = said(name, &bytes[..bytes.len() / 2]);
        assert!(
            cut.contains("damaged table") && cut.contains("fix: "),
            "{cut}"
        );
    }
    let gz = gzip(json_lines().as_bytes());
    let cut = said("a.jsonl.gz", &gz[..gz.len() - 12]);
    assert!(cut.contains("damaged gzip file"), "{cut}");
    let lines = json_lines() + "{\"id\": 4}\n";
    for (name, bytes) in [
        ("b.jsonl", lines.clone().into_bytes()),
        ("b.jsonl.gz", gzip(lines.as_bytes())),
    ] {
        let missing = said(name, &bytes);
        assert!(
            missing.contains(":4:") && missing.contains("\"body\" is missing"),
            "{missing}"
        );
    }
    let weights = [&b"\x08\0\0\0\0\0\0\0{\"a\":1}  "[..], &[0u8; 200]].concat();
    assert!(said("model.safetensors", &weights).contains("NUL"));
}

#[test]
fn columns_of_other_types_are_named_by_what_they_hold() {
    use arrow_array::{ArrayRef, Int32Array, RecordBatch};
    let numbers: ArrayRef = Arc::new(Int32Array::from(vec![1, 2, 3]));
    let batch = RecordBatch::try_from_iter([("body", numbers)]).unwrap();
    let mut to = arrow_ipc::writer::StreamWriter::try_new(vec![], &batch.schema()).unwrap();
    to.write(&batch).unwrap();
    let said = tokens_of("a.arrow", &to.into_inner().unwrap())
        .unwrap_err()
        .to_string();
    assert!(
        said.contains("column \"body\" holds no text but Int32"),
        "{said}"
    );
    let mut source = FilesSource::new("", ["a.parquet"]);
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.parquet"), parquet_table("body")).unwrap();
    (source.base, source.text_key) = (dir.path().into(), "id".into());
    let spec = DataSpec {
        objective: Objective::Causal,
        train: Source::Files(source),
        examples: None,
        validation: Validation::None,
        tokenizer: Some(TokenizerSpec::new(TokenizerKind::Bytes)),
        model_vocab: None,
    };
    let said = open(&spec, &dir.path().join("cache"), &NoProgress)
        .err()
        .unwrap()
        .to_string();
    assert!(
        said.contains("column \"id\" holds no text but whole numbers"),
        "{said}"
    );
}

#[test]
fn rows_that_are_read_as_text_and_bytes_that_are_replaced_are_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let settings = "{\n  \"name\": \"a\"\n}\n";
    std::fs::write(dir.path().join("a.json"), settings).unwrap();
    let mut packed = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
    packed.write_all(settings.as_bytes()).unwrap();
    std::fs::write(dir.path().join("b.json.gz"), packed.finish().unwrap()).unwrap();
    std::fs::write(dir.path().join("c.txt"), b"caf\xe9 ".repeat(9)).unwrap();
    let said = |glob: &str, kind: TokenizerKind| {
        let spec = DataSpec {
            objective: Objective::Causal,
            train: Source::Files(FilesSource::new(dir.path(), [glob])),
            examples: None,
            validation: Validation::None,
            tokenizer: Some(TokenizerSpec::new(kind)),
            model_vocab: None,
        };
        let corpus = open(&spec, &dir.path().join("cache"), &NoProgress).unwrap();
        let words = |said: &[Remark]| said.iter().map(|r| format!("{r}\n")).collect::<String>();
        let looked = words(&crossweave_data::check(&spec).unwrap());
        (words(corpus.remarks()), looked)
    };
    let (opened, looked) = said("*", TokenizerKind::Bytes);
    assert_eq!(opened, looked);
    assert!(opened.starts_with("warning: data.train: "), "{opened}");
    assert!(
        opened.contains("a.json and 1 more are read as plain text"),
        "{opened}"
    );
    assert_eq!(said("c.txt", TokenizerKind::Bytes), Default::default());
    let (opened, looked) = said("c.txt", TokenizerKind::Gpt2);
    assert!(
        opened.contains("1 of 1 documents have bytes that are not UTF-8"),
        "{opened}"
    );
    assert_eq!(looked, "");
}
