//! Messages to text by a model's chat template, as `transformers` renders it: Jinja with trimmed blocks, loop controls, Python's methods
//! of strings, `raise_exception`, `strftime_now`, `tojson` as Python writes it, and `{% generation %}` around what the assistant says.

use crate::cache::hex;
use crate::error::{DataError, Result};
use crate::spec::TokenizerKind;
use crossweave_files as files;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, escape_formatter};
use minijinja_contrib::pycompat::unknown_method_callback;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

const KEY: &str = "data.chat_template";
const NAME: &str = "chat";
/// Around what a `{% generation %}` block writes. They are no characters, so that no text has them.
const OPEN: char = '\u{10fffe}';
const CLOSE: char = '\u{10ffff}';
/// Steps of the template engine for one conversation: far more than any takes, and the end of one that loops for ever.
const FUEL: u64 = 50_000_000;
/// The end-of-document token as text, of the tokenizers that are built in.
pub(crate) const BUILT_IN_END: &str = "<|endoftext|>";

/// A compiled template and the names it may use.
pub(crate) struct ChatTemplate {
    env: Environment<'static>,
    tokens: Vec<(String, Value)>,
    /// Whether it marks what the assistant says.
    marks: bool,
    path: PathBuf,
    identity: String,
}

impl ChatTemplate {
    /// The template in the file `given`, else the one in the folder of the tokenizer.
    ///
    /// # Errors
    /// There is none, or it cannot be read or compiled.
    pub(crate) fn open(tokenizer: &TokenizerKind, given: Option<&Path>) -> Result<ChatTemplate> {
        let folder = match tokenizer {
            TokenizerKind::HfFile(path) => path.parent(),
            TokenizerKind::Bytes | TokenizerKind::Gpt2 => None,
        };
        let settings = folder.map(|dir| read_json(&dir.join("tokenizer_config.json")));
        let settings = settings.transpose()?.flatten().unwrap_or_default();
        let beside = folder.map(|dir| dir.join("chat_template.jinja"));
        let (path, source) = match (given, beside.filter(|b| b.is_file())) {
            (Some(path), _) => (path.to_path_buf(), read_text(path)?),
            (None, Some(path)) => {
                let text = read_text(&path)?;
                (path, text)
            }
            (None, None) => {
                let path = folder.map(|dir| dir.join("tokenizer_config.json"));
                let source = named(&settings["chat_template"], path.as_deref())?;
                let Some((path, source)) = path.zip(source) else {
                    let reason = match folder {
                        Some(dir) => format!(
                            "{} has no chat template: neither chat_template.jinja nor chat_template in tokenizer_config.json",
                            dir.display()
                        ),
                        None => "this tokenizer has no chat template".to_string(),
                    };
                    let fix = "name a file with a Jinja template, for example the chat_template.jinja of a model of the same family";
                    return Err(DataError::setting(KEY, reason, fix));
                };
                (path, source)
            }
        };
        let tokens = match folder {
            Some(dir) => special_tokens(&settings, &dir.join("special_tokens_map.json"))?,
            None => ["bos_token", "eos_token"]
                .map(|name| (name.to_string(), BUILT_IN_END.to_string()))
                .into(),
        };
        Self::compile(path, &source, tokens)
    }

    fn compile(
        path: PathBuf,
        source: &str,
        tokens: BTreeMap<String, String>,
    ) -> Result<ChatTemplate> {
        // Jinja reads every end of a line as one character.
        let source = source.replace("\r\n", "\n").replace('\r', "\n");
        let (source, marks) = with_marks(&source);
        let mut digest = Sha256::new();
        digest.update(&source);
        for (name, token) in &tokens {
            [name, "=", token, "\n"]
                .iter()
                .for_each(|s| digest.update(s));
        }
        let mut env = environment();
        env.add_template_owned(NAME, source).map_err(|e| {
            let reason = format!("{} is no template: {}", path.display(), words(&e));
            DataError::setting(KEY, reason, "correct it, or copy it again from its model")
        })?;
        Ok(ChatTemplate {
            env,
            tokens: tokens
                .into_iter()
                .map(|(name, token)| (name, Value::from(token)))
                .collect(),
            marks,
            path,
            identity: hex(&digest.finalize()),
        })
    }

