//! What ranks do together outside the step is what `side_programs` says, counted by the ledger of collectives, and is held against the other
//! ranks: validation, samples, reads of state, and what `find_nan` exchanges.

use crate::boxes::{SplitModel, expert_job, ranks, start};
use crate::common::*;
use crate::context::{meets, rowwise, ways};
use crate::experts::ExpertModel;
use crossweave_engine::{
    Engine, Error, MicroBatch, PipelineOrder, PipelineSpec, RankSpec, Rows, StateKind,
    side_programs,
};
use crossweave_hal::LocalKv;
use crossweave_mesh::{Axis, AxisSet, Topology};
use crossweave_plan::{
    Facts, PlanError, Said, SideEvent, SideProgram, StepKind, check_side_programs,
};
use crossweave_tensor::UnitDecl;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Calls by the group's name in the ledger.
type Calls = BTreeMap<String, u64>;

fn counted(t: &Engine) -> Calls {
    let mut out = Calls::new();
    for line in t.ledger().collectives {
        *out.entry(line.group).or_default() += line.calls;
    }
    out
}

/// What something adds to the count.
fn added<T>(t: &mut Engine, what: impl FnOnce(&mut Engine) -> T) -> (Calls, T) {
    let before = counted(t);
    let out = what(t);
    let mut after = counted(t);
    for (group, n) in before {
        *after.get_mut(&group).unwrap() -= n;
    }
    after.retain(|_, n| *n > 0);
    (after, out)
}

/// The calls that the ledger has of one thing said: messages to and from single ranks are two.
fn calls_of(said: &Said) -> u64 {
    let messages = said.moves.as_ref().is_some_and(|m| m.kind == "messages");
    if messages { 2 } else { 1 }
}

/// What a program says it does; a message whose shape comes before it is two calls.
fn announced(s: &RankSpec, facts: &Facts, program: &SideProgram) -> Calls {
    let mut out = Calls::new();
    let mut add = |axes: AxisSet, n: u64| {
        if let Some(group) = s.place.among(axes) {
            *out.entry(group.ledger()).or_default() += n;
        }
    };
    let shaped = program.name != "validation";
    for e in &program.events {
        match e {
            SideEvent::Said(said) => add(said.axes, 1),
            SideEvent::Step(StepKind::Gather { unit, .. }) => add(facts.owners(*unit), 1),
            SideEvent::Step(StepKind::Forward { unit, .. }) => {
                let talk = &facts.units[*unit as usize].talk;
                talk.forward
                    .iter()
                    .for_each(|said| add(said.axes, calls_of(said)));
            }
            SideEvent::Step(StepKind::Backward { unit, .. }) => {
                let talk = &facts.units[*unit as usize].talk;
                talk.backward
                    .iter()
                    .for_each(|said| add(said.axes, calls_of(said)));
            }
            SideEvent::Step(StepKind::SendAct { .. } | StepKind::RecvAct { .. }) => {
                add(Axis::Pp.into(), if shaped { 2 } else { 1 });
            }
            SideEvent::Whole(StepKind::Forward { unit, .. }) => {
                let talk = &facts.units[*unit as usize].talk;
                let said = talk.forward.iter().filter(|s| !s.axes.contains(Axis::Cp));
                said.for_each(|said| add(said.axes, calls_of(said)));
            }
            SideEvent::Step(other) | SideEvent::Whole(other) => panic!("{other}"),
        }
    }
    out
}

/// A parameter of each unit of the model: one of which a rank has a part, where there is one.
fn one_of_each(units: &[UnitDecl]) -> Vec<String> {
    let each = units.iter().filter(|u| !u.params.is_empty());
    let pick = |u: &UnitDecl| {
        let cut = u.params.iter().position(|p| !p.held.part.is_whole());
        u.params[cut.unwrap_or(0)].name.clone()
    };
    each.map(pick).collect()
}

struct Rank {
    spec: RankSpec,
    facts: Facts,
    side: Vec<SideProgram>,
    done: BTreeMap<&'static str, Calls>,
}

