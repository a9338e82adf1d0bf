//! Every op of the table on a device without fused ops: all of them come down to primitives. A process of its own, because the linked backend
//! keeps the configuration of the first host that opens it (R9).

#[allow(clippy::too_many_arguments, clippy::type_complexity)]
mod ops;

#[test]
fn every_op_on_primitives_alone() {
    ops::every_op(false);
}
