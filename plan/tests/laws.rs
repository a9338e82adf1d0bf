//! Every law has a broken plan that must be refused, beside the lawful plan it was made from.
#![forbid(unsafe_code)]

use crossweave_plan::{
    Depend, Facts, Law, Pass, PassManager, Plan, PlanError, StepId, UnitFacts, check, trace, words,
};

#[path = "laws/slices.rs"]
mod slices;

fn facts(units: u32, micro_batches: u32) -> Facts {
    let unit = UnitFacts {
        params: 8,
        param_bytes: 16,
        grad_bytes: 32,
        state_bytes: 96,
        saved_all: 50,
        saved_selective: 20,
        saved_input: 10,
        flow_bytes: 10,
        workspace_bytes: 1,
        ..UnitFacts::default()
    };
    Facts::uniform(units, micro_batches, 2, unit)
}

fn plan(text: &str) -> Plan {
    text.parse().unwrap()
}

/// The mutant keeps the homes of the plan it was made from: dropping every gather does not make parameters resident.
fn refused(law: Law, good: &str, bad: &str, facts: &Facts, says: &str) {
    let good = plan(good);
    check(&good, facts).unwrap_or_else(|e| panic!("the lawful plan is refused: {e}"));
    let mut bad = plan(bad);
    (bad.params, bad.grads) = (good.params, good.grads);
    let fault = check(&bad, facts).expect_err(&format!("{law:?} lets {bad} pass"));
    assert_eq!(fault.law, law, "{fault}");
    let text = fault.to_string();
    assert!(text.contains(says), "'{text}' does not say '{says}'");
    assert!(text.starts_with("plan"), "{text}");
}

const ONE: &str = "F0.0 F1.0 B1.0 ar1 B0.0 ar0 norm opt0 opt1";
const CHECKPOINTED: &str = "F0.0' F1.0 B1.0 ar1 R0.0 B0.0 ar0 opt0 opt1";
const SHARDED: &str = "+0 F0.0 -0 +1 F1.0 B1.0 -1 rs1 +0 B0.0 -0 rs0 opt0 opt1";
const HOSTED: &str = "F0.0 F1.0 B1.0 ar1 gout1 B0.0 ar0 gout0 norm opt0@host pin0 opt1@host pin1";
const AWAY: &str = "shin0 +0 F0.0 -0 shin1 +1 F1.0 B1.0 -1 rs1 shin0 +0 B0.0 -0 rs0 opt0 opt1";
const FOLDED: &str =
    "F0.0 F1.0 B1.0 fold1 B0.0 fold0 F0.1 F1.1 B1.1 fold1+1 ar1 B0.1 fold0+1 ar0 opt0 opt1";
const SPLIT: &str = "F0.0 F1.0 I1.0 I0.0 W1.0 ar1 W0.0 ar0 opt0 opt1";

