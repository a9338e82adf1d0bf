//! The product and attention against the f64 references, with subgroup functions where the adapter has them.

mod common;

#[test]
fn products_by_the_adapters_own_form() {
    let Some(bench) = common::open(&[]) else {
        return;
    };
    let failed = common::ops::failures(&bench, common::products);
    assert!(failed.is_empty(), "failed: {failed:?}; each says why above");
}
