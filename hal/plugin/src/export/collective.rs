//! `crossweave.collective/1` from the [`Collectives`] trait.

use super::Declared;
use super::wire::*;
use crate::{
    Backend, Code, Coll, CollShape, Collectives, CommConfig, DType, Error, Health, Host, Members,
    Result, fail,
};
use crossweave_abi as abi;
use crossweave_abi::Handle;
use std::ffi::c_void;
use std::time::Duration;

type C<B> = <B as Backend>::Collectives;
type Comm<B> = <C<B> as Collectives<B>>::Comm;

/// A communicator and its size: the length of the count arrays of the `*_V` collectives.
struct Member<B: Declared> {
    comm: Comm<B>,
    nranks: u32,
}

slot!(unique_id(d: Handle, out: *mut c_void, cap: u64, len: *mut u64) |b| {
    let device = obj(d, "device")?;
    writable(len, "len")?;
    // The length question may not burn an id (some vendor libraries start a listener per id), so an id made only to be measured is
    // kept and handed out by the next call that has room for it.
    let mut parked = whole::<B>()?.parked();
    let id = match parked.take() {
        Some((of, id)) if of == d as usize => id,
        _ => <C<B>>::unique_id(b, device)?,
    };
    let taken = !out.is_null() && cap >= id.len() as u64;
    let answer = put_bytes(out, cap, len, "the unique id", &id);
    if !taken {
        *parked = Some((d as usize, id));
    }
    answer?
});

slot!(comm_init(d: Handle, id: *const c_void, id_len: u64, cfg: *const abi::CommConfig, out: *mut Handle) |b| {
    writable(out, "the communicator")?;
    let cfg = config(&whole::<B>()?.host, desc(cfg, "communicator config")?)?;
    let nranks = cfg.nranks;
    let id = slice(id.cast::<u8>(), id_len, "the unique id")?;
    let comm = <C<B>>::init(b, obj(d, "device")?, id, cfg)?;
    put(out, "the communicator", boxed(Member::<B> { comm, nranks }))?
});

// A negative colour takes part in the split and becomes no member: the status is OK and the handle NULL.
slot!(comm_split(c: Handle, color: i32, key: i32, cfg: *const abi::CommConfig, out: *mut Handle) |b| {
    writable(out, "the communicator")?;
    let cfg = config(&whole::<B>()?.host, desc(cfg, "communicator config")?)?;
    let nranks = cfg.nranks;
    let parent = &obj::<Member<B>>(c, "communicator")?.comm;
    let child = <C<B>>::split(b, parent, (color >= 0).then_some(color), key, cfg)?;
    let handle = child.map_or(std::ptr::null_mut(), |comm| boxed(Member::<B> { comm, nranks }));
    put(out, "the communicator", handle)?
});

slot!(comm_query(c: Handle, x: *const abi::CollDesc, out: *mut abi::CollSupport) |b| {
    let x = desc(x, "collective")?;
    let shape = CollShape {
        kind: x.kind,
        dtype: dtype(&x)?,
        reduce: x.reduce,
        count: x.count,
        flags: x.flags,
        in_place: !x.send.mem.is_null() && x.send == x.recv,
    };
    let a = <C<B>>::supports(b, &obj::<Member<B>>(c, "communicator")?.comm, &shape)?;
    put_sized(out, "the answer", abi::CollSupport {
        size: 0,
        tier: a.tier,
        flags: 0,
        latency_ns: a.latency_ns,
        bytes_per_s: a.bytes_per_s,
        max_bytes: a.max_bytes,
    })?
});

slot!(comm_async_error(c: Handle) |b| {
    <C<B>>::async_error(b, &obj::<Member<B>>(c, "communicator")?.comm)? == Health::Ready
});

slot!(comm_abort(c: Handle) |b| {
    <C<B>>::abort(b, &obj::<Member<B>>(c, "communicator")?.comm)?
});

