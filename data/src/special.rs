//! The special tokens of a tokenizer's folder: those that begin, end or fill up a text and those that were added, from `tokenizer_config.json`,
//! `special_tokens_map.json` and `added_tokens.json`, each in the order in which `transformers` 5 reads and adds them.

use crate::error::{DataError, Result};
use crossweave_files as files;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tokenizers::AddedToken;

const SETTINGS: &str = "tokenizer_config.json";
const MAP: &str = "special_tokens_map.json";
const ADDED: &str = "added_tokens.json";

/// The names that every tokenizer has, in the order in which their tokens are added.
const NAMES: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

/// Keys of lists of special tokens without names, the newer one first.
const LISTS: [&str; 2] = ["extra_special_tokens", "additional_special_tokens"];

/// The special tokens that the files name.
#[derive(Debug, Default)]
pub(crate) struct SpecialTokens {
    /// `eos_token` and the like, in the order in which they are added.
    named: Vec<Named>,
    /// Tokens with the ids that they are to have, and the file that says so.
    numbered: BTreeMap<u32, AddedToken>,
    numbered_in: PathBuf,
    /// The names of special tokens in a text are text (`split_special_tokens`).
    pub(crate) split: bool,
    /// Tokens without a name or an id.
    extra: Vec<AddedToken>,
}

/// A token with a name.
#[derive(Debug)]
struct Named {
    name: String,
    token: AddedToken,
    /// The file that says so.
    path: PathBuf,
    /// True if `transformers` hears of it, and adds it.
    heard: bool,
}

impl SpecialTokens {
    /// Those of the folder of the tokenizer in `file`. What lies beside a file of another name than `tokenizer.json` is not its own.
    ///
    /// # Errors
    /// A file that cannot be read or is no JSON object; a token that is none.
    pub(crate) fn beside(file: &Path) -> Result<SpecialTokens> {
        match (file.file_name(), file.parent()) {
            (Some(name), Some(dir)) if name == "tokenizer.json" => Self::of_folder(dir),
            _ => Ok(SpecialTokens::default()),
        }
    }

    fn of_folder(dir: &Path) -> Result<SpecialTokens> {
        let (at_settings, at_map, at_added) = (dir.join(SETTINGS), dir.join(MAP), dir.join(ADDED));
        let settings = read_object(&at_settings)?.unwrap_or_default();
        let mut this = SpecialTokens {
            split: settings.get("split_special_tokens") == Some(&Value::Bool(true)),
            ..SpecialTokens::default()
        };
        let numbered = settings
            .get("added_tokens_decoder")
            .filter(|v| !v.is_null());
        if let Some(all) = numbered {
            this.numbered_in = at_settings.clone();
            let all = all
                .as_object()
                .ok_or_else(|| bad(&at_settings, "`added_tokens_decoder` is no object"))?;
            for (id, token) in all {
                let id = id.parse().map_err(|_| {
                    bad(
                        &at_settings,
                        format!("`added_tokens_decoder`: {id:?} is no id"),
                    )
                })?;
                let token = added(token, false).filter(|_| token.is_object());
                let token = token.ok_or_else(|| {
                    bad(
                        &at_settings,
                        format!("`added_tokens_decoder`: token {id} has no content"),
                    )
                })?;
                this.numbered.insert(id, token);
            }
        }
        // Files of older releases speak only where the settings name no ids.
        let map = read_object(&at_map)?.unwrap_or_default();
        let mut sources = vec![(&settings, &at_settings), (&map, &at_map)];
        if numbered.is_none() {
            sources.reverse();
        }
        for (from, path) in sources {
            let heard = numbered.is_none() || path == &at_settings;
            let more = from.keys().map(String::as_str);
            let more = more.filter(|key| key.ends_with("_token") && !NAMES.contains(key));
            for name in NAMES.into_iter().chain(more) {
                let known = this.named.iter().any(|n| n.name == name);
                let token = from.get(name).and_then(|t| added(t, true));
                if let Some(token) = token.filter(|_| !known) {
                    this.named.push(Named {
                        name: name.into(),
                        token,
                        path: path.clone(),
                        heard,
                    });
                }
            }
            if heard {
                this.more(from, path);
            }
        }
        let place = |n: &Named| NAMES.iter().position(|name| *name == n.name);
        this.named.sort_by_key(|n| place(n).unwrap_or(NAMES.len()));
        if numbered.is_none()
            && let Some(all) = read_object(&at_added)?
        {
            this.numbered_in = at_added.clone();
            // What the older map lists under its older key is not a special token to `transformers` yet.
            let lists = LISTS.map(|key| listed(&settings, key)).into_iter();
            let lists = lists.chain([listed(&map, LISTS[0])]).flatten();
            let named = this.named.iter().filter(|n| n.heard);
            let special: Vec<String> = named
                .filter(|n| NAMES.contains(&&*n.name))
                .map(|n| n.token.content.clone())
                .chain(lists.map(|t| t.content))
                .collect();
            for (content, id) in all {
                let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
                let id =
                    id.ok_or_else(|| bad(&at_added, format!("the id of {content:?} is no id")))?;
                let special = special.contains(&content);
                let token = AddedToken::from(content, special);
                if let Some(other) = this.numbered.insert(id, token) {
                    let reason = format!("{:?} and another token have the id {id}", other.content);
                    return Err(bad(&at_added, reason));
                }
            }
        }
        // A token with a name is a special one; what is said of it beside its id counts.
        for Named { token, .. } in &mut this.named {
            let same = this
                .numbered
                .values_mut()
                .find(|t| t.content == token.content);
            if let Some(numbered) = same {
                numbered.special = true;
                *token = numbered.clone();
            }
        }
        Ok(this)
    }

