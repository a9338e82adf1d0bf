//! Step checkpoints: exact, verified, resharded, pruned, and never lost to a kill.

use crossweave_checkpoint::*;
use serde_json::json;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Barrier;

fn values(step: u64, n: usize) -> Vec<u8> {
    (0..n as u64)
        .flat_map(|i| ((step * 1000 + i) as f32).to_le_bytes())
        .collect()
}

/// One rank owns everything of a [6, 4] parameter; enough for tests of files.
fn save(run: &Path, step: u64) -> std::path::PathBuf {
    let writer = Writer::begin(run, step, 1).unwrap();
    let mut rank = writer.rank(0).unwrap();
    rank.put("param.flat", Dtype::F32, &[24], values(step, 24));
    rank.owns("param/w", Dtype::F32, &[6, 4], 0, 24, "param.flat", 0)
        .unwrap();
    rank.finish().unwrap();
    writer
        .commit(json!({"step": step, "lr": 0.1 + step as f64}))
        .unwrap()
}

fn steps(run: &Path) -> Vec<u64> {
    list(run).unwrap().iter().map(|f| f.step).collect()
}

#[test]
fn ranks_as_threads_write_and_every_layout_reads_it_back() {
    // 3 ranks hold slices of a flat unit of two parameters, padded to 3 * 9 elements.
    let temp = tempfile::tempdir().unwrap();
    let unit: Vec<f32> = (0..27).map(|i| i as f32).collect();
    let table = [("w", vec![4usize, 5], 0u64..20), ("b", vec![5], 20..25)];
    let writer = Writer::begin(temp.path(), 7, 3).unwrap();
    let barrier = Barrier::new(3);
    std::thread::scope(|s| {
        for r in 0..3usize {
            let (writer, unit, table, barrier) = (writer.clone(), &unit, &table, &barrier);
            s.spawn(move || {
                let shard = r as u64 * 9..(r as u64 + 1) * 9;
                let mut rank = writer.rank(r).unwrap();
                let mine = &unit[shard.start as usize..shard.end as usize];
                rank.put_tensor(TensorOut::from_f32("unit0.param", Dtype::F32, &[9], mine));
                rank.put("rng", Dtype::U8, &[3], vec![r as u8; 3]);
                for (name, shape, range) in table {
                    let (a, b) = (range.start.max(shard.start), range.end.min(shard.end));
                    if a < b {
                        rank.owns(
                            &format!("param/{name}"),
                            Dtype::F32,
                            shape,
                            a - range.start,
                            b - a,
                            "unit0.param",
                            a - shard.start,
                        )
                        .unwrap();
                    }
                }
                barrier.wait();
                rank.finish().unwrap();
            });
        }
    });
    // An f64 that a careless JSON reader rounds to its neighbour.
    let lr = 0.30000000000000004f64 * 1.0e-3;
    let state = json!({"lr": lr, "position": u64::MAX, "layout": "zero3"});
    let path = writer.commit(state.clone()).unwrap();
    assert_eq!(path, temp.path().join("checkpoints/step-00000007"));
    for given in [
        temp.path(),
        &temp.path().join("checkpoints"),
        path.as_path(),
    ] {
        let c = Checkpoint::open(given).unwrap();
        assert_eq!((c.step(), c.world_size()), (7, 3));
        assert_eq!(c.state(), &state);
        assert_eq!(c.state()["lr"].as_f64().unwrap().to_bits(), lr.to_bits());
        assert_eq!(c.read(2, "rng").unwrap(), [2; 3]);
        assert!(c.read(3, "rng").is_err());
        let bytes = |r: std::ops::Range<usize>| {
            unit[r]
                .iter()
                .flat_map(|v| v.to_le_bytes())
                .collect::<Vec<_>>()
        };
        assert_eq!(c.logical("param/w").unwrap(), bytes(0..20));
        assert_eq!(c.logical("param/b").unwrap(), bytes(20..25));
        for a in 0..20 {
            for b in a..=20 {
                let got = c.logical_range("param/w", a as u64..b as u64).unwrap();
                assert_eq!(got, bytes(a..b));
            }
        }
        assert!(c.logical_range("param/w", 0..21).is_err());
        let e = c.logical("param/ww").unwrap_err().to_string();
        assert!(e.contains("param/w`"), "{e}");
    }
    assert!(writer.commit(json!(0)).is_err(), "a second commit");
    // The summary is short, whatever there is; the rest is asked for.
    let text = inspect(&path, Detail::default()).unwrap();
    assert!(
        text.lines().count() <= 15 && !text.contains("param/w") && text.contains("--tensors"),
        "{text}"
    );
    let all = Detail {
        tensors: true,
        state: true,
    };
    let text = inspect(&path, all).unwrap();
    assert!(
        text.contains("param/w") && text.contains("on rank 0, 1, 2") && text.contains("zero3"),
        "{text}"
    );
}

