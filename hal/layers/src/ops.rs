//! The functions of `crossweave.ops/1` and `crossweave.collective/1` around a plugin's own.

use crate::call::{Call, Member, Operand};
use crate::device::{created, own, wrapped};
use crate::object::{Facts, Kind, Object};
use crate::wrap::{destroy, op_facts, operand};
use crossweave_abi as abi;
use crossweave_abi::{
    CollDesc, CollectiveApi, CommConfig, ErrPtr, Handle, OpDesc, OpPlan, OpsApi, Span, Status,
};
use crossweave_plugin::export::{self as wire, guard};
use crossweave_plugin::{Code, Error, Result};
use std::ffi::c_void;

/// The wrapped table.
// With the first minor the smaller of the two is no question yet.
#[allow(clippy::unnecessary_min_or_max)]
pub(crate) fn ops_table(inner: &OpsApi) -> OpsApi {
    OpsApi {
        size: size_of::<OpsApi>() as u32,
        minor: inner.minor.min(abi::ABI_MINOR),
        op_prepare: inner.op_prepare.map(|_| op_prepare as _),
        op_launch: inner.op_launch.map(|_| op_launch as _),
        op_release: inner.op_release.map(|_| op_release as _),
    }
}

/// The wrapped table. `launch_multi` and `topology` are not passed on: the core uses neither, and does without them by threads.
#[allow(clippy::unnecessary_min_or_max)]
pub(crate) fn coll_table(inner: &CollectiveApi) -> CollectiveApi {
    CollectiveApi {
        size: size_of::<CollectiveApi>() as u32,
        minor: inner.minor.min(abi::ABI_MINOR),
        unique_id: inner.unique_id.map(|_| unique_id as _),
        comm_init: inner.comm_init.map(|_| comm_init as _),
        comm_split: inner.comm_split.map(|_| comm_split as _),
        comm_query: inner.comm_query.map(|_| comm_query as _),
        comm_async_error: inner.comm_async_error.map(|_| comm_async_error as _),
        comm_abort: inner.comm_abort.map(|_| comm_abort as _),
        comm_destroy: inner.comm_destroy.map(|_| comm_destroy as _),
        launch: inner.launch.map(|_| launch as _),
        launch_multi: None,
        mem_register: inner.mem_register.map(|_| mem_register as _),
        mem_unregister: inner.mem_unregister.map(|_| mem_unregister as _),
        topology: None,
    }
}

wrapped!(op_prepare(h: Handle, desc: *const OpDesc, out: *mut Handle, plan: *mut OpPlan) |e| {
    let device = Object::of(h, Kind::Device)?;
    let c = device.context;
    let f = own!(c, ops, op_prepare);
    let op = op_facts(desc)?;
    let (new, mut inner) = (c.fresh(), std::ptr::null_mut());
    let s = c.around(&Call::Prepare { device, new, op: &op }, || f(device.inner, desc, &mut inner, plan, e))?;
    let workspace = abi::read_prefix::<OpPlan>(plan.cast_const().cast()).map_or(0, |p| p.workspace_bytes);
    let facts = Facts::Op { op, workspace };
    Ok(created(s, out, |i| Object::make(c, Kind::Op, i, new, device.id(), facts), inner))
});

/// Operands most launches have at most.
const FEW: usize = 24;

wrapped!(op_launch(h: Handle, s: Handle, spans: *const Span, n: u32, ws: Span, dynamic: *const c_void, dyn_bytes: u64) |e| {
    let (op, stream) = (Object::of(h, Kind::Op)?, Object::of(s, Kind::Stream)?);
    let f = own!(op.context, ops, op_launch);
    let given: &[Span] = match n == 0 || spans.is_null() {
        true => &[],
        false => std::slice::from_raw_parts(spans, n as usize),
    };
    let mut operands: Vec<Operand<'_>> = Vec::with_capacity(given.len());
    let mut few = [Span::NULL; FEW];
    let mut many = vec![];
    let inner: &mut [Span] = if given.len() <= FEW {
        &mut few[..given.len()]
    } else {
        many.resize(given.len(), Span::NULL);
        &mut many
    };
    for (to, span) in inner.iter_mut().zip(given) {
        let (o, s) = operand(*span)?;
        operands.push(o);
        *to = s;
    }
    let (workspace, ws) = operand(ws)?;
    let bytes: &[u8] = match dynamic.is_null() || dyn_bytes == 0 {
        true => &[],
        false => std::slice::from_raw_parts(dynamic.cast(), dyn_bytes as usize),
    };
    let call = Call::Launch { op, stream, operands: &operands, workspace, dynamic: bytes };
    op.context.around(&call, || f(op.inner, stream.inner, inner.as_ptr(), n, ws, dynamic, dyn_bytes, e))
});

unsafe extern "C" fn op_release(h: Handle) {
    // SAFETY: as `wrapped`.
    unsafe {
        destroy(
            h,
            Kind::Op,
            |op| Call::Release { op },
            |o| {
                if let Some(f) = o.context.inner.ops.as_ref().and_then(|t| t.op_release) {
                    f(o.inner)
                }
            },
        )
    }
}

wrapped!(unique_id(h: Handle, out: *mut c_void, cap: u64, len: *mut u64) |e| {
    let device = Object::of(h, Kind::Device)?;
    let f = own!(device.context, coll, unique_id);
    device.context.around(&Call::UniqueId { device, cap }, || f(device.inner, out, cap, len, e))
});

