//! Graphs on the simulator: what was captured runs when it is launched and not before, other threads' questions spoil no capture, what no graph
//! holds is refused and changes nothing, and nothing is left behind.

use crate::common;
use common::{Simulated, span};
use crossweave_backend_cuda::{CudaGraphs, CudaOps};
use crossweave_plugin::abi::Layout;
use crossweave_plugin::abi::op::{self, NoParams};
use crossweave_plugin::{Backend, Code, DType, Dyn, Graphs, OpRequest, Ops, abi};
use std::time::Duration;

const LONG: Option<Duration> = Some(Duration::from_secs(60));

#[test]
fn graphs_on_the_simulator() {
    let t = Simulated::new("graph", &["cuda.libnvrtc", "cuda.libcublaslt"]);
    captured_work_runs_when_it_is_launched(&t);
    what_no_graph_holds_is_refused(&t);
    kernels_are_captured(&t);
    a_capture_left_open_goes_with_its_stream(&t);
    // A destroyed stream of the simulator ends a moment later.
    let end = std::time::Instant::now() + Duration::from_secs(120);
    while t.live('s') > 0 && std::time::Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    for kind in ['d', 'h', 's', 'e', 'g'] {
        assert_eq!(t.live(kind), 0, "things of kind {kind:?} are left");
    }
    assert_eq!(t.depth(), 0);
}

fn captured_work_runs_when_it_is_launched(t: &Simulated) {
    let d = t.b.open(0).unwrap();
    let (s, other) = (t.b.stream(&d, 0).unwrap(), t.b.stream(&d, 0).unwrap());
    let (m, a, b) = (t.device_memory(&d, 64), t.pinned(&d, 64), t.pinned(&d, 64));
    t.bytes(&a, 64).fill(7);
    t.bytes(&b, 64).fill(1);
    assert_eq!(CudaGraphs::end(&t.b, &s).err().unwrap().code, Code::Invalid);
    CudaGraphs::begin(&t.b, &s).unwrap();
    assert_eq!(CudaGraphs::begin(&t.b, &s).unwrap_err().code, Code::Invalid);
    t.b.copy(&s, span(&m, 0, 64), span(&a, 0, 64)).unwrap();
    t.b.fill(&s, span(&m, 8, 8), 0x0807_0605_0403_0201, 8)
        .unwrap();
    t.b.copy_2d(&s, span(&b, 0, 64), 16, span(&m, 0, 64), 8, 4, 4)
        .unwrap();
    // Others may ask for the stream's state, and use another stream.
    std::thread::scope(|x| {
        let (t, s, other, m) = (&t.b, &s, &other, &m);
        let asked = x.spawn(move || {
            assert!(t.stream_query(s).unwrap());
            t.stream_sync(s, LONG).unwrap();
            t.fill(other, span(m, 32, 4), 9, 4).unwrap();
            t.stream_sync(other, LONG).unwrap();
        });
        asked.join().unwrap();
    });
    let g = CudaGraphs::end(&t.b, &s).unwrap();
    t.b.stream_sync(&s, LONG).unwrap();
    assert!(t.bytes(&b, 64).iter().all(|x| *x == 1), "nothing has run");
    // What is read is what is there when it runs.
    for value in [7, 3] {
        t.bytes(&a, 64).fill(value);
        t.bytes(&b, 64).fill(1);
        CudaGraphs::launch(&t.b, &g, &s).unwrap();
        CudaGraphs::launch(&t.b, &g, &s).unwrap();
        t.b.stream_sync(&s, LONG).unwrap();
        let v = value;
        assert_eq!(
            t.bytes(&b, 64)[..20],
            [v, v, v, v, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 3, 4]
        );
    }
    // In the stream's order, and what was launched outlives the graph.
    let gate = t.stall(&s);
    CudaGraphs::launch(&t.b, &g, &s).unwrap();
    assert!(!t.b.stream_query(&s).unwrap());
    drop(g);
    drop(gate);
    t.b.stream_sync(&s, LONG).unwrap();
    // Another device's stream, and a stream that captures.
    CudaGraphs::begin(&t.b, &s).unwrap();
    let empty = CudaGraphs::end(&t.b, &s).unwrap();
    CudaGraphs::launch(&t.b, &empty, &other).unwrap();
    let there = t.b.open(1).unwrap();
    let foreign = t.b.stream(&there, 0).unwrap();
    let e = CudaGraphs::launch(&t.b, &empty, &foreign).unwrap_err();
    assert_eq!(e.code, Code::Invalid);
}

