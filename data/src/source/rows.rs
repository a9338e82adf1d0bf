//! Rows of a file of JSON, one after the other with their lines: an object a line, or the elements of a list and objects over several lines.

use super::Form;
use std::io::{self, BufRead, Read};

/// A row is held in memory whole.
pub(crate) const LONGEST_LINE: u64 = 1 << 30;

/// A row as it stands in its file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// 1-based line where it begins.
    pub(crate) line: u64,
    /// Bytes of that line before it.
    pub(crate) indent: u64,
    pub(crate) bytes: Vec<u8>,
}

impl Row {
    /// Is it a blank line?
    pub(crate) fn is_blank(&self) -> bool {
        self.bytes.iter().all(u8::is_ascii_whitespace)
    }
}

/// The reason for which there is no next row.
#[derive(Debug)]
pub(crate) enum RowError {
    /// The file cannot be read, or what is packed is damaged.
    Read(io::Error),
    /// The file is no list of rows, with line, column and reason.
    Layout(u64, u64, String),
}

impl From<io::Error> for RowError {
    fn from(e: io::Error) -> Self {
        RowError::Read(e)
    }
}

/// The rows of what `from` gives.
pub(crate) struct JsonRows<R> {
    from: R,
    values: bool,
    /// Place of the next byte, 1-based.
    line: u64,
    column: u64,
    within_list: bool,
    /// A value, a comma or the end of the list may follow.
    behind_value: bool,
    began: bool,
}

impl<R: BufRead> JsonRows<R> {
    pub(crate) fn new(from: R, form: Form) -> JsonRows<R> {
        JsonRows {
            from,
            values: form == Form::JsonValues,
            line: 1,
            column: 1,
            within_list: false,
            behind_value: false,
            began: false,
        }
    }

    /// The next row; blank lines are rows of their own. `None` at the end of the file.
    ///
    /// # Errors
    /// A failed read; a row that is too long; what is between rows is not what a list has there.
    pub(crate) fn next(&mut self) -> Result<Option<Row>, RowError> {
        if !self.began {
            self.began = true;
            // A byte order mark belongs to the encoding.
            if self.from.fill_buf()?.starts_with(b"\xef\xbb\xbf") {
                self.from.consume(3);
            }
        }
        match self.values {
            true => self.value(),
            false => self.whole_line(),
        }
    }

    /// Returns true if nothing follows that can be read.
    pub(crate) fn at_end(&mut self) -> bool {
        self.peek().is_ok_and(|next| next.is_none())
    }

    fn whole_line(&mut self) -> Result<Option<Row>, RowError> {
        let (line, mut bytes) = (self.line, vec![]);
        let n = (&mut self.from)
            .take(LONGEST_LINE + 1)
            .read_until(b'\n', &mut bytes)? as u64;
        if n > LONGEST_LINE {
            return Err(too_long(line, LONGEST_LINE));
        }
        self.line += 1;
        let row = Row {
            line,
            indent: 0,
            bytes,
        };
        Ok((n > 0).then_some(row))
    }

    fn value(&mut self) -> Result<Option<Row>, RowError> {
        loop {
            let Some(byte) = self.peek()? else {
                return match self.within_list {
                    true => Err(self.wrong("the list has no end: the file may be cut off")),
                    false => Ok(None),
                };
            };
            match byte {
                b' ' | b'\t' | b'\r' | b'\n' => {}
                b',' if self.within_list && self.behind_value => self.behind_value = false,
                b']' if self.within_list => (self.within_list, self.behind_value) = (false, false),
                b'[' if !self.within_list => (self.within_list, self.behind_value) = (true, false),
                _ if self.within_list && self.behind_value => {
                    return Err(self.wrong("expected `,` or `]` behind an element of the list"));
                }
                _ => {
                    self.behind_value = true;
                    return self.element().map(Some);
                }
            }
            self.step(byte);
        }
    }

