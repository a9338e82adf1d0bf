//! Each misuse of the C tables is an error that names the call, and the same calls done right are none.

use crate::common;
use common::{cpu, host, within};
use crossweave_abi as abi;
use crossweave_abi::{Error, Handle, Layout, Span, Status, op};
use crossweave_hal::{DType, RawPlugin};
use crossweave_layers::{Validate, wrap};

/// The tables of a plugin, with errors as text.
struct C(RawPlugin);

type Said = std::result::Result<(), String>;

fn said(s: Status, e: &Error) -> Said {
    let text =
        |b: &[u8]| String::from_utf8_lossy(b.split(|c| *c == 0).next().unwrap_or(b)).into_owned();
    match s {
        abi::OK => Ok(()),
        _ => Err(format!("{s} {}: {}", text(&e.where_), text(&e.message))),
    }
}

macro_rules! c {
    ($c:expr, $table:ident . $slot:ident ( $($a:expr),* )) => {{
        let mut e = Error::new();
        let f = $c.0.$table.as_ref().and_then(|t| t.$slot).expect("a slot");
        // SAFETY: what is wrong with the arguments is what the layer must find before the plugin sees it.
        let s = unsafe { f($($a,)* &mut e) };
        said(s, &e)
    }};
}

impl C {
    fn device(&self, index: u32) -> Handle {
        let mut h = std::ptr::null_mut();
        c!(self, device.device_open(self.0.self_, index, &mut h)).expect("a device");
        h
    }
    fn mem(&self, device: Handle, bytes: u64) -> Handle {
        let mut h = std::ptr::null_mut();
        c!(
            self,
            device.mem_alloc(device, abi::MEM_DEVICE, bytes, 64, &mut h)
        )
        .expect("memory");
        h
    }
    fn stream(&self, device: Handle) -> Handle {
        let mut h = std::ptr::null_mut();
        c!(self, device.stream_create(device, 0, 0, &mut h)).expect("a stream");
        h
    }
    fn free(&self, m: Handle) {
        // SAFETY: alive, or what the layer must find.
        unsafe {
            self.0
                .device
                .as_ref()
                .and_then(|t| t.mem_free)
                .expect("a slot")(m)
        };
    }
    fn copy(&self, s: Handle, d: Span, r: Span) -> Said {
        c!(self, device.copy(s, d, r))
    }
    fn sync(&self, s: Handle) -> Said {
        c!(self, device.stream_sync(s, -1))
    }
    fn prepare(
        &self,
        device: Handle,
        id: u32,
        operands: &[Layout],
        params: &[u8],
    ) -> (Handle, u64) {
        let desc = abi::OpDesc {
            size: size_of::<abi::OpDesc>() as u32,
            op: id,
            op_revision: 1,
            n_operands: operands.len() as u32,
            operands: operands.as_ptr(),
            params: params.as_ptr().cast(),
            params_bytes: params.len() as u64,
            math_flags: 1,
            reserved: 0,
        };
        // SAFETY: all-zero is a valid plan.
        let mut plan: abi::OpPlan = unsafe { std::mem::zeroed() };
        plan.size = size_of::<abi::OpPlan>() as u32;
        let mut h = std::ptr::null_mut();
        c!(self, ops.op_prepare(device, &desc, &mut h, &mut plan)).expect("an op");
        (h, plan.workspace_bytes)
    }
    fn launch(&self, o: Handle, s: Handle, spans: &[Span], ws: Span, dynamic: &[u8]) -> Said {
        c!(
            self,
            ops.op_launch(
                o,
                s,
                spans.as_ptr(),
                spans.len() as u32,
                ws,
                dynamic.as_ptr().cast(),
                dynamic.len() as u64
            )
        )
    }
}

fn span(mem: Handle, offset: u64, bytes: u64) -> Span {
    Span { mem, offset, bytes }
}

fn told(said: Said, parts: &[&str]) {
    let e = said.expect_err("a violation");
    for p in parts {
        assert!(e.contains(p), "{p:?} not in: {e}");
    }
    assert!(e.starts_with("-2 "), "INVALID: {e}");
}

fn validated() -> C {
    C(within(Validate::default()))
}

