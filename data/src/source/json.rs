//! What of a text is JSON: its first values, the members of an object, and numbers that only Python writes.

use serde::de::IgnoredAny;
use std::borrow::Cow;
use std::ops::Range;

/// The layout of a text that holds rows as JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// An object a line.
    Lines,
    /// A list, or objects over several lines.
    Values,
}

/// Lines at the start of a text that are looked at.
const FIRST_LINES: usize = 10;

/// The layout of a text of which `head` is the start, and all of it if `whole`; `None` where it holds no rows. Objects over several lines
/// are rows only if one has the member `field`: settings are written so too.
pub(super) fn layout(head: &[u8], whole: bool, field: &str) -> Option<Layout> {
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    let head = head.trim_ascii_start();
    match head.first()? {
        b'{' => objects(head, whole, field),
        b'[' => list(head, whole),
        _ => None,
    }
}

/// A list of objects or strings, up to the end of what is known of it. (A text may begin with `[1]`.)
fn list(head: &[u8], whole: bool) -> Option<Layout> {
    let element = head[1..].trim_ascii_start().first()?;
    if !matches!(element, b'{' | b'"') {
        return None;
    }
    match first_value(head, whole) {
        Value::Until(end) => {
            let behind = head[end..].trim_ascii_start();
            // What follows on another line than a list of rows is damage; on the same line it is a source file.
            let apart = head[end..head.len() - behind.len()].contains(&b'\n');
            let rows = matches!(behind.first(), None | Some(b'[' | b'{'));
            (rows || apart && one_key(head)).then_some(Layout::Values)
        }
        Value::Open if !whole || one_key(head) => Some(Layout::Values),
        Value::No if damaged(head) => Some(Layout::Values),
        Value::Open | Value::No => None,
    }
}

/// Is a list damaged behind a first element that is a whole row?
fn damaged(head: &[u8]) -> bool {
    let element = head[1..].trim_ascii_start();
    let Value::Until(end) = first_value(element, true) else {
        return false;
    };
    let behind = element[end..].trim_ascii_start();
    let next = behind.strip_prefix(b",").unwrap_or(behind);
    one_key(head) && matches!(next.trim_ascii_start().first(), Some(b'{' | b']'))
}

/// Does the first element of a list begin as an object does?
fn one_key(head: &[u8]) -> bool {
    let element = head[1..].trim_ascii_start();
    element.starts_with(b"{") && !members(element).is_empty()
}

fn objects(head: &[u8], whole: bool, field: &str) -> Option<Layout> {
    let outer = field.split_once('.').map_or(field, |(first, _)| first);
    let has_field = |object: &[u8]| {
        let all = members(object);
        all.iter()
            .any(|m| m.is(object, field) || m.is(object, outer))
    };
    match first_value(head, whole) {
        Value::Until(end) if !head[..end].contains(&b'\n') => {
            let behind = head[end..].trim_ascii_start();
            let same_line = !head[end..head.len() - behind.len()].contains(&b'\n');
            let empty = members(head).is_empty();
            match behind.first() {
                None => Some(Layout::Lines),
                Some(b'{') if same_line => Some(Layout::Values),
                Some(b'{') => Some(Layout::Lines),
                Some(b',') if same_line && !empty => Some(Layout::Lines),
                // The line after it is damaged, or no JSON.
                _ if !same_line && !empty => Some(Layout::Lines),
                _ => None,
            }
        }
        Value::Until(end) if has_field(&head[..end]) => Some(Layout::Values),
        Value::Until(_) => None,
        Value::Open if head.contains(&b'\n') => has_field(head).then_some(Layout::Values),
        Value::Open => (!members(head).is_empty()).then_some(Layout::Lines),
        Value::No => {
            // A damaged line among good ones is a row still.
            let lines = head.split(|b| *b == b'\n').take(FIRST_LINES);
            let row = |line: &&[u8]| {
                let line = line.trim_ascii();
                let one = matches!(first_value(line, true), Value::Until(end) if end == line.len());
                one && line.starts_with(b"{") && !members(line).is_empty()
            };
            (lines.filter(row).count() >= 2).then_some(Layout::Lines)
        }
    }
}

/// The first JSON value of a text.
enum Value {
    /// It ends here.
    Until(usize),
    /// The text ends within it.
    Open,
    /// The text is no JSON.
    No,
}

fn first_value(text: &[u8], whole: bool) -> Value {
    let text = finite(text, 0..text.len());
    let mut values = serde_json::Deserializer::from_slice(&text).into_iter::<IgnoredAny>();
    match values.next() {
        Some(Ok(_)) => Value::Until(values.byte_offset()),
        Some(Err(e)) if e.is_eof() || !whole && at_the_end(&text, &e) => Value::Open,
        None | Some(Err(_)) => Value::No,
    }
}

