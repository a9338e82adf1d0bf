//! Communicators: collectives in stream order, counted in the ledger, abortable from any thread.

use crate::buffer::Region;
use crate::call::{check, check_member};
use crate::carrier::{self, Carried, Carrier};
use crate::comm_desc::{MovedAsBytes, NULL_DESC, kind_name, list, uses};
use crate::comm_scope::{Scope, unique_id, watch_key};
use crate::device::{Device, Raw};
use crate::error::{Code, Error, Result};
use crate::ledger::CollectiveLedger;
use crate::mask::{self, Mask};
use crate::stream::Stream;
use crate::watch::{Mark, Member, Observer, Purpose};
use crossweave_abi as abi;
use crossweave_abi::DType;
use crossweave_plugin::{GroupRank, JobRank, Members};
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How ranks find each other: a key-value store all of them reach.
pub trait Bootstrap {
    /// Publishes `value` under `key`.
    fn set(&self, key: &str, value: &[u8]) -> Result<()>;
    /// Waits for `key`.
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>>;
}

/// How a reduction combines.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Reduce {
    Sum,
    Prod,
    Min,
    Max,
    /// Sum / ranks; floats only.
    Avg,
    /// `x * factor` before the sum.
    PremulSum(f64),
}

/// Options of a communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommOptions {
    /// Name of the group, for messages and the ledger (mesh axes: `dp`, `dp.tp`, …).
    pub name: String,
    /// For connecting and for each collective.
    pub timeout: Option<Duration>,
}

/// What a collective moves, for the ledger.
pub type CommTag = &'static str;

/// One member of a group launch.
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub enum Collective<'a> {
    /// In place over `count` elements.
    AllReduce {
        buf: Region<'a>,
        dtype: DType,
        op: Reduce,
    },
    /// `send` holds ranks x `recv`. In place when `recv` is this rank's slice of `send`.
    ReduceScatter {
        send: Region<'a>,
        recv: Region<'a>,
        dtype: DType,
        op: Reduce,
    },
    /// `recv` holds ranks x `send`. In place when `send` is this rank's slice of `recv`.
    AllGather {
        send: Region<'a>,
        recv: Region<'a>,
        dtype: DType,
    },
    Broadcast {
        buf: Region<'a>,
        dtype: DType,
        root: u32,
    },
    /// `buf` on every rank; the result lands in the root's.
    Reduce {
        buf: Region<'a>,
        dtype: DType,
        op: Reduce,
        root: u32,
    },
    /// Equal pieces; `send` and `recv` of one length, divisible by the ranks.
    AllToAll {
        send: Region<'a>,
        recv: Region<'a>,
        dtype: DType,
    },
    /// Pieces by counts and offsets in elements, one per rank.
    AllToAllV {
        send: Region<'a>,
        recv: Region<'a>,
        dtype: DType,
        counts: &'a Counts,
    },
    /// `send` of any length per rank; `counts.recv*` say where each lands.
    AllGatherV {
        send: Region<'a>,
        recv: Region<'a>,
        dtype: DType,
        counts: &'a Counts,
    },
    Send {
        buf: Region<'a>,
        dtype: DType,
        peer: u32,
    },
    Recv {
        buf: Region<'a>,
        dtype: DType,
        peer: u32,
    },
    Barrier,
}

/// Elements per rank, and where each piece starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Counts {
    pub send: Vec<u64>,
    pub send_at: Vec<u64>,
    pub recv: Vec<u64>,
    pub recv_at: Vec<u64>,
}

impl Collective<'_> {
    /// Name of its kind, as in the ledger.
    pub fn name(&self) -> &'static str {
        kind_name(self)
    }
}

/// What a plugin says of a collective it can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollSupport {
    /// 0 reference, 1 native, 2 tuned.
    pub tier: u32,
    /// Estimated latency in nanoseconds, or 0.
    pub latency_ns: u64,
    /// Estimated bandwidth, or 0.
    pub bytes_per_s: u64,
    /// Largest vector in bytes; 0 = no limit.
    pub max_bytes: u64,
}

pub(crate) struct CommInner {
    /// Keeps the device open while the communicator lives.
    _device: Device,
    pub handle: Raw,
    pub api: abi::CollectiveApi,
    mask: Mask,
    pub name: String,
    scope: String,
    /// Which ranks of the job its members are.
    members: Members,
    pub rank: u32,
    pub size: u32,
    aborted: AtomicBool,
    /// Its place in the checker.
    mark: Option<Mark>,
    /// Another plugin does it.
    pub carried: Option<Carried>,
    /// Which moves go as bytes.
    pub bytes: MovedAsBytes,
}