#[test]
fn spans_and_copies() {
    let c = validated();
    let d = c.device(0);
    let (s, m, n) = (c.stream(d), c.mem(d, 64), c.mem(d, 64));
    let good = || c.copy(s, span(m, 0, 32), span(n, 32, 32));
    good().expect("a good copy");
    told(
        c.copy(s, span(m, 40, 32), span(n, 0, 32)),
        &["validate: copy", "dst is bytes 40..72", "which has 64"],
    );
    told(
        c.copy(s, span(m, u64::MAX, 32), span(n, 0, 32)),
        &["dst is bytes"],
    );
    told(
        c.copy(s, span(m, 0, 32), span(n, 0, 16)),
        &["16 bytes into 32"],
    );
    told(
        c.copy(s, span(m, 0, 32), span(m, 16, 32)),
        &["dst and src overlap"],
    );
    told(c.copy(s, Span::NULL, span(m, 16, 32)), &["dst is absent"]);
    told(
        c!(c, device.fill(s, span(m, 0, 12), 0, 8)),
        &["validate: fill", "no multiple"],
    );
    told(
        c!(c, device.fill(s, span(m, 0, 12), 0, 3)),
        &["1, 2, 4 or 8"],
    );
    told(
        c!(
            c,
            device.copy_2d(s, span(m, 0, 64), 16, span(n, 0, 64), 4, 8, 4)
        ),
        &["src: rows of 8 bytes are 4 apart"],
    );
    told(
        c!(
            c,
            device.copy_2d(s, span(m, 0, 64), 16, span(n, 0, 64), 16, 16, 5)
        ),
        &["5 rows of 16 bytes"],
    );
    let mut h = std::ptr::null_mut();
    told(
        c!(c, device.mem_alloc(d, 9, 64, 64, &mut h)),
        &["9 is no kind of memory"],
    );
    told(
        c!(c, device.mem_alloc(d, 1, 64, 48, &mut h)),
        &["48 is not a power of two"],
    );
    good().expect("still good");
    c.sync(s).expect("done");
}

#[test]
fn handles() {
    let c = validated();
    let (d, other) = (c.device(0), c.device(1));
    let (s, m, n) = (c.stream(d), c.mem(d, 64), c.mem(d, 64));
    let foreign = c.mem(other, 64);
    told(
        c.copy(s, span(m, 0, 8), span(foreign, 0, 8)),
        &["belongs to device", "the call is on device"],
    );
    told(
        c.copy(m, span(m, 0, 8), span(n, 0, 8)),
        &["copy: a memory", "where a stream belongs"],
    );
    told(
        c.copy(std::ptr::null_mut(), span(m, 0, 8), span(n, 0, 8)),
        &["the stream is NULL"],
    );
    c.free(n);
    told(
        c.copy(s, span(m, 0, 8), span(n, 0, 8)),
        &["is used after it was freed"],
    );
    // Freed twice: reported by the next call that can fail.
    c.free(n);
    told(
        c.copy(s, span(m, 0, 8), span(foreign, 0, 8)),
        &["belongs to"],
    );
    told(
        c.copy(s, span(m, 0, 8), span(m, 8, 8)),
        &["mem_free", "used after it was freed"],
    );
    c.copy(s, span(m, 0, 8), span(m, 8, 8))
        .expect("a good copy");
}

#[test]
fn memory_freed_under_queued_work_is_told_and_waited_for_work_is_not() {
    let c = validated();
    let d = c.device(0);
    let (s, m) = (c.stream(d), c.mem(d, 64));
    let ok = || c.copy(s, span(m, 0, 8), span(m, 8, 8));
    let late = c.mem(d, 64);
    c.copy(s, span(late, 0, 8), span(m, 0, 8)).expect("a copy");
    c.free(late);
    told(
        ok(),
        &["mem_free", "freed while stream", "nothing has waited"],
    );
    ok().expect("reported once");
    // The stream was waited for then, not for ever.
    let late = c.mem(d, 64);
    c.copy(s, span(late, 0, 8), span(m, 0, 8)).expect("a copy");
    c.free(late);
    told(ok(), &["mem_free", "freed while stream"]);
    ok().expect("reported once");
    // A stream that is gone uses nothing.
    let (t, n) = (c.stream(d), c.mem(d, 64));
    c.copy(t, span(n, 0, 8), span(m, 0, 8)).expect("a copy");
    c.sync(t).expect("done");
    // SAFETY: made above, destroyed once.
    unsafe {
        c.0.device
            .as_ref()
            .and_then(|t| t.stream_destroy)
            .expect("a slot")(t)
    };
    c.free(n);
    ok().expect("it is gone");
    let n = c.mem(d, 64);
    c.copy(s, span(n, 0, 8), span(m, 0, 8)).expect("a copy");
    c.sync(s).expect("done");
    c.free(n);
    ok().expect("it was waited for");
    // By an event, and through another stream that has waited for this one.
    let (t, n) = (c.stream(d), c.mem(d, 64));
    let mut e = std::ptr::null_mut();
    c!(c, device.event_create(d, 0, &mut e)).expect("an event");
    c.copy(s, span(n, 0, 8), span(m, 0, 8)).expect("a copy");
    c!(c, device.event_record(e, s)).expect("a record");
    c!(c, device.stream_wait_event(t, e)).expect("a wait");
    c.sync(t).expect("done");
    c.free(n);
    ok().expect("it was waited for by another stream");
}

