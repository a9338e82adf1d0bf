//! Whether a key of another program asks for anything: its value is not the one that it has there when it is not given.

use crate::deepspeed::is_remark;
use crate::json::{Json, parse};

/// Returns true if `value` asks for nothing, where `default` (JSON) is what the other program takes
/// for a key that is not given.
pub(crate) fn asks_nothing(value: &Json, default: &str) -> bool {
    match parse(default) {
        Ok(default) => nothing(value, &default.value),
        Err(_) => *value == Json::Null,
    }
}

fn nothing(value: &Json, default: &Json) -> bool {
    match (value, default) {
        (Json::Null, _) => true,
        (Json::Text(text), _) if text == "auto" => true,
        (Json::Object(given), Json::Object(defaults)) => {
            let switch = given.iter().find(|m| m.key == "enabled");
            let off = |v: &Json| matches!(v, Json::Null | Json::Bool(false)) || is_auto(v);
            let own = defaults.iter().find(|m| m.key == "enabled");
            let own = own.map(|m| &m.node.value);
            match switch {
                Some(m) if off(&m.node.value) && own != Some(&Json::Bool(true)) => true,
                // Settings of what is not switched on.
                None if own == Some(&Json::Bool(false)) => true,
                _ => given.iter().all(|m| {
                    let of = defaults.iter().find(|d| d.key == m.key);
                    let same = of.is_some_and(|d| nothing(&m.node.value, &d.node.value));
                    is_remark(&m.key) || same
                }),
            }
        }
        // A section that is switched off as a whole.
        (Json::Bool(false), Json::Object(_)) => true,
        (Json::Number(a), Json::Number(b)) => match (a.parse::<f64>(), b.parse::<f64>()) {
            (Ok(a), Ok(b)) => a == b,
            _ => a == b,
        },
        (Json::Text(a), Json::Text(b)) => a.eq_ignore_ascii_case(b),
        (Json::List(a), Json::List(b)) => {
            let mut pairs = a.iter().zip(b);
            a.len() == b.len() && pairs.all(|(a, b)| nothing(&a.value, &b.value))
        }
        (a, b) => a == b,
    }
}

fn is_auto(value: &Json) -> bool {
    matches!(value, Json::Text(text) if text == "auto")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn off_is_what_the_type_of_the_key_calls_off() {
        for (value, default, wanted) in [
            ("false", "false", true),
            ("null", "false", true),
            ("\"auto\"", "false", true),
            ("0", "false", false),
            ("1", "false", false),
            ("0.5", "false", false),
            ("-1", "false", false),
            ("true", "false", false),
            ("false", "true", false),
            ("true", "true", true),
            ("1", "true", false),
            ("0", "0.0", true),
            ("0.0", "0", true),
            ("1", "0.0", false),
            ("-1", "0.0", false),
            ("false", "0.0", false),
            ("1e8", "100000000", true),
            ("\"WARN\"", "\"Warn\"", true),
            ("\"Fail\"", "\"Warn\"", false),
            ("{}", "null", false),
            ("false", "null", false),
            ("{}", "{}", true),
            ("false", "{}", true),
            ("[]", "{}", false),
            ("{\"a\": 1}", "{}", false),
            ("{\"_why\": 1}", "{}", true),
            ("{\"enabled\": false, \"a\": 1}", "{}", true),
            ("{\"a\": 1}", "{\"enabled\": false}", true),
            ("{\"enabled\": true}", "{\"enabled\": false}", false),
            ("{\"enabled\": 1}", "{\"enabled\": false}", false),
            (
                "{\"a\": {\"b\": true}}",
                "{\"a\": {\"b\": true, \"c\": 1}}",
                true,
            ),
            (
                "{\"a\": {\"b\": false}}",
                "{\"a\": {\"b\": true, \"c\": 1}}",
                false,
            ),
            ("{\"enabled\": false}", "{\"enabled\": true}", false),
            ("[\"x\"]", "[\"x\"]", true),
            ("[\"x\"]", "[]", false),
        ] {
            let node = parse(value).unwrap();
            assert_eq!(
                asks_nothing(&node.value, default),
                wanted,
                "{value} of {default}"
            );
        }
    }
}
