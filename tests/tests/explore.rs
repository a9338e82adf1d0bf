//! Programs that are right on most days, and the schedules that show what is wrong with them. Each has a twin with the mistake mended,
//! under which no schedule finds anything. They read as examples of `crossweave_hal::explore`.

use crossweave_backend_cpu::CpuBackend;
use crossweave_hal::abi::{self, Handle, Span};
use crossweave_hal::{
    Account, DType, Explorer, HostServices, Order, Plugin, Rank, RawPlugin, Reduce, Tag,
};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

type Failure = Box<dyn std::error::Error>;

/// Seeds within which a planted bug must be found, and times its seed must show it again.
const SEEDS: u64 = 200;
const AGAIN: usize = 20;
/// Seeds under which the mended program must hold.
const MENDED: u64 = 60;

/// The back end of this process listens to its first host, and reads its order when devices are opened: one test at a time.
static TURN: Mutex<Option<(HostServices, Plugin)>> = Mutex::new(None);

struct Lab<'a>(MutexGuard<'a, Option<(HostServices, Plugin)>>);

impl Lab<'_> {
    fn new() -> Lab<'static> {
        let mut turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        turn.get_or_insert_with(|| {
            let host = HostServices::builder().config("cpu.threads", "1").build();
            let raw = RawPlugin::from_static::<CpuBackend>(&host).expect("linked");
            (host, Plugin::new(raw))
        });
        Lab(turn)
    }
    fn parts(&self) -> (&HostServices, &Plugin) {
        let (host, plugin) = self.0.as_ref().expect("made in new");
        (host, plugin)
    }
    fn explorer(&self, ranks: u32) -> Explorer {
        let (host, plugin) = self.parts();
        Explorer::new(plugin, host, ranks)
    }
}

/// The bug is found, its seed shows it every time with the same words, and without it nothing is found.
fn found_and_mended<B, M>(explorer: &Explorer, bug: B, mended: M, says: &[&str])
where
    B: Fn(&Rank) -> Result<(), Failure> + Sync,
    M: Fn(&Rank) -> Result<(), Failure> + Sync,
{
    let text =
        |f: &dyn Fn(&Rank) -> Result<(), Failure>, rank: &Rank| f(rank).map_err(|e| e.to_string());
    let found = explorer
        .explore(0..SEEDS, |r| text(&bug, r))
        .expect_err("no schedule shows the bug");
    println!("{found}");
    let shown = found.to_string();
    for words in says {
        assert!(shown.contains(words), "{shown:?} does not say {words:?}");
    }
    assert!(shown.starts_with(&format!("seed {}, schedule ", found.seed)));
    assert!(shown.contains(&format!("switch #{}", found.switches)));
    for _ in 0..AGAIN {
        let played = explorer.play(found.seed, |r| text(&bug, r)).unwrap();
        assert_eq!(played.failure().as_ref(), Some(&found));
    }
    let held = explorer.explore(0..MENDED, |r| text(&mended, r));
    assert_eq!(held, Ok(MENDED));
}

fn expect(got: f32, want: f32) -> Result<(), Failure> {
    match got == want {
        true => Ok(()),
        false => Err(format!("got {got}, expected {want}").into()),
    }
}

/// Every rank adds its number plus one, twice, on two streams.
fn two_sums(rank: &Rank) -> Result<Vec<f32>, Failure> {
    let d = rank.device();
    let mut group = rank.communicator("dp")?;
    let (a, b) = (d.stream("a", 0)?, d.stream("b", 0)?);
    let mut sums = vec![];
    for s in [&a, &b, &a] {
        let buf = d.alloc(s, 4096, Tag::Staging)?;
        let own = (rank.rank() + 1) as f32;
        s.fill(buf.all(), u64::from(own.to_bits()), 4)?;
        group.all_reduce(s, buf.all(), DType::F32, Reduce::Sum, "test")?;
        let mut out = [0u8; 4];
        s.read(buf.region(0, 4), &mut out)?;
        sums.push(f32::from_le_bytes(out));
    }
    Ok(sums)
}

#[test]
fn the_same_seed_makes_the_same_decisions_and_another_seed_others() {
    crossweave_tests::in_own_process!();
    let lab = Lab::new();
    for order in [Order::Random, Order::Pct(3), Order::Fifo] {
        let explorer = lab.explorer(4).order(order);
        let run = |seed: u64| -> Account {
            let played = explorer
                .play(seed, |r| two_sums(r).map_err(|e| e.to_string()))
                .unwrap();
            assert_eq!(played.failure(), None);
            for sums in &played.ranks {
                assert_eq!(sums.as_deref().unwrap(), [10.0; 3]);
            }
            played.account
        };
        let first = run(7);
        assert!(first.switches > 20 && first.points >= first.switches);
        for _ in 0..AGAIN {
            assert_eq!(run(7), first, "{order}");
        }
        let others = (8..16).map(|s| run(s).hash != first.hash).filter(|d| *d);
        let want = if order == Order::Fifo { 0 } else { 8 };
        assert_eq!(others.count(), want, "{order}");
    }
}

