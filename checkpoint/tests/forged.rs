//! Manifests that somebody else wrote, with every hash right: what contradicts itself is refused without a key, the rest with one.

use crossweave_checkpoint::*;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// Two tensors of 12 elements in one blob, saved at step 7; signed if there is a key.
fn save(run: &Path, key: Option<SecretKey>) -> PathBuf {
    let writer = Writer::begin(run, 7, 1).unwrap();
    let writer = writer.signed(key.map(std::sync::Arc::new));
    let mut rank = writer.rank(0).unwrap();
    rank.put("flat", Dtype::F32, &[24], vec![1; 96]);
    rank.owns("value/a", Dtype::F32, &[3, 4], 0, 12, "flat", 0)
        .unwrap();
    rank.owns("value/b", Dtype::F32, &[12], 0, 12, "flat", 12)
        .unwrap();
    rank.finish().unwrap();
    let state = json!({
        "rng": {"generator": "philox4x32-10", "seed": 3, "position": 7},
        "scheduler": {"step": 6}, "optimizer": {"step": 6},
    });
    writer.commit(state).unwrap()
}

/// Edits a manifest and gives it the hash of its new text, as anyone can.
fn forge(step: &Path, edit: impl FnOnce(&mut Value)) {
    let path = step.join(MANIFEST);
    let mut m: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    edit(&mut m);
    m.as_object_mut().unwrap().remove("sha256");
    let mut text = serde_json::to_string_pretty(&m).unwrap();
    text.truncate(text.len() - 2);
    let hash: String = Sha256::digest(text.as_bytes())
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    text.push_str(&format!(",\n  \"sha256\": \"{hash}\"\n}}\n"));
    std::fs::write(path, text).unwrap();
}

fn keys(dir: &Path, name: &str) -> (SecretKey, PublicKey) {
    let path = dir.join(name);
    let (public, place) = keygen(&path).unwrap();
    assert_eq!(PublicKey::read(&place).unwrap(), public);
    (SecretKey::read(&path).unwrap(), public)
}

#[test]
fn a_forged_manifest_with_right_hashes_is_refused_by_its_key() {
    let temp = tempfile::tempdir().unwrap();
    let (secret, public) = keys(temp.path(), "team.key");
    let (thief, other) = keys(temp.path(), "other.key");
    let run = temp.path().join("run");
    let step = save(&run, Some(secret.clone()));
    assert!(
        verify(&run, Some(&public))
            .unwrap()
            .contains("step 7, signed")
    );
    Checkpoint::open(&run).unwrap().signed_by(&public).unwrap();
    let refused = |key: &PublicKey, word: &str| {
        let report = verify(&run, Some(key)).unwrap_err().to_string();
        assert!(
            report.contains("manifest.json") && report.contains(word),
            "{report}"
        );
        assert_eq!(
            verify_json_by(&run, Some(key), &|_| Ok(())).unwrap()["ok"],
            false
        );
        let e = Checkpoint::open(&run).unwrap().signed_by(key).unwrap_err();
        assert!(
            e.to_string().contains(word) && e.to_string().contains("fix:"),
            "{e}"
        );
    };
    refused(&other, "signed by another key");
    // Another seed is a consistent manifest, and every hash is right: without the key nothing is wrong with it.
    forge(&step, |m| m["state"]["rng"]["seed"] = 4.into());
    verify(&run, None).unwrap();
    refused(&public, "does not match its signature");
    // Signed by the forger, who has another key.
    sign(&run, &thief).unwrap();
    refused(&public, "signed by another key");
    let text = std::fs::read_to_string(step.join(SIGNATURE)).unwrap();
    let claimed = text.replace(&other.to_string(), &public.to_string());
    std::fs::write(step.join(SIGNATURE), claimed).unwrap();
    refused(&public, "does not match its signature");
    for text in [
        "",
        "crossweave-signature-1 00 00\n",
        "crossweave-signature-1 é é",
    ] {
        std::fs::write(step.join(SIGNATURE), text).unwrap();
        refused(&public, "no signature of this version");
    }
    std::fs::remove_file(step.join(SIGNATURE)).unwrap();
    refused(&public, "is not signed");
    // What its owner signs is trusted again, and only what verifies is signed.
    assert_eq!(sign(&run, &secret).unwrap(), std::slice::from_ref(&step));
    verify(&step, Some(&public)).unwrap();
    let file = step.join("rank-00000.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let e = sign(&run, &secret).unwrap_err().to_string();
    assert!(e.contains("rank-00000") && e.contains("fix:"), "{e}");
}

#[test]
fn keys_are_files_of_their_kind_and_are_never_replaced() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("k");
    keygen(&path).unwrap();
    let public = temp.path().join("k.pub");
    let says = |e: CheckpointError, word: &str| {
        let e = e.to_string();
        assert!(e.contains(word) && e.contains("fix:"), "{e}");
    };
    says(keygen(&path).unwrap_err(), "is there already");
    std::fs::remove_file(&path).unwrap();
    says(keygen(&path).unwrap_err(), "k.pub");
    says(SecretKey::read(&public).unwrap_err(), "is the public key");
    std::fs::write(&path, "crossweave-secret-key-1 00").unwrap();
    says(SecretKey::read(&path).unwrap_err(), "no secret key");
    keygen(&temp.path().join("n")).unwrap();
    let secret = temp.path().join("n");
    says(PublicKey::read(&secret).unwrap_err(), "is a secret key");
    says(
        PublicKey::read(&temp.path().join("none")).unwrap_err(),
        "none",
    );
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(&secret).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o644)).unwrap();
        says(SecretKey::read(&secret).unwrap_err(), "mode 644");
    }
    assert!(
        !format!("{:?}", keys(temp.path(), "m").0)
            .contains(&std::fs::read_to_string(temp.path().join("m")).unwrap()[24..60])
    );
}

