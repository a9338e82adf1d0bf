//! A run that signs its checkpoints, and one that trusts only those of a key.

use crate::common::Scratch;

#[test]
fn a_run_signs_and_trusts_its_checkpoints() {
    let s = Scratch::new();
    s.ok(&["checkpoint", "keygen", "team.key"]);
    s.ok(&["checkpoint", "keygen", "other.key"]);
    s.refused(
        &["checkpoint", "keygen", "team.key"],
        &["team.key", "fix:"],
        &[],
    );
    let base = ["train", "config.json", "--ranks", "2"];
    let run = |more: &[&'static str]| [&base[..], more].concat();
    let sign = ["--set", "checkpoint.sign_key=team.key"];
    let trust = |key: &'static str| ["--set", key];
    s.refused(
        &run(&["--out", "x", "--set", "checkpoint.sign_key=team.key.pub"]),
        &["team.key.pub", "is the public key", "fix:"],
        &["x/checkpoints"],
    );
    s.ok(&run(&["--out", "run", "--steps", "6", sign[0], sign[1]]));
    let ours = [
        "checkpoint",
        "verify",
        "run",
        "--key",
        "team.key.pub",
        "--json",
    ];
    assert!(s.ok(&ours[..5]).contains("step 6, signed"));
    s.ok(&ours);
    s.refused(
        &["checkpoint", "verify", "run", "--key", "other.key.pub"],
        &["DAMAGED", "signed by another key", "fix:"],
        &[],
    );
    s.refused(
        &["checkpoint", "verify", "run", "--key", "team.key"],
        &["is a secret key", "fix:"],
        &[],
    );
    let goes_on = ["--resume", "run", "--steps", "8"];
    let others = trust("checkpoint.trust_key=other.key.pub");
    s.refused(
        &run(&[&goes_on[..], &others].concat()),
        &["signed by another key", "--resume run"],
        &[],
    );
    // The newest is signed by somebody else: the one before it is taken, and said so.
    let team = trust("checkpoint.trust_key=team.key.pub");
    s.ok(&[
        "checkpoint",
        "sign",
        "run/checkpoints/step-00000006",
        "--key",
        "other.key",
    ]);
    let out = s.run(&run(&[&goes_on[..], &team].concat()));
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{err}");
    assert!(
        err.contains("checkpoint of step 6 is passed over") && err.contains("from step 3"),
        "{err}"
    );
}