/// Rank 0's host leaves a number for rank 1's, which believes a barrier it has only enqueued.
#[test]
fn a_barrier_that_was_enqueued_and_not_waited_for() {
    crossweave_tests::in_own_process!();
    let lab = Lab::new();
    let word = AtomicU32::new(0);
    let program = |rank: &Rank, waits: bool| -> Result<(), Failure> {
        let s = rank.device().stream("s", 0)?;
        let mut group = rank.communicator("dp")?;
        if rank.rank() == 0 {
            word.store(0, SeqCst);
        }
        group.barrier(&s)?;
        s.sync(None)?;
        if rank.rank() == 0 {
            let buf = rank.device().alloc(&s, 64, Tag::Staging)?;
            s.fill(buf.all(), 0, 4)?;
            word.store(42, SeqCst);
        }
        group.barrier(&s)?;
        if waits {
            s.sync(None)?;
        }
        match rank.rank() {
            1 => expect(word.load(SeqCst) as f32, 42.0),
            _ => Ok(()),
        }
    };
    found_and_mended(
        &lab.explorer(2),
        |r| program(r, false),
        |r| program(r, true),
        &["rank 1: got 0, expected 42"],
    );
}

/// Two groups over the same ranks, used in the order in which two copies happen to end: a deadlock when the ranks see it differently.
#[test]
fn an_order_of_collectives_that_depends_on_timing_is_a_deadlock() {
    crossweave_tests::in_own_process!();
    let lab = Lab::new();
    let program = |rank: &Rank, by_timing: bool| -> Result<(), Failure> {
        let d = rank.device();
        let (s, side) = (d.stream("main", 0)?, d.stream("side", 0)?);
        let (mut dp, mut tp) = (rank.communicator("dp")?, rank.communicator("tp")?);
        let buf = d.alloc(&s, 8192, Tag::Staging)?;
        s.fill(buf.all(), u64::from(1f32.to_bits()), 4)?;
        s.sync(None)?;
        let copy = d.alloc(&side, 8192, Tag::Staging)?;
        side.copy(copy.all(), buf.all())?;
        let done = side.record()?;
        let first = by_timing && done.query()?;
        for early in [first, !first] {
            match early {
                true => tp.all_reduce(&s, buf.all(), DType::F32, Reduce::Sum, "test")?,
                false => dp.all_reduce(&s, buf.all(), DType::F32, Reduce::Sum, "test")?,
            }
        }
        let mut out = [0u8; 4];
        s.read(buf.region(0, 4), &mut out)?;
        expect(f32::from_le_bytes(out), 4.0)
    };
    found_and_mended(
        &lab.explorer(2),
        |r| program(r, true),
        |r| program(r, false),
        &[
            "deadlock: ",
            "waits in dp for rank",
            "waits in tp for rank",
            "rank 0's last call was all_reduce of 2048 x f32 sum (#",
            "rank 1's last call was all_reduce of 2048 x f32 sum (#",
            "explore.rs:",
        ],
    );
}

/// A copy on one stream, and a read of its result on another that forgot the event; by raw calls, because a stream of the safe layer
/// does not forget.
#[test]
fn a_missing_event_between_two_streams() {
    crossweave_tests::in_own_process!();
    let lab = Lab::new();
    let (host, _) = lab.parts();
    let raw = RawPlugin::from_static::<CpuBackend>(host).expect("linked");
    let run = |seed: u64, event: bool| {
        host.set_config("cpu.schedule", Some(format!("random:{seed}")));
        let got = raw_copy(&raw, event);
        host.set_config("cpu.schedule", None);
        got
    };
    let found = (0..SEEDS).find(|s| run(*s, false) != [7; 8]);
    let seed = found.expect("no schedule reads too early");
    let wrong = run(seed, false);
    for _ in 0..AGAIN {
        assert_eq!(run(seed, false), wrong);
    }
    for seed in 0..MENDED.max(seed + 1) {
        assert_eq!(run(seed, true), [7; 8], "seed {seed}");
    }
}

