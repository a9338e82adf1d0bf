//! What became of each layout, a line each: a sweep goes on where another ended, and a page is of all of them.

use super::draw::Layout;
use super::held::Fault;
use std::path::{Path, PathBuf};

/// A layout that was held, and its result.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// The seed of its weights and samples, by which it was drawn.
    pub seed: u64,
    /// The time that it took, in seconds.
    pub seconds: f64,
    /// Runs of it that were compared by bits.
    pub by_bits: u64,
    /// Runs whose memory and traffic were held against plans.
    pub planned: u64,
    /// It breaks a rule.
    pub refused: bool,
    /// The layout.
    pub words: String,
    /// The fault in words; empty: none.
    pub fault: String,
}

impl Line {
    /// The same with what became of it.
    pub fn with(mut self, held: &Result<(), Fault>) -> Line {
        self.fault = match held {
            Ok(()) => String::new(),
            Err(f) => format!("{:?}, {}", f.kind, f.what).replace(['\t', '\n'], " "),
        };
        self
    }

    pub fn layout(&self) -> Layout {
        Layout::parse(&self.words)
    }

    fn text(&self) -> String {
        let numbers = format!(
            "{}\t{:.3}\t{}\t{}",
            self.seed, self.seconds, self.by_bits, self.planned
        );
        let refused = u8::from(self.refused);
        format!("{numbers}\t{refused}\t{}\t{}\n", self.words, self.fault)
    }

    fn parse(text: &str) -> Option<Line> {
        let all: Vec<&str> = text.split('\t').collect();
        let [seed, seconds, by_bits, planned, refused, words, fault] = all[..] else {
            return None;
        };
        Some(Line {
            seed: seed.parse().ok()?,
            seconds: seconds.parse().ok()?,
            by_bits: by_bits.parse().ok()?,
            planned: planned.parse().ok()?,
            refused: refused == "1",
            words: words.into(),
            fault: fault.into(),
        })
    }
}

/// The lines of a sweep, and the file that has them, where they are kept.
#[derive(Default)]
pub struct Log {
    pub lines: Vec<Line>,
    file: Option<PathBuf>,
}

impl Log {
    /// Goes on with what a file has, if there is one.
    pub fn open(file: Option<&Path>) -> Log {
        let text = file.and_then(|f| std::fs::read_to_string(f).ok());
        let text = text.unwrap_or_default();
        let line = |text| Line::parse(text).unwrap_or_else(|| panic!("no line of a log: {text:?}"));
        Log {
            lines: text.lines().map(line).collect(),
            file: file.map(Path::to_path_buf),
        }
    }

    /// Writes all lines.
    pub fn write(&self) {
        if let Some(file) = &self.file {
            let text: String = self.lines.iter().map(Line::text).collect();
            std::fs::write(file, text).expect("a log");
        }
    }

    pub fn push(&mut self, line: Line) {
        self.lines.push(line);
        self.write();
    }
}

#[test]
fn a_log_is_read_as_it_was_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("log");
    let mut log = Log::open(Some(&file));
    assert!(log.lines.is_empty());
    let words = "family t5, layers 3, shards 4, dp 2, resume on another mesh; then zero 3";
    let line = Line {
        seed: 9,
        seconds: 0.25,
        by_bits: 1,
        planned: 0,
        refused: false,
        words: words.into(),
        fault: String::new(),
    };
    let fault = Fault::new(super::held::Kind::Far, "a\tloss\nof 3");
    log.push(line.clone());
    log.push(line.clone().with(&Err(fault)));
    let read = Log::open(Some(&file)).lines;
    assert_eq!(read, log.lines);
    assert_eq!(read[0].layout().words(), words);
    assert_eq!(read[1].fault, "Far, a loss of 3");
}
