//! Documents that share a row: what `data.reset_attention_mask` and `data.reset_position_ids` ask of each other and of given batches.

use crate::resolve::Resolver;
use crate::settings::Data;

impl Resolver<'_> {
    pub(crate) fn documents(&mut self, data: &Data) {
        let (mask, positions) = match data {
            Data::Text(d) => (d.reset_attention_mask, d.reset_position_ids),
            Data::Tokens(d) => (d.reset_attention_mask, d.reset_position_ids),
        };
        let (mask, positions) = (mask == Some(true), positions == Some(true));
        if positions && !mask {
            self.error(
                "data.reset_position_ids",
                "documents of a row would see each other while several of their tokens claim one position",
                "set data.reset_attention_mask to true too, or remove it",
            );
        }
        if let Data::Tokens(d) = data {
            if mask && d.eod_id.is_none() {
                let what = "nothing says which token ends a document of given batches";
                let fix = "give its number as data.eod_id, or remove the key";
                self.error("data.reset_attention_mask", what, fix);
            }
            if !mask && d.eod_id.is_some() {
                let what = "has no effect: a row is one sequence without data.reset_attention_mask";
                self.warn("data.eod_id", what, "set that to true, or remove this");
            }
        }
    }
}