impl CommInner {
    /// This rank, as messages name it.
    pub fn me(&self) -> JobRank {
        self.members.of(GroupRank(self.rank))
    }
}

impl Drop for CommInner {
    fn drop(&mut self) {
        if self.carried.as_mut().is_some_and(|c| !c.land()) {
            // Something in flight still uses it, on a stream of the device.
            std::mem::forget(self._device.clone());
            return;
        }
        if let Some(f) = self.api.comm_destroy {
            // SAFETY: created by us, destroyed once; after abort the plugin must not wait for peers.
            unsafe { f(self.handle.0) };
        }
    }
}

/// A group of ranks. `&mut self` makes the order of collectives on it total; only [`AbortHandle`] is shareable.
pub struct Communicator {
    /// Its place in the checker; `None` where that is switched off or full. First, so that a rank's end is on record before the others can
    /// learn of it from the plugin.
    watch: Option<Member>,
    pub(crate) inner: Arc<CommInner>,
    ledger: Arc<CollectiveLedger>,
    seq: u64,
    /// What the next call is for, where its caller has said so.
    about: Purpose,
    /// Where the next call is made, where the line that makes it is not the one that asked for it.
    asked_at: Option<&'static Location<'static>>,
    observer: Option<Arc<dyn Observer>>,
}

/// What has been announced: the numbers of its records.
#[must_use]
pub struct Asked(Option<(u64, u64)>);

/// Aborts a communicator from any thread.
#[derive(Clone)]
pub struct AbortHandle(Arc<CommInner>);

/// The same without keeping the communicator.
pub(crate) struct WeakAbort(Weak<CommInner>);

impl WeakAbort {
    /// The communicator, if it is still there.
    pub fn get(&self) -> Option<AbortHandle> {
        self.0.upgrade().map(AbortHandle)
    }
}

impl AbortHandle {
    pub(crate) fn weak(&self) -> WeakAbort {
        WeakAbort(Arc::downgrade(&self.0))
    }
    /// Marks the communicator failed and releases every rank that waits in it; returns at once.
    pub fn abort(&self) -> Result<()> {
        if let Some(mark) = &self.0.mark {
            mark.aborted();
        }
        self.release()
    }
    /// The same because of a failure elsewhere: it is not this rank that the others see as the cause.
    pub fn release(&self) -> Result<()> {
        self.0.aborted.store(true, Relaxed);
        match self.0.api.comm_abort {
            // SAFETY: the handle is live while `self` is; abort may race with anything (R7).
            Some(f) => check("comm_abort", |e| unsafe { f(self.0.handle.0, e) }),
            None => Ok(()),
        }
    }
    /// Has somebody aborted it?
    pub fn aborted(&self) -> bool {
        self.0.aborted.load(Relaxed)
    }
    /// `Ok(true)` when connected, `Ok(false)` while connecting, or the failure.
    pub fn health(&self) -> Result<bool> {
        // SAFETY: as above.
        let well = check_member("comm_async_error", &self.0.members, |e| unsafe {
            call!(self.0.api, comm_async_error)(self.0.handle.0, e)
        });
        match well {
            Err(e) if e.code == Code::NotReady => Ok(false),
            well => well.map(|()| true),
        }
    }
}

impl Communicator {
    /// Joins rank `rank` of `size` to the group `options.name`. Every rank of the group calls this; the id travels through `boot`.
    pub fn new(
        device: &Device,
        boot: &dyn Bootstrap,
        rank: u32,
        size: u32,
        options: &CommOptions,
    ) -> Result<Communicator> {
        Communicator::in_scope(device, boot, &*options.name, rank, size, options)
    }