#[test]
fn each_law_refuses_its_mutants() {
    let f = &facts(2, 1);
    let two = &facts(2, 2);
    let both = "F0.0 F1.0 B1.0 B0.0 F0.1 F1.1 B1.1 ar1 B0.1 ar0 opt0 opt1";
    let mutants: &[(Law, &Facts, &str, &str, &str)] = &[
        (Law::Range, f, ONE, "F0.0 F7.0", "unit 7 does not exist"),
        (Law::Range, f, ONE, "F0.3", "micro-batch 3 does not exist"),
        (
            Law::Flow,
            f,
            ONE,
            "F1.0 F0.0 B1.0 B0.0",
            "the output of unit 0 for micro-batch 0 is not there",
        ),
        (
            Law::Flow,
            f,
            ONE,
            "F0.0 F1.0 B0.0 B1.0",
            "step 2 (B0.0): the gradient of the output of unit 0",
        ),
        (
            Law::Flow,
            f,
            ONE,
            "F0.0 F1.0 a0.0<1 B1.0 B0.0",
            "has a hidden state here already",
        ),
        (Law::Flow, f, ONE, "F0.0 a1.0>1", "is not there to send"),
        (
            Law::Flow,
            f,
            ONE,
            "F0.0 F1.0 g0.0<1 B1.0 B0.0",
            "has a gradient here already",
        ),
        (
            Law::Flow,
            f,
            ONE,
            "F0.0 F1.0 g0.0>1 B1.0 B0.0",
            "is not there to send",
        ),
        (
            Law::ForwardOnce,
            f,
            ONE,
            "F0.0 F0.0 F1.0 B1.0 B0.0",
            "has run forward on micro-batch 0 already",
        ),
        (
            Law::ForwardOnce,
            two,
            both,
            "F0.0 F1.0 B1.0 ar1 B0.0 ar0 opt0 opt1",
            "never runs forward on micro-batch 1",
        ),
        (
            Law::Activations,
            f,
            ONE,
            "B1.0 F0.0 F1.0 B0.0",
            "its forward has not run",
        ),
        (
            Law::Activations,
            f,
            ONE,
            "F0.0 F1.0 B1.0 B0.0 B0.0",
            "its backward has run already",
        ),
        (
            Law::Activations,
            f,
            CHECKPOINTED,
            "F0.0' F1.0 B1.0 ar1 B0.0 ar0 opt0 opt1",
            "recompute first",
        ),
        (
            Law::Activations,
            f,
            ONE,
            "F0.0_ F1.0 B1.0 B0.0",
            "kept nothing",
        ),
        (
            Law::Activations,
            f,
            SPLIT,
            "F0.0 F1.0 I1.0 W1.0 W1.0",
            "no weight gradient of unit 1 is owed",
        ),
        (
            Law::Activations,
            f,
            SPLIT,
            "F0.0 F1.0 W1.0 I1.0",
            "no weight gradient of unit 1 is owed",
        ),
        (
            Law::RecomputeInput,
            f,
            CHECKPOINTED,
            "F0.0 F1.0 B1.0 R0.0 B0.0",
            "its forward must keep the input only",
        ),
        (
            Law::RecomputeInput,
            f,
            CHECKPOINTED,
            "F0.0' F1.0 B1.0 R0.0 R0.0 B0.0",
            "no kept input",
        ),
        (
            Law::Consumed,
            f,
            ONE,
            "F0.0 F1.0 B1.0",
            "its backward is missing",
        ),
        (
            Law::Consumed,
            f,
            SPLIT,
            "F0.0 F1.0 I1.0 I0.0 W1.0",
            "never used",
        ),
        (
            Law::Consumed,
            f,
            SHARDED,
            "+0 F0.0 +1 F1.0 B1.0 rs1 B0.0 -0 rs0 opt0 opt1",
            "unit 1 is still gathered",
        ),
        (
            Law::Consumed,
            f,
            ONE,
            "F0.0_",
            "never used; run the next unit or send it",
        ),
        (
            Law::Gathered,
            f,
            SHARDED,
            "+0 F0.0 -0 F1.0 B1.0 rs1 +0 B0.0 -0 rs0 opt0 opt1",
            "put +1 before it",
        ),
        (
            Law::Gathered,
            f,
            SHARDED,
            "+0 F0.0 -0 +1 F1.0 -1 B1.0 rs1 +0 B0.0 -0 rs0 opt0 opt1",
            "put +1 before it",
        ),
        (
            Law::GatherOnce,
            f,
            SHARDED,
            "+0 +0 F0.0 -0",
            "gathered twice",
        ),
        (
            Law::GatherOnce,
            f,
            SHARDED,
            "+0 F0.0 -0 -0",
            "released but not gathered",
        ),
        (Law::GatherOnce, f, ONE, "+0 F0.0 -0", "nothing to gather"),
        (
            Law::ZeroGrad,
            f,
            ONE,
            "zg1 F0.0 F1.0 B1.0 B0.0",
            "put zg0 before its first backward",
        ),
        (
            Law::ZeroGrad,
            f,
            ONE,
            "zg1 zg0 F0.0 F1.0 B1.0 B0.0 zg1",
            "after it was written",
        ),
        (Law::ZeroGrad, f, ONE, "zg0 zg0", "cleared twice"),
        (
            Law::ReduceOnce,
            f,
            ONE,
            "F0.0 F1.0 B1.0 ar1 ar1 B0.0 ar0",
            "reduced twice",
        ),
        (
            Law::ReduceOnce,
            f,
            ONE,
            "F0.0 F1.0 B1.0 ar1 B0.0 opt1",
            "unit 0 is never reduced",
        ),
        (
            Law::ReduceOnce,
            f,
            ONE,
            "F0.0 F1.0 ar1 B1.0 B0.0",
            "after its last backward",
        ),
        (
            Law::ReduceOnce,
            two,
            both,
            "F0.0 F1.0 B1.0 ar1 B0.0 F0.1 F1.1 B1.1 B0.1 ar0",
            "step 7 (B1.1): the gradient of unit 1 has been reduced already",
        ),
        (
            Law::ReduceOnce,
            f,
            SPLIT,
            "F0.0 F1.0 I1.0 I0.0 ar1 W1.0 W0.0",
            "unit 1 has no gradient yet",
        ),
        (
            Law::Fold,
            two,
            FOLDED,
            "F0.0 F1.0 B1.0 fold1 B0.0 fold0 F0.1 F1.1 B1.1 fold1+2 ar1 B0.1 fold0+1 ar0 opt0 opt1",
            "2 sums need as many gradients of unit 1 set aside before, and there are 1",
        ),
        (
            Law::Fold,
            two,
            FOLDED,
            "F0.0 F1.0 fold1 B1.0 B0.0",
            "no gradient that was written since its last fold",
        ),
        (
            Law::Fold,
            two,
            FOLDED,
            "F0.0 F1.0 B1.0 fold1 B0.0 fold0 F0.1 F1.1 B1.1 ar1 B0.1 fold0+1 ar0 opt0 opt1",
            "put fold1 before it",
        ),
        (
            Law::Fold,
            two,
            FOLDED,
            "zg0 zg1 F0.0 F1.0 B1.0 fold1 B0.0",
            "leave out the zg steps",
        ),
        (
            Law::Norm,
            f,
            ONE,
            "F0.0 F1.0 B1.0 ar1 norm B0.0 ar0 opt0 opt1",
            "the gradient of unit 0 is not reduced yet",
        ),
        (
            Law::Norm,
            f,
            ONE,
            "F0.0 F1.0 B1.0 ar1 B0.0 ar0 opt0 norm opt1",
            "before the norm",
        ),
        (
            Law::Norm,
            f,
            ONE,
            "F0.0 F1.0 B1.0 ar1 B0.0 ar0 norm norm opt0 opt1",
            "twice",
        ),
        (
            Law::Norm,
            f,
            ONE,
            "F0.0 F1.0 B1.0 ar1 B0.0 ar0 norm opt0 finite opt1",
            "before the norm or the finite check",
        ),
        (
            Law::ReduceOnce,
            f,
            "F0.0 F1.0 B1.0 ar1 B0.0 ar0 finite norm opt0 opt1",
            "F0.0 F1.0 B1.0 ar1 ar0 B0.0 finite",
            "unit 0 has no gradient yet",
        ),
        (
            Law::UpdateOnce,
            f,
            ONE,
            "F0.0 F1.0 B1.0 opt1 ar1 B0.0 ar0 opt0",
            "is not reduced yet",
        ),
        (
            Law::UpdateOnce,
            f,
            ONE,
            "F0.0 F1.0 B1.0 ar1 B0.0 ar0 opt0 opt0",
            "updated twice",
        ),
        (
            Law::UpdateOnce,
            f,
            ONE,
            "F0.0 F1.0 B1.0 ar1 B0.0 ar0 opt0",
            "unit 1 is never updated",
        ),
        (
            Law::Spill,
            f,
            "F0.0 out0.0 F1.0 B1.0 ar1 in0.0 B0.0 ar0",
            "F0.0 out0.0 F1.0 B1.0 ar1 B0.0 ar0",
            "fetch them first",
        ),
        (Law::Spill, f, ONE, "F0.0 out0.0 out0.0", "to spill"),
        (Law::Spill, f, ONE, "F0.0 in0.0", "are spilled"),
        (
            Law::State,
            f,
            "F0.0 F1.0 B1.0 ar1 B0.0 ar0 sin0 opt0 sout0 opt1",
            "F0.0 F1.0 B1.0 ar1 B0.0 ar0 opt0 sin0 sout0 opt1",
            "put sin0 before it",
        ),
        (
            Law::State,
            f,
            HOSTED,
            "F0.0 F1.0 B1.0 ar1 B0.0 ar0 gout1 norm opt0@host pin0 opt1@host pin1",
            "put gout0 before it",
        ),
        (
            Law::State,
            f,
            HOSTED,
            "F0.0 F1.0 B1.0 gout1 ar1 B0.0 ar0 gout0 norm opt0@host pin0 opt1@host pin1",
            "is not reduced yet",
        ),
        (
            Law::State,
            f,
            HOSTED,
            "F0.0 F1.0 B1.0 ar1 gout1 gout1 B0.0 ar0 gout0 norm opt0@host pin0 opt1@host pin1",
            "copied out twice",
        ),
        (
            Law::State,
            f,
            HOSTED,
            "F0.0 F1.0 B1.0 ar1 gout1 B0.0 ar0 gout0 norm opt0 pin0 opt1@host pin1",
            "updated on the device",
        ),
        (
            Law::State,
            f,
            HOSTED,
            "F0.0 F1.0 B1.0 ar1 gout1 B0.0 ar0 gout0 norm opt0@host opt1@host pin1",
            "never reaches the device",
        ),
        (
            Law::State,
            f,
            HOSTED,
            "F0.0 F1.0 B1.0 ar1 gout1 B0.0 ar0 gout0 norm opt0@host pin0 opt1@host pin1 pin1",
            "arrive twice",
        ),
        (
            Law::Stale,
            f,
            "F0.0 F1.0 B1.0 ar1 B0.0 ar0 gout0 gout1 pin0 pin1 opt0@host opt1@host",
            "F0.0 F1.0 B1.0 ar1 pin0 B0.0 ar0 gout0 gout1 pin1 opt0@host opt1@host",
            "have been updated already",
        ),
        (Law::State, f, ONE, "pin0", "no new parameters on the host"),
        (
            Law::Gathered,
            f,
            AWAY,
            "shin0 +0 F0.0 -0 shin1 +1 F1.0 B1.0 -1 rs1 +0 B0.0 -0 rs0 opt0 opt1",
            "put shin0 before it",
        ),
        (
            Law::State,
            f,
            AWAY,
            "shin0 shin0 +0 F0.0 -0",
            "no gather of unit 0 waits",
        ),
        (
            Law::Consumed,
            f,
            AWAY,
            "shin0 +0 F0.0 -0 shin1 +1 F1.0 B1.0 -1 rs1 shin0 +0 B0.0 -0 rs0 opt0 opt1 shin0",
            "never gathered",
        ),
        (Law::State, f, ONE, "sin0 sin0", "on the device already"),
        (Law::State, f, ONE, "sout0", "is not on the device"),
        (
            Law::State,
            f,
            ONE,
            "F0.0 F1.0 B1.0 ar1 B0.0 ar0 sin0 opt0 opt1",
            "left on the device",
        ),
    ];
    for (law, facts, good, bad, says) in mutants {
        refused(*law, good, bad, facts, says);
    }
}

