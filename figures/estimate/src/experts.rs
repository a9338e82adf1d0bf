//! Models with experts that the estimator knows by name: their parameters, and how many fewer than the standard one. What ranks hold and send of experts is
//! estimated of jobs ([`super::routed`]).

use crossweave_zero::estimate::PUBLISHED;
use serde::Serialize;

/// A model with experts in numbers.
#[derive(Clone, Debug, Serialize)]
pub struct ModelWithExperts {
    /// The whole model.
    pub model: Whole,
    /// Parameters that every token passes through.
    pub dense: u64,
    /// Its experts.
    pub experts: OfExperts,
    /// The standard model of the same quality.
    pub standard: Standard,
}

/// The size of a model with experts.
#[derive(Clone, Debug, Serialize)]
pub struct Whole {
    /// Its published name.
    pub name: &'static str,
    /// Parameters by the formulas.
    pub params: u64,
    /// Parameters as its authors state them.
    pub published: f64,
    /// Layers.
    pub layers: u64,
    /// Width of the residual stream.
    pub hidden: u64,
}

/// The experts of a model.
#[derive(Clone, Debug, Serialize)]
pub struct OfExperts {
    /// Experts of each layer that has some.
    pub layers: &'static [u64],
    /// Parameters of all of them.
    pub params: u64,
    /// True where the dense MLP stays beside them.
    pub residual: bool,
}

/// A standard model against which one with experts is held.
#[derive(Clone, Debug, Serialize)]
pub struct Standard {
    /// Its published name.
    pub name: &'static str,
    /// Its parameters.
    pub params: f64,
    /// Parameters over those of the model without experts.
    pub times: f64,
}

/// The counts of a model of that name, in any case.
pub fn with_experts(name: &str) -> Option<ModelWithExperts> {
    let of = |name: &str| PUBLISHED.iter().find(|p| p.0.eq_ignore_ascii_case(name));
    let &(name, model, published, standard) = of(name)?;
    let whole = of(standard)?.1.params() as f64;
    Some(ModelWithExperts {
        dense: model.dense(),
        experts: OfExperts {
            layers: model.experts,
            params: model.sparse(),
            residual: model.residual,
        },
        standard: Standard {
            name: standard,
            params: whole,
            times: whole / model.params() as f64,
        },
        model: Whole {
            name,
            params: model.params(),
            published,
            layers: model.shape.layers,
            hidden: model.shape.hidden,
        },
    })
}
