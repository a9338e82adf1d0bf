//! Gradients of micro-batches that the host adds up beside an offloaded optimizer: the bits of stage 2 that reduces each micro-batch and
//! keeps all on the device, in bytes that plan and ledger agree on and that no number of micro-batches raises.

use crate::common::*;
use crate::offload::Trips;
use crate::random::Dice;
use crossweave_engine::{
    LossScaler, OffloadDevice, PipelineOrder, PipelineSpec, Precision, Prediction, RankSpec,
    Recompute, ReduceGradients, ScaleRule, Units, ZeroSpec, ZeroStage, dry_run, predict, rehearsal,
};
use crossweave_hal::{CheckerState, DType};
use crossweave_nn::{Lora, ModelSpec, Targets};
use crossweave_plan::StepKind;
use crossweave_tensor::{Group, UnitDecl};
use crossweave_zero::estimate::Leaving;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn staged(base: &RankSpec, stage: u32, reduce: ReduceGradients) -> RankSpec {
    RankSpec {
        zero: ZeroSpec {
            stage: ZeroStage::from_number(stage).unwrap(),
            reduce,
            ..base.zero
        },
        ..base.clone()
    }
}

/// The job to whose bits the others are held: on the device, each micro-batch reduced by itself.
fn on_the_device(s: &RankSpec) -> RankSpec {
    RankSpec {
        offload: None,
        ..staged(s, 2, ReduceGradients::MicroBatch)
    }
}

fn same(got: &Outcome, want: &Outcome, what: &str) {
    for (a, b) in got.metrics.iter().zip(&want.metrics) {
        assert_eq!(a.loss.to_bits(), b.loss.to_bits(), "{what}: loss");
        let [a, b] = [a, b].map(|m| m.grad_norm);
        assert_eq!(a.to_bits(), b.to_bits(), "{what}: norm {a} and {b}");
    }
    assert_eq!(got.validation, want.validation, "{what}");
    for (key, values) in &want.state {
        let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert!(
            bits(&got.state[key]) == bits(values),
            "{what}: {key:?}: {}",
            got.plan
        );
    }
}

/// A job beside an offloaded optimizer, with `g` micro-batches.
struct Job {
    model: ModelSpec,
    lora: Option<Lora>,
    tp: u32,
    spec: RankSpec,
    what: String,
}

fn draw(d: &mut Dice, folder: &Path) -> Job {
    let tp = d.of(&[1, 1, 1, 2]);
    let model = match (tp, d.once_in(2)) {
        (1, true) => gpt2(2, 0.1),
        (1, false) => llama(2),
        (_, true) => even(gpt2(2, 0.0)),
        (_, false) => even(llama(2)),
    };
    let ranks = d.of(&[1, 1, 2, 3, 4]);
    let g = match ranks {
        1 => d.of(&[2, 3, 4, 8]),
        3 => d.of(&[2, 4, 8]),
        _ => d.of(&[2, 3, 6]),
    };
    let stage = d.roll(4) as u32;
    let stage = if ranks > 1 { stage.max(1) } else { stage };
    let mut s = staged(&spec(ranks, g), stage, ReduceGradients::MicroBatch);
    s.compute = d.of(&[DType::F32, DType::F32, DType::Bf16, DType::F16]);
    s.clip = d.of(&[0.0, 0.5]);
    s.recompute = d.of(&[Recompute::None, Recompute::Full, Recompute::Selective]);
    s.zero.bucket_bytes = d.of(&[0, 6000, 1 << 30]);
    s.zero.overlap = !d.once_in(4);
    s.precision = Precision {
        scaler: (s.compute == DType::F16)
            .then(|| LossScaler::new(ScaleRule::Torch, 2f64.powi(24), 2, 2, 1.0)),
        accum: match s.compute == DType::Bf16 && d.once_in(3) {
            true => DType::Bf16,
            false => DType::F32,
        },
        ..Precision::default()
    };
    if tp == 1 && d.once_in(4) {
        let count = units(&model).len() as u32;
        let order = d.of(&[PipelineOrder::GPipe, PipelineOrder::OneFOneB]);
        s.pipeline = Some(PipelineSpec::even(count, 2, order));
    }
    let tier = d.of(&[OffloadDevice::Host, OffloadDevice::Nvme]);
    let mut o = offload(folder, tier);
    let how = o.optimizer.as_mut().unwrap();
    how.ratio = d.of(&[1.0, 1.0, 0.3, 0.7]);
    how.pin = d.once_in(3);
    how.group = d.of(&[None, Some(100)]);
    o.params = stage == 3 && how.ratio == 1.0 && d.once_in(2);
    o.files.buffers = 2 + d.roll(4) as usize;
    let what = format!(
        "tp {tp}, {ranks} ranks, {g} micro-batches, stage {stage}, {:?} summed in {:?}, clip {}, {tier:?}, ratio {}, params {}, pp {}, {} buffers, buckets {}",
        s.compute,
        s.precision.accum,
        s.clip,
        o.optimizer.unwrap().ratio,
        o.params,
        s.pipeline.is_some(),
        o.files.buffers,
        s.zero.bucket_bytes
    );
    s.offload = Some(o);
    if s.zero.stage < ZeroStage::Two && s.pipeline.is_none() {
        s.zero.reduce = ReduceGradients::Auto;
    }
    assert!(s.sums_on_the_host(), "{what}");
    let lora = (tp == 1 && s.pipeline.is_none() && d.once_in(4)).then_some(Lora {
        r: 3,
        alpha: 7.0,
        dropout: 0.0,
        rslora: false,
        targets: Targets::AllLinear,
        parameters: vec![],
    });
    let what = format!("{what}, adapters {}", lora.is_some());
    Job {
        model,
        lora,
        tp,
        spec: cut_over(s, tp),
        what,
    }
}

