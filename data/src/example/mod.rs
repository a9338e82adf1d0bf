//! Examples of fine-tuning: a row with `prompt` and `completion`, with `messages`, or as other trainers have it, to tokens of which some count
//! in the loss.

mod cuts;
mod forms;
mod messages;
#[cfg(test)]
mod tests;
mod turns;

use self::forms::field;
use self::messages::{counts, list, role};
use self::turns::{Turns, Unclear};
use crate::chat::ChatTemplate;
use crate::error::{DataError, Result};
use crate::source::unread_numbers;
use crate::spec::{Examples, Rows, TokenizerSpec};
use crate::tokenizer::Tokenizer;
use crossweave_jinja::{Value, read_json};
use std::ops::Range;
use std::path::Path;

/// Makes examples of lines.
pub(crate) struct ExampleReader {
    examples: Examples,
    /// `None` where no line needs one, with why there is none.
    template: std::result::Result<ChatTemplate, String>,
    /// The template with marks in its loops, which show what each message writes.
    cut: Option<ChatTemplate>,
}

/// One example.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Example {
    pub(crate) tokens: Vec<u32>,
    /// True for each token that counts, as one that is to be predicted.
    pub(crate) counted: Vec<bool>,
}

pub(crate) use self::forms::READ;

/// The object of a line.
///
/// # Errors
/// A line that is no JSON, with its column.
fn object_of(line: &[u8]) -> std::result::Result<Value, String> {
    let at = |at: usize, reason: &str| format!("column {}: {reason}", at + 1);
    let text = std::str::from_utf8(line).map_err(|e| at(e.valid_up_to(), "not UTF-8"))?;
    read_json(text).map_err(|e| at(e.at, &e.reason))
}

impl ExampleReader {
    /// # Errors
    /// Messages without a template, or one that cannot be used.
    pub(crate) fn open(examples: &Examples, tokenizer: &TokenizerSpec) -> Result<ExampleReader> {
        let template = ChatTemplate::open(&tokenizer.kind, examples.template.as_deref());
        let messages = !matches!(examples.rows, Rows::PromptCompletion | Rows::Tokens);
        let needed = messages || examples.template.is_some();
        let template = match template {
            Err(e) if needed => return Err(e),
            // Prompts that are plain text need none; a prompt of messages reports it when one comes.
            other => other.map_err(|e| e.to_string()),
        };
        let cut = template.as_ref().ok();
        Ok(ExampleReader {
            examples: examples.clone(),
            cut: cut.and_then(|t| t.with_source(cuts::with_cuts)),
            template,
        })
    }

    /// Text that differs whenever the same line could become another example.
    pub(crate) fn identity(&self) -> String {
        let template = self
            .template
            .as_ref()
            .map_or("none", ChatTemplate::identity);
        let Examples { rows, all, .. } = &self.examples;
        let skip = if self.examples.skip_null { " skip" } else { "" };
        format!("examples 2 {rows:?} all={all} template={template}{skip}")
    }

