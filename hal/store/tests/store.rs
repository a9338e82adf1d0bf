//! The file engine under faults: both engines, through the real write path, give the same bytes or an error that names the place.

use crossweave_backend_cpu::CpuBackend;
use crossweave_hal::{Device, HostServices, Plugin, RawPlugin, Tag};
use crossweave_store::{Block, BlockFile, EngineKind, Error, Layer, Settings, Store, Verdict};
use proptest::prelude::*;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What is waited for comes at once; only a hang takes as long.
const SOON: Duration = Duration::from_secs(120);

fn device() -> Device {
    let host = HostServices::builder().config("cpu.threads", "1").build();
    let raw = RawPlugin::from_static::<CpuBackend>(&host).unwrap();
    Plugin::new(raw).open(0).unwrap()
}

/// Each fault with its own odds in 256, by a counter's hash: the same every run.
struct Faults {
    n: AtomicU64,
    short: u64,
    again: u64,
}

impl Layer for Faults {
    fn before(&self, _: bool, _: u64, bytes: u64) -> Verdict {
        let n = self.n.fetch_add(1, Ordering::Relaxed);
        let h = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        match h % 256 {
            x if x < self.short => Verdict::Short(1 + h % bytes),
            x if x < self.short + self.again => {
                Verdict::Fail([libc::EINTR, libc::EAGAIN][(h >> 8) as usize % 2])
            }
            _ => Verdict::Pass,
        }
    }
}

/// Fails from an offset on, like a disk that is full or broken there.
struct Wall(u64, i32, bool);
impl Layer for Wall {
    fn before(&self, write: bool, offset: u64, bytes: u64) -> Verdict {
        match write == self.2 && offset + bytes > self.0 {
            true => Verdict::Fail(self.1),
            false => Verdict::Pass,
        }
    }
}

fn engines() -> Vec<EngineKind> {
    vec![EngineKind::Auto, EngineKind::Threads]
}

fn settings(engine: EngineKind) -> Settings {
    Settings {
        engine,
        block_size: 8192,
        queue_depth: 4,
        buffers: 3,
        buffer_bytes: 100_000,
        ..Settings::default()
    }
}

fn fill(block: &mut Block, seed: u64) {
    for (i, b) in block.write().unwrap().iter_mut().enumerate() {
        *b = ((i as u64).wrapping_mul(31).wrapping_add(seed * 7) >> 2) as u8;
    }
}

fn round_trip(store: &Store, transfers: &[(u64, u64)]) {
    let file = store.file("state", 1 << 20).unwrap();
    for (seed, &(offset, bytes)) in transfers.iter().enumerate() {
        let mut b = store.pool().take(SOON).unwrap();
        fill(&mut b, seed as u64);
        let want = b.read().unwrap()[..bytes as usize].to_vec();
        let b = store
            .write(&file, offset, b, bytes)
            .unwrap()
            .wait()
            .unwrap();
        drop(b);
        let mut b = store.pool().take(SOON).unwrap();
        b.write().unwrap().fill(0);
        let mut b = store.read(&file, offset, b, bytes).unwrap().wait().unwrap();
        assert!(
            b.read().unwrap()[..bytes as usize] == want[..],
            "{offset}+{bytes}"
        );
    }
}

#[test]
fn bytes_come_back_with_every_engine_and_alignment() {
    let (dir, device) = (tempfile::tempdir().unwrap(), device());
    let odd = [
        (0, 1),
        (0, 4096),
        (0, 100_000),
        (4096, 50_001),
        (13, 7),
        (8191, 65_537),
        (0, 0),
    ];
    for engine in engines() {
        for (single, overlap, direct) in [
            (false, true, true),
            (true, false, true),
            (false, true, false),
        ] {
            let s = Settings {
                single_submit: single,
                overlap_events: overlap,
                direct,
                ..settings(engine)
            };
            let store = Store::open(dir.path(), &device, Tag::Moment, s).unwrap();
            round_trip(&store, &odd);
            let moved = store.counters();
            assert_eq!(moved.read, moved.written);
            assert!(moved.read >= odd.iter().map(|o| o.1).sum());
        }
    }
    assert_eq!(
        std::fs::read_dir(dir.path()).unwrap().count(),
        0,
        "something is left"
    );
    assert_eq!(device.memory().host["moment"].now, 0);
}

