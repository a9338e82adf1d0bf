//! Random jobs: shape of the model, mesh, placement and schedule are drawn by a seed. Every one is lowered to lawful programs whose ranks make
//! the same collectives, and three steps of it on the null device hold the bytes that its program declares. Whole jobs of every axis that
//! train as one rank does are drawn in `train/tests/layouts`.
//!
//! A sample runs with the suite. `CROSSWEAVE_SEED=N` draws others, and the tests that are ignored draw thousands:
//! `cargo test --release -p crossweave-engine --test suite random -- --ignored`.

use crate::common::*;
use crossweave_engine::optimizers::{Optimizer, ParamGroups, Sgd};
use crossweave_engine::{
    Error, LossScaler, MicroBatch, OffloadDevice, OffloadSpec, OptimizerOffload, PipelineOrder,
    PipelineSpec, Precision, RankSpec, Recompute, ReduceGradients, Rows, ScaleRule, Units,
    ZeroSpec, ZeroStage, dry_run,
};
use crossweave_hal::{CheckerState, DType, MemoryReport};
use crossweave_mesh::Axis;
use crossweave_nn::ModelSpec;
use crossweave_program::{Instr, Life, MemorySpace, Program, Tag, check_ranks};
use crossweave_tensor::UnitDecl;
use crossweave_zero::Persistent;
use std::collections::BTreeMap;
use std::path::Path;

/// Numbers that follow from a seed (splitmix64).
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }
    pub fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.roll(all.len() as u64) as usize].clone()
    }
    /// Once in `n`.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.roll(n) == 0
    }
}

/// A model whose layers are cut over ranks, and the tokens of its hidden states too where it is in `pieces`.
struct Shared {
    cut: Cut,
    pieces: bool,
}

impl Declares for Shared {
    fn declare(&self) -> Vec<UnitDecl> {
        let mut units = self.cut.declare();
        if self.pieces {
            units
                .iter_mut()
                .for_each(|u| u.hidden_over = Axis::Tp.into());
        }
        units
    }
}

/// A job, for each of its ranks but for the rank's number.
struct Drawn {
    model: Shared,
    spec: RankSpec,
}

/// One of which `tp` divides what is cut.
fn model(d: &mut Dice, tp: u64) -> ModelSpec {
    let layers = 1 + d.roll(3);
    let (vocab, inner) = (37 + d.roll(8), tp * (9 + d.roll(40)));
    let heads = tp * (1 + d.roll(3));
    let width = heads * 2 * (2 + d.roll(4));
    match d.once_in(2) {
        true => {
            let dropout = d.of(&[0.0, 0.1]);
            let sized = with(
                &gpt2(layers, dropout),
                &[
                    ("vocab_size", vocab),
                    ("n_embd", width),
                    ("n_head", heads),
                    ("n_inner", inner),
                ],
            );
            with(&sized, &[("tie_word_embeddings", d.once_in(2))])
        }
        false => with(
            &llama(layers),
            &[
                ("vocab_size", vocab),
                ("hidden_size", width),
                ("intermediate_size", inner),
                ("num_attention_heads", heads),
                ("num_key_value_heads", d.of(&[tp, heads])),
                ("head_dim", 2 * (2 + d.roll(4))),
            ],
        ),
    }
}

/// Placement by ZeRO, on `ranks` ranks.
fn zero(d: &mut Dice, ranks: u32) -> ZeroSpec {
    let stage = ZeroStage::from_number(d.roll(4) as u32).unwrap();
    let node = match stage {
        ZeroStage::Three if ranks.is_multiple_of(2) && d.once_in(3) => 2,
        _ => 1,
    };
    ZeroSpec {
        stage,
        prefetch: d.roll(4) as u32,
        max_live: d.of(&[None, Some(3000)]),
        reshard: !d.once_in(4),
        reuse_within: d.of(&[None, None, Some(5000)]),
        persistent: Some(d.of(Persistent::ALL).1),
        persist_below: d.of(&[0, 0, 100, 2500, 1 << 40]),
        node,
        ..ZeroSpec::default()
    }
}

fn drawn_offload(d: &mut Dice, folder: &Path, spec: &RankSpec) -> OffloadSpec {
    let ratio = d.of(&[1.0, 1.0, 0.4]);
    let activations = spec.recompute == Recompute::Full && d.once_in(2);
    OffloadSpec {
        optimizer: (!activations || !d.once_in(3)).then(|| OptimizerOffload {
            tier: d.of(&[OffloadDevice::Host, OffloadDevice::Nvme]),
            ratio,
            delayed: false,
            grad_f32: d.once_in(3),
            pin: false,
            group: d.of(&[None, Some(100)]),
        }),
        params: spec.zero.stage == ZeroStage::Three && ratio == 1.0 && d.once_in(2),
        activations,
        ..offload(folder, OffloadDevice::Host)
    }
}