    /// The same where several groups of one name live in a job (`tp` of each pipeline stage): `scope` is what all members of this
    /// group and no other group call it, and keeps their ids apart.
    pub fn in_scope<'a>(
        device: &Device,
        boot: &dyn Bootstrap,
        scope: impl Into<Scope<'a>>,
        rank: u32,
        size: u32,
        options: &CommOptions,
    ) -> Result<Communicator> {
        let carrier = device.carrier();
        Communicator::connect(device, carrier, boot, &scope.into(), rank, size, options)
    }

    /// The same by the device's own plugin, whichever plugin carries its other communicators: the ranks of one island.
    pub fn of_island<'a>(
        device: &Device,
        boot: &dyn Bootstrap,
        scope: impl Into<Scope<'a>>,
        rank: u32,
        size: u32,
        options: &CommOptions,
    ) -> Result<Communicator> {
        Communicator::connect(device, None, boot, &scope.into(), rank, size, options)
    }

    fn connect(
        device: &Device,
        carrier: Option<Carrier>,
        boot: &dyn Bootstrap,
        scope: &Scope<'_>,
        rank: u32,
        size: u32,
        options: &CommOptions,
    ) -> Result<Communicator> {
        let members = scope.members.clone();
        let me = members.of(GroupRank(rank));
        let at = || format!("communicator {} of {size} ranks, {me}", options.name);
        // The device whose plugin makes the communicator.
        let home = carrier.as_ref().map_or(device, |c| c.device());
        let Some(api) = home.0.plugin.0.coll else {
            return Err(Error::new(
                Code::Unsupported,
                "comm_init",
                format!("plugin {} provides no collectives", home.plugin().name()),
            ));
        };
        let timeout = options.timeout.unwrap_or(Duration::from_secs(300));
        let prefix = scope.prefix();
        let key = format!("{prefix}id");
        let id = if rank == 0 {
            let id = unique_id(home, &api).map_err(|e| e.context(at()))?;
            boot.set(&key, &id)?;
            id
        } else {
            boot.get(&key, timeout).map_err(|e| {
                let first = members.of(GroupRank(0));
                e.context(format!("{} waiting for the id of {first}", at()))
            })?
        };
        scope.tell(&home.0.plugin.0.host);
        let cfg = abi::CommConfig {
            size: size_of::<abi::CommConfig>() as u32,
            rank: rank as i32,
            nranks: size as i32,
            flags: 0,
            timeout_ns: options
                .timeout
                .map_or(0, |t| t.as_nanos().min(i64::MAX as u128) as i64),
            kv_prefix: abi::Str::new(&prefix),
            name: abi::Str::new(&options.name),
        };
        let mut h = std::ptr::null_mut();
        // SAFETY: id and config live for the call.
        check_member("comm_init", &members, |e| unsafe {
            call!(api, comm_init)(
                home.0.handle.0,
                id.as_ptr().cast(),
                id.len() as u64,
                &cfg,
                &mut h,
                e,
            )
        })
        .map_err(|e| e.context(at()))?;
        let mut inner = CommInner {
            _device: device.clone(),
            handle: Raw(h),
            api,
            mask: home.0.plugin.0.mask.clone(),
            name: options.name.clone(),
            scope: scope.name.to_string(),
            members: members.clone(),
            rank,
            size,
            aborted: AtomicBool::new(false),
            mark: None,
            carried: None,
            bytes: MovedAsBytes::default(),
        };
        // Made last: a failure here leaves a communicator that is destroyed like any other.
        let carried = |c| Carried::new(c, &inner.api, inner.handle, &inner.name);
        inner.carried = carrier.as_ref().map(carried).transpose()?;
        let board = &device.0.plugin.1;
        let key = watch_key(&id, scope.name, size);
        let watch = (device.0.watch).join(board, key, &options.name, &members, (size, rank));
        inner.mark = watch.as_ref().map(Member::mark);
        let inner = Arc::new(inner);
        if let Some(w) = &watch {
            w.aborts(AbortHandle(inner.clone()).weak());
        }
        Ok(Communicator {
            inner,
            ledger: device.0.collectives.clone(),
            seq: 0,
            about: Purpose::default(),
            asked_at: None,
            watch,
            observer: device.0.watch.observer(),
        })
    }

    /// My rank in the group.
    pub fn rank(&self) -> u32 {
        self.inner.rank
    }
    /// Ranks in the group.
    pub fn size(&self) -> u32 {
        self.inner.size
    }
    /// Name of the group.
    pub fn name(&self) -> &str {
        &self.inner.name
    }
    /// What all members of this group and no other group of the job call it.
    pub fn scope(&self) -> &str {
        &self.inner.scope
    }
    /// Which ranks of the job its members are.
    pub fn members(&self) -> &Members {
        &self.inner.members
    }
    /// Bytes of the full vector of a collective, as the ledger counts them.
    pub fn bytes(&self, c: &Collective<'_>) -> u64 {
        self.logical(c)[1]
    }
    /// For a watchdog.
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle(self.inner.clone())
    }

    /// In-place all-reduce.
    #[track_caller]
    pub fn all_reduce(
        &mut self,
        s: &Stream,
        buf: Region<'_>,
        dtype: DType,
        op: Reduce,
        tag: CommTag,
    ) -> Result<()> {
        self.group(s, &[Collective::AllReduce { buf, dtype, op }], tag)
    }
    /// Reduce-scatter.
    #[track_caller]
    pub fn reduce_scatter(
        &mut self,
        s: &Stream,
        send: Region<'_>,
        recv: Region<'_>,
        dtype: DType,
        op: Reduce,
        tag: CommTag,
    ) -> Result<()> {
        self.group(
            s,
            &[Collective::ReduceScatter {
                send,
                recv,
                dtype,
                op,
            }],
            tag,
        )
    }
    /// All-gather.
    #[track_caller]
    pub fn all_gather(
        &mut self,
        s: &Stream,
        send: Region<'_>,
        recv: Region<'_>,
        dtype: DType,
        tag: CommTag,
    ) -> Result<()> {
        self.group(s, &[Collective::AllGather { send, recv, dtype }], tag)
    }
    /// Broadcast from `root`.
    #[track_caller]
    pub fn broadcast(
        &mut self,
        s: &Stream,
        buf: Region<'_>,
        dtype: DType,
        root: u32,
        tag: CommTag,
    ) -> Result<()> {
        self.group(s, &[Collective::Broadcast { buf, dtype, root }], tag)
    }
    /// Barrier in stream order.
    #[track_caller]
    pub fn barrier(&mut self, s: &Stream) -> Result<()> {
        self.group(s, &[Collective::Barrier], "barrier")
    }

    /// Can the plugin do it natively? No side effects.
    pub fn supports(&self, c: &Collective<'_>) -> Result<bool> {
        Ok(self.query(c)?.is_some())
    }

    /// What the plugin says of it; `None` = it cannot. No side effects.
    pub fn query(&self, c: &Collective<'_>) -> Result<Option<CollSupport>> {
        let desc = self.desc(c, 0)?.0;
        ask(&self.inner, &desc, c)
    }

    /// Do its regions, lengths and counts fit this communicator? What [`Communicator::group`] checks before it launches.
    pub fn validate(&self, c: &Collective<'_>) -> Result<()> {
        self.desc(c, 0)?;
        self.sane(c)
    }

    /// An error of a call that is wrong by itself, with who called what where.
    pub fn at_call(&self, e: Error, members: &[Collective<'_>], site: &Location<'_>) -> Error {
        if !matches!(e.code, Code::Invalid | Code::Unsupported) {
            return e;
        }
        let rank = (self.watch.as_ref()).map_or(self.inner.me(), Member::rank);
        let name = members.first().map_or("group", kind_name);
        e.context(format!("{rank} calls {name} at {site}"))
    }

    /// Notes a collective in the ledger without running it: compositions run their parts by [`Communicator::group_uncounted`] and
    /// count the whole once.
    pub fn count(&self, c: &Collective<'_>, tag: CommTag) {
        self.ledger.add(
            kind_name(c),
            &self.inner.name,
            tag,
            self.inner.size,
            self.logical(c),
        );
    }

    /// Says what the next call is for: `block 3, attention`. Ranks meet in a collective that all say the same of, from whatever lines they
    /// call; where nothing is said, the plan step and the line of the call must be the same. Of messages, which two lines make as a rule,
    /// the plan step and the tag are compared where nothing is said. Barriers, which move nothing, meet from any line.
    pub fn about(&mut self, what: &str) -> &mut Communicator {
        self.about = match &self.watch {
            Some(w) => w.words(what),
            None => Purpose::default(),
        };
        self
    }
    /// Says which line asks for the next call, where another makes it for that one: an interpreter, say.
    pub fn asked_at(&mut self, site: &'static Location<'static>) {
        self.asked_at = Some(site);
    }
    /// The line that asks for the next call, which `caller` makes.
    pub fn site(&self, caller: &'static Location<'static>) -> &'static Location<'static> {
        self.asked_at.unwrap_or(caller)
    }
    /// Takes back what [`Communicator::about`] and [`Communicator::asked_at`] have said, where no call came of it.
    pub fn about_nothing(&mut self) {
        self.about = Purpose::default();
        self.asked_at = None;
    }

    /// Launches a group: all or nothing, no order between members.
    ///
    /// # Errors
    /// Regions that do not fit, or of which one member writes what another uses; what the checker finds; what the plugin says.
    #[track_caller]
    pub fn group(
        &mut self,
        stream: &Stream,
        members: &[Collective<'_>],
        tag: CommTag,
    ) -> Result<()> {
        let site = self.site(Location::caller());
        let about = std::mem::take(&mut self.about);
        self.asked_at = None;
        self.alive(members.first(), site)?;
        let sound = members.iter().try_for_each(|m| self.sane(m));
        let sound = sound.and_then(|()| self.apart(members));
        let done = sound.and_then(|()| {
            self.described(members, |comm, descs| {
                let asked = comm.enter(stream, members, tag, site, about)?;
                let result = comm.launch(stream, members, descs);
                comm.launched(asked, stream, members, tag, result)
            })
        });
        done.map_err(|e| self.at_call(e, members, site))?;
        for m in members.iter().filter(|_| self.inner.carried.is_some()) {
            self.count_bridge(m.name(), tag, carrier::staged(m, self.inner.rank));
        }
        Ok(())
    }

    /// Says what is going to be launched: it is recorded and held against what the other ranks ask for, before anything happens.
    /// [`Communicator::group`] does it itself; who composes a collective of parts says the whole here, runs the parts by
    /// [`Communicator::group_uncounted`] and ends with [`Communicator::launched`].
    ///
    /// # Errors
    /// Regions that do not fit, and what the checker finds: nothing has been launched.
    #[track_caller]
    pub fn announce(
        &mut self,
        stream: &Stream,
        members: &[Collective<'_>],
        tag: CommTag,
    ) -> Result<Asked> {
        let site = self.site(Location::caller());
        let about = std::mem::take(&mut self.about);
        self.asked_at = None;
        self.alive(members.first(), site)?;
        let sound = members.iter().try_for_each(|m| self.validate(m));
        let sound = sound.and_then(|()| self.apart(members));
        sound.map_err(|e| self.at_call(e, members, site))?;
        self.enter(stream, members, tag, site, about)
    }

    fn enter(
        &mut self,
        stream: &Stream,
        members: &[Collective<'_>],
        tag: CommTag,
        site: &'static Location<'static>,
        about: Purpose,
    ) -> Result<Asked> {
        if let Some(o) = &self.observer {
            o.before(&self.inner.name, members, tag)?;
        }
        Ok(Asked(match &mut self.watch {
            Some(w) => Some(w.enter(stream.core.id, members, site, tag, about)?),
            None => None,
        }))
    }

    /// What was announced is on its stream, or could not be put there. Counts it in the ledger.
    ///
    /// # Errors
    /// `result`, as the verdict where one has caused it.
    pub fn launched(
        &mut self,
        asked: Asked,
        stream: &Stream,
        members: &[Collective<'_>],
        tag: CommTag,
        result: Result<()>,
    ) -> Result<()> {
        let result = result.map_err(|e| stream.device.0.watch.explain(e));
        if let (Some(w), Some(n)) = (&self.watch, asked.0) {
            w.enqueued(n, stream.core.calls());
        }
        if let Some(o) = &self.observer {
            o.after(&self.inner.name, members, tag, &result);
        }
        result?;
        for m in members {
            self.count(m, tag);
        }
        Ok(())
    }

    /// Bytes this communicator has handed to its carrier so far, and taken from it.
    pub fn bridged(&self) -> [u64; 2] {
        let carried = self.inner.carried.as_ref();
        carried.map_or([0; 2], Carried::moved)
    }

    /// Notes in the ledger what a collective of that kind has put on the bridge and taken from it.
    pub fn count_bridge(&self, kind: &'static str, tag: CommTag, [sent, received]: [u64; 2]) {
        let CommInner { name, size, .. } = &*self.inner;
        self.ledger.bridge(kind, name, tag, *size, sent, received);
    }

    fn alive(&self, first: Option<&Collective<'_>>, site: &Location<'_>) -> Result<()> {
        if !self.inner.aborted.load(Relaxed) {
            return Ok(());
        }
        let why = format!("communicator {} was aborted", self.inner.name);
        Err(match &self.watch {
            Some(w) => w.failure().unwrap_or_else(|| {
                w.give_up();
                w.refused(first, site, &format!("after {why}"))
            }),
            None => Error::new(Code::Aborted, "launch", why),
        })
    }

    /// Ends this rank's part in the group: the same as dropping it, with a look at what is left over.
    ///
    /// # Errors
    /// A send that nobody has received or a receive nobody has answered, when the other end has ended too; something that was asked for
    /// and never waited for.
    pub fn close(mut self) -> Result<()> {
        let Some(w) = &mut self.watch else {
            return Ok(());
        };
        if let Some(e) = w.failure().or_else(|| w.unmatched()) {
            return Err(e);
        }
        w.unawaited().map_or(Ok(()), Err)
    }

    /// The same without a line in the ledger: parts of a composed collective.
    #[track_caller]
    pub fn group_uncounted(&mut self, stream: &Stream, members: &[Collective<'_>]) -> Result<()> {
        self.alive(members.first(), Location::caller())?;
        self.described(members, |comm, descs| comm.launch(stream, members, descs))
    }

    /// Makes the descriptors of a group's members: what does not fit is refused before anything has happened.
    fn described<T>(
        &mut self,
        members: &[Collective<'_>],
        then: impl FnOnce(&mut Communicator, &[abi::CollDesc]) -> Result<T>,
    ) -> Result<T> {
        // One alone is what nearly every call brings.
        if let [m] = members {
            let desc = self.describe(m)?;
            return then(self, std::slice::from_ref(&desc));
        }
        let mut small = [NULL_DESC; 4];
        let mut large = vec![];
        let descs: &mut [abi::CollDesc] = if members.len() <= small.len() {
            &mut small[..members.len()]
        } else {
            large.resize(members.len(), NULL_DESC);
            &mut large
        };
        for (d, m) in descs.iter_mut().zip(members) {
            *d = self.describe(m)?;
        }
        then(self, descs)
    }

    fn describe(&mut self, m: &Collective<'_>) -> Result<abi::CollDesc> {
        self.seq += 1;
        let d = self.desc(m, self.seq)?.0;
        mask::check(&self.inner.mask, &d, m)?;
        Ok(d)
    }

    fn launch(
        &self,
        stream: &Stream,
        members: &[Collective<'_>],
        descs: &[abi::CollDesc],
    ) -> Result<()> {
        if stream.core.account.lists() {
            list(&self.inner, &stream.core, members, descs);
        }
        if self.inner.carried.is_some() {
            return carrier::group(&self.inner, stream, members, descs);
        }
        let uses = members.iter().flat_map(|m| uses(m).into_iter().flatten());
        let name = &self.inner.name;
        stream.submit(uses, |h| {
            // SAFETY: spans are bounds checked and tracked; count arrays live for the call and are copied by the plugin (R8).
            check_member("launch", &self.inner.members, |e| unsafe {
                call!(self.inner.api, launch)(
                    self.inner.handle.0,
                    h,
                    descs.as_ptr(),
                    descs.len() as u32,
                    e,
                )
            })
            .map_err(|e| {
                e.context(format!(
                    "{} on {name}",
                    members.first().map_or("group", kind_name)
                ))
            })
        })
    }
}

/// What the plugin says of a descriptor of `c`.
pub(crate) fn ask(
    comm: &CommInner,
    desc: &abi::CollDesc,
    c: &Collective<'_>,
) -> Result<Option<CollSupport>> {
    if mask::check(&comm.mask, desc, c).is_err() {
        return Ok(None);
    }
    // SAFETY: a zeroed answer is valid; the descriptor lives for the call.
    let mut out: abi::CollSupport = unsafe { std::mem::zeroed() };
    out.size = size_of::<abi::CollSupport>() as u32;
    // SAFETY: as above.
    match check("comm_query", |e| unsafe {
        call!(comm.api, comm_query)(comm.handle.0, desc, &mut out, e)
    }) {
        Ok(()) => Ok(Some(CollSupport {
            tier: out.tier,
            latency_ns: out.latency_ns,
            bytes_per_s: out.bytes_per_s,
            max_bytes: out.max_bytes,
        })),
        Err(e) if e.code == Code::Unsupported => Ok(None),
        Err(e) => Err(e),
    }
}
