//! `crossweave probe`: what an import computes, as a file anyone can hold against their own reference.

use crate::args::{ProbeArgs, ProbeType};
use crate::backend::{choose, host};
use crate::error::{CliError, Result};
use crate::say::say;
use crate::{adapter, infer, trained, whole};
use crossweave_checkpoint::{Dtype, SafeFile, TensorOut, write_safetensors};
use crossweave_engine::MicroBatch;
use crossweave_hal::DType;
use crossweave_nn::lora::is_adapter;
use std::path::Path;

/// Token ids `[batch, seq]`.
struct Inputs {
    ids: Vec<i32>,
    batch: u64,
    seq: u64,
}

/// Runs the command.
///
/// # Errors
/// Inputs that are damaged or outside the model; a folder that is neither a model's nor a run's; the device. Nothing is written then.
pub fn run(args: &ProbeArgs) -> Result<()> {
    let host = host(1, None, None);
    let plugin = choose(&args.backend, "cpu", &host)?;
    let source = trained::open(&args.model)?.source;
    let inputs = read(&args.inputs, source.spec.model().vocab)?;
    let (b, t) = (inputs.batch, inputs.seq);
    let longest = source.spec.model().positions;
    if t > longest {
        return Err(CliError::refused(
            format!(
                "{}: input_ids has sequences of {t} tokens, the model has {longest} positions",
                args.inputs.display()
            ),
            format!("give at most {longest} tokens"),
        ));
    }
    let compute = match args.dtype {
        ProbeType::F32 => DType::F32,
        ProbeType::Bf16 => DType::Bf16,
    };
    let mut trainer = infer::open(&source, &plugin, &host, compute, b, t - 1)?;
    let cut = |from: usize| -> Vec<i32> {
        let rows = inputs.ids.chunks_exact(t as usize);
        rows.flat_map(|r| &r[from..from + t as usize - 1])
            .copied()
            .collect()
    };
    let logits = trainer.logits(&inputs.ids, b, t)?;
    let (loss, grads) = trainer.loss_and_grads(&MicroBatch {
        tokens: &cut(0),
        targets: &cut(1),
        first_sequence: 0,
    })?;
    let vocab = source.spec.model().vocab;
    let shape = [b as usize, t as usize, vocab as usize];
    let mut out = vec![
        TensorOut::from_f32("logits", Dtype::F32, &shape, logits),
        TensorOut::from_f32("loss", Dtype::F32, &[], vec![loss as f32]),
    ];
    let params = trainer.params();
    for (name, values) in grads {
        let resolved = source.folder.as_ref();
        let resolved = resolved.and_then(|f| f.names.file_name(&name));
        let file_name = match is_adapter(&name) {
            true => adapter::file_name(&name),
            false => resolved.unwrap_or(&name).to_string(),
        };
        let shape: Vec<usize> = params
            .iter()
            .find(|p| p.name == name)
            .map(|p| p.shape.dims().iter().map(|d| *d as usize).collect())
            .unwrap_or_default();
        let title = format!("grad.{file_name}");
        out.push(TensorOut::from_f32(title, Dtype::F32, &shape, values));
    }
    let count = out.len() - 2;
    write(&args.out, out)?;
    say!(
        "{}: loss {loss:.6}, logits [{b}, {t}, {vocab}], {count} gradients",
        args.out.display()
    );
    Ok(())
}

fn read(path: &Path, vocab: u64) -> Result<Inputs> {
    let file = SafeFile::open(path)?;
    let info = file.info("input_ids")?;
    let refuse = |what: String, fix: &str| {
        CliError::refused(format!("{}: input_ids {what}", path.display()), fix)
    };
    let &[b, t] = &info.shape[..] else {
        let what = format!("has shape {:?}", info.shape);
        return Err(refuse(what, "give it the shape [B, T]"));
    };
    if b == 0 || t < 2 {
        let what = format!("has shape [{b}, {t}]");
        return Err(refuse(
            what,
            "give at least one sequence of two tokens, so that there is a next token",
        ));
    }
    let bytes = file.read("input_ids")?;
    let wide: Vec<i64> = match info.dtype {
        Dtype::I64 => bytes
            .as_chunks::<8>()
            .0
            .iter()
            .map(|c| i64::from_le_bytes(*c))
            .collect(),
        Dtype::I32 => bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|c| i64::from(i32::from_le_bytes(*c)))
            .collect(),
        other => return Err(refuse(format!("is {other:?}"), "write it as I64")),
    };
    let bad = wide.iter().position(|id| !(0..vocab as i64).contains(id));
    if let Some(at) = bad {
        let what = format!(
            "holds token {} at row {}, column {}, outside the vocabulary of {vocab}",
            wide[at],
            at / t,
            at % t
        );
        return Err(refuse(what, "tokenise with this model's tokenizer"));
    }
    Ok(Inputs {
        ids: wide.iter().map(|id| *id as i32).collect(),
        batch: b as u64,
        seq: t as u64,
    })
}

/// Written beside its place and moved there, so that a failure leaves nothing half done.
fn write(path: &Path, tensors: Vec<TensorOut<'_>>) -> Result<()> {
    CliError::not_a_file("--out", path)?;
    let partial = whole::beside(path);
    let done = write_safetensors(&partial, tensors, &[])
        .map_err(CliError::from)
        .and_then(|_| std::fs::rename(&partial, path).map_err(CliError::io("write", path)));
    if done.is_err() {
        let _ = std::fs::remove_file(&partial);
    }
    done
}
