//! What the host gives every plugin: log, configuration, key-value exchange, threads, a clock, fault points.
//!
//! A [`HostServices`] is made by the engine or the command line and handed to the loader, which turns it into the C table. The table's
//! context is leaked on purpose: R9 promises plugins that services live until the process ends.

use crate::error::{Code, Error, Result};
use crossweave_abi as abi;
use crossweave_abi::{RangeFn, SpawnFn, Status, Str};
use crossweave_plugin::{Awake, Members};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Exchange of small values between ranks (ids, addresses). Implementations: [`LocalKv`] for ranks of one process; a TCP store elsewhere.
pub trait KvStore: Send + Sync {
    /// Publishes; setting a key again replaces its value.
    fn set(&self, key: &str, value: &[u8]) -> Result<()>;
    /// Waits until the key is set; `None` waits for ever. `Timeout` names the key.
    fn get(&self, key: &str, timeout: Option<Duration>) -> Result<Vec<u8>>;
}

/// Locks, also after a thread panicked while holding: every value guarded here is replaced whole, never left half written.
fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Key-value store of one process.
#[derive(Default)]
pub struct LocalKv {
    map: Mutex<BTreeMap<String, Vec<u8>>>,
    changed: Condvar,
}

impl KvStore for LocalKv {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        lock(&self.map).insert(key.into(), value.into());
        self.changed.notify_all();
        Ok(())
    }

    fn get(&self, key: &str, timeout: Option<Duration>) -> Result<Vec<u8>> {
        let mut clock = timeout.map(Awake::new);
        let mut map = lock(&self.map);
        loop {
            if let Some(v) = map.get(key) {
                return Ok(v.clone());
            }
            map = match &mut clock {
                None => self
                    .changed
                    .wait(map)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(clock) => {
                    let pause = clock.pause();
                    if pause.is_zero() {
                        return Err(Error::new(
                            Code::Timeout,
                            "kv_get",
                            format!("no rank has set {key:?} in time"),
                        ));
                    }
                    let woken = self.changed.wait_timeout(map, pause);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

/// Where plugins' log lines go: `(level 1 error … 5 trace, target, message)`.
pub type LogSink = dyn Fn(u32, &str, &str) + Send + Sync;

/// One configuration key a plugin asked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfigRead {
    /// The key.
    pub key: String,
    /// The value it was given; `None` = unset, the plugin used its default.
    pub value: Option<String>,
}

struct Inner {
    log: Option<Box<LogSink>>,
    config: Mutex<BTreeMap<String, String>>,
    reads: Mutex<BTreeMap<String, Option<String>>>,
    kv: Arc<dyn KvStore>,
    threads: usize,
    started: AtomicU64,
    running: Arc<AtomicUsize>,
    faults: Mutex<BTreeMap<String, u32>>,
    /// Is any fault set? Plugins pass fault points in their launches: without one they cost a load.
    armed: AtomicBool,
    /// Names of the places that were set to fail since the last question.
    failed: Mutex<BTreeSet<String>>,
    /// Names of the places that asked, where somebody wants to know them.
    asked: Option<Mutex<BTreeSet<String>>>,
    origin: Instant,
}

/// The services of one host; clones share them.
#[derive(Clone)]
pub struct HostServices(Arc<Inner>);

/// Collects what a [`HostServices`] is made of.
pub struct HostBuilder {
    log: Option<Box<LogSink>>,
    config: BTreeMap<String, String>,
    kv: Arc<dyn KvStore>,
    threads: usize,
    record_faults: bool,
}

impl HostBuilder {
    /// Receives the plugins' log lines; without it they are dropped.
    pub fn log(mut self, sink: impl Fn(u32, &str, &str) + Send + Sync + 'static) -> Self {
        self.log = Some(Box::new(sink));
        self
    }
    /// Sets one configuration key.
    pub fn config(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.config.insert(key.into(), value.into());
        self
    }
    /// Replaces the in-process store.
    pub fn kv(mut self, store: Arc<dyn KvStore>) -> Self {
        self.kv = store;
        self
    }
    /// Threads of `parallel_for`, at least 1; by default all cores.
    pub fn threads(mut self, n: usize) -> Self {
        self.threads = n.max(1);
        self
    }
    /// Keeps the names of fault points that plugins pass, for [`HostServices::fault_points`].
    pub fn record_faults(mut self) -> Self {
        self.record_faults = true;
        self
    }
    /// Done.
    pub fn build(self) -> HostServices {
        HostServices(Arc::new(Inner {
            log: self.log,
            config: Mutex::new(self.config),
            reads: Mutex::default(),
            kv: self.kv,
            threads: self.threads,
            started: AtomicU64::new(0),
            running: Arc::default(),
            faults: Mutex::default(),
            armed: AtomicBool::new(false),
            failed: Mutex::default(),
            asked: self.record_faults.then(Mutex::default),
            origin: Instant::now(),
        }))
    }
}

impl Default for HostServices {
    /// No log, no configuration, the in-process store, all cores.
    fn default() -> Self {
        HostServices::builder().build()
    }
}

impl HostServices {
    /// Starts from the defaults.
    pub fn builder() -> HostBuilder {
        HostBuilder {
            log: None,
            config: BTreeMap::new(),
            kv: Arc::new(LocalKv::default()),
            threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
            record_faults: false,
        }
    }

    /// Sets a key from now on, or unsets it (`None`); answers what it was. Plugins read their keys when they open a device.
    pub fn set_config(&self, key: impl Into<String>, value: Option<String>) -> Option<String> {
        let mut config = lock(&self.0.config);
        match value {
            Some(v) => config.insert(key.into(), v),
            None => config.remove(&key.into()),
        }
    }

    /// Every configuration key plugins have asked for so far, in key order: what the run report lists.
    pub fn config_reads(&self) -> Vec<ConfigRead> {
        let reads = lock(&self.0.reads);
        let each = |(k, v): (&String, &Option<String>)| ConfigRead {
            key: k.clone(),
            value: v.clone(),
        };
        reads.iter().map(each).collect()
    }

    /// Threads started for plugins so far, and how many still run.
    pub fn threads(&self) -> (u64, usize) {
        (
            self.0.started.load(Ordering::Relaxed),
            self.0.running.load(Ordering::Acquire),
        )
    }

    /// Makes the named place of a plugin fail with `value` (0 = no longer). For the conformance kit and tests.
    pub fn set_fault(&self, name: impl Into<String>, value: u32) {
        let mut faults = lock(&self.0.faults);
        match value {
            0 => faults.remove(&name.into()),
            v => faults.insert(name.into(), v),
        };
        self.0.armed.store(!faults.is_empty(), Ordering::Release);
    }

    /// Names of the fault points passed so far, in order of the name; empty unless [`HostBuilder::record_faults`] was asked for.
    pub fn fault_points(&self) -> Vec<String> {
        let asked = self.0.asked.as_ref();
        asked.map_or(vec![], |a| lock(a).iter().cloned().collect())
    }

    /// Names of the places that were set to fail since the last question, in order of the name: a plugin that says nothing of one has
    /// swallowed it.
    pub fn take_failed(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.0.failed))
            .into_iter()
            .collect()
    }

    /// The store ranks exchange values through.
    pub fn kv(&self) -> &Arc<dyn KvStore> {
        &self.0.kv
    }

    /// The C table. Its context is one more share of these services, never released (R9).
    pub fn table(&self) -> abi::Host {
        abi::Host {
            size: size_of::<abi::Host>() as u32,
            abi_minor: abi::ABI_MINOR,
            min_plugin_minor: crate::loader::MIN_PLUGIN_MINOR,
            reserved: 0,
            ctx: Arc::into_raw(self.0.clone()).cast_mut().cast(),
            log: Some(log),
            config_get: Some(config_get),
            kv_set: Some(kv_set),
            kv_get: Some(kv_get),
            parallel_for: Some(parallel_for),
            spawn: Some(spawn),
            now_ns: Some(now_ns),
            fault_point: Some(fault_point),
        }
    }
}

/// # Safety
/// `ctx` comes from [`HostServices::table`].
unsafe fn services<'a>(ctx: *mut c_void) -> &'a Inner {
    // SAFETY: the table leaked a share of this value.
    unsafe { &*ctx.cast::<Inner>() }
}

/// Nothing unwinds into a plugin (R5): the sink and the store are the caller's code.
fn guarded(body: impl FnOnce() -> Status) -> Status {
    let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
    run.unwrap_or_else(|p| {
        // Its destructor could panic again.
        std::mem::forget(p);
        abi::E_PANIC
    })
}

/// Writes what fits and states the full length; the plugin asks again with more room.
///
/// # Safety
/// `out` is NULL or has `cap` bytes; `len` is NULL or writable.
unsafe fn answer(bytes: &[u8], out: *mut u8, cap: u64, len: *mut u64) -> Status {
    if len.is_null() {
        return abi::E_INVALID;
    }
    // SAFETY: promised by the caller; the copy is bounded by both lengths.
    unsafe {
        *len = bytes.len() as u64;
        if !out.is_null() {
            let n = bytes.len().min(cap as usize);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), out, n);
        }
    }
    abi::OK
}