/// A rehearsal of rank 0 of a job.
fn planned(w: &World, model: &impl Declares, s: &RankSpec) -> Prediction {
    let s = ranked(s, 0);
    // A device of its own, so that nothing else is counted.
    let alone = w.null.with_checker(&CheckerState::default());
    let null = alone.open(0).unwrap();
    let units = Units::new(units(model), &s.place, &s.optim).unwrap();
    let dry = w.null.open(0).unwrap();
    let dry = dry_run(&dry, &units, s.compute, s.rows.batch, s.rows.seq_len).unwrap();
    predict(&mut rehearsal(&null, units, &s, &dry).unwrap()).unwrap()
}

/// Bytes of gradients that left the device: by the tag of what they went into, which is the pool's where sums rest in files.
fn out(moved: &BTreeMap<String, u64>) -> u64 {
    let of = |tag| moved.get(tag).copied().unwrap_or(0);
    of("grad") + of("moment")
}

/// Trained elements of the units of a job of one stage.
fn sizes(model: &impl Declares, s: &RankSpec) -> Vec<u64> {
    let units = placed(units(model), s);
    let held = |u: &UnitDecl| -> u64 {
        let flat = u.params.iter().filter(|p| p.group != Group::Base);
        match u.params.iter().any(|p| p.group.trains()) {
            true => flat.map(|p| p.held.part.numel()).sum(),
            false => 0,
        }
    };
    units.iter().map(held).collect()
}

fn formula<'a>(s: &RankSpec, units: &'a [u64]) -> Leaving<'a> {
    let how = s.offload.as_ref().unwrap().optimizer.unwrap();
    Leaving {
        units,
        ranks: s.data_ranks().into(),
        ratio: how.ratio,
        micro_batches: s.micro_batches.into(),
        wire: match s.precision.accum {
            DType::F32 => how.wire(s.compute).bytes(1),
            narrow => narrow.bytes(1),
        },
        sum: s.precision.accum.bytes(1),
    }
}

/// The run has the bytes of the rehearsal, and both have those of the formula.
fn as_planned(w: &World, job: &Job, ran: &Outcome, what: &str) {
    let (s, steps) = (&job.spec, ran.metrics.len() as u64);
    let model = Cut(job.model.clone(), job.lora.clone(), job.tp);
    let plan = planned(w, &model, s);
    let run = &ran.ledgers[0].memory;
    assert_eq!(
        plan.steady.tags["grad"], run.tags["grad"],
        "{what}: gradients of the device"
    );
    for tag in ["grad", "master", "moment", "param"] {
        let [host, pinned] = [&plan.steady.host, &plan.steady.pinned].map(|m| m.get(tag));
        assert_eq!(host, run.host.get(tag), "{what}: host memory, {tag}");
        assert_eq!(
            pinned,
            run.pinned.get(tag),
            "{what}: page-locked memory, {tag}"
        );
    }
    assert_eq!(steps * out(&plan.to_host), out(&run.to_host), "{what}: out");
    if s.pipeline.is_some() {
        return;
    }
    let units = sizes(&model, s);
    let f = formula(s, &units);
    assert_eq!(out(&plan.to_host), f.out(), "{what}: out by the formula");
    let how = s.offload.as_ref().unwrap().optimizer.unwrap();
    if how.tier == OffloadDevice::Host {
        assert_eq!(
            run.host["grad"].now,
            f.sums() + f.landings(),
            "{what}: sums"
        );
        let pinned = run.pinned["grad"].now;
        let all = if how.pin { f.sums() } else { 0 };
        assert_eq!(pinned, all + f.landings(), "{what}: landings");
    }
}

