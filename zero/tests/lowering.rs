//! Lowering of gathers by itself: random flats under random placements give lawful programs, whose collectives all ranks make
//! alike; and the gather of one unit as text. Gradients and figures are held against the laws by every trainer that is built.

use crate::placements::placements;
use crossweave_plan::{Lane, StepId};
use crossweave_program::axes::{self, Axis, Channel, GroupKey};
use crossweave_program::{
    Builder, DType, GroupId, Instr, Life, MemorySpace, Program, check, check_ranks,
};
use crossweave_zero::lower::{Groups, Job, Owners, ParamMemory, Params, Parts, Source};
use crossweave_zero::optim::{Adam, Optimizer, ParamGroups};
use crossweave_zero::{Flat, FlatParam, Partition, Placement, Residency};
use proptest::prelude::*;

/// A unit and where its data is, on any of so many ranks.
#[derive(Clone, Debug)]
struct Case {
    params: Vec<(u64, bool, bool)>,
    place: Placement,
    quantized: bool,
    overlap: bool,
}

impl Case {
    fn flat(&self, rank: u32) -> Flat {
        let recipe = ParamGroups::all(Optimizer::Adam(Adam::default()), 0.0).base;
        let param = |(i, (n, trains, base)): (usize, &(u64, bool, bool))| FlatParam {
            name: format!("p{i}"),
            held: axes::Held::whole(&[*n]),
            trains: *trains && !base,
            base: *base,
        };
        let params: Vec<FlatParam> = self.params.iter().enumerate().map(param).collect();
        let recipes: Vec<_> = params.iter().map(|p| p.trains.then_some(recipe)).collect();
        Flat::new(params, Placement { rank, ..self.place }, &recipes)
    }

    /// Two gathers of one unit with all that belongs to them, as rank `rank` makes them.
    fn program(&self, rank: u32) -> Program {
        let mut b = Builder::default();
        let (ranks, node) = (self.place.ranks, self.place.secondary);
        let place = axes::Place::on(&[(Axis::Dp, ranks)], rank).unwrap();
        let mut group = |key: GroupKey| -> Option<GroupId> {
            let group = place.group(&key).unwrap();
            (group.size() > 1).then(|| b.group(group))
        };
        let dp = || GroupKey::over(Axis::Dp);
        let owners = Owners {
            axes: axes::AxisSet::DATA,
            data: None,
            gather: group(dp().on(Channel::Gather)),
            node: group(dp().part(axes::Part::Node(node))),
        };
        let groups = Groups {
            owners: vec![owners],
            ..Groups::default()
        };
        let gather = match self.overlap {
            true => Lane::Gather,
            false => Lane::Compute,
        };
        let job = Job {
            ranks,
            rank,
            reduce: Lane::Reduce,
            gather,
            arrives: Lane::Gather,
            quantized: self.quantized,
            clip: 1.0,
            scaled: false,
            rescaled: false,
            seeded: false,
            figures: 0,
            wire: DType::F32,
            accumulate: DType::F32,
            parts: vec![Parts::default()],
            summands: vec![],
            shards: None,
            micro_batches: 1,
            groups,
        };
        let flats = [self.flat(rank)];
        let memory = [ParamMemory::declare(&mut b, 0, &flats[0])];
        let p = Params {
            job: &job,
            flats: &flats,
            memory: &memory,
        };
        for (at, from) in [Source::All, Source::Node, Source::Outside]
            .into_iter()
            .enumerate()
        {
            let step = Some(StepId(at as u32));
            p.shard_in(&mut b, step, 0);
            p.gather(&mut b, step, 0, from);
            p.release(&mut b, step, 0);
        }
        p.param_in(&mut b, None, 0);
        b.finish()
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let params = prop::collection::vec((1u64..700, any::<bool>(), any::<bool>()), 1..5);
    (params, placements(), any::<bool>(), any::<bool>()).prop_map(
        |(params, place, quantized, overlap)| Case {
            params,
            quantized: quantized && place.ranks > 1 && place.compute != DType::F32,
            place,
            overlap,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]
    #[test]
    fn gathers_under_any_placement_are_lawful_and_ranks_agree(case in cases()) {
        let all: Vec<Program> = (0..case.place.ranks).map(|r| case.program(r)).collect();
        for p in &all {
            check(p, 0..p.calls.len()).unwrap();
        }
        check_ranks(&all.iter().collect::<Vec<_>>()).unwrap();
        // What transient parameters take is no pool memory, and what stays is there once.
        for m in &all[0].memory {
            let slot = m.name == "whole.0";
            prop_assert!(m.home == MemorySpace::Device && slot == (m.life == Life::Slot));
        }
        // Nothing is sent where one rank has everything.
        let sends = |i: &Instr| matches!(i, Instr::Collective { .. });
        let alone = case.place.ranks == 1 || case.place.residency == Residency::Resident;
        let sent = all[0].fragments.iter().flat_map(|f| &f.code).any(sends);
        prop_assert!(!(alone && sent));
    }
}

/// Stage 3 of two ranks in bf16: a slot, a cast into the own place, one all-gather.
#[test]
fn the_gather_of_a_unit_is_a_cast_and_a_collective() {
    let case = Case {
        params: vec![(10, true, false), (6, true, false)],
        place: Placement {
            owners: axes::AxisSet::DATA,
            ranks: 2,
            rank: 0,
            partition: Partition::Flat,
            shards: None,
            compute: DType::Bf16,
            residency: Residency::Transient,
            secondary: 1,
            sliced: true,
            host: 0.0,
            away: false,
        },
        quantized: false,
        overlap: true,
    };
    let p = case.program(1);
    let text = p.text(0..3, &|_| ("gather".into(), "gather".into()));
    let found: Vec<&str> = text.lines().collect();
    let n = case.flat(1).owned_len();
    let bytes = 2 * n;
    let expected = format!(
        "memory 0 master.0: {} bytes of f32, master, device, always
memory 1 whole.0: {} bytes of bf16, comm, device, in a slot
group dp/gather: rank 1 of 2
gather
  shard in #0()
  gather #1(whole.0, master.0)
      gather  alloc %0
      gather  cast bf16[{n}] %0+{bytes}, f32[{n}] %1+0
      gather  on dp/gather, param: all-gather bf16 %0[{bytes}..{}] to %0[0..{}]
      gather  mark
  release #2(whole.0)
              free %0",
        4 * n,
        2 * bytes,
        2 * bytes,
        2 * bytes
    );
    assert_eq!(found, expected.lines().collect::<Vec<_>>());
}
