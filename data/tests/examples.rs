//! Examples as a corpus: rows, labels, what is held back, cut and left out, and the cache.

use crossweave_data::*;
use std::path::Path;

const SEQ: usize = 8;

struct Fixture {
    dir: tempfile::TempDir,
}

impl Fixture {
    /// `pairs.jsonl`, whose completions count.
    fn new(lines: &[(&str, &str)]) -> Fixture {
        let f = Fixture {
            dir: tempfile::tempdir().unwrap(),
        };
        f.write("pairs.jsonl", lines);
        f
    }

    fn write(&self, name: &str, lines: &[(&str, &str)]) {
        let line = |(p, c): &(&str, &str)| {
            format!("{}\n", serde_json::json!({"prompt": p, "completion": c}))
        };
        let text: String = lines.iter().map(line).collect();
        std::fs::write(self.path().join(name), text).unwrap();
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn spec(&self, glob: &str) -> DataSpec {
        DataSpec {
            objective: Objective::Causal,
            train: Source::Files(FilesSource::new(self.path(), [glob])),
            examples: Some(Examples {
                rows: Rows::PromptCompletion,
                all: false,
                template: None,
                skip_null: false,
                pack: false,
                refuse_long: false,
            }),
            validation: Validation::None,
            tokenizer: Some(TokenizerSpec::new(TokenizerKind::Bytes)),
            model_vocab: None,
        }
    }

    fn open(&self, spec: &DataSpec) -> Result<Corpus> {
        check(spec)?;
        open(spec, &self.path().join("cache"), &NoProgress)
    }
}

/// Tokens of a row and its labels, as text: `.` ends a document, `_` does not count.
fn row(source: &dyn SequenceSource, i: u64) -> (String, String) {
    let mut tokens = vec![0; source.row_len()];
    source.read(i, &mut tokens).unwrap();
    let mut labels = vec![0; tokens.len() - 1];
    source.labels(i, &tokens, &mut labels).unwrap();
    let char_of = |t: i64| match t {
        -100 => '_',
        256 => '.',
        t => char::from(u8::try_from(t).unwrap()),
    };
    let counted = labels.iter().filter(|l| **l != IGNORED).count() as u64;
    assert_eq!(source.counted(i).unwrap(), counted);
    (
        tokens.iter().map(|t| char_of(i64::from(*t))).collect(),
        labels.iter().map(|l| char_of(i64::from(*l))).collect(),
    )
}

fn warnings(source: &dyn SequenceSource) -> Vec<String> {
    let warning = |r| match r {
        Remark::Warning(text) => Some(text),
        Remark::Note(_) => None,
    };
    source.remarks().into_iter().filter_map(warning).collect()
}

#[test]
fn an_example_is_a_row_cut_or_filled_up() {
    let f = Fixture::new(&[
        ("ab", "c"),
        ("12345", "6789"),
        ("much too long a prompt", "x"),
        ("", "yes"),
        ("", ""),
    ]);
    let corpus = f.open(&f.spec("*.jsonl")).unwrap();
    assert_eq!(corpus.pass(SEQ).unwrap(), Pass::Samples(3));
    let rows = corpus.train(SEQ, 7, 3).unwrap();
    assert!(rows.labelled());
    assert_eq!((rows.sequences(), rows.row_len()), (3, SEQ + 1));
    let mut seen: Vec<(String, String)> = (0..3).map(|i| row(&*rows, i)).collect();
    seen.sort();
    let wanted = [
        ("123456789", "____6789"),
        ("abc......", "_c._____"),
        ("yes......", "es._____"),
    ];
    for ((tokens, labels), (t, l)) in seen.iter().zip(wanted) {
        assert_eq!((tokens.as_str(), labels.as_str()), (t, l));
    }
    let said = warnings(&*rows);
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(
        said[0].contains("1 of 5 examples have more than 9 tokens"),
        "{said:?}"
    );
    assert!(said[1].contains("2 of 5 examples are left out"), "{said:?}");
    // Each epoch all of them once, and a longer run begins alike.
    let longer = corpus.train(SEQ, 300, 3).unwrap();
    let all: Vec<_> = (0..300).map(|i| row(&*longer, i)).collect();
    for (e, epoch) in all.chunks(3).enumerate() {
        let mut epoch = epoch.to_vec();
        epoch.sort();
        assert_eq!(epoch, seen, "epoch {e}");
    }
    assert!((0..7).all(|i| row(&*rows, i) == all[i as usize]));
    assert!(all.chunks(3).any(|e| e[0] != all[0]));
    // Longer rows cut nothing.
    let wide = corpus.train(40, 4, 3).unwrap();
    assert_eq!(wide.sequences(), 4);
    assert!(!warnings(&*wide).iter().any(|w| w.contains("cut")));
    let none = corpus.train(1, 4, 3);
    assert_eq!(none.unwrap().sequences(), 1);
    let f = Fixture::new(&[("long", "x")]);
    let e = f
        .open(&f.spec("*.jsonl"))
        .unwrap()
        .train(2, 1, 1)
        .err()
        .unwrap();
    assert!(e.to_string().contains("none of 1 examples"), "{e}");
}

#[test]
fn whole_examples_are_held_back() {
    let lines: Vec<(String, String)> = (0..50).map(|i| (format!("{i}="), i.to_string())).collect();
    let lines: Vec<(&str, &str)> = lines.iter().map(|(a, b)| (&**a, &**b)).collect();
    let f = Fixture::new(&lines);
    for validation in [Validation::Fraction(0.2), Validation::Split("8,2".into())] {
        let corpus = f.open(&DataSpec {
            validation,
            ..f.spec("*.jsonl")
        });
        let corpus = corpus.unwrap();
        let (train, held) = (
            corpus.train(SEQ, 40, 1).unwrap(),
            corpus.validation(SEQ).unwrap().unwrap(),
        );
        assert_eq!((train.sequences(), held.sequences()), (40, 10));
        let of =
            |s: &dyn SequenceSource, n| -> Vec<String> { (0..n).map(|i| row(s, i).0).collect() };
        let mut all = [of(&*train, 40), of(&*held, 10)].concat();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 50);
    }
    let one = Fixture::new(&[("a", "b")]);
    let e = one.open(&DataSpec {
        validation: Validation::Fraction(0.5),
        ..one.spec("*.jsonl")
    });
    assert!(
        e.err()
            .unwrap()
            .to_string()
            .contains("data.validation_fraction")
    );
}

