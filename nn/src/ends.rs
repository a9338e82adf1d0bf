//! The first block and the last: token embedding, and head with the loss. Where the vocabulary is cut over ranks, each has rows of both.

use crate::desc::{Decoder, Model};
use crate::distill::{Distill, Role};
use crate::experts::Routers;
use crate::lora::{Adapter, Adapters};
use crate::pair::Answer;
use crate::parts::{Curve, Declare, Lin, Normed};
use crate::split::{self, Cut};
use crossweave_tensor::ops::{images, pair};
use crossweave_tensor::{
    Block, Builder, Cx, Flow, Init, Lookup, Param, Pointwise, Result, Unit, Var, Vocabulary,
};

/// A table of the vocabulary, and how it is cut over ranks.
struct Table {
    rows: Param,
    over: Option<Vocabulary>,
}

impl Table {
    /// Returns the rows that the tokens look up, with the learned positions of their places.
    fn look_up(&self, cx: &mut Cx<'_>, pos: Option<Param>, form: Lookup) -> Result<Var> {
        match &self.over {
            Some(v) => v.embedding(cx, self.rows, pos, form),
            None => {
                let x = cx.embedding_as(self.rows, pos, form)?;
                split::to_hidden(cx, x)
            }
        }
    }
}

/// Cuts a parameter whose first dim is the vocabulary, where that is cut.
fn split(u: &mut Unit<'_>, p: Param, over: Option<&Vocabulary>) -> Param {
    match over {
        Some(v) => v.split(u, p),
        None => p,
    }
}

struct Embed {
    table: Table,
    project: Option<Param>,
    positions: Option<Param>,
    kinds: Option<(Param, u64)>,
    lookup: Lookup,
    scale: Option<Pointwise>,
    norm: Option<Normed>,
    dropout: f64,
    /// Features of images flow in, and stand at the places of their token.
    sees: bool,
}

/// Declares the embedding.
pub fn embed(b: &mut Builder, m: &Model, over: Option<&Vocabulary>) {
    let e = &m.stack.embed;
    b.unit_named("embed", e.prefix, |u| {
        let std = Init::Normal(m.init.std as f32);
        let rows = u.param(e.table, &[m.vocab, m.table_width()], std);
        let table = Table {
            rows: split(u, rows, over),
            over: over.cloned(),
        };
        let project = e.project.map(|(width, name)| {
            let w = u.param(&format!("{name}.weight"), &[m.width, width], std);
            u.along_tokens(w)
        });
        let positions = e.positions.map(|p| {
            let table = u.param(p.table, &[p.rows, m.width], std);
            // Without a projection they are looked up beside the rows, of all tokens.
            match project {
                Some(_) => u.along_tokens(table),
                None => table,
            }
        });
        let kinds = e.kinds.map(|k| {
            let table = u.param(k.table, &[k.rows, m.width], std);
            (u.along_tokens(table), k.read)
        });
        let mut d = Declare::new(u, m.init.std, false);
        let norm = e.norm.map(|n| d.hidden_norm(&n, m.width));
        let columns = match e.kinds.map_or(0, |k| k.read) {
            0 => [0, m.decoder.as_ref().map_or(0, |d| d.read)],
            read => pair::tokens(read),
        };
        Embed {
            table,
            project,
            positions,
            kinds,
            lookup: Lookup {
                padding: e.padding,
                first_position: e.positions.map_or(0, |p| p.first),
                columns,
            },
            scale: (e.scale != 0.0).then(|| Pointwise::scale(e.scale)),
            norm,
            dropout: e.dropout,
            sees: m.vision.is_some(),
        }
    });
}

impl Block for Embed {
    fn forward(&self, cx: &mut Cx<'_>, flow: Flow) -> Result<Flow> {
        let mut x = match self.project {
            None => self.table.look_up(cx, self.positions, self.lookup)?,
            Some(w) => {
                let x = self.table.look_up(cx, None, self.lookup)?;
                let x = cx.linear(x, w, None)?;
                match self.positions {
                    Some(p) => cx.add_positions(x, p, self.lookup)?,
                    None => x,
                }
            }
        };
        if self.sees {
            let features = images::placed(cx, flow.0[0])?;
            x = cx.add_into(x, features)?;
        }
        x = match self.kinds {
            None => x,
            Some((table, 0)) => cx.add_first_row(x, table)?,
            Some((table, read)) => {
                let columns = pair::kinds(read);
                let form = Lookup {
                    columns,
                    ..Lookup::default()
                };
                let kinds = cx.embedding_as(table, None, form)?;
                cx.add_into(x, kinds)?
            }
        };
        if let Some(scale) = &self.scale {
            x = cx.pointwise(scale, &[x])?;
        }
        let x = Normed::maybe(self.norm, cx, x)?;
        Ok(Flow(vec![cx.dropout(x, self.dropout)?]))
    }
}

/// Between an encoder and its decoder.
struct Join {
    norm: Normed,
    memory_dropout: f64,
    table: Table,
    lookup: Lookup,
    dropout: f64,
}

/// Declares what ends an encoder and begins a decoder.
pub fn join(b: &mut Builder, m: &Model, decoder: &Decoder, over: Option<&Vocabulary>) {
    b.unit_named("decoder", "", |u| {
        let mut d = Declare::new(u, m.init.std, false);
        let norm = d.norm(&decoder.norm, m.width, 1);
        let table = m.table();
        let borrowed = u.borrow(&table);
        // The embedding is declared before.
        let rows = borrowed.unwrap_or_else(|| {
            let own = u.param(&table, &[m.vocab, m.width], Init::Zeros);
            split(u, own, over)
        });
        Join {
            norm,
            memory_dropout: decoder.dropout,
            table: Table {
                rows,
                over: over.cloned(),
            },
            lookup: Lookup {
                padding: m.stack.embed.padding,
                columns: [decoder.read, 0],
                ..Lookup::default()
            },
            dropout: m.stack.embed.dropout,
        }
    });
}

