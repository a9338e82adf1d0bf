//! The types of gradients in the dry run: of every family that can be cut over two ranks nothing is wrong, and any one sum over the ranks
//! that is taken away or made twice, in any block, is named before anything runs; so is a sum of the plan.

use crate::common::{with, world};
use crossweave_engine::{dry_run, dry_run_with};
use crossweave_family::{Family, families};
use crossweave_hal::{DType, Device};
use crossweave_mesh::{Axis, AxisSet, Place};
use crossweave_nn::split::{check, sequence};
use crossweave_nn::{Distill, Lora, ModelSpec, Predicts, Targets, taught};
use crossweave_tensor::ops::pair;
use crossweave_tensor::{Altered, Check, Distillation, UnitDecl, place_on};
use serde_json::Value;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;

/// Tokens of a pair of texts.
const PAIR: u64 = 6;

/// The models of the committed checkpoints, by their folders, of which two ranks can have equal parts: with an image in each row where they see,
/// and where they tell whether a text follows another, of such rows too.
fn models() -> BTreeMap<String, ModelSpec> {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/oracles");
    let folders = std::fs::read_dir(all).unwrap().map(|f| f.unwrap());
    let found = folders.filter_map(|f| {
        let name = f.file_name().into_string().unwrap();
        let text = std::fs::read_to_string(f.path().join("model/config.json")).ok()?;
        let config: Value = serde_json::from_str(&text).unwrap();
        let spec = ModelSpec::from_hf(&config).unwrap().seeing(1);
        check(spec.model(), 2).is_ok().then_some((name, spec))
    });
    let each = found.flat_map(|(name, spec)| {
        let answers = spec.model().head.pair.is_some();
        let pairs = answers.then(|| (format!("{name} of pairs"), spec.pairing(PAIR, true)));
        pairs.into_iter().chain([(name, spec)])
    });
    each.collect()
}

/// Asserts that there is a model of every family of the table for which `holds`.
fn of_every_family(models: &BTreeMap<String, ModelSpec>, holds: impl Fn(&Family) -> bool) {
    let cut: BTreeSet<&str> = models.values().map(|s| s.family().name).collect();
    let all = families().filter(|f| holds(f));
    let all: BTreeSet<&str> = all.map(|f| f.name).collect();
    assert_eq!(cut, all);
    assert!(all.len() > 30, "{all:?}");
}

/// The units of rank 0 of two, whole and beside adapters of every linear layer, with hidden states whole or cut by tokens.
fn both(spec: &ModelSpec, hidden_over: AxisSet) -> [Vec<UnitDecl>; 2] {
    let place = Place::on(&[(Axis::Tp, 2)], 0).unwrap();
    let lora = Lora {
        r: 2,
        alpha: 4.0,
        dropout: 0.1,
        rslora: false,
        targets: Targets::AllLinear,
        parameters: vec![],
    };
    let whole = crossweave_nn::units_over(spec.model(), &place);
    let mut all = [whole, lora.units(spec, &place).unwrap()];
    for units in &mut all {
        units.iter_mut().for_each(|u| u.hidden_over = hidden_over);
        place_on(units, &place).unwrap();
    }
    all
}

/// Tokens of a row that the model reads.
fn tokens(spec: &ModelSpec) -> u64 {
    let m = spec.model();
    if m.stack.embed.kinds.is_some_and(|k| k.read > 0) {
        return pair::tokens(PAIR)[1];
    }
    let read = m.decoder.as_ref().map_or(0, |d| d.read);
    (m.positions.min(8) + read).max(read + 1)
}

/// The fault that a dry run finds, with one sum made `times` times: that of a unit, by its number among those of its block. `pass`: of which
/// of the runs of the block, those of training or (2) that without targets; nothing where the block has no such sum.
fn altered(
    null: &Device,
    (units, seq): (&[UnitDecl], u64),
    (unit, sum, times): (usize, usize, usize),
    pass: Option<usize>,
) -> Option<(&'static str, Result<(), String>)> {
    let how = Rc::new(Altered {
        sum,
        times,
        met: Cell::new(None),
    });
    let runs = Cell::new(0);
    let alter = |u: usize, check: Check| {
        if u != unit {
            return check;
        }
        let run = runs.replace(runs.get() + 1);
        match pass.is_none_or(|p| p == run) {
            true => check.altered(&how),
            false => check,
        }
    };
    let found = dry_run_with(null, units, DType::F32, [2, seq], &alter);
    Some((how.met.get()?, found.map(|_| ()).map_err(|e| e.to_string())))
}

/// How often each op was taken away or doubled, in the models that are cut.
type Met = BTreeMap<&'static str, usize>;

/// Takes each sum of each block away, and makes each twice; `hidden_over`: the axes over which hidden states are cut.
fn each_sum_is_named(models: &BTreeMap<String, ModelSpec>, hidden_over: AxisSet) -> Met {
    let w = world();
    let null = w.null.open(0).unwrap();
    let mut met = Met::new();
    for (name, spec) in models {
        for (k, units) in both(spec, hidden_over).iter().enumerate() {
            let what = format!("{name}{}", ["", " with adapters"][k]);
            let model = (&units[..], tokens(spec).next_multiple_of(2));
            each_sum_of(&null, &what, model, &mut met);
        }
    }
    met
}

