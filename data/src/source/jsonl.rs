//! The text of one row of JSON, with the place of anything that is wrong with it.

use super::Column;
use super::json::{members, reason, unread_numbers};
use super::rows::Row;
use super::tables::said_of_examples;
use crate::error::{DataError, Result};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use std::fmt;
use std::path::Path;

/// The string in `column` of the object in `row`; `None` for a blank line, and for null where that is left out. Numbers that only Python writes
/// are accepted in other fields.
pub(crate) fn text_of_row(row: &Row, column: Column<'_>, path: &Path) -> Result<Option<String>> {
    let (bytes, field) = (&row.bytes[..], column.name);
    if row.is_blank() {
        return Ok(None);
    }
    let read = |bytes: &[u8]| {
        let mut json = serde_json::Deserializer::from_slice(bytes);
        let text = json.deserialize_map(Field::of(column))?.flatten();
        json.end().map(|()| text)
    };
    let text = match read(bytes) {
        Err(e) if e.is_syntax() => read(&unread_numbers(bytes, &[field])),
        other => other,
    };
    text.map_err(|e| {
        let indent = match e.line() {
            0 | 1 => row.indent,
            _ => 0,
        };
        DataError::Json {
            path: path.into(),
            line: row.line + (e.line().max(1) - 1) as u64,
            column: indent + e.column().max(1) as u64,
            reason: reason(&e, bytes) + &other(bytes, field),
            field: field.into(),
        }
    })
}

/// Says what a row is that lacks the field and has those of an example.
fn other(row: &[u8], field: &str) -> String {
    let members = members(row);
    let has = |name: &str| members.iter().any(|m| m.is(row, name));
    match has(field) || field.split_once('.').is_some_and(|(first, _)| has(first)) {
        true => String::new(),
        false => said_of_examples(has),
    }
}

/// Picks one field out of an object, or out of an object within it, without building the rest.
struct Field<'a> {
    column: Column<'a>,
    /// The rest of its name, which is to be found here.
    rest: &'a str,
}

/// The value that was found: nothing, null, or a text.
type Found = Option<Option<String>>;

impl<'a> Field<'a> {
    fn of(column: Column<'a>) -> Field<'a> {
        let rest = column.name;
        Field { column, rest }
    }
}

impl<'de> DeserializeSeed<'de> for Field<'_> {
    type Value = Found;
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> std::result::Result<Found, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Field<'_> {
    type Value = Found;
    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "an object with a string field \"{}\"", self.column.name)
    }
    fn visit_unit<E: serde::de::Error>(self) -> std::result::Result<Found, E> {
        match self.column.skip_null {
            true => Ok(Some(None)),
            false => Err(E::invalid_type(serde::de::Unexpected::Unit, &self)),
        }
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Found, A::Error> {
        let (mut whole, mut within): (Found, Found) = (None, None);
        let column = self.column;
        while let Some(name) = map.next_key::<String>()? {
            match self.rest.strip_prefix(&name[..]) {
                Some("") => {
                    let text = match column.skip_null {
                        true => map.next_value::<Option<String>>()?,
                        false => Some(map.next_value::<String>()?),
                    };
                    if whole.replace(text).is_some() {
                        return Err(serde::de::Error::custom(format_args!(
                            "field \"{name}\" occurs twice"
                        )));
                    }
                }
                Some(rest) if rest.starts_with('.') => {
                    let rest = &rest[1..];
                    within = map.next_value_seed(Field { column, rest })?.or(within);
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        // A name with dots that is there as it stands counts for more than fields within fields.
        let found = whole.or(within);
        if found.is_none() && self.rest == column.name {
            return Err(serde::de::Error::custom(format_args!(
                "field \"{}\" is missing",
                column.name
            )));
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_at(line: &[u8], field: &str, indent: u64) -> Result<Option<String>> {
        let row = Row {
            line: 7,
            indent,
            bytes: line.to_vec(),
        };
        let column = Column {
            name: field,
            skip_null: false,
        };
        text_of_row(&row, column, Path::new("d/x.jsonl"))
    }

    fn read(line: &[u8]) -> Result<Option<String>> {
        read_at(line, "text", 0)
    }

    #[test]
    fn numbers_of_python_are_read_over_and_named_where_they_are_asked_for() {
        let line = br#"{"score": NaN, "all": [Infinity, {"x": -Infinity}], "text": "NaN"}"#;
        assert_eq!(read(line).unwrap().as_deref(), Some("NaN"));
        for (line, place) in [
            (&br#"{"text": NaN}"#[..], ":7:10:"),
            (br#"{"id": NaN, "text": -Infinity}"#, ":7:2"),
        ] {
            let said = read(line).unwrap_err().to_string();
            assert!(
                said.contains(place) && said.contains("is no JSON value; Python"),
                "{said}"
            );
        }
        assert!(read(br#"{"id": NaNs, "text": "a"}"#).is_err());
    }

    #[test]
    fn a_row_within_a_line_or_over_several_is_placed() {
        let said = |row: &[u8]| read_at(row, "text", 20).unwrap_err().to_string();
        assert!(said(br#"{"text": 3}"#).contains(":7:30:"));
        let over = said(b"{\n \"text\": 3}");
        assert!(over.contains(":8:10:"), "{over}");
    }

    #[test]
    fn the_field_is_found_among_others() {
        let line = br#" {"id": [1, {"text": "no"}], "text": "a\n\u00e9", "n": null} "#;
        assert_eq!(read(line).unwrap().as_deref(), Some("a\né"));
        assert_eq!(read(b" \r\n").unwrap(), None);
        assert_eq!(
            read_at(br#"{"body":"b"}"#, "body", 0).unwrap().as_deref(),
            Some("b")
        );
    }

    #[test]
    fn what_is_wrong_is_placed() {
        let cases: [(&[u8], &str, &str); 8] = [
            (br#"{"text": "a""#, ":7:12:", "EOF"),
            (br#"{"body": "a"}"#, ":7:13:", "\"text\" is missing"),
            (br#"{"text": 3}"#, ":7:10:", "integer `3`"),
            (br#"{"text": null}"#, ":7:13:", "null"),
            (br#"["a"]"#, ":7:", "an object with a string field"),
            (br#"{"text":"a","text":"b"}"#, ":7:", "twice"),
            (br#"{"text":"a"} x"#, ":7:14:", "trailing"),
            (b"{\"text\":\"a\xff\"}", ":7:", "unicode"),
        ];
        for (line, place, reason) in cases {
            let error = read(line).unwrap_err().to_string();
            assert!(
                error.starts_with("d/x.jsonl") && error.contains(place) && error.contains(reason),
                "{error}"
            );
            assert!(!error.contains(" at line "), "{error}");
        }
    }

    #[test]
    fn deep_nesting_is_no_overflow() {
        let line = format!(
            "{{\"x\":{},\"text\":\"ok\"}}",
            "[".repeat(200_000) + &"]".repeat(200_000)
        );
        let _ = read(line.as_bytes());
    }
}
