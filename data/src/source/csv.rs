//! Documents of comma- or tab-separated values (RFC 4180): one row, one document, out of the column that the first line names.

use super::rows::LONGEST_LINE;
use crate::error::{DataError, Result};
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// Gives the value of each row in the column `field` to `eat`, in order. `failed` names what a read that fails means.
///
/// # Errors
/// No such column; a row of another number of values; quotes that do not pair; a value that is not UTF-8; a failed read.
pub(crate) fn csv(
    path: &Path,
    from: impl Read,
    delimiter: u8,
    field: &str,
    failed: impl Fn(io::Error) -> DataError,
    eat: &mut dyn FnMut(Option<&str>) -> Result<()>,
) -> Result<()> {
    let mut records = Records {
        from: BufReader::with_capacity(1 << 20, from),
        delimiter,
        line: 1,
        bytes: 0,
    };
    let bad = |line: u64, reason: String| DataError::Table {
        path: path.into(),
        reason: format!("line {line} {reason}"),
    };
    let mut next = || -> Result<Option<(u64, Vec<Vec<u8>>)>> {
        records.next().map_err(|e| match e {
            RecordError::Read(e) => failed(e),
            RecordError::Line(line, reason) => bad(line, reason),
        })
    };
    let (_, mut names) = next()?.unwrap_or_default();
    if let Some(first) = names.first_mut()
        && first.starts_with(b"\xef\xbb\xbf")
    {
        first.drain(..3);
    }
    let Some(at) = names.iter().position(|n| n == field.as_bytes()) else {
        let names = names.iter().take(20);
        let names: Vec<String> = names
            .map(|n| {
                format!(
                    "{:?}",
                    crossweave_files::clip(&String::from_utf8_lossy(n), 40)
                )
            })
            .collect();
        return Err(DataError::Table {
            path: path.into(),
            reason: format!("has no column {field:?}, but {}", names.join(", ")),
        });
    };
    while let Some((line, values)) = next()? {
        if values.len() != names.len() {
            let reason = format!(
                "has {} values, and the first has {}",
                values.len(),
                names.len()
            );
            return Err(bad(line, reason));
        }
        let text = std::str::from_utf8(&values[at])
            .map_err(|_| bad(line, format!("is not UTF-8 in column {field:?}")))?;
        eat(Some(text))?;
    }
    Ok(())
}

struct Records<R> {
    from: R,
    delimiter: u8,
    line: u64,
    /// Bytes of the record that is read so far.
    bytes: u64,
}

enum RecordError {
    Read(io::Error),
    Line(u64, String),
}

impl From<io::Error> for RecordError {
    fn from(e: io::Error) -> Self {
        RecordError::Read(e)
    }
}

impl<R: BufRead> Records<R> {
    /// The values of the next record and its first line; blank lines are none.
    fn next(&mut self) -> std::result::Result<Option<(u64, Vec<Vec<u8>>)>, RecordError> {
        self.bytes = 0;
        let start = loop {
            let start = self.line;
            match self.take()? {
                None => return Ok(None),
                Some(b'\n' | b'\r') => {}
                Some(byte) => break (start, byte),
            }
        };
        let ((line, first), mut values) = (start, vec![]);
        let mut byte = Some(first);
        loop {
            let (value, end) = self.value(byte, line)?;
            values.push(value);
            if end != Some(self.delimiter) {
                return Ok(Some((line, values)));
            }
            byte = self.take()?;
        }
    }

    /// A value that begins with `byte`, and what ends it: the delimiter, the line or the file.
    fn value(
        &mut self,
        mut byte: Option<u8>,
        line: u64,
    ) -> std::result::Result<(Vec<u8>, Option<u8>), RecordError> {
        let mut value = vec![];
        if byte != Some(b'"') {
            loop {
                match byte {
                    None | Some(b'\n') => {
                        // The end of a line on Windows.
                        if value.last() == Some(&b'\r') {
                            value.pop();
                        }
                        return Ok((value, byte));
                    }
                    Some(b) if b == self.delimiter => return Ok((value, byte)),
                    Some(b) => value.push(b),
                }
                byte = self.take()?;
            }
        }
        loop {
            match self.take()? {
                None => {
                    let reason = "begins a quoted value that has no end";
                    return Err(RecordError::Line(line, reason.into()));
                }
                Some(b'"') => match self.take()? {
                    Some(b'"') => value.push(b'"'),
                    Some(b'\r') if self.from.fill_buf()?.first() == Some(&b'\n') => {
                        return Ok((value, self.take()?));
                    }
                    end if end.is_none_or(|b| b == b'\n' || b == self.delimiter) => {
                        return Ok((value, end));
                    }
                    _ => {
                        let reason = "has something behind the end of a quoted value";
                        return Err(RecordError::Line(self.line, reason.into()));
                    }
                },
                Some(b) => value.push(b),
            }
        }
    }

    fn take(&mut self) -> std::result::Result<Option<u8>, RecordError> {
        let Some(byte) = self.from.fill_buf()?.first().copied() else {
            return Ok(None);
        };
        self.from.consume(1);
        self.line += u64::from(byte == b'\n');
        self.bytes += 1;
        if self.bytes > LONGEST_LINE {
            let reason = format!("begins a row of more than {LONGEST_LINE} bytes");
            return Err(RecordError::Line(self.line, reason));
        }
        Ok(Some(byte))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8], delimiter: u8) -> std::result::Result<Vec<String>, String> {
        let mut out = vec![];
        let path = Path::new("d/x.csv");
        let failed = |e: io::Error| DataError::io("read", path)(e);
        let mut eat = |text: Option<&str>| {
            let text = text.unwrap_or_default();
            out.push(text.to_string());
            Ok(())
        };
        csv(path, text, delimiter, "text", failed, &mut eat).map_err(|e| e.to_string())?;
        Ok(out)
    }

    #[test]
    fn quotes_delimiters_and_lines_within_values_are_read() {
        let text = b"\xef\xbb\xbfid,text,n\r\n1,\"a, \"\"b\"\"\nc\",2\r\n\r\n3,plain \"x\",\n4,,5\n6,last,";
        let rows = ["a, \"b\"\nc", "plain \"x\"", "", "last"];
        assert_eq!(read(text, b',').unwrap(), rows);
        assert_eq!(
            read(b"text\tid\na,b\t1\n\"\"\t2", b'\t').unwrap(),
            ["a,b", ""]
        );
        assert_eq!(
            read(b"\"text\"\r\n\"a\"\r\n\"b\"", b',').unwrap(),
            ["a", "b"]
        );
        assert_eq!(read(b"text", b',').unwrap(), Vec::<String>::new());
    }

    #[test]
    fn rows_that_do_not_fit_are_named() {
        for (text, said) in [
            (
                &b"id,body\n1,a\n"[..],
                "has no column \"text\", but \"id\", \"body\"",
            ),
            (b"", "has no column \"text\""),
            (b"id;text\n1;a\n", "has no column \"text\", but \"id;text\""),
            (
                b"id,text\n1,a\n2,b,c\n",
                "line 3 has 3 values, and the first has 2",
            ),
            (
                b"text,id\n\"a\n\nb,1\n",
                "line 2 begins a quoted value that has no end",
            ),
            (b"text,id\n\"a\"b,1\n", "line 2 has something behind"),
            (b"text,id\n\xff,1\n", "line 2 is not UTF-8"),
        ] {
            let got = read(text, b',').unwrap_err();
            assert!(got.starts_with("d/x.csv: ") && got.contains(said), "{got}");
        }
    }
}
