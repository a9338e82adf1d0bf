//! A device to test on, where there is an adapter, and the suite of the ops.
#![allow(dead_code)]

#[allow(clippy::too_many_arguments, clippy::type_complexity)]
#[path = "../../../../tensor/tests/ops/mod.rs"]
pub mod ops;

pub mod adapter;
pub mod forms;

use crossweave_hal::abi::op;
use crossweave_hal::{Device, HostServices};
use ops::bench::Bench;

/// Device 0 under this configuration, where there is an adapter.
pub fn device(config: &[(&str, &str)]) -> Option<Device> {
    let mut host = HostServices::builder();
    for (k, v) in config {
        host = host.config(*k, *v);
    }
    let plugin = adapter::plugin(&host.threads(2).build())?;
    Some(plugin.open(0).expect("the adapter opens"))
}

/// A bench on it.
pub fn open(config: &[(&str, &str)]) -> Option<Bench> {
    device(config).map(|d| Bench::on(d, true))
}

/// Every op but the products, and but those that are left to the core's decomposition.
pub fn claimed(id: u32) -> bool {
    let decomposed = [
        op::ATTENTION_VARLEN_FWD,
        op::ATTENTION_VARLEN_BWD,
        op::ATTENTION_EXT_FWD,
        op::ATTENTION_EXT_BWD,
        op::GROUPED_MATMUL,
        op::GROUPED_MATMUL_DW,
    ];
    !products(id) && !decomposed.contains(&id)
}

/// The ops whose kernels take a software driver long to compile: in a program of their own.
pub fn products(id: u32) -> bool {
    [op::MATMUL, op::ATTENTION_FWD, op::ATTENTION_BWD].contains(&id)
}
