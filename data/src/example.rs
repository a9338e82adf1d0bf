//! Examples of fine-tuning: a line of JSON with `prompt` and `completion`, or with `messages`, to tokens of which some count in the loss.

use crate::chat::ChatTemplate;
use crate::error::{DataError, Result};
use crate::source::unread_numbers;
use crate::spec::{Examples, Rows, TokenizerSpec};
use crate::tokenizer::Tokenizer;
use crossweave_jinja::{Value, ValueKind, read_json};
use std::ops::Range;
use std::path::Path;

/// Makes examples of lines.
pub(crate) struct ExampleReader {
    examples: Examples,
    /// `None` where no line needs one, with why there is none.
    template: std::result::Result<ChatTemplate, String>,
}

/// One example.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Example {
    pub(crate) tokens: Vec<u32>,
    /// Whether each token counts, as what is to be predicted.
    pub(crate) counted: Vec<bool>,
}

/// A line's own fields; others are the user's business.
struct Line {
    prompt: Option<Value>,
    completion: Option<Value>,
    messages: Option<Value>,
    tools: Option<Value>,
}

/// The names of these.
const READ: &[&str] = &["prompt", "completion", "messages", "tools"];

impl Line {
    /// # Errors
    /// What is no JSON, with its column.
    fn read(line: &[u8]) -> std::result::Result<Line, String> {
        let at = |at: usize, reason: &str| format!("column {}: {reason}", at + 1);
        let text = std::str::from_utf8(line).map_err(|e| at(e.valid_up_to(), "not UTF-8"))?;
        let all = read_json(text).map_err(|e| at(e.at, &e.reason))?;
        let field = |name: &str| {
            all.get_attr(name)
                .ok()
                .filter(|v| !v.is_none() && !v.is_undefined())
        };
        Ok(Line {
            prompt: field("prompt"),
            completion: field("completion"),
            messages: field("messages"),
            tools: field("tools"),
        })
    }
}

const ROW: &str = "write {\"messages\": [{\"role\": \"user\", \"content\": …}, {\"role\": \"assistant\", \"content\": …}]}, one object a line";
const PAIR: &str = "write {\"prompt\": …, \"completion\": …}, one object a line";