    /// Text that differs whenever the same messages could become another text.
    pub(crate) fn identity(&self) -> &str {
        &self.identity
    }

    /// The token that ends a text, and with many models a turn.
    pub(crate) fn end_token(&self) -> Option<&str> {
        let (_, token) = self.tokens.iter().find(|(name, _)| name == "eos_token")?;
        token.as_str().filter(|t| !t.is_empty())
    }

    /// Whether it says itself what the assistant writes.
    pub(crate) fn marks(&self) -> bool {
        self.marks
    }

    /// The text of a conversation and the bytes of it that `{% generation %}` blocks wrote; with `prompt` followed by the start of an answer.
    ///
    /// # Errors
    /// What the template says, in words.
    pub(crate) fn render(
        &self,
        messages: &[Value],
        tools: &Value,
        prompt: bool,
    ) -> std::result::Result<(String, Vec<Range<usize>>), String> {
        let named = |e: Error| format!("{}: {}", self.path.display(), words(&e));
        let template = self.env.get_template(NAME).map_err(named)?;
        let own = [
            ("messages".to_string(), messages.iter().cloned().collect()),
            ("tools".to_string(), tools.clone()),
            ("documents".to_string(), Value::from(())),
            ("add_generation_prompt".to_string(), Value::from(prompt)),
        ];
        let context = Value::from_pairs(own.into_iter().chain(self.tokens.iter().cloned()));
        let text = template.render(context).map_err(named)?;
        match self.marks {
            true => unmark(&text).ok_or_else(|| {
                format!("{}: a generation block within another", self.path.display())
            }),
            false => Ok((text, vec![])),
        }
    }
}

/// An error of the template engine in one line.
fn words(e: &Error) -> String {
    let what = e
        .detail()
        .map_or_else(|| e.kind().to_string(), str::to_string);
    match e.line() {
        Some(line) => format!("line {line}: {what}"),
        None => what,
    }
}

fn read_text(path: &Path) -> Result<String> {
    let bytes = files::read(path, files::TEXT).map_err(DataError::io("read", path))?;
    String::from_utf8(bytes).map_err(|_| {
        let reason = format!("{} is not UTF-8 text", path.display());
        DataError::setting(KEY, reason, "save it as UTF-8, or copy it again")
    })
}

/// A JSON file, where there is one.
fn read_json(path: &Path) -> Result<Option<serde_json::Value>> {
    if !path.is_file() {
        return Ok(None);
    }
    let bytes = files::read(path, files::TABLE).map_err(DataError::io("read", path))?;
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|e| DataError::Tokenizer {
            path: path.into(),
            reason: format!("not valid JSON: {e}"),
            fix: "copy the file again from its model".into(),
        })
}

/// `chat_template` of a `tokenizer_config.json`: one, or a list of named ones of which the default is taken.
fn named(value: &serde_json::Value, path: Option<&Path>) -> Result<Option<String>> {
    let list = match value {
        serde_json::Value::String(one) => return Ok(Some(one.clone())),
        serde_json::Value::Array(list) => list,
        _ => return Ok(None),
    };
    let name = |t: &serde_json::Value| t["name"].as_str().map(str::to_string);
    let default = list.iter().find(|t| name(t).as_deref() == Some("default"));
    let text = |t: &serde_json::Value| t["template"].as_str().map(str::to_string);
    match (default, list.as_slice()) {
        (Some(one), _) | (None, [one]) => Ok(text(one)),
        _ => {
            let names: Vec<String> = list.iter().filter_map(name).collect();
            let reason = format!(
                "{} has the templates {}, and none is the default",
                path.unwrap_or(Path::new("")).display(),
                names.join(", ")
            );
            let fix = "save the one that is meant as a file, and name that";
            Err(DataError::setting(KEY, reason, fix))
        }
    }
}

