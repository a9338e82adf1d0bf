//! What rests off the device.

use crossweave_hal::DType;
use crossweave_store::Settings;
use crossweave_zero::OffloadDevice;
use std::path::PathBuf;

/// Optimizer states and gradients on the host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OptimizerOffload {
    /// The tier in which states rest.
    pub tier: OffloadDevice,
    /// The part of each rank's slice that the host updates; the rest stays on the device. From 0 to 1.
    pub ratio: f64,
    /// The update runs beside the next step, whose gradients are those of the parameters before it.
    pub delayed: bool,
    /// Gradients travel as they were summed, in f32, also where parameters are 16-bit; else in the type of the parameters.
    pub grad_f32: bool,
    /// All host memory of it is page-locked; else what the device copies.
    pub pin: bool,
    /// Most elements of one launch of the update (DeepSpeed's `sub_group_size`); none: a unit's, at once. No bit changes.
    pub group: Option<u64>,
}

impl OptimizerOffload {
    /// Type of gradients on their way to the host, where parameters are computed with in `compute`.
    pub fn wire(&self, compute: DType) -> DType {
        // A scaled sum may lie beyond what float16 can say and still be finite.
        match self.grad_f32 || compute == DType::F16 {
            true => DType::F32,
            false => compute,
        }
    }
}

/// The state that rests off the device.
#[derive(Clone, Debug)]
pub struct OffloadSpec {
    /// Optimizer states, gradients and the update.
    pub optimizer: Option<OptimizerOffload>,
    /// Parameters between gathers (stage 3): they rest with the optimizer states, whose whole update is then the host's.
    pub params: bool,
    /// Inputs kept for a recompute, between forward and backward.
    pub activations: bool,
    /// Folder of the files, when a tier is [`OffloadDevice::Nvme`].
    pub folder: PathBuf,
    /// The way in which files are read and written; the size of a buffer is chosen here.
    pub files: Settings,
}
