//! The CPU back end with one defect, chosen by the configuration key `seeded.bug`; without it, the CPU back end. The conformance kit must
//! name each (`tests/seeded/main.rs` lists them with the case that does). Built for that test only.

mod asked;
mod beyond;
mod coll;
mod combined;
mod crowd;
mod graph;
mod kept;
mod mutant;
mod ops;
mod programs;
mod results;
mod specials;

use crossweave_abi as abi;
use crossweave_backend_cpu::{CpuBackend, CpuGraphs, Device, Event, Mem, Stream};
use crossweave_plugin::{
    Backend, Code, Error, Graphs, Host, HostCall, Info, MemKind, Optional, Result, Span, fail,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

/// How long what must not wait waits.
pub(crate) const WHILE: Duration = Duration::from_millis(150);

/// The CPU back end and what is wrong with it.
pub struct Seeded {
    inner: Arc<CpuBackend>,
    host: Host,
    /// The defect of now: a sweep changes it, because a plugin keeps the services, and the configuration, of its first host.
    bug: RwLock<&'static str>,
    broken: AtomicBool,
    /// Where graphs go that do not wait for their turn.
    ahead: Mutex<Option<Stream>>,
    /// Calls that streams have not come to.
    ahead_of_host: Arc<AtomicU64>,
    /// Ops that were asked for, by a key that is too short.
    cache: Mutex<HashMap<Vec<i64>, ops::Asked>>,
    crowd: crowd::Crowd,
    /// The defect has changed what an op was asked or given.
    changed: AtomicBool,
    /// Structs of earlier calls.
    earlier: mutant::Earlier,
    /// What operands must begin at multiples of.
    align: u64,
    /// Whether the device says that it takes subnormal numbers for 0.
    says_that_it_flushes: bool,
    /// What all streams share.
    scratch: Mutex<Option<Arc<Mem>>>,
}

crossweave_plugin::declare_backend!(
    Seeded,
    name = "seeded",
    vendor = "Crossweave",
    graphs = graph::SeededGraphs
);
crossweave_plugin::export_plugin!(Seeded, manifest = "name=seeded;vendor=Crossweave;kinds=cpu");

impl Seeded {
    /// Is this the defect?
    pub(crate) fn is(&self, bug: &str) -> bool {
        self.bug() == bug
    }

    /// The defect.
    pub(crate) fn bug(&self) -> &'static str {
        *self.bug.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn inner(&self) -> &CpuBackend {
        &self.inner
    }

    pub(crate) fn ahead(&self) -> MutexGuard<'_, Option<Stream>> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Eight bytes that nobody frees.
    pub(crate) fn leak(&self, bug: &str) {
        if self.is(bug) {
            std::mem::forget(std::hint::black_box(Box::new(1u64)));
        }
    }

    /// Memory that all streams share.
    pub(crate) fn scratch(&self) -> Result<Arc<Mem>> {
        let mut held = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(m) = &*held {
            return Ok(m.clone());
        }
        let d = self.inner.open(0)?;
        let m = Arc::new(self.inner.alloc(&d, MemKind::Device, ops::SCRATCH, 0)?);
        *held = Some(m.clone());
        Ok(m)
    }

    /// Fails where the kit wants it to.
    fn fault(&self, name: &str) -> Result<()> {
        if self.broken.load(Ordering::Relaxed) {
            return fail(Code::Internal, "still broken by an earlier fault");
        }
        match self.host.fault_point(name) as i32 {
            0 => Ok(()),
            n if -n == abi::E_PANIC => panic!("fault point {name}"),
            n => {
                if self.is("fault_breaks_for_ever") {
                    self.broken.store(true, Ordering::Relaxed);
                }
                let status = if self.is("fault_reported_as_unsupported") {
                    abi::E_UNSUPPORTED
                } else {
                    -n
                };
                if self.is("fault_is_swallowed") {
                    return Ok(());
                }
                let e = Error::new(Code::from_status(status), format!("fault point {name}"));
                match status == abi::E_DEVICE_LOST && !self.is("lost_is_not_sticky") {
                    true => Err(e.sticky()),
                    false => Err(e),
                }
            }
        }
    }
}

/// An event that knows whether it was ever recorded.
pub struct Point {
    event: Arc<Event>,
    recorded: AtomicBool,
    /// The stream of its latest record, by its address, and the waits for that record.
    on: AtomicU64,
    waits: AtomicU64,
}

impl Backend for Seeded {
    type Device = Device;
    type Mem = Mem;
    type Stream = Stream;
    type Event = Point;
    type Ops = ops::SeededOps;
    type Collectives = coll::SeededColl;
    const OPTIONAL: Optional = CpuBackend::OPTIONAL;

    fn init(host: Host) -> Result<Seeded> {
        let bug = host.config("seeded.bug").unwrap_or_default();
        if bug == "shutdown_leaves_a_thread" {
            host.spawn(Box::new(|| {
                loop {
                    std::thread::park();
                }
            }))?;
        }
        let align = match bug.as_str() {
            "alignment_is_not_said" => 256,
            _ => host
                .config("seeded.align")
                .and_then(|a| a.parse().ok())
                .unwrap_or(1),
        };
        Ok(Seeded {
            says_that_it_flushes: host.config("seeded.flush").is_some(),
            align,
            cache: Mutex::default(),
            crowd: crowd::Crowd::default(),
            changed: AtomicBool::new(false),
            earlier: mutant::Earlier::default(),
            ahead_of_host: Arc::default(),
            inner: Arc::new(CpuBackend::init(host)?),
            host,
            bug: RwLock::new(bug.leak()),
            broken: AtomicBool::new(false),
            ahead: Mutex::default(),
            scratch: Mutex::default(),
        })
    }

    fn shutdown(&self) -> Result<()> {
        self.inner.shutdown()
    }

    fn device_count(&self) -> Result<u32> {
        self.inner.device_count()
    }

    fn open(&self, index: u32) -> Result<Device> {
        let index = match self.is("index_wraps_around") {
            true => index % self.device_count()?.max(1),
            false => index,
        };
        if self.is("thread_for_each_open") {
            std::thread::spawn(|| {
                loop {
                    std::thread::park();
                }
            });
        }
        self.inner
            .open(index)
            .inspect_err(|_| self.leak("leak_in_refused_open"))
    }

    fn info(&self, d: &Device) -> Result<Info> {
        self.leak("leak_in_info");
        let mut info = self.inner.info(d)?;
        if self.align > 1 && !self.is("alignment_is_not_said") {
            info.align = self.align as u32;
            info.caps |= abi::CAP_ALIGNED_OPERANDS;
        }
        if self.is("more_free_than_there_is") {
            info.mem_free = info.mem_total + 1;
        }
        Ok(info)
    }

    fn attr(&self, d: &Device, key: &str) -> Result<Vec<u8>> {
        // As a question, so that no slot is needed for it: the answer is the defect.
        if let Some(bug) = key.strip_prefix("seeded.bug=") {
            let mut now = self.bug.write().unwrap_or_else(PoisonError::into_inner);
            *now = String::from(bug).leak();
            self.earlier.forget();
            self.changed.store(false, Ordering::Relaxed);
            return Ok(bug.as_bytes().to_vec());
        }
        if key == "seeded.changed" {
            return Ok(vec![u8::from(self.changed.load(Ordering::Relaxed))]);
        }
        if key == "flush_subnormals" && self.says_that_it_flushes {
            return Ok(b"1".to_vec());
        }
        match self.inner.attr(d, key) {
            Err(e) if self.is("unknown_attribute_is_empty") && e.code == Code::Unsupported => {
                Ok(vec![])
            }
            other => other.inspect_err(|_| self.leak("leak_in_refused_attr")),
        }
    }

    fn alloc(&self, d: &Device, kind: MemKind, bytes: u64, align: u64) -> Result<Mem> {
        let kind = match kind {
            MemKind::Device if self.is("device_memory_is_mapped") => MemKind::HostPinned,
            kind => kind,
        };
        if self.is("nothing_is_not_given_out") && bytes == 0 {
            return fail(Code::Invalid, "no bytes");
        }
        let align = if self.is("alignment_ignored") {
            0
        } else {
            align
        };
        if self.is("leak_in_alloc") {
            std::mem::forget(self.inner.alloc(d, MemKind::Device, 4096, 0)?);
        }
        self.inner
            .alloc(d, kind, bytes, align)
            .map_err(|e| match e.code {
                Code::Oom if self.is("oom_is_internal") => Error::new(Code::Internal, e.message),
                Code::Oom if self.is("oom_is_sticky") => e.sticky(),
                _ => e,
            })
            .inspect_err(|_| self.leak("leak_in_refused_alloc"))
    }

    fn map(&self, m: &Mem) -> Result<*mut u8> {
        self.leak("leak_in_map");
        self.inner
            .map(m)
            .inspect_err(|_| self.leak("leak_in_refused_map"))
    }

    fn import(&self, d: &Device, native: &abi::Native) -> Result<Mem> {
        if self.is("import_copies") && native.type_ == abi::NATIVE_HOST_POINTER {
            let m = self.inner.alloc(d, MemKind::HostPinned, native.bytes, 0)?;
            let at = self.inner.map(&m)?;
            // SAFETY: the host states that so many bytes lie there.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    native.value[0] as *const u8,
                    at,
                    native.bytes as usize,
                )
            };
            return Ok(m);
        }
        self.inner.import(d, native)
    }

    fn stream(&self, d: &Device, priority: i32) -> Result<Stream> {
        if self.is("negative_priorities_are_refused") && priority < 0 {
            return fail(Code::Invalid, "priorities begin at 0");
        }
        self.leak("leak_in_stream");
        if self.is("graph_jumps_the_queue") || self.is("ops_jump_the_queue") {
            *self.ahead() = Some(self.inner.stream(d, priority)?);
        }
        self.inner.stream(d, priority)
    }

    fn stream_query(&self, s: &Stream) -> Result<bool> {
        self.leak("leak_in_stream_query");
        if self.is("stream_is_always_done") {
            return Ok(true);
        }
        if self.is("stream_query_waits") {
            std::thread::sleep(WHILE);
        }
        match self.inner.stream_query(s) {
            Err(_) if self.is("failed_streams_recover") => Ok(true),
            other => other,
        }
    }

    fn stream_sync(&self, s: &Stream, timeout: Option<Duration>) -> Result<()> {
        self.leak("leak_in_stream_sync");
        match self.inner.stream_sync(s, timeout) {
            Err(e) if self.is("stream_timeout_is_ok") && e.code == Code::Timeout => Ok(()),
            Err(e) if self.is("stream_timeout_is_late") && e.code == Code::Timeout => {
                std::thread::sleep(WHILE);
                Err(e)
            }
            other => other,
        }
    }

    fn event(&self, d: &Device) -> Result<Point> {
        if self.is("descriptor_for_each_event") {
            std::mem::forget(std::fs::File::open("/dev/null"));
        }
        Ok(Point {
            event: Arc::new(self.inner.event(d)?),
            recorded: AtomicBool::new(false),
            on: AtomicU64::new(0),
            waits: AtomicU64::new(0),
        })
    }

    fn record(&self, e: &Point, s: &Stream) -> Result<()> {
        self.leak("leak_in_record");
        e.recorded.store(true, Ordering::Relaxed);
        let on = std::ptr::from_ref(s) as u64;
        e.on.store(on, Ordering::Relaxed);
        e.waits.store(0, Ordering::Relaxed);
        match self.inner.record(&e.event, s) {
            Err(x) if x.code == Code::Unsupported && self.is("event_in_a_capture_is_ok") => Ok(()),
            Err(x) if x.code == Code::Unsupported && self.is("capture_ends_at_a_refusal") => {
                drop(CpuGraphs::end(&self.inner, s));
                Err(x)
            }
            other => other,
        }
    }

    fn event_query(&self, e: &Point) -> Result<bool> {
        self.leak("leak_in_event_query");
        if self.is("unrecorded_event_is_pending") && !e.recorded.load(Ordering::Relaxed) {
            return Ok(false);
        }
        if self.is("event_is_always_complete") {
            return Ok(true);
        }
        if self.is("event_query_waits") {
            std::thread::sleep(WHILE);
        }
        self.inner.event_query(&e.event)
    }

    fn event_sync(&self, e: &Point, timeout: Option<Duration>) -> Result<()> {
        self.leak("leak_in_event_sync");
        if self.is("event_sync_does_not_wait") {
            return Ok(());
        }
        match self.inner.event_sync(&e.event, timeout) {
            Err(x) if self.is("event_timeout_is_ok") && x.code == Code::Timeout => Ok(()),
            Err(x) if self.is("event_timeout_is_late") && x.code == Code::Timeout => {
                std::thread::sleep(WHILE);
                Err(x)
            }
            Err(x) if self.is("failure_passes_events") && (x.sticky || x.code != Code::Timeout) => {
                Ok(())
            }
            other => other,
        }
    }

    fn elapsed(&self, from: &Point, to: &Point) -> Result<u64> {
        self.leak("leak_in_elapsed");
        match self.inner.elapsed(&from.event, &to.event) {
            Err(_) if self.is("elapsed_of_a_pending_event") => Ok(0),
            Ok(ns) if self.is("elapsed_is_in_microseconds") => Ok(ns / 1000),
            Ok(_)
                if self.is("no_time_between_streams")
                    && from.on.load(Ordering::Relaxed) != to.on.load(Ordering::Relaxed) =>
            {
                Ok(0)
            }
            other => other,
        }
    }

    fn wait_event(&self, s: &Stream, e: &Point) -> Result<()> {
        self.leak("leak_in_wait_event");
        if self.is("wait_event_holds_the_host") {
            return match self
                .inner
                .event_sync(&e.event, Some(Duration::from_secs(30)))
            {
                Err(x) if x.code != Code::Timeout => Err(x),
                _ => Ok(()),
            };
        }
        let earlier = e.waits.fetch_add(1, Ordering::Relaxed);
        if earlier > 0 && self.is("an_event_serves_one_wait") {
            return Ok(());
        }
        if self.is("waits_by_one_stream_only") && earlier > 1 {
            return Ok(());
        }
        if self.is("wait_event_does_nothing") {
            return Ok(());
        }
        if self.is("rerecord_moves_waits") {
            let (b, e) = (self.inner.clone(), e.event.clone());
            return self.inner.host_call(
                s,
                Box::new(move |_| {
                    // The latest record when the stream comes here, not when the wait was called.
                    let _ = b.event_sync(&e, Some(Duration::from_secs(30)));
                }),
            );
        }
        self.inner.wait_event(s, &e.event)
    }

    fn host_call(&self, s: &Stream, f: HostCall) -> Result<()> {
        self.leak("leak_in_host_call");
        if self.is("host_call_at_once") {
            std::thread::spawn(move || f(Ok(())));
            return Ok(());
        }
        if self.is("host_call_is_told_of_no_failure") {
            return self.inner.host_call(s, Box::new(move |_| f(Ok(()))));
        }
        self.inner.host_call(s, f)
    }

    fn wait_value(&self, s: &Stream, word: Span<'_, Mem>, at_least: u64) -> Result<()> {
        self.leak("leak_in_wait_value");
        if self.is("wait_value_of_32_bits") {
            return self.inner.wait_value(s, word, at_least & 0xFFFF_FFFF);
        }
        if self.is("wait_value_wants_equality") {
            let at = self.inner.map(word.mem)? as usize + word.offset as usize;
            return self.inner.host_call(
                s,
                Box::new(move |_| {
                    // SAFETY: the host keeps the word until the stream has passed.
                    let word = unsafe { &*(at as *const AtomicU64) };
                    while word.load(Ordering::Acquire) != at_least {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }),
            );
        }
        self.inner.wait_value(s, word, at_least)
    }

    fn write_value(&self, s: &Stream, word: Span<'_, Mem>, value: u64) -> Result<()> {
        self.leak("leak_in_write_value");
        if self.is("write_value_at_once") {
            let at = self.inner.map(word.mem)? as usize + word.offset as usize;
            // SAFETY: the word lies in the memory, which is mapped.
            unsafe { &*(at as *const AtomicU64) }.store(value, Ordering::Release);
            return Ok(());
        }
        if self.is("write_value_writes_half") {
            return self.inner.fill(s, Span { bytes: 4, ..word }, value, 4);
        }
        self.inner.write_value(s, word, value)
    }

    fn copy(&self, s: &Stream, mut dst: Span<'_, Mem>, mut src: Span<'_, Mem>) -> Result<()> {
        self.fault("seeded.copy")?;
        if self.is("copy_truncates_to_the_shorter") {
            let n = dst.bytes.min(src.bytes);
            (dst.bytes, src.bytes) = (n, n);
        }
        if self.is("copy_drops_the_odd_byte") && dst.bytes > 64 && dst.bytes == src.bytes {
            (dst.bytes, src.bytes) = (dst.bytes & !1, src.bytes & !1);
        }
        if self.is("copies_end_at_1_mib") && dst.bytes == src.bytes {
            let n = dst.bytes.min(1 << 20);
            (dst.bytes, src.bytes) = (n, n);
        }
        self.leak("leak_in_copy");
        let pinned = |m| self.inner.map(m).is_ok();
        if self.is("copies_within_a_memory_are_lost") && std::ptr::eq(dst.mem, src.mem) {
            return Ok(());
        }
        if self.is("pinned_to_pinned_is_forgotten") && pinned(dst.mem) && pinned(src.mem) {
            return Ok(());
        }
        self.inner
            .copy(s, dst, src)
            .inspect_err(|_| self.leak("leak_in_refused_copy"))
    }

    fn copy_2d(
        &self,
        s: &Stream,
        dst: Span<'_, Mem>,
        dpitch: u64,
        src: Span<'_, Mem>,
        spitch: u64,
        width: u64,
        height: u64,
    ) -> Result<()> {
        self.leak("leak_in_copy_2d");
        let height = match self.is("copy_2d_ends_at_1024_rows") {
            true => height.min(1024),
            false => height,
        };
        let to_host = self.inner.map(dst.mem).is_ok();
        let from_host = self.inner.map(src.mem).is_ok();
        let dpitch = match to_host && self.is("rows_to_the_host_are_dense") {
            true => width,
            false => dpitch,
        };
        let spitch = match from_host && self.is("rows_from_the_host_are_dense") {
            true => width,
            false => spitch,
        };
        let dpitch = match self.is("copy_2d_ignores_the_pitch") {
            true => width,
            false => dpitch,
        };
        let height = match self.is("copy_2d_forgets_the_last_row") {
            true => height.saturating_sub(1),
            false => height,
        };
        self.inner
            .copy_2d(s, dst, dpitch, src, spitch, width, height)
    }

    fn copy_peer(&self, s: &Stream, dst: Span<'_, Mem>, src: Span<'_, Mem>) -> Result<()> {
        self.leak("leak_in_copy_peer");
        if self.is("peers_get_nothing") {
            return Ok(());
        }
        if self.is("peers_work_one_way") {
            // The way of the first such copy.
            let own = std::ptr::from_ref(s) as u64;
            let set = |was| (was == 0).then_some(own);
            let first = self
                .ahead_of_host
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, set)
                .unwrap_or_else(|was| was);
            if first != 0 && first != own {
                return Ok(());
            }
        }
        if self.is("large_copies_of_peers_end") {
            let n = dst.bytes.min(src.bytes).min(1 << 20);
            return self
                .inner
                .copy_peer(s, Span { bytes: n, ..dst }, Span { bytes: n, ..src });
        }
        self.inner.copy_peer(s, dst, src)
    }

    fn fill(
        &self,
        s: &Stream,
        mut dst: Span<'_, Mem>,
        pattern: u64,
        pattern_bytes: u32,
    ) -> Result<()> {
        self.fault("seeded.fill")?;
        // A ring of commands that has no room left.
        if self.is("a_ring_of_1000_calls") {
            let ahead = self.ahead_of_host.clone();
            if ahead.fetch_add(1, Ordering::Relaxed) >= 1000 {
                ahead.fetch_sub(1, Ordering::Relaxed);
                return Ok(());
            }
            self.inner.fill(s, dst, pattern, pattern_bytes)?;
            let own = ahead.clone();
            let passed = move |_| {
                ahead.fetch_sub(1, Ordering::Relaxed);
            };
            // What is captured has no place in the ring.
            if self.inner.host_call(s, Box::new(passed)).is_err() {
                own.fetch_sub(1, Ordering::Relaxed);
            }
            return Ok(());
        }
        if self.is("leak_in_fill") {
            std::mem::forget(std::hint::black_box(vec![1u8; 512]));
        }
        if self.is("fills_of_the_host_are_forgotten") && self.inner.map(dst.mem).is_ok() {
            return Ok(());
        }
        if self.is("fills_end_at_1_mib") {
            dst.bytes = dst.bytes.min(1 << 20);
        }
        if self.is("fill_rounds_up") && dst.bytes > 0 {
            dst.bytes = dst
                .bytes
                .next_multiple_of(16)
                .min(dst.mem.bytes() - dst.offset);
            dst.bytes -= dst.bytes % u64::from(pattern_bytes.max(1));
        }
        if self.is("fill_repeats_one_byte") && pattern_bytes == 2 {
            return self.inner.fill(s, dst, pattern, 1);
        }
        if self.is("fill_repeats_four_bytes") && pattern_bytes == 8 {
            return self.inner.fill(s, dst, pattern, 4);
        }
        if self.is("enqueue_waits") {
            self.inner.fill(s, dst, pattern, pattern_bytes)?;
            return self.inner.stream_sync(s, None);
        }
        self.inner.fill(s, dst, pattern, pattern_bytes)
    }

    fn peer_access(&self, from: &Device, to: &Device) -> Result<(u32, u32)> {
        self.leak("leak_in_peer_access");
        self.inner.peer_access(from, to)
    }
}