/// For any number of micro-batches the device holds the gradients of the open buckets and what it updates itself, at every stage that
/// has slices; each further micro-batch adds one transfer, and of sums in files one read and one write.
#[test]
fn no_number_of_micro_batches_raises_what_the_device_holds() {
    let (w, dir) = (world(), tempfile::tempdir().unwrap());
    let model = with(&gpt2(6, 0.0), &[("tie_word_embeddings", false)]);
    for (stage, ranks) in [(0, 1), (1, 1), (2, 1), (3, 1), (1, 4), (2, 2), (3, 3)] {
        for (tier, ratio) in [
            (OffloadDevice::Host, 1.0),
            (OffloadDevice::Nvme, 1.0),
            (OffloadDevice::Host, 0.3),
        ] {
            let of = |g: u32| {
                let mut s = staged(&spec(ranks, 1), stage, ReduceGradients::Auto);
                (s.micro_batches, s.rows.batch, s.zero.bucket_bytes) = (g, 1, 1);
                let mut o = offload(dir.path(), tier);
                o.optimizer.as_mut().unwrap().ratio = ratio;
                s.offload = Some(o);
                s
            };
            let what = format!("stage {stage}, {ranks} ranks, {tier:?}, ratio {ratio}");
            let [two, eight] = [2, 8].map(|g| planned(&w, &model, &of(g)));
            let peak = |p: &Prediction| p.steady.tags["grad"].peak;
            assert_eq!(peak(&two), peak(&eight), "{what}");
            // What is uploaded for six micro-batches: tokens and targets.
            let inputs = 6 * 8 * SEQ;
            let total = two.steady.total.peak + inputs;
            assert_eq!(total, eight.steady.total.peak, "{what}");
            let units = sizes(&model, &of(2));
            let whole = |p: &u64| 4 * p.next_multiple_of(u64::from(ranks));
            let open = 2 * units.iter().map(whole).max().unwrap();
            let slice = open / 2 / u64::from(ranks);
            let f = formula(&of(2), &units);
            assert!(
                peak(&two) <= open + 2 * slice + f.rest(),
                "{what}: {}",
                peak(&two)
            );
            let more = formula(&of(8), &units).out();
            let moved = (out(&two.to_host), out(&eight.to_host));
            assert_eq!(moved, (f.out(), more), "{what}");
            if let (Some(a), Some(b)) = (two.files, eight.files) {
                // Files are read and written by pages.
                let (least, most) = (6 * f.sums(), 6 * (f.sums() + 4096 * units.len() as u64));
                for moved in [b[1] - a[1], b[2] - a[2]] {
                    assert!(
                        (least..=most).contains(&moved),
                        "{what}: {least} {moved} {most}"
                    );
                }
                assert_eq!(a[0], b[0], "{what}: files");
            }
        }
    }
}

/// Jobs that are drawn have the bits of the same job on the device, and gradients of micro-batches leave as they are made.
#[test]
fn drawn_jobs_have_the_bits_of_the_device() {
    let (w, dir) = (world(), tempfile::tempdir().unwrap());
    let seed: u64 = std::env::var("CROSSWEAVE_SEED").map_or(39, |s| s.parse().unwrap());
    let jobs: u64 = std::env::var("CROSSWEAVE_JOBS").map_or(16, |s| s.parse().unwrap());
    for k in 0..jobs {
        let job = draw(&mut Dice(seed * 1000 + k), dir.path());
        let cut = Cut(job.model.clone(), job.lora.clone(), job.tp);
        let s = &job.spec;
        let what = format!("job {k} of seed {seed}: {}", job.what);
        let want = train(&w, &cut, &on_the_device(s), 3);
        let got = train(&w, &cut, s, 3);
        same(&got, &want, &what);
        as_planned(&w, &job, &got, &what);
        let parts = got.plan.steps.iter();
        let parts = parts.filter(|s| matches!(s.op, StepKind::GradOut { more: true, .. }));
        assert!(parts.count() > 0, "{what}: {}", got.plan);
    }
    assert_eq!(
        std::fs::read_dir(dir.path()).unwrap().count(),
        0,
        "swap is left"
    );
}

