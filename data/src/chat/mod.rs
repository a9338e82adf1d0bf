//! Messages to text by a model's chat template, as `transformers` renders it. The language is the crate `jinja`'s, which bounds what a template
//! that nobody vouches for can use.

mod clock;
mod files_of;

use self::files_of::{named, read_json, read_text, special_tokens};
use crate::cache::hex;
use crate::error::{DataError, Result};
use crate::spec::TokenizerKind;
use crossweave_jinja::{Template, Value};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

const KEY: &str = "data.chat_template";
/// The end-of-document token as text, of the tokenizers that are built in.
pub(crate) const BUILT_IN_END: &str = "<|endoftext|>";
/// Changes whenever the same template and messages may become another text, so that examples are made anew.
const ENGINE: &str = "jinja 1\n";

/// A template and the special tokens that it may use.
pub(crate) struct ChatTemplate {
    template: Template,
    source: String,
    tokens: BTreeMap<String, String>,
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
        let mut digest = Sha256::new();
        digest.update(ENGINE);
        digest.update(source);
        for (name, token) in &tokens {
            [name, "=", token, "\n"]
                .iter()
                .for_each(|s| digest.update(s));
        }
        let template = Template::new(source).map_err(|e| {
            let reason = format!("{} is no template: {e}", path.display());
            DataError::setting(KEY, reason, "correct it, or copy it again from its model")
        })?;
        Ok(ChatTemplate {
            template,
            source: source.to_string(),
            tokens,
            path,
            identity: hex(&digest.finalize()),
        })
    }

    /// Text that differs whenever the same messages could become another text.
    pub(crate) fn identity(&self) -> &str {
        &self.identity
    }

    /// A special token by its name, as `bos_token`.
    pub(crate) fn token(&self, name: &str) -> Option<&str> {
        self.tokens.get(name).map(String::as_str)
    }

    /// A template of another source with the same special tokens; `None` where it does not compile.
    pub(crate) fn with_source(
        &self,
        edit: impl Fn(&str) -> Option<String>,
    ) -> Option<ChatTemplate> {
        let source = edit(&self.source)?;
        Self::compile(self.path.clone(), &source, self.tokens.clone()).ok()
    }

    /// Returns true if it says itself what the assistant writes.
    pub(crate) fn marks(&self) -> bool {
        self.template.marks()
    }

    /// The text of a conversation and the bytes of it that `{% generation %}` blocks wrote; with `prompt` followed by the start of an answer.
    ///
    /// # Errors
    /// A refusal of the template's, or a limit that it meets, with its file and line.
    pub(crate) fn render(
        &self,
        messages: &[Value],
        tools: &Value,
        prompt: bool,
    ) -> std::result::Result<(String, Vec<Range<usize>>), String> {
        let mut vars = vec![
            ("messages", messages.iter().cloned().collect()),
            ("tools", tools.clone()),
            ("documents", Value::None),
            ("add_generation_prompt", Value::from(prompt)),
        ];
        let tokens = self.tokens.iter();
        vars.extend(tokens.map(|(name, token)| (name.as_str(), Value::from(token.as_str()))));
        match self.template.render(&vars, &clock::now) {
            Ok(rendered) => Ok((rendered.text, rendered.spans)),
            Err(e) => Err(format!("{}: {e}", self.path.display())),
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
        let all = crossweave_jinja::read_json(json).unwrap();
        all.try_iter().unwrap().collect()
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
        assert!(said("{{ messages[0].a.b.c }}").contains("t.jinja: line 1"));
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
