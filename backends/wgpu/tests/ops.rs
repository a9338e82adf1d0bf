//! Every op of the table on this back end against the f64 references of the tensor crate's own suite: natively, and by recipes.

#[allow(dead_code, clippy::too_many_arguments, clippy::type_complexity)]
#[path = "../../../tensor/tests/ops/mod.rs"]
mod ops;

use crossweave_backend_wgpu::Wgpu;
use crossweave_hal::{HostServices, Plugin, RawPlugin};
use ops::bench::Bench;

/// A device under this configuration, or a line that says why there is none.
fn open(fused: bool, config: &[(&str, &str)]) -> Option<Bench> {
    let mut host = HostServices::builder().config("wgpu.fused", if fused { "on" } else { "off" });
    for (k, v) in config {
        host = host.config(*k, *v);
    }
    let raw = RawPlugin::from_static::<Wgpu>(&host.threads(2).build()).expect("the backend loads");
    match Plugin::new(raw).open(0) {
        Ok(d) => Some(Bench::on(d, fused)),
        Err(e) => {
            eprintln!("skipped: no adapter ({e})");
            None
        }
    }
}

/// One process keeps the configuration of its first device, so each test program has one test.
#[test]
fn every_op_natively_and_by_the_steps_of_its_recipe() {
    let Some(bench) = open(true, &[]) else { return };
    let only = std::env::var("OPS").unwrap_or_default();
    let failed = ops::failures(&bench, |id| {
        let name = crossweave_hal::abi::op::spec(id).map_or("", |s| s.name);
        only.is_empty() || only.split(',').any(|o| o == name)
    });
    assert!(failed.is_empty(), "failed: {failed:?}; each says why above");
}