fn served<T: Default>(t: &mut Engine, ask: impl FnOnce(&mut Engine) -> T) -> T {
    if !t.spec().place.is_first() {
        t.serve_reads().unwrap();
        return T::default();
    }
    t.lead();
    let out = ask(t);
    t.done_reading().unwrap();
    out
}

/// Does everything there is outside a step, counting.
fn rank(w: &World, s: RankSpec, model: &impl Declares, kv: &Arc<LocalKv>) -> Rank {
    let names = one_of_each(&placed(model.declare(), &s));
    let mut t = start(w, &s, model.declare(), kv);
    let side = side_programs(t.spec(), t.plan(), t.facts());
    let n = s.rows.batch * s.rows.seq_len;
    let tokens: Vec<i32> = (0..n).map(|i| (i * 5 % 37) as i32).collect();
    let batch = MicroBatch {
        tokens: &tokens,
        targets: &tokens,
        lengths: &[],
        images: &[],
        first_sequence: 0,
    };
    let mut done = BTreeMap::new();
    let (calls, loss) = added(&mut t, |t| {
        let loss = t.evaluate(&batch).unwrap();
        t.mean_over_replicas(&[loss]).unwrap()
    });
    assert!(loss.is_finite());
    done.insert("validation", calls);
    // What validation has made whole is old again.
    t.publish().unwrap();
    let (calls, logits) = added(&mut t, |t| {
        served(t, |t| t.logits(&tokens[..5], 1, 5).unwrap())
    });
    assert_eq!(logits.len(), if s.place.is_first() { 5 * 37 } else { 0 });
    done.insert("samples", calls);
    t.publish().unwrap();
    let (calls, ()) = added(&mut t, |t| {
        served(t, |t| {
            for name in &names {
                assert!(!t.read(name, StateKind::Value).unwrap().is_empty());
            }
        });
    });
    done.insert("reads", calls);
    if s.pipeline.is_none() {
        let (calls, (loss, _)) = added(&mut t, |t| t.loss_and_grads(&batch).unwrap());
        assert!(loss.is_finite());
        done.insert("gradients of a batch", calls);
        t.publish().unwrap();
    }
    // A value that is not finite is found by one rank and said by all.
    t.find_nonfinite();
    let name = &names[0];
    let whole = t.params().into_iter().find(|p| p.name == *name).unwrap();
    let whole = whole.shape.numel() as usize;
    t.load(name, StateKind::Value, 0, &vec![f32::NAN; whole])
        .unwrap();
    t.publish().unwrap();
    let found = |t: &Engine| {
        let lines = t.ledger().collectives;
        let mine = lines.into_iter().filter(|l| l.tag == "nonfinite");
        let mut out = Calls::new();
        mine.for_each(|l| *out.entry(l.group).or_default() += l.calls);
        out
    };
    let mut batches = vec![];
    batches.resize_with(s.own_micro_batches() as usize, || MicroBatch {
        tokens: &tokens,
        targets: &tokens,
        lengths: &[],
        images: &[],
        first_sequence: 0,
    });
    let e = t.step(&batches, 1e-3).unwrap_err();
    assert!(matches!(e, Error::NotFinite(_)), "{e}");
    done.insert("find_nan", found(&t));
    Rank {
        facts: t.facts().clone(),
        spec: s,
        side,
        done,
    }
}

fn job(w: &World, model: &impl Declares, s: &RankSpec) -> Vec<Rank> {
    let kv = Arc::new(LocalKv::default());
    ranks(s, |s| rank(w, s, model, &kv))
}

fn held(mesh: &Topology, all: &[Rank]) -> Result<(), PlanError> {
    let each: Vec<_> = all.iter().map(|r| (&r.side[..], &r.facts)).collect();
    check_side_programs(mesh, &each)
}

