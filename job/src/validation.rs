//! Which sequences a validation reads: each of those held back once, or the first of them.

use crate::error::Result;
use crossweave_config::Resolved;
use crossweave_data::{BatchShape, Batches, Corpus, Remark};

/// Batches of one validation where nothing was said, in versions before the whole set was read.
const BATCHES_ONCE: u64 = 8;

/// The sequences held back, for rows of `sample` tokens, and what the run says of them; nothing where none are held back.
///
/// # Errors
/// Fewer tokens than one row; a global batch that does not divide.
pub fn open(
    corpus: &Corpus,
    resolved: &Resolved,
    sample: u64,
    shape: BatchShape,
) -> Result<Option<(Batches, Remark)>> {
    let Some(rows) = corpus.validation(sample as usize)? else {
        return Ok(None);
    };
    let run = &resolved.settings.run;
    let (all, batch) = (rows.sequences(), shape.global_batch);
    let by_batches = run.validate_batches.map(|n| n.saturating_mul(batch));
    let most = run.validate_sequences.or(by_batches);
    let batches = Batches::evaluation(rows, shape, most.unwrap_or(u64::MAX))?;
    let used = batches.used();
    let said = format!("validation: {used} of {all} sequences are read each time");
    let long = most.is_none() && used > BATCHES_ONCE.saturating_mul(batch);
    let remark = match run.validate_batches {
        Some(n) if used < all => Remark::Note(format!(
            "{said} (run.validate_batches {n} x train_batch_size {batch})"
        )),
        _ if long => Remark::Warning(format!(
            "{said}, {} batches of train_batch_size {batch}; earlier versions read {BATCHES_ONCE} where the config said nothing; \
             fix: set run.validate_sequences to how many shall be read",
            batches.full_pass()
        )),
        _ => Remark::Note(said),
    };
    Ok(Some((batches, remark)))
}