wrapped!(comm_init(h: Handle, id: *const c_void, id_len: u64, cfg: *const CommConfig, out: *mut Handle) |e| {
    let device = Object::of(h, Kind::Device)?;
    let c = device.context;
    let f = own!(c, coll, comm_init);
    let g = wire::desc(cfg, "communicator config")?;
    let bytes: &[u8] = match id.is_null() || id_len == 0 {
        true => &[],
        false => std::slice::from_raw_parts(id.cast(), id_len as usize),
    };
    let (new, mut inner) = (c.fresh(), std::ptr::null_mut());
    let name = g.name.as_str().unwrap_or("?");
    let call = Call::CommInit {
        device, new, id: bytes, rank: g.rank, size: g.nranks, timeout_ns: g.timeout_ns,
        prefix: g.kv_prefix.as_str().unwrap_or(""), name,
    };
    let s = c.around(&call, || f(device.inner, id, id_len, cfg, &mut inner, e))?;
    let facts = Facts::Comm { rank: g.rank, size: g.nranks, name: name.to_string() };
    Ok(created(s, out, |i| Object::make(c, Kind::Comm, i, new, device.id(), facts), inner))
});

wrapped!(comm_split(h: Handle, color: i32, key: i32, cfg: *const CommConfig, out: *mut Handle) |e| {
    let comm = Object::of(h, Kind::Comm)?;
    let c = comm.context;
    let f = own!(c, coll, comm_split);
    let (new, mut inner) = (c.fresh(), std::ptr::null_mut());
    let s = c.around(&Call::CommSplit { comm, new, color, key }, || f(comm.inner, color, key, cfg, &mut inner, e))?;
    // Who is in the part, and how many, only the plugin knows.
    let facts = Facts::Comm { rank: -1, size: -1, name: String::new() };
    Ok(created(s, out, |i| Object::make(c, Kind::Comm, i, new, comm.device(), facts), inner))
});

/// A descriptor as the plugin has it, and as a layer sees it.
///
/// # Safety
/// Its spans name memory of this layer, and its lists have an entry for each of `ranks` and live for the call.
unsafe fn member<'a>(d: &CollDesc, ranks: usize) -> Result<(Member<'a>, CollDesc)> {
    // SAFETY: the caller keeps R1-R8: spans name memory of this layer, arrays have an entry a rank and live for the call.
    unsafe {
        let ((send, s), (recv, r), (_, scale)) =
            (operand(d.send)?, operand(d.recv)?, operand(d.scale_dev)?);
        let list = |p: *const u64| -> &'a [u64] {
            match p.is_null() {
                true => &[],
                false => std::slice::from_raw_parts(p, ranks),
            }
        };
        let own = CollDesc {
            size: size_of::<CollDesc>() as u32,
            send: s,
            recv: r,
            scale_dev: scale,
            ..*d
        };
        let m = Member {
            desc: own,
            send,
            recv,
            send_counts: list(d.send_counts),
            send_offsets: list(d.send_offsets),
            recv_counts: list(d.recv_counts),
            recv_offsets: list(d.recv_offsets),
        };
        Ok((m, own))
    }
}

fn ranks(comm: &Object) -> usize {
    match comm.facts() {
        Facts::Comm { size, .. } => (*size).max(0) as usize,
        _ => 0,
    }
}

wrapped!(comm_query(h: Handle, desc: *const CollDesc, out: *mut abi::CollSupport) |e| {
    let comm = Object::of(h, Kind::Comm)?;
    let f = own!(comm.context, coll, comm_query);
    let (_, own) = member(&wire::desc(desc, "collective")?, ranks(comm))?;
    comm.context.around(&Call::CommQuery { comm, desc: &own }, || f(comm.inner, &own, out, e))
});

wrapped!(comm_async_error(h: Handle) |e| {
    let comm = Object::of(h, Kind::Comm)?;
    let f = own!(comm.context, coll, comm_async_error);
    comm.context.around(&Call::CommAsyncError { comm }, || f(comm.inner, e))
});

wrapped!(comm_abort(h: Handle) |e| {
    let comm = Object::of(h, Kind::Comm)?;
    let f = own!(comm.context, coll, comm_abort);
    comm.context.around(&Call::CommAbort { comm }, || f(comm.inner, e))
});

unsafe extern "C" fn comm_destroy(h: Handle) {
    // SAFETY: as `wrapped`.
    unsafe {
        destroy(
            h,
            Kind::Comm,
            |comm| Call::CommDestroy { comm },
            |o| {
                if let Some(f) = o.context.inner.coll.as_ref().and_then(|t| t.comm_destroy) {
                    f(o.inner)
                }
            },
        )
    }
}

wrapped!(launch(h: Handle, s: Handle, descs: *const CollDesc, n: u32) |e| {
    let (comm, stream) = (Object::of(h, Kind::Comm)?, Object::of(s, Kind::Stream)?);
    let f = own!(comm.context, coll, launch);
    let given = wire::desc_array(descs, n, "collective")?;
    let (mut members, mut inner) = (Vec::with_capacity(given.len()), Vec::with_capacity(given.len()));
    for d in &given {
        let (m, own) = member(d, ranks(comm))?;
        members.push(m);
        inner.push(own);
    }
    let call = Call::Collective { comm, stream, members: &members };
    comm.context.around(&call, || f(comm.inner, stream.inner, inner.as_ptr(), n, e))
});

wrapped!(mem_register(h: Handle, s: Span, token: *mut u64) |e| {
    let comm = Object::of(h, Kind::Comm)?;
    let f = own!(comm.context, coll, mem_register);
    let (span, own) = operand(s)?;
    comm.context.around(&Call::Register { comm, span }, || f(comm.inner, own, token, e))
});

wrapped!(mem_unregister(h: Handle, token: u64) |e| {
    let comm = Object::of(h, Kind::Comm)?;
    let f = own!(comm.context, coll, mem_unregister);
    comm.context.around(&Call::Unregister { comm, token }, || f(comm.inner, token, e))
});
