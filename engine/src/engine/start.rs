//! Setting a rank up: its plan and program, memory, streams, groups and the host's thread.

use super::Engine;
use crate::blocks::Blocks;
use crate::caches::Caches;
use crate::devices::{Devices, Links};
use crate::error::{Error, Result};
use crate::graphs::Graphs;
use crate::groups::MeshGroups;
use crate::in_flight::InFlight;
use crate::lanes::Lanes;
use crate::pipeline::Pipe;
use crate::scale::Scaling;
use crate::timeline::Diagnostics;
use crate::upload::{Cuts, images, input_words, upload_consts};
use crate::values::Values;
use crate::whole::Whole;
use crossweave_machine::Machine;
use crossweave_mesh::{Channel, GroupKey, Mesh};
use crossweave_offload::{Executor, FileTier};
use crossweave_plan::StepKind;
use crossweave_planner::{Lowered, OffloadDevice, RankSpec, StepGroups, Units};
use crossweave_program::{Room, UnitState};
use crossweave_state::{Sharers, States, Together};
use std::cell::Cell;

impl Engine {
    /// Allocates the state of a rank that is prepared, makes its streams and joins its groups. `units` are those it was prepared from.
    ///
    /// # Errors
    /// What the device cannot do; memory, streams, groups or files that cannot be had.
    pub fn new(
        devices: Devices,
        mut lowered: Lowered,
        units: Units,
        links: Links<'_>,
    ) -> Result<Engine> {
        let device = &devices.compute;
        let spec = lowered.spec.clone();
        crate::quantized::check(device, &spec)?;
        let model = units.iter().map(|u| u.params.clone()).collect();
        let units = units.of_stage(&spec)?;
        let tables = std::mem::take(&mut lowered.state);
        let whole = Whole::new(&tables);

        let steps = lowered.plan.steps.iter();
        let gathers = steps
            .map(|s| &s.op)
            .any(|op| matches!(op, StepKind::Gather { .. }));
        let lanes = Lanes::new(device, &spec, gathers).map_err(at(&spec, "set-up"))?;
        let program = std::mem::take(&mut lowered.program);
        let allocating = at(&spec, "allocating parameters and moments");
        let mut machine = Machine::new(device, program).map_err(&allocating)?;
        let joined = lowered.groups.joined();
        let mesh = Mesh::new(
            device,
            links.boot,
            spec.place,
            &joined,
            &links.mesh_options(),
        )
        .map_err(at(&spec, "joining the group dp"))?;
        machine.join(&mesh).map_err(at(&spec, "set-up"))?;
        let pipe = Pipe::new(device, &lowered, &mesh);
        let pipe = pipe.map_err(at(&spec, "set-up"))?;
        let together = together(&spec, &lowered.groups, &tables, &mesh);
        let together = together.map_err(at(&spec, "set-up"))?;
        let with = (together, spec.seed);
        let state = States::new(&machine, &units, tables, model, with).map_err(&allocating)?;
        state.clear(&lanes.compute).map_err(at(&spec, "set-up"))?;
        let consts = upload_consts(&lanes.compute, &units);
        let consts = consts.map_err(at(&spec, "uploading tables"))?;
        let host = start_host(&devices, &spec, &mut lowered);
        let host = host.map_err(at(&spec, "opening the offloaded state"))?;

        // Images, and where each token's feature is.
        let seen = images(&units).map_or(0, |i| spec.rows.batch * (spec.rows.seq_len + i.words()));
        let words = input_words(&Cuts::of(&units), &spec.rows) + seen;
        let input_bytes = 4 * words * u64::from(spec.own_micro_batches());
        let in_flight = InFlight::new(device, input_bytes).map_err(at(&spec, "set-up"))?;
        let scaling = Scaling::new(&spec);
        if let Some(seed) = machine.buffer(lowered.memory.seed) {
            let bits = u64::from((scaling.seed() as f32).to_bits());
            let filled = lanes.compute.fill(seed.all(), bits, 4);
            filled.map_err(at(&spec, "set-up"))?;
        }
        let beside = lowered.groups.blocks.iter();
        let groups = match beside.map(|g| g.channel).any(|c| c == Channel::Blocks) {
            true => MeshGroups::with_beside(mesh, device).map_err(at(&spec, "set-up"))?,
            false => MeshGroups::new(mesh),
        };
        let groups = groups.of_units(units.iter().map(|u| &*u.name));
        let graphs = Graphs::new(device, links.graphs).map_err(at(&spec, "set-up"))?;
        Ok(Engine {
            values: Values::new(units.len(), spec.own_micro_batches() as usize),
            blocks: Blocks {
                caches: Caches::new(units.len()),
                units,
                consts,
                graphs,
            },
            state,
            whole,
            lanes,
            groups,
            host,
            pipe,
            lowered,
            machine,
            scaling,
            in_flight,
            diagnostics: Diagnostics::default(),
            step: 0,
        })
    }
}

/// Says what was being done before the first step.
fn at<E: Into<crossweave_tensor::Error>>(
    spec: &RankSpec,
    what: &str,
) -> impl Fn(E) -> Error + use<E> {
    let (rank, at) = (spec.place.job_rank(), what.to_string());
    move |e| Error::Run {
        rank,
        step: 0,
        at: at.clone(),
        source: e.into(),
    }
}

/// This rank among those that read state together: all of the job where there are pipeline stages or ranks that
/// hold other parts of parameters, or those that own slices.
fn together(
    spec: &RankSpec,
    groups: &StepGroups,
    tables: &[UnitState],
    mesh: &Mesh,
) -> crossweave_hal::Result<Together> {
    let cut = tables.iter().any(|t| t.flat.cut.is_some());
    let group = |key: Option<&GroupKey>| key.map(|g| mesh.group_ref(g)).transpose();
    let mut sharers = vec![];
    for o in &groups.owners {
        sharers.push(Sharers {
            axes: o.axes,
            gather: group(o.gather.as_ref().filter(|_| cut))?,
            parts: group(o.parts.as_ref())?,
        });
    }
    let parts = sharers.iter().any(|s| s.parts.is_some());
    let all = match spec.pipeline.is_some() || parts {
        true => Some(mesh.group_ref(spec.everyone())?),
        false => sharers.first().and_then(|s| s.gather),
    };
    Ok(Together {
        place: spec.place,
        all,
        sharers,
        leading: Cell::new(false),
    })
}

/// Allocates the host's side and starts its thread, where something rests off the device.
fn start_host(
    devices: &Devices,
    spec: &RankSpec,
    lowered: &mut Lowered,
) -> crossweave_tensor::Result<Option<Executor>> {
    let Some((offload, how)) = spec.offload.as_ref().and_then(|o| Some((o, o.optimizer?))) else {
        return Ok(None);
    };
    let rooms: Vec<Room> = std::mem::take(&mut lowered.rooms);
    let files = (how.tier == OffloadDevice::Nvme).then(|| {
        let (settings, layer) = devices.files.open(&offload.files);
        FileTier {
            folder: offload.folder.clone(),
            settings,
            layer,
        }
    });
    let name = format!("host-{}", spec.place.job_rank());
    let devices = (&devices.compute, &devices.host);
    Executor::start(devices, rooms, (Lowered::WORDS, how.pin), files, name).map(Some)
}
