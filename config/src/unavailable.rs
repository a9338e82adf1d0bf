//! What the config language can say and this build cannot do, and keys that exclude each other: each refused by name before anything else
//! is worked out.

use crate::settings::*;

/// Keys that are understood but that this build cannot do: `(path, what, fix)`.
///
/// This is the one place to edit when a feature arrives.
pub(crate) fn unavailable(s: &Settings) -> Vec<(&'static str, String, String)> {
    let mut out = Vec::new();
    let mut no = |path: &'static str, what: String, fix: &str| {
        out.push((
            path,
            format!("{what} not available in this build yet"),
            fix.to_string(),
        ));
    };
    let zero = &s.zero_optimization;
    if zero.zero_quantized_gradients {
        no(
            "zero_optimization.zero_quantized_gradients",
            "reducing gradients in 4 bits is".into(),
            "remove it",
        );
    }
    for (path, n, what) in [
        ("mesh.tp", s.mesh.tp, "tensor parallelism is"),
        ("mesh.cp", s.mesh.cp, "context parallelism is"),
        ("mesh.ep", s.mesh.ep, "expert parallelism is"),
    ] {
        if n > 1 {
            no(path, what.into(), "set it to 1");
        }
    }
    let activation = &s.activation_checkpointing;
    if activation.partition_activations {
        no(
            "activation_checkpointing.partition_activations",
            "partitioned activations are".into(),
            "set it to false",
        );
    }
    out.extend(offload(s));
    out
}

/// Kinds of offload that do not go together, or lack something.
fn offload(s: &Settings) -> Vec<(&'static str, String, String)> {
    let mut out: Vec<(&'static str, String, String)> = Vec::new();
    let mut no = |path, what: &str, fix: &str| out.push((path, what.into(), fix.into()));
    let zero = &s.zero_optimization;
    let optimizer = zero
        .offload_optimizer
        .as_ref()
        .filter(|o| o.device != "none");
    let params = zero.offload_param.as_ref().filter(|o| o.device != "none");
    let nvme = |device: &str| device == "nvme";
    if let Some(o) = optimizer {
        if nvme(&o.device) && o.nvme_path.is_none() {
            no(
                "zero_optimization.offload_optimizer.nvme_path",
                "offloading to nvme needs a folder on that disk",
                "set nvme_path",
            );
        }
        if o.ratio < 1.0 && o.delayed_update {
            no(
                "zero_optimization.offload_optimizer.ratio",
                "a part of each shard updated on the device would be a step ahead of the part whose update is delayed",
                "set ratio to 1, or switch delayed_update off",
            );
        }
        if o.delayed_update && (nvme(&o.device) || params.is_some()) {
            no(
                "zero_optimization.offload_optimizer.delayed_update",
                "a delayed update keeps the parameters of two steps, in host memory and on the device",
                "set device to \"cpu\" and leave offload_param out, or switch delayed_update off",
            );
        }
    }
    if let Some(p) = params {
        let path = "zero_optimization.offload_param";
        if zero.stage != 3 {
            no(
                path,
                "only sharded parameters can rest off the device",
                "set zero_optimization.stage to 3",
            );
        }
        let with = optimizer.is_some_and(|o| nvme(&o.device) == nvme(&p.device));
        if !with {
            no(
                path,
                "parameters rest beside the optimizer states that make them",
                "set offload_optimizer to the same device",
            );
        }
        if optimizer.is_some_and(|o| o.ratio < 1.0) {
            no(
                "zero_optimization.offload_optimizer.ratio",
                "a part of each shard on the device beside offload_param is not available in this build yet",
                "set ratio to 1, or leave offload_param out",
            );
        }
        if zero.zero_hpz_partition_size > 1 {
            no(
                path,
                "a second shard within the node keeps parameters on the device",
                "set zero_hpz_partition_size to 1",
            );
        }
    }
    let recompute = match &s.model {
        Some(Model::Hf(m)) => Some(m.recompute),
        Some(Model::New(NewModel::Gpt2(m))) => Some(m.recompute),
        Some(Model::New(NewModel::Llama(m))) => Some(m.recompute),
        None => None,
    };
    if s.activation_checkpointing.cpu_checkpointing
        && recompute.is_some_and(|r| r != Recompute::Full)
    {
        no(
            "activation_checkpointing.cpu_checkpointing",
            "keeping activations in host memory that are not inputs of recomputed units is not available in this build yet",
            "set model.recompute to \"full\"",
        );
    }
    out
}

/// What goes on whether a key says so or not: `(path, the key's value, what)`. A `false` that was written is told that it has no effect.
pub(crate) fn always(s: &Settings) -> Vec<(&'static str, bool, &'static str)> {
    const PINNED: &str = "has no effect: what a device copies from and to is always page-locked, or no copy would run beside it";
    const AHEAD: &str = "has no effect: reads always run ahead of the update and writes behind it, as far as buffer_count allows";
    let zero = &s.zero_optimization;
    let mut out = vec![];
    if let Some(o) = &zero.offload_optimizer {
        let path = "zero_optimization.offload_optimizer.pin_memory";
        out.push((path, o.pin_memory, PINNED));
        let path = "zero_optimization.offload_optimizer.pipeline";
        out.push((path, o.pipeline, AHEAD));
        let path = "zero_optimization.offload_optimizer.pipeline_read";
        out.push((path, o.pipeline_read, AHEAD));
        let path = "zero_optimization.offload_optimizer.pipeline_write";
        out.push((path, o.pipeline_write, AHEAD));
    }
    if let Some(o) = &zero.offload_param {
        let path = "zero_optimization.offload_param.pin_memory";
        out.push((path, o.pin_memory, PINNED));
    }
    out
}