#[test]
fn a_split_along_the_inner_dim_reads_back_whole() {
    let temp = tempfile::tempdir().unwrap();
    let writer = Writer::begin(temp.path(), 1, 2).unwrap();
    for r in 0..2u64 {
        // Rank r holds columns 2r and 2r + 1 of a [3, 4] tensor.
        let local: Vec<f32> = (0..3)
            .flat_map(|row| [row * 4 + 2 * r, row * 4 + 2 * r + 1])
            .map(|v| v as f32)
            .collect();
        let mut rank = writer.rank(r as usize).unwrap();
        rank.put_tensor(TensorOut::from_f32("w", Dtype::F32, &[3, 2], local));
        let piece = Piece {
            rank: 0,
            tensor: "w".into(),
            offset: 0,
            start: 0,
            len: 6,
            slice: vec![[0, 3], [2 * r, 2]],
        };
        rank.owns_piece("param/w", Dtype::F32, &[3, 4], piece)
            .unwrap();
        rank.finish().unwrap();
    }
    writer.commit(json!(null)).unwrap();
    let c = Checkpoint::open(temp.path()).unwrap();
    let bytes =
        |all: &[u64]| -> Vec<u8> { all.iter().flat_map(|i| (*i as f32).to_le_bytes()).collect() };
    let whole: Vec<u64> = (0..12).collect();
    assert_eq!(c.logical("param/w").unwrap(), bytes(&whole));
    // Any part of any other slice.
    for (slice, inside) in [
        ([[0, 3], [1, 2]], [1, 2, 5, 6, 9, 10].as_slice()),
        ([[1, 2], [0, 4]], &[4, 5, 6, 7, 8, 9, 10, 11]),
        ([[2, 1], [3, 1]], &[11]),
        ([[1, 0], [0, 4]], &[]),
    ] {
        for to in 0..=inside.len() {
            for from in 0..=to {
                let got = c.logical_slice("param/w", &slice, from as u64..to as u64);
                assert_eq!(got.unwrap(), bytes(&inside[from..to]));
            }
        }
        let beyond = 0..inside.len() as u64 + 1;
        assert!(c.logical_slice("param/w", &slice, beyond).is_err());
    }
}