fn agrees(all: &[Rank], what: &str) {
    let mesh = all[0].spec.place.mesh();
    held(&mesh, all).unwrap_or_else(|e| panic!("{what}: {e}"));
    for r in all {
        let rank = r.spec.place.job_rank();
        for (name, calls) in &r.done {
            let program = r.side.iter().find(|p| p.name == *name);
            let said = program.map(|p| announced(&r.spec, &r.facts, p));
            assert_eq!(
                *calls,
                said.unwrap_or_default(),
                "{what}, rank {rank}, {name}: calls by group, then what was announced"
            );
        }
    }
}

#[test]
fn what_is_done_outside_the_step_is_what_was_announced() {
    let w = world();
    for stage in [0, 1, 3] {
        let over = |s: RankSpec, pp| RankSpec {
            pipeline: Some(PipelineSpec::even(4, pp, PipelineOrder::OneFOneB)),
            ..s
        };
        let of = |dp| staged(spec(dp, 2), stage);
        agrees(&job(&w, &llama(2), &of(1)), "one rank");
        agrees(
            &job(&w, &gpt2(2, 0.0), &of(2)),
            &format!("dp 2, stage {stage}"),
        );
        for (dp, pp) in [(2, 2), (1, 3)] {
            let all = job(&w, &gpt2(2, 0.0), &over(of(dp), pp));
            agrees(&all, &format!("dp {dp} x pp {pp}, stage {stage}"));
        }
        let each = [[2, 1], [2, 2]].into_iter().flat_map(|mesh: [u32; 2]| {
            let fits = ways(mesh[0])
                .into_iter()
                .filter(move |r| meets(&gpt2(2, 0.0), *r, mesh));
            fits.map(move |rows| (mesh, rows))
        });
        for ([cp, tp], rows) in each {
            let s = RankSpec {
                rows: Rows::new(GLOBAL / 2, 8),
                ..crate::common::over(of(1), [cp, tp])
            };
            agrees(
                &job(&w, &rowwise(&gpt2(2, 0.0), None, tp, rows), &s),
                &format!("cp {cp} x tp {tp}, stage {stage}, {rows:?}"),
            );
        }
        for mesh in [[1, 2, 1], [2, 2, 1]] {
            let s = RankSpec {
                rows: Rows::new(4, SEQ),
                ..expert_job(mesh, stage, crate::boxes::adam())
            };
            agrees(
                &job(&w, &SplitModel, &s),
                &format!("{mesh:?}, stage {stage}"),
            );
        }
        for mesh in [[2, 1, 2], [4, 1, 2]] {
            let s = RankSpec {
                rows: Rows::new(4, SEQ),
                ..expert_job(mesh, stage, crate::boxes::adam())
            };
            agrees(
                &job(&w, &ExpertModel, &s),
                &format!("experts {mesh:?}, stage {stage}"),
            );
        }
    }
}

/// A rank that leaves something out is named with the program, before anything runs.
#[test]
fn a_rank_that_would_leave_others_waiting_outside_the_step_is_named() {
    let w = world();
    let s = RankSpec {
        pipeline: Some(PipelineSpec::even(4, 2, PipelineOrder::OneFOneB)),
        ..staged(spec(2, 2), 3)
    };
    let mut all = job(&w, &gpt2(2, 0.0), &s);
    let mesh = all[0].spec.place.mesh();
    held(&mesh, &all).unwrap();
    let whole = all[1].side.clone();
    assert_eq!(whole.len(), 4, "{whole:?}");
    for (k, program) in whole.iter().enumerate() {
        for (at, event) in program.events.iter().enumerate() {
            all[1].side.clone_from(&whole);
            all[1].side[k].events.remove(at);
            let got = held(&mesh, &all);
            // Forwards of these blocks say nothing to others.
            let quiet = matches!(
                event,
                SideEvent::Step(StepKind::Forward { .. }) | SideEvent::Whole(_)
            );
            assert_eq!(got.is_ok(), quiet, "{} without {event}", program.name);
            if let Err(e) = got {
                let text = e.to_string();
                let parts = [program.name, "outside the step", "would wait for ever"];
                assert!(parts.iter().all(|p| text.contains(p)), "{text}");
            }
        }
    }
}