    /// The example of a line; `None` for a blank one, and for one of null that is to be left out. `number` is the 1-based line.
    ///
    /// # Errors
    /// A line that is no example, with its place.
    pub(crate) fn of_line(
        &self,
        line: &[u8],
        tokenizer: &Tokenizer,
        path: &Path,
        number: u64,
    ) -> Result<Option<Example>> {
        if line.iter().all(u8::is_ascii_whitespace) {
            return Ok(None);
        }
        let bad = |reason: String, fix: &str| DataError::Example {
            path: path.into(),
            line: number,
            reason,
            fix: fix.into(),
        };
        let rows = self.examples.rows;
        let shape = rows.shape();
        let first = line.iter().find(|b| !b.is_ascii_whitespace());
        if first != Some(&b'{') {
            return Err(bad("the line is no JSON object".into(), shape));
        }
        // Python's numbers are accepted in fields that are not read.
        let row = object_of(line)
            .or_else(|e| object_of(&unread_numbers(line, READ)).map_err(|_| e))
            .map_err(|e| bad(e, shape))?;
        let null = |name: &&str| row.get_attr(name).is_ok_and(|v| v.is_none());
        if self.examples.skip_null && rows.fields().iter().any(null) {
            return Ok(None);
        }
        if let Some(why) = rows.unreadable(&row) {
            return Err(bad(why, shape));
        }
        // Of a row of another form the fix says which.
        let other = Rows::recognised(|name| field(&row, name).is_some());
        let fix = match other.filter(|o| *o != rows) {
            Some(o) => format!(
                "set data.format to {}, which these rows are; or {shape}",
                o.name()
            ),
            None => shape.to_string(),
        };
        let tools = field(&row, "tools").unwrap_or(Value::from(()));
        let missing = |name: &str| bad(format!("field {name:?} is missing"), &fix);
        let converted = match rows {
            Rows::Messages => Ok(field(&row, "messages").ok_or_else(|| missing("messages"))?),
            Rows::ShareGpt => forms::sharegpt(&row),
            Rows::Alpaca => forms::alpaca(&row),
            Rows::PromptCompletion | Rows::Tokens => Ok(Value::from(())),
        };
        let converted = converted.map_err(|e| bad(e, &fix))?;
        let example = match rows {
            Rows::Messages | Rows::ShareGpt | Rows::Alpaca => {
                let name = if rows == Rows::ShareGpt {
                    "conversations"
                } else {
                    "messages"
                };
                let messages = list(&converted, name).map_err(|e| bad(e, shape))?;
                self.conversation(&messages, &tools, tokenizer)
            }
            Rows::Tokens => {
                let made = forms::tokens(&row, tokenizer.vocab_size(), self.examples.all);
                Ok(made.map_err(|e| bad(e, &fix))?)
            }
            Rows::PromptCompletion => {
                let find = |name: &str| field(&row, name).ok_or_else(|| missing(name));
                let (prompt, completion) = (find("prompt")?, find("completion")?);
                match (prompt.as_str(), completion.as_str()) {
                    (Some(p), Some(c)) => self.pair(p, c, tokenizer),
                    (None, None) => {
                        let both = list(&prompt, "prompt")
                            .and_then(|p| Ok((p, list(&completion, "completion")?)));
                        let (p, c) = both.map_err(|e| bad(e, shape))?;
                        self.answer(p, c, &tools, tokenizer)
                    }
                    _ => {
                        let what = "prompt and completion are not alike: two strings, or two lists of messages";
                        return Err(bad(what.into(), shape));
                    }
                }
            }
        };
        match example {
            Ok(mut e) => {
                // What is empty is kept, so that it is counted among those that are left out.
                if e.tokens.is_empty() {
                    (e.tokens, e.counted) = (vec![tokenizer.eod().unwrap_or(0)], vec![false]);
                }
                Ok(Some(e))
            }
            Err(Fault::Line(reason)) => Err(bad(
                reason,
                "correct the line, or name another template by data.chat_template",
            )),
            Err(Fault::Spans(reason)) => Err(bad(
                reason,
                "put {% generation %} … {% endgeneration %} around what the assistant says in the template (data.chat_template), or set data.loss_on to \"all\"",
            )),
            Err(Fault::Data(e)) => Err(e),
        }
    }

    fn template(&self) -> std::result::Result<&ChatTemplate, Fault> {
        self.template.as_ref().map_err(|e| Fault::Line(e.clone()))
    }

    /// Plain text: what begins a text, the prompt, the completion and what ends a document.
    fn pair(
        &self,
        prompt: &str,
        completion: &str,
        tokenizer: &Tokenizer,
    ) -> std::result::Result<Example, Fault> {
        let text = format!("{prompt}{completion}");
        let span = prompt.len()..text.len();
        let mut example = self.tokens(&text, std::iter::once(span).collect(), tokenizer, false)?;
        if text.is_empty() {
            return Ok(example);
        }
        let end = tokenizer.eod().filter(|_| tokenizer.appends_eod());
        // A completion may end so itself.
        let ended = example.tokens.last().copied() == end && example.counted.last() == Some(&true);
        if let Some(end) = end.filter(|_| !ended) {
            example.tokens.push(end);
            example.counted.push(true);
        }
        // So may a prompt begin.
        let first = tokenizer.begin();
        if !example.tokens.starts_with(first) {
            example.tokens.splice(0..0, first.iter().copied());
            let counts = first.iter().map(|_| self.examples.all);
            example.counted.splice(0..0, counts);
        }
        Ok(example)
    }

