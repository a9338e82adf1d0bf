//! Streams and events. A launch on a stream orders itself behind every earlier use of its operands on other streams; a program with one
//! stream never creates an event.

use crate::buffer::{Buffer, HostBuffer, Region};
use crate::call::{check, state};
use crate::carrier::Fault;
use crate::device::{Device, Raw};
use crate::error::{Code, Error, Result};
use crate::graph::{Call, Following, Verb};
use crate::kernel::{Kernel, LaunchFn};
use crate::listing::Account;
use crate::track::{StreamId, Use};
use crate::watch::Watch;
use crossweave_abi as abi;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// What other streams may do with a stream: record its event, wait for it.
pub(crate) struct StreamCore {
    pub handle: Raw,
    pub id: StreamId,
    pub name: String,
    pub api: abi::DeviceApi,
    ops: Option<abi::OpsApi>,
    state: Mutex<State>,
    waits: AtomicU64,
    /// Waits one by one, while somebody wants them.
    log: Mutex<Option<Vec<Wait>>>,
    /// [`State::seq`], to look at without the lock.
    calls: AtomicU64,
    fault: Arc<Fault>,
    watch: Arc<Watch>,
    pub account: Arc<Account>,
}

/// A wait for another stream that a call's operands made necessary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The call that needed it: its number on its stream, from 1.
    pub call: u64,
    /// The stream waited for, by its index on the device.
    pub stream: u32,
    /// The call on that stream that had to be over.
    pub behind: u64,
    /// The calls to be over were a former owner's of the same memory: nothing that they wrote is read.
    pub reuse: bool,
}

/// Who waited for whom on one stream: for tests of plans, which must have ordered what waited. Clone shares it.
#[derive(Clone)]
pub struct WaitLog(Arc<StreamCore>);

impl WaitLog {
    /// Index of the stream on its device.
    pub fn stream(&self) -> u32 {
        self.0.id
    }
    /// Calls submitted so far.
    pub fn calls(&self) -> u64 {
        self.0.lock().seq
    }
    /// From now on waits are kept; those kept so far are forgotten.
    pub fn begin(&self) {
        *self.0.logged() = Some(vec![]);
    }
    /// The waits since `begin`, and no more are kept.
    pub fn end(&self) -> Vec<Wait> {
        self.0.logged().take().unwrap_or_default()
    }
}

pub(crate) struct State {
    /// Calls submitted so far, with those that are held back.
    seq: u64,
    /// Calls known to have finished.
    passed: u64,
    /// The event other streams wait on, once there was need of one, and the call it covers.
    event: Option<(Raw, u64)>,
    /// Events recorded at marked calls, oldest first, and the call each covers: who needs only what lies before a mark waits for it
    /// instead of for everything submitted since.
    marks: VecDeque<(Raw, u64)>,
    /// For each other stream: the call this stream is already ordered behind.
    behind: Vec<u64>,
    /// Events to record right before the next call, behind what it waits for.
    armed: Vec<Event>,
    /// Calls are held against recordings.
    pub following: Option<Following>,
}

impl State {
    /// Calls the plugin has been given.
    fn enqueued(&self) -> u64 {
        self.seq - self.following.as_ref().map_or(0, Following::held)
    }

    /// An event is about to be recorded behind all calls: none may be held back.
    fn cut(&mut self, core: &StreamCore) -> Result<()> {
        match &mut self.following {
            Some(r) => r.cut(core),
            None => Ok(()),
        }
    }

    /// Calls up to `seq` are about to be waited for: they must not be held back.
    #[inline]
    fn want(&mut self, seq: u64, core: &StreamCore) -> Result<()> {
        if seq <= self.enqueued() {
            return Ok(());
        }
        match &mut self.following {
            Some(r) => r.give_up(core),
            None => Ok(()),
        }
    }
}

/// Marks a stream keeps; older ones are recorded anew, and who comes late for one waits a little longer.
const MARKS: usize = 8;

