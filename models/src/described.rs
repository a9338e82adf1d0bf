//! Holds a checkpoint's manifest against the model and the optimizer that it describes: the tensors it lists are theirs, all of them, in their
//! shapes, and what it remembers of the model is so. Its hashes are right in a manifest that somebody forged as well.

use crate::job::optimizer;
use crate::job_error::{JobError, Result};
use crate::{adapter, remembered};
use crossweave_axes::Place;
use crossweave_checkpoint::{Checkpoint, MANIFEST, Manifest};
use crossweave_config::Settings;
use crossweave_nn::lora::is_adapter;
use crossweave_nn::{ModelSpec, units};
use crossweave_tensor::{Group, ParamDecl};
use crossweave_zero::optim::{Assigned, ParamGroups, StateName};
use std::collections::BTreeMap;
use std::path::Path;

/// Holds the manifest of a checkpoint that `crossweave train` wrote against what it says of itself.
///
/// # Errors
/// The first tensor that is missing, too much or of another shape; a model that is none of this build's.
pub fn check(from: &Checkpoint) -> Result<()> {
    holds(from.manifest()).map_err(|why| {
        JobError::refused(
            format!("{}: {why}", from.path().join(MANIFEST).display()),
            "restore the checkpoint from a copy, or resume from an older one",
        )
    })
}

/// The same of a manifest alone; the reason as text. What another writer remembers is its own.
pub fn holds(manifest: &Manifest) -> std::result::Result<(), String> {
    let state = &manifest.state;
    if !state["config"].is_object() && !state["hf_config"].is_object() {
        return Ok(());
    }
    if manifest.layout.is_empty() {
        return Err("it lists no tensors".into());
    }
    // Of older versions, which remembered no model.
    if state["hf_config"].is_null() {
        return Ok(());
    }
    let params = params(manifest)?;
    remembered::check_rate(state)?;
    let settings = serde_json::from_value::<Settings>(state["config"].clone());
    let groups = settings.as_ref().ok().map(optimizer::groups).transpose();
    let groups = groups.map_err(|e| format!("state.config: {e}"))?;
    let mut known = tensors(&params, groups.as_ref());
    for (name, there) in &manifest.layout {
        let Some((shape, _)) = known.remove(name) else {
            // The states of an optimizer that this build does not know are its own.
            if groups.is_none() && !name.starts_with(VALUE) {
                continue;
            }
            let name = crossweave_files::clip(name, 200);
            return Err(format!("`{name}` is no tensor of the model it describes"));
        };
        if !there
            .shape
            .iter()
            .map(|d| *d as u64)
            .eq(shape.iter().copied())
        {
            return Err(format!(
                "`{name}` has shape {:?}, and the model it describes has {shape:?}",
                there.shape
            ));
        }
    }
    match known.iter().find(|(_, (_, needed))| *needed) {
        Some((name, _)) => Err(format!("`{name}` of the model it describes is missing")),
        None => Ok(()),
    }
}

const VALUE: &str = "value/";

/// The parameters that a checkpoint of this model holds: all, or those of its adapters.
pub(crate) fn params(manifest: &Manifest) -> std::result::Result<Vec<ParamDecl>, String> {
    let (config, adapters) = (
        &manifest.state["hf_config"],
        &manifest.state["adapter_config"],
    );
    let spec = ModelSpec::from_hf(config).map_err(|e| {
        let what = crossweave_files::elide(&e.what, 200);
        format!("state.hf_config.{}: {what}", e.key)
    })?;
    let same = spec.check_written(config);
    same.map_err(|e| format!("state.hf_config.{}: {}", e.key, e.what))?;
    let units = match adapters.is_null() {
        true => units(spec.model()),
        false => {
            let place = Path::new("state.adapter_config");
            let lora = adapter::lora_of(place, adapters).map_err(|e| e.to_string())?;
            let base = &manifest.state["base"]["folder"];
            remembered::check_adapters(adapters, &lora, &spec, base)?;
            let units = lora.units(&spec, &Place::alone());
            units.map_err(|e| format!("state.adapter_config: {e}"))?
        }
    };
    let all = units.into_iter().flat_map(|u| u.params);
    let held = |p: &ParamDecl| adapters.is_null() || is_adapter(&p.name);
    Ok(all.filter(held).collect())
}

/// The tensors of these parameters: their shapes, and whether a checkpoint must have them. What the model leaves untrained may have been trained
/// for the data.
fn tensors(
    params: &[ParamDecl],
    groups: Option<&ParamGroups>,
) -> BTreeMap<String, (Vec<u64>, bool)> {
    let mut all = BTreeMap::new();
    for p in params {
        let dims = p.shape.dims().to_vec();
        all.insert(format!("{VALUE}{}", p.name), (dims, true));
    }
    let Some(groups) = groups else { return all };
    let assigned: Vec<Assigned<'_>> = params
        .iter()
        .map(|p| Assigned {
            name: &p.name,
            dims: p.shape.dims(),
            no_decay: p.group == Group::NoDecay,
            frozen: false,
        })
        .collect();
    let recipes = groups.recipes(&assigned);
    for (p, recipe) in params.iter().zip(recipes) {
        let Some(recipe) = recipe else { continue };
        let dims = p.shape.dims();
        for state in recipe.states(dims) {
            let mut shape = dims.to_vec();
            match state.name {
                StateName::Rows => shape.truncate(dims.len() - 1),
                StateName::Cols => drop(shape.remove(dims.len() - 2)),
                StateName::Moment1 | StateName::Moment2 | StateName::Ema => {}
            }
            let name = format!("{}/{}", state.name.name(), p.name);
            all.insert(name, (shape, p.group.trains()));
        }
    }
    all
}
