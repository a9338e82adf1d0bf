//! A vision tower and its projector: patches of the images to features that stand at the places of a token. Its layers are those of every model.

use crate::desc::{Model, Vision};
use crate::layer;
use crate::lora::{Adapter, Adapters};
use crate::parts::{Curve, Declare, Lin, Normed};
use crossweave_tensor::ops::images;
use crossweave_tensor::{
    Block, Builder, Cx, Flow, GradSink, Images, Init, Lookup, Param, Place, Result, UnitDecl,
};
use std::sync::Arc;

/// The block that makes the features of the patches, which go into the layers.
struct Patches {
    /// The product over patches, the class token, positions.
    tables: [Param; 3],
    norm: Normed,
}

/// From the tower's width to that of the language model.
struct Projector {
    drops_class: bool,
    layers: [Lin; 2],
    act: Curve,
    adapters: Vec<Option<Adapter>>,
}

/// Declares the tower and the projector.
pub fn declare(b: &mut Builder, m: &Model, v: &Vision, all: &mut Adapters) {
    let (tower, width) = (&*v.tower, v.tower.width);
    b.unit(v.prefix, |u| {
        let std = Init::Normal(tower.init.std as f32);
        let [colours, _, patch] = v.image;
        let [product, class, positions] = v.tables;
        let tables = [
            u.param(product, &[width, colours, patch, patch], std),
            u.param(class, &[width], std),
            u.param(positions, &[v.patches() + 1, width], std),
        ];
        u.reads(sample(v));
        let norm = Declare::new(u, tower.init.std, false).norm(&v.norm, width, 1);
        Patches { tables, norm }
    });
    layer::layers(b, tower, all, &Place::alone());
    // A unit of their own, so that nothing of them has room for a gradient.
    b.unit_named("vision_rest", "", |u| {
        let mut d = Declare::new(u, tower.init.std, false);
        for (name, shape) in &v.kept {
            d.kept(name, shape);
        }
        Passed
    });
    b.unit_named("projector", "", |u| {
        let std = m.init.std;
        let mut d = Declare::new(u, std, false);
        let [first, second] = v.project;
        let layers = [
            d.linear(first, [width, m.width], std as f32),
            d.linear(second, [m.width; 2], std as f32),
        ];
        Projector {
            drops_class: v.drops_class,
            layers,
            act: Curve::of(v.act),
            adapters: d.adapters(all).1,
        }
    });
}

/// Returns the part of a sample that the tower reads.
fn sample(v: &Vision) -> Images {
    Images {
        token: v.token as i32,
        row: v.images,
        patches: v.patches(),
        patch: v.patch(),
        features: v.features(),
    }
}

impl Block for Patches {
    fn forward(&self, cx: &mut Cx<'_>, _: Flow) -> Result<Flow> {
        let [product, class, positions] = self.tables;
        let x = images::patches(cx)?;
        let x = cx.linear(x, product, None)?;
        let x = images::with_first(cx, x, class)?;
        let x = cx.add_positions(x, positions, Lookup::default())?;
        Ok(Flow(vec![self.norm.run(cx, x)?]))
    }
}

/// The block that passes on what it is given.
struct Passed;

impl Block for Passed {
    fn forward(&self, _: &mut Cx<'_>, flow: Flow) -> Result<Flow> {
        Ok(flow)
    }
}

impl Block for Projector {
    fn forward(&self, cx: &mut Cx<'_>, flow: Flow) -> Result<Flow> {
        let mut x = flow.0[0];
        if self.drops_class {
            x = images::without_first(cx, x)?;
        }
        let [first, second] = &self.layers;
        let x = first.run(cx, &self.adapters, x)?;
        let x = self.act.run(cx, x)?;
        Ok(Flow(vec![second.run(cx, &self.adapters, x)?]))
    }
}

/// A unit that does not learn, and before which none does: of what it computes nothing is kept for a backward.
struct Still(Arc<dyn Block>);

impl Block for Still {
    fn forward(&self, cx: &mut Cx<'_>, flow: Flow) -> Result<Flow> {
        let env = crossweave_tensor::Env {
            grads: &GradSink::none(),
            ..*cx.env
        };
        let mut alone = Cx::new(&env);
        let before = flow.0.iter();
        let ins = before.map(|v| Ok(alone.input(cx.val(*v)?.clone())));
        let ins = ins.collect::<Result<_>>()?;
        let outs = self.0.forward(&mut alone, Flow(ins))?;
        let mut out = vec![];
        for v in outs.0 {
            let t = alone.val(v)?.clone();
            out.push(cx.input(t));
        }
        Ok(Flow(out))
    }
}

/// Makes the first units of a model with a tower, where they do not learn, leave nothing that waits
/// for a backward. Call it when everything that does not learn is marked so.
pub fn still(model: &Model, units: &mut [UnitDecl]) {
    if model.vision.is_none() {
        return;
    }
    let learns = |u: &UnitDecl| u.params.iter().any(|p| p.group.trains());
    let first = units.iter().position(learns).unwrap_or(0);
    for u in &mut units[..first] {
        u.block = Arc::new(Still(u.block.clone()));
    }
}