/// Is the mistake so near to the end of a sample that it may be a word, as `-Infinity`, that the end cuts in two?
fn at_the_end(text: &[u8], e: &serde_json::Error) -> bool {
    let ends = text.iter().enumerate().filter(|(_, b)| **b == b'\n');
    let before = e
        .line()
        .checked_sub(2)
        .and_then(|n| ends.map(|(at, _)| at + 1).nth(n));
    before.unwrap_or(0) + e.column() + "-Infinity".len() > text.len()
}

/// A member of an object: where its name and its value stand in the text.
pub(crate) struct Member {
    name: Range<usize>,
    value: Range<usize>,
}

impl Member {
    pub(super) fn is(&self, text: &[u8], name: &str) -> bool {
        let own = serde_json::from_slice::<Cow<'_, str>>(&text[self.name.clone()]);
        own.is_ok_and(|own| own == name)
    }
}

/// The members of the object that a text begins with, as far as the text goes.
pub(crate) fn members(text: &[u8]) -> Vec<Member> {
    let mut out = vec![];
    let (mut depth, mut at) = (0u64, 0);
    let (mut name, mut value): (Option<Range<usize>>, Option<usize>) = (None, None);
    let mut close = |name: &mut Option<Range<usize>>, value: &mut Option<usize>, end| {
        if let (Some(name), Some(start)) = (name.take(), value.take()) {
            let value = start..end;
            out.push(Member { name, value });
        }
    };
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => {
                let end = string_end(text, at);
                if depth == 1 && name.is_none() {
                    name = Some(at..end);
                }
                at = end;
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    break;
                }
            }
            b':' if depth == 1 && name.is_some() && value.is_none() => value = Some(at + 1),
            b',' if depth == 1 => close(&mut name, &mut value, at),
            _ => {}
        }
        at += 1;
    }
    close(&mut name, &mut value, at);
    out
}

/// Returns the end of the string that begins at `at`, or that of the text where it has no end.
fn string_end(text: &[u8], at: usize) -> usize {
    let mut end = at + 1;
    while let Some(byte) = text.get(end) {
        match byte {
            b'"' => return end + 1,
            b'\\' => end += 2,
            _ => end += 1,
        }
    }
    text.len()
}

/// Numbers that Python's `json` writes and JSON does not have, and what stands in their place.
const NO_NUMBERS: [(&[u8], &[u8]); 3] = [
    (b"NaN", b"0  "),
    (b"-Infinity", b"-0       "),
    (b"Infinity", b"0       "),
];

/// The name of such a number if the text begins with one.
pub(crate) fn no_number(text: &[u8]) -> Option<&'static str> {
    let (name, _) = NO_NUMBERS.iter().find(|(n, _)| text.starts_with(n))?;
    std::str::from_utf8(name).ok()
}

/// The same text with a number of the same length in the place of each of [`NO_NUMBERS`] between `within`.
fn finite(text: &[u8], within: Range<usize>) -> Cow<'_, [u8]> {
    let mut out = Cow::Borrowed(text);
    let mut at = within.start;
    while at < within.end {
        match text[at] {
            b'"' => at = string_end(text, at),
            b'N' | b'I' | b'-' => {
                let found = NO_NUMBERS.iter().find(|(n, _)| text[at..].starts_with(n));
                if let Some((name, number)) = found {
                    out.to_mut()[at..at + name.len()].copy_from_slice(number);
                    at += name.len() - 1;
                }
                at += 1;
            }
            _ => at += 1,
        }
    }
    out
}

/// The object in `line` with JSON numbers for those that only Python writes, in members that nobody reads.
pub(crate) fn unread_numbers<'a>(line: &'a [u8], read: &[&str]) -> Cow<'a, [u8]> {
    let mut out = Cow::Borrowed(line);
    for m in members(line) {
        if read.iter().any(|name| m.is(line, name)) {
            continue;
        }
        if let Cow::Owned(changed) = finite(line, m.value.clone()) {
            let part = changed[m.value.clone()].to_vec();
            out.to_mut()[m.value].copy_from_slice(&part);
        }
    }
    out
}

