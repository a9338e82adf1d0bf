//! The text of one JSON line, with the place of anything that is wrong with it.

use crate::error::{DataError, Result};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use std::fmt;
use std::path::Path;

/// The string under `field` of the object in `line`; `None` for a blank line. `number` is the 1-based line.
pub(crate) fn text_of_line(
    line: &[u8],
    field: &str,
    path: &Path,
    number: u64,
) -> Result<Option<String>> {
    if line.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    let mut json = serde_json::Deserializer::from_slice(line);
    Field(field)
        .deserialize(&mut json)
        .and_then(|text| json.end().map(|()| Some(text)))
        .map_err(|e| {
            let text = e.to_string();
            // serde_json appends its own place, which counts lines from this line.
            let reason = text
                .rsplit_once(" at line ")
                .map_or(text.as_str(), |(reason, _)| reason)
                .to_string();
            DataError::Json {
                path: path.into(),
                line: number,
                column: e.column().max(1) as u64,
                reason,
                field: field.into(),
            }
        })
}

/// Picks one field out of an object without building the rest.
struct Field<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for Field<'_> {
    type Value = String;
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> std::result::Result<String, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Field<'_> {
    type Value = String;
    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "an object with a string field \"{}\"", self.0)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<String, A::Error> {
        let mut text = None;
        while let Some(name) = map.next_key::<String>()? {
            if name != self.0 {
                map.next_value::<IgnoredAny>()?;
            } else if text.replace(map.next_value::<String>()?).is_some() {
                return Err(serde::de::Error::custom(format_args!(
                    "field \"{name}\" occurs twice"
                )));
            }
        }
        text.ok_or_else(|| {
            serde::de::Error::custom(format_args!("field \"{}\" is missing", self.0))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &[u8]) -> Result<Option<String>> {
        text_of_line(line, "text", Path::new("d/x.jsonl"), 7)
    }

    #[test]
    fn the_field_is_found_among_others() {
        let line = br#" {"id": [1, {"text": "no"}], "text": "a\n\u00e9", "n": null} "#;
        assert_eq!(read(line).unwrap().as_deref(), Some("a\né"));
        assert_eq!(read(b" \r\n").unwrap(), None);
        assert_eq!(
            text_of_line(br#"{"body":"b"}"#, "body", Path::new("x"), 1)
                .unwrap()
                .as_deref(),
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
