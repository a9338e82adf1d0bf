//! The interface of a group of ranks: the collectives of [`Communicator`], all of them, whatever the plugin has.

use crate::by_plan::Planned;
use crate::faults::Faults;
use crate::fold::{FoldKey, Folder};
use crate::islands::Archipelago;
use crate::route::{self, Key, Route, RouteLine};
use crate::trace::Traced;
use crossweave_hal::{
    AbortHandle, Bootstrap, CollSupport, Collective, CommOptions, CommTag, Communicator, Counts,
    DType, Device, Kernel, Reduce, Region, Result, Stream,
};
use std::collections::{BTreeMap, HashMap};
use std::panic::Location;
use std::sync::Arc;

/// A communicator that lacks nothing.
///
/// Calls are those of [`Communicator`], with the same meaning: in stream order, in place where documented, `&mut self` for one total
/// order. The ledger counts each call once, by what was asked for, however it was carried out. Scratch comes from the device's pool
/// (tag `comm`), at most one full vector per call.
pub struct Collectives {
    pub(crate) comm: Communicator,
    routes: BTreeMap<Key, Result<Route>>,
    pub(crate) folds: HashMap<FoldKey, Arc<Folder>>,
    pub(crate) scales: HashMap<(u32, DType, u64), Kernel>,
    pub(crate) planned: Planned,
    /// Where the ranks are of several back ends; `comm` is then the bridge.
    pub(crate) islands: Option<Archipelago>,
    pub(crate) traced: Option<Traced>,
    pub(crate) faults: Option<Faults>,
    /// Are results held against each other?
    pub(crate) values: bool,
}

impl From<Communicator> for Collectives {
    fn from(comm: Communicator) -> Collectives {
        Collectives {
            comm,
            routes: BTreeMap::new(),
            folds: HashMap::new(),
            scales: HashMap::new(),
            planned: Planned::default(),
            islands: None,
            traced: None,
            faults: None,
            values: false,
        }
    }
}

impl Collectives {
    /// Joins rank `rank` of `size` to the group `options.name`; every rank of the group calls this.
    pub fn new(
        device: &Device,
        boot: &dyn Bootstrap,
        rank: u32,
        size: u32,
        options: &CommOptions,
    ) -> Result<Collectives> {
        Communicator::new(device, boot, rank, size, options).map(Collectives::from)
    }

    /// My rank in the group.
    pub fn rank(&self) -> u32 {
        self.comm.rank()
    }
    /// Ranks in the group.
    pub fn size(&self) -> u32 {
        self.comm.size()
    }
    /// Name of the group.
    pub fn name(&self) -> &str {
        self.comm.name()
    }
    /// For a watchdog, of the communicator all ranks are in.
    pub fn abort_handle(&self) -> AbortHandle {
        self.comm.abort_handle()
    }
    /// For a watchdog: aborting all of them releases this rank from whatever it waits for here.
    pub fn abort_handles(&self) -> Vec<AbortHandle> {
        let near = self.islands.as_ref().and_then(Archipelago::near);
        std::iter::once(&self.comm)
            .chain(near)
            .map(|c| c.abort_handle())
            .collect()
    }

    /// All-reduce in place.
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

