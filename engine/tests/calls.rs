//! Calls replayed as graphs, at the safe layer: exactly what was asked for runs, whatever differs, whichever thread waits, and whatever the plugin refuses.
//! What ran is seen from its results: every round counts on from what the rounds before left.

use crossweave_backend_cpu::CpuBackend;
use crossweave_hal::{
    Bootstrap, Buffer, Code, CommOptions, Communicator, Device, Followed, HostBuffer, HostServices,
    Plugin, RawPlugin, Recordings, Stream, Tag,
};
use std::time::Duration;

const N: u64 = 64;
const CALLED: Followed = Followed {
    graphs: 0,
    recorded: 0,
    calls: 0,
    called: 1,
};
const REPLAYED: Followed = Followed {
    graphs: 1,
    recorded: 0,
    calls: 3,
    called: 0,
};
const RECORDED: Followed = Followed {
    recorded: 1,
    ..REPLAYED
};

fn cpu() -> Plugin {
    // One process has one backend, which keeps its first host: as many devices as any test of this program asks for.
    let host = HostServices::builder()
        .config("cpu.devices", "8")
        .threads(2)
        .build();
    Plugin::new(RawPlugin::from_static::<CpuBackend>(&host).unwrap())
}

struct Rig {
    device: Device,
    s: Stream,
    a: Buffer,
    b: Buffer,
    book: Option<Recordings>,
    /// What is read is read through this: staging of its own would be memory that is freed.
    seen: HostBuffer,
}

impl Rig {
    fn new() -> Rig {
        let device = cpu().open(0).unwrap();
        let s = device.stream("s", 0).unwrap();
        let [a, b] = [(), ()].map(|()| device.alloc_state(N, Tag::Param).unwrap());
        let book = Recordings::new(&device).unwrap();
        s.fill(a.all(), 0, 1).unwrap();
        s.fill(b.all(), 0, 1).unwrap();
        Rig {
            s,
            a,
            b,
            book: Some(book),
            seen: device.alloc_host(N, Tag::Staging).unwrap(),
            device,
        }
    }

    fn look(&mut self) -> Vec<u8> {
        self.s.copy(self.seen.buffer().all(), self.b.all()).unwrap();
        self.seen.read().unwrap().to_vec()
    }

    /// Rounds until they are replayed.
    fn settle(&mut self, value: u8) {
        let replayed = (0..4).any(|_| self.round(value, |_| ()) == (REPLAYED, value));
        assert!(replayed);
    }

    /// Three calls whose last byte shows `value`, then what they left in `b`.
    fn round(&mut self, value: u8, between: impl FnOnce(&Rig)) -> (Followed, u8) {
        self.s.follow(self.book.take().unwrap()).unwrap();
        self.s.fill(self.a.all(), value.into(), 1).unwrap();
        self.s
            .copy(self.b.region(0, N / 2), self.a.region(0, N / 2))
            .unwrap();
        between(self);
        self.s
            .copy(self.b.region(N / 2, N / 2), self.a.region(0, N / 2))
            .unwrap();
        let (book, followed) = self.s.close(true);
        self.book = book;
        let out = self.look();
        assert!(out.iter().all(|x| *x == out[0]), "{out:?}");
        (followed.unwrap(), out[0])
    }
}

#[test]
fn a_list_is_noted_then_recorded_then_replayed_and_another_value_is_another_list() {
    let mut r = Rig::new();
    assert_eq!(r.round(1, |_| ()), (CALLED, 1));
    assert_eq!(r.round(1, |_| ()), (RECORDED, 1));
    assert_eq!(r.round(1, |_| ()), (REPLAYED, 1));
    // The first call differs: all are enqueued, with the new value.
    assert_eq!(r.round(2, |_| ()), (CALLED, 2));
    assert_eq!(r.round(1, |_| ()), (REPLAYED, 1));
    assert_eq!(r.round(2, |_| ()), (RECORDED, 2));
    // Two that take turns are both replayed.
    for v in [1, 2, 2, 1, 1] {
        assert_eq!(r.round(v, |_| ()), (REPLAYED, v));
    }
    // More values than are kept: each is right, and none need be replayed.
    for v in (0..40).cycle().take(100) {
        assert_eq!(r.round(v, |_| ()).1, v);
    }
    assert!(r.book.as_ref().unwrap().unmet().unwrap().contains("fill"));
    // Who has given up goes on calling.
    assert!(r.book.as_ref().unwrap().given_up());
    assert_eq!(r.round(7, |_| ()), (CALLED, 7));
}