#[test]
fn a_checkpoint_that_misses_or_doubles_elements_is_not_committed() {
    let temp = tempfile::tempdir().unwrap();
    let attempt = |ranges: &[(u64, u64)]| {
        let writer = Writer::begin(temp.path(), 1, ranges.len()).unwrap();
        for (r, &(start, len)) in ranges.iter().enumerate() {
            let mut rank = writer.rank(r).unwrap();
            rank.put("p", Dtype::F32, &[8], values(0, 8));
            rank.owns("param/w", Dtype::F32, &[8], start, len, "p", 0)
                .unwrap();
            rank.finish().unwrap();
        }
        writer.commit(json!(null)).map_err(|e| e.to_string())
    };
    assert!(
        attempt(&[(0, 4), (5, 3)])
            .unwrap_err()
            .contains("no rank owns elements 4..5")
    );
    assert!(
        attempt(&[(0, 5), (4, 4)])
            .unwrap_err()
            .contains("owned twice")
    );
    assert_eq!(steps(temp.path()), [0u64; 0]);
    assert!(attempt(&[(0, 4), (4, 4)]).is_ok());

    let writer = Writer::begin(temp.path(), 2, 2).unwrap();
    writer.rank(0).unwrap().finish().unwrap();
    assert!(writer.rank(0).is_err(), "rank 0 again");
    assert!(writer.rank(2).is_err());
    let e = writer.commit(json!(null)).unwrap_err().to_string();
    assert!(e.contains("[1]"), "{e}");
    drop(writer);
    assert_eq!(steps(temp.path()), [1]);
    assert_eq!(
        std::fs::read_dir(temp.path().join("checkpoints"))
            .unwrap()
            .count(),
        2,
        "the partial folder is gone; the step and `latest` are left"
    );
}

#[test]
fn every_damaged_byte_names_the_file_and_the_previous_good_step() {
    let temp = tempfile::tempdir().unwrap();
    save(temp.path(), 10);
    let newest = save(temp.path(), 20);
    for name in ["rank-00000.safetensors", "manifest.json"] {
        let path = newest.join(name);
        let whole = std::fs::read(&path).unwrap();
        let damage = |bad: Vec<u8>| {
            std::fs::write(&path, bad).unwrap();
            let e = Checkpoint::open(temp.path()).expect_err("damage accepted");
            let CheckpointError::Damaged {
                step,
                path: file,
                previous_good,
                fix,
                ..
            } = &e
            else {
                panic!("{e}")
            };
            assert_eq!((*step, *previous_good), (20, Some(10)));
            assert_eq!(file, &path);
            assert!(fix.contains("step-00000010"), "{fix}");
        };
        for at in 0..whole.len() {
            let mut bad = whole.clone();
            bad[at] ^= 1 << (at % 8);
            damage(bad);
        }
        for n in (0..whole.len()).step_by(7) {
            damage(whole[..n].to_vec());
        }
        damage([whole.clone(), vec![b'\n']].concat());
        std::fs::write(&path, &whole).unwrap();
    }
    assert_eq!(Checkpoint::open(temp.path()).unwrap().step(), 20);
    assert_eq!(
        verify(temp.path(), None).unwrap().matches("ok  ").count(),
        4
    );

    std::fs::remove_file(newest.join("rank-00000.safetensors")).unwrap();
    let report = verify(temp.path(), None).unwrap_err().to_string();
    assert_eq!(
        (
            report.matches("ok  ").count(),
            report.matches("DAMAGED").count()
        ),
        (3, 1),
        "{report}"
    );
    std::fs::remove_dir_all(temp.path().join("checkpoints/step-00000010")).unwrap();
    let e = Checkpoint::open(temp.path()).unwrap_err().to_string();
    assert!(e.contains("no older checkpoint"), "{e}");
}

