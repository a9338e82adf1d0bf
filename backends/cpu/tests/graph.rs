//! Graphs: what was kept runs when it is launched and not before, what no graph holds is refused and changes nothing, and a failure inside one
//! is reported like any other.

use crossweave_backend_cpu::{CpuBackend, CpuGraphs, Device, Mem};
use crossweave_plugin::{Backend, Code, Graphs, Host, MemKind, Span};
use std::sync::mpsc;

fn open() -> (CpuBackend, Device) {
    let b = CpuBackend::init(Host::none()).unwrap();
    let d = b.open(0).unwrap();
    (b, d)
}

fn span(m: &Mem, offset: u64, bytes: u64) -> Span<'_, Mem> {
    Span {
        mem: m,
        offset,
        bytes,
    }
}

// The slice is of the device's memory, not of the handle's.
#[allow(clippy::mut_from_ref)]
fn bytes<'a>(b: &CpuBackend, m: &'a Mem) -> &'a mut [u8] {
    // SAFETY: pinned memory of that length; each test touches it only while its streams are idle.
    unsafe { std::slice::from_raw_parts_mut(b.map(m).unwrap(), m.bytes() as usize) }
}

#[test]
fn what_was_kept_runs_when_it_is_launched_and_not_before() {
    let (b, d) = open();
    let (s, other) = (b.stream(&d, 0).unwrap(), b.stream(&d, 0).unwrap());
    let [from, to] = [(), ()].map(|()| b.alloc(&d, MemKind::HostPinned, 32, 0).unwrap());
    bytes(&b, &to).fill(1);
    assert_eq!(CpuGraphs::end(&b, &s).err().unwrap().code, Code::Invalid);
    CpuGraphs::begin(&b, &s).unwrap();
    assert_eq!(CpuGraphs::begin(&b, &s).unwrap_err().code, Code::Invalid);
    b.copy(&s, span(&to, 0, 16), span(&from, 0, 16)).unwrap();
    b.fill(&s, span(&to, 4, 8), 0x0807_0605_0403_0201, 8)
        .unwrap();
    b.copy_2d(&s, span(&to, 16, 16), 8, span(&from, 0, 8), 4, 2, 2)
        .unwrap();
    // A wrong call is refused as ever.
    let wrong = b.fill(&s, span(&to, 0, 6), 0, 4).unwrap_err();
    assert_eq!(wrong.code, Code::Invalid);
    b.stream_sync(&s, None).unwrap();
    let g = CpuGraphs::end(&b, &s).unwrap();
    b.stream_sync(&s, None).unwrap();
    assert_eq!(bytes(&b, &to), [1; 32], "nothing has run");
    // What is read is what is there when it runs, on any stream, as often as it is launched.
    for (v, on) in [(7, &s), (3, &other)] {
        bytes(&b, &from).fill(v);
        bytes(&b, &to).fill(1);
        CpuGraphs::launch(&b, &g, on).unwrap();
        CpuGraphs::launch(&b, &g, on).unwrap();
        b.stream_sync(on, None).unwrap();
        let left = [v, v, v, v, 1, 2, 3, 4, 5, 6, 7, 8, v, v, v, v];
        assert_eq!(bytes(&b, &to)[..16], left);
        let right = [v, v, 1, 1, 1, 1, 1, 1, v, v, 1, 1, 1, 1, 1, 1];
        assert_eq!(bytes(&b, &to)[16..], right);
    }
    let foreign = b.stream(&b.open(0).unwrap(), 0).unwrap();
    let e = CpuGraphs::launch(&b, &g, &foreign).unwrap_err();
    assert_eq!(e.code, Code::Invalid);
    // In the stream's order, and what was launched outlives the graph.
    bytes(&b, &to).fill(0);
    let (open, gate) = mpsc::channel::<()>();
    let hold = move |_| {
        let _ = gate.recv();
    };
    b.host_call(&s, Box::new(hold)).unwrap();
    CpuGraphs::launch(&b, &g, &s).unwrap();
    assert!(!b.stream_query(&s).unwrap());
    drop(g);
    drop(open);
    b.stream_sync(&s, None).unwrap();
    assert_eq!(bytes(&b, &to)[4..12], [1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn what_no_graph_holds_is_refused_and_changes_nothing() {
    let (b, d) = open();
    let s = b.stream(&d, 0).unwrap();
    let (e, m) = (
        b.event(&d).unwrap(),
        b.alloc(&d, MemKind::HostPinned, 32, 0),
    );
    let m = m.unwrap();
    bytes(&b, &m).fill(0);
    b.record(&e, &s).unwrap();
    b.stream_sync(&s, None).unwrap();
    CpuGraphs::begin(&b, &s).unwrap();
    let empty = {
        let u = b.stream(&d, 0).unwrap();
        CpuGraphs::begin(&b, &u).unwrap();
        CpuGraphs::end(&b, &u).unwrap()
    };
    let later = b.event(&d).unwrap();
    let refused = [
        b.record(&e, &s),
        b.record(&later, &s),
        b.wait_event(&s, &e),
        b.wait_event(&s, &later),
        b.host_call(&s, Box::new(|_| panic!("a refused call is not run"))),
        b.wait_value(&s, span(&m, 0, 8), 1),
        b.write_value(&s, span(&m, 0, 8), 1),
        CpuGraphs::launch(&b, &empty, &s),
    ];
    for (i, r) in refused.into_iter().enumerate() {
        assert_eq!(r.unwrap_err().code, Code::Unsupported, "call {i}");
    }
    // The earlier record stands, and an event never recorded is complete.
    assert!(b.event_query(&e).unwrap() && b.event_query(&later).unwrap());
    // The capture goes on.
    b.fill(&s, span(&m, 8, 8), 5, 1).unwrap();
    let g = CpuGraphs::end(&b, &s).unwrap();
    CpuGraphs::launch(&b, &g, &s).unwrap();
    b.record(&e, &s).unwrap();
    b.event_sync(&e, None).unwrap();
    assert_eq!(
        bytes(&b, &m)[..16],
        [0, 0, 0, 0, 0, 0, 0, 0, 5, 5, 5, 5, 5, 5, 5, 5]
    );
    // A capture that is left open goes with its stream.
    CpuGraphs::begin(&b, &s).unwrap();
    b.fill(&s, span(&m, 0, 32), 9, 1).unwrap();
    drop(s);
    assert!(bytes(&b, &m).iter().all(|x| *x != 9));
}
