//! No word of the headers is outside of the lock: without it the lock has another line, or the header is not understood.

use super::parse::Header;
use super::plugin_header;

/// The places of the words of a text, but for the stars that begin lines of comments.
fn words(text: &str) -> Vec<(usize, usize)> {
    let mut out = vec![];
    let mut at = 0;
    for word in text.split_inclusive(char::is_whitespace) {
        let n = word.trim_end().len();
        if n > 0 && word.trim_end() != "*" {
            out.push((at, at + n));
        }
        at += word.len();
    }
    out
}

/// The words of a header, each left out by itself, that no line is about.
fn unheld(text: &str) -> Vec<String> {
    let lines = |text: &str| Header::parse(&[text]).map(|h| h.lock_lines());
    let was = lines(text).expect("a header");
    let mut out = vec![];
    for (begin, end) in words(text) {
        let edited = format!("{}{}", &text[..begin], &text[end..]);
        if lines(&edited).is_ok_and(|now| now == was) {
            let line = text[..begin].matches('\n').count() + 1;
            out.push(format!("line {line}: {}", &text[begin..end]));
        }
    }
    out
}

/// A text of which a word is in no line shows that the test can fail.
#[test]
fn a_word_that_is_in_no_line_is_named() {
    let held = "/* a.h - b */\n#ifndef A\n#define A\n#define CW_X 1u\n#endif\n";
    assert_eq!(unheld(held), [""; 0]);
    // What a macro says after a backslash is joined, and two conditions of one text are one.
    let twice = held.replace("#endif\n", "#if B\n#endif\n#endif\n");
    assert_eq!(unheld(&twice), ["line 5: B"]);
}

#[test]
fn every_word_of_the_headers_is_in_the_lock() {
    let texts = [plugin_header(), crossweave_hal::header::ops_header()];
    std::thread::scope(|s| {
        for text in &texts {
            s.spawn(|| assert_eq!(unheld(text), [""; 0]));
        }
    });
}
