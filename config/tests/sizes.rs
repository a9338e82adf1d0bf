//! Sizes that no machine holds are refused before anything is read.

use crate::config::{BASE, expect, load};

/// The host holds the tokens of a rank's step, so that a step of more than there is memory for is refused before anything is read.
#[test]
fn a_step_that_no_machine_holds_is_refused() {
    let of = |member: &str| BASE.replace("\"train_batch_size\": 8", member);
    for (member, key) in [
        ("\"train_batch_size\": 2147483648", "train_batch_size"),
        ("\"train_batch_size\": 16777216", "train_batch_size"),
        (
            "\"train_micro_batch_size_per_gpu\": 4294967296",
            "train_micro_batch_size_per_gpu",
        ),
        (
            "\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 1099511627776",
            "train_micro_batch_size_per_gpu",
        ),
    ] {
        expect(&of(member), &[key, "268435456 tokens are the most", "fix:"]);
    }
    // As large as people train.
    let large = of("\"train_batch_size\": 65536");
    assert!(load(&large).unwrap().resolve(1).is_ok());
}