#[test]
fn sources_mix_and_the_cache_knows_what_counts() {
    let f = Fixture::new(&[("a=", "1"), ("aa=", "2")]);
    f.write("b.json", &[("b=", "3")]);
    let part = |glob: &str, weight| Weighted {
        source: Source::Files(FilesSource::new(f.path(), [glob])),
        weight,
    };
    let spec = DataSpec {
        train: Source::Mixture(vec![part("pairs.jsonl", 3.0), part("b.json", 1.0)]),
        ..f.spec("*")
    };
    let corpus = f.open(&spec).unwrap();
    assert_eq!(corpus.pass(SEQ).unwrap(), Pass::Samples(3));
    let rows = corpus.train(SEQ, 8, 1).unwrap();
    let of_b = (0..8)
        .filter(|i| row(&*rows, *i).0.starts_with('b'))
        .count();
    assert_eq!(of_b, 2);
    let built = |spec: &DataSpec| -> Vec<bool> {
        let corpus = f.open(spec).unwrap();
        corpus.reports().iter().map(|r| r.built).collect()
    };
    assert_eq!(built(&spec), [false, false]);
    // Other tokens count: another dataset. The same file as text is another again.
    let mut all = spec.clone();
    all.examples.as_mut().unwrap().all = true;
    assert_eq!(built(&all), [true, true]);
    let rows = f.open(&all).unwrap().train(SEQ, 8, 1).unwrap();
    assert!((0..8).all(|i| row(&*rows, i).1.contains("=")));
    // A cache whose parts are not of each other is named.
    let prefix = f.open(&spec).unwrap().reports()[0].prefix.clone();
    let counted = format!("{}-counted.idx", prefix.display());
    std::fs::remove_file(&counted).unwrap();
    let e = f.open(&spec).err().unwrap().to_string();
    assert!(e.contains("-counted.idx"), "{e}");
}

