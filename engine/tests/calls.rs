//! Calls replayed as graphs, at the safe layer: exactly what was asked for runs, whatever differs, whichever thread waits, and whatever the plugin refuses.
//! What ran is seen from its results: every round counts on from what the rounds before left.

use crossweave_backend_cpu::CpuBackend;
use crossweave_hal::{
    Buffer, Code, Device, Followed, HostBuffer, HostServices, Plugin, RawPlugin, Recordings,
    Stream, Tag,
};
use std::time::Duration;

const N: u64 = 64;
const REPLAYED: Followed = Followed::Replayed {
    calls: 3,
    recorded: false,
};
const RECORDED: Followed = Followed::Replayed {
    calls: 3,
    recorded: true,
};

fn cpu() -> Plugin {
    let host = HostServices::builder().threads(2).build();
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
    assert_eq!(r.round(1, |_| ()), (Followed::Called, 1));
    assert_eq!(r.round(1, |_| ()), (RECORDED, 1));
    assert_eq!(r.round(1, |_| ()), (REPLAYED, 1));
    // The first call differs: all are enqueued, with the new value.
    assert_eq!(r.round(2, |_| ()), (Followed::Called, 2));
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
    assert!(r.book.as_ref().unwrap().refused().unwrap().contains("fill"));
    // Who has given up goes on calling.
    assert_eq!(r.round(7, |_| ()), (Followed::Called, 7));
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
        assert_eq!((followed, value), (Followed::Called, 5), "wait {i}");
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
    assert_eq!(r.round(3, |_| ()), (Followed::Called, 3));
    assert_eq!(r.round(3, |_| ()), (RECORDED, 3));
    // Pooled memory comes from the same place each time.
    let device = r.device.clone();
    let pooled = move |r: &Rig| {
        let t = device.alloc(&r.s, N / 2, Tag::Activation).unwrap();
        r.s.copy(t.all(), r.a.region(0, N / 2)).unwrap();
    };
    for (i, want) in [false, true, true, true].into_iter().enumerate() {
        let (followed, _) = r.round(3, &pooled);
        assert_eq!(followed != Followed::Called, want, "round {i}");
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
    assert_eq!(followed.unwrap(), Followed::Called);
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
