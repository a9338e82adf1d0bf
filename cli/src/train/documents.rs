//! Documents that share a row (`data.reset_attention_mask`, `data.reset_position_ids`): the engine's form of the keys, and what they need.

use crate::error::{CliError, Result};
use crossweave_config::{Data, TextSource};
use crossweave_data::Tokenizer;
use crossweave_engine::Documents;

/// What begins anew behind the last token of a document.
pub fn of(data: &Data, tokenizer: Option<&Tokenizer>) -> Option<Documents> {
    let Data::Text(d) = data else { return None };
    let attention = d.reset_attention_mask == Some(true);
    let positions = d.reset_position_ids == Some(true);
    // No token is -1: where no corpus is open (plan, explain) the ops are the same and every row is one document.
    let end = tokenizer.and_then(Tokenizer::eod).map_or(-1, |id| id as i32);
    (attention || positions).then_some(Documents {
        end,
        attention,
        positions,
    })
}

/// Refuses the keys where nothing shows the end of a document: they would change nothing, silently.
///
/// # Errors
/// No end-of-document token is known, or none is written.
pub fn check(data: &Data, tokenizer: Option<&Tokenizer>) -> Result<()> {
    let (Data::Text(d), Some(asked)) = (data, of(data, tokenizer)) else {
        return Ok(());
    };
    let key = match asked.attention {
        true => "data.reset_attention_mask",
        false => "data.reset_position_ids",
    };
    let indexed = matches!(d.train, TextSource::Indexed(_));
    let (why, fix) = match tokenizer {
        None => (
            "no tokenizer says which token ends a document",
            "name the one that made the dataset by data.tokenizer",
        ),
        Some(t) if t.eod().is_none() => (
            "the tokenizer has no end-of-document token",
            "name it by data.eod_token, or remove the key",
        ),
        Some(t) if !indexed && !t.appends_eod() => (
            "documents are not ended with a token",
            "set data.append_eod to true, or remove the key",
        ),
        Some(_) => return Ok(()),
    };
    Err(CliError::refused(format!("{key}: {why}"), fix))
}