/// Unit 0 reads unit 1's parameters too: an update of unit 1 before unit 0's backward would change what that reads.
#[test]
fn parameters_are_not_updated_while_still_needed() {
    let mut tied = facts(2, 1);
    tied.units[0].ties = vec![1];
    let good = "F0.0 F1.0 B1.0 B0.0 ar1 ar0 opt1 opt0";
    let early = "F0.0 F1.0 B1.0 ar1 opt1 B0.0 ar0 opt0";
    refused(Law::Stale, good, early, &tied, "the parameters of unit 1");
    check(&plan(early), &facts(2, 1)).unwrap();
    let regathered = "+0 F0.0 -0 +1 F1.0 B1.0 -1 rs1 +0 B0.0 -0 rs0 opt0 opt1 +1 -1";
    refused(
        Law::Stale,
        SHARDED,
        regathered,
        &facts(2, 1),
        "updated already",
    );
}

/// The norm and the finite check wait for every gradient, so what is reduced behind them is reduced twice.
#[test]
fn nothing_is_reduced_behind_the_norm_or_the_finite_check() {
    let mut f = facts(2, 1);
    f.units[1].grad_bytes = 0;
    for global in ["norm", "finite"] {
        let good = format!("F0.0 F1.0 B1.0 B0.0 ar0 {global} opt0");
        let bad = format!("F0.0 F1.0 B1.0 B0.0 ar0 {global} ar0 opt0");
        let fault = plan(&bad);
        check(&plan(&good), &f).unwrap();
        assert_eq!(check(&fault, &f).unwrap_err().law, Law::ReduceOnce);
    }
    let cleared = "zg0 zg1 F0.0 F1.0 B1.0 B0.0 ar0 opt0";
    refused(
        Law::ZeroGrad,
        "zg0 F0.0 F1.0 B1.0 B0.0 ar0 opt0",
        cleared,
        &f,
        "never written",
    );
}