#[test]
fn operands() {
    let c = validated();
    let d = c.device(0);
    let s = c.stream(d);
    let m = c.mem(d, 4096);
    let l = Layout::contiguous(DType::F32, &[8, 8]);
    let params = op::MatmulParams::default();
    let (o, ws) = c.prepare(d, op::MATMUL, &[l, l, l, Layout::ABSENT], params.as_bytes());
    let at = |i: u64| span(m, i * 256, 256);
    let workspace = match ws {
        0 => Span::NULL,
        n => span(c.mem(d, n), 0, n),
    };
    let launch = |spans: &[Span]| c.launch(o, s, spans, workspace, &[]);
    launch(&[at(0), at(1), at(2), Span::NULL]).expect("a good launch");
    told(
        launch(&[at(0), at(1), at(2)]),
        &[
            "validate: op_launch of matmul",
            "3 operands, prepared with 4",
        ],
    );
    told(
        launch(&[at(0), at(1), Span::NULL, Span::NULL]),
        &["operand 2 (b) is absent"],
    );
    told(
        launch(&[at(0), at(1), at(2), at(3)]),
        &["operand 3 (bias) is given, and was prepared absent"],
    );
    told(
        launch(&[at(0), span(m, 256, 128), at(2), Span::NULL]),
        &["operand 1 (a) has 128 bytes"],
    );
    told(
        launch(&[at(0), span(m, 4000, 256), at(2), Span::NULL]),
        &["operand 1 (a) is bytes 4000..4256"],
    );
    told(
        launch(&[at(0), span(m, 258, 256), at(2), Span::NULL]),
        &["within an element"],
    );
    told(
        launch(&[at(0), at(0), at(2), Span::NULL]),
        &["operand 0 (c), which is written, and operand 1 (a) are the same memory"],
    );
    told(
        launch(&[at(0), span(m, 128, 256), at(2), Span::NULL]),
        &["operand 1 (a) overlap"],
    );
    if ws > 0 {
        told(
            c.launch(o, s, &[at(0), at(1), at(2), Span::NULL], Span::NULL, &[]),
            &["the workspace is absent"],
        );
    }
    // An op whose output may be its input, and whose parameters come at launch.
    let (drop, ws) = c.prepare(
        d,
        op::DROPOUT,
        &[l, l, Layout::ABSENT],
        op::DropoutParams {
            p: 0.5,
            ..Default::default()
        }
        .as_bytes(),
    );
    assert_eq!(ws, 0);
    let dynamic = op::PhiloxDyn::default();
    let spans = [at(0), at(0), Span::NULL];
    c.launch(drop, s, &spans, Span::NULL, dynamic.as_bytes())
        .expect("in place");
    told(
        c.launch(drop, s, &spans, Span::NULL, &[]),
        &["no PhiloxDyn is given (R1)"],
    );
    told(
        c.launch(drop, s, &spans, Span::NULL, &dynamic.as_bytes()[..16]),
        &["state 32 bytes and have 16"],
    );
    c.sync(s).expect("done");
}