#[test]
fn a_manifest_with_a_valid_hash_and_wild_numbers_cannot_make_it_allocate_or_panic() {
    let temp = tempfile::tempdir().unwrap();
    let path = save(temp.path(), 1).join("manifest.json");
    let good = std::fs::read_to_string(&path).unwrap();
    let body = good.rsplit_once(",\n  \"sha256\"").unwrap().0.to_string();
    let reseal = |from: &str, to: &str| {
        use sha2::Digest;
        assert!(body.contains(from), "{body}");
        let text = body.replacen(from, to, 1);
        let hash: String = sha2::Sha256::digest(text.as_bytes())
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        std::fs::write(&path, format!("{text},\n  \"sha256\": \"{hash}\"\n}}\n")).unwrap();
        Checkpoint::open(temp.path()).and_then(|c| c.logical("param/w"))
    };
    assert!(reseal("\"start\": 0", "\"start\": 0").is_ok());
    let six = "        6,\n        4\n";
    for shape in ["4000000000, 4000000000", "4000000000, 4", "0, 4", "7, 4"] {
        assert!(reseal(six, shape).is_err(), "{shape}");
    }
    assert!(reseal("\"len\": 24", "\"len\": 18446744073709551615").is_err());
    assert!(reseal("\"offset\": 0", "\"offset\": 18446744073709551615").is_err());
    assert!(reseal("\"start\": 0", "\"start\": 1").is_err());
    assert!(reseal("\"rank-00000.safetensors\"", "\"../../secret\"").is_err());
    assert!(reseal("\"format_version\": 2", "\"format_version\": 3").is_err());
    assert!(reseal("\"world_size\": 1", "\"world_size\": 9").is_err());
    assert!(
        reseal(
            "\"len\": 24",
            "\"len\": 24, \"slice\": [[5, 18446744073709551615], [0, 4]]"
        )
        .is_err()
    );
}

#[test]
fn pruning_keeps_the_newest_and_always_a_good_one() {
    let temp = tempfile::tempdir().unwrap();
    for step in 1..=5 {
        save(temp.path(), step);
    }
    assert_eq!(prune(temp.path(), 3, None, None).unwrap(), [1, 2]);
    assert_eq!(steps(temp.path()), [3, 4, 5]);
    // A byte of the newest two is flipped; lengths still fit, so only the hash can tell.
    for step in [4, 5] {
        let path = temp
            .path()
            .join("checkpoints")
            .join(step_dir(step))
            .join("rank-00000.safetensors");
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, bytes).unwrap();
    }
    assert_eq!(prune(temp.path(), 1, None, None).unwrap(), [0u64; 0]);
    assert_eq!(steps(temp.path()), [3, 4, 5]);
    save(temp.path(), 6);
    assert_eq!(prune(temp.path(), 0, None, None).unwrap(), [3, 4, 5]);
    assert_eq!(Checkpoint::open(temp.path()).unwrap().step(), 6);
}

#[test]
fn what_a_kill_leaves_is_passed_over_and_cleared() {
    let temp = tempfile::tempdir().unwrap();
    save(temp.path(), 1);
    let root = temp.path().join("checkpoints");
    // Killed while writing, before the manifest, after it, and while deleting.
    for (name, with_manifest) in [
        (".step-00000002.5f0c-3.partial", false),
        (".step-00000003.partial", true),
        (".step-00000000.deleting", true),
    ] {
        let dir = root.join(name);
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("rank-00000.safetensors"), b"half").unwrap();
        if with_manifest {
            std::fs::copy(
                root.join("step-00000001/manifest.json"),
                dir.join("manifest.json"),
            )
            .unwrap();
        }
    }
    assert_eq!(Checkpoint::open(temp.path()).unwrap().step(), 1);
    // A copy that was interrupted has no manifest yet, or a manifest was lost: nothing falls back silently.
    let copied = root.join("step-00000009");
    std::fs::create_dir(&copied).unwrap();
    let named = Checkpoint::open(temp.path());
    assert!(
        matches!(
            &named,
            Err(CheckpointError::Damaged {
                step: 9,
                previous_good: Some(1),
                ..
            })
        ),
        "{named:?}"
    );
    std::fs::remove_dir(&copied).unwrap();
    // Killed between the two renames of a replacement: the old folder has only its other name.
    std::fs::rename(
        root.join("step-00000001"),
        root.join(".step-00000001.replaced"),
    )
    .unwrap();
    assert_eq!(Checkpoint::open(temp.path()).unwrap().step(), 1);
    save(temp.path(), 2);
    assert_eq!(steps(temp.path()), [1, 2]);
    assert!(root.join("step-00000001").is_dir(), "put back");
    save(temp.path(), 2);
    std::fs::create_dir(&copied).unwrap();
    save(temp.path(), 9);
    let mut names: Vec<_> = std::fs::read_dir(&root)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["latest", "step-00000001", "step-00000002", "step-00000009"]
    );
}