fn what_no_graph_holds_is_refused(t: &Simulated) {
    let d = t.b.open(2).unwrap();
    let (s, u) = (t.b.stream(&d, 0).unwrap(), t.b.stream(&d, 0).unwrap());
    let (e, m, b) = (t.b.event(&d).unwrap(), t.pinned(&d, 64), t.pinned(&d, 64));
    t.b.record(&e, &u).unwrap();
    t.bytes(&m, 64).fill(5);
    t.bytes(&b, 64).fill(0);
    CudaGraphs::begin(&t.b, &s).unwrap();
    let whole = span(&m, 0, 8);
    let refused = [
        t.b.record(&e, &s),
        t.b.wait_event(&s, &e),
        t.b.host_call(&s, Box::new(|_| panic!("a refused call is not run"))),
        t.b.wait_value(&s, whole, 1),
        t.b.write_value(&s, whole, 1),
        t.b.copy_peer(&s, span(&b, 0, 8), whole),
    ];
    for (i, r) in refused.into_iter().enumerate() {
        assert_eq!(r.unwrap_err().code, Code::Unsupported, "call {i}");
    }
    // The capture goes on.
    t.b.copy(&s, span(&b, 0, 64), span(&m, 0, 64)).unwrap();
    let g = CudaGraphs::end(&t.b, &s).unwrap();
    CudaGraphs::launch(&t.b, &g, &s).unwrap();
    t.b.stream_sync(&s, LONG).unwrap();
    assert!(t.bytes(&b, 64).iter().all(|x| *x == 5));
    t.b.record(&e, &s).unwrap();
    t.b.event_sync(&e, LONG).unwrap();
    // What the driver itself cannot capture: the thread allocates. Nothing has run, and the stream works on.
    CudaGraphs::begin(&t.b, &s).unwrap();
    t.b.fill(&s, span(&b, 0, 64), 0, 1).unwrap();
    let spoilt = t.b.alloc(&d, crossweave_plugin::MemKind::Device, 64, 0);
    assert_eq!(spoilt.err().unwrap().code, Code::Unsupported);
    assert_eq!(
        CudaGraphs::end(&t.b, &s).err().unwrap().code,
        Code::Unsupported
    );
    t.b.stream_sync(&s, LONG).unwrap();
    assert!(t.bytes(&b, 64).iter().all(|x| *x == 5));
    t.b.fill(&s, span(&b, 0, 64), 2, 1).unwrap();
    t.b.stream_sync(&s, LONG).unwrap();
    assert!(t.bytes(&b, 64).iter().all(|x| *x == 2));
}

fn kernels_are_captured(t: &Simulated) {
    let d = t.b.open(3).unwrap();
    let s = t.b.stream(&d, 0).unwrap();
    let m = t.device_memory(&d, 4000);
    let mut l = Layout {
        size: size_of::<Layout>() as u32,
        dtype: DType::F32.id(),
        rank: 1,
        flags: 0,
        shape: [0; 8],
        stride: [0; 8],
    };
    (l.shape[0], l.stride[0]) = (1000, 1);
    let none = NoParams::default();
    let three = [l; 3];
    let o = OpRequest::new(op::ADD, &three, none.as_bytes(), abi::MATH_DETERMINISTIC);
    let (add, _) = CudaOps::prepare(&t.b, &d, &o).unwrap();
    let x = Some(span(&m, 0, 4000));
    t.launches();
    CudaOps::launch(&t.b, &add, &s, &[x, x, x], None, Dyn(&[])).unwrap();
    let once = t.launches();
    CudaGraphs::begin(&t.b, &s).unwrap();
    for _ in 0..3 {
        CudaOps::launch(&t.b, &add, &s, &[x, x, x], None, Dyn(&[])).unwrap();
    }
    let g = CudaGraphs::end(&t.b, &s).unwrap();
    assert_eq!(t.launches().len(), 0, "a capture launches nothing");
    CudaGraphs::launch(&t.b, &g, &s).unwrap();
    t.b.stream_sync(&s, LONG).unwrap();
    let lines = t.launches();
    assert_eq!(once.len(), 1);
    assert!(
        lines.len() == 3 && lines.iter().all(|l| *l == once[0]),
        "{lines:?}"
    );
}

fn a_capture_left_open_goes_with_its_stream(t: &Simulated) {
    let d = t.b.open(4).unwrap();
    let s = t.b.stream(&d, 0).unwrap();
    let b = t.pinned(&d, 8);
    t.bytes(&b, 8).fill(4);
    CudaGraphs::begin(&t.b, &s).unwrap();
    t.b.fill(&s, span(&b, 0, 8), 0, 1).unwrap();
    drop(s);
    assert_eq!(t.bytes(&b, 8), [4; 8]);
}
