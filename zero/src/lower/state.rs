//! The state table of a unit, from its flat: what lies where on this rank, in the form in which all that reads and writes state goes by it.

use super::{HostShare, Optim, ParamMemory};
use crossweave_flat::Flat;
use crossweave_flat::Partition;
use crossweave_flat::Residency;
use crossweave_optim::StateName;
use crossweave_optim::update::{StateSlice, codec};
use crossweave_program::{
    DType, FlatState, ParamState, Place, Room, Saved, StateKind, StateRun, UnitState,
};

/// The optimizers' names of states, and those of the table.
const KINDS: [(StateName, StateKind); 5] = [
    (StateName::Moment1, StateKind::Moment1),
    (StateName::Moment2, StateKind::Moment2),
    (StateName::Rows, StateKind::Rows),
    (StateName::Cols, StateKind::Cols),
    (StateName::Ema, StateKind::Ema),
];

/// The table of unit `u` of `units`: `room` is what the host holds of it, where it holds any.
pub fn unit_state(
    (u, units): (usize, usize),
    f: &Flat,
    memory: &ParamMemory,
    optim: &Optim,
    room: Option<&Room>,
) -> UnitState {
    let p = &f.place;
    let resident = p.residency == Residency::Resident;
    let cut = |whole: u64, sharded: bool| (sharded && p.ranks > 1).then_some(whole);
    // Masters of the host's part are not here; where the parameters are the values, they are.
    let value = match p.compute {
        DType::F32 => Place {
            at: memory.value.at + 4 * f.host,
            ..memory.value
        },
        _ => memory.value,
    };
    let copy = memory.whole.filter(|_| f.copied()).map(|w| Place {
        at: w.at + p.compute.bytes(f.host),
        ..w
    });
    let part = |mem| room.and_then(|r| r.part(mem));
    let [moment1, moment2] = HostShare::MOMENTS;
    let parts = [
        (StateKind::Value, HostShare::VALUE),
        (StateKind::Moment1, moment1),
        (StateKind::Moment2, moment2),
        (StateKind::Ema, HostShare::EMA),
    ];
    let base_owned = f.base_owned();
    UnitState {
        params: (0..f.params.len()).map(|i| param(f, optim, i)).collect(),
        compute: p.compute,
        owners: p.owners,
        flat: FlatState {
            numel: f.layout.numel(),
            owned: f.owned_len(),
            cut: cut(f.layout.padded(), !resident),
            place: Some(value),
            room: u,
        },
        base: FlatState {
            numel: f.base.numel(),
            owned: base_owned.end - base_owned.start,
            cut: cut(f.base.padded(), f.base_is_sharded()),
            place: memory.base,
            room: units + u,
        },
        host: f.host,
        parts: parts
            .into_iter()
            .filter_map(|(k, mem)| Some((k, part(mem)?)))
            .collect(),
        copy,
        fresh: optim.memory().collect(),
        saved: saved(f),
        whole: memory.whole,
        gathers: f.gathers(),
        transient: p.residency == Residency::Transient,
        grad_length: f.grad_length(),
        by_parameter: p.partition == Partition::WholeParameter,
    }
}

fn saved(f: &Flat) -> Saved {
    let mut owned = f.layout.owned(f.place.rank);
    owned.retain(|p| f.params[p.param].held.first);
    Saved {
        from: f.layout.slice(f.place.rank).start - f.owned.start,
        numel: owned.iter().map(|p| p.in_slice.end).max().unwrap_or(0),
        parts: owned
            .into_iter()
            .map(|p| (p.param, p.of_param, p.in_slice.start))
            .collect(),
    }
}

fn param(f: &Flat, optim: &Optim, i: usize) -> ParamState {
    let p = &f.params[i];
    let shape = |(name, kind): (StateName, StateKind)| Some((kind, optim.shape(i, name)?));
    ParamState {
        held: p.held.part.clone(),
        base: p.base,
        trains: p.trains,
        range: f.range_of(i),
        whole_at: f.whole_at(i),
        owned: match p.base {
            true => f.base_pieces(i),
            false => f.pieces(i),
        },
        hosted: f.hosted(i),
        shapes: KINDS.into_iter().filter_map(shape).collect(),
        runs: optim.slices(i).iter().filter_map(run).collect(),
    }
}

fn run(s: &StateSlice) -> Option<StateRun> {
    let (_, kind) = KINDS.into_iter().find(|(name, _)| *name == s.name)?;
    Some(StateRun {
        kind,
        range: s.range(),
        values: s.values,
        coded: s.scales.map(|scales| (scales, codec(s.name))),
    })
}