#[test]
fn short_transfers_eintr_and_eagain_are_never_seen() {
    let (dir, device) = (tempfile::tempdir().unwrap(), device());
    for engine in engines() {
        for (short, again) in [(200, 20), (60, 120), (255, 0)] {
            let faults = Arc::new(Faults {
                n: AtomicU64::new(short),
                short,
                again,
            });
            let store = Store::open_with(
                dir.path(),
                &device,
                Tag::Moment,
                settings(engine),
                faults.clone(),
            )
            .unwrap();
            round_trip(&store, &[(0, 100_000), (4096, 33_333), (5, 9_999)]);
            assert!(
                faults.n.load(Ordering::Relaxed) > short + 30,
                "no fault was met"
            );
        }
    }
}

fn fails(store: &Store, write: bool) -> Error {
    let file = store.file("state", 1 << 20).unwrap();
    let b = store.pool().take(SOON).unwrap();
    let t = match write {
        true => store.write(&file, 40_960, b, 50_000),
        false => store.read(&file, 40_960, b, 50_000),
    };
    let failed = t.unwrap().wait().unwrap_err();
    assert!(failed.block.is_some(), "the block is gone");
    // The engine goes on.
    drop(failed.block);
    for _ in 0..4 {
        let b = store.pool().take(SOON).unwrap();
        store.write(&file, 0, b, 4096).unwrap().wait().unwrap();
    }
    failed.error
}

#[test]
fn a_full_or_broken_disk_is_an_error_with_its_place_and_the_engine_goes_on() {
    let (dir, device) = (tempfile::tempdir().unwrap(), device());
    for engine in engines() {
        let open = |layer| {
            Store::open_with(
                dir.path(),
                &device,
                Tag::Moment,
                settings(engine),
                Arc::new(layer),
            )
            .unwrap()
        };
        for code in [libc::ENOSPC, libc::EDQUOT] {
            match fails(&open(Wall(60_000, code, true)), true) {
                Error::Full {
                    file,
                    offset,
                    bytes,
                } => {
                    assert!(file.starts_with(dir.path()), "{}", file.display());
                    assert!(offset >= 40_960 && bytes <= 8192, "{offset} {bytes}");
                }
                e => panic!("{e}"),
            }
        }
        for write in [true, false] {
            let e = fails(&open(Wall(60_000, libc::EIO, write)), write);
            let text = e.to_string();
            let word = if write { "write" } else { "read" };
            assert!(matches!(e, Error::Io { op, .. } if op == word), "{text}");
            assert!(
                text.contains("offset") && text.contains("checkpoint"),
                "{text}"
            );
        }
        // A system that says "not now" for ever is an error in the end, no hang.
        let e = fails(&open(Wall(60_000, libc::EAGAIN, true)), true);
        assert!(matches!(e, Error::Io { .. }), "{e}");
    }
}

#[test]
fn a_device_that_is_full_says_so_through_the_real_write_path() {
    let (dir, device) = (tempfile::tempdir().unwrap(), device());
    let full = Path::new("/dev/full");
    if !full.exists() {
        return;
    }
    for engine in engines() {
        let store = Store::open(dir.path(), &device, Tag::Moment, settings(engine)).unwrap();
        let file = BlockFile::open(full, 1 << 20).unwrap();
        let b = store.pool().take(SOON).unwrap();
        let failed = store
            .write(&file, 0, b, 20_000)
            .unwrap()
            .wait()
            .unwrap_err();
        let text = failed.error.to_string();
        assert!(matches!(failed.error, Error::Full { .. }), "{text}");
        assert!(
            text.contains("/dev/full") && text.contains("nvme_path"),
            "{text}"
        );
    }
}