unsafe extern "C" fn log(ctx: *mut c_void, level: u32, target: Str, message: Str) {
    // SAFETY: the plugin keeps the contract of the slot: our context, texts live for the call.
    let (s, target, message) = unsafe { (services(ctx), target.as_str(), message.as_str()) };
    if let Some(sink) = &s.log {
        guarded(|| {
            sink(
                level,
                target.unwrap_or("?"),
                message.unwrap_or("(a log line that is not UTF-8)"),
            );
            abi::OK
        });
    }
}

unsafe extern "C" fn config_get(
    ctx: *mut c_void,
    key: Str,
    out: *mut u8,
    cap: u64,
    len: *mut u64,
) -> Status {
    // SAFETY: as `log`; the out parameters are the plugin's.
    unsafe {
        let s = services(ctx);
        let Some(key) = key.as_str() else {
            return abi::E_INVALID;
        };
        let value = lock(&s.config).get(key).cloned();
        // Who the members of a communicator are is no setting.
        if !key.starts_with(Members::KEYS) {
            lock(&s.reads).insert(key.into(), value.clone());
        }
        match value {
            Some(v) => answer(v.as_bytes(), out, cap, len),
            None => abi::NOT_READY,
        }
    }
}

unsafe extern "C" fn kv_set(ctx: *mut c_void, key: Str, value: *const c_void, len: u64) -> Status {
    // SAFETY: as `log`; `value` has `len` bytes.
    unsafe {
        let s = services(ctx);
        let (Some(key), false) = (key.as_str(), value.is_null() && len != 0) else {
            return abi::E_INVALID;
        };
        let bytes = if len == 0 {
            &[][..]
        } else {
            std::slice::from_raw_parts(value.cast::<u8>(), len as usize)
        };
        guarded(|| match s.kv.set(key, bytes) {
            Ok(()) => abi::OK,
            Err(e) => e.code.status(),
        })
    }
}

