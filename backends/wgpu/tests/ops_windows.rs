//! The same suite with bindings of four kilobytes: operands that a real adapter takes whole are cut into windows, and those in large buffers
//! are bound from where they lie. A run takes every third op, and with `CROSSWEAVE_WGPU=all` each.

use crate::common;

#[test]
fn every_op_with_operands_in_several_bindings() {
    crossweave_tests::in_own_process!();
    let Some(bench) = common::open(&[("wgpu.max_binding", "4096"), ("wgpu.subgroups", "off")])
    else {
        return;
    };
    let most = bench.device.attr("wgpu.max_binding").expect("a counter");
    assert_eq!(most, b"4096");
    let all = std::env::var("CROSSWEAVE_WGPU").is_ok_and(|v| v == "all");
    let failed = common::ops::failures(&bench, |id| {
        common::claimed(id) && (all || id.is_multiple_of(3))
    });
    assert!(failed.is_empty(), "failed: {failed:?}; each says why above");
}