#[test]
fn an_empty_run_has_no_latest() {
    let temp = tempfile::tempdir().unwrap();
    assert_eq!(Checkpoint::latest(temp.path()).unwrap(), None);
    let e = Checkpoint::open(temp.path()).unwrap_err();
    assert!(matches!(e, CheckpointError::NotFound { .. }), "{e}");
    assert_eq!(prune(temp.path(), 1, None, None).unwrap(), [0u64; 0]);
}

/// The child of the test below: writes checkpoints into the directory named on its input until it is killed, saving
/// some steps twice and pruning, and reports each commit on its output.
#[test]
#[ignore = "run by a_killed_process_leaves_the_latest_loadable"]
fn child_that_writes_until_killed() {
    let mut dir = String::new();
    std::io::stdin().read_line(&mut dir).unwrap();
    if dir.trim_end().is_empty() {
        return; // Started by hand, with no parent that would end it.
    }
    let run = Path::new(dir.trim_end());
    let first = Checkpoint::open(run).map_or(1, |c| c.step());
    for step in first.. {
        save(run, step);
        println!("COMMITTED {step}");
        std::io::stdout().flush().unwrap();
        prune(run, 2, None, None).unwrap();
    }
}

#[test]
fn a_killed_process_leaves_the_latest_loadable() {
    let temp = tempfile::tempdir().unwrap();
    let mut reached = 0;
    for round in 0..24u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "steps::child_that_writes_until_killed",
                "--ignored",
                "--nocapture",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        writeln!(child.stdin.take().unwrap(), "{}", temp.path().display()).unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut committed = 0;
        while committed <= round % 3 {
            let text = lines.next().expect("the child died by itself").unwrap();
            if let Some((_, step)) = text.split_once("COMMITTED ") {
                reached = step.parse().unwrap();
                committed += 1;
            }
        }
        // The kill falls somewhere into the next prune or save; where does not matter to what must hold.
        std::thread::sleep(std::time::Duration::from_micros(round * 397));
        child.kill().unwrap();
        child.wait().unwrap();
        let c = Checkpoint::open(temp.path()).unwrap_or_else(|e| panic!("round {round}: {e}"));
        assert!(
            c.step() >= reached,
            "round {round}: {} < {reached}",
            c.step()
        );
        assert_eq!(c.state()["step"].as_u64(), Some(c.step()));
        assert_eq!(c.logical("param/w").unwrap(), values(c.step(), 24));
    }
}

/// Two ranks, halves of `param/w` [2048, 512] (4 MiB, so that files have several chunks).
fn save_halves(run: &Path, step: u64) -> std::path::PathBuf {
    let session = session(run).unwrap();
    let n = 2048 * 512u64;
    let writers: Vec<Writer> = (0..2)
        .map(|r| Writer::join(run, step, 2, &session, r == 0).unwrap())
        .collect();
    std::thread::scope(|s| {
        for (r, writer) in writers.iter().enumerate() {
            s.spawn(move || {
                let all = values(step, n as usize);
                let mut rank = writer.rank(r).unwrap();
                let mine = &all[r * all.len() / 2..(r + 1) * all.len() / 2];
                rank.put("flat", Dtype::F32, &[n as usize / 2], mine);
                rank.owns(
                    "param/w",
                    Dtype::F32,
                    &[2048, 512],
                    r as u64 * n / 2,
                    n / 2,
                    "flat",
                    0,
                )
                .unwrap();
                rank.finish().unwrap();
            });
        }
        let patience = Patience {
            claim: None,
            timeout: std::time::Duration::from_secs(60),
            failed: &|| false,
        };
        writers[0]
            .commit_when(json!({"step": step}), &patience)
            .unwrap()
    })
}