/// Fills A with sevens and copies it to B on one stream, copies B to C on another, and gives C.
fn raw_copy(raw: &RawPlugin, event: bool) -> [u8; 8] {
    let api = raw.device.as_ref().expect("the CPU has devices");
    let none = std::ptr::null_mut;
    let ok = |status: abi::Status| assert_eq!(status, abi::OK);
    // SAFETY: every handle is made here, used while it lives, and destroyed once, streams before their device and memory after its use.
    unsafe {
        let make = |f: &dyn Fn(*mut Handle) -> abi::Status| {
            let mut h: Handle = std::ptr::null_mut();
            ok(f(&mut h));
            h
        };
        let device = make(&|h| api.device_open.unwrap()(raw.self_, 0, h, none()));
        let memory =
            || make(&|h| api.mem_alloc.unwrap()(device, abi::MEM_HOST_PINNED, 8, 64, h, none()));
        let mem = [memory(), memory(), memory()];
        let span = |i: usize| Span {
            mem: mem[i],
            offset: 0,
            bytes: 8,
        };
        let stream = || make(&|h| api.stream_create.unwrap()(device, 0, 0, h, none()));
        let (one, two) = (stream(), stream());
        for i in 0..3 {
            ok(api.fill.unwrap()(one, span(i), 0, 1, none()));
        }
        ok(api.stream_sync.unwrap()(one, -1, none()));
        ok(api.fill.unwrap()(one, span(0), 7, 1, none()));
        ok(api.copy.unwrap()(one, span(1), span(0), none()));
        let done = make(&|h| api.event_create.unwrap()(device, 0, h, none()));
        if event {
            ok(api.event_record.unwrap()(done, one, none()));
            ok(api.stream_wait_event.unwrap()(two, done, none()));
        }
        ok(api.copy.unwrap()(two, span(2), span(1), none()));
        ok(api.stream_sync.unwrap()(two, -1, none()));
        let mut at = std::ptr::null_mut();
        ok(api.mem_map.unwrap()(mem[2], &mut at, none()));
        let bytes = *at.cast::<[u8; 8]>();
        ok(api.stream_sync.unwrap()(one, -1, none()));
        api.event_destroy.unwrap()(done);
        api.stream_destroy.unwrap()(one);
        api.stream_destroy.unwrap()(two);
        mem.iter().for_each(|m| api.mem_free.unwrap()(*m));
        api.device_close.unwrap()(device);
        bytes
    }
}

/// A rank that differs is reported by those that have come: under a schedule nobody else comes while a rank waits for a majority.
#[test]
fn a_root_that_differs_is_told_without_waiting_for_ranks_that_cannot_run() {
    crossweave_tests::in_own_process!();
    let lab = Lab::new();
    let explorer = lab.explorer(4);
    let program = |rank: &Rank| -> Result<(), Failure> {
        let d = rank.device();
        let s = d.stream("main", 0)?;
        let mut dp = rank.communicator("dp")?;
        let buf = d.alloc(&s, 4096, Tag::Staging)?;
        s.fill(buf.all(), 0, 4)?;
        let root = u32::from(rank.rank() == 1);
        dp.broadcast(&s, buf.all(), DType::F32, root, "test")?;
        Ok(s.sync(None)?)
    };
    for seed in 0..30 {
        let found = explorer.explore([seed], program).unwrap_err().to_string();
        for words in ["broadcast of 1024 x f32 root", "explore.rs:", "#1 of dp"] {
            assert!(found.contains(words), "{found}");
        }
    }
}

#[test]
fn a_rank_that_does_not_come_is_a_deadlock_at_once_and_one_that_panics_is_a_failure() {
    crossweave_tests::in_own_process!();
    let lab = Lab::new();
    let explorer = lab.explorer(3);
    // Rank 1 waits for a key that nobody sets, the others for rank 1.
    let program = |rank: &Rank| -> Result<(), String> {
        let fails = |e: crossweave_hal::Error| e.to_string();
        let s = rank.device().stream("s", 0).map_err(fails)?;
        let mut group = rank.communicator("dp").map_err(fails)?;
        if rank.rank() == 1 {
            use crossweave_hal::Bootstrap;
            let never = std::time::Duration::from_secs(3600);
            rank.get("nobody", never).map_err(fails)?;
        }
        group.barrier(&s).map_err(fails)?;
        s.sync(None).map_err(fails)
    };
    let found = explorer.explore(0..1, program).unwrap_err();
    // The key is waited for an hour, and a turn is taken after two minutes, with other words.
    let shown = found.to_string();
    for words in [
        "deadlock: ",
        "rank 1's host asks again and again",
        "waits in dp for rank 1: barrier",
    ] {
        assert!(shown.contains(words), "{shown}");
    }
    let found = explorer.explore(3..4, |rank| -> Result<(), String> {
        let fails = |e: crossweave_hal::Error| e.to_string();
        let s = rank.device().stream("s", 0).map_err(fails)?;
        let mut group = rank.communicator("dp").map_err(fails)?;
        assert!(rank.rank() != 2, "rank 2 has a bug");
        group.barrier(&s).map_err(fails)?;
        s.sync(None).map_err(fails)
    });
    let shown = found.unwrap_err().to_string();
    assert!(
        shown.starts_with("seed 3, schedule random, switch #"),
        "{shown}"
    );
    assert!(shown.ends_with("rank 2: rank 2 has a bug"), "{shown}");
}

#[test]
fn an_order_nobody_knows_is_refused_with_the_words_that_are_known() {
    crossweave_tests::in_own_process!();
    let lab = Lab::new();
    let (host, plugin) = lab.parts();
    host.set_config("cpu.schedule", Some("sometimes".into()));
    let e = plugin.open(0).map(drop).unwrap_err();
    host.set_config("cpu.schedule", None);
    assert!(e.to_string().contains("`random:SEED`"), "{e}");
    let d = plugin.open(0).unwrap();
    assert!(d.attr("schedule").is_err());
    assert!("pct:0".parse::<Order>().is_err() && "dice".parse::<Order>().is_err());
    assert_eq!("pct:3".parse(), Ok(Order::Pct(3)));
}
