//! Messages as `transformers` gives them to a template, and the same messages with something else
//! said: what changes in the text is what the message wrote.

use crossweave_jinja::{Value, ValueKind};

/// The names under which a message's thoughts are passed; the first that is there holds them.
/// From `transformers` 5.23, `utils/chat_template_utils.py: _REASONING_FIELDS`.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];
/// Begins what is written in place of what was said; no character, so that no text has it.
const MARK: char = '\u{7fffe}';

type Fields = Vec<(String, Value)>;

/// The words that a changed message says otherwise.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// All that is said.
    All,
    /// All that is said, with content where there is none.
    Content,
    /// Content and thoughts in place of all that is said.
    Words,
    /// All that is said, with content and thoughts where there are none.
    Thoughts,
    /// One field: the content, the thoughts, or what calls are given.
    OnlyContent,
    OnlyThoughts,
    OnlyArguments,
}

pub(super) fn role(message: &Value) -> String {
    let role = message.get_attr("role").ok();
    role.and_then(|r| r.as_str().map(str::to_string))
        .unwrap_or_default()
}

/// OpenAI's own field: an answer of weight 0 is not learnt from.
pub(super) fn counts(message: &Value) -> bool {
    let weight = message.get_attr("weight").ok();
    weight.and_then(|w| f64::try_from(w).ok()) != Some(0.0)
}

/// Returns true if a message says anything at all.
pub(super) fn speaks(message: &Value) -> bool {
    let fields = fields(message);
    let said = |(key, value): &(String, Value)| {
        let speech = matches!(key.as_str(), "content" | "tool_calls");
        (speech || REASONING.contains(&key.as_str())) && given(value)
    };
    fields.iter().any(said)
}

/// A number that Python writes and JSON does not have, with what it stands for; `None` = another value.
pub(super) fn no_value(value: &Value) -> Option<String> {
    let number =
        (value.kind() == ValueKind::Number).then(|| f64::try_from(value.clone()).ok())??;
    let name = match number {
        n if n.is_nan() => "NaN",
        f64::INFINITY => "Infinity",
        f64::NEG_INFINITY => "-Infinity",
        _ => return None,
    };
    Some(format!(
        "{name}, which Python writes for a value that is missing or too large"
    ))
}

/// A list of messages, each with a role and content, as `apply_chat_template` of `transformers` 5
/// passes them on: fields of null are left out, and thoughts stand under the names that templates read.
///
/// # Errors
/// A value that is no list of messages, in words.
pub(super) fn list(value: &Value, field: &str) -> std::result::Result<Vec<Value>, String> {
    let messages: Vec<Value> = match value.kind() {
        ValueKind::Seq => value.try_iter().map_err(|e| e.to_string())?.collect(),
        kind => return Err(format!("field {field:?} is no list of messages but {kind}")),
    };
    if messages.is_empty() {
        return Err(format!("field {field:?} is an empty list"));
    }
    for (i, m) in messages.iter().enumerate() {
        let at = format!("message {} of {field:?}", i + 1);
        if m.kind() != ValueKind::Map {
            return Err(format!("{at} is no object but {}", m.kind()));
        }
        let has = |key: &str| m.get_attr(key).is_ok_and(|v| !v.is_undefined());
        for key in ["role", "content", "tool_calls"].iter().chain(&REASONING) {
            if let Some(why) = m.get_attr(key).ok().and_then(|v| no_value(&v)) {
                return Err(format!("{at}: {key:?} is {why}"));
            }
        }
        if role(m).is_empty() {
            let share_gpt = match has("from") {
                true => "; rows with from and value are of data.format \"sharegpt\"",
                false => "",
            };
            return Err(format!("{at} has no role{share_gpt}"));
        }
        if !has("content") && !has("tool_calls") && !REASONING.iter().any(|key| has(key)) {
            return Err(format!("{at} has no content"));
        }
    }
    Ok(messages.iter().map(normalised).collect())
}

fn normalised(message: &Value) -> Value {
    let mut fields = fields(message);
    fields.retain(|(_, value)| !value.is_none());
    let find = |fields: &Fields, key: &str| fields.iter().position(|(k, _)| k == key);
    let first = REASONING.iter().find_map(|key| find(&fields, key));
    if let Some(at) = first {
        let thoughts = fields[at].1.clone();
        let thinking = match find(&fields, "thinking") {
            Some(at) => fields.remove(at).1,
            None => thoughts.clone(),
        };
        fields.insert(0, ("thinking".to_string(), thinking));
        put(&mut fields, "reasoning_content", thoughts);
    }
    object(fields)
}

