//! Lowering of a step by itself, from the backward to the update: random units under random placements and optimizers give lawful
//! programs, in which every trained element is updated by its owner and once; and one step as text.

use crate::placements::placements;
use crossweave_plan::{Lane, Reduction, StepId};
use crossweave_program::axes::{self, Axis};
use crossweave_program::{
    Builder, Call, DType, Figure, HostJob, HostMemory, Instr, Law, MemId, Part, Program, check,
    check_ranks,
};
use crossweave_zero::lower::{
    Grads, Groups, Job, Memory, Optim, Owners, ParamMemory, Parts, ToHost, Words,
};
use crossweave_zero::optim::{Adafactor, Adam, Lamb, Muon, MuonScale, Optimizer, Recipe, Sgd};
use crossweave_zero::{Flat, FlatParam, Partition, Placement, Residency};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::Range;

/// A unit, how it is updated, and where its data is, on any of so many ranks.
#[derive(Clone, Debug)]
struct Case {
    /// Dims; whether it trains; which of two recipes.
    params: Vec<(Vec<u64>, bool, bool)>,
    recipes: [Recipe; 2],
    place: Placement,
    clip: bool,
    scaled: bool,
    wire: DType,
    /// Where a part is the host's: its state rests in files.
    files: bool,
    /// Two micro-batches, each reduced into the slice by itself, and added up in the compute type.
    each: bool,
}

impl Case {
    fn recipe(&self, i: usize) -> Option<Recipe> {
        let (_, trains, second) = &self.params[i];
        trains.then(|| self.recipes[usize::from(*second)])
    }

    fn flat(&self, rank: u32) -> Flat {
        let param = |(i, (dims, trains, _)): (usize, &(Vec<u64>, bool, bool))| FlatParam {
            name: format!("p{i}"),
            held: axes::Held::whole(dims),
            trains: *trains,
            base: false,
        };
        let params: Vec<FlatParam> = self.params.iter().enumerate().map(param).collect();
        let recipes: Vec<_> = (0..params.len()).map(|i| self.recipe(i)).collect();
        Flat::new(params, Placement { rank, ..self.place }, &recipes)
    }

    /// Backward, reduction, finite check, norm, update and figures of one unit, as rank `rank` makes them.
    fn program(&self, rank: u32) -> Program {
        let mut b = Builder::default();
        let ranks = self.place.ranks;
        let data = (ranks > 1).then(|| {
            let place = axes::Place::on(&[(Axis::Dp, ranks)], rank).unwrap();
            b.group(place.group(&Axis::Dp.into()).unwrap())
        });
        let job = Job {
            ranks,
            rank,
            reduce: Lane::Reduce,
            gather: Lane::Gather,
            arrives: Lane::Gather,
            quantized: false,
            clip: if self.clip { 1.0 } else { 0.0 },
            scaled: self.scaled,
            rescaled: self.scaled,
            seeded: self.scaled,
            figures: 0,
            wire: self.wire,
            accumulate: match self.each {
                true => self.place.compute,
                false => DType::F32,
            },
            parts: vec![Parts {
                reduced: self.each && ranks > 1,
                leave: false,
            }],
            summands: vec![],
            shards: None,
            micro_batches: 1,
            groups: Groups {
                owners: vec![Owners {
                    axes: axes::AxisSet::DATA,
                    data,
                    ..Owners::default()
                }],
                figures: data,
                all: data,
                ..Groups::default()
            },
        };
        let flats = [self.flat(rank)];
        let params = ParamMemory::declare(&mut b, 0, &flats[0]);
        let words = Words::new(&job, &flats);
        let memory = Memory::declare(&mut b, &job, &flats, &words);
        let recipes: Vec<_> = (0..self.params.len()).map(|i| self.recipe(i)).collect();
        let optim = Optim::declare(&mut b, 0, &flats[0], &recipes);
        let (hosted, owned) = (flats[0].host, flats[0].owned_len());
        let wire = self.place.compute;
        let mut host = (hosted > 0).then(|| ToHost::declare(&mut b, &job, &flats, wire));
        let left = [hosted > 0];
        let mut g = Grads::new(&job, &flats, &memory, &words);
        g.begin(&mut b);
        let [backward, reduce, finite, norm, update] = [0, 1, 2, 3, 4].map(StepId);
        g.decide(&mut b);
        if flats[0].trains() {
            let units = [(0, recipes.iter().map(Option::is_some).collect())];
            let rooms = g.rooms(&units);
            let how = match self.place.sliced {
                true => Reduction::Scatter,
                false => Reduction::All,
            };
            for more in [true, false].into_iter().skip(usize::from(!self.each)) {
                b.call(Some(backward), "backward", &rooms, |code| {
                    let adds = g.open(code, &units, 0);
                    code.block(Part::Backward, adds.concat());
                });
                g.fold_micro_batch(&mut b, backward, 0);
                g.reduce(&mut b, reduce, (&[0], more), how);
            }
            if let Some(host) = &host {
                g.squares_of(&mut b, reduce, 0);
                g.count_leaving(&mut b, reduce, 0);
                host.grad_out(&mut b, reduce, (&g, 0));
                if hosted == owned {
                    g.close(&mut b, reduce, 0);
                }
            }
            g.finite(&mut b, finite, &left);
            match self.clip {
                true => g.norm(&mut b, norm, &left),
                false if hosted == 0 => g.squares_of(&mut b, update, 0),
                false => {}
            }
            if let Some(host) = &mut host {
                if self.files {
                    host.job(&mut b, update, (&g, 0), HostJob::StateIn);
                }
                host.update(&mut b, update, (&g, 0));
                if self.files {
                    host.job(&mut b, update, (&g, 0), HostJob::StateOut);
                }
            }
            optim.update(&mut b, update, (&g, 0), &params);
            g.close(&mut b, update, 0);
        }
        g.publish(&mut b);
        b.finish()
    }
}