#[test]
fn ranks_that_meet_only_in_the_file_system_commit_and_a_failure_is_told() {
    let temp = tempfile::tempdir().unwrap();
    let path = save_halves(temp.path(), 3);
    let mut left: Vec<_> = std::fs::read_dir(&path)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(
        left,
        [
            "manifest.json",
            "rank-00000.safetensors",
            "rank-00001.safetensors"
        ]
    );
    assert_eq!(
        std::fs::read_to_string(temp.path().join("checkpoints/latest")).unwrap(),
        "step-00000003\n"
    );
    let patience = |seconds: u64, failed: &dyn Fn() -> bool| {
        let id = session(temp.path()).unwrap();
        let owner = Writer::join(temp.path(), 4, 2, &id, true).unwrap();
        owner.rank(0).unwrap().finish().unwrap();
        if seconds > 1 {
            let other = Writer::join(temp.path(), 4, 2, &id, false).unwrap();
            let mut rank = other.rank(1).unwrap();
            rank.put_tensor(TensorOut::stream("w", Dtype::F32, &[4], |_| {
                Err(std::io::Error::other("no room"))
            }));
            assert!(rank.finish().is_err());
        }
        let patience = Patience {
            claim: None,
            timeout: std::time::Duration::from_secs(seconds),
            failed,
        };
        owner
            .commit_when(json!(null), &patience)
            .unwrap_err()
            .to_string()
    };
    let e = patience(3600, &|| false);
    assert!(e.contains("rank 1: ") && e.contains("no room"), "{e}");
    // A rank that never begins is not waited for once the job has failed.
    let e = patience(1, &|| true);
    assert!(e.contains("ranks [1] have not finished"), "{e}");
    assert_eq!(steps(temp.path()), [3]);
    let partial = std::fs::read_dir(temp.path().join("checkpoints"))
        .unwrap()
        .filter(|e| {
            let name = e.as_ref().unwrap().file_name();
            name.to_string_lossy().starts_with('.')
        })
        .count();
    assert_eq!(partial, 0, "what was not committed is gone");
}

