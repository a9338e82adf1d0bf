//! The teacher of a distillation (`distill`): a frozen model whose units run beside the student's.

use crate::caches::Caches;
use crate::error::{JobError, Result};
use crate::hub::{self, Part};
use crate::model::{self, Source, Teacher};
use crossweave_config::Resolved;
use crossweave_data::Columns;
use crossweave_nn::Distill;
use crossweave_tensor::Distillation;

/// From now on `student` learns from the teacher that the config names, if it names one. `longest`: tokens of a sample that one stack reads;
/// `columns`: what those of a row are, where they are not one text.
///
/// # Errors
/// A folder that is no model's; a teacher that gives other logits than the student, or cannot read its samples.
pub fn hear(
    student: &mut Source,
    r: &Resolved,
    longest: u64,
    columns: Option<Columns>,
    caches: &Caches,
) -> Result<()> {
    let Some(asked) = &r.settings.distill else {
        return Ok(());
    };
    let key = "distill.teacher";
    let dir = hub::folder(&asked.teacher, key, Part::Model, caches)?;
    let Source {
        spec,
        folder,
        adapter,
        ..
    } = model::open_folder(&dir)?;
    let refuse = |what: String, fix: &str| Err(JobError::refused(format!("{key}: {what}"), fix));
    if adapter.is_some() {
        let what = format!("{} is an adapter", dir.display());
        return refuse(
            what,
            "name a whole model; `crossweave checkpoint export --merge` makes one of an adapter",
        );
    }
    let Some(folder) = folder else {
        return refuse(
            format!("{} has no weights", dir.display()),
            "name a model's folder",
        );
    };
    let (own, theirs) = (student.spec.model(), spec.model());
    if own.vocab != theirs.vocab {
        return refuse(
            format!(
                "{} has a vocabulary of {}, and the student's is {}",
                dir.display(),
                theirs.vocab,
                own.vocab
            ),
            "name a teacher of the same tokenizer, or set model.vocab_size to the teacher's",
        );
    }
    if [&student.spec, &spec].iter().any(|s| s.family().sees()) {
        return refuse(
            "a model that reads images neither teaches nor learns from one".into(),
            "remove distill",
        );
    }
    if [own, theirs].iter().any(|m| m.routed().next().is_some()) {
        return refuse(
            "a model with experts neither teaches nor learns from a teacher yet".into(),
            "remove distill",
        );
    }
    if student.spec.family().predicts() != spec.family().predicts() {
        return refuse(
            format!(
                "{} is a {} model, and what it predicts is not what a {} model predicts",
                dir.display(),
                spec.family().name,
                student.spec.family().name
            ),
            "name a teacher of the student's kind",
        );
    }
    if longest > theirs.positions {
        return refuse(
            format!(
                "samples of {longest} tokens do not fit a teacher of {} positions",
                theirs.positions
            ),
            "shorten data.seq_len, or name another teacher",
        );
    }
    let spec = match columns {
        Some(Columns::Both([read, _])) => spec.reading(read as u64),
        Some(Columns::Pair(p)) => spec.pairing(p.tokens as u64, false),
        None => spec,
    };
    let how = Distill {
        loss: Distillation::new(asked.alpha, asked.temperature),
        stop_step: asked.stop_step,
        rests: r.settings.mesh.pp <= 1,
    };
    student.teacher = Some(Teacher { spec, folder, how });
    Ok(())
}
