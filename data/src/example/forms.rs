//! Rows as other trainers have them: conversations of ShareGPT, instructions of Alpaca, and tokens with labels.

use super::Example;
use super::messages::no_value;
use crate::spec::Rows;
use crossweave_jinja::{Value, ValueKind};

/// Fields that some form of a row has, all of which are read.
pub(crate) const READ: &[&str] = &[
    "messages",
    "prompt",
    "completion",
    "tools",
    "conversations",
    "system",
    "instruction",
    "input",
    "output",
    "history",
    "input_ids",
    "labels",
    "attention_mask",
];

/// Names of those who speak in ShareGPT's files, and the roles of chat templates.
const SPEAKERS: &[(&str, &str)] = &[
    ("system", "system"),
    ("human", "user"),
    ("user", "user"),
    ("gpt", "assistant"),
    ("assistant", "assistant"),
    ("chatgpt", "assistant"),
    ("model", "assistant"),
    ("bot", "assistant"),
    ("tool", "tool"),
    ("observation", "tool"),
];

type Read<T> = std::result::Result<T, String>;

impl Rows {
    /// The value of `data.format`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Rows::PromptCompletion => "prompt_completion",
            Rows::Messages => "messages",
            Rows::ShareGpt => "sharegpt",
            Rows::Alpaca => "alpaca",
            Rows::Tokens => "tokens",
        }
    }

    /// The fields that a row cannot be without.
    pub(crate) fn fields(self) -> &'static [&'static str] {
        match self {
            Rows::PromptCompletion => &["prompt", "completion"],
            Rows::Messages => &["messages"],
            Rows::ShareGpt => &["conversations"],
            Rows::Alpaca => &["instruction", "output"],
            Rows::Tokens => &["input_ids"],
        }
    }

    /// All fields of a row that are read.
    pub(crate) fn reads(self) -> &'static [&'static str] {
        match self {
            Rows::PromptCompletion => &["prompt", "completion", "tools"],
            Rows::Messages => &["messages", "tools"],
            Rows::ShareGpt => &["conversations", "messages", "system", "tools"],
            Rows::Alpaca => &["instruction", "input", "output", "history", "system"],
            Rows::Tokens => &["input_ids", "labels", "attention_mask"],
        }
    }

    /// Returns the first field of such a row that holds a number which only Python writes, in words.
    pub(crate) fn unreadable(self, row: &Value) -> Option<String> {
        self.reads().iter().find_map(|name| {
            let why = field(row, name).as_ref().and_then(no_value)?;
            Some(format!("field {name:?} is {why}"))
        })
    }

    /// Returns the shape of such a row, for a fix.
    pub(crate) fn shape(self) -> &'static str {
        match self {
            Rows::Messages => {
                "write {\"messages\": [{\"role\": \"user\", \"content\": …}, {\"role\": \"assistant\", \"content\": …}]}, one object a line"
            }
            Rows::PromptCompletion => "write {\"prompt\": …, \"completion\": …}, one object a line",
            Rows::ShareGpt => {
                "write {\"conversations\": [{\"from\": \"human\", \"value\": …}, {\"from\": \"gpt\", \"value\": …}]}, one object a line"
            }
            Rows::Alpaca => {
                "write {\"instruction\": …, \"input\": …, \"output\": …}, one object a line"
            }
            Rows::Tokens => "write {\"input_ids\": […], \"labels\": […]}, one object a line",
        }
    }

    /// The form of rows that have these fields.
    pub(crate) fn recognised(has: impl Fn(&str) -> bool) -> Option<Rows> {
        let all = |names: &[&str]| names.iter().all(|n| has(n));
        match () {
            _ if has("messages") => Some(Rows::Messages),
            _ if has("conversations") => Some(Rows::ShareGpt),
            _ if all(&["instruction", "output"]) => Some(Rows::Alpaca),
            _ if has("prompt") || has("completion") => Some(Rows::PromptCompletion),
            _ if has("input_ids") => Some(Rows::Tokens),
            _ => None,
        }
    }
}

