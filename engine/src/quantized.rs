//! Whether gathers travel in 8 bits (`zero_quantized_weights`, qwZ of ZeRO++), and whether the device can; what such a gather is, is
//! written by `zero/src/lower/quantized.rs`.

use crate::error::{Error, Result};
use crossweave_hal::abi::{Layout, op};
use crossweave_hal::{DType, Device, OpRequest};
use crossweave_planner::{QUANTIZED_BLOCK, RankSpec};
use crossweave_tensor::Decompositions;

/// The config key that asks for it.
const KEY: &str = "zero_optimization.zero_quantized_weights";

/// Asks the device, before anything is allocated, whether it can do it.
pub(crate) fn check(device: &Device, spec: &RankSpec) -> Result<()> {
    if !spec.quantizes() {
        return Ok(());
    }
    for (to, from) in [(DType::F8E4M3, DType::F32), (spec.compute, DType::F8E4M3)] {
        let shape = [QUANTIZED_BLOCK];
        let operands = [
            Layout::contiguous(to, &shape),
            Layout::contiguous(from, &shape),
        ];
        let none = op::NoParams::default();
        let request = OpRequest::new(op::CAST, &operands, none.as_bytes());
        if let Err(e) = device.prepare(&request, &Decompositions) {
            return Err(Error::Invalid(format!(
                "{KEY}: this device cannot cast {} to {} ({e}); fix: remove {KEY}, or train on a device with 8-bit floats",
                from.name(),
                to.name()
            )));
        }
    }
    Ok(())
}