    /// `recv` = my piece of the reduction of `send` (ranks x `recv`).
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
        let c = Collective::ReduceScatter {
            send,
            recv,
            dtype,
            op,
        };
        self.group(s, &[c], tag)
    }

    /// `recv` = every rank's `send`, in rank order.
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

    /// `buf` of the root, on every rank.
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

    /// The reduction in the root's `buf`; the others' are left alone.
    #[track_caller]
    pub fn reduce(
        &mut self,
        s: &Stream,
        buf: Region<'_>,
        dtype: DType,
        op: Reduce,
        root: u32,
        tag: CommTag,
    ) -> Result<()> {
        let c = Collective::Reduce {
            buf,
            dtype,
            op,
            root,
        };
        self.group(s, &[c], tag)
    }

    /// Piece `r` of `send` goes to rank `r`; equal pieces.
    #[track_caller]
    pub fn all_to_all(
        &mut self,
        s: &Stream,
        send: Region<'_>,
        recv: Region<'_>,
        dtype: DType,
        tag: CommTag,
    ) -> Result<()> {
        self.group(s, &[Collective::AllToAll { send, recv, dtype }], tag)
    }

    /// Pieces by counts and offsets in elements.
    #[track_caller]
    pub fn all_to_all_v(
        &mut self,
        s: &Stream,
        send: Region<'_>,
        recv: Region<'_>,
        dtype: DType,
        counts: &Counts,
        tag: CommTag,
    ) -> Result<()> {
        let c = Collective::AllToAllV {
            send,
            recv,
            dtype,
            counts,
        };
        self.group(s, &[c], tag)
    }

    /// Pieces of any length, gathered where `counts.recv_at` says.
    #[track_caller]
    pub fn all_gather_v(
        &mut self,
        s: &Stream,
        send: Region<'_>,
        recv: Region<'_>,
        dtype: DType,
        counts: &Counts,
        tag: CommTag,
    ) -> Result<()> {
        let c = Collective::AllGatherV {
            send,
            recv,
            dtype,
            counts,
        };
        self.group(s, &[c], tag)
    }

    /// Nothing later on the stream runs before every rank's stream has come here.
    #[track_caller]
    pub fn barrier(&mut self, s: &Stream) -> Result<()> {
        self.group(s, &[Collective::Barrier], "barrier")
    }

    /// Several at once, no order between members. What the plugin takes as it is (sends and receives too) is one launch, all or nothing;
    /// composed members follow it, in the order given. A member that cannot be done at all is refused before anything is launched.
    #[track_caller]
    pub fn group(&mut self, s: &Stream, members: &[Collective<'_>], tag: CommTag) -> Result<()> {
        let done = match self.traced.take() {
            Some(t) => self.group_traced(t, s, members, tag),
            None => self.asked(s, members, tag),
        };
        self.comm.about_nothing();
        done
    }

    /// Says what the next call is for: ranks meet in it that say the same, from whatever lines they call. See [`Communicator::about`].
    pub fn about(&mut self, what: &str) -> &mut Collectives {
        self.comm.about(what);
        self
    }

    /// Says which line asks for the next call. See [`Communicator::asked_at`].
    pub fn asked_at(&mut self, site: &'static Location<'static>) -> &mut Collectives {
        self.comm.asked_at(site);
        self
    }

    #[track_caller]
    pub(crate) fn asked(
        &mut self,
        s: &Stream,
        members: &[Collective<'_>],
        tag: CommTag,
    ) -> Result<()> {
        match self.faults.clone() {
            Some(f) => self.group_with_faults(&f, s, members, tag),
            None if self.values => self.run_held(s, members, tag, &[]),
            None => self.launch(s, members, tag),
        }
    }

    #[track_caller]
    pub(crate) fn launch(
        &mut self,
        s: &Stream,
        members: &[Collective<'_>],
        tag: CommTag,
    ) -> Result<()> {
        let site = self.comm.site(Location::caller());
        let mut native = 0;
        for m in members {
            let route = self.route(m);
            let route = route.map_err(|e| self.comm.at_call(e, members, site))?;
            native += usize::from(route == Route::Native);
        }
        if native == members.len() && self.islands.is_none() {
            return self.comm.group(s, members, tag);
        }
        let asked = self.comm.announce(s, members, tag)?;
        let result = self.parts(s, members, native, tag);
        self.comm.launched(asked, s, members, tag, result)
    }

    /// Carries out a group of which `native` members are the plugin's.
    fn parts(
        &mut self,
        s: &Stream,
        members: &[Collective<'_>],
        native: usize,
        tag: CommTag,
    ) -> Result<()> {
        let mut own = Vec::with_capacity(native);
        for m in members {
            if self.route(m)? == Route::Native {
                own.push(*m);
            }
        }
        if let Some(first) = own.first() {
            let before = self.comm.bridged();
            match self.islands {
                Some(_) => self.messages(s, &own)?,
                None => self.comm.group_uncounted(s, &own)?,
            }
            self.count_bridge(first, tag, before);
        }
        for m in members {
            let route = self.route(m)?;
            if route != Route::Native {
                let before = self.comm.bridged();
                self.compose(s, m, route).map_err(|e| {
                    e.context(format!(
                        "{} on {} by {}",
                        m.name(),
                        self.comm.name(),
                        route.describe()
                    ))
                })?;
                self.count_bridge(m, tag, before);
            }
        }
        Ok(())
    }

    /// Notes what has crossed the bridge since it had carried `before`.
    fn count_bridge(&self, c: &Collective<'_>, tag: CommTag, before: [u64; 2]) {
        let now = self.comm.bridged();
        let crossed = [now[0] - before[0], now[1] - before[1]];
        if crossed != [0, 0] {
            self.comm.count_bridge(c.name(), tag, crossed);
        }
    }

    /// Ends this rank's part in the group, with a look at what is left over: see [`Communicator::close`].
    ///
    /// # Errors
    /// Messages nobody has answered, and what was never waited for.
    pub fn close(self) -> Result<()> {
        self.comm.close()
    }

    /// The route a collective takes: the same on every rank. Asked of the plugin once per kind, dtype, reduction and size class.
    pub fn route(&mut self, c: &Collective<'_>) -> Result<Route> {
        let key = Key::of(c);
        if let Some(r) = self.routes.get(&key) {
            return r.clone();
        }
        // A call that does not fit is the caller's mistake, not an answer about the class.
        self.comm.validate(c)?;
        let r = route::decide(&self.comm, c, self.islands.is_some());
        self.routes.insert(key, r.clone());
        r
    }

    /// What the plugin itself says of a collective; `None`: it lacks it. The same on every rank.
    pub fn query(&self, c: &Collective<'_>) -> Result<Option<CollSupport>> {
        self.comm.query(c)
    }

    /// Every route decided so far, by kind, dtype, reduction and size.
    pub fn explain(&self) -> Vec<RouteLine> {
        self.routes.iter().map(|(k, r)| k.line(r)).collect()
    }
}