slot!(launch(c: Handle, s: Handle, descs: *const abi::CollDesc, n: u32) |b| {
    let member = obj::<Member<B>>(c, "communicator")?;
    let stream = obj(s, "stream")?;
    match n {
        // One alone needs no list: nearly every call brings it.
        1 => {
            let only = member.collective(&desc(descs, "collective")?)?;
            <C<B>>::launch(b, &member.comm, stream, &[only])?
        }
        _ => {
            let raw = desc_array(descs, n, "collective")?;
            let mut group = Vec::with_capacity(raw.len());
            for x in &raw {
                group.push(member.collective(x)?);
            }
            <C<B>>::launch(b, &member.comm, stream, &group)?
        }
    }
});

impl<B: Declared> Member<B> {
    /// One collective of the wire.
    ///
    /// # Safety
    /// Spans name live memory of this backend; count arrays have one entry per rank.
    unsafe fn collective<'a>(&self, x: &abi::CollDesc) -> Result<Coll<'a, B::Mem>> {
        // SAFETY: promised by the caller.
        unsafe {
            let counts = |p: *const u64| match p.is_null() {
                true => Ok(&[][..]),
                false => slice(p, self.nranks as u64, "counts"),
            };
            Ok(Coll {
                kind: x.kind,
                dtype: dtype(x)?,
                reduce: x.reduce,
                root: x.root,
                peer: x.peer,
                count: x.count,
                send: maybe_span::<B>(x.send),
                recv: maybe_span::<B>(x.recv),
                send_counts: counts(x.send_counts)?,
                send_offsets: counts(x.send_offsets)?,
                recv_counts: counts(x.recv_counts)?,
                recv_offsets: counts(x.recv_offsets)?,
                scale: x.scale,
                scale_dev: maybe_span::<B>(x.scale_dev),
                flags: x.flags,
                seq: x.seq,
            })
        }
    }
}

/// The element type; a barrier moves no elements and may leave it 0.
fn dtype(x: &abi::CollDesc) -> Result<DType> {
    match DType::from_id(x.dtype) {
        Some(d) => Ok(d),
        None if x.kind == abi::COLL_BARRIER && x.dtype == 0 => Ok(DType::U8),
        None => Err(Error::new(
            Code::Unsupported,
            format!("dtype id {:#x} is newer than this plugin", x.dtype),
        )),
    }
}

/// # Safety
/// The strings live for the call.
unsafe fn config(host: &Host, c: abi::CommConfig) -> Result<CommConfig> {
    if c.nranks < 1 || c.rank < 0 || c.rank >= c.nranks {
        return fail(
            Code::Invalid,
            format!("rank {} of {} ranks", c.rank, c.nranks),
        );
    }
    no_flags(c.flags, "communicator config")?;
    // SAFETY: promised by the caller.
    let (kv_prefix, name) = unsafe { (text(c.kv_prefix, "kv_prefix")?, text(c.name, "name")?) };
    let listed = host.config(&Members::key(kv_prefix));
    let members = listed.and_then(|text| Members::parse(&text, c.nranks as u32));
    Ok(CommConfig {
        rank: c.rank as u32,
        nranks: c.nranks as u32,
        timeout: (c.timeout_ns > 0).then(|| Duration::from_nanos(c.timeout_ns as u64)),
        kv_prefix: kv_prefix.into(),
        name: name.into(),
        members: members.unwrap_or_default(),
    })
}

/// The table. `launch_multi`, registration and topology have no trait method yet, so their slots are NULL.
pub(super) const fn table<B: Declared>() -> abi::CollectiveApi {
    abi::CollectiveApi {
        size: size_of::<abi::CollectiveApi>() as u32,
        minor: 0,
        unique_id: Some(unique_id::<B>),
        comm_init: Some(comm_init::<B>),
        comm_split: Some(comm_split::<B>),
        comm_query: Some(comm_query::<B>),
        comm_async_error: Some(comm_async_error::<B>),
        comm_abort: Some(comm_abort::<B>),
        comm_destroy: Some(drop_as::<Member<B>>),
        launch: Some(launch::<B>),
        launch_multi: None,
        mem_register: None,
        mem_unregister: None,
        topology: None,
    }
}