/// Draws a job.
fn draw(d: &mut Dice, folder: &Path) -> Drawn {
    let tp = d.of(&[1, 1, 2, 3]);
    let model = model(d, tp.into());
    let count = units(&model).len() as u32;
    let stages = d.of(&[1, 1, 2, 3]).min(count).min(8 / tp);
    let ranks = d.of(&[1, 2, 3, 4]).min(8 / (stages * tp));
    let canonical = (stages == 1 && tp == 1 && d.once_in(4)).then(|| d.of(&[4, 6, 8]));
    let replicas = canonical.unwrap_or(ranks);
    let micro = d.of(
        &[1, 2, 3].map(|m| match GLOBAL.is_multiple_of(u64::from(replicas * m)) {
            true => m,
            false => 1,
        }),
    );
    let compute = d.of(&[DType::F32, DType::Bf16, DType::F16]);
    let mut s = RankSpec {
        rows: Rows::new(GLOBAL / u64::from(replicas * micro), SEQ),
        compute,
        clip: d.of(&[0.0, 0.5]),
        recompute: d.of(&[Recompute::None, Recompute::Full, Recompute::Selective]),
        zero: ZeroSpec {
            bucket_bytes: d.of(&[0, 6000, 1 << 30]),
            overlap: !d.once_in(4),
            ..zero(d, ranks)
        },
        canonical,
        ..spec(ranks, micro)
    };
    if canonical.is_none() && s.zero.stage >= ZeroStage::Two {
        use ReduceGradients::*;
        s.zero.reduce = d.of(&[Auto, MicroBatch, Step]);
    }
    if stages > 1 {
        let order = d.of(&[PipelineOrder::GPipe, PipelineOrder::OneFOneB]);
        s.pipeline = Some(PipelineSpec::even(count, stages, order));
    }
    if d.once_in(4) {
        s.optim = ParamGroups {
            decay_all: false,
            ..ParamGroups::all(
                Optimizer::Sgd(Sgd {
                    momentum: d.of(&[0.0, 0.9]),
                    dampening: 0.0,
                    nesterov: false,
                }),
                0.1,
            )
        };
    }
    if compute == DType::F16 {
        let rule = d.of(&[ScaleRule::Static, ScaleRule::Torch, ScaleRule::Megatron]);
        s.precision.scaler = Some(LossScaler::new(rule, 65536.0, 2, 2, 1.0));
    }
    s.precision = Precision {
        wire: d.of(&[DType::F32, DType::F32, DType::Bf16]),
        accum: match compute == DType::Bf16 && canonical.is_none() && d.once_in(4) {
            true => DType::Bf16,
            false => DType::F32,
        },
        ..s.precision
    };
    s.zero.quantized = compute.bits() == 16 && canonical.is_none() && d.once_in(3);
    s.rows.labelled = d.once_in(4);
    if canonical.is_none() && d.once_in(3) {
        s.offload = Some(drawn_offload(d, folder, &s));
    }
    let pieces = tp > 1 && !d.once_in(3);
    if pieces {
        // Rows that 2 and 3 ranks divide.
        s = of_length(s, 6);
    }
    Drawn {
        model: Shared {
            cut: Cut(model, None, tp),
            pieces,
        },
        spec: cut_over(s, tp),
    }
}

