//! Mistakes of one rank, and deaths, between processes: the processes that are left name the rank. Each is a scene of the test `worker` in `mpi.rs`.

use super::mpi_ranks::{OUT, Rank, families, launch, text};
use crossweave_hal::{Collective, Communicator, DType, Device, Reduce, Stream, Tag, crash};
use crossweave_mesh::{ProcessMap, checker_state, this_host};
use crossweave_tests::system::{Signal, send_to_self};
use std::path::Path;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(60);

/// Rank 1 does something else; the others must say so.
pub(super) fn wrong(r: Rank, scene: &str) {
    let device = r.device();
    let timeout = Duration::from_secs(if scene == "absent" { 5 } else { 600 });
    let mut comm = r.comm(&device, "dp", timeout);
    let abort = comm.abort_handle();
    r.store.on_failure(move |f| {
        println!("reported: {f}");
        abort.abort().unwrap();
    });
    let s = device.stream("compute", 0).unwrap();
    let x = device.alloc_state(4096, Tag::Staging).unwrap();
    s.fill(x.all(), 0, 4).unwrap();
    comm.all_reduce(&s, x.all(), DType::F32, Reduce::Sum, "t")
        .unwrap();
    s.sync(None).unwrap();
    // Nobody goes wrong while another is still in what went well.
    met(&r, "begun", |_| true);
    let one = r.launch.rank == 1;
    let began = Instant::now();
    match scene {
        "other_kind" if one => comm.broadcast(&s, x.all(), DType::F32, 0, "t").unwrap(),
        "other_count" if one => {
            comm.all_reduce(&s, x.region(0, 2048), DType::F32, Reduce::Sum, "t")
                .unwrap();
        }
        "short" => {
            // Rank 0 expects more than rank 1 sends.
            let c = match r.launch.rank {
                0 => Collective::Recv {
                    buf: x.all(),
                    dtype: DType::F32,
                    peer: 1,
                },
                _ => Collective::Send {
                    buf: x.region(0, 64),
                    dtype: DType::F32,
                    peer: 0,
                },
            };
            if r.launch.rank < 2 {
                comm.group(&s, &[c], "t").unwrap();
            }
        }
        "absent" if one => std::thread::sleep(SOON),
        "killed" if one => send_to_self(Signal::SIGKILL),
        "killed_amid" => killed_amid(&r, &device, &s, &mut comm),
        _ => comm
            .all_reduce(&s, x.all(), DType::F32, Reduce::Sum, "t")
            .unwrap(),
    }
    let end = s.sync(None);
    if let Err(e) = &end {
        println!(
            "rank {} after {:.1} s: {e}",
            r.launch.rank,
            began.elapsed().as_secs_f64()
        );
        // Neither does the device give out what the failed collective left.
        assert!(s.read(x.all(), &mut [0; 4096]).is_err());
        assert!(comm.barrier(&s).is_err());
    }
    if end.is_err() {
        // A death breaks the collective before the news of it comes.
        let began = Instant::now();
        while scene.starts_with("killed") && r.store.failure().is_none() && began.elapsed() < SOON {
            std::thread::sleep(Duration::from_millis(5));
        }
        r.store.report(r.launch.rank, "it saw a failure", false);
    }
    // Who has seen nothing stays, so that it is no second death.
    while end.is_ok() && r.store.failure().is_none() && began.elapsed() < SOON {
        std::thread::sleep(Duration::from_millis(10));
    }
    // Rank 1 is gone, or asleep.
    let gone = scene == "absent" || scene.starts_with("killed");
    met(&r, "spoken", |rank| rank != 1 || !gone);
    // No orderly end: the job has failed, and a rank that was notified reports it too; a launcher takes the code of the first that ends.
    let failed = end.is_err() || r.store.failure().is_some();
    std::process::exit(i32::from(failed) * 7);
}