#[test]
fn slots_and_budget_are_limits() {
    let mut f = facts(2, 1);
    let ahead = "+0 +1 F0.0 -0 F1.0 B1.0 -1 rs1 +0 B0.0 -0 rs0 opt0 opt1";
    let peak = check(&plan(ahead), &f).unwrap();
    f.budget = Some(peak.bytes);
    assert_eq!(check(&plan(ahead), &f).unwrap(), peak);
    f.budget = Some(peak.bytes - 1);
    let fault = check(&plan(ahead), &f).unwrap_err();
    assert_eq!(fault.law, Law::Budget);
    assert_eq!(fault.step, Some((peak.step, peak.text)));
    f.budget = None;
    f.slots = Some(1);
    let fault = check(&plan(ahead), &f).unwrap_err();
    assert_eq!((fault.law, fault.step.unwrap().0), (Law::Slots, StepId(1)));
    assert!(check(&plan(SHARDED), &f).is_ok());
}

/// When two gradients that were set aside are added, one is left; while they are reduced, as many of other ranks lie beside them.
#[test]
fn gradients_set_aside_count_until_they_are_added() {
    let f = facts(2, 2);
    let grads = |text: &str| {
        let mut plan = plan(text);
        plan.grads = crossweave_plan::Storage::Slots;
        let bytes = crossweave_plan::trace(&plan, &f).unwrap();
        let of = |what: &str| {
            let at = plan.steps.iter().position(|s| s.to_string() == what);
            bytes[at.unwrap()]
        };
        (of("B1.1"), of("ar1"))
    };
    let plain = "F0.0 F1.0 B1.0 B0.0 F0.1 F1.1 B1.1 ar1 B0.1 ar0 opt0 opt1";
    let (folded, plain) = (grads(FOLDED), grads(plain));
    // Both units have one aside while unit 1 writes its second.
    assert_eq!(folded.0, plain.0 + 32);
    assert_eq!(folded.1, plain.1 + 32);
}