#[test]
fn what_no_disk_can_hold_is_refused_when_it_is_reserved_and_leaves_nothing() {
    let (dir, device) = (tempfile::tempdir().unwrap(), device());
    let store = Store::open(dir.path(), &device, Tag::Moment, settings(EngineKind::Auto)).unwrap();
    let e = store
        .file("state", 1 << 60)
        .err()
        .expect("an exabyte was reserved");
    assert!(matches!(e, Error::Full { .. }), "{e}");
    let names: Vec<_> = std::fs::read_dir(store.folder().unwrap())
        .unwrap()
        .collect();
    assert_eq!(names.len(), 1, "{names:?}");
}

#[test]
fn a_file_cut_by_somebody_is_an_error() {
    let (dir, device) = (tempfile::tempdir().unwrap(), device());
    let path = dir.path().join("short");
    std::fs::write(&path, [7u8; 5000]).unwrap();
    for engine in engines() {
        let store = Store::open(dir.path(), &device, Tag::Moment, settings(engine)).unwrap();
        let file = BlockFile::open(&path, 1 << 20).unwrap();
        let b = store.pool().take(SOON).unwrap();
        let failed = store.read(&file, 0, b, 20_000).unwrap().wait().unwrap_err();
        assert!(
            matches!(failed.error, Error::Ended { .. }),
            "{}",
            failed.error
        );
    }
}

#[test]
fn the_pool_is_bounded_and_an_empty_one_says_so() {
    let (dir, device) = (tempfile::tempdir().unwrap(), device());
    let store = Store::open(
        dir.path(),
        &device,
        Tag::Moment,
        settings(EngineKind::Threads),
    )
    .unwrap();
    let held: Vec<Block> = (0..3).map(|_| store.pool().take(SOON).unwrap()).collect();
    assert_eq!(device.memory().host["moment"].now, 3 * 102_400);
    let e = store.pool().take(Duration::from_millis(5)).unwrap_err();
    assert!(
        matches!(e, Error::Exhausted { .. }) && e.to_string().contains("buffer_count"),
        "{e}"
    );
    drop(held);
    // A ticket nobody waits for gives its block back by itself.
    let file = store.file("state", 1 << 20).unwrap();
    for i in 0..50u64 {
        let b = store.pool().take(SOON).unwrap();
        drop(store.write(&file, i * 4096, b, 4096).unwrap());
    }
    // Lent to a device and back; a handle kept elsewhere is said.
    let lent = store.pool().take(SOON).unwrap().lend(&device).unwrap();
    let stream = device.stream("s", 0).unwrap();
    stream.fill(lent.buffer().unwrap().all(), 0x5a, 1).unwrap();
    let mut b = lent.give_back().unwrap();
    assert!(b.read().unwrap().iter().all(|x| *x == 0x5a));
    let lent = b.lend(&device).unwrap();
    let kept = lent.buffer().unwrap().clone();
    assert!(lent.give_back().is_err());
    drop(kept);
}