#[test]
fn contradictory_fields_are_refused_without_a_key() {
    type Edit = fn(&mut Value);
    let cases: [(&str, Edit, &str); 17] = [
        (
            "two tensors of one run of a blob",
            |m| m["layout"]["value/b"]["pieces"][0]["offset"] = 6.into(),
            "are those of `value/a` too",
        ),
        (
            "overlapping pieces of a tensor",
            |m| {
                let piece =
                    json!({"rank": 0, "tensor": "flat", "offset": 0, "start": 6, "len": 12});
                m["layout"]["value/a"]["pieces"][0]["len"] = 8.into();
                m["layout"]["value/a"]["pieces"]
                    .as_array_mut()
                    .unwrap()
                    .push(piece);
            },
            "lie outside",
        ),
        (
            "a piece outside the tensor",
            |m| m["layout"]["value/a"]["pieces"][0]["start"] = 1.into(),
            "lie outside",
        ),
        (
            "a piece outside its blob",
            |m| m["layout"]["value/b"]["pieces"][0]["offset"] = 13.into(),
            "lie outside blob",
        ),
        (
            "the step of another folder",
            |m| m["step"] = 9.into(),
            "says that it is of step 9, and its folder that it is of step 7",
        ),
        (
            "an unknown generator",
            |m| m["state"]["rng"]["generator"] = "mt19937".into(),
            "\"mt19937\"",
        ),
        (
            "another position of the generator",
            |m| m["state"]["rng"]["position"] = 8.into(),
            "state.rng.position is 8",
        ),
        (
            "more updates of the schedule than steps",
            |m| m["state"]["scheduler"]["step"] = 8.into(),
            "state.scheduler.step is 8",
        ),
        (
            "more updates than steps",
            |m| m["state"]["optimizer"]["step"] = 70.into(),
            "state.optimizer.step is 70",
        ),
        (
            "a position that is no count",
            |m| m["state"]["rng"]["position"] = json!(-7),
            "state.rng.position is -7, not a count",
        ),
        (
            "more steps skipped than there are no updates of",
            |m| m["state"]["loss_scaler"] = json!({"scale": 1.0, "skipped": 3}),
            "state.scheduler.step is 6",
        ),
        (
            "a scale that turns signs",
            |m| m["state"]["loss_scaler"] = json!({"scale": -2.0, "skipped": 1}),
            "state.loss_scaler.scale is -2.0",
        ),
        (
            "a rate that turns signs",
            |m| m["state"]["scheduler"]["lr"] = json!(-1e300),
            "state.scheduler.lr is -1e+300",
        ),
        (
            "sequences that no batch of the run has",
            |m| m["state"]["sequences_consumed"] = 57.into(),
            "state.sequences_consumed is 57 in a checkpoint of step 7 with a batch of 8",
        ),
        (
            "fewer sequences than none",
            |m| m["state"]["sequences_consumed"] = json!(-1),
            "not a count",
        ),
        (
            "a seed that the run's config has not",
            |m| m["state"]["rng"]["seed"] = 4.into(),
            "state.rng.seed is 4, and its config says run.seed 3",
        ),
        (
            "an optimizer that the run's config has not",
            |m| m["state"]["optimizer"]["type"] = "Lion".into(),
            "state.optimizer.type is \"Lion\"",
        ),
    ];
    for (what, edit, word) in cases {
        let temp = tempfile::tempdir().unwrap();
        let step = save(temp.path(), None);
        // As a run writes it.
        forge(&step, |m| {
            m["state"]["config"] = json!({
                "train_batch_size": 8, "run": {"seed": 3}, "optimizer": {"type": "AdamW"},
            });
            m["state"]["sequences_consumed"] = 56.into();
            m["state"]["optimizer"]["type"] = "AdamW".into();
            m["state"]["loss_scaler"] = json!({"scale": 65536.0, "skipped": 1});
        });
        verify(&step, None).unwrap();
        forge(&step, edit);
        let report = verify(&step, None).expect_err(what).to_string();
        assert!(report.contains(word), "{what}: {report}");
        let e = Checkpoint::open(&step).expect_err(what).to_string();
        assert!(e.contains(word) && e.contains("fix:"), "{what}: {e}");
    }
}
