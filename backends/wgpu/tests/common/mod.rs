//! A device to test on, where there is an adapter, and the suite of the ops.
#![allow(dead_code)]

#[allow(clippy::too_many_arguments, clippy::type_complexity)]
#[path = "../../../../tensor/tests/ops/mod.rs"]
pub mod ops;

pub mod forms;

use crossweave_backend_wgpu::Wgpu;
use crossweave_hal::abi::op;
use crossweave_hal::{Device, HostServices, Plugin, RawPlugin};
use ops::bench::Bench;

/// Device 0 under this configuration, or a line that says why there is none.
pub fn device(config: &[(&str, &str)]) -> Option<Device> {
    let mut host = HostServices::builder();
    for (k, v) in config {
        host = host.config(*k, *v);
    }
    let raw = RawPlugin::from_static::<Wgpu>(&host.threads(2).build()).expect("the backend loads");
    match Plugin::new(raw).open(0) {
        Ok(d) => Some(d),
        Err(e) => {
            eprintln!("skipped: no adapter ({e})");
            None
        }
    }
}

/// A bench on it.
pub fn open(config: &[(&str, &str)]) -> Option<Bench> {
    device(config).map(|d| Bench::on(d, true))
}

/// Every op but the products.
pub fn claimed(id: u32) -> bool {
    !products(id)
}

/// The ops whose kernels take a software driver long to compile: in a program of their own.
pub fn products(id: u32) -> bool {
    [op::MATMUL, op::ATTENTION_FWD, op::ATTENTION_BWD].contains(&id)
}
