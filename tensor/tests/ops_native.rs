//! Every op of the table on the linked CPU backend with its fused ops: native, and by the recipe's steps with native programs.

use crate::ops;

#[test]
fn every_op_natively_and_by_the_steps_of_its_recipe() {
    crossweave_tests::in_own_process!();
    ops::every_op(true);
}
