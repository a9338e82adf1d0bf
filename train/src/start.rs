//! The values a rank starts from: drawn, a model folder's, a teacher's, an adapter's, or a checkpoint's.

use crate::model::Source;
use crate::stored::{PIECE, floats, floats_of, same_shape};
use crate::train_error::{Result, TrainError};
use crossweave_checkpoint::Checkpoint;
use crossweave_engine::{Engine, ScalerState, StateKind};
use crossweave_nn::distill::TEACHER;
use crossweave_nn::lora::is_adapter;
use crossweave_tensor::Group;

/// Gives a rank the starting values of `source`.
///
/// # Errors
/// A tensor that cannot be read; the device.
pub fn start(source: &Source, engine: &mut Engine) -> Result<()> {
    if let Some(checkpoint) = &source.checkpoint {
        start_base(source, engine)?;
        return weights(engine, checkpoint);
    }
    if source.folder.is_none() && source.teacher.is_none() {
        return Ok(engine.init()?);
    }
    if source.folder.is_none() || source.lora.is_some() {
        engine.init_trained()?;
    }
    load(source, engine)?;
    for p in engine.params() {
        if let Some(adapter) = &source.adapter
            && is_adapter(&p.name)
            && engine.holds(&p.name)
        {
            engine.load(&p.name, StateKind::Value, 0, &adapter.read_f32(&p.name)?)?;
        }
    }
    Ok(engine.publish()?)
}

/// Gives a rank what no checkpoint holds: the model under the adapters, or the teacher.
///
/// # Errors
/// As [`start`].
pub fn start_base(source: &Source, engine: &mut Engine) -> Result<()> {
    match source.lora.is_some() || source.teacher.is_some() {
        true => load(source, engine),
        false => Ok(()),
    }
}

/// The folder's weights, and the teacher's.
fn load(source: &Source, engine: &mut Engine) -> Result<()> {
    for p in engine.params() {
        let of_teacher = p.name.strip_prefix(TEACHER);
        let (folder, name) = match (of_teacher, &source.teacher) {
            (Some(name), Some(teacher)) => (Some(&teacher.folder), name),
            _ => (source.folder.as_ref(), p.name.as_str()),
        };
        // Another pipeline stage reads it, or nobody.
        let Some(folder) = folder.filter(|_| engine.holds(&p.name) && !is_adapter(name)) else {
            continue;
        };
        // Every parameter was resolved when the folder was opened.
        let stored = folder.names.file_name(name).unwrap_or(name);
        let numel = p.shape.dims().iter().product::<u64>();
        for from in (0..numel).step_by(PIECE as usize) {
            let run = from..numel.min(from + PIECE);
            let values = folder.dir.read_elements_f32(stored, run)?;
            engine.load(&p.name, StateKind::Value, from, &values)?;
        }
    }
    Ok(())
}

/// Name of a parameter's state in a checkpoint.
pub fn blob(kind: StateKind, name: &str) -> String {
    format!("{}/{name}", kind.name())
}

/// Gives a rank that does not train the weights of a checkpoint, and nothing of the optimizer.
///
/// # Errors
/// A tensor that is missing, damaged or of another shape; the device.
fn weights(engine: &mut Engine, checkpoint: &Checkpoint) -> Result<()> {
    for p in engine.params() {
        // What adapters sit on is in no checkpoint.
        if !engine.holds(&p.name) || p.group == Group::Base {
            continue;
        }
        let logical = blob(StateKind::Value, &p.name);
        let shape: Vec<usize> = p.shape.dims().iter().map(|d| *d as usize).collect();
        let info = checkpoint.logical_info(&logical)?;
        same_shape(checkpoint, &logical, &info.shape, &shape)?;
        let total = shape.iter().map(|d| *d as u64).product();
        let values = floats(checkpoint, &logical, 0..total)?;
        engine.load(&p.name, StateKind::Value, 0, &values)?;
    }
    Ok(engine.publish()?)
}

/// Gives a rank its part of a checkpoint's state; only that part is read, whatever layout wrote it.
///
/// # Errors
/// A tensor that is missing, damaged or of another shape; the device.
pub fn restore(engine: &mut Engine, checkpoint: &Checkpoint) -> Result<()> {
    for (kind, part) in engine.wanted() {
        let logical = blob(kind, &part.param);
        let info = checkpoint.logical_info(&logical)?;
        same_shape(checkpoint, &logical, &info.shape, &part.shape)?;
        let mut at = part.of_param.start;
        while at < part.of_param.end {
            let to = part.of_param.end.min(at + PIECE);
            let values = floats_of(checkpoint, &logical, &part.slice, at..to)?;
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            let held = part.at + at - part.of_param.start;
            engine.load_part(&part.param, kind, held, &bytes)?;
            at = to;
        }
    }
    engine.publish()?;
    engine.set_step(checkpoint.step());
    // A run that goes on in float16 and was in another type so far begins with a scaler as at the start.
    let kept = &checkpoint.state()["loss_scaler"];
    if engine.scaler_state().is_some() && !kept.is_null() {
        let state: ScalerState = serde_json::from_value(kept.clone()).map_err(|e| {
            TrainError::refused(
                format!("checkpoint of step {}: loss_scaler: {e}", checkpoint.step()),
                "resume from a checkpoint of this version",
            )
        })?;
        engine.restore_scaler(state);
    }
    Ok(())
}