impl ExampleReader {
    /// # Errors
    /// Messages without a template, or one that cannot be used.
    pub(crate) fn open(examples: &Examples, tokenizer: &TokenizerSpec) -> Result<ExampleReader> {
        let template = ChatTemplate::open(&tokenizer.kind, examples.template.as_deref());
        let needed = examples.rows == Rows::Messages || examples.template.is_some();
        let template = match template {
            Err(e) if needed => return Err(e),
            // Prompts that are plain text need none; a prompt of messages reports it when one comes.
            other => other.map_err(|e| e.to_string()),
        };
        Ok(ExampleReader {
            examples: examples.clone(),
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
        format!("examples 1 {rows:?} all={all} template={template}")
    }

    /// The example of a line; `None` for a blank one. `number` is the 1-based line.
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
        let shape = match self.examples.rows {
            Rows::Messages => ROW,
            Rows::PromptCompletion => PAIR,
        };
        let first = line.iter().find(|b| !b.is_ascii_whitespace());
        if first != Some(&b'{') {
            return Err(bad("the line is no JSON object".into(), shape));
        }
        // Python's numbers are accepted in fields that are not read.
        let fields = Line::read(line)
            .or_else(|e| Line::read(&unread_numbers(line, READ)).map_err(|_| e))
            .map_err(|e| bad(e, shape))?;
        let tools = fields.tools.unwrap_or(Value::from(()));
        let example = match self.examples.rows {
            Rows::Messages => {
                let Some(messages) = fields.messages else {
                    let fix = match fields.prompt {
                        Some(_) => "set data.format to prompt_completion, or write messages",
                        None => ROW,
                    };
                    return Err(bad("field \"messages\" is missing".into(), fix));
                };
                let messages = list(&messages, "messages").map_err(|e| bad(e, ROW))?;
                self.conversation(&messages, &tools, tokenizer)
            }
            Rows::PromptCompletion => {
                let (prompt, completion) = match (fields.prompt, fields.completion) {
                    (Some(p), Some(c)) => (p, c),
                    (p, _) => {
                        let field = if p.is_none() { "prompt" } else { "completion" };
                        let fix = match fields.messages {
                            Some(_) => {
                                "set data.format to messages, or write prompt and completion"
                            }
                            None => PAIR,
                        };
                        return Err(bad(format!("field {field:?} is missing"), fix));
                    }
                };
                match (prompt.as_str(), completion.as_str()) {
                    (Some(p), Some(c)) => self.pair(p, c, tokenizer),
                    (None, None) => {
                        let both = list(&prompt, "prompt")
                            .and_then(|p| Ok((p, list(&completion, "completion")?)));
                        let (p, c) = both.map_err(|e| bad(e, PAIR))?;
                        self.answer(p, c, &tools, tokenizer)
                    }
                    _ => {
                        let what = "prompt and completion are not alike: two strings, or two lists of messages";
                        return Err(bad(what.into(), PAIR));
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
        let span = match self.examples.all {
            true => 0..text.len(),
            false => self.before(&prompt, tools, &text)?..text.len(),
        };
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
        let assistant = |m: &&Value| role(m) == "assistant";
        // OpenAI's own field: an answer of weight 0 is not learnt from.
        let counts = |m: &Value| m.get_attr("weight").ok().and_then(|w| w.as_i64()) != Some(0);
        let mut spans = vec![];
        if self.examples.all {
            spans.push(0..text.len());
        } else if template.marks() {
            let said: Vec<&Value> = messages.iter().filter(assistant).collect();
            let each = marked.len() == said.len();
            let kept = |i: usize| !each || counts(said[i]);
            spans.extend(
                marked
                    .into_iter()
                    .enumerate()
                    .filter(|(i, _)| kept(*i))
                    .map(|(_, s)| s),
            );
        } else {
            for (i, m) in messages.iter().enumerate() {
                if role(m) != "assistant" || !counts(m) {
                    continue;
                }
                let through = match i + 1 == messages.len() {
                    true => Some(text.len()),
                    false => template
                        .render(&messages[..=i], tools, false)
                        .ok()
                        .filter(|(through, _)| text.starts_with(through))
                        .map(|(through, _)| through.len()),
                };
                let before = self.before(&messages[..i], tools, &text);
                let (start, end) = match (before, through) {
                    (Ok(start), Some(end)) => (start, end),
                    // A template that writes earlier answers otherwise than the last one.
                    (before, _) => {
                        let said = self.content(messages, i, tools, &text)?;
                        (before.unwrap_or(said.start).min(said.start), said.end)
                    }
                };
                spans.push(start..end);
            }
        }
        self.tokens(&text, spans, tokenizer, true)
    }

    /// Where the answer to `messages` begins in the whole text: behind them and what the template writes to ask for an answer.
    fn before(
        &self,
        messages: &[Value],
        tools: &Value,
        text: &str,
    ) -> std::result::Result<usize, Fault> {
        let template = self.template()?;
        // Some templates do not ask, and some ask otherwise than they write an answer that is there.
        for prompt in [true, false] {
            if let Ok((before, _)) = template.render(messages, tools, prompt)
                && text.starts_with(&before)
            {
                return Ok(before.len());
            }
        }
        Err(unclear(messages.len()))
    }

    /// Where the content of message `i` stands in the whole text, with the token that ends a turn behind it: found by writing another
    /// content in its place, and proven by nothing else having changed.
    fn content(
        &self,
        messages: &[Value],
        i: usize,
        tools: &Value,
        text: &str,
    ) -> std::result::Result<Range<usize>, Fault> {
        let template = self.template()?;
        let other = "QX7content7XQ";
        let fields = messages[i].try_iter().map_err(|_| unclear(i))?;
        let changed = fields.map(|key| {
            let value = messages[i].get_item(&key).unwrap_or_default();
            let value = match key.as_str() == Some("content") && value.as_str().is_some() {
                true => Value::from(other),
                false => value,
            };
            (key, value)
        });
        let mut all = messages.to_vec();
        all[i] = Value::from_pairs(changed);
        let (written, _) = template.render(&all, tools, false).map_err(Fault::Line)?;
        let parts: Vec<&str> = written.split(other).collect();
        let [before, behind] = parts[..] else {
            return Err(unclear(i));
        };
        let fits = text.len() >= before.len() + behind.len();
        if !(fits && text.starts_with(before) && text.ends_with(behind)) {
            return Err(unclear(i));
        }
        let mut end = text.len() - behind.len();
        if let Some(token) = template.end_token().filter(|t| behind.starts_with(*t)) {
            end += token.len();
        }
        Ok(before.len()..end)
    }

    fn tokens(
        &self,
        text: &str,
        spans: Vec<Range<usize>>,
        tokenizer: &Tokenizer,
        special: bool,
    ) -> std::result::Result<Example, Fault> {
        let all = tokenizer.encode_spans(text, special).map_err(Fault::Data)?;
        let within = |t: &Range<usize>| spans.iter().any(|s| t.start < s.end && t.end > s.start);
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

enum Fault {
    /// The line, or the template with it.
    Line(String),
    /// Nothing shows where the assistant speaks.
    Spans(String),
    Data(DataError),
}

fn unclear(i: usize) -> Fault {
    Fault::Spans(format!(
        "the template writes message {} otherwise when others follow, so nothing shows which tokens are the assistant's",
        i + 1
    ))
}

fn role(message: &Value) -> String {
    let role = message.get_attr("role").ok();
    role.and_then(|r| r.as_str().map(str::to_string))
        .unwrap_or_default()
}

/// A list of messages, each with a role and content.
fn list(value: &Value, field: &str) -> std::result::Result<Vec<Value>, String> {
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
        if role(m).is_empty() {
            let share_gpt = match has("from") {
                true => "; from and value are called role and content here",
                false => "",
            };
            return Err(format!("{at} has no role{share_gpt}"));
        }
        if !has("content") && !has("tool_calls") {
            return Err(format!("{at} has no content"));
        }
    }
    Ok(messages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::TokenizerKind;

    const PLAIN: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

    fn reader(rows: Rows, all: bool, template: Option<&str>) -> (ExampleReader, Tokenizer) {
        let spec = TokenizerSpec::new(TokenizerKind::Bytes);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), template.unwrap_or_default()).unwrap();
        let examples = Examples {
            rows,
            all,
            template: template.map(|_| file.path().to_path_buf()),
        };
        let reader = ExampleReader::open(&examples, &spec).unwrap();
        (reader, Tokenizer::open(&spec, None).unwrap())
    }

    /// The text of the tokens that count, parts apart by `|`, and of all; the end of a document as `.`.
    fn counted((reader, tokenizer): &(ExampleReader, Tokenizer), line: &str) -> (String, String) {
        let of = reader.of_line(line.as_bytes(), tokenizer, Path::new("d/x.jsonl"), 7);
        let example = of.unwrap().unwrap();
        let char_of = |t: &u32| u8::try_from(*t).map_or('.', char::from);
        let (mut out, mut gap) = (String::new(), false);
        for (t, counts) in example.tokens.iter().zip(&example.counted) {
            if *counts {
                if gap && !out.is_empty() {
                    out.push('|');
                }
                out.push(char_of(t));
            }
            gap = !counts;
        }
        (out, example.tokens.iter().map(char_of).collect())
    }

    fn refused((reader, tokenizer): &(ExampleReader, Tokenizer), line: &str) -> String {
        let of = reader.of_line(line.as_bytes(), tokenizer, Path::new("d/x.jsonl"), 7);
        let said = of.unwrap_err().to_string();
        assert!(
            said.starts_with("d/x.jsonl:7: ") && said.contains("fix: "),
            "{said}"
        );
        said
    }

    const TALK: &str = r#"{"messages": [{"role": "user", "content": "q1"}, {"role": "assistant", "content": "a1"},
        {"role": "user", "content": "q2"}, {"role": "assistant", "content": "a2"}], "id": 3}"#;

    #[test]
    fn completions_count_and_prompts_do_not() {
        let r = reader(Rows::PromptCompletion, false, None);
        let line = r#"{"prompt": "2+2=", "completion": "4", "source": {"x": 1}}"#;
        assert_eq!(counted(&r, line), ("4.".into(), "2+2=4.".into()));
        assert_eq!(counted(&r, r#"{"prompt": "", "completion": "y"}"#).0, "y.");
        let all = reader(Rows::PromptCompletion, true, None);
        assert_eq!(counted(&all, line).0, "2+2=4.");
        let empty = counted(&r, r#"{"prompt": "", "completion": ""}"#);
        assert_eq!(empty, (String::new(), ".".into()));
        assert!(
            r.0.of_line(b" \n", &r.1, Path::new("x"), 1)
                .unwrap()
                .is_none()
        );
        // Both as messages.
        let chat = reader(Rows::PromptCompletion, false, Some(PLAIN));
        let line = r#"{"prompt": [{"role": "user", "content": "q"}], "completion": [{"role": "assistant", "content": "a"}]}"#;
        assert_eq!(
            counted(&chat, line),
            ("a.".into(), "<user>q.<assistant>a.".into())
        );
        assert!(refused(&r, line).contains("no chat template"));
    }

    #[test]
    fn what_the_assistant_says_counts() {
        let r = reader(Rows::Messages, false, Some(PLAIN));
        let whole = "<user>q1.<assistant>a1.<user>q2.<assistant>a2.";
        assert_eq!(counted(&r, TALK), ("a1.|a2.".into(), whole.into()));
        let lighter = TALK.replace("\"content\": \"a1\"", "\"content\": \"a1\", \"weight\": 0");
        assert_eq!(counted(&r, &lighter).0, "a2.");
        let all = reader(Rows::Messages, true, Some(PLAIN));
        assert_eq!(counted(&all, TALK).0, whole);
        let marked = PLAIN.replace(
            "{{ m.content }}{{ eos_token }}",
            "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}{% else %}{{ m.content }}{{ eos_token }}{% endif %}",
        );
        let marked = reader(Rows::Messages, false, Some(&marked));
        assert_eq!(counted(&marked, TALK), ("a1.|a2.".into(), whole.into()));
        assert_eq!(counted(&marked, &lighter).0, "a2.");
        let silent = r#"{"messages": [{"role": "user", "content": "q"}]}"#;
        assert_eq!(counted(&r, silent).0, "");
    }

    #[test]
    fn lines_that_are_no_examples_say_what_is_missing() {
        let r = reader(Rows::Messages, false, Some(PLAIN));
        for (line, words) in [
            ("{\"text\": \"a\"}", "\"messages\" is missing"),
            ("{\"prompt\": \"a\"}", "data.format to prompt_completion"),
            ("{\"messages\": []}", "an empty list"),
            ("{\"messages\": \"hi\"}", "no list of messages but string"),
            (
                "{\"messages\": [\"hi\"]}",
                "message 1 of \"messages\" is no object",
            ),
            (
                "{\"messages\": [{\"content\": \"a\"}]}",
                "message 1 of \"messages\" has no role",
            ),
            (
                "{\"messages\": [{\"from\": \"human\", \"value\": \"a\"}]}",
                "role and content here",
            ),
            ("{\"messages\": [{\"role\": \"user\"}]}", "has no content"),
            ("[{\"messages\": []}]", "no JSON object"),
            ("{\"messages\": [}", "column 15"),
            ("{\"messages\": \"\u{1}\"}", "column"),
        ] {
            let said = refused(&r, line);
            assert!(said.contains(words), "{line}: {said}");
        }
        let p = reader(Rows::PromptCompletion, false, None);
        for (line, words) in [
            ("{\"prompt\": \"a\"}", "\"completion\" is missing"),
            ("{\"completion\": \"a\"}", "\"prompt\" is missing"),
            ("{\"messages\": []}", "data.format to messages"),
            ("{\"prompt\": \"a\", \"completion\": []}", "not alike"),
            (
                "{\"prompt\": 1, \"completion\": 2}",
                "no list of messages but number",
            ),
        ] {
            let said = refused(&p, line);
            assert!(said.contains(words), "{line}: {said}");
        }
        // One that thinks aloud in its last answer only: what was said is found all the same.
        let thinks = "{% for m in messages %}<{{ m.role }}>{% if loop.last and m.role == 'assistant' %}(hm){% endif %}{{ m.content | trim }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
        let thinks = reader(Rows::Messages, false, Some(thinks));
        assert_eq!(counted(&thinks, TALK).0, "a1.|(hm)a2.");
        // The template's own refusal, and one that rewrites what was said before.
        let strict = reader(
            Rows::Messages,
            false,
            Some("{{ raise_exception('only two roles') }}"),
        );
        assert!(refused(&strict, TALK).contains("only two roles"));
        let forgets = "{% for m in messages %}<{{ m.role }}>{% if loop.last %}{{ m.content }}{% endif %}.{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
        let said = refused(&reader(Rows::Messages, false, Some(forgets)), TALK);
        assert!(
            said.contains("generation") && said.contains("loss_on"),
            "{said}"
        );
    }
}