#[test]
fn who_waits_for_a_call_that_is_held_back_gets_it() {
    let mut r = Rig::new();
    let other = r.device.stream("other", 0).unwrap();
    let c = r.device.alloc_state(N / 2, Tag::Param).unwrap();
    other.fill(c.all(), 0, 1).unwrap();
    let limit = Some(Duration::from_secs(60));
    let waits: [&dyn Fn(&Rig); 5] = [
        // Another stream, the host, an event, a mark, a question.
        &|r| other.copy(c.all(), r.b.region(0, N / 2)).unwrap(),
        &|r| r.s.sync(limit).unwrap(),
        &|r| r.s.record().unwrap().sync(limit).unwrap(),
        &|r| r.s.mark().unwrap(),
        &|r| assert!(r.s.query().is_ok()),
    ];
    for (i, wait) in waits.into_iter().enumerate() {
        r.settle(5);
        r.s.fill(r.b.all(), 0, 1).unwrap();
        let (followed, value) = r.round(5, wait);
        // What was asked for before the wait may have been a graph of its own, once an event has been met there.
        assert!(followed.calls < 3 && value == 5, "wait {i}: {followed:?}");
    }
    // The other stream has read what the call that it waited for left.
    r.s.copy(r.b.region(0, N / 2), c.all()).unwrap();
    assert_eq!(r.look(), [5; N as usize]);
    // Who waits for an earlier call does not disturb the ones that are held back.
    r.settle(5);
    let before = r.s.record().unwrap();
    let earlier = |_: &Rig| before.sync(limit).unwrap();
    assert_eq!(r.round(5, earlier), (REPLAYED, 5));
}

#[test]
fn memory_that_was_freed_ends_what_was_recorded() {
    let mut r = Rig::new();
    r.settle(3);
    // A handle may come again for other memory.
    r.a = r.device.alloc_state(N, Tag::Param).unwrap();
    assert_eq!(r.round(3, |_| ()), (CALLED, 3));
    assert_eq!(r.round(3, |_| ()), (RECORDED, 3));
    // Pooled memory comes from the same place each time.
    let device = r.device.clone();
    let pooled = move |r: &Rig| {
        let t = device.alloc(&r.s, N / 2, Tag::Activation).unwrap();
        r.s.copy(t.all(), r.a.region(0, N / 2)).unwrap();
    };
    for (i, want) in [false, true, true, true].into_iter().enumerate() {
        let (followed, _) = r.round(3, &pooled);
        assert_eq!(followed != CALLED, want, "round {i}");
    }
}

#[test]
fn what_ends_in_the_middle_has_run_and_is_not_kept() {
    let mut r = Rig::new();
    r.settle(4);
    r.s.follow(r.book.take().unwrap()).unwrap();
    let other = Recordings::new(&r.device).unwrap();
    let e = r.s.follow(other).unwrap_err();
    assert_eq!(e.code, Code::Invalid);
    r.s.fill(r.a.all(), 4, 1).unwrap();
    r.s.fill(r.b.all(), 8, 1).unwrap();
    let (book, followed) = r.s.close(false);
    assert_eq!(followed.unwrap(), CALLED);
    r.book = book;
    assert_eq!(r.look(), [8; N as usize]);
    assert_eq!(r.round(4, |_| ()), (REPLAYED, 4));
    // Recordings of another device, and nothing to close.
    let elsewhere = cpu().open(0).unwrap();
    let foreign = Recordings::new(&elsewhere).unwrap();
    assert_eq!(r.s.follow(foreign).unwrap_err().code, Code::Invalid);
    assert!(r.s.close(true).0.is_none());
    // A stream that is dropped while it follows lets its device go.
    r.s.follow(r.book.take().unwrap()).unwrap();
    r.s.fill(r.a.all(), 4, 1).unwrap();
}

