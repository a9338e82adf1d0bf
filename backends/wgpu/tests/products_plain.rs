//! The product and attention by the forms that use workgroup memory and no subgroups, halves taken apart as bits.

use crate::common;
use common::forms::{attention, matmul};
use common::ops::bench::{Bench, Rng};

#[test]
fn products_by_blocks_in_workgroup_memory() {
    crossweave_tests::in_own_process!();
    let Some(us) = common::open(&[("wgpu.subgroups", "off"), ("wgpu.f16", "off")]) else {
        return;
    };
    assert_eq!(us.device.attr("wgpu.f16").expect("a counter"), b"0");
    let (cpu, mut r) = (Bench::open(true), Rng(77));
    matmul(&us, &cpu, &mut r);
    attention(&us, &cpu, &mut r);
}
