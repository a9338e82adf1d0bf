//! Where a chat template and the special tokens that it names are found: files of the tokenizer's folder.

use super::KEY;
use crate::error::{DataError, Result};
use crossweave_files as files;
use std::collections::BTreeMap;
use std::path::Path;

pub(super) fn read_text(path: &Path) -> Result<String> {
    let bytes = files::read(path, files::TEXT).map_err(DataError::io("read", path))?;
    String::from_utf8(bytes).map_err(|_| {
        let reason = format!("{} is not UTF-8 text", path.display());
        DataError::setting(KEY, reason, "save it as UTF-8, or copy it again")
    })
}

/// A JSON file, where there is one.
pub(super) fn read_json(path: &Path) -> Result<Option<serde_json::Value>> {
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
pub(super) fn named(value: &serde_json::Value, path: Option<&Path>) -> Result<Option<String>> {
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
pub(super) fn special_tokens(
    settings: &serde_json::Value,
    map: &Path,
) -> Result<BTreeMap<String, String>> {
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
