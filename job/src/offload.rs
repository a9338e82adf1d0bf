//! DeepSpeed's offload keys as what a rank keeps off its device.

use crossweave_config::{Dtype, Resolved};
use crossweave_planner::{FileEngine, FileSettings, OffloadDevice, OffloadSpec, OptimizerOffload};
use std::path::PathBuf;

/// What rests off the device; none where everything stays.
pub(crate) fn offload(r: &Resolved) -> Option<OffloadSpec> {
    let (zero, aio) = (&r.settings.zero_optimization, &r.settings.aio);
    let states = zero.offload_optimizer.as_ref();
    let states = states.filter(|o| o.device != "none");
    let params = zero.offload_param.as_ref();
    let params = params.filter(|o| o.device != "none");
    let activations = r.settings.activation_checkpointing.cpu_checkpointing;
    if states.is_none() && !activations {
        return None;
    }
    let tier = |device: &str| match device {
        "nvme" => OffloadDevice::Nvme,
        _ => OffloadDevice::Host,
    };
    Some(OffloadSpec {
        optimizer: states.map(|o| OptimizerOffload {
            tier: tier(&o.device),
            ratio: o.ratio,
            delayed: o.delayed_update,
            pin: o.pin_memory,
            // 16-bit parameters are updated from gradients of their own type, unless the wire is said to be wider.
            grad_f32: r.dtype == Dtype::F32
                || r.settings.communication_data_type.as_deref() == Some("fp32"),
            group: Some(zero.sub_group_size).filter(|n| *n > 0),
        }),
        params: params.is_some(),
        activations,
        folder: states
            .and_then(|o| o.nvme_path.clone())
            .map(PathBuf::from)
            .unwrap_or_default(),
        files: FileSettings {
            block_size: aio.block_size,
            queue_depth: aio.queue_depth.min(u64::from(u32::MAX)) as u32,
            threads: aio
                .thread_count
                .unwrap_or(aio.intra_op_parallelism)
                .min(256) as u32,
            single_submit: aio.single_submit,
            overlap_events: aio.overlap_events,
            engine: FileEngine::from_name(&aio.engine).unwrap_or_default(),
            buffers: states.map_or(1, |o| o.buffer_count as usize),
            ..FileSettings::default()
        },
    })
}