/// `bos_token`, `eos_token` and the like, as text.
fn special_tokens(settings: &serde_json::Value, map: &Path) -> Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    let map = read_json(map)?.unwrap_or_default();
    for from in [&map, settings] {
        for (name, value) in from.as_object().into_iter().flatten() {
            let text = value.as_str().or_else(|| value["content"].as_str());
            if let Some(text) = text.filter(|_| name.ends_with("_token")) {
                all.insert(name.clone(), text.to_string());
            }
        }
    }
    Ok(all)
}

/// The template with `{% generation %}` blocks as filters that mark what they enclose, and whether it has any.
fn with_marks(source: &str) -> (String, bool) {
    let (mut out, mut rest, mut marks) = (String::with_capacity(source.len()), source, false);
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(end + 2);
        let inside = &tag[2..end];
        let word = inside.trim_matches(['-', '+']).trim();
        match word {
            "generation" | "endgeneration" => {
                marks = true;
                let block = match word {
                    "generation" => "filter generation",
                    _ => "endfilter",
                };
                out.push_str(&tag.replacen(word, block, 1));
            }
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    (out, marks)
}

/// A text without marks, and what was between them; `None` where they do not pair.
fn unmark(marked: &str) -> Option<(String, Vec<Range<usize>>)> {
    let (mut text, mut spans, mut open) = (String::with_capacity(marked.len()), vec![], None);
    for c in marked.chars() {
        match (c, open) {
            (OPEN, None) => open = Some(text.len()),
            (CLOSE, Some(start)) => {
                spans.push(start..text.len());
                open = None;
            }
            (OPEN | CLOSE, _) => return None,
            (c, _) => text.push(c),
        }
    }
    open.is_none().then_some((text, spans))
}

fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    // These two alone are always accepted.
    if let Ok(syntax) = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
    {
        env.set_syntax(syntax);
    }
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_fuel(Some(FUEL));
    env.set_unknown_method_callback(unknown_method_callback);
    env.set_formatter(|out, state, value| match value.kind() {
        // As Python prints them.
        ValueKind::None => out.write_str("None").map_err(Error::from),
        ValueKind::Bool if value.is_true() => out.write_str("True").map_err(Error::from),
        ValueKind::Bool => out.write_str("False").map_err(Error::from),
        _ => escape_formatter(out, state, value),
    });
    env.add_filter("generation", |text: String| format!("{OPEN}{text}{CLOSE}"));
    env.add_filter(
        "tojson",
        |value: &Value, args: Kwargs| -> std::result::Result<String, Error> {
            let indent: Option<usize> = args.get("indent")?;
            let sorted: Option<bool> = args.get("sort_keys")?;
            let separators: Option<Vec<String>> = args.get("separators")?;
            let ascii: Option<bool> = args.get("ensure_ascii")?;
            args.assert_all_used()?;
            let (item, key) = match separators.as_deref() {
                Some([item, key]) => (item.clone(), key.clone()),
                _ if indent.is_some() => (",".to_string(), ": ".to_string()),
                _ => (", ".to_string(), ": ".to_string()),
            };
            let style = Json {
                indent,
                item,
                key,
                sorted: sorted == Some(true),
                ascii: ascii == Some(true),
            };
            let mut out = String::new();
            style.write(&mut out, value, 0)?;
            Ok(out)
        },
    );
    env.add_function(
        "raise_exception",
        |text: String| -> std::result::Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, text))
        },
    );
    env.add_function(
        "strftime_now",
        |format: String| -> std::result::Result<String, Error> {
            let mut out = String::new();
            match write!(out, "{}", chrono::Local::now().format(&format)) {
                Ok(()) => Ok(out),
                Err(_) => {
                    let what = format!("strftime_now cannot write the time as {format:?}");
                    Err(Error::new(ErrorKind::InvalidOperation, what))
                }
            }
        },
    );
    env
}

/// JSON as Python's `json.dumps` writes it.
struct Json {
    indent: Option<usize>,
    item: String,
    key: String,
    sorted: bool,
    ascii: bool,
}