/// With a delayed update the first gradients of a step wait for the updates before them: it trains as it does with one sum on the device.
#[test]
fn delayed_updates_have_their_sums_before_the_next() {
    let (w, dir) = (world(), tempfile::tempdir().unwrap());
    for (ranks, clip) in [(1, 0.0), (2, 0.5)] {
        let of = |reduce| {
            let mut s = staged(&spec(ranks, 3), 2, reduce);
            (s.clip, s.zero.bucket_bytes) = (clip, 1);
            let mut o = offload(dir.path(), OffloadDevice::Host);
            o.optimizer.as_mut().unwrap().delayed = true;
            s.offload = Some(o);
            train(&w, &llama(2), &s, 5)
        };
        let (each, once) = (of(ReduceGradients::Auto), of(ReduceGradients::Step));
        let far = distance(&each, &once);
        assert!(far < 1e-5, "{ranks} ranks, clip {clip}: {far:e}");
        assert_ne!(each.plan.to_string(), once.plan.to_string());
    }
}

/// A step that fails between two micro-batches leaves nothing of its gradients in the sums of the next.
#[test]
fn a_step_behind_one_that_failed_begins_new_sums() {
    let (w, dir) = (world(), tempfile::tempdir().unwrap());
    for tier in [OffloadDevice::Host, OffloadDevice::Nvme] {
        let mut s = staged(&spec(1, 2), 2, ReduceGradients::Auto);
        s.recompute = Recompute::Full;
        s.zero.bucket_bytes = 1;
        s.offload = Some(offload(dir.path(), tier));
        let losses = |s: &RankSpec| -> Vec<u64> {
            let calls = Arc::new(AtomicU64::new(0));
            let mut all = units(&llama(2));
            let first = all.remove(0);
            let block = Arc::new(Trips(first.block, calls.clone()));
            all.insert(0, UnitDecl { block, ..first });
            let mut t = started(&w, all, s).unwrap();
            let mut losses = vec![];
            for step in 0..5 {
                // The second micro-batch's recomputation: its other gradients, and those of the first, are with the host.
                calls.store(if step == 1 { 4 } else { 0 }, Ordering::Relaxed);
                let done = one_step(&mut t, s, step);
                match step {
                    1 => assert!(done.unwrap_err().to_string().contains("fails on purpose")),
                    _ => {
                        done.unwrap();
                        losses.push(t.metrics().unwrap().unwrap().loss.to_bits());
                    }
                }
            }
            t.settle_offload().unwrap();
            losses
        };
        assert_eq!(losses(&s), losses(&on_the_device(&s)), "{tier:?}");
    }
}

/// With four micro-batches a step, a model of eight times the parameters trains in the device memory that the small one takes without offload.
#[test]
fn eight_times_the_parameters_train_in_the_memory_of_the_small_model() {
    let (w, dir) = (world(), tempfile::tempdir().unwrap());
    let (small, large) = (llama(4), llama(36));
    let parameters = |m: &ModelSpec| sizes(m, &spec(1, 4)).iter().sum::<u64>();
    assert!(parameters(&large) >= 8 * parameters(&small));
    let mut base = staged(&spec(1, 4), 3, ReduceGradients::Auto);
    (base.rows.batch, base.zero.bucket_bytes) = (1, 1);
    base.recompute = Recompute::Full;
    let peak = |s: &RankSpec, m: &ModelSpec| {
        let ran = train(&w, m, s, 2);
        ran.ledgers[0].memory.total.peak
    };
    let without = peak(&base, &small);
    for tier in [OffloadDevice::Host, OffloadDevice::Nvme] {
        let mut s = base.clone();
        let mut o = offload(dir.path(), tier);
        (o.params, o.activations) = (true, true);
        s.offload = Some(o);
        let with = peak(&s, &large);
        assert!(
            with <= without,
            "{tier:?}: {with} bytes, {without} without offload"
        );
    }
}
