//! What the config language can say and this build cannot do, and keys that exclude each other: each refused by name before anything else
//! is worked out.

use crate::schema::Default;
use crate::settings::*;
use crate::{Config, rows};
use crossweave_axes::Axis;
use serde_json::Value;

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
    out.extend(offload(s));
    out.extend(strange_axes(s));
    out
}

/// Words of `communication.axes` that name no axis.
fn strange_axes(s: &Settings) -> impl Iterator<Item = (&'static str, String, String)> {
    let wrong = |word: &String| word.parse::<Axis>().err();
    let fix = "name axes of the mesh, or remove it: communication.algorithm is then for all groups";
    let all = s.communication.axes.iter().filter_map(wrong);
    all.map(|what| ("communication.axes", what, fix.into()))
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
    // Below stage 3 there is nothing that could rest elsewhere, which is a warning.
    let params = zero.offload_param.as_ref();
    let params = params.filter(|o| o.device != "none" && zero.stage == 3);
    let nvme = |device: &str| device == "nvme";
    if let Some(o) = optimizer {
        if nvme(&o.device) && o.nvme_path.is_none() {
            no(
                "zero_optimization.offload_optimizer.nvme_path",
                "offloading to nvme needs a folder on that disk",
                "set nvme_path",
            );
        }
        if nvme(&o.device) && !s.aio.block_size.is_multiple_of(4096) {
            no(
                "aio.block_size",
                "files on the disk are read by whole pages: it must be a multiple of 4096",
                "set it to a multiple of 4096",
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
    let recompute = s.model.as_ref().map(Model::recompute);
    if s.activation_checkpointing.cpu_checkpointing && recompute == Some(Recompute::Selective) {
        no(
            "activation_checkpointing.cpu_checkpointing",
            "keeping activations in host memory that are not inputs of recomputed units is not available in this build yet",
            "set model.recompute to \"full\"",
        );
    }
    out
}

/// Given keys whose rows say that another value than the default has no effect, with such a value: `(path, reason, fix)`.
pub(crate) fn moot(config: &Config) -> Vec<(String, String, &'static str)> {
    let mut out = vec![];
    let number = |v: &Value| v.as_f64();
    rows::each(&mut |path, _, row| {
        let Default::Json(default) = row.default else {
            return;
        };
        let given = config.rows().iter().find(|r| r.path == path);
        let Some(given) = given.filter(|_| !row.moot.is_empty()) else {
            return;
        };
        let read = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
        let (value, default) = (read(&given.value), read(default));
        if value == default || number(&value).is_some() && number(&value) == number(&default) {
            return;
        }
        let fix = match default {
            Value::Bool(true) => "set it to true, or remove it",
            _ => "remove it",
        };
        out.push((
            path.to_string(),
            format!("has no effect: {}", row.moot),
            fix,
        ));
    });
    out
}

/// Keys that have no effect beside others: `(path, true if it has none, what happens instead, the fix)`. The caller reports those that were
/// given.
pub(crate) fn without_effect(
    s: &Settings,
) -> Vec<(&'static str, bool, &'static str, &'static str)> {
    const OFF: &str = "remove it";
    let zero = &s.zero_optimization;
    // DeepSpeed's defaults, which its configs write out.
    const AHEAD_OF_USE: u64 = 50_000_000;
    const GROUP: u64 = 1_000_000_000;
    let mut out = vec![
        (
            "zero_optimization.stage3_model_persistence_threshold",
            zero.stage3_model_persistence_threshold
                .is_some_and(|n| n < i64::MAX as u64),
            "has no effect: stage3_param_persistence_threshold alone says which blocks stay gathered",
            OFF,
        ),
        (
            "zero_optimization.stage3_prefetch_bucket_size",
            ![0, AHEAD_OF_USE].contains(&zero.stage3_prefetch_bucket_size),
            "its size has no effect: one unit (a block of the model) is gathered ahead of its use, or with 0 none",
            "set it to 0, or remove it",
        ),
        (
            "activation_checkpointing.cpu_checkpointing",
            s.activation_checkpointing.cpu_checkpointing
                && s.model.as_ref().map(Model::recompute) == Some(Recompute::None),
            "has no effect: nothing is recomputed, so there are no saved inputs to keep in host memory",
            "set model.recompute to \"full\", or remove it",
        ),
        (
            "mesh.sequence_parallel",
            s.mesh.sequence_parallel == SequenceParallel::Set(true) && s.mesh.tp <= 1,
            "has no effect: no ranks share layers (mesh.tp is 1)",
            OFF,
        ),
        (
            "activation_checkpointing.partition_activations",
            s.activation_checkpointing.partition_activations
                && (s.mesh.tp <= 1
                    || s.model.as_ref().map(Model::recompute) != Some(Recompute::Full)),
            "has no effect: no ranks that share layers (mesh.tp) keep the same input of a recomputed unit (model.recompute full)",
            OFF,
        ),
        (
            "zero_optimization.offload_param",
            zero.offload_param
                .as_ref()
                .is_some_and(|o| o.device != "none")
                && zero.stage != 3,
            "has no effect below stage 3: only sharded parameters can rest off the device",
            "set zero_optimization.stage to 3, or remove it",
        ),
    ];
    let offloads = zero
        .offload_optimizer
        .as_ref()
        .is_some_and(|o| o.device != "none");
    out.push((
        "zero_optimization.sub_group_size",
        ![0, GROUP].contains(&zero.sub_group_size) && !offloads,
        "has no effect without offload_optimizer: on the device a unit is updated at once",
        OFF,
    ));
    out
}

/// Takes back settings that were reported to have no effect.
pub(crate) fn forget_without_effect(s: &mut Settings) {
    if s.zero_optimization.stage != 3 {
        s.zero_optimization.offload_param = None;
    }
    if s.model.as_ref().map(Model::recompute) == Some(Recompute::None) {
        s.activation_checkpointing.cpu_checkpointing = false;
    }
}
