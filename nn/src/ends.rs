//! The first block and the last: token embedding, and head with the loss.

use crate::desc::Model;
use crate::lora::{Adapter, Adapters};
use crate::parts::{Declare, Normed};
use crossweave_tensor::{Block, Builder, Cx, Flow, Init, Lookup, Param, Pointwise, Result};

struct Embed {
    table: Param,
    project: Option<Param>,
    positions: Option<Param>,
    lookup: Lookup,
    scale: Option<Pointwise>,
    norm: Option<Normed>,
    dropout: f64,
}

/// Declares the embedding.
pub fn embed(b: &mut Builder, m: &Model) {
    let e = &m.stack.embed;
    b.unit_named("embed", e.prefix, |u| {
        let std = Init::Normal(m.init.std as f32);
        let table = u.param(e.table, &[m.vocab, m.table_width()], std);
        let project = e
            .project
            .map(|(width, name)| u.param(&format!("{name}.weight"), &[m.width, width], std));
        let positions = e
            .positions
            .map(|p| u.param(p.table, &[p.rows, m.width], std));
        let mut d = Declare::new(u, m.init.std, false);
        let norm = e.norm.map(|n| d.norm(&n, m.width, 1));
        Embed {
            table,
            project,
            positions,
            lookup: Lookup {
                padding: e.padding,
                first_position: e.positions.map_or(0, |p| p.first),
            },
            scale: (e.scale != 0.0).then(|| Pointwise::scale(e.scale)),
            norm,
            dropout: e.dropout,
        }
    });
}

impl Block for Embed {
    fn forward(&self, cx: &mut Cx<'_>, _: Flow) -> Result<Flow> {
        let mut x = match self.project {
            None => cx.embedding_as(self.table, self.positions, self.lookup)?,
            Some(w) => {
                let x = cx.embedding_as(self.table, None, self.lookup)?;
                let x = cx.linear(x, w, None)?;
                match self.positions {
                    Some(p) => cx.add_positions(x, p, self.lookup)?,
                    None => x,
                }
            }
        };
        if let Some(scale) = &self.scale {
            x = cx.pointwise(scale, &[x])?;
        }
        let x = Normed::maybe(self.norm, cx, x)?;
        Ok(Flow(vec![cx.dropout(x, self.dropout)?]))
    }
}

struct Head {
    norm: Option<Normed>,
    project: Option<Param>,
    lm: Param,
    bias: Option<Param>,
    scale: Option<Pointwise>,
    cap: Option<Pointwise>,
    adapter: Option<Adapter>,
}

/// Declares the head.
pub fn head(b: &mut Builder, m: &Model, all: &mut Adapters) {
    let h = &m.head;
    b.unit_named("head", "", |u| {
        let std = Init::Normal(m.init.std as f32);
        let mut d = Declare::new(u, m.init.std, false);
        let norm = h.norm.map(|n| d.norm(&n, m.width, 1));
        let name = |part: &str| format!("{}.{part}", h.lm);
        let width = m.table_width();
        let project = (width != m.width).then(|| {
            let name = format!("{}.weight", h.project);
            u.param(&name, &[width, m.width], std)
        });
        let bias = h
            .bias
            .then(|| u.param(&name("bias"), &[m.vocab], Init::Zeros));
        // Own parameters come before borrowed ones.
        let adapter = all.head(u, h.lm, [width, m.vocab]);
        let tied = h.tied.then(|| u.borrow(&m.table())).flatten();
        let lm = tied.unwrap_or_else(|| u.param(&name("weight"), &[m.vocab, width], std));
        Head {
            norm,
            project,
            lm,
            bias,
            scale: (h.scale != 0.0).then(|| Pointwise::scale(h.scale)),
            cap: (h.cap > 0.0).then(|| Pointwise::soft_cap(h.cap)),
            adapter,
        }
    });
}

impl Block for Head {
    fn forward(&self, cx: &mut Cx<'_>, flow: Flow) -> Result<Flow> {
        let n = Normed::maybe(self.norm, cx, flow.0[0])?;
        let n = match self.project {
            Some(w) => cx.linear(n, w, None)?,
            None => n,
        };
        let logits = cx.linear(n, self.lm, self.bias)?;
        let mut logits = Adapter::add_some(self.adapter, cx, n, logits)?;
        for f in [&self.scale, &self.cap].into_iter().flatten() {
            logits = cx.pointwise(f, &[logits])?;
        }
        if !cx.has_targets() {
            return Ok(Flow(vec![logits]));
        }
        Ok(Flow(vec![cx.cross_entropy(logits)?]))
    }
}
