//! `crossweave probe`: logits, loss and gradients of a model for given tokens, on one rank or gathered from a mesh, written to a file.

use crate::args::{ProbeArgs, ProbeType};
use crate::error::Result;
use crate::figures::probe::{OverMesh, Probe, probe, probe_over};
use crate::say::say;
use crate::screen::Screen;
use crate::surroundings::Surroundings;
use crate::train_error::TrainError;
use crossweave_checkpoint::{TensorOut, write_safetensors};
use crossweave_data::Remark;
use crossweave_hal::DType;
use crossweave_report::whole;
use std::path::Path;
use std::sync::Arc;

/// Runs the command.
///
/// # Errors
/// Inputs that are damaged or outside the model; a folder that is neither a model's nor a run's; the device. Nothing is written then.
pub fn run(args: &ProbeArgs, around: &Surroundings) -> Result<()> {
    let what = Probe {
        model: args.model.clone(),
        inputs: args.inputs.clone(),
        compute: match args.dtype {
            ProbeType::F32 => DType::F32,
            ProbeType::Bf16 => DType::Bf16,
        },
        backend: (&args.backend).into(),
    };
    let remark = |r: &Remark| eprintln!("{r}");
    let alone = args.ranks.is_none() && args.sets.is_empty();
    let found = match alone {
        true => Some(probe(&what, around, remark)?),
        false => {
            let over = OverMesh {
                ranks: args.ranks.clone(),
                sets: args.sets.clone(),
                events: Arc::new(Screen::default()),
            };
            probe_over(&what, &over, around, remark)?
        }
    };
    // The process of rank 0 has it.
    let Some(found) = found else {
        return Ok(());
    };
    write(&args.out, found.tensors)?;
    let [b, t, vocab] = found.logits;
    say!(
        "{}: loss {:.6}, logits [{b}, {t}, {vocab}], {} gradients",
        args.out.display(),
        found.loss,
        found.gradients
    );
    Ok(())
}

/// Written beside its place and moved there, so that a failure leaves nothing half done.
fn write(path: &Path, tensors: Vec<TensorOut<'_>>) -> Result<()> {
    TrainError::not_a_file("--out", path)?;
    let partial = whole::beside(path);
    let done = write_safetensors(&partial, tensors, &[])
        .map_err(TrainError::from)
        .and_then(|_| std::fs::rename(&partial, path).map_err(TrainError::io("write", path)));
    if done.is_err() {
        let _ = std::fs::remove_file(&partial);
    }
    Ok(done?)
}
