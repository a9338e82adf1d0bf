//! Claims under contention: threads stand for processes, each with a nonce of its own.

use super::*;
use std::sync::Barrier;

fn entries(dir: &Path) -> Vec<String> {
    let mut all: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    all.sort();
    all
}

fn plant(dir: &Path, owner: &Owner) {
    std::fs::create_dir_all(dir).unwrap();
    std::fs::write(dir.join(LOCK), owner.to_text()).unwrap();
}

#[test]
fn the_second_is_refused_with_the_owner_and_the_way_out() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("a/b");
    let first = Claim::folder(&dir, "train x.json").unwrap();
    assert!(first.replaced().is_none());
    assert_eq!(entries(&dir), [LOCK]);
    let e = Claim::folder(&dir, "train y.json").unwrap_err().to_string();
    let pid = std::process::id();
    for part in [
        format!("process {pid}"),
        "train x.json".into(),
        format!("kill -INT {pid}"),
    ] {
        assert!(e.contains(&part), "{part:?} not in {e}");
    }
    first.check().unwrap();
    drop(first);
    // What was made for it goes with it.
    assert!(entries(root.path()).is_empty());
    let target = root.path().join("model");
    let first = Claim::beside(&target, "export").unwrap();
    assert!(Claim::beside(&target, "export").is_err());
    drop(first);
    Claim::beside(&target, "export").unwrap();
    assert!(entries(root.path()).is_empty());
}

#[test]
fn a_folder_with_something_in_it_stays() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("a/b");
    let claim = Claim::folder(&dir, "train").unwrap();
    std::fs::write(dir.join("metrics.jsonl"), "{}\n").unwrap();
    drop(claim);
    assert_eq!(entries(&dir), ["metrics.jsonl"]);
}

/// The memory of a killed process is given back before it is over; its launcher may have ended, and the next job of a script begins.
#[test]
fn one_that_has_been_killed_is_waited_for() {
    let root = tempfile::tempdir().unwrap();
    let mut large = std::process::Command::new(std::env::current_exe().unwrap());
    let mut child = large
        .args(["tests::large", "--exact", "--ignored"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let status = format!("/proc/{}/statm", child.id());
    let began = Instant::now();
    let holds = |pages: u64| {
        let text = std::fs::read_to_string(&status).unwrap();
        let resident = text.split(' ').nth(1).unwrap().parse::<u64>();
        resident.unwrap() > pages
    };
    while !holds(60_000) {
        assert!(began.elapsed() < Duration::from_secs(120));
    }
    plant(root.path(), &Owner::of(child.id()));
    assert!(Claim::folder(root.path(), "train").is_err());
    child.kill().unwrap();
    let claim = Claim::folder(root.path(), "train").unwrap();
    assert!(claim.replaced().is_some());
    child.wait().unwrap();
}

#[test]
#[ignore = "the process of the test above: it holds 256 MiB until it is killed"]
fn large() {
    let held = std::hint::black_box(vec![1u8; 256 << 20]);
    std::io::read_to_string(std::io::stdin()).unwrap();
    assert_eq!(held.len(), 256 << 20);
}

#[test]
fn an_owner_that_cannot_be_seen_is_left_alone() {
    let root = tempfile::tempdir().unwrap();
    plant(root.path(), &Owner::elsewhere());
    let e = Claim::folder(root.path(), "train").unwrap_err().to_string();
    let lock = root.path().join(LOCK);
    for part in ["node7", "remove ", &lock.display().to_string()] {
        assert!(e.contains(part), "{part:?} not in {e}");
    }
    assert_eq!(entries(root.path()), [LOCK]);
    // By hand, as the sentence says.
    std::fs::remove_file(lock).unwrap();
    Claim::folder(root.path(), "train").unwrap();
}

#[test]
fn an_owner_that_cannot_be_seen_is_replaced_where_it_is_lost() {
    let root = tempfile::tempdir().unwrap();
    plant(root.path(), &Owner::elsewhere());
    let claim = Claim::folder_from(root.path(), "train", Unseen::IsLost).unwrap();
    assert_eq!(claim.replaced().map(|o| o.host.as_str()), Some("node7"));
    claim.check().unwrap();
    // One that can be seen is not lost.
    let e = Claim::folder_from(root.path(), "train", Unseen::IsLost).unwrap_err();
    assert!(matches!(e, ClaimError::Held { .. }), "{e}");
}

#[test]
fn a_file_that_is_no_lock_is_left_alone() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join(LOCK), "mine").unwrap();
    let lock = root.path().join(LOCK);
    let folder = root.path().join("folder");
    std::fs::create_dir_all(folder.join(LOCK)).unwrap();
    let e = Claim::folder(&folder, "train").unwrap_err().to_string();
    assert!(
        e.contains("no small regular file") && e.contains("remove it"),
        "{e}"
    );
    // Judged as at the end of the wait for one that is being written.
    assert!(matches!(read(&lock), Ok(Read::Other(_))));
    assert!(Claim::owner_of(root.path()).is_none());
    std::fs::write(
        &lock,
        Owner::dead(1).to_text().replace("version 1", "version 9"),
    )
    .unwrap();
    assert!(matches!(read(&lock), Ok(Read::Other(why)) if why.contains("version 9")));
}

