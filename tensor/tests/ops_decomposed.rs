//! Every op of the table on a device without fused ops: all of them come down to primitives. A process of its own, because the linked backend
//! keeps the configuration of the first host that opens it (R9).

use crate::ops;

#[test]
fn every_op_on_primitives_alone() {
    crossweave_tests::in_own_process!();
    ops::every_op(false);
}