/// The bytes of memory `mem` that instructions of fragments named `name` write, in order of instructions: those of kernels by the
/// places of a launch's operands that `writes` names.
fn launches<'p>(p: &'p Program, name: &'p str) -> impl Iterator<Item = (&'p Call, &'p Instr)> {
    let of = |c: &'p Call| &p.fragments[c.fragment.0 as usize];
    let calls = p.calls.iter().filter(move |c| of(c).name == name);
    calls.flat_map(move |c| of(c).code.iter().map(move |i| (c, i)))
}

/// The bytes of `mem` that some instruction of the update writes, one range for each.
fn updated(p: &Program, mem: MemId) -> Vec<Range<u64>> {
    let mut out = vec![];
    for (call, i) in launches(p, "update") {
        let Instr::Kernel {
            kernel, operands, ..
        } = i
        else {
            continue;
        };
        let decl = &p.kernels[kernel.0 as usize];
        let written = |k: usize| match decl.op {
            crossweave_program::abi::op::ELEMENTWISE_PROGRAM => {
                let first =
                    std::mem::offset_of!(crossweave_program::abi::op::ProgramParams, writes);
                decl.params.bytes[first + k / 8] >> (k % 8) & 1 == 1
            }
            // Of Adam's groups p, m, v and the master are; the values are p or the master.
            crossweave_program::abi::op::ADAMW => k >= 2,
            _ => false,
        };
        for (k, s) in operands.iter().enumerate() {
            let Some(s) = s.filter(|_| written(k)) else {
                continue;
            };
            let here =
                p.args[call.args.start as usize..call.args.end as usize].get(s.slot as usize);
            if let Some(place) = here.filter(|place| place.mem == mem) {
                out.push(place.at + s.at..place.at + s.at + s.bytes);
            }
        }
    }
    out
}

fn optimizers() -> impl Strategy<Value = Optimizer> {
    let adam = Adam::default();
    let factor = Adafactor {
        eps: [1e-30, 1e-3],
        clip_threshold: 1.0,
        decay_rate: -0.8,
        beta1: Some(0.9),
        scale_parameter: true,
        relative_step: true,
        warmup_init: true,
    };
    let sgd = Sgd {
        momentum: 0.9,
        dampening: 0.3,
        nesterov: true,
    };
    let muon = Muon {
        momentum: 0.95,
        nesterov: true,
        ns_steps: 2,
        scale: MuonScale::Shape,
        extra_scale: 1.0,
    };
    prop::sample::select(vec![
        Optimizer::Adam(adam),
        Optimizer::Adam8bit(adam),
        Optimizer::Lion { betas: [0.9, 0.99] },
        Optimizer::Lamb(Lamb {
            adam,
            max_coeff: 10.0,
            min_coeff: 0.01,
        }),
        Optimizer::Sgd(sgd),
        Optimizer::Adafactor(factor),
        Optimizer::Adafactor(Adafactor {
            beta1: None,
            relative_step: false,
            ..factor
        }),
        Optimizer::Muon(muon),
    ])
}