#[test]
fn lines_and_files_that_are_no_examples_are_named() {
    let f = Fixture::new(&[("a", "b")]);
    let refused = |name: &str, text: &[u8], words: &[&str]| {
        std::fs::write(f.path().join(name), text).unwrap();
        let e = f.open(&f.spec(name)).err().unwrap().to_string();
        assert!(words.iter().all(|w| e.contains(w)), "{e}");
        // Nothing half-made is left.
        let left = std::fs::read_dir(f.path().join("cache"));
        assert_eq!(left.map_or(0, |d| d.count()), 0);
    };
    refused(
        "bad.jsonl",
        b"{\"prompt\": \"a\", \"completion\": \"b\"}\n\n{\"prompt\": \"a\"}\n",
        &["bad.jsonl:3", "\"completion\" is missing", "fix:"],
    );
    refused(
        "array.json",
        b"[{\"prompt\": \"a\"}]",
        &["array.json:1", "\"completion\" is missing"],
    );
    refused("cut.jsonl", b"{\"prompt\": \"a", &["cut.jsonl:1", "column"]);
    refused("text.txt", b"once upon a time", &["text.txt:1"]);
    refused(
        "t.parquet",
        b"PAR1\x15\0\x15\0aaaaaaaa\0\0\0\0PAR1",
        &["t.parquet", "damaged table"],
    );
    let mut zip = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
    std::io::Write::write_all(&mut zip, b"{\"prompt\": \"a\", \"completion\": \"b\"}\n").unwrap();
    std::fs::write(f.path().join("z.jsonl.gz"), zip.finish().unwrap()).unwrap();
    let packed = f
        .open(&f.spec("z.jsonl.gz"))
        .unwrap()
        .train(SEQ, 1, 1)
        .unwrap();
    assert_eq!(row(&*packed, 0).0, "ab.......");
}

/// The examples of a packed row, as text, each with its labels; and the lengths that say where each ends.
fn parts(source: &dyn SequenceSource, i: u64) -> (Vec<(String, String)>, Vec<i32>) {
    let (tokens, labels) = row(source, i);
    let mut lengths = vec![-1; source.row_len()];
    source.lengths(i, &mut lengths).unwrap();
    assert!(lengths.is_sorted() && lengths[0] == 0);
    let spans: Vec<_> = lengths.windows(2).filter(|w| w[0] < w[1]).collect();
    let all = spans.iter().map(|w| {
        let span = w[0] as usize..w[1] as usize;
        (tokens[span.clone()].to_string(), labels[span].to_string())
    });
    let filled: usize = spans.iter().map(|w| (w[1] - w[0]) as usize).sum();
    // Behind the examples nothing counts.
    assert!(labels[filled..].chars().all(|c| c == '_'), "{labels}");
    (all.collect(), lengths)
}