impl Block for Join {
    fn forward(&self, cx: &mut Cx<'_>, flow: Flow) -> Result<Flow> {
        let memory = self.norm.run(cx, flow.0[0])?;
        let memory = cx.dropout(memory, self.memory_dropout)?;
        let x = self.table.look_up(cx, None, self.lookup)?;
        let x = cx.dropout(x, self.dropout)?;
        Ok(Flow(vec![x, memory]))
    }
}

struct Head {
    dropout: f64,
    norm: Option<Normed>,
    before: Option<(Lin, Curve, Normed)>,
    answer: Option<Answer>,
    project: Option<Param>,
    lm: Param,
    bias: Option<Param>,
    over: Option<Vocabulary>,
    scale: Option<Pointwise>,
    cap: Option<Pointwise>,
    adapters: Vec<Option<Adapter>>,
    adapter: Option<Adapter>,
    distill: Option<Distill>,
    /// It teaches, and a student's head takes each rank's logits.
    teaches: bool,
    routers: Option<Routers>,
}

/// Declares the head.
pub fn head(
    b: &mut Builder,
    m: &Model,
    all: &mut Adapters,
    role: Role<'_>,
    over: Option<&Vocabulary>,
) {
    let h = &m.head;
    b.unit_named("head", "", |u| {
        let std = Init::Normal(m.init.std as f32);
        let mut d = Declare::new(u, m.init.std, false);
        let norm = h.norm.map(|n| d.hidden_norm(&n, m.width));
        let before = h.before.map(|b| {
            let lin = d.hidden_linear(b.linear, [m.width; 2], m.init.std as f32);
            (lin, Curve::of(b.act), d.hidden_norm(&b.norm, m.width))
        });
        let answer = h.pair.and_then(|p| Answer::declare(d.u, &p, m.width, std));
        let width = m.table_width();
        let project = (width != m.width).then(|| {
            let name = format!("{}.weight", h.project);
            let w = d.u.param(&name, &[width, m.width], std);
            d.u.along_tokens(w)
        });
        let bias = h.bias.map(|name| {
            let b = d.u.param(name, &[m.vocab], Init::Zeros);
            split(d.u, b, over)
        });
        // Own parameters come before borrowed ones.
        let (u, adapters) = d.adapters(all);
        let cut = over.map_or(Cut::Not, |_| Cut::Columns);
        let adapter = all.head(u, h.lm, [width, m.vocab], cut);
        let tied = h.tied.then(|| u.borrow(&m.table())).flatten();
        let lm = tied.unwrap_or_else(|| {
            let name = format!("{}.weight", h.lm);
            let own = u.param(&name, &[m.vocab, width], std);
            split(u, own, over)
        });
        Head {
            dropout: h.dropout,
            norm,
            before,
            answer,
            project,
            lm,
            bias,
            over: over.cloned(),
            scale: (h.scale != 0.0).then(|| Pointwise::scale(h.scale)),
            cap: (h.cap > 0.0).then(|| Pointwise::soft_cap(h.cap)),
            adapters,
            adapter,
            distill: match role {
                Role::Student(d) => Some(d.clone()),
                Role::Alone | Role::Teacher => None,
            },
            teaches: matches!(role, Role::Teacher),
            routers: Routers::of(m),
        }
    });
}

impl Block for Head {
    fn forward(&self, cx: &mut Cx<'_>, flow: Flow) -> Result<Flow> {
        let n = Normed::maybe(self.norm, cx, flow.0[0])?;
        let mut n = cx.dropout(n, self.dropout)?;
        let answer = self.answer.as_ref().map(|a| a.run(cx, n)).transpose()?;
        if let Some((lin, act, norm)) = &self.before {
            let x = lin.run(cx, &self.adapters, n)?;
            let x = act.run(cx, x)?;
            n = norm.run(cx, x)?;
        }
        let n = match self.project {
            Some(w) => cx.linear(n, w, None)?,
            None => n,
        };
        let (n, entered) = match &self.over {
            Some(_) => (n, Cut::Columns.enter(cx, n)?),
            None => {
                let n = split::to_whole(cx, n)?;
                (n, n)
            }
        };
        let logits = cx.linear(entered, self.lm, self.bias)?;
        let mut logits = Adapter::add_some(self.adapter, cx, n, logits)?;
        for f in [&self.scale, &self.cap].into_iter().flatten() {
            logits = cx.pointwise(f, &[logits])?;
        }
        if !cx.has_targets() {
            if let Some(v) = self.over.as_ref().filter(|_| !self.teaches) {
                logits = v.whole(cx, logits)?;
            }
            return Ok(Flow([logits].into_iter().chain(answer).collect()));
        }
        let heard = self.distill.as_ref().filter(|d| d.teaches(cx.env));
        let loss = match (heard, flow.0.get(1), &self.over) {
            (Some(d), Some(t), Some(v)) => v.distilled(cx, [logits, *t], &d.loss)?,
            (Some(d), Some(teacher), None) => cx.distilled(logits, *teacher, &d.loss)?,
            (.., Some(v)) => v.cross_entropy(cx, logits)?,
            _ => cx.cross_entropy(logits)?,
        };
        if let Some(routers) = &self.routers {
            let beside = routers.losses(cx, &flow.0)?;
            return Ok(Flow([loss].into_iter().chain(beside.0).collect()));
        }
        let Some(answer) = answer else {
            return Ok(Flow(vec![loss]));
        };
        let of_pairs = pair::loss(cx, answer)?;
        Ok(Flow(vec![cx.add(loss, of_pairs)?]))
    }
}