#[test]
fn exchanged_foreign_and_flipped_files_are_refused_by_name() {
    let temp = tempfile::tempdir().unwrap();
    let old = save_halves(temp.path(), 1);
    let new = save_halves(temp.path(), 2);
    let (a, b) = (
        new.join("rank-00000.safetensors"),
        new.join("rank-00001.safetensors"),
    );
    let why = |proof: Proof| match Checkpoint::open_as(&new, proof) {
        Ok(_) => "accepted".to_string(),
        Err(e) => e.to_string(),
    };
    let both = |parts: &[&str]| {
        for proof in [Proof::Whole, Proof::AsRead] {
            let e = why(proof);
            assert!(parts.iter().all(|p| e.contains(p)), "{proof:?}: {e}");
        }
        let report = verify(&new, None).unwrap_err().to_string();
        assert!(parts[1..].iter().all(|p| report.contains(p)), "{report}");
        assert_eq!(
            verify_json_by(&new, None, &|_| Ok(())).unwrap()["ok"],
            false
        );
    };
    // The files of two ranks exchanged.
    let aside = temp.path().join("aside");
    let swap = || {
        std::fs::rename(&a, &aside).unwrap();
        std::fs::rename(&b, &a).unwrap();
        std::fs::rename(&aside, &b).unwrap();
    };
    swap();
    both(&[
        "good checkpoint of step 1",
        "rank-00000.safetensors",
        "data of rank 1",
    ]);
    swap();
    // A file of another save.
    let good = std::fs::read(&b).unwrap();
    std::fs::copy(old.join("rank-00001.safetensors"), &b).unwrap();
    both(&[
        "step-00000001",
        "rank-00001.safetensors",
        "another save",
        "of step 1",
    ]);
    // A missing file, a truncated one.
    std::fs::remove_file(&b).unwrap();
    both(&["step 2", "rank-00001.safetensors", "cannot be opened"]);
    std::fs::write(&b, &good[..good.len() - 100]).unwrap();
    both(&["step 2", "rank-00001.safetensors", "bytes long"]);
    std::fs::write(&b, &good).unwrap();
    // The manifest of another save.
    let manifest = std::fs::read(new.join("manifest.json")).unwrap();
    std::fs::copy(old.join("manifest.json"), new.join("manifest.json")).unwrap();
    both(&["manifest.json", "it is of step 1", "that it is of step 2"]);
    std::fs::write(new.join("manifest.json"), manifest).unwrap();
    assert!(verify(&new, None).is_ok() && why(Proof::Whole) == "accepted");
    // One bit in the middle: a reader of what lies beside it is served, a reader of it gets an error.
    let mut bad = good.clone();
    let at = good.len() - (1 << 20);
    bad[at] ^= 4;
    std::fs::write(&b, &bad).unwrap();
    let e = why(Proof::Whole);
    assert!(
        e.contains("rank-00001.safetensors") && e.contains("BLAKE3"),
        "{e}"
    );
    let c = Checkpoint::open_as(&new, Proof::AsRead).unwrap();
    let n = 2048 * 512u64;
    let want = values(2, n as usize);
    let part = c.logical_range("param/w", 10..n / 2 + 1000).unwrap();
    assert_eq!(part, want[40..(n as usize / 2 + 1000) * 4]);
    let e = c.logical("param/w").unwrap_err().to_string();
    assert!(
        e.contains("rank-00001.safetensors") && e.contains("BLAKE3"),
        "{e}"
    );
}

#[test]
fn a_checkpoint_of_format_1_still_loads() {
    use sha2::Digest;
    let hash = |bytes: &[u8]| -> String {
        let digest = sha2::Sha256::digest(bytes);
        digest.iter().map(|b| format!("{b:02x}")).collect()
    };
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("checkpoints/step-00000007");
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join("rank-00000.safetensors");
    let blob = TensorOut::bytes("p", Dtype::F32, &[24], values(7, 24));
    write_safetensors(&file, vec![blob], &[]).unwrap();
    let bytes = std::fs::read(&file).unwrap();
    let body = format!(
        r#"{{"format": "crossweave-checkpoint", "format_version": 1, "step": 7, "world_size": 1,
 "files": [{{"rank": 0, "name": "rank-00000.safetensors", "bytes": {}, "sha256": "{}"}}],
 "layout": {{"value/w": {{"dtype": "F32", "shape": [6, 4], "pieces": [{{"rank": 0, "tensor": "p", "offset": 0, "start": 0, "len": 24}}]}}}},
 "state": {{"step": 7}}"#,
        bytes.len(),
        hash(&bytes)
    );
    let sealed = format!("{body},\n  \"sha256\": \"{}\"\n}}\n", hash(body.as_bytes()));
    std::fs::write(dir.join("manifest.json"), sealed).unwrap();
    for proof in [Proof::Whole, Proof::AsRead] {
        let c = Checkpoint::open_as(temp.path(), proof).unwrap();
        assert_eq!(c.logical("value/w").unwrap(), values(7, 24));
    }
    assert!(
        inspect(temp.path(), Detail::default())
            .unwrap()
            .contains("sha256")
    );
    let mut bad = bytes.clone();
    *bad.last_mut().unwrap() ^= 1;
    std::fs::write(&file, bad).unwrap();
    for proof in [Proof::Whole, Proof::AsRead] {
        let e = Checkpoint::open_as(temp.path(), proof)
            .unwrap_err()
            .to_string();
        assert!(e.contains("SHA-256"), "{e}");
    }
}

