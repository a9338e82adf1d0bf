//! What reductions of one micro-batch each leave on a rank, in bytes.

use super::{FOLDED, facts, plan, refused};
use crossweave_plan::{Facts, Law, trace};

/// Each micro-batch is reduced into the slices by itself.
const EACH: &str = "F0.0 F1.0 B1.0 rs1+ B0.0 rs0+ F0.1 F1.1 B1.1 rs1 B0.1 rs0 norm opt0 opt1";

/// A rank has a slice of a unit whose micro-batches are reduced one by one and, while one is open, a whole gradient; what arrives
/// for the slice lies beside it.
#[test]
fn micro_batches_that_are_reduced_one_by_one_leave_a_slice() {
    let f = facts(2, 2);
    let bytes = |text: &str, of: &str| {
        let plan = plan(text);
        let at = plan.steps.iter().position(|s| s.to_string() == of);
        trace(&plan, &f).unwrap()[at.unwrap()]
    };
    let once = "F0.0 F1.0 B1.0 B0.0 F0.1 F1.1 B1.1 rs1 B0.1 rs0 norm opt0 opt1";
    // Both whole, against two slices and one whole.
    assert_eq!(
        bytes(once, "B1.1") - bytes(EACH, "B1.1"),
        32 + 32 - (32 + 16 + 16)
    );
    assert_eq!(
        bytes(once, "F1.1") - bytes(EACH, "F1.1"),
        32 + 32 - (16 + 16)
    );
    assert_eq!(bytes(EACH, "norm"), bytes(once, "norm"));
    // Beside the whole of the first part there is nothing; later both slices, and the one that arrives.
    assert_eq!(bytes(EACH, "rs1") - bytes(EACH, "rs1+"), 16 + 16 + 16);
}

#[test]
fn reductions_in_parts_have_laws() {
    let two = &facts(2, 2);
    let mutants: &[(Law, &Facts, &str, &str, &str)] = &[
        (
            Law::Norm,
            two,
            EACH,
            "F0.0 F1.0 B1.0 rs1+ B0.0 F0.1 F1.1 B1.1 rs1 B0.1 rs0+ norm opt0 opt1",
            "unit 0 is not reduced yet",
        ),
        (
            Law::ReduceOnce,
            two,
            EACH,
            "F0.0 F1.0 B1.0 rs1+ rs1+",
            "unit 1 has no gradient yet",
        ),
        (
            Law::ReduceOnce,
            two,
            EACH,
            "F0.0 F1.0 B1.0 rs1+ B0.0 F0.1 F1.1 B1.1 ar1",
            "which needs gradients in slots",
        ),
        (
            Law::ReduceOnce,
            two,
            FOLDED,
            "F0.0 F1.0 B1.0 ar1+",
            "which needs gradients in slots",
        ),
        (
            Law::ReduceOnce,
            two,
            EACH,
            "F0.0 F1.0 B1.0 rs1 B0.0 rs0+ F0.1 F1.1 B1.1",
            "reduced already",
        ),
    ];
    for (law, facts, good, bad, says) in mutants {
        refused(*law, good, bad, facts, says);
    }
}

/// What each micro-batch leaves in a slice goes to the host, which adds it up.
const LEAVES: &str = "F0.0 F1.0 B1.0 rs1+ gout1+ B0.0 rs0+ gout0+ F0.1 F1.1 B1.1 rs1 gout1 B0.1 rs0 gout0 norm opt0@host pin0 opt1@host pin1";

#[test]
fn parts_that_leave_are_not_on_the_device_between_micro_batches() {
    let mut f = facts(2, 2);
    let bytes = |text: &str, of: &str, f: &Facts| {
        let plan = plan(text);
        let at = plan.steps.iter().position(|s| s.to_string() == of);
        trace(&plan, f).unwrap()[at.unwrap()]
    };
    // Without states, which are elsewhere in the one and not in the other: two slices of 16 bytes.
    for u in &mut f.units {
        (u.state_bytes, u.host_state_bytes) = (0, 0);
    }
    assert_eq!(bytes(EACH, "F1.1", &f) - bytes(LEAVES, "F1.1", &f), 16 + 16);
    // What the device updates stays: half of each.
    for u in &mut f.units {
        (u.state_bytes, u.host_state_bytes) = (8, 4);
    }
    let half = bytes(LEAVES, "F1.1", &f) - bytes(LEAVES, "F1.0", &f);
    assert_eq!(half, 8 + 8);
}

#[test]
fn gradients_that_leave_in_parts_have_laws() {
    let two = &facts(2, 2);
    let mutants: &[(Law, &str, &str)] = &[
        (
            Law::State,
            "F0.0 F1.0 B1.0 rs1+ B0.0 rs0+ gout0+ F0.1 F1.1 B1.1 rs1 gout1+ gout1",
            "has not left; put gout1+ before it",
        ),
        (
            Law::State,
            "F0.0 F1.0 B1.0 rs1+ gout1+ gout1+",
            "no gradient of unit 1 of some micro-batches is there to leave",
        ),
        (
            Law::Norm,
            "F0.0 F1.0 B1.0 rs1+ gout1+ B0.0 rs0+ gout0+ F0.1 F1.1 B1.1 rs1 B0.1 rs0 gout0 norm gout1 opt0@host pin0 opt1@host pin1",
            "does not have the whole gradient of unit 1 yet",
        ),
    ];
    for (law, bad, says) in mutants {
        let bad = match bad.contains("opt") {
            true => bad.to_string(),
            false => format!("{bad} opt0@host opt1@host"),
        };
        refused(*law, LEAVES, &bad, two, says);
    }
}
