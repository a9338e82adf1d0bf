//! The plain product, which others are compared with, is right as well.

use crate::common;
use crossweave_hal::abi::op;

#[test]
fn the_plain_product() {
    crossweave_tests::in_own_process!();
    let Some(bench) = common::open(&[("wgpu.naive_matmul", "on")]) else {
        return;
    };
    let failed = common::ops::failures(&bench, |id| id == op::MATMUL);
    assert!(failed.is_empty(), "failed: {failed:?}; each says why above");
}