    /// The tokens of lists, and of an object of names.
    fn more(&mut self, from: &Map<String, Value>, path: &Path) {
        for key in LISTS {
            let named = from.get(key).and_then(Value::as_object);
            for (name, token) in named.into_iter().flatten() {
                let known = self.named.iter().any(|n| n.name == *name);
                if let Some(token) = added(token, true).filter(|_| !known) {
                    self.named.push(Named {
                        name: name.clone(),
                        token,
                        path: path.into(),
                        heard: true,
                    });
                }
            }
            for token in listed(from, key) {
                if self.extra.iter().all(|t| t.content != token.content) {
                    self.extra.push(token);
                }
            }
        }
    }

    fn all(&self) -> impl Iterator<Item = &AddedToken> {
        let named = self.named.iter().filter(|n| n.heard);
        named.map(|n| &n.token).chain(&self.extra)
    }

    /// The text of the token with a name such as `eos_token`, and the file that says so.
    pub(crate) fn named(&self, name: &str) -> Option<(&str, &Path)> {
        let found = self.named.iter().find(|n| n.name == name)?;
        Some((&found.token.content, &found.path))
    }

    /// Adds the tokens that have ids.
    ///
    /// # Errors
    /// An id that contradicts the vocabulary.
    pub(crate) fn add_numbered(&self, to: &mut tokenizers::Tokenizer) -> Result<()> {
        let wrong = |reason: String| bad(&self.numbered_in, reason);
        for (id, token) in &self.numbered {
            let content = &token.content;
            let contradiction = match (to.token_to_id(content), to.id_to_token(*id)) {
                (Some(own), _) if own != *id => format!("has the id {own} in tokenizer.json"),
                (None, Some(other)) => format!("would take the id of {other:?} in tokenizer.json"),
                _ => continue,
            };
            return Err(wrong(format!(
                "{content:?} has the id {id}, and {contradiction}"
            )));
        }
        // How a token takes white space along, tokenizer.json says better than added_tokens.json, which has no more than ids.
        let own = to.get_added_tokens_decoder();
        let kept = |token: &&AddedToken| {
            let ids_alone = self.numbered_in.file_name().is_some_and(|n| n == ADDED);
            !(ids_alone && own.values().any(|t| t.content == token.content))
        };
        let new: Vec<AddedToken> = self.numbered.values().filter(kept).cloned().collect();
        to.add_tokens(new)
            .map_err(|e| wrong(format!("its tokens cannot be added: {e}")))?;
        for (id, token) in &self.numbered {
            let content = &token.content;
            // The library numbers new tokens from the end of the vocabulary on.
            if let Some(own) = to.token_to_id(content).filter(|own| own != id) {
                let reason = format!(
                    "{content:?} has the id {id}, and the vocabulary of tokenizer.json has an id fewer or more: it would be {own}"
                );
                return Err(wrong(reason));
            }
        }
        Ok(())
    }

    /// Adds the tokens that have none, each with the next id where the vocabulary does not have it.
    pub(crate) fn add_others(&self, to: &mut tokenizers::Tokenizer) -> Result<()> {
        let known = |token: &&AddedToken| {
            let own = to.get_added_tokens_decoder();
            !own.values().any(|t| t.content == token.content)
        };
        let new: Vec<AddedToken> = self.all().filter(known).cloned().collect();
        let path = self.named.first().map_or(&self.numbered_in, |n| &n.path);
        to.add_tokens(new)
            .map_err(|e| bad(path, format!("its tokens cannot be added: {e}")))?;
        Ok(())
    }
}

/// The tokens of a list.
fn listed(from: &Map<String, Value>, key: &str) -> Vec<AddedToken> {
    let list = from.get(key).and_then(Value::as_array);
    list.into_iter()
        .flatten()
        .filter_map(|t| added(t, true))
        .collect()
}

/// A token as text, or as an object with its `content`.
fn added(value: &Value, special: bool) -> Option<AddedToken> {
    let content = value.as_str().or_else(|| value["content"].as_str())?;
    if content.is_empty() {
        return None;
    }
    let flag = |name: &str| value[name].as_bool();
    let special = special || flag("special") == Some(true);
    let token = AddedToken::from(content, special);
    Some(AddedToken {
        single_word: flag("single_word").unwrap_or(token.single_word),
        lstrip: flag("lstrip").unwrap_or(token.lstrip),
        rstrip: flag("rstrip").unwrap_or(token.rstrip),
        normalized: flag("normalized").unwrap_or(token.normalized),
        ..token
    })
}

/// A JSON object, where there is such a file.
fn read_object(path: &Path) -> Result<Option<Map<String, Value>>> {
    if !path.is_file() {
        return Ok(None);
    }
    let bytes = files::read(path, files::TABLE).map_err(DataError::io("read", path))?;
    let value =
        serde_json::from_slice(&bytes).map_err(|e| bad(path, format!("not valid JSON: {e}")))?;
    match value {
        Value::Object(map) => Ok(Some(map)),
        _ => Err(bad(path, "it is no JSON object")),
    }
}

fn bad(path: &Path, reason: impl Into<String>) -> DataError {
    DataError::Tokenizer {
        path: path.into(),
        reason: reason.into(),
        fix: "copy the tokenizer's files again from one model, all together".into(),
    }
}
