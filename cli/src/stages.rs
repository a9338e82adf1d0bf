//! How a config cuts the model into pipeline stages, one answer for `train`, `plan` and `explain`; and that the plans of stages go together.

use crate::train_error::{Result, TrainError};
use crossweave_config::{Balance, Layers, Resolved};
use crossweave_engine::{DryRun, PipelineOrder, PipelineSpec, RankSpec, side_programs};
use crossweave_mesh::{Axis, Topology};
use crossweave_plan::axes::Representatives;
use crossweave_plan::{Facts, Plan, check_representative_side_programs, check_representatives};
use crossweave_tensor::UnitDecl;

/// The stages of a job; `None` where there is one. `speeds`: how fast each rank was found to
/// be, where that was measured.
///
/// # Errors
/// More stages than units, or numbers of units that are not the model's.
pub fn of(
    r: &Resolved,
    units: &[UnitDecl],
    dry: &DryRun,
    speeds: Option<&[f64]>,
) -> Result<Option<PipelineSpec>> {
    let mesh = &r.settings.mesh;
    let (stages, n) = (mesh.pp.max(1), units.len() as u64);
    if stages == 1 {
        return Ok(None);
    }
    if stages > n {
        return Err(TrainError::refused(
            format!(
                "mesh.pp: {stages} pipeline stages, and the model has {n} units; every stage needs one unit at least"
            ),
            format!("set it to {n} or less"),
        ));
    }
    let order = PipelineOrder::from_name(&mesh.pp_schedule).unwrap_or_default();
    if let Some(Layers::Each(each)) = mesh.layers() {
        return given(&each, n, order).map(Some);
    }
    let said = match r.settings.run.balance() {
        Some(Balance::Weights(w)) => Some(w),
        _ => None,
    };
    let weights = speeds.map(<[f64]>::to_vec).or(said);
    Ok(Some(match weights {
        Some(w) => {
            // All ranks of a stage take the same sequences: it is as fast as the slowest of them.
            let mut each = vec![f64::INFINITY; stages as usize];
            for (rank, w) in (0..r.mesh.world_size()).zip(w) {
                let stage = r.mesh.place(rank).at(Axis::Pp) as usize;
                each[stage] = each[stage].min(w);
            }
            PipelineSpec::weighted(&costs(units, dry), &each, order)
        }
        None => PipelineSpec::even(n as u32, stages as u32, order),
    }))
}

fn given(each: &[u64], n: u64, order: PipelineOrder) -> Result<PipelineSpec> {
    let sum = each.iter().fold(0u64, |a, b| a.saturating_add(*b));
    if sum != n {
        return Err(TrainError::refused(
            format!("mesh.pp_layers: {sum} units over the stages, and the model has {n}"),
            format!("give {n} in all: the embedding is one, each layer is one, the head is one"),
        ));
    }
    let mut start = 0u32;
    let stages = each.iter().map(|count| {
        let range = start..start + *count as u32;
        start = range.end;
        range
    });
    Ok(PipelineSpec {
        stages: stages.collect(),
        order,
    })
}

/// What the units cost against each other: the elements of the matrices a token meets, its own and those it is tied to, and attention's look at
/// the other tokens. The first unit looks rows up and multiplies nothing.
fn costs(units: &[UnitDecl], dry: &DryRun) -> Vec<f64> {
    let last = units.len() - 1;
    let matrices = |u: usize| -> u64 {
        let own = units[u].params.iter();
        let lent = units[u].borrowed.iter().map(|(o, p)| &units[*o].params[*p]);
        let all = own.chain(lent).filter(|p| p.shape.rank() > 1);
        all.map(|p| p.shape.numel()).sum()
    };
    let (batch, seq) = dry.shape;
    let one = |u: usize| -> f64 {
        match u {
            0 => 0.0,
            u if u == last => matrices(u) as f64,
            // Each token meets every other twice, as wide as the hidden state is.
            u => {
                let f = &dry.units[u];
                let element = (f.param_bytes / f.params.max(1)).max(1);
                let width = f.flow_bytes / (element * batch * seq).max(1);
                matrices(u) as f64 + (2 * seq * width) as f64
            }
        }
    };
    (0..units.len()).map(one).collect()
}

/// The stages in words: `0 to 2 | 3 to 5`.
pub fn in_words(spec: &PipelineSpec) -> String {
    let one = |r: &std::ops::Range<u32>| match r.end - r.start {
        1 => r.start.to_string(),
        _ => format!("{} to {}", r.start, r.end - 1),
    };
    let all: Vec<String> = spec.stages.iter().map(one).collect();
    all.join(" | ")
}

/// The stages as `mesh.pp_layers` has them.
pub fn as_key(spec: &PipelineSpec) -> String {
    let all: Vec<String> = spec
        .stages
        .iter()
        .map(|r| (r.end - r.start).to_string())
        .collect();
    all.join(",")
}

/// Holds the plans of the stages against each other, those of a mesh: each rank has the plan of its stage. The same of what each rank, asked
/// to do what `spec` says, does outside the step. A few ranks of each stage stand for all.
///
/// # Errors
/// Stages whose sends do not meet their receives, or that would wait for each other for ever.
pub fn agree(
    mesh: &Topology,
    stages: &[(Plan, Facts)],
    spec: impl Fn(u32) -> RankSpec,
) -> Result<()> {
    let few = Representatives::of(mesh);
    let plan_of = |rank: &u32| {
        let (plan, facts) = &stages[mesh.place(*rank).at(Axis::Pp) as usize];
        (plan, facts)
    };
    let ranks: Vec<_> = few.numbers().iter().map(plan_of).collect();
    check_representatives(&few, &ranks).map_err(crossweave_engine::Error::from)?;
    let side = ranks.iter().zip(few.numbers());
    let side = side.map(|((plan, facts), rank)| side_programs(&spec(*rank), plan, facts));
    let side: Vec<_> = side.collect();
    let each = side.iter().zip(&ranks);
    let each: Vec<_> = each.map(|(s, (_, facts))| (&s[..], *facts)).collect();
    Ok(check_representative_side_programs(&few, &each).map_err(crossweave_engine::Error::from)?)
}