unsafe extern "C" fn kv_get(
    ctx: *mut c_void,
    key: Str,
    out: *mut c_void,
    cap: u64,
    len: *mut u64,
    timeout_ns: i64,
) -> Status {
    // SAFETY: as `config_get`.
    unsafe {
        let s = services(ctx);
        let Some(key) = key.as_str() else {
            return abi::E_INVALID;
        };
        let timeout = (timeout_ns >= 0).then(|| Duration::from_nanos(timeout_ns as u64));
        guarded(|| match s.kv.get(key, timeout) {
            Ok(v) => answer(&v, out.cast(), cap, len),
            Err(e) => e.code.status(),
        })
    }
}

/// A plugin's argument, shared by the threads of one `parallel_for` or moved to one `spawn`.
#[derive(Clone, Copy)]
struct Arg(*mut c_void);
impl Arg {
    /// By a method, so that closures capture the sendable whole and not the pointer inside.
    fn get(self) -> *mut c_void {
        self.0
    }
}
// SAFETY: the plugin passes it for exactly this use: its body runs on other threads.
unsafe impl Send for Arg {}
// SAFETY: as above.
unsafe impl Sync for Arg {}

unsafe extern "C" fn parallel_for(
    ctx: *mut c_void,
    n: u64,
    grain: u64,
    body: RangeFn,
    arg: *mut c_void,
) -> Status {
    // SAFETY: our context.
    let s = unsafe { services(ctx) };
    let grain = grain.max(1);
    let blocks = n.div_ceil(grain);
    let next = AtomicU64::new(0);
    let arg = Arg(arg);
    let work = || {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= blocks {
                return;
            }
            // SAFETY: the plugin allows its body to run at once on several threads, over disjoint ranges.
            unsafe { body(arg.get(), i * grain, ((i + 1) * grain).min(n)) }
        }
    };
    let helpers = (s.threads as u64).min(blocks).saturating_sub(1);
    guarded(|| {
        // Threads live for one call: plugins that loop over small ranges keep their own team by `spawn`.
        std::thread::scope(|scope| {
            for _ in 0..helpers {
                // A thread that cannot start costs speed only: this thread works through what is left.
                let _ = std::thread::Builder::new()
                    .name("cw-parallel-for".into())
                    .spawn_scoped(scope, work);
            }
            work();
        });
        abi::OK
    })
}

unsafe extern "C" fn spawn(ctx: *mut c_void, body: SpawnFn, arg: *mut c_void) -> Status {
    // SAFETY: our context.
    let s = unsafe { services(ctx) };
    let number = s.started.fetch_add(1, Ordering::Relaxed);
    let running = s.running.clone();
    running.fetch_add(1, Ordering::AcqRel);
    let arg = Arg(arg);
    let thread = std::thread::Builder::new().name(format!("cw-plugin-{number}"));
    let started = thread.spawn(move || {
        // SAFETY: the plugin hands `arg` to this one call.
        unsafe { body(arg.get()) };
        running.fetch_sub(1, Ordering::AcqRel);
    });
    match started {
        Ok(_) => abi::OK,
        Err(_) => {
            s.started.fetch_sub(1, Ordering::Relaxed);
            s.running.fetch_sub(1, Ordering::AcqRel);
            // The system refuses threads for want of memory, or by a limit of their number.
            abi::E_OOM
        }
    }
}