impl StreamCore {
    pub fn new(
        handle: Raw,
        id: StreamId,
        name: &str,
        api: &abi::DeviceApi,
        ops: Option<abi::OpsApi>,
        fault: Arc<Fault>,
        watch: Arc<Watch>,
        account: Arc<Account>,
    ) -> StreamCore {
        let state = State {
            seq: 0,
            passed: 0,
            event: None,
            marks: VecDeque::new(),
            behind: vec![],
            armed: vec![],
            following: None,
        };
        StreamCore {
            handle,
            id,
            name: name.to_string(),
            api: *api,
            ops,
            state: Mutex::new(state),
            waits: AtomicU64::new(0),
            log: Mutex::new(None),
            calls: AtomicU64::new(0),
            fault,
            watch,
            account,
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn logged(&self) -> MutexGuard<'_, Option<Vec<Wait>>> {
        self.log.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// How ops are launched.
    pub fn op_launch(&self) -> Result<LaunchFn> {
        self.ops
            .and_then(|o| o.op_launch)
            .ok_or_else(|| Error::new(Code::Unsupported, "op_launch", "the plugin provides no ops"))
    }

    /// An error with what the checker knows of it.
    pub fn explained(&self, e: Error) -> Error {
        self.watch.explain(e)
    }

    /// An event recorded at or after call `seq`, and the call it covers. Recording later than needed is conservative, hence right.
    fn event_behind(&self, device: &Device, seq: u64) -> Result<(Raw, u64)> {
        let mut st = self.lock();
        let recorded = st.marks.iter().copied().chain(st.event);
        let covering = recorded.filter(|(_, covers)| *covers >= seq);
        if let Some(earliest) = covering.min_by_key(|(_, covers)| *covers) {
            return Ok(earliest);
        }
        st.want(seq, self)?;
        let event = match st.event {
            Some((e, _)) => e,
            None => {
                let mut h = std::ptr::null_mut();
                // SAFETY: the device is open; the out pointer lives for the call.
                check("event_create", |e| unsafe {
                    call!(self.api, event_create)(device.0.handle.0, 0, &mut h, e)
                })?;
                Raw(h)
            }
        };
        st.event = Some((event, 0));
        // SAFETY: both handles are live; calls on this stream are serialised by its lock.
        check("event_record", |e| unsafe {
            call!(self.api, event_record)(event.0, self.handle.0, e)
        })?;
        let covers = st.enqueued();
        st.event = Some((event, covers));
        Ok((event, covers))
    }

    /// Records an event behind everything submitted so far, unless the last mark covers it already.
    fn mark(&self, device: &Device) -> Result<()> {
        let mut st = self.lock();
        let (seq, last) = (st.seq, st.marks.back().map_or(0, |m| m.1));
        if seq == last {
            return Ok(());
        }
        st.cut(self)?;
        let oldest = match st.marks.len() {
            MARKS => st.marks.pop_front(),
            _ => None,
        };
        let event = match oldest {
            Some((e, _)) => e,
            None => {
                let mut h = std::ptr::null_mut();
                // SAFETY: the device is open; the out pointer lives for the call.
                check("event_create", |e| unsafe {
                    call!(self.api, event_create)(device.0.handle.0, 0, &mut h, e)
                })?;
                Raw(h)
            }
        };
        // SAFETY: both handles are live; calls on this stream are serialised by its lock.
        let recorded = check("event_record", |e| unsafe {
            call!(self.api, event_record)(event.0, self.handle.0, e)
        });
        // Kept also when the record failed, so that it is destroyed with the stream; it then covers nothing.
        let covers = if recorded.is_ok() { seq } else { 0 };
        st.marks.push_back((event, covers));
        recorded
    }

    /// Waits for everything submitted; `None` = for ever.
    pub fn sync(&self, timeout: Option<Duration>) -> Result<()> {
        let all = self.lock().seq;
        self.sync_behind(all, timeout)
    }

    /// Waits for everything the plugin has been given, call `seq` among it.
    fn sync_behind(&self, seq: u64, timeout: Option<Duration>) -> Result<()> {
        let target = {
            let mut st = self.lock();
            st.want(seq, self).map_err(|e| self.watch.explain(e))?;
            st.enqueued()
        };
        let wait = |limit: Option<Duration>| {
            let ns = limit.map_or(-1, |t| t.as_nanos().min(i64::MAX as u128) as i64);
            // SAFETY: the stream is live. The state lock is not held, so others may submit meanwhile.
            check("stream_sync", |e| unsafe {
                call!(self.api, stream_sync)(self.handle.0, ns, e)
            })
            .map_err(|e| e.context(format!("stream {}", self.name)))?;
            self.fault.check()
        };
        self.wait(timeout, target, &wait)?;
        let mut st = self.lock();
        st.passed = st.passed.max(target);
        Ok(())
    }

    /// A host's wait for call `target`, reported to the checker. A caller that sets a limit comes back by itself and is no part of a deadlock.
    fn wait(
        &self,
        timeout: Option<Duration>,
        target: u64,
        wait: &dyn Fn(Option<Duration>) -> Result<()>,
    ) -> Result<()> {
        match timeout {
            None => self.watch.wait(self.id, target, wait),
            some => wait(some).map_err(|e| self.watch.explain(e)),
        }
    }

    /// Calls submitted so far.
    pub fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }

    /// Waits until call `seq` has finished.
    pub fn wait_passed(&self, seq: u64) -> Result<()> {
        if self.lock().passed >= seq {
            Ok(())
        } else {
            self.sync_behind(seq, None)
        }
    }
}

impl Drop for StreamCore {
    fn drop(&mut self) {
        let st = self.lock();
        for (e, _) in st.event.iter().chain(&st.marks) {
            // SAFETY: created by us, destroyed once.
            unsafe { call!(self.api, event_destroy)(e.0) };
        }
        drop(st);
        // SAFETY: the device outlives its stream cores and has synced them.
        unsafe { call!(self.api, stream_destroy)(self.handle.0) };
    }
}

/// An in-order queue. Calls return after enqueue; operands are ordered and kept alive automatically.
pub struct Stream {
    pub(crate) device: Device,
    pub(crate) core: Arc<StreamCore>,
    /// Scratch of the ops on this stream. The cell also makes streams `!Sync`: they are handed from thread to thread, never shared (R7).
    pub(crate) scratch: std::cell::RefCell<Option<Buffer>>,
    /// What ops on the host work with, once there was one.
    pub(crate) host_side: std::cell::RefCell<Option<Box<crate::hostop::HostSide>>>,
}

/// An operand of a launch, `None` when absent.
pub type Operand<'a> = Option<Region<'a>>;

impl Stream {
    pub(crate) fn new(device: Device, core: Arc<StreamCore>) -> Stream {
        Stream {
            device,
            core,
            scratch: Default::default(),
            host_side: Default::default(),
        }
    }
    /// Its device.
    pub fn device(&self) -> &Device {
        &self.device
    }
    /// Its name.
    pub fn name(&self) -> &str {
        &self.core.name
    }
    /// Cross-stream waits inserted so far: the plan's `after` edges must imply each of them.
    pub fn waits(&self) -> u64 {
        self.core.waits.load(Relaxed)
    }