fn cases() -> impl Strategy<Value = Case> {
    let dims = prop::collection::vec(1u64..90, 1..4);
    let param = (dims, prop::bool::weighted(0.8), any::<bool>());
    let params = prop::collection::vec(param, 1..5);
    let both = (optimizers(), optimizers());
    let flags = prop::array::uniform5(any::<bool>());
    (params, placements(), both, flags).prop_map(
        |(params, place, (a, b), [clip, scaled, narrow, files, each])| {
            // The host updates what looks at one element at a time.
            let alone = a.is_elementwise() && b.is_elementwise();
            let recipe = |optimizer, lr_scale| Recipe {
                optimizer,
                lr_scale,
                weight_decay: 0.1,
                ema: None,
            };
            Case {
                params,
                recipes: [recipe(a, 1.0), recipe(b, 0.5)],
                place: Placement {
                    partition: match a.wants_whole() || b.wants_whole() {
                        true => Partition::WholeParameter,
                        false => Partition::Flat,
                    },
                    secondary: 1,
                    host: if alone { place.host } else { 0.0 },
                    away: false,
                    ..place
                },
                clip,
                scaled,
                files,
                each: each && place.sliced && place.ranks > 1,
                wire: if narrow { DType::Bf16 } else { DType::F32 },
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn steps_under_any_placement_are_lawful_and_ranks_agree(case in cases()) {
        let all: Vec<Program> = (0..case.place.ranks).map(|r| case.program(r)).collect();
        for p in &all {
            check(p, 0..p.calls.len()).unwrap();
        }
        check_ranks(&all.iter().collect::<Vec<_>>()).unwrap();
        for (rank, p) in all.iter().enumerate() {
            let f = case.flat(rank as u32);
            let mut b = Builder::default();
            let value = ParamMemory::declare(&mut b, 0, &f).value;
            let mut owned: BTreeMap<u64, u32> = BTreeMap::new();
            for (i, r) in f.layout.ranges().iter().enumerate() {
                if case.recipe(i).is_some() {
                    let first = f.owned.start + f.host;
                    let mine = r.start.max(first)..r.end.min(f.owned.end);
                    // Masters of the host's part are not on the device; parameters that are their values are.
                    let base = if f.place.compute == DType::F32 { f.owned.start } else { first };
                    owned.extend(mine.map(|e| (value.at + 4 * (e - base), 0)));
                }
            }
            for r in updated(p, value.mem) {
                for byte in r.step_by(4) {
                    let times = owned.get_mut(&byte);
                    prop_assert!(times.is_some(), "rank {rank} updates byte {byte} of what it does not own");
                    *times.unwrap() += 1;
                }
            }
            let once = owned.values().all(|n| *n == 1);
            prop_assert!(once, "rank {rank}: {owned:?}");
        }
    }
}

fn adamw(scaled: bool) -> Case {
    let recipe = Recipe {
        optimizer: Optimizer::Adam(Adam::default()),
        lr_scale: 1.0,
        weight_decay: 0.1,
        ema: None,
    };
    Case {
        params: vec![(vec![10], true, false), (vec![6], true, false)],
        recipes: [recipe; 2],
        place: Placement {
            owners: axes::AxisSet::DATA,
            ranks: 2,
            rank: 0,
            partition: Partition::Flat,
            shards: None,
            compute: DType::F32,
            residency: Residency::Cached,
            secondary: 1,
            sliced: true,
            host: 0.0,
            away: false,
        },
        clip: true,
        scaled,
        files: false,
        each: false,
        wire: DType::F32,
    }
}

/// Stage 2 of two ranks: a reduce-scatter, the squares and their sum, one AdamW over the slice.
#[test]
fn a_step_of_adamw_as_text() {
    let p = adamw(false).program(1);
    let text = p.text(0..p.calls.len(), &|s| {
        let name = s.map_or("outside".into(), |s| format!("step {}", s.0));
        (name.clone(), name)
    });
    assert_eq!(text, include_str!("golden/step.txt"));
}

/// A step whose gradients are not finite is skipped by the word that `Finite` writes, and what the host reads of it is published
/// behind that.
#[test]
fn an_update_reads_the_verdict() {
    let p = adamw(true).program(0);
    let finite = launches(&p, "finite").map(|(_, i)| i);
    assert!(finite.into_iter().any(|i| matches!(
        i,
        Instr::Publish {
            figure: Figure::Verdict,
            ..
        }
    )));
    let (call, i) = launches(&p, "update")
        .find(|(_, i)| matches!(i, Instr::Kernel { .. }))
        .unwrap();
    let Instr::Kernel { operands, .. } = i else {
        panic!("no kernel");
    };
    let word = |k: usize| {
        let s = operands[k].unwrap();
        let place = p.args[(call.args.start + u32::from(s.slot)) as usize];
        (
            p.memory[place.mem.index()].name.as_str(),
            (place.at + s.at) / 4,
        )
    };
    assert_eq!(word(0), ("words", Words::COEFFICIENT));
    assert_eq!(word(1), ("words", Words::SKIP));
}

/// A rank that left LAMB's sums out because it owns nothing of the unit would leave the others waiting.
#[test]
fn a_rank_without_a_part_joins_the_sums_of_an_optimizer() {
    let lamb = Optimizer::Lamb(Lamb {
        adam: Adam::default(),
        max_coeff: 10.0,
        min_coeff: 0.01,
    });
    let mut case = adamw(false);
    case.place.ranks = 4;
    case.params = vec![(vec![3], true, false)];
    for r in &mut case.recipes {
        r.optimizer = lamb;
    }
    let mut all: Vec<Program> = (0..4).map(|r| case.program(r)).collect();
    assert!(case.flat(3).parts().is_empty(), "the case has such a rank");
    check_ranks(&all.iter().collect::<Vec<_>>()).unwrap();
    // The mutant that leaves it out.
    for f in all[3].fragments.iter_mut().filter(|f| f.name == "update") {
        f.code.retain(|i| !matches!(i, Instr::Collective { .. }));
    }
    let e = check_ranks(&all.iter().collect::<Vec<_>>()).unwrap_err();
    assert_eq!(e.law, Law::SameCollectives);
}

/// The half of a bf16 slice that is the host's: its gradient is cast and copied into memory that the host's thread gives and gets
/// back, and the words leave before the update.
#[test]
fn a_gradient_leaves_by_a_cast_and_a_copy() {
    let mut case = adamw(false);
    (case.place.host, case.place.compute) = (0.5, DType::Bf16);
    let p = case.program(0);
    let code = |name| -> Vec<&Instr> { launches(&p, name).map(|(_, i)| i).collect() };
    let grad = HostMemory::Grad(0);
    let [
        Instr::Take { what: taken, .. },
        Instr::Alloc { .. },
        Instr::Kernel { lane, .. },
        Instr::Copy { to, .. },
        Instr::Free { .. },
        Instr::Give { what: given, .. },
    ] = code("grad out")[..]
    else {
        panic!("{:?}", code("grad out"));
    };
    assert_eq!((*taken, *given, *lane), (grad, grad, Lane::CopyOut));
    assert_eq!(to.bytes, 2 * case.flat(0).host);
    let host = p
        .calls
        .iter()
        .map(|c| &p.fragments[c.fragment.0 as usize].name);
    let last: Vec<&str> = host
        .map(String::as_str)
        .skip_while(|n| *n != "words out")
        .collect();
    assert_eq!(last, ["words out", "host", "update", "close", "figures"]);
    // The step fails on the host where its words are left out.
    let mut mutant = p.clone();
    mutant
        .calls
        .retain(|c| p.fragments[c.fragment.0 as usize].name != "words out");
    let e = check(&mutant, 0..mutant.calls.len()).unwrap_err();
    assert_eq!(e.law, Law::HostOrder, "{e}");
}

/// The rate, the number of the update and what undoes the loss scale are the host's to decide.
#[test]
fn an_update_before_the_host_has_decided_is_unlawful() {
    let mut p = adamw(false).program(0);
    for f in &mut p.fragments {
        f.code.retain(|i| *i != Instr::Decide);
    }
    let e = check(&p, 0..p.calls.len()).unwrap_err();
    assert_eq!(e.law, Law::Decided, "{e}");
}
