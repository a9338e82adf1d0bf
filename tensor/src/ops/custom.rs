//! A user's function on the tape.

use super::OpNode;
use crate::Cx;
use crate::block::Function;
use crate::error::{Result, shape_error};
use crate::tape::{Back, Origin, Var};

pub(crate) struct Node {
    f: Box<dyn Function>,
    pub ins: Vec<Var>,
    pub out: Var,
}

pub(crate) fn forward(cx: &mut Cx<'_>, mut f: Box<dyn Function>, ins: &[Var]) -> Result<Var> {
    let tensors = ins
        .iter()
        .map(|v| cx.val(*v).cloned())
        .collect::<Result<Vec<_>>>()?;
    let y = f.forward(cx.env, &tensors.iter().collect::<Vec<_>>())?;
    let node = cx.next_node();
    let out = cx.push_val(y, node, Origin::Own, false);
    ins.iter().for_each(|v| cx.save(*v));
    if let Some(c) = &mut cx.check {
        let types: Vec<_> = ins.iter().map(|v| c.vals[v.0 as usize]).collect();
        match f.spmd(&types) {
            Ok(ty) => c.vals[out.0 as usize] = ty,
            Err(why) => c.fault(format!("function: {why}")),
        }
    }
    cx.push_node(OpNode::Custom(Node {
        f,
        ins: ins.to_vec(),
        out,
    }));
    Ok(out)
}

impl Node {
    pub fn backward(&self, b: &mut Back<'_, '_>, nodes: &[OpNode]) -> Result<()> {
        let Some(dy) = b.take(self.out) else {
            return Ok(());
        };
        let tensors = self
            .ins
            .iter()
            .map(|v| b.val(*v, nodes))
            .collect::<Result<Vec<_>>>()?;
        let grads = self
            .f
            .backward(b.env, &tensors.iter().collect::<Vec<_>>(), &dy)?;
        if grads.len() != self.ins.len() {
            return shape_error(format!(
                "function: {} gradients for {} inputs",
                grads.len(),
                self.ins.len()
            ));
        }
        for (v, g) in self.ins.iter().zip(grads) {
            if let Some(g) = g {
                b.give(*v, g)?;
            }
        }
        Ok(())
    }
}