#[test]
fn collectives() {
    let raw = within(Validate::default());
    let sizes = [4u64, 4];
    let run = |counts: [u64; 2], wrong: &(dyn Fn(&mut abi::CollDesc, u32) + Sync)| -> Vec<Said> {
        let id = std::sync::Mutex::new(None::<Vec<u8>>);
        let came = std::sync::Condvar::new();
        std::thread::scope(|scope| {
            let one = |rank: u32| {
                let c = C(raw.clone());
                let d = c.device(rank);
                let mine = if rank == 0 {
                    let mut len = 0;
                    c!(c, coll.unique_id(d, std::ptr::null_mut(), 0, &mut len)).expect("a length");
                    let mut b = vec![0u8; len as usize];
                    c!(c, coll.unique_id(d, b.as_mut_ptr().cast(), len, &mut len)).expect("an id");
                    *id.lock().unwrap() = Some(b.clone());
                    came.notify_all();
                    b
                } else {
                    let mut g = id.lock().unwrap();
                    while g.is_none() {
                        g = came.wait(g).unwrap();
                    }
                    g.clone().unwrap()
                };
                let cfg = abi::CommConfig {
                    size: size_of::<abi::CommConfig>() as u32,
                    rank: rank as i32,
                    nranks: 2,
                    flags: 0,
                    timeout_ns: 2_000_000_000,
                    kv_prefix: abi::Str::EMPTY,
                    name: abi::Str::new("g"),
                };
                let mut comm = std::ptr::null_mut();
                c!(
                    c,
                    coll.comm_init(d, mine.as_ptr().cast(), mine.len() as u64, &cfg, &mut comm)
                )
                .expect("a communicator");
                let (s, m) = (c.stream(d), c.mem(d, 256));
                let n = counts[rank as usize];
                // SAFETY: all-zero is a valid descriptor.
                let mut desc: abi::CollDesc = unsafe { std::mem::zeroed() };
                desc.size = size_of::<abi::CollDesc>() as u32;
                (desc.kind, desc.dtype, desc.reduce, desc.count) =
                    (abi::COLL_ALL_REDUCE, DType::F32.id(), abi::RED_SUM, n);
                (desc.send, desc.recv, desc.seq) = (span(m, 0, n * 4), span(m, 0, n * 4), 1);
                wrong(&mut desc, rank);
                let said = c!(c, coll.launch(comm, s, &desc, 1));
                // A rank that has launched is released when the other has not.
                if said.is_err() {
                    let _ = c!(c, coll.comm_abort(comm));
                }
                let _ = c.sync(s);
                // SAFETY: made above, destroyed once.
                unsafe {
                    c.0.coll
                        .as_ref()
                        .and_then(|t| t.comm_destroy)
                        .expect("a slot")(comm)
                };
                said
            };
            let other = scope.spawn(move || one(1));
            vec![one(0), other.join().expect("a rank")]
        })
    };
    for s in run(sizes, &|_, _| {}) {
        s.expect("a good collective");
    }
    for s in run(sizes, &|d, _| d.count = 5) {
        told(
            s,
            &[
                "validate: launch of all_reduce",
                "send has 16 bytes",
                "make 20",
            ],
        );
    }
    for s in run(sizes, &|d, _| (d.kind, d.root) = (abi::COLL_BROADCAST, 2)) {
        told(s, &["root 2 of 2 ranks"]);
    }
    for s in run(sizes, &|d, _| d.recv.offset = 8) {
        told(s, &["overlap, and not as in place"]);
    }
    for s in run(sizes, &|d, _| d.send.offset = 250) {
        told(s, &["send is bytes 250..266"]);
    }
    // One of the two comes second, and its error names what the first has called.
    let uneven = run([4, 8], &|_, _| {});
    let wrong: Vec<_> = uneven.into_iter().filter_map(Result::err).collect();
    assert!(
        wrong
            .iter()
            .any(|e| e.contains("call 0 of its group is all_reduce of") && e.contains("on rank")),
        "{wrong:?}"
    );
}

#[test]
fn a_plugin_that_answers_no_status_is_told() {
    unsafe extern "C" fn seven(_: Handle, _: Span, _: Span, _: abi::ErrPtr) -> Status {
        7
    }
    unsafe extern "C" fn later(_: Handle, _: i64, _: abi::ErrPtr) -> Status {
        abi::NOT_READY
    }
    let mut raw = cpu();
    let table = raw.device.as_mut().expect("a table");
    table.copy = Some(seven);
    table.stream_sync = Some(later);
    let c = C(wrap(raw, &host(), Box::new(Validate::default())));
    let d = c.device(0);
    let (s, m) = (c.stream(d), c.mem(d, 64));
    let e = c
        .copy(s, span(m, 0, 8), span(m, 8, 8))
        .expect_err("a status");
    assert!(
        e.contains("the plugin answers 7, which is no status"),
        "{e}"
    );
    let e = c.sync(s).expect_err("a status");
    assert!(e.contains("NOT_READY, which is for queries only"), "{e}");
}