/// Waits until each of these ranks has come so far. At the end they do since a launcher ends the others at the first that ends; who was ended
/// by its own MPI library never comes.
fn met(r: &Rank, so_far: &str, these: impl Fn(u32) -> bool) {
    let out = std::env::var_os(OUT).expect("a folder of the scene");
    // A scene that is played again has another launcher.
    let launcher = std::os::unix::process::parent_id();
    let file = |rank| Path::new(&out).join(format!("{so_far}.{launcher}.{rank}"));
    std::fs::write(file(r.launch.rank), "").unwrap();
    let began = Instant::now();
    let missing = || (0..r.launch.world).any(|rank| these(rank) && !file(rank).exists());
    while began.elapsed() < SOON / 4 && missing() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Rank 1 is killed while all move large vectors. An MPI library that reads a dead process's memory may abort its own: what counts is that
/// the news of the death comes out before.
fn killed_amid(r: &Rank, device: &Device, s: &Stream, comm: &mut Communicator) {
    let me = r.launch.rank;
    // As a run does it: the processes of a host watch each other, and one that its library aborts leaves a moment for the news.
    let map = ProcessMap::single(me, r.launch.world);
    checker_state(&r.store, &map, &this_host(), SOON).unwrap();
    crash::guard(&format!("rank {me}"), "more memory");
    // A rank that waits for the dead one in its library learns of it only by this.
    let abort = comm.abort_handle();
    r.store.on_failure(move |f| {
        println!("rank {me} hears: {f}");
        let _ = abort.release();
    });
    if me == 1 {
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            send_to_self(Signal::SIGKILL);
        });
    }
    let x = device.alloc_state(32 << 20, Tag::Staging).unwrap();
    s.fill(x.all(), 0, 4).unwrap();
    let began = Instant::now();
    while began.elapsed() < SOON && r.store.failure().is_none() {
        let done = comm
            .all_reduce(s, x.all(), DType::F32, Reduce::Sum, "t")
            .and_then(|()| s.sync(None));
        if done.is_err() {
            break;
        }
    }
}

#[test]
fn mistakes_and_deaths_end_in_a_sentence_that_names_the_rank() {
    let scenes: [(&str, &[&str]); 6] = [
        (
            "other_kind",
            &[
                "rank 1 is in broadcast of 1024 f32 from rank 0 (#2 on dp)",
                "all_reduce sum of 1024 f32",
            ],
        ),
        (
            "other_count",
            &[
                "rank 1 is in all_reduce sum of 512 f32 (#2 on dp)",
                "all_reduce sum of 1024 f32",
            ],
        ),
        ("short", &["rank 1", "64 bytes", "4096"]),
        ("absent", &["timed out", "waited ", "for rank 1"]),
        ("killed", &["rank 1 died without a word"]),
        ("killed_amid", &["hears: rank 1 died without a word"]),
    ];
    // On one host, and the collectives also on two, where rank 2 hears of rank 1 by rank 0 alone.
    let alone = scenes.map(|(scene, parts)| (scene.to_string(), parts));
    let spread = scenes
        .iter()
        .filter(|s| !["short", "killed"].contains(&s.0));
    let spread = spread.map(|(scene, parts)| (format!("{scene}:0,0,1"), *parts));
    let all: Vec<_> = alone.into_iter().chain(spread).collect();
    for family in families() {
        for (scene, parts) in &all {
            let play = || {
                let out = tempfile::tempdir().unwrap();
                let o = launch(family, 3, scene, out.path());
                (o.status.success(), text(&o))
            };
            let (mut ended_well, mut t) = play();
            // MPICH's launcher sometimes ends itself over a survivor that it was answering; then the scene is played again.
            let fell = |t: &str| scene.starts_with("killed") && t.contains("[mpiexec@");
            for _ in 0..9 {
                if parts.iter().all(|p| t.contains(p)) || !fell(&t) {
                    break;
                }
                (ended_well, t) = play();
            }
            // A launcher that lets the survivors speak takes no notice of the death.
            let lets = family == "openmpi" && scene.starts_with("killed");
            assert!(lets || !ended_well, "{family} {scene}: {t}");
            for p in *parts {
                assert!(t.contains(p), "{family} {scene}: {p:?} not in: {t}");
            }
        }
    }
}
