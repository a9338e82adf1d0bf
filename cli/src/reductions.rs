//! When the gradients of several micro-batches are reduced, as lines of a page.

use crate::gradients::{Reduced, ReducedByFormula, Reductions, ReductionsOfRun};
use crossweave_words::Size;

fn in_words(reduced: &str) -> &'static str {
    match reduced {
        "micro_batch" => "for each micro-batch",
        _ => "once a step",
    }
}

/// The choice of a plan beside the other one.
pub fn line(r: &Reductions) -> String {
    let (chosen, why, other) = match r {
        Reductions::Kept { kept, peak_bytes } => {
            let peak = Size(*peak_bytes);
            return format!(
                "gradients stay on the device until the last micro-batch, {peak} at most: {kept}"
            );
        }
        Reductions::Chosen { chosen, why, other } => (chosen, why, other),
    };
    let of = |r: &Reduced| {
        let (how, peak, sent) = (in_words(r.reduced), Size(r.peak_bytes), Size(r.sent_bytes));
        let out = match r.out_bytes {
            0 => String::new(),
            bytes => format!(", {} to the host", Size(bytes)),
        };
        format!("{how}, {peak} at most and {sent} sent{out} a step")
    };
    // A bucket that holds most of the gradients holds them whole, and slices come on top.
    let more = chosen.peak_bytes > other.peak_bytes && chosen.sent_bytes > other.sent_bytes;
    let less = match more {
        true => "; the other takes less of both: choose it, or a smaller reduce_bucket_size",
        false => "",
    };
    format!(
        "gradients are reduced {} ({why}); {}{less}",
        of(chosen),
        of(other)
    )
}

/// The choice of a run beside the other one.
pub fn of_run(r: &ReductionsOfRun) -> String {
    let of = |r: &ReducedByFormula| {
        let (how, held, sent) = (in_words(r.reduced), Size(r.held_bytes), Size(r.sent_bytes));
        format!("{how}: {held} held, {sent} sent a step")
    };
    format!("reduced {}; {}", of(&r.chosen), of(&r.other))
}