    /// A prompt of messages and the messages that answer it.
    fn answer(
        &self,
        prompt: Vec<Value>,
        completion: Vec<Value>,
        tools: &Value,
        tokenizer: &Tokenizer,
    ) -> std::result::Result<Example, Fault> {
        let template = self.template()?;
        let messages = [prompt.clone(), completion].concat();
        let (text, _) = template
            .render(&messages, tools, false)
            .map_err(Fault::Line)?;
        let turns = Turns::new(template, self.cut.as_ref(), &messages, tools, &text);
        let first = prompt.len();
        let start = match role(&messages[first]).as_str() {
            _ if self.examples.all => Ok(0),
            "assistant" => turns.begins(first),
            _ => turns.whole(first).map(|whole| whole.start),
        };
        let span = start.map_err(unclear)?..text.len();
        self.tokens(&text, std::iter::once(span).collect(), tokenizer, true)
    }

    /// A conversation, of which what the assistant says counts.
    fn conversation(
        &self,
        messages: &[Value],
        tools: &Value,
        tokenizer: &Tokenizer,
    ) -> std::result::Result<Example, Fault> {
        let template = self.template()?;
        let (text, marked) = template
            .render(messages, tools, false)
            .map_err(Fault::Line)?;
        let turns = || Turns::new(template, self.cut.as_ref(), messages, tools, &text);
        let answers = |counted: bool| {
            let all = messages.iter().enumerate();
            all.filter(move |(_, m)| role(m) == "assistant" && counts(m) == counted)
                .map(|(i, _)| i)
        };
        let spans: Vec<Range<usize>> = if self.examples.all {
            std::iter::once(0..text.len()).collect()
        } else if template.marks() {
            let mut spans = marked;
            if answers(false).next().is_some() {
                let turns = turns();
                for i in answers(false) {
                    let whole = turns.whole(i).map_err(unclear)?;
                    spans.retain(|s| s.start < whole.start || s.end > whole.end);
                }
            }
            spans
        } else if answers(true).next().is_some() {
            let turns = turns();
            let mut said: Vec<Range<usize>> = vec![];
            for i in answers(true) {
                let span = turns.said(i).map_err(unclear)?;
                if said.last().is_some_and(|before| before.end > span.start) {
                    return Err(unclear(Unclear::Hidden(i)));
                }
                said.push(span);
            }
            said
        } else {
            vec![]
        };
        self.tokens(&text, spans, tokenizer, true)
    }

    fn tokens(
        &self,
        text: &str,
        spans: Vec<Range<usize>>,
        tokenizer: &Tokenizer,
        special: bool,
    ) -> std::result::Result<Example, Fault> {
        let all = tokenizer.encode_spans(text, special).map_err(Fault::Data)?;
        // Of spans that are in order and apart, the first that ends behind a token is the one that may hold it.
        let spans = joined(spans);
        let within = |t: &Range<usize>| {
            let next = spans.partition_point(|s| s.end <= t.start);
            spans.get(next).is_some_and(|s| s.start < t.end)
        };
        let counted = all
            .iter()
            .map(|(_, at)| self.examples.all || within(at))
            .collect();
        Ok(Example {
            tokens: all.into_iter().map(|(id, _)| id).collect(),
            counted,
        })
    }
}

/// The same bytes as spans that are in order and apart.
fn joined(mut spans: Vec<Range<usize>>) -> Vec<Range<usize>> {
    spans.sort_by_key(|s| s.start);
    let mut all: Vec<Range<usize>> = vec![];
    for span in spans {
        match all.last_mut() {
            Some(last) if span.start <= last.end => last.end = last.end.max(span.end),
            _ => all.push(span),
        }
    }
    all
}

enum Fault {
    /// The line, or the template with it.
    Line(String),
    /// Nothing shows where the assistant speaks.
    Spans(String),
    Data(DataError),
}

fn unclear(why: Unclear) -> Fault {
    match why {
        Unclear::Absent(i) => Fault::Line(format!(
            "the template leaves out all that message {} says, so that nothing of it could be learnt",
            i + 1
        )),
        Unclear::Hidden(i) => Fault::Spans(format!(
            "nothing shows which tokens of message {} are the assistant's: the template writes it otherwise when others follow, or several messages as one",
            i + 1
        )),
    }
}