unsafe extern "C" fn now_ns(ctx: *mut c_void) -> u64 {
    // SAFETY: our context.
    unsafe { services(ctx) }.origin.elapsed().as_nanos() as u64
}

unsafe extern "C" fn fault_point(ctx: *mut c_void, name: Str) -> u32 {
    // SAFETY: as `log`.
    let s = unsafe { services(ctx) };
    if s.asked.is_none() && !s.armed.load(Ordering::Acquire) {
        return 0;
    }
    // SAFETY: as `log`.
    let name = unsafe { name.as_str() };
    if let (Some(asked), Some(n)) = (&s.asked, name)
        && !lock(asked).contains(n)
    {
        lock(asked).insert(n.to_owned());
    }
    let told = name.and_then(|n| lock(&s.faults).get(n).copied());
    let told = told.unwrap_or(0);
    if let (Some(n), true) = (name, told != 0) {
        lock(&s.failed).insert(n.to_owned());
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_reads_are_recorded_with_and_without_a_value() {
        let host = HostServices::builder().config("acme.streams", "4").build();
        let t = host.table();
        let (mut buf, mut len) = ([0u8; 1], 0);
        for key in ["acme.streams", "acme.missing"] {
            // SAFETY: our own table; the buffer has one byte.
            unsafe { config_get(t.ctx, Str::new(key), buf.as_mut_ptr(), 1, &mut len) };
        }
        assert_eq!((buf[0], len), (b'4', 1));
        let read = |key: &str, value: Option<&str>| ConfigRead {
            key: key.into(),
            value: value.map(Into::into),
        };
        assert_eq!(
            host.config_reads(),
            [read("acme.missing", None), read("acme.streams", Some("4"))]
        );
    }

    #[test]
    fn a_value_set_by_another_thread_ends_the_wait() {
        let kv = Arc::new(LocalKv::default());
        let other = kv.clone();
        let t = std::thread::spawn(move || other.get("id", None));
        kv.set("id", b"abc").unwrap();
        assert_eq!(t.join().unwrap().unwrap(), b"abc");
        let e = kv
            .get("nobody", Some(Duration::from_millis(1)))
            .unwrap_err();
        assert_eq!(e.code, Code::Timeout);
        assert!(e.message.contains("nobody"));
    }

    #[test]
    fn parallel_for_covers_every_index_once() {
        unsafe extern "C" fn mark(arg: *mut c_void, begin: u64, end: u64) {
            for i in begin..end {
                // SAFETY: the test passes an array of 1000 counters.
                unsafe { &*arg.cast::<AtomicU64>().add(i as usize) }
                    .fetch_add(1, Ordering::Relaxed);
            }
        }
        for threads in [1, 3] {
            let t = HostServices::builder().threads(threads).build().table();
            let seen: Vec<AtomicU64> = (0..1000).map(|_| AtomicU64::new(0)).collect();
            // SAFETY: our own table and an array as long as the range.
            let s = unsafe { parallel_for(t.ctx, 1000, 7, mark, seen.as_ptr().cast_mut().cast()) };
            assert_eq!(s, abi::OK);
            assert!(seen.iter().all(|c| c.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn a_panicking_sink_does_not_reach_the_plugin() {
        let host = HostServices::builder()
            .log(|_, _, _| panic!("sink"))
            .build();
        // SAFETY: our own table.
        unsafe { log(host.table().ctx, 1, Str::new("t"), Str::new("m")) };
    }

    #[test]
    fn faults_can_be_set_and_cleared() {
        let host = HostServices::default();
        let t = host.table();
        assert!(host.fault_points().is_empty());
        host.set_fault("null.copy", 7);
        // SAFETY: our own table.
        assert_eq!(unsafe { fault_point(t.ctx, Str::new("null.copy")) }, 7);
        assert_eq!(host.take_failed(), ["null.copy"]);
        // SAFETY: our own table.
        assert_eq!(unsafe { fault_point(t.ctx, Str::new("null.fill")) }, 0);
        host.set_fault("null.fill", 8);
        host.set_fault("null.copy", 0);
        // SAFETY: our own table.
        assert_eq!(unsafe { fault_point(t.ctx, Str::new("null.copy")) }, 0);
        // SAFETY: our own table.
        assert_eq!(unsafe { fault_point(t.ctx, Str::new("null.fill")) }, 8);
        assert_eq!(host.take_failed(), ["null.fill"]);
        assert!(host.fault_points().is_empty(), "nobody asked for the names");
        // Who wants the names gets those of places at which nothing is set too.
        let host = HostServices::builder().record_faults().build();
        // SAFETY: our own table.
        assert_eq!(unsafe { fault_point(host.table().ctx, Str::new("x")) }, 0);
        assert_eq!(host.fault_points(), ["x"]);
    }
}
