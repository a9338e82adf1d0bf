//! A student beside its teacher: the teacher's units run between the student's last layer and its head, frozen ([`Group::Base`]), and give the
//! head their logits. They are units like others: the mesh, the ZeRO stage and offload hold for them too; what they compute is kept for nobody's
//! backward.

use crate::desc::Model;
use crate::units;
use crossweave_tensor::{
    Batch, Block, Cx, Distillation, Env, Flow, GradSink, Group, Result, UnitDecl,
};
use std::sync::Arc;

/// The beginning of the names of a teacher's units and parameters.
pub const TEACHER: &str = "teacher.";

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
        let mut alone = Cx::new(&env);
        let ins = match self.first {
            true => vec![],
            false => before
                .iter()
                .map(|v| Ok(alone.input(cx.val(*v)?.clone())))
                .collect::<Result<_>>()?,
        };
        let outs = self.inner.forward(&mut alone, Flow(ins))?;
        for v in outs.0 {
            let t = alone.val(v)?.clone();
            out.push(cx.input(t));
        }
        Ok(Flow(out))
    }
}

/// Puts the units of `teacher` before the last of `student`, which hears it.
pub(crate) fn taught(student: &mut Vec<UnitDecl>, teacher: &Model, how: &Distill) {
    let Some(head) = student.pop() else {
        return;
    };
    let from = student.len();
    for (i, mut u) in units(teacher).into_iter().enumerate() {
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