impl Json {
    fn write(
        &self,
        out: &mut String,
        value: &Value,
        depth: usize,
    ) -> std::result::Result<(), Error> {
        let line = |out: &mut String, depth: usize| {
            if let Some(indent) = self.indent {
                out.push('\n');
                out.push_str(&" ".repeat(indent * depth));
            }
        };
        match value.kind() {
            ValueKind::Undefined | ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&value.to_string()),
            ValueKind::String => self.string(out, value.as_str().unwrap_or_default()),
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sorted {
                    keys.sort();
                }
                out.push('{');
                for (i, key) in keys.iter().enumerate() {
                    if i > 0 {
                        out.push_str(&self.item);
                    }
                    line(out, depth + 1);
                    self.string(out, &key.to_string());
                    out.push_str(&self.key);
                    self.write(out, &value.get_item(key)?, depth + 1)?;
                }
                if !keys.is_empty() {
                    line(out, depth);
                }
                out.push('}');
            }
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                out.push('[');
                for (i, item) in items.iter().enumerate() {
                    if i > 0 {
                        out.push_str(&self.item);
                    }
                    line(out, depth + 1);
                    self.write(out, item, depth + 1)?;
                }
                if !items.is_empty() {
                    line(out, depth);
                }
                out.push(']');
            }
            kind => {
                let what = format!("tojson cannot write a value that is {kind}");
                return Err(Error::new(ErrorKind::InvalidOperation, what));
            }
        }
        Ok(())
    }

    fn string(&self, out: &mut String, text: &str) {
        // A string always becomes JSON.
        let quoted = serde_json::to_string(text).unwrap_or_default();
        if !self.ascii {
            out.push_str(&quoted);
            return;
        }
        for c in quoted.chars() {
            match c.is_ascii() {
                true => out.push(c),
                false => {
                    let mut units = [0; 2];
                    for unit in c.encode_utf16(&mut units) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(source: &str) -> ChatTemplate {
        let tokens = [("eos_token".to_string(), "</s>".to_string())];
        ChatTemplate::compile("t.jinja".into(), source, tokens.into()).unwrap()
    }

    fn messages(json: &str) -> Vec<Value> {
        serde_json::from_str(json).unwrap()
    }

    fn render(source: &str, json: &str) -> String {
        let rendered = template(source).render(&messages(json), &Value::from(()), false);
        rendered.unwrap().0
    }

    #[test]
    fn blocks_values_and_json_are_written_as_python_does() {
        let all = "{% for m in messages %}\n    {%- if m.role == 'skip' %}{% continue %}{% endif %}\n    {% set x = m['content'].strip() %}\n<{{ m.role.upper() }}>{{ x }}\n{% endfor %}\n{{ eos_token }}{{ none }}{{ true }}\n";
        let json = r#"[{"role": "a", "content": " hi "}, {"role": "skip", "content": ""}, {"role": "b", "content": "yo"}]"#;
        assert_eq!(render(all, json), "<A>hi\n<B>yo\n</s>NoneTrue");
        assert_eq!(render(&all.replace('\n', "\r\n"), json), render(all, json));
        let tools = r#"[{"z": 1, "a": [1.5, true, null, "é<'&\""], "e": {}, "f": []}]"#;
        assert_eq!(
            render("{{ messages[0] | tojson }}", tools),
            r#"{"z": 1, "a": [1.5, true, null, "é<'&\""], "e": {}, "f": []}"#
        );
        assert_eq!(
            render(
                "{{ messages[0] | tojson(indent=2) }}",
                r#"[{"z": [1, 2], "a": {}}]"#
            ),
            "{\n  \"z\": [\n    1,\n    2\n  ],\n  \"a\": {}\n}"
        );
        let options =
            "{{ messages[0] | tojson(sort_keys=true, separators=(',', ':'), ensure_ascii=true) }}";
        assert_eq!(
            render(options, r#"[{"z": "é😀", "a": 2}]"#),
            r#"{"a":2,"z":"\u00e9\ud83d\ude00"}"#
        );
        let year = render("{{ strftime_now('%Y') }}", "[]");
        assert!(year.len() == 4 && year.starts_with("20"), "{year}");
    }

    #[test]
    fn generation_blocks_say_what_the_assistant_wrote() {
        let source = "{% for m in messages %}\n{% if m.role == 'assistant' %}\nA: {% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}\n\n{% else %}\nU: {{ m.content }}\n{% endif %}\n{% endfor %}";
        let t = template(source);
        assert!(t.marks());
        let talk = messages(
            r#"[{"role": "user", "content": "q"}, {"role": "assistant", "content": "é"}, {"role": "assistant", "content": ""}]"#,
        );
        let (text, spans) = t.render(&talk, &Value::from(()), false).unwrap();
        assert_eq!(text, "U: q\nA: é</s>\nA: </s>\n");
        let said: Vec<&str> = spans.into_iter().map(|s| &text[s]).collect();
        assert_eq!(said, ["é</s>", "</s>"]);
        let (marked, _) =
            with_marks("{%- generation -%}x{%+ endgeneration %}{% if generation %}{% endif %}");
        assert_eq!(
            marked,
            "{%- filter generation -%}x{%+ endfilter %}{% if generation %}{% endif %}"
        );
        assert!(!template("{{ messages | length }}").marks());
    }

    #[test]
    fn what_a_template_refuses_is_reported_and_none_runs_for_ever() {
        let said = |source: &str| {
            let e = template(source).render(&messages("[{}]"), &Value::from(()), false);
            e.unwrap_err()
        };
        let refused = said("\n{{ raise_exception('roles must alternate') }}");
        assert!(
            refused.contains("t.jinja: line 2: roles must alternate"),
            "{refused}"
        );
        assert!(said("{{ messages[0].a.b.c }}").contains("line 1"));
        assert!(said("{{ strftime_now('%!') }}").contains("%!"));
        let forever = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}";
        assert!(!said(forever).is_empty());
        let bad = ChatTemplate::compile("t.jinja".into(), "\n{% if %}", BTreeMap::new());
        let bad = bad.err().unwrap().to_string();
        assert!(
            bad.contains("data.chat_template") && bad.contains("line 2"),
            "{bad}"
        );
    }

    #[test]
    fn the_template_is_found_in_the_tokenizers_folder() {
        let dir = tempfile::tempdir().unwrap();
        let kind = TokenizerKind::HfFile(dir.path().join("tokenizer.json"));
        let open = |given: Option<&Path>| ChatTemplate::open(&kind, given);
        let text = |t: ChatTemplate| t.render(&[], &Value::from(()), true).unwrap().0;
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        let missing = open(None).err().unwrap().to_string();
        assert!(
            missing.contains("chat_template.jinja") && missing.contains("data.chat_template"),
            "{missing}"
        );
        write(
            "tokenizer_config.json",
            r#"{"eos_token": {"content": "<e>"}, "chat_template": "one{{ eos_token }}{{ bos_token }}"}"#,
        );
        write(
            "special_tokens_map.json",
            r#"{"bos_token": "<b>", "eos_token": "<other>"}"#,
        );
        assert_eq!(text(open(None).unwrap()), "one<e><b>");
        let list = |names: [&str; 2]| {
            let of = |n: &str| serde_json::json!({"name": n, "template": format!("of {n}")});
            let list = serde_json::json!({"chat_template": names.map(of)});
            write("tokenizer_config.json", &list.to_string());
        };
        list(["tool_use", "default"]);
        assert_eq!(text(open(None).unwrap()), "of default");
        list(["tool_use", "rag"]);
        let none = open(None).err().unwrap().to_string();
        assert!(none.contains("tool_use, rag"), "{none}");
        write("chat_template.jinja", "file{{ add_generation_prompt }}");
        assert_eq!(text(open(None).unwrap()), "fileTrue");
        write("own.jinja", "own");
        assert_eq!(
            text(open(Some(&dir.path().join("own.jinja"))).unwrap()),
            "own"
        );
        let absent = open(Some(&dir.path().join("no.jinja")))
            .err()
            .unwrap()
            .to_string();
        assert!(absent.contains("no.jinja"), "{absent}");
        let built_in = ChatTemplate::open(&TokenizerKind::Gpt2, None)
            .err()
            .unwrap();
        assert!(built_in.to_string().contains("no chat template"));
        write("tokenizer_config.json", "{");
        assert!(
            open(None)
                .err()
                .unwrap()
                .to_string()
                .contains("tokenizer_config.json")
        );
    }
}