#[test]
fn a_checkpoint_is_written_again_for_any_number_of_ranks() {
    let temp = tempfile::tempdir().unwrap();
    // Two units over two ranks: a, b and the empty c end to end in one, d (of another type) alone.
    let writer = Writer::begin(temp.path().join("in"), 9, 2).unwrap();
    let flat = values(9, 17);
    let d = vec![7u8; 5];
    for r in 0..2usize {
        let mut rank = writer.rank(r).unwrap();
        let (from, to) = (r as u64 * 9, (r as u64 * 9 + 9).min(17));
        let part = flat[from as usize * 4..to as usize * 4].to_vec();
        rank.put("u/value", Dtype::F32, &[(to - from) as usize], part);
        for (name, shape, at, n) in [("a", [2usize, 5], 0u64, 10u64), ("b", [7, 1], 10, 7)] {
            let (first, last) = (from.max(at), to.min(at + n));
            if first < last {
                let (start, len) = (first - at, last - first);
                rank.owns(
                    name,
                    Dtype::F32,
                    &shape,
                    start,
                    len,
                    "u/value",
                    first - from,
                )
                .unwrap();
            }
        }
        if r == 1 {
            rank.put("d", Dtype::U8, &[5], d.clone());
            rank.owns("d", Dtype::U8, &[5], 0, 5, "d", 0).unwrap();
            rank.put("c", Dtype::F32, &[0], vec![]);
            rank.owns("c", Dtype::F32, &[0, 3], 0, 0, "c", 0).unwrap();
        }
        rank.finish().unwrap();
    }
    writer.commit(json!({"k": 1})).unwrap();
    let mut from = temp.path().join("in");
    for (i, ranks) in [1usize, 3, 20, 4, 2].into_iter().enumerate() {
        let out = temp.path().join(format!("out{i}"));
        let source = Checkpoint::open(&from).unwrap();
        reshard(&source, &out, ranks, source.state().clone()).unwrap();
        let c = Checkpoint::open(&out).unwrap();
        assert_eq!((c.step(), c.world_size()), (9, ranks));
        assert_eq!(c.state(), &json!({"k": 1}));
        assert_eq!(c.logical("a").unwrap(), flat[..40]);
        assert_eq!(c.logical("b").unwrap(), flat[40..]);
        assert_eq!(c.logical("d").unwrap(), d);
        assert_eq!(c.logical("c").unwrap(), [0u8; 0]);
        // Slices are equal, so no rank holds more than its part of each unit.
        for r in 0..ranks {
            let held: u64 = c.blobs(r).unwrap().values().map(|t| t.num_bytes()).sum();
            assert!(held <= 17u64.div_ceil(ranks as u64) * 4 + 5u64.div_ceil(ranks as u64));
        }
        let e = reshard(&source, &out, ranks, json!(null))
            .unwrap_err()
            .to_string();
        assert!(e.contains("holds checkpoints already"), "{e}");
        from = out;
    }
}

#[test]
fn readers_beside_a_writer_never_see_a_half() {
    let temp = tempfile::tempdir().unwrap();
    save(temp.path(), 1);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|s| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                s.spawn(|| {
                    let mut opened = 0;
                    while !done.load(std::sync::atomic::Ordering::SeqCst) {
                        let c = Checkpoint::open_as(temp.path(), Proof::AsRead).unwrap();
                        let newest = c.step();
                        // Even where the folder has been removed since, what was opened is read to its end.
                        assert_eq!(c.logical("param/w").unwrap(), values(newest, 24));
                        opened += 1;
                    }
                    opened
                })
            })
            .collect();
        for step in 2..60 {
            save(temp.path(), step);
            prune(temp.path(), 1, Some(step), None).unwrap();
        }
        done.store(true, std::sync::atomic::Ordering::SeqCst);
        assert!(readers.into_iter().all(|r| r.join().unwrap() > 1));
    });
}