/// The message with other words, each of the kind of those that it replaces; `None` where there is
/// nothing to say otherwise.
pub(super) fn changed(message: &Value, change: Change) -> Option<Value> {
    let mut fields = fields(message);
    let mut any = false;
    let one = |key: &str| match change {
        Change::OnlyContent => key == "content",
        Change::OnlyThoughts => REASONING.contains(&key),
        Change::OnlyArguments => key == "tool_calls",
        _ => true,
    };
    for (key, value) in &mut fields {
        let other = match key.as_str() {
            key if !one(key) || !given(value) => continue,
            "content" => reworded(value),
            "tool_calls" => calls(value, change == Change::OnlyArguments),
            key if REASONING.contains(&key) => reworded(value),
            _ => continue,
        };
        any |= other != *value;
        *value = other;
    }
    let words = || Value::from(format!("{MARK}QX7"));
    let adds = matches!(change, Change::Content | Change::Words | Change::Thoughts);
    if change == Change::Words {
        fields.retain(|(key, _)| key != "tool_calls");
    }
    let empty = |fields: &Fields, key: &str| !fields.iter().any(|(k, v)| k == key && given(v));
    if adds && empty(&fields, "content") {
        put(&mut fields, "content", words());
        any = true;
    }
    if matches!(change, Change::Words | Change::Thoughts) && empty(&fields, REASONING[0]) {
        for key in &REASONING[..2] {
            put(&mut fields, key, words());
        }
        any = true;
    }
    any.then(|| object(fields))
}

/// Calls with other arguments; also of other functions, under other ids, unless `arguments` alone.
fn calls(value: &Value, arguments: bool) -> Value {
    map(value, &|call| {
        each(call, &|key, inner| match key {
            "function" => each(inner, &|key, inner| match key {
                "arguments" => argued(inner),
                "name" if !arguments => reworded(inner),
                _ => inner.clone(),
            }),
            // Calls without a "function" around their fields.
            "arguments" => argued(inner),
            "name" if !arguments => reworded(inner),
            "id" if !arguments => renamed(inner),
            _ => inner.clone(),
        })
    })
}

/// Other arguments: of a string that is JSON text another one.
fn argued(value: &Value) -> Value {
    match value.as_str() {
        Some(_) => Value::from(format!("{{\"{MARK}QX7\": \"QX7\"}}")),
        None => reworded(value),
    }
}

/// An identifier of the same length and kinds of characters.
fn renamed(value: &Value) -> Value {
    let other = |c: char| match c {
        '9' => '0',
        'z' => 'a',
        'Z' => 'A',
        c if c.is_ascii_alphanumeric() => char::from(c as u8 + 1),
        c => c,
    };
    match value.as_str() {
        Some(id) => Value::from(id.chars().map(other).collect::<String>()),
        None => value.clone(),
    }
}

/// The same structure with other texts and numbers; what says of which type a part is stays.
fn reworded(value: &Value) -> Value {
    match value.kind() {
        ValueKind::String => Value::from(format!("{MARK}QX7")),
        ValueKind::Bool => Value::from(*value == Value::from(false)),
        ValueKind::Number if matches!(value, Value::Int(_) | Value::Big(_)) => {
            Value::from(7_364_529)
        }
        ValueKind::Number => Value::from(736.4529),
        ValueKind::Seq => map(value, &reworded),
        ValueKind::Map => each(value, &|key, inner| match key {
            "type" => inner.clone(),
            _ => reworded(inner),
        }),
        _ => value.clone(),
    }
}

/// Returns true if a field says anything: it is neither null nor empty.
fn given(value: &Value) -> bool {
    match value.kind() {
        ValueKind::String => value.as_str() != Some(""),
        ValueKind::Seq | ValueKind::Map => {
            value.try_iter().is_ok_and(|mut all| all.next().is_some())
        }
        ValueKind::Bool => *value == Value::from(true),
        kind => kind == ValueKind::Number,
    }
}

fn put(fields: &mut Fields, key: &str, value: Value) {
    match fields.iter_mut().find(|(k, _)| k == key) {
        Some((_, old)) => *old = value,
        None => fields.push((key.to_string(), value)),
    }
}

/// The fields of an object, in their order; of anything else none.
fn fields(value: &Value) -> Fields {
    let keys = value
        .try_iter()
        .ok()
        .filter(|_| value.kind() == ValueKind::Map);
    keys.into_iter()
        .flatten()
        .map(|key| {
            let inner = value.get_item(&key).unwrap_or_default();
            (key.as_str().unwrap_or_default().to_string(), inner)
        })
        .collect()
}

fn object(fields: Fields) -> Value {
    Value::from_pairs(fields)
}

fn each(value: &Value, change: &dyn Fn(&str, &Value) -> Value) -> Value {
    match value.kind() {
        ValueKind::Map => object(
            fields(value)
                .into_iter()
                .map(|(key, inner)| {
                    let other = change(&key, &inner);
                    (key, other)
                })
                .collect(),
        ),
        _ => value.clone(),
    }
}

fn map(value: &Value, change: &dyn Fn(&Value) -> Value) -> Value {
    match value.kind() {
        ValueKind::Seq => {
            let items = value.try_iter().into_iter().flatten();
            items.map(|item| change(&item)).collect()
        }
        _ => value.clone(),
    }
}
