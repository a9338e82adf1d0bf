//! The product and attention against the f64 references by the forms that use workgroup memory and no subgroups.

mod common;

#[test]
fn products_by_blocks_in_workgroup_memory() {
    let Some(bench) = common::open(&[("wgpu.subgroups", "off")]) else {
        return;
    };
    let failed = common::ops::failures(&bench, common::products);
    assert!(failed.is_empty(), "failed: {failed:?}; each says why above");
}