    /// Who waits for whom here.
    pub fn wait_log(&self) -> WaitLog {
        WaitLog(self.core.clone())
    }

    /// Orders this stream behind the uses of `operands`, then runs `submit` and notes the uses. `operands`: (region, does the call write it).
    pub(crate) fn submit<'a, I>(
        &self,
        operands: I,
        submit: impl FnOnce(abi::Handle) -> Result<()>,
    ) -> Result<()>
    where
        I: Iterator<Item = (&'a Buffer, bool)> + Clone,
    {
        self.submit_as(operands, None, submit)
    }

    /// The same for a call that a graph may hold.
    pub(crate) fn submit_call<'a, I>(&self, operands: I, call: &Call<'_>) -> Result<()>
    where
        I: Iterator<Item = (&'a Buffer, bool)> + Clone,
    {
        self.submit_as(operands, Some(call), |_| call.run(&self.core))
    }

    fn submit_as<'a, I>(
        &self,
        operands: I,
        call: Option<&Call<'_>>,
        submit: impl FnOnce(abi::Handle) -> Result<()>,
    ) -> Result<()>
    where
        I: Iterator<Item = (&'a Buffer, bool)> + Clone,
    {
        loop {
            let mut st = self.core.lock();
            let mut wait: Option<(Use, bool)> = None;
            for (b, writes) in operands.clone() {
                if !Arc::ptr_eq(&b.device().0, &self.device.0) {
                    let why = format!(
                        "a buffer of device {} on a stream of device {}",
                        b.device().index(),
                        self.device.index()
                    );
                    return Err(Error::new(Code::Invalid, "submit", why));
                }
                let track = b.track();
                track.hazards(self.core.id, writes, |u| {
                    if st.behind.get(u.stream as usize).is_none_or(|s| *s < u.seq) {
                        wait = Some((u, track.inherited()));
                    }
                });
            }
            let Some((u, reuse)) = wait else {
                if !st.armed.is_empty() {
                    self.record_armed(&mut st)?;
                }
                let held = match &mut st.following {
                    Some(r) => r.meet(call, &self.core),
                    None => Ok(false),
                };
                held.and_then(|held| match held {
                    true => Ok(()),
                    false => submit(self.core.handle.0),
                })
                .map_err(|e| self.core.watch.explain(e))?;
                if let Some(call) = call.filter(|_| self.core.account.lists()) {
                    call.list(&self.core, operands.clone());
                }
                st.seq += 1;
                self.core.calls.store(st.seq, Relaxed);
                let mine = Use {
                    stream: self.core.id,
                    seq: st.seq,
                };
                for (b, writes) in operands {
                    b.track().note(mine, writes);
                }
                return Ok(());
            };
            // The other stream's lock is taken without holding ours, so that two streams waiting for each other's past cannot deadlock.
            drop(st);
            self.wait_use(u, reuse)?;
        }
    }

    #[cold]
    fn record_armed(&self, st: &mut State) -> Result<()> {
        st.cut(&self.core)?;
        for event in st.armed.drain(..) {
            // SAFETY: both handles are live; the state's lock serialises calls on this stream.
            check("event_record", |e| unsafe {
                call!(self.device.0.api, event_record)(event.0.handle.0, self.core.handle.0, e)
            })?;
        }
        Ok(())
    }

    fn wait_use(&self, u: Use, reuse: bool) -> Result<()> {
        let other = self
            .device
            .0
            .streams
            .read()
            .unwrap_or_else(|e| e.into_inner())
            .get(u.stream as usize)
            .cloned();
        let Some(other) = other else {
            return Err(Error::new(
                Code::Internal,
                "wait",
                format!("stream {} is not known", u.stream),
            ));
        };
        let (event, covers) = other.event_behind(&self.device, u.seq)?;
        let mut st = self.core.lock();
        // SAFETY: both handles are live; our lock serialises calls on this stream.
        check("stream_wait_event", |e| unsafe {
            call!(self.device.0.api, stream_wait_event)(self.core.handle.0, event.0, e)
        })?;
        self.core.waits.fetch_add(1, Relaxed);
        self.core
            .watch
            .depend(self.core.id, st.enqueued(), u.stream, covers);
        if let Some(log) = self.core.logged().as_mut() {
            log.push(Wait {
                call: st.seq + 1,
                stream: u.stream,
                behind: u.seq,
                reuse,
            });
        }
        if st.behind.len() <= u.stream as usize {
            st.behind.resize(u.stream as usize + 1, 0);
        }
        let slot = &mut st.behind[u.stream as usize];
        *slot = (*slot).max(covers);
        Ok(())
    }

    /// Launches a prepared op. Operands in the op table's order; `dynamic` is the op's dyn struct as bytes.
    pub fn launch(&self, kernel: &Kernel, operands: &[Operand<'_>], dynamic: &[u8]) -> Result<()> {
        kernel.launch(self, operands, dynamic)
    }

    /// Copies between two regions of equal length.
    pub fn copy(&self, dst: Region<'_>, src: Region<'_>) -> Result<()> {
        let (d, s) = (
            dst.buffer.span(dst.offset, dst.bytes)?,
            src.buffer.span(src.offset, src.bytes)?,
        );
        if d.bytes != s.bytes {
            return Err(Error::new(
                Code::Invalid,
                "copy",
                format!("{} bytes into {}", s.bytes, d.bytes),
            ));
        }
        if d.mem == s.mem
            && d.offset < s.offset + s.bytes
            && s.offset < d.offset + d.bytes
            && d.bytes > 0
        {
            return Err(Error::new(
                Code::Invalid,
                "copy",
                "source and destination overlap",
            ));
        }
        let call = Call {
            verb: Verb::Copy,
            spans: &[d, s],
            dynamic: &[],
        };
        self.submit_call([(dst.buffer, true), (src.buffer, false)].into_iter(), &call)?;
        let ledger = &self.device.0.memory;
        match (dst.buffer.is_host(), src.buffer.is_host()) {
            (true, false) => ledger.moved(true, dst.buffer.tag(), d.bytes),
            (false, true) => ledger.moved(false, src.buffer.tag(), d.bytes),
            _ => {}
        }
        Ok(())
    }

    /// Fills with the low `pattern_bytes` (1, 2, 4 or 8) of `pattern`.
    pub fn fill(&self, dst: Region<'_>, pattern: u64, pattern_bytes: u32) -> Result<()> {
        let d = dst.buffer.span(dst.offset, dst.bytes)?;
        let call = Call {
            verb: Verb::Fill {
                pattern,
                width: pattern_bytes,
            },
            spans: &[d],
            dynamic: &[],
        };
        self.submit_call([(dst.buffer, true)].into_iter(), &call)
    }

    /// Writes host bytes through `staging`, which must be at least as long; waits only for the staging's last transfer.
    pub fn upload(&self, dst: Region<'_>, bytes: &[u8], staging: &mut HostBuffer) -> Result<()> {
        if bytes.len() as u64 > staging.buffer().bytes() || bytes.len() as u64 != dst.bytes {
            return Err(Error::new(
                Code::Invalid,
                "upload",
                format!(
                    "{} bytes through {} into {}",
                    bytes.len(),
                    staging.buffer().bytes(),
                    dst.bytes
                ),
            ));
        }
        staging.write()?[..bytes.len()].copy_from_slice(bytes);
        self.copy(dst, staging.buffer().region(0, bytes.len() as u64))
    }

    /// Writes host bytes through a staging buffer of its own: for set-up, not for the steady state.
    pub fn write(&self, dst: Region<'_>, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let mut staging = self
            .device
            .alloc_host((bytes.len() as u64).min(8 << 20), crate::Tag::Staging)?;
        let chunk = staging.buffer().bytes() as usize;
        for (i, part) in bytes.chunks(chunk).enumerate() {
            let at = dst.offset + (i * chunk) as u64;
            self.upload(dst.buffer.region(at, part.len() as u64), part, &mut staging)?;
        }
        Ok(())
    }

    /// Reads device bytes to the host; blocks until they are there.
    pub fn read(&self, src: Region<'_>, out: &mut [u8]) -> Result<()> {
        if out.len() as u64 != src.bytes {
            return Err(Error::new(
                Code::Invalid,
                "read",
                format!("{} bytes into {}", src.bytes, out.len()),
            ));
        }
        if out.is_empty() {
            return Ok(());
        }
        let mut staging = self
            .device
            .alloc_host((out.len() as u64).min(8 << 20), crate::Tag::Staging)?;
        let chunk = staging.buffer().bytes() as usize;
        for (i, part) in out.chunks_mut(chunk).enumerate() {
            let at = src.offset + (i * chunk) as u64;
            self.copy(
                staging.buffer().region(0, part.len() as u64),
                src.buffer.region(at, part.len() as u64),
            )?;
            part.copy_from_slice(&staging.read()?[..part.len()]);
        }
        Ok(())
    }

    /// Waits for everything submitted. `Timeout` when it takes longer; `None` = for ever.
    pub fn sync(&self, timeout: Option<Duration>) -> Result<()> {
        self.core.sync(timeout)
    }

    /// Has everything submitted finished?
    pub fn query(&self) -> Result<bool> {
        let mut st = self.core.lock();
        self.core.fault.check()?;
        let all = st.seq;
        st.want(all, &self.core)?;
        // SAFETY: the stream is live.
        state("stream_query", |e| unsafe {
            call!(self.device.0.api, stream_query)(self.core.handle.0, e)
        })
    }

    /// Marks this point: a stream that later needs something submitted before it waits for the mark, and not for what is submitted
    /// after it. Worth it behind work that another stream will want while this one goes on.
    pub fn mark(&self) -> Result<()> {
        self.core.mark(&self.device)
    }

    /// Calls submitted so far.
    pub fn calls(&self) -> u64 {
        self.core.calls()
    }

    /// Records `event` at the beginning of the next call's work: behind what that call waits for on other streams, where
    /// [`Stream::record_again`] would record it before the wait.
    pub fn arm(&self, event: &Event) {
        self.core.lock().armed.push(event.clone());
    }

    /// Takes back an event that was armed and has met no call.
    pub fn disarm(&self, event: &Event) {
        let mut st = self.core.lock();
        st.armed.retain(|e| !Arc::ptr_eq(&e.0, &event.0));
    }

    /// Records a new event after everything submitted so far.
    pub fn record(&self) -> Result<Event> {
        let event = self.event()?;
        self.record_again(&event)?;
        Ok(event)
    }

    /// A new event that has not been recorded.
    pub fn event(&self) -> Result<Event> {
        let mut h = std::ptr::null_mut();
        // SAFETY: the device is open; the out pointer lives for the call.
        check("event_create", |e| unsafe {
            call!(self.device.0.api, event_create)(self.device.0.handle.0, 0, &mut h, e)
        })?;
        Ok(Event(Arc::new(EventInner {
            device: self.device.clone(),
            handle: Raw(h),
            covers: Mutex::new(None),
        })))
    }

    /// Records an existing event anew; earlier waits do not move.
    pub fn record_again(&self, event: &Event) -> Result<()> {
        let mut st = self.core.lock();
        st.cut(&self.core)?;
        // SAFETY: both handles are live; our lock serialises calls on this stream.
        check("event_record", |e| unsafe {
            call!(self.device.0.api, event_record)(event.0.handle.0, self.core.handle.0, e)
        })?;
        *event.0.covers.lock().unwrap_or_else(|e| e.into_inner()) =
            Some((self.core.clone(), st.seq));
        Ok(())
    }

    /// Later work of this stream waits for the event's latest record before this call.
    pub fn wait(&self, event: &Event) -> Result<()> {
        let st = self.core.lock();
        // SAFETY: as above.
        check("stream_wait_event", |e| unsafe {
            call!(self.device.0.api, stream_wait_event)(self.core.handle.0, event.0.handle.0, e)
        })?;
        let covers = event.0.covers.lock();
        let same = Arc::ptr_eq(&event.0.device.0, &self.device.0);
        if let Some((core, seq)) = covers
            .unwrap_or_else(|e| e.into_inner())
            .as_ref()
            .filter(|_| same)
        {
            let after = st.enqueued();
            self.core.watch.depend(self.core.id, after, core.id, *seq);
        }
        Ok(())
    }
}

struct EventInner {
    device: Device,
    handle: Raw,
    /// The stream and the call of the latest record: who has waited for the event knows that the stream has come this far.
    covers: Mutex<Option<(Arc<StreamCore>, u64)>>,
}
impl Drop for EventInner {
    fn drop(&mut self) {
        // SAFETY: created by us, destroyed once.
        unsafe { call!(self.device.0.api, event_destroy)(self.handle.0) };
    }
}

/// A point in a stream. Clone shares it.
#[derive(Clone)]
pub struct Event(Arc<EventInner>);

impl Event {
    /// Has the latest record been passed?
    pub fn query(&self) -> Result<bool> {
        self.0.device.0.fault.check()?;
        self.passed()
    }
    /// The same also where the device has failed since.
    pub(crate) fn passed(&self) -> Result<bool> {
        // SAFETY: the event is live.
        state("event_query", |e| unsafe {
            call!(self.0.device.0.api, event_query)(self.0.handle.0, e)
        })
    }
    /// Waits for the latest record.
    pub fn sync(&self, timeout: Option<Duration>) -> Result<()> {
        let covers = self
            .0
            .covers
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .clone();
        let wait = |limit: Option<Duration>| {
            let ns = limit.map_or(-1, |t| t.as_nanos().min(i64::MAX as u128) as i64);
            // SAFETY: the event is live.
            check("event_sync", |e| unsafe {
                call!(self.0.device.0.api, event_sync)(self.0.handle.0, ns, e)
            })?;
            self.0.device.0.fault.check()
        };
        let Some((core, seq)) = covers else {
            return wait(timeout);
        };
        core.wait(timeout, seq, &wait)?;
        let mut st = core.lock();
        st.passed = st.passed.max(seq);
        Ok(())
    }
    /// Time from `self` to `later`, both passed. `None` where the device cannot tell.
    pub fn elapsed(&self, later: &Event) -> Result<Option<Duration>> {
        let Some(f) = self.0.device.0.api.event_elapsed else {
            return Ok(None);
        };
        let mut ns = 0;
        // SAFETY: both events are live.
        check("event_elapsed", |e| unsafe {
            f(self.0.handle.0, later.0.handle.0, &mut ns, e)
        })?;
        Ok(Some(Duration::from_nanos(ns)))
    }
}