#[test]
fn requests_and_settings_that_cannot_be_are_refused() {
    let (dir, device) = (tempfile::tempdir().unwrap(), device());
    let store = Store::open(
        dir.path(),
        &device,
        Tag::Moment,
        settings(EngineKind::Threads),
    )
    .unwrap();
    let file = store.file("state", 8192).unwrap();
    for (offset, bytes) in [(0, 8193), (u64::MAX, 1), (8192, 1)] {
        let b = store.pool().take(SOON).unwrap();
        assert!(matches!(
            store.read(&file, offset, b, bytes),
            Err(Error::Request { .. })
        ));
    }
    let base = settings(EngineKind::Threads);
    for bad in [
        Settings {
            block_size: 1000,
            ..base.clone()
        },
        Settings {
            queue_depth: 0,
            ..base.clone()
        },
        Settings {
            threads: 0,
            ..base.clone()
        },
        Settings {
            buffers: 0,
            ..base.clone()
        },
        Settings {
            buffer_bytes: 0,
            ..base.clone()
        },
    ] {
        let e = Store::open(dir.path(), &device, Tag::Moment, bad)
            .err()
            .unwrap();
        assert!(matches!(e, Error::Setting { .. }), "{e}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    /// Any transfers in flight together, under faults: what is read is what was written last.
    #[test]
    fn any_transfers_in_flight_keep_their_bytes(
        places in proptest::collection::vec((0u64..40, 1u64..20_000), 1..24), seed in 0u64..1000, ring in any::<bool>())
    {
        let (dir, device) = (tempfile::tempdir().unwrap(), device());
        let engine = if ring { EngineKind::Auto } else { EngineKind::Threads };
        let faults = Arc::new(Faults { n: AtomicU64::new(seed), short: 70, again: 40 });
        let store = Store::open_with(dir.path(), &device, Tag::Moment, settings(engine), faults).unwrap();
        let file = store.file("state", 40 * 20_480).unwrap();
        let mut last = std::collections::BTreeMap::new();
        for round in places.chunks(3) {
            let mut tickets = vec![];
            let mut seen = std::collections::BTreeSet::new();
            for &(place, bytes) in round.iter().filter(|p| seen.insert(p.0)) {
                let mut b = store.pool().take(SOON).unwrap();
                fill(&mut b, place * 1000 + bytes);
                last.insert(place, b.read().unwrap()[..bytes as usize].to_vec());
                tickets.push(store.write(&file, place * 20_480, b, bytes).unwrap());
            }
            for t in tickets {
                t.wait().unwrap();
            }
        }
        for (place, want) in last {
            let b = store.pool().take(SOON).unwrap();
            let t = store.read(&file, place * 20_480, b, want.len() as u64).unwrap();
            let mut b = t.wait().unwrap();
            prop_assert!(b.read().unwrap()[..want.len()] == want[..]);
        }
    }
}

/// A disk that takes its time and fails everything.
struct SlowAndBroken;
impl Layer for SlowAndBroken {
    fn before(&self, _: bool, _: u64, _: u64) -> Verdict {
        std::thread::sleep(Duration::from_millis(100));
        Verdict::Fail(libc::EIO)
    }
}

#[test]
fn a_store_that_closes_while_its_last_transfer_fails_ends() {
    let device = device();
    for engine in engines() {
        let dir = tempfile::tempdir().unwrap();
        let layer = Arc::new(SlowAndBroken);
        let settings = settings(engine);
        let store = Store::open_with(dir.path(), &device, Tag::Staging, settings, layer).unwrap();
        let file = store.file("state", 1 << 20).unwrap();
        let block = || store.pool().take(SOON).unwrap();
        let first = store.write(&file, 0, block(), 4096);
        // The engine is at the first one when it is given the second and closed, and hears of both at once.
        std::thread::sleep(Duration::from_millis(30));
        let second = store.write(&file, 4096, block(), 4096);
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            drop((first, second, file, store));
            tell.send(())
        });
        told.recv_timeout(SOON).expect("the store closes");
    }
}

/// What a rehearsal has in place of a disk: the same blocks, bounds and counters, and nothing on any disk.
#[test]
fn a_store_that_is_nowhere_counts_and_writes_nothing() {
    let device = device();
    let parent = std::path::Path::new("/no/such/folder");
    let store = Store::open(parent, &device, Tag::Moment, settings(EngineKind::Nowhere)).unwrap();
    assert_eq!((store.folder(), store.engine()), (None, "nowhere"));
    let file = store.file("state", 5000).unwrap();
    assert_eq!(file.bytes(), 8192);
    let block = store.pool().take(SOON).unwrap();
    let block = store.write(&file, 0, block, 5000).unwrap().wait().unwrap();
    let block = store.read(&file, 4096, block, 904).unwrap().wait().unwrap();
    let too_far = store.read(&file, 8192, block, 1);
    assert!(too_far.is_err(), "past the end");
    let c = store.counters();
    assert_eq!((c.reserved, c.written, c.read), (8192, 8192, 4096));
}