#[test]
fn edges_point_backward_and_order_every_hazard() {
    let f = facts(2, 1);
    let ordered = Depend.run(plan(SHARDED), &f).unwrap();
    check(&ordered, &f).unwrap();
    assert!(ordered.has(words::ORDERED));
    let mut edges = 0;
    for step in 0..ordered.steps.len() {
        for edge in 0..ordered.steps[step].after.len() {
            let mut cut = ordered.clone();
            cut.steps[step].after.remove(edge);
            let fault = check(&cut, &f).expect_err("an edge is not needed");
            assert_eq!(fault.law, Law::Hazard, "{fault}");
            edges += 1;
        }
    }
    assert!(edges >= 6, "{edges}");
    let mut forward = ordered.clone();
    forward.steps[2].after = vec![StepId(5)];
    assert_eq!(check(&forward, &f).unwrap_err().law, Law::Edges);
    let mut itself = ordered.clone();
    itself.steps[2].after = vec![StepId(2)];
    assert_eq!(check(&itself, &f).unwrap_err().law, Law::Edges);
    let mut misnumbered = ordered.clone();
    misnumbered.steps.remove(0);
    assert_eq!(check(&misnumbered, &f).unwrap_err().law, Law::Edges);
    // A release moved to another lane, in use there: the hazard law sees that nothing orders it behind the forward.
    let mut released = ordered;
    released.steps[2].lane = crossweave_plan::Lane::Gather;
    assert_eq!(check(&released, &f).unwrap_err().law, Law::Hazard);
}

/// The head on the second stage reads the embedding of the first: each has a part of the gradient, and both need the sum.
#[test]
fn stages_that_share_a_unit_sum_its_gradient_once_and_before_its_use() {
    let mut f = facts(2, 1);
    f.units[1].ties = vec![0];
    let last = "a0.0<0 F1.0 B1.0 ar0 ar1 g0.0>0 tie0 norm opt0 opt1";
    let tie = |bad: &str, says: &str| refused(Law::Tie, last, bad, &f, says);
    tie(
        "a0.0<0 F1.0 B1.0 ar0 ar1 g0.0>0 norm opt0 opt1",
        "step 6 (norm): another stage reads the parameters of unit 0",
    );
    tie(
        "a0.0<0 F1.0 B1.0 ar0 ar1 g0.0>0 opt0 opt1",
        "put tie0 behind its reduction",
    );
    tie("a0.0<0 F1.0 B1.0 tie0 ar0", "behind its reduction");
    tie("a0.0<0 F1.0 B1.0 ar0 tie0 tie0", "once");
    tie(
        "a0.0<0 F1.0 B1.0 ar0 tie0 ar1 tie1",
        "no other stage reads the parameters of unit 1",
    );
    tie(
        "a0.0<0 F1.0 B1.0 ar1 ar0 gout0 tie0 g0.0>0 opt0@host pin0 opt1",
        "step 5 (gout0): another stage",
    );
    // Where one stage has all readers there is nothing to sum.
    refused(
        Law::Tie,
        "F0.0 F1.0 B1.0 ar1 B0.0 ar0 opt0 opt1",
        "F0.0 F1.0 B1.0 ar1 B0.0 ar0 tie0 opt0 opt1",
        &f,
        "no other stage",
    );
    let first = "F0.0 a0.0>1 g0.0<1 B0.0 ar0 tie0 norm opt0";
    check(&plan(first), &f).unwrap();
}

