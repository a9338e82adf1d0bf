//! The product and attention by the forms that use workgroup memory and no subgroups.

mod common;

use common::forms::{attention, matmul};
use common::ops::bench::{Bench, Rng};

#[test]
fn products_by_blocks_in_workgroup_memory() {
    let Some(us) = common::open(&[("wgpu.subgroups", "off")]) else {
        return;
    };
    let (cpu, mut r) = (Bench::open(true), Rng(77));
    matmul(&us, &cpu, &mut r);
    attention(&us, &cpu, &mut r);
}