#[test]
fn packed_rows_hold_whole_examples_and_their_marks() {
    let lines: Vec<(String, String)> = (0..40)
        .map(|i| ("?".repeat(1 + i % 4), "abcdefghij"[..1 + i % 3].to_string()))
        .collect();
    let lines: Vec<(&str, &str)> = lines.iter().map(|(a, b)| (&**a, &**b)).collect();
    let f = Fixture::new(&lines);
    let mut spec = f.spec("*.jsonl");
    let single = f.open(&spec).unwrap().train(11, 40, 5).unwrap();
    let trimmed = |i: u64| {
        let mut tokens = vec![0; 12];
        single.read(i, &mut tokens).unwrap();
        let len = single.filled(i).unwrap() as usize + 1;
        let (text, labels) = row(&*single, i);
        assert!(!single.packed() && single.padded() && text[len..].chars().all(|c| c == '.'));
        (text[..len].to_string(), labels[..len - 1].to_string())
    };
    let mut wanted: Vec<_> = (0..40).map(trimmed).collect();
    wanted.sort();
    let tokens: u64 = (0..40).map(|i| single.filled(i).unwrap()).sum();

    spec.examples.as_mut().unwrap().pack = true;
    let corpus = f.open(&spec).unwrap();
    let packed = corpus.train(11, 1, 5).unwrap();
    let rows = packed.sequences();
    assert!(packed.packed() && rows < 25, "{rows} rows");
    assert_eq!(corpus.pass(11).unwrap(), Pass::Samples(rows));
    let each = |source: &dyn SequenceSource, epoch: u64| {
        let all = (epoch * rows..(epoch + 1) * rows).flat_map(|i| parts(source, i).0);
        // A row's last token is no input, so the last example of a full row shows one token less.
        let mut all: Vec<_> = all
            .map(|(text, labels)| {
                let counted: String = labels.chars().filter(|c| *c != '_').collect();
                (text.trim_end_matches('.').to_string(), counted)
            })
            .collect();
        all.sort();
        all
    };
    let bare = wanted.iter().map(|(text, labels)| {
        let counted: String = labels.chars().filter(|c| *c != '_').collect();
        (text.trim_end_matches('.').to_string(), counted)
    });
    let mut bare: Vec<_> = bare.collect();
    bare.sort();
    let longer = corpus.train(11, 3 * rows, 5).unwrap();
    for epoch in 0..3 {
        assert_eq!(each(&*longer, epoch), bare, "epoch {epoch}");
    }
    let filled: u64 = (0..rows).map(|i| packed.filled(i).unwrap()).sum();
    assert_eq!(filled, tokens);
    // A longer run begins alike, another seed has the same rows in another order, and so has the next epoch.
    assert!((0..rows).all(|i| row(&*packed, i) == row(&*longer, i)));
    let other = corpus.train(11, 1, 6).unwrap();
    let all =
        |s: &dyn SequenceSource, from| (from..from + rows).map(|i| row(s, i)).collect::<Vec<_>>();
    let sorted = |mut rows: Vec<(String, String)>| {
        rows.sort();
        rows
    };
    let [a, b, c] = [all(&*packed, 0), all(&*other, 0), all(&*longer, rows)];
    assert!(a != b && a != c && sorted(a.clone()) == sorted(b) && sorted(a) == sorted(c));
    let said: Vec<String> = packed.remarks().iter().map(ToString::to_string).collect();
    let want = format!("40 examples are packed into {rows} rows of 11 tokens, which are ");
    assert!(
        said[0].contains(&want) && said[0].contains("% full"),
        "{said:?}"
    );
    // Batches bring the lengths along, and count what is no filling.
    let shape = BatchShape {
        global_batch: 4,
        ranks: 2,
        accumulation: 2,
    };
    let batches = Batches::training(longer.clone(), shape, "data.train").unwrap();
    let batch = batches.at_step(1, 1, 0).unwrap();
    assert_eq!(batch.lengths, Some(parts(&*longer, 6).1));
    let four: u64 = (4..8).map(|i| longer.filled(i).unwrap()).sum();
    assert_eq!(batches.filled(1..2).unwrap(), four);
    assert_eq!(
        Batches::training(single, shape, "k")
            .unwrap()
            .at_step(0, 0, 0)
            .unwrap()
            .lengths,
        None
    );
}

#[test]
fn examples_that_are_longer_than_a_row_are_cut_or_refused() {
    let f = Fixture::new(&[
        ("ab", "c"),
        ("12345", "67890"),
        ("1234567", "890"),
        ("x", "y"),
    ]);
    let mut spec = f.spec("*.jsonl");
    spec.examples.as_mut().unwrap().pack = true;
    let rows = f.open(&spec).unwrap().train(SEQ, 1, 1).unwrap();
    let said = warnings(&*rows);
    assert!(
        said[0].contains("2 of 4 examples have more than 9 tokens and are cut there"),
        "{said:?}"
    );
    for pack in [true, false] {
        let examples = spec.examples.as_mut().unwrap();
        (examples.pack, examples.refuse_long) = (pack, true);
        let e = f
            .open(&spec)
            .unwrap()
            .train(SEQ, 1, 1)
            .err()
            .unwrap()
            .to_string();
        for part in [
            "data.on_long",
            "2 of 4 examples",
            "example 2 with 11",
            "fix:",
        ] {
            assert!(e.contains(part), "{e}");
        }
        f.open(&spec).unwrap().train(10, 1, 1).unwrap();
    }
}