    /// The value that begins here.
    fn element(&mut self) -> Result<Row, RowError> {
        let (line, indent) = (self.line, self.column - 1);
        let mut bytes = vec![];
        let (mut depth, mut string, mut escaped) = (0u64, false, false);
        while let Some(byte) = self.peek()? {
            let ends = matches!(byte, b',' | b']' | b'}' | b' ' | b'\t' | b'\r' | b'\n');
            if depth == 0 && !string && !bytes.is_empty() && ends {
                break;
            }
            bytes.push(byte);
            self.step(byte);
            if bytes.len() as u64 > LONGEST_LINE {
                return Err(too_long(line, indent + 1));
            }
            match (string, byte) {
                (true, _) if escaped => escaped = false,
                (true, b'\\') => escaped = true,
                (true, b'"') => string = false,
                (true, _) => continue,
                (false, b'"') => string = true,
                (false, b'{' | b'[') => depth += 1,
                (false, b'}' | b']') => depth = depth.saturating_sub(1),
                _ => continue,
            }
            if depth == 0 && !string && matches!(byte, b'}' | b']' | b'"') {
                break;
            }
        }
        Ok(Row {
            line,
            indent,
            bytes,
        })
    }

    fn peek(&mut self) -> io::Result<Option<u8>> {
        Ok(self.from.fill_buf()?.first().copied())
    }

    fn step(&mut self, byte: u8) {
        self.from.consume(1);
        match byte {
            b'\n' => (self.line, self.column) = (self.line + 1, 1),
            _ => self.column += 1,
        }
    }

    fn wrong(&self, reason: &str) -> RowError {
        RowError::Layout(self.line, self.column, reason.into())
    }
}

fn too_long(line: u64, column: u64) -> RowError {
    let reason = format!("the row is longer than {LONGEST_LINE} bytes");
    RowError::Layout(line, column, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &str, form: Form) -> Result<Vec<(u64, u64, String)>, String> {
        let mut all = JsonRows::new(text.as_bytes(), form);
        let mut out = vec![];
        loop {
            match all.next() {
                Ok(None) => return Ok(out),
                Ok(Some(r)) => out.push((r.line, r.indent, String::from_utf8(r.bytes).unwrap())),
                Err(RowError::Layout(line, column, reason)) => {
                    return Err(format!("{line}:{column}: {reason}"));
                }
                Err(RowError::Read(e)) => return Err(e.to_string()),
            }
        }
    }

    #[test]
    fn elements_are_found_wherever_they_stand() {
        let row = |line, indent, text: &str| (line, indent, text.to_string());
        let list = "\u{feff}\n[{\"a\": \"]},\\\"\"} ,\n  [1, {}], \"x\", 3\n]\n {\n}[]";
        assert_eq!(
            rows(list, Form::JsonValues).unwrap(),
            [
                row(2, 1, "{\"a\": \"]},\\\"\"}"),
                row(3, 2, "[1, {}]"),
                row(3, 11, "\"x\""),
                row(3, 16, "3"),
                row(5, 1, "{\n}"),
            ]
        );
        assert_eq!(rows("{}{}", Form::JsonValues).unwrap().len(), 2);
        assert_eq!(rows(" [ ] \n", Form::JsonValues).unwrap(), []);
        assert_eq!(
            rows("\u{feff}a\n\nb", Form::JsonLines).unwrap(),
            [row(1, 0, "a\n"), row(2, 0, "\n"), row(3, 0, "b")]
        );
    }

    #[test]
    fn what_is_between_elements_is_placed() {
        for (text, said) in [
            ("[{}\n", "2:1: the list has no end"),
            ("[{} {}]", "1:5: expected `,`"),
            ("[{}\n  x]", "2:3: expected `,`"),
        ] {
            let got = rows(text, Form::JsonValues).unwrap_err();
            assert!(got.starts_with(said), "{got}");
        }
    }
}