struct Alone;
impl Bootstrap for Alone {
    fn set(&self, _: &str, _: &[u8]) -> crossweave_hal::Result<()> {
        Ok(())
    }
    fn get(&self, _: &str, _: Duration) -> crossweave_hal::Result<Vec<u8>> {
        Ok(vec![0; 8])
    }
}

#[test]
fn a_collective_ends_a_segment_and_what_lies_around_it_is_replayed() {
    let mut r = Rig::new();
    let c = r.device.alloc_state(N, Tag::Param).unwrap();
    let limit = Some(Duration::from_secs(60));
    let options = CommOptions {
        name: "alone".into(),
        timeout: limit,
    };
    let mut comm = Communicator::new(&r.device, &Alone, 0, 1, &options).unwrap();
    // Segments of 3, 0, 1 and `last` calls; the value of each is seen in `b` and `c`.
    let mut round = |r: &mut Rig, [first, last]: [u8; 2], calls: u64, wait: bool| {
        r.s.follow(r.book.take().unwrap()).unwrap();
        r.s.fill(r.a.all(), first.into(), 1).unwrap();
        for half in [0, N / 2] {
            let b = r.b.region(half, N / 2);
            r.s.copy(b, r.a.region(0, N / 2)).unwrap();
        }
        // An event that is recorded or not, before a collective, ends no other segment.
        if calls == 4 {
            r.s.record().unwrap();
        }
        comm.barrier(&r.s).unwrap();
        comm.barrier(&r.s).unwrap();
        r.s.fill(r.a.all(), 99, 1).unwrap();
        comm.barrier(&r.s).unwrap();
        for i in 0..calls {
            if calls == 6 && i == 2 {
                r.s.mark().unwrap();
            }
            if wait && i == 1 {
                r.s.sync(limit).unwrap();
            }
            r.s.fill(c.region(i, 1), last.into(), 1).unwrap();
        }
        let (book, followed) = r.s.close(true);
        r.book = book;
        assert_eq!(r.look(), [first; N as usize]);
        r.s.copy(r.seen.buffer().all(), c.all()).unwrap();
        let seen = r.seen.read().unwrap();
        assert!(seen[..calls as usize].iter().all(|x| *x == last));
        followed.unwrap()
    };
    let of = |graphs, recorded, calls, called| Followed {
        graphs,
        recorded,
        calls,
        called,
    };
    assert_eq!(round(&mut r, [1, 2], 4, false), of(0, 0, 0, 2));
    assert_eq!(round(&mut r, [1, 2], 4, false), of(2, 2, 7, 0));
    assert_eq!(round(&mut r, [1, 2], 4, false), of(2, 0, 7, 0));
    // What differs, and who waits, is of one segment only.
    assert_eq!(round(&mut r, [3, 2], 4, false), of(1, 0, 4, 1));
    assert_eq!(round(&mut r, [1, 3], 4, false), of(1, 0, 3, 1));
    assert_eq!(round(&mut r, [1, 2], 4, true), of(1, 0, 3, 1));
    // A segment that ends before its list does is a list of its own, beside the longer one.
    assert_eq!(round(&mut r, [1, 2], 2, false), of(1, 0, 3, 1));
    for calls in [2, 4, 4, 2] {
        let f = round(&mut r, [1, 2], calls, false);
        assert_eq!((f.graphs, f.calls, f.called), (2, 3 + calls, 0), "{f:?}");
    }
    // An event ends a segment too.
    assert_eq!(round(&mut r, [1, 2], 6, false), of(2, 0, 5, 1));
    assert_eq!(round(&mut r, [1, 2], 6, false), of(3, 1, 9, 0));
    // What differs every time is given up by itself, and says so.
    for v in (0..40).cycle().take(100) {
        round(&mut r, [1, v], 4, false);
    }
    let book = r.book.as_ref().unwrap();
    assert!(book.unmet().unwrap().contains("fill") && !book.given_up());
    assert_eq!(round(&mut r, [1, 2], 4, false), of(1, 0, 3, 1));
}