/// Bytes by tag: now, and most at once.
struct Bytes(BTreeMap<&'static str, (u64, u64)>);

impl Bytes {
    /// What is counted: the memory of the states of a model, and whole parameters.
    const TAGS: [Tag; 5] = [Tag::Param, Tag::Master, Tag::Moment, Tag::Grad, Tag::Comm];

    fn add(&mut self, tag: Tag, bytes: u64) {
        if let Some((now, peak)) = self.0.get_mut(tag.name()) {
            *now += bytes;
            *peak = (*peak).max(*now);
        }
    }
    fn take(&mut self, tag: Tag, bytes: u64) {
        if let Some((now, _)) = self.0.get_mut(tag.name()) {
            *now -= bytes;
        }
    }
}

/// Device bytes by tag, as the program declares them: held between steps, and most at once, in the step and in what of each unit is
/// called outside it (starting values are cast from gathered units, which takes more than a step where gathers are quantized).
fn declared(p: &Program) -> Bytes {
    let mut all = Bytes(Bytes::TAGS.iter().map(|t| (t.name(), (0, 0))).collect());
    for m in p.memory.iter().filter(|m| m.home == MemorySpace::Device) {
        if let Life::Always { turns } = m.life {
            all.add(m.tag, u64::from(turns) * m.bytes);
        }
    }
    // Slots stay, and are passed on.
    let mut free: Vec<u64> = vec![];
    let mut there = vec![false; p.memory.len()];
    for call in &p.calls {
        let f = &p.fragments[call.fragment.0 as usize];
        let mut locals = vec![false; f.locals.len()];
        let mem = |slot: u16| {
            p.args[(call.args.start + u32::from(slot)) as usize]
                .mem
                .index()
        };
        for i in &f.code {
            let (slot, comes) = match i {
                Instr::Alloc { slot, .. } => (*slot, true),
                Instr::Free { slot } => (*slot, false),
                _ => continue,
            };
            if let Some(k) = slot.checked_sub(f.params).map(usize::from) {
                let (l, was) = (f.locals[k], std::mem::replace(&mut locals[k], comes));
                match comes {
                    true => all.add(l.tag, l.bytes),
                    false if was => all.take(l.tag, l.bytes),
                    false => {}
                }
                continue;
            }
            let m = &p.memory[mem(slot)];
            let was = std::mem::replace(&mut there[mem(slot)], comes);
            match (comes, m.life, free.iter().position(|b| *b == m.bytes)) {
                (true, Life::Slot, Some(k)) => {
                    free.swap_remove(k);
                }
                (true, ..) => all.add(m.tag, m.bytes),
                (false, ..) if !was => {}
                (false, Life::Slot, _) => free.push(m.bytes),
                (false, ..) => all.take(m.tag, m.bytes),
            }
        }
        for (l, _) in f.locals.iter().zip(&locals).filter(|(_, there)| **there) {
            all.take(l.tag, l.bytes);
        }
    }
    all
}

/// Three steps of one rank on the null device: its ledger, and its program.
fn on_null(w: &World, job: &Drawn, rank: u32) -> Result<(MemoryReport, Program), Error> {
    let s = &job.spec;
    let s = ranked(s, rank);
    let null = w.null.open(0).unwrap();
    let units = Units::new(units(&job.model), &s.place, &s.optim)?.into_inner();
    let dry = dry_run(&null, &units, s.compute, s.rows.batch, s.rows.seq_len)?;
    // On a board of its own: the other ranks are not there, and are not missed.
    let device = w.null.with_checker(&CheckerState::default());
    let device = device.open(0).unwrap();
    let mut t = w.rank(&device, units, &s, &dry, &Nobody)?;
    t.init()?;
    let tokens = vec![1; (s.rows.batch * s.rows.seq_len) as usize];
    let batch = |m: u32| MicroBatch {
        tokens: &tokens,
        targets: &tokens,
        lengths: &[],
        images: &[],
        first_sequence: u64::from(m) * s.rows.batch,
    };
    let each: Vec<_> = (0..s.own_micro_batches()).map(batch).collect();
    for _ in 0..3 {
        t.count_targets(3, 4)?;
        t.step(&each, 1e-3)?;
        t.metrics()?;
    }
    let memory = t.ledger().memory;
    Ok((memory, t.program().clone()))
}

/// Runs job number `seed` on the null device; whether it is one that can be asked for.
fn is_lawful(w: &World, folder: &Path, seed: u64) -> bool {
    let job = draw(&mut Dice(seed), folder);
    let world = job.spec.data_ranks() * job.model.cut.2;
    let mut refused = 0;
    let ranks = job_ranks(&job.spec);
    let mut programs = vec![];
    for rank in 0..ranks {
        let (memory, program) = match on_null(w, &job, rank) {
            Ok(ran) => ran,
            Err(Error::Invalid(_)) => {
                refused += 1;
                continue;
            }
            Err(e) => panic!("job {seed}, rank {rank}: {e}\n{:?}", job.spec),
        };
        for (tag, (now, peak)) in declared(&program).0 {
            let got = memory.tags.get(tag).map_or((0, 0), |t| (t.now, t.peak));
            assert_eq!(
                got,
                (now, peak),
                "job {seed}, rank {rank}: bytes of {tag} now and at most, then what the program declares\n{:?}",
                job.spec
            );
        }
        programs.push(program);
    }
    assert!(
        refused == 0 || refused == ranks,
        "job {seed}: {refused} of {ranks} ranks refuse what the others do"
    );
    // Ranks of one stage share a group of each name.
    for stage in programs.chunks(world as usize) {
        let stage: Vec<&Program> = stage.iter().collect();
        check_ranks(&stage).unwrap_or_else(|e| panic!("job {seed}: {e}\n{:?}", job.spec));
    }
    refused == 0
}

pub fn seed() -> u64 {
    let given = std::env::var("CROSSWEAVE_SEED").ok();
    given.map_or(1, |s| s.parse().expect("CROSSWEAVE_SEED is a number"))
}

fn lawful(jobs: u64) {
    let w = world();
    let dir = tempfile::tempdir().unwrap();
    let first = seed() * 1_000_000;
    let able = (first..).filter(|s| is_lawful(&w, dir.path(), *s));
    let last = able.take(jobs as usize).last().unwrap();
    let drawn = last - first + 1;
    assert!(
        drawn <= 2 * jobs,
        "{drawn} were drawn for {jobs} that can be asked for"
    );
}

#[test]
fn random_jobs_are_lawful_and_hold_what_their_programs_declare() {
    lawful(60);
}

#[test]
#[ignore = "minutes; for a change of planning or lowering"]
fn thousands_of_random_jobs_are_lawful_and_hold_what_their_programs_declare() {
    lawful(2_000);
}