/// The value of a field of an object that is not null.
pub(super) fn field(row: &Value, name: &str) -> Option<Value> {
    let value = row.get_attr(name).ok()?;
    (!value.is_none() && !value.is_undefined()).then_some(value)
}

fn message(role: &str, content: Value) -> Value {
    Value::from_pairs([("role", Value::from(role)), ("content", content)])
}

/// A string under a field, empty where there is none.
fn text(row: &Value, name: &str) -> Read<String> {
    match field(row, name) {
        None => Ok(String::new()),
        Some(v) => match v.as_str() {
            Some(text) => Ok(text.to_string()),
            None => Err(format!("field {name:?} is no string but {}", v.kind())),
        },
    }
}

fn items(value: &Value, name: &str) -> Read<Vec<Value>> {
    match value.kind() {
        ValueKind::Seq => Ok(value.try_iter().map_err(|e| e.to_string())?.collect()),
        kind => Err(format!("field {name:?} is no list but {kind}")),
    }
}

/// The messages of a row of ShareGPT: `conversations`, or `messages` where a file calls them so, behind what `system` says.
///
/// # Errors
/// Neither; a message without a speaker or words, or of a speaker that is not known.
pub(super) fn sharegpt(row: &Value) -> Read<Value> {
    let found = ["conversations", "messages"].map(|name| field(row, name).map(|v| (name, v)));
    let Some((name, all)) = found.into_iter().flatten().next() else {
        return Err("field \"conversations\" is missing".into());
    };
    let mut messages = vec![];
    for (i, m) in items(&all, name)?.into_iter().enumerate() {
        let at = format!("message {} of {name:?}", i + 1);
        let one_of = |names: [&str; 2]| names.iter().find_map(|n| field(&m, n));
        let Some(from) = one_of(["from", "role"]) else {
            return Err(format!("{at} has no \"from\""));
        };
        let known = SPEAKERS.iter().find(|s| from.as_str() == Some(s.0));
        let Some((_, role)) = known else {
            let names: Vec<&str> = SPEAKERS.iter().map(|s| s.0).collect();
            let from = from
                .as_str()
                .map_or(format!("{}", from.kind()), |s| format!("{s:?}"));
            return Err(format!(
                "{at} is from {from}, which is none of {}",
                names.join(", ")
            ));
        };
        match one_of(["value", "content"]) {
            Some(v) if v.as_str().is_some() => {
                let mut said = vec![("role", Value::from(*role)), ("content", v)];
                said.extend(field(&m, "weight").map(|w| ("weight", w)));
                messages.push(Value::from_pairs(said));
            }
            Some(v) => {
                let kind = no_value(&v).unwrap_or_else(|| v.kind().to_string());
                return Err(format!("the value of {at} is no string but {kind}"));
            }
            None => return Err(format!("{at} has no \"value\"")),
        }
    }
    let system = text(row, "system")?;
    if !system.is_empty() {
        messages.insert(0, message("system", Value::from(system)));
    }
    Ok(messages.into_iter().collect())
}

/// The messages of a row of Alpaca: the turns of `history`, then the instruction with the input on the line behind it, and the output
/// (hiyouga/LLaMA-Factory `data/converter.py`, `AlpacaDatasetConverter`).
///
/// # Errors
/// A field that is no string; neither instruction nor input; no output; a history that is no list of pairs.
pub(super) fn alpaca(row: &Value) -> Read<Value> {
    let mut messages = vec![];
    let system = text(row, "system")?;
    if !system.is_empty() {
        messages.push(message("system", Value::from(system)));
    }
    let history = field(row, "history").map(|h| items(&h, "history"));
    for (i, turn) in history.transpose()?.unwrap_or_default().iter().enumerate() {
        let pair = items(turn, "history").unwrap_or_default();
        match &pair[..] {
            [q, a] if q.as_str().is_some() && a.as_str().is_some() => {
                messages.push(message("user", q.clone()));
                messages.push(message("assistant", a.clone()));
            }
            _ => {
                return Err(format!(
                    "turn {} of \"history\" is no pair of strings",
                    i + 1
                ));
            }
        }
    }
    let both = [text(row, "instruction")?, text(row, "input")?];
    let asked: Vec<&str> = both
        .iter()
        .map(String::as_str)
        .filter(|t| !t.is_empty())
        .collect();
    if asked.is_empty() {
        let missing = field(row, "instruction").is_none();
        let what = if missing {
            "is missing"
        } else {
            "is empty, and so is \"input\""
        };
        return Err(format!("field \"instruction\" {what}"));
    }
    messages.push(message("user", Value::from(asked.join("\n"))));
    match field(row, "output") {
        Some(v) if v.as_str().is_some() => messages.push(message("assistant", v)),
        Some(v) => return Err(format!("field \"output\" is no string but {}", v.kind())),
        None => return Err("field \"output\" is missing".into()),
    }
    Ok(messages.into_iter().collect())
}

