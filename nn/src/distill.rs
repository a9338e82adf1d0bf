//! A student beside its teacher: the teacher's units run between the student's last layer and its head, frozen ([`Group::Base`]), and give the
//! head their logits. They are units like others: the mesh, the ZeRO stage and offload hold for them too; what they compute is kept for nobody's
//! backward.

use crate::desc::Model;
use crate::lora::Adapters;
use crate::{declared, split};
use crossweave_tensor::{
    Axis, Batch, Block, Cx, Distillation, Env, Flow, GradSink, Group, Place, Result, UnitDecl,
    aside,
};
use std::sync::Arc;

/// The beginning of the names of a teacher's units and parameters.
pub const TEACHER: &str = "teacher.";

/// The part of a model in a job.
#[derive(Clone, Copy, Default)]
pub(crate) enum Role<'a> {
    /// It learns from its targets.
    #[default]
    Alone,
    /// It learns from a teacher too.
    Student(&'a Distill),
    /// It teaches: of its logits each rank keeps those of its rows of the vocabulary.
    Teacher,
}

/// The loss by which a teacher teaches.
#[derive(Clone)]
pub struct Distill {
    /// The loss.
    pub loss: Distillation,
    /// Steps that it lasts; `None` = all.
    pub stop_step: Option<u64>,
    /// Afterwards, and outside training, the teacher computes nothing. Not over pipeline stages, which exchange the same values in every step.
    pub rests: bool,
}

impl Distill {
    /// Does the student hear the teacher in the step under way?
    pub(crate) fn teaches(&self, env: &Env<'_>) -> bool {
        // Steps count from 1 while they run.
        env.training && self.stop_step.is_none_or(|stop| env.key.step <= stop)
    }
}

/// A unit of the teacher's: it takes what the student has, and hands it on.
struct Frozen {
    inner: Arc<dyn Block>,
    /// The student's units come before.
    first: bool,
    how: Distill,
}

impl Block for Frozen {
    fn forward(&self, cx: &mut Cx<'_>, flow: Flow) -> Result<Flow> {
        let (student, before) = flow.0.split_at(1);
        let mut out = student.to_vec();
        if self.how.rests && !self.how.teaches(cx.env) {
            return Ok(Flow(out));
        }
        // Targets ask for a loss, and these are to be logits.
        let batch = Batch {
            targets: None,
            ..cx.env.batch.clone()
        };
        let env = Env {
            batch: &batch,
            grads: &GradSink::none(),
            training: false,
            ..*cx.env
        };
        let ins = if self.first { &[] } else { before };
        let outs = aside(cx, &env, ins, |alone, ins| {
            Ok(self.inner.forward(alone, Flow(ins))?.0)
        })?;
        out.extend(outs);
        Ok(Flow(out))
    }
}

/// The teacher's units where the student's vocabulary is cut over the ranks of a place: its own is cut alike, and its layers where they can be.
/// Its logits stay where they are made.
fn beside(teacher: &Model, place: &Place) -> Vec<UnitDecl> {
    let tp = place.length(Axis::Tp).into();
    let layers = match split::check(teacher, tp) {
        Ok(()) => *place,
        Err(_) => Place::alone(),
    };
    declared(
        teacher,
        &mut Adapters::default(),
        [place, &layers],
        Role::Teacher,
    )
}

/// Puts the units of `teacher` before the last of `student`, which hears it.
pub(crate) fn taught(student: &mut Vec<UnitDecl>, teacher: &Model, how: &Distill, place: &Place) {
    let Some(head) = student.pop() else {
        return;
    };
    let from = student.len();
    for (i, mut u) in beside(teacher, place).into_iter().enumerate() {
        u.name = format!("{TEACHER}{}", u.name);
        for p in &mut u.params {
            p.name = format!("{TEACHER}{}", p.name);
            p.group = Group::Base;
        }
        u.borrowed.iter_mut().for_each(|(unit, _)| *unit += from);
        u.block = Arc::new(Frozen {
            inner: u.block,
            first: i == 0,
            how: how.clone(),
        });
        student.push(u);
    }
    student.push(head);
}