/// The same of the blocks of one model.
fn each_sum_of(null: &Device, what: &str, model: (&[UnitDecl], u64), met: &mut Met) {
    let units = model.0;
    if let Err(e) = dry_run(null, units, DType::F32, 2, model.1) {
        panic!("{what}: {e}");
    }
    let last = units.len() - 1;
    let passes = (0..units.len()).map(|u| (u, None)).chain([(last, Some(2))]);
    for (u, pass) in passes {
        for (sum, times) in (0..).flat_map(|sum| [(sum, 0), (sum, 2)]) {
            let Some((op, found)) = altered(null, model, (u, sum, times), pass) else {
                break;
            };
            let what = format!("{what}, {} {times} times: sum {sum}, {op}", units[u].name);
            let Err(e) = found else {
                panic!("{what}: nothing is found");
            };
            assert!(
                e.contains("sharding types") && e.contains("on tp"),
                "{what}: {e}"
            );
            let names = units.iter().flat_map(|u| &u.params).map(|p| &p.name);
            if op == "sum of a scale's gradient" {
                assert!(e.contains("_norm on tp"), "{what}: {e}");
                assert!(
                    names.into_iter().any(|n| e.contains(n.as_str())),
                    "{what}: {e}"
                );
            }
            *met.entry(op).or_default() += 1;
        }
    }
}

/// Enters, reductions, sums of scales, of the vocabulary's lookup and loss, in layers, adapters, heads and decoders: each is needed once.
#[test]
fn any_sum_that_is_missing_or_made_twice_is_named() {
    // Experts are given the tokens of a rank alone.
    let mut models = models();
    models.retain(|_, spec| spec.model().routed().next().is_none());
    let met = each_sum_is_named(&models, AxisSet::NONE);
    let ops = [
        "cross_entropy",
        "enter",
        "gather",
        "logits",
        "reduce",
        "sum of a scale's gradient",
        "sum of squares",
    ];
    assert_eq!(met.keys().copied().collect::<Vec<_>>(), ops, "{met:?}");
    of_every_family(&models, |f| f.tensors.stacks.is_empty());
}

/// Gathers and scatters of hidden states that are cut by tokens, with what of the sums is left.
#[test]
fn any_gather_that_is_missing_or_made_twice_is_named() {
    let mut models = models();
    models.retain(|_, spec| sequence(spec.model(), 2, 0).is_ok());
    of_every_family(&models, |f| f.predicts() != Predicts::Spans && !f.sees());
    let met = each_sum_is_named(&models, Axis::Tp.into());
    let ops = [
        "counts of experts",
        "cross_entropy",
        "gather",
        "logits",
        "reduce",
        "scatter",
        "sum of a scale's gradient",
        "sum of squares",
    ];
    assert_eq!(met.keys().copied().collect::<Vec<_>>(), ops, "{met:?}");
}

/// Sums of a teacher's blocks, and of the loss beside it, over a vocabulary that is cut.
#[test]
fn any_sum_beside_a_teacher_that_is_missing_or_made_twice_is_named() {
    let (w, models) = (world(), models());
    let null = w.null.open(0).unwrap();
    let place = Place::on(&[(Axis::Tp, 2)], 0).unwrap();
    let how = Distill {
        loss: Distillation::new(0.5, 2.0),
        stop_step: None,
        rests: true,
    };
    let mut met = Met::new();
    for (student, teacher) in [("gpt2-tied", "qwen3-v4"), ("olmo2-v5", "gpt2-untied")] {
        let keys = [("vocab_size", 37)];
        let [student, teacher] = [student, teacher].map(|n| with(&models[n], &keys));
        let mut units = taught(student.model(), teacher.model(), &how, &place);
        place_on(&mut units, &place).unwrap();
        each_sum_of(&null, student.family().name, (&units, 6), &mut met);
    }
    for op in ["distillation", "sum of the divergence", "reduce", "enter"] {
        assert!(met.contains_key(op), "{op} is not in {met:?}");
    }
    // Logits of a student and of a teacher that are cut otherwise do not meet.
    let [student, teacher] =
        ["gpt2-tied", "qwen3-v4"].map(|n| with(&models[n], &[("vocab_size", 37)]));
    let mut units = taught(student.model(), teacher.model(), &how, &place);
    let alone = taught(student.model(), teacher.model(), &how, &Place::alone());
    let last = units.len() - 2;
    units[last] = alone[last].clone();
    place_on(&mut units, &place).unwrap();
    let e = dry_run(&null, &units, DType::F32, 2, 6).map(|_| ());
    let e = e.unwrap_err().to_string();
    assert!(e.contains("distillation"), "{e}");
}

/// A gradient that is whole on each rank and summed by the plan over them would be twice as large; one of cut parameters would be that of
/// nothing.
#[test]
fn a_sum_of_the_plan_that_is_not_needed_is_named() {
    let w = world();
    let null = w.null.open(0).unwrap();
    for name in ["gpt2-tied", "qwen3-v4", "mt5-v4"] {
        let spec = &models()[name];
        let [units, _] = both(spec, AxisSet::NONE);
        for (u, unit) in units.iter().enumerate() {
            let trained = unit.params.iter().enumerate();
            for (i, p) in trained.filter(|(_, p)| p.group.trains()) {
                let mut wrong = units.clone();
                wrong[u].params[i].held.owners = AxisSet::STAGE;
                let found = dry_run(&null, &wrong, DType::F32, 2, tokens(spec));
                let e = found.map(|_| ()).map_err(|e| e.to_string());
                let Err(e) = e else {
                    panic!("{name}: {} is summed once too often and not named", p.name);
                };
                let says = format!("the gradient of {}", p.name);
                assert!(e.contains("on tp") && e.contains(&says), "{e}");
            }
        }
    }
}
