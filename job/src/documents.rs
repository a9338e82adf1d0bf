//! Documents that share a row (`data.reset_attention_mask`, `data.reset_position_ids`, `data.pack`): the engine's form of the keys, and what they
//! need.

use crate::data_spec::is_indexed;
use crate::error::{JobError, Result};
use crossweave_config::{Data, DataFormat, Objective, TextData};
use crossweave_data::Tokenizer;
use crossweave_planner::Documents;

/// Returns true if rows hold several examples.
fn packed(data: &Data) -> bool {
    matches!(
        data,
        Data::Text(TextData {
            pack: Some(true),
            ..
        })
    )
}

/// What begins anew behind the last token of a document.
pub fn of(data: &Data, tokenizer: Option<&Tokenizer>) -> Option<Documents> {
    if packed(data) {
        // Where each example ends comes with the batch; no token is -1.
        return Some(Documents {
            end: -1,
            attention: true,
            positions: true,
        });
    }
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

/// Whether some predictions of these data do not count.
pub fn labelled(data: &Data) -> bool {
    if !matches!(data.objective(), None | Some(Objective::Causal)) {
        return true;
    }
    match data {
        Data::Text(d) => !matches!(d.format, None | Some(DataFormat::Text)),
        Data::Tokens(d) => d.labels.is_some(),
    }
}

/// Refuses the keys where nothing shows the end of a document: they would change nothing, silently. `vocab` is the model's.
///
/// # Errors
/// No end-of-document token is known, none is written, or no row can hold it.
pub fn check(data: &Data, tokenizer: Option<&Tokenizer>, vocab: u64) -> Result<()> {
    if packed(data) || of(data, tokenizer).is_none() {
        return Ok(());
    }
    let refuse = |key: &str, why: String, fix: &str| {
        let what = format!("{key}: {why}");
        Err(JobError::refused(what, fix))
    };
    let key = "data.reset_attention_mask";
    let d = match data {
        Data::Tokens(d) => {
            return match d.eod_id.filter(|id| *id >= vocab) {
                Some(id) => refuse(
                    "data.eod_id",
                    format!(
                        "no token is {id}: the model's vocabulary ends with {}",
                        vocab.saturating_sub(1)
                    ),
                    "give the number of the token that ends a document in these batches",
                ),
                None => Ok(()),
            };
        }
        Data::Text(d) => d,
    };
    let indexed = is_indexed(&d.train);
    let Some(t) = tokenizer else {
        return refuse(
            key,
            "no tokenizer says which token ends a document".into(),
            "name the one that made the dataset by data.tokenizer",
        );
    };
    match t.eod() {
        None => refuse(
            key,
            "the tokenizer has no token that ends a document".into(),
            "name it by data.eod_token, let data.append_eod add one to bytes, or remove the key",
        ),
        Some(id) if u64::from(id) >= vocab => refuse(
            key,
            format!(
                "documents end with token {id}, and the model's vocabulary ends with {}",
                vocab.saturating_sub(1)
            ),
            "name a token of the vocabulary by data.eod_token, or enlarge model.vocab_size",
        ),
        Some(_) if !indexed && !t.appends_eod() => refuse(
            key,
            "documents are not ended with a token".into(),
            "set data.append_eod to true, or remove the key",
        ),
        Some(_) => Ok(()),
    }
}