/// The example of tokens that are made already: those that `attention_mask` leaves out at either end are left out, and a label of -100
/// does not count. `vocabulary`: how many ids there are.
///
/// # Errors
/// Lists of other lengths, or of something else than ids; an id beyond the vocabulary; a label that is another token than stands there;
/// a mask with a gap.
pub(super) fn tokens(row: &Value, vocabulary: usize, all: bool) -> Read<Example> {
    let list = |name: &str| -> Read<Option<Vec<i64>>> {
        let Some(value) = field(row, name) else {
            return Ok(None);
        };
        let whole = |(i, v): (usize, Value)| match v {
            Value::Int(n) => Ok(n),
            v => Err(format!(
                "place {i} of {name:?} is no whole number but {}",
                v.kind()
            )),
        };
        items(&value, name)?
            .into_iter()
            .enumerate()
            .map(whole)
            .collect::<Read<_>>()
            .map(Some)
    };
    let Some(ids) = list("input_ids")? else {
        return Err("field \"input_ids\" is missing".into());
    };
    let (labels, mask) = (list("labels")?, list("attention_mask")?);
    for (name, other) in [("labels", &labels), ("attention_mask", &mask)] {
        if let Some(other) = other.as_ref().filter(|o| o.len() != ids.len()) {
            return Err(format!(
                "{name:?} has {} places and \"input_ids\" {}",
                other.len(),
                ids.len()
            ));
        }
    }
    let mask = mask.unwrap_or_else(|| vec![1; ids.len()]);
    if let Some(other) = mask.iter().find(|m| !matches!(m, 0 | 1)) {
        return Err(format!(
            "\"attention_mask\" holds {other}, which is neither 0 nor 1"
        ));
    }
    let first = mask.iter().position(|m| *m == 1).unwrap_or(ids.len());
    let end = mask
        .iter()
        .rposition(|m| *m == 1)
        .map_or(first, |at| at + 1);
    if let Some(gap) = mask[first..end].iter().position(|m| *m == 0) {
        return Err(format!(
            "\"attention_mask\" leaves out place {}, with others on both sides of it",
            first + gap
        ));
    }
    let mut example = Example {
        tokens: vec![],
        counted: vec![],
    };
    for (i, id) in ids.iter().enumerate() {
        let Some(token) = u32::try_from(*id)
            .ok()
            .filter(|t| (*t as usize) < vocabulary)
        else {
            return Err(format!(
                "place {i} of \"input_ids\" is {id}, and the tokenizer has {vocabulary} tokens"
            ));
        };
        let label = labels.as_ref().map_or(*id, |l| l[i]);
        let kept = (first..end).contains(&i);
        match label {
            -100 => {}
            l if l != *id => {
                return Err(format!(
                    "place {i} of \"labels\" is {l}, and the token there is {id}: a label is its own token, or -100"
                ));
            }
            _ if !kept && labels.is_some() => {
                return Err(format!(
                    "place {i} of \"labels\" counts, and \"attention_mask\" leaves it out"
                ));
            }
            _ => {}
        }
        if kept {
            example.tokens.push(token);
            example.counted.push(all || label != -100);
        }
    }
    Ok(example)
}
