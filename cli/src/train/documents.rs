//! Documents that share a row (`data.reset_attention_mask`, `data.reset_position_ids`): the engine's form of the keys, and what they need.

use crate::error::{CliError, Result};
use crossweave_config::{Data, TextSource};
use crossweave_data::Tokenizer;
use crossweave_engine::Documents;

/// What begins anew behind the last token of a document.
pub fn of(data: &Data, tokenizer: Option<&Tokenizer>) -> Option<Documents> {
    let (attention, positions, end) = match data {
        Data::Text(d) => (
            d.reset_attention_mask,
            d.reset_position_ids,
            tokenizer.and_then(Tokenizer::eod).map(i64::from),
        ),
        Data::Tokens(d) => (
            d.reset_attention_mask,
            d.reset_position_ids,
            d.eod_id.and_then(|id| i64::try_from(id).ok()),
        ),
    };
    let (attention, positions) = (attention == Some(true), positions == Some(true));
    // No token is -1: where no corpus is open (plan, explain) the ops are the same and every row is one document.
    let end = end.and_then(|id| i32::try_from(id).ok()).unwrap_or(-1);
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
    let Some(asked) = of(data, tokenizer) else {
        return Ok(());
    };
    let indexed = |source: &TextSource| matches!(source, TextSource::Indexed(_));
    let (why, fix) = match (data, tokenizer) {
        (Data::Tokens(_), _) if asked.end < 0 => (
            "nothing says which token ends a document",
            "give its number as data.eod_id, or remove the key",
        ),
        (Data::Text(_), None) => (
            "no tokenizer says which token ends a document",
            "name the one that made the dataset by data.tokenizer",
        ),
        (Data::Text(_), Some(t)) if t.eod().is_none() => (
            "the tokenizer has no token that ends a document",
            "name it by data.eod_token, let data.append_eod add one to bytes, or remove the key",
        ),
        (Data::Text(d), Some(t)) if !indexed(&d.train) && !t.appends_eod() => (
            "documents are not ended with a token",
            "set data.append_eod to true, or remove the key",
        ),
        _ => return Ok(()),
    };
    let key = match asked.attention {
        true => "data.reset_attention_mask",
        false => "data.reset_position_ids",
    };
    Err(CliError::refused(format!("{key}: {why}"), fix))
}