#[cfg(unix)]
#[test]
fn links_that_lead_nowhere_are_no_locks() {
    for (to, name) in [
        ("nowhere", "dangling"),
        (LOCK, "loop"),
        ("/dev/zero", "device"),
    ] {
        let root = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(to, root.path().join(LOCK)).unwrap();
        let e = Claim::folder(root.path(), "train").unwrap_err().to_string();
        assert!(
            e.contains("no small regular file") && e.contains("fix:"),
            "{name}: {e}"
        );
        assert_eq!(entries(root.path()), [LOCK]);
    }
}

#[test]
fn what_the_system_refuses_has_a_fix_and_what_a_lock_says_is_one_short_line() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("file");
    std::fs::write(&file, "").unwrap();
    for e in [
        Claim::folder(&file.join("run"), "train").unwrap_err(),
        Claim::beside(&root.path().join("none/t.json"), "trace").unwrap_err(),
    ] {
        assert!(
            matches!(e, ClaimError::Io { .. }) && e.to_string().contains("fix:"),
            "{e}"
        );
    }
    let mut owner = Owner::elsewhere();
    (owner.host, owner.job) = ("h".repeat(30_000), "a\nb\u{1b}[31m".repeat(3000));
    plant(root.path(), &owner);
    let e = Claim::folder(root.path(), "train").unwrap_err().to_string();
    assert!(e.len() < 1000 && !e.contains(['\n', '\u{1b}']), "{e}");
}

#[test]
fn a_claim_that_was_taken_over_by_hand_knows_it() {
    let root = tempfile::tempdir().unwrap();
    let first = Claim::folder(root.path(), "first").unwrap();
    std::fs::remove_file(root.path().join(LOCK)).unwrap();
    let e = first.check().unwrap_err().to_string();
    assert!(e.contains("removed"), "{e}");
    let second = Claim::folder(root.path(), "second").unwrap();
    let e = first.check().unwrap_err().to_string();
    assert!(
        e.contains("(second)") && e.contains("writes nothing more"),
        "{e}"
    );
    // It does not remove what is not its own.
    drop(first);
    second.check().unwrap();
    // Nor does one that was given up while somebody keeps it.
    second.release();
    assert!(second.check().is_err());
    let third = Claim::folder(root.path(), "third").unwrap();
    drop(second);
    third.check().unwrap();
}