#[test]
fn idle_slots_count() {
    let mut f = facts(3, 1);
    // Two sizes: a slot of one is no slot of the other.
    f.units[2].param_bytes = 40;
    let one =
        "+0 F0.0 -0 +1 F1.0 -1 +2 F2.0 B2.0 -2 rs2 +1 B1.0 -1 rs1 +0 B0.0 -0 rs0 opt0 opt1 opt2";
    let ahead =
        "+0 +1 F0.0 -0 F1.0 -1 +2 F2.0 B2.0 -2 rs2 +1 B1.0 -1 rs1 +0 B0.0 -0 rs0 opt0 opt1 opt2";
    for (text, slots) in [(one, 16 + 40), (ahead, 2 * 16 + 40)] {
        assert_eq!(check(&plan(text), &f).unwrap().parts.params, slots);
        let bytes = trace(&plan(text), &f).unwrap();
        assert!(bytes.iter().all(|b| *b >= slots), "{text}");
    }
}

#[test]
fn text_round_trips_and_nonsense_is_refused() {
    let all = "+0 -0 F0.0 F0.0' F0.0~ F0.0_ R1.2 B1.2 I1.2 W1.2 ar0 rs2,1,0 tie0 norm finite opt3 zg3 fold2 fold2+3 a0.1>2 a0.1<2 g0.1>2 g0.1<2 out0.1 in0.1 sin2 sout2 opt2@host gout1 pin1 shin1";
    assert_eq!(plan(all).to_string(), all);
    let json = serde_json::to_string(&plan(all)).unwrap();
    assert_eq!(serde_json::from_str::<Plan>(&json).unwrap(), plan(all));
    for bad in [
        "",
        "X0",
        "F0",
        "F.0",
        "F0.",
        "+",
        "+x",
        "ar",
        "rs1,",
        "a0.1",
        "a0.1=2",
        "opt",
        "fold",
        "fold1+",
        "fold1.0",
        "F0.0é",
        "opt0@moon",
        "99999999999",
    ] {
        if bad.is_empty() {
            assert!(plan(bad).steps.is_empty());
            continue;
        }
        let fault = bad.parse::<Plan>().expect_err(bad);
        assert_eq!(fault.law, Law::Text);
    }
}

struct Needy(
    &'static [&'static str],
    &'static [&'static str],
    &'static [&'static str],
);

impl Pass for Needy {
    fn name(&self) -> String {
        "needy".to_string()
    }
    fn needs(&self) -> &'static [&'static str] {
        self.0
    }
    fn provides(&self) -> &'static [&'static str] {
        self.1
    }
    fn conflicts(&self) -> &'static [&'static str] {
        self.2
    }
    fn run(&self, _: Plan, _: &Facts) -> Result<Plan, PlanError> {
        Err(PlanError::whole(
            Law::Text,
            "a pass ran although the order is wrong",
        ))
    }
}

#[test]
fn the_order_of_passes_is_verified_before_any_runs() {
    let start = plan("F0.0 F1.0 B1.0 B0.0");
    let f = facts(2, 1);
    let wrong = [
        PassManager::new()
            .with(Needy(&[], &[], &[]))
            .with(Needy(&[words::PLACED], &[], &[])),
        PassManager::new()
            .with(Needy(&[], &["a"], &[]))
            .with(Needy(&[], &[], &["a"])),
    ];
    for pipeline in wrong {
        assert_eq!(
            pipeline.run(start.clone(), &f).unwrap_err().law,
            Law::PassOrder
        );
    }
    let right = PassManager::new()
        .with(Needy(&["schedule"], &["a"], &[]))
        .with(Needy(&["a"], &[], &["b"]));
    right.verify(&start).unwrap();
    assert_eq!(
        PassManager::new()
            .with(Depend)
            .run(Plan::default(), &f)
            .unwrap_err()
            .law,
        Law::PassOrder
    );
}
