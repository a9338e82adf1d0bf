//! Every op of the table on this back end against the f64 references of the tensor crate's own suite: natively, and by recipes.

use crate::common;

#[test]
fn every_op_natively_and_by_the_steps_of_its_recipe() {
    crossweave_tests::in_own_process!();
    let Some(bench) = common::open(&[]) else {
        return;
    };
    let failed = common::ops::failures(&bench, common::claimed);
    assert!(failed.is_empty(), "failed: {failed:?}; each says why above");
}
