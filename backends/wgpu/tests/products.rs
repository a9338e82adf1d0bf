//! The product and attention by the adapter's own form: with subgroup functions and halves where it has them.

use crate::common;
use common::forms::{attention, large, matmul};
use common::ops::bench::{Bench, Rng};

#[test]
fn products_by_the_adapters_own_form() {
    crossweave_tests::in_own_process!();
    let Some(us) = common::open(&[]) else {
        return;
    };
    let (cpu, mut r) = (Bench::open(true), Rng(78));
    matmul(&us, &cpu, &mut r);
    attention(&us, &cpu, &mut r);
    large(&us, &cpu, &mut r);
}
