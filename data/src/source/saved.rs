//! Folders that `save_to_disk` of Hugging Face datasets writes: the tables that `state.json` names.

use crate::error::{DataError, Result};
use crossweave_files as files;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// The contents of `state.json`, as far as they are read.
#[derive(Deserialize)]
struct State {
    #[serde(rename = "_data_files")]
    data_files: Vec<DataFile>,
}

#[derive(Deserialize)]
struct DataFile {
    filename: String,
}

/// The contents of `dataset_dict.json`.
#[derive(Deserialize)]
struct Splits {
    splits: Vec<String>,
}

fn read<T: serde::de::DeserializeOwned>(file: &Path) -> Result<Option<T>> {
    if !file.is_file() {
        return Ok(None);
    }
    let bytes = files::read(file, files::TEXT).map_err(DataError::io("read", file))?;
    let said = serde_json::from_slice(&bytes);
    said.map(Some).map_err(|e| damaged(file, e.to_string()))
}

fn damaged(file: &Path, reason: String) -> DataError {
    DataError::Corrupt {
        path: file.into(),
        offset: 0,
        reason,
        fix: "save the dataset again, or name its .arrow files".into(),
    }
}

/// The tables of a saved dataset; `None` of any other folder.
///
/// # Errors
/// A folder of several datasets; a list of tables that cannot be read, is empty, or names what is not there.
pub(super) fn tables(folder: &Path, key: &str) -> Result<Option<Vec<PathBuf>>> {
    if let Some(Splits { splits }) = read(&folder.join("dataset_dict.json"))? {
        let reason = format!(
            "{} holds a dataset for each split: {}",
            folder.display(),
            splits.join(", ")
        );
        let one = splits.first().map_or("train", String::as_str);
        return Err(DataError::setting(
            key,
            reason,
            format!("name one of them, as `{}`", folder.join(one).display()),
        ));
    }
    let state = folder.join("state.json");
    let Some(State { data_files }) = read(&state)? else {
        return Ok(None);
    };
    if data_files.is_empty() {
        return Err(damaged(&state, "it names no table".into()));
    }
    let one = |f: DataFile| {
        let path = folder.join(&f.filename);
        let plain = Path::new(&f.filename).file_name() == Some(f.filename.as_ref());
        match plain && path.is_file() {
            true => Ok(path),
            false => Err(damaged(
                &state,
                format!(
                    "it names the table {:?}, which is not in the folder",
                    f.filename
                ),
            )),
        }
    };
    data_files
        .into_iter()
        .map(one)
        .collect::<Result<_>>()
        .map(Some)
}