/// The reason of an error of `serde_json` about `line`, without the place that it appends, and in words where Python's numbers are the cause.
pub(crate) fn reason(e: &serde_json::Error, line: &[u8]) -> String {
    let near = e.column().saturating_sub(1);
    let found = (near.saturating_sub(1)..=near).find_map(|at| no_number(line.get(at..)?));
    if let Some(number) = found.filter(|_| e.is_syntax() && e.line() == 1) {
        return format!(
            "{number} is no JSON value; Python writes it for a number that is missing or too large"
        );
    }
    let text = e.to_string();
    let own = text.rsplit_once(" at line ").map(|(reason, _)| reason);
    own.unwrap_or(&text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Option<Layout> {
        layout(text.as_bytes(), true, "text")
    }

    #[test]
    fn rows_are_told_from_text_that_begins_like_them() {
        use Layout::{Lines, Values};
        let long = format!("{{\"id\": 3, \"text\": \"{}", "x".repeat(70_000));
        for (text, expected) in [
            ("{\"text\": \"a\"}", Some(Lines)),
            (
                "\u{feff}\n \n{\"text\": \"a\"}\r\n\r\n{\"text\": \"b\"}\n",
                Some(Lines),
            ),
            (
                "{\"body\": \"a\", \"x\": NaN}\n{\"body\": -Infinity}\n",
                Some(Lines),
            ),
            ("{\"text\": \"a\"}\noops\n", Some(Lines)),
            ("{\"text\": \"a\"},\n{\"text\": \"b\"},\n", Some(Lines)),
            (
                "{\"text\": oops}\n{\"text\": \"a\"}\n{\"text\": \"b\"}\n",
                Some(Lines),
            ),
            ("{\"text\": \"cut off", Some(Lines)),
            (&long, Some(Lines)),
            ("{\"text\": \"a\"} {\"text\": \"b\"}", Some(Values)),
            ("[{\"text\": \"a\"}, {\"text\": \"b\"}]\n", Some(Values)),
            ("\n[\n  {\n    \"text\": \"a\"\n  }\n]", Some(Values)),
            ("[{\"text\": \"a\"}, {\"text\": \"cut", Some(Values)),
            ("[{\"text\": \"a\"}, {\"text\": \"b\"},]", Some(Values)),
            ("[{\"text\": \"a\"}\n{\"text\": \"b\"}]", Some(Values)),
            ("[{\"text\": \"a\"}, {\"text\": oops}]", Some(Values)),
            ("[{\"text\": \"a\"}]\noops\n", Some(Values)),
            ("[\"a\", \"b\"]", Some(Values)),
            (
                "{\n  \"text\": \"a\"\n}\n{\n  \"text\": \"b\"\n}\n",
                Some(Values),
            ),
            // Settings, and sources of several languages.
            (
                "{\n  \"name\": \"a\",\n  \"deep\": {\"text\": 1}\n}\n",
                None,
            ),
            ("{\n  int x = 3;\n}\n", None),
            ("{", None),
            ("{\n", None),
            ("{}\nint x;\n", None),
            ("{{ text }} and {\"text\": 1}\n", None),
            ("{\\rtf1 text}", None),
            ("{'text': 'a'}\n{'text': 'b'}\n", None),
            ("{\"use strict\"}\n", None),
            ("{\"text\": \"a\"}.text\n", None),
            ("[1] Smith, A first reference\n[2] Jones\n", None),
            ("[section]\nkey = 1\n", None),
            ("[\"a\", \"b\"].map(f)\n", None),
            ("[{x: 1}]\n", None),
            ("[{\"x\": 1}].map(f)\n", None),
            ("[{\"x\": 1}, f(2)]\n", None),
            ("[\"a\"]\nA line of text\n", None),
            ("[]", None),
            ("[[1, 2], [3, 4]]", None),
            ("Text {\"text\": \"a\"}\n", None),
            ("", None),
            (" \n", None),
        ] {
            assert_eq!(of(text), expected, "{}", &text[..text.len().min(60)]);
        }
        // Of a long text the end is not known.
        let head = |text: &str| layout(text.as_bytes(), false, "text");
        assert_eq!(head("{\"a\": 1, \"text\": \"x \u{4e16}"), Some(Lines));
        assert_eq!(head("{\n\"a\": 1,\n\"text\": [1"), Some(Values));
        assert_eq!(head("[\n{\n\"a\": Na"), Some(Values));
        assert_eq!(head("{\n\"a\": 1,\n\"b\": [1"), None);
    }

    #[test]
    fn members_stand_where_they_are_and_names_are_read() {
        let line = br#" {"a\u0062": [1, {"x": "}"}], "t": "q\"}", "n": NaN} x"#;
        let all = members(line);
        let value = |m: &Member| String::from_utf8(line[m.value.clone()].to_vec()).unwrap();
        let values: Vec<String> = all.iter().map(value).collect();
        assert_eq!(values, [r#" [1, {"x": "}"}]"#, r#" "q\"}""#, " NaN"]);
        assert!(all[0].is(line, "ab") && !all[0].is(line, "t") && all[1].is(line, "t"));
    }

    #[test]
    fn only_numbers_that_nobody_reads_are_replaced() {
        let line = br#"{"text": "NaN", "a": {"b": [NaN, -Infinity, Infinity]}, "t": NaN}"#;
        let got = unread_numbers(line, &["text", "t"]);
        let got = std::str::from_utf8(&got).unwrap();
        assert_eq!(got.len(), line.len());
        assert!(
            got.contains("\"text\": \"NaN\"") && got.ends_with("\"t\": NaN}"),
            "{got}"
        );
        assert!(
            !got.contains("Infinity") && got.contains("[0  , -0       , 0       ]"),
            "{got}"
        );
        assert!(matches!(
            unread_numbers(b"{\"a\": 1}", &[]),
            Cow::Borrowed(_)
        ));
    }
}