/// `count` threads claim at once; returns how many succeeded. Every claim is held until all have tried.
fn contend(dir: &Path, count: usize) -> usize {
    let gate = Barrier::new(count);
    let all: Vec<Result<Claim>> = std::thread::scope(|s| {
        let one = || {
            gate.wait();
            Claim::folder(dir, "train")
        };
        let threads: Vec<_> = (0..count).map(|_| s.spawn(one)).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    for r in &all {
        match r {
            Ok(claim) => claim.check().unwrap(),
            Err(e) => assert!(matches!(e, ClaimError::Held { .. }), "{e}"),
        }
    }
    all.iter().flatten().count()
}

#[test]
fn of_many_at_once_one_succeeds() {
    let root = tempfile::tempdir().unwrap();
    for round in 0..50 {
        let dir = root.path().join(format!("{round}"));
        assert_eq!(contend(&dir, 8), 1, "round {round}");
        assert!(!dir.exists() || entries(&dir).is_empty());
    }
}

#[test]
fn of_many_that_find_a_dead_owner_one_replaces_it() {
    let root = tempfile::tempdir().unwrap();
    for round in 0..50 {
        let dir = root.path().join(format!("{round}"));
        let dead = Owner::dead(round);
        plant(&dir, &dead);
        // In every other round, one that died while it was replacing the dead one.
        if round % 2 == 1 {
            let right = successor(&dir.join(LOCK), &dead);
            std::fs::write(right, Owner::dead(1000 + round).to_text()).unwrap();
        }
        assert_eq!(contend(&dir, 8), 1, "round {round}");
        assert!(entries(&dir).is_empty(), "{:?}", entries(&dir));
    }
    let dir = root.path().join("note");
    plant(&dir, &Owner::dead(7));
    let claim = Claim::folder(&dir, "train").unwrap();
    assert!(claim.replaced().unwrap().to_string().contains("killed"));
}

#[test]
fn a_judgement_that_comes_late_does_not_replace_the_living() {
    // Two have found the dead owner, and the first has replaced it before the second acts on what it saw.
    let root = tempfile::tempdir().unwrap();
    let (dead, late) = (Owner::dead(7), Owner::this("late"));
    plant(root.path(), &dead);
    let first = Claim::folder(root.path(), "first").unwrap();
    let lock = root.path().join(LOCK);
    let own = Temp::write(&lock, &late).unwrap();
    assert!(!replace(root.path(), &lock, (&own, &late), &dead, Unseen::Lives).unwrap());
    first.check().unwrap();
    drop(own);
    assert_eq!(entries(root.path()), [LOCK]);
}

#[test]
fn a_dead_owners_attempts_are_swept() {
    let root = tempfile::tempdir().unwrap();
    plant(root.path(), &Owner::dead(7));
    let lock = root.path().join(LOCK);
    std::fs::write(hidden(&lock, ".0123"), Owner::dead(9).to_text()).unwrap();
    std::fs::write(root.path().join(".other"), "stays").unwrap();
    drop(Claim::folder(root.path(), "train").unwrap());
    assert_eq!(entries(root.path()), [".other"]);
}

#[test]
fn without_links_the_name_is_taken_first() {
    let root = tempfile::tempdir().unwrap();
    let lock = root.path().join(LOCK);
    let owner = Owner::this("train");
    put(&lock, &owner.to_text()).unwrap();
    let again = put(&lock, "other").unwrap_err();
    assert_eq!(again.kind(), ErrorKind::AlreadyExists);
    assert!(matches!(read(&lock), Ok(Read::Owner(o)) if *o == owner));
}

#[test]
fn what_was_killed_while_it_claimed_is_removed_by_the_next_claim() {
    let root = tempfile::tempdir().unwrap();
    let attempt = |n: u64, text: &str| {
        let path = hidden(&root.path().join(LOCK), &format!(".{n:016x}"));
        std::fs::write(&path, text).unwrap();
        path
    };
    let dead = Owner::dead(1).to_text();
    attempt(1, &dead);
    // Cut off, long ago and now: the second may be being written.
    let old = attempt(2, &dead[..9]);
    let then = std::time::SystemTime::now() - 2 * OVER;
    let file = File::options().write(true).open(&old).unwrap();
    file.set_modified(then).unwrap();
    let now = attempt(3, "");
    let claim = Claim::folder(root.path(), "train").unwrap();
    assert!(claim.replaced().is_none());
    let now = now.file_name().unwrap().to_string_lossy().into_owned();
    assert_eq!(entries(root.path()), [now, LOCK.to_string()]);
    // Nobody's folder: what is there is all of attempts.
    drop(claim);
    assert!(Claim::remove_unclaimed(root.path()));
    assert!(!root.path().exists());
}
