//! One call at the boundary, in safe words: what a layer sees.

use crate::object::{Facts, Object};
use crossweave_abi as abi;
use std::time::Duration;

/// A span whose memory is known.
#[derive(Clone, Copy)]
pub struct Operand<'a> {
    /// The memory; `None` = absent.
    pub mem: Option<&'a Object>,
    /// Bytes from its start.
    pub offset: u64,
    /// Length.
    pub bytes: u64,
}

/// An op as it was prepared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OpFacts {
    /// Id in the op table.
    pub op: u32,
    /// Revision of its meaning.
    pub revision: u32,
    /// Layouts, in the table's order.
    pub operands: Vec<abi::Layout>,
    /// Its params struct.
    pub params: Vec<u8>,
    /// `MATH_*`.
    pub math_flags: u32,
}

impl OpFacts {
    /// Name in the op table.
    pub fn name(&self) -> &'static str {
        abi::op::spec(self.op).map_or("unknown op", |s| s.name)
    }
    /// The request the safe layer makes of it.
    pub fn request(&self) -> crossweave_hal::OpRequest {
        crossweave_hal::OpRequest {
            id: self.op,
            operands: self.operands.clone(),
            params: self.params.clone(),
            math_flags: self.math_flags,
        }
    }
}

/// One member of a group of collectives.
#[derive(Clone, Copy)]
pub struct Member<'a> {
    /// The descriptor; its spans name the plugin's own memories.
    pub desc: abi::CollDesc,
    /// The same as operands.
    pub send: Operand<'a>,
    /// See `send`.
    pub recv: Operand<'a>,
    /// Counts and offsets of the `v` kinds, one of each a rank.
    pub send_counts: &'a [u64],
    /// See `send_counts`.
    pub send_offsets: &'a [u64],
    /// See `send_counts`.
    pub recv_counts: &'a [u64],
    /// See `send_counts`.
    pub recv_offsets: &'a [u64],
}

/// A call. `new` is the number that what it creates will have, if it succeeds.
#[allow(missing_docs)]
pub enum Call<'a> {
    DeviceCount,
    DeviceOpen {
        index: u32,
        new: u64,
    },
    DeviceClose {
        device: &'a Object,
    },
    DeviceInfo {
        device: &'a Object,
    },
    DeviceAttr {
        device: &'a Object,
        key: &'a str,
    },
    Alloc {
        device: &'a Object,
        new: u64,
        kind: u32,
        bytes: u64,
        align: u64,
    },
    Free {
        mem: &'a Object,
    },
    Map {
        mem: &'a Object,
    },
    Import {
        device: &'a Object,
        new: u64,
        native: abi::Native,
    },
    Export {
        mem: &'a Object,
        native_type: u32,
    },
    StreamCreate {
        device: &'a Object,
        new: u64,
        priority: i32,
        flags: u32,
    },
    StreamDestroy {
        stream: &'a Object,
    },
    StreamQuery {
        stream: &'a Object,
    },
    StreamSync {
        stream: &'a Object,
        timeout: Option<Duration>,
    },
    EventCreate {
        device: &'a Object,
        new: u64,
        flags: u32,
    },
    EventDestroy {
        event: &'a Object,
    },
    EventRecord {
        event: &'a Object,
        stream: &'a Object,
    },
    EventQuery {
        event: &'a Object,
    },
    EventSync {
        event: &'a Object,
        timeout: Option<Duration>,
    },
    EventElapsed {
        from: &'a Object,
        to: &'a Object,
    },
    WaitEvent {
        stream: &'a Object,
        event: &'a Object,
    },
    HostCall {
        stream: &'a Object,
    },
    WaitValue {
        stream: &'a Object,
        word: Operand<'a>,
        at_least: u64,
    },
    WriteValue {
        stream: &'a Object,
        word: Operand<'a>,
        value: u64,
    },
    Copy {
        stream: &'a Object,
        dst: Operand<'a>,
        src: Operand<'a>,
    },
    Copy2d {
        stream: &'a Object,
        dst: Operand<'a>,
        dpitch: u64,
        src: Operand<'a>,
        spitch: u64,
        width: u64,
        height: u64,
    },
    CopyPeer {
        stream: &'a Object,
        dst: Operand<'a>,
        src: Operand<'a>,
    },
    Fill {
        stream: &'a Object,
        dst: Operand<'a>,
        pattern: u64,
        pattern_bytes: u32,
    },
    PeerAccess {
        from: &'a Object,
        to: &'a Object,
    },
    Prepare {
        device: &'a Object,
        new: u64,
        op: &'a OpFacts,
    },
    Launch {
        op: &'a Object,
        stream: &'a Object,
        operands: &'a [Operand<'a>],
        workspace: Operand<'a>,
        dynamic: &'a [u8],
    },
    Release {
        op: &'a Object,
    },
    UniqueId {
        device: &'a Object,
        cap: u64,
    },
    CommInit {
        device: &'a Object,
        new: u64,
        id: &'a [u8],
        rank: i32,
        size: i32,
        timeout_ns: i64,
        prefix: &'a str,
        name: &'a str,
    },
    CommSplit {
        comm: &'a Object,
        new: u64,
        color: i32,
        key: i32,
    },
    CommQuery {
        comm: &'a Object,
        desc: &'a abi::CollDesc,
    },
    CommAsyncError {
        comm: &'a Object,
    },
    CommAbort {
        comm: &'a Object,
    },
    CommDestroy {
        comm: &'a Object,
    },
    Collective {
        comm: &'a Object,
        stream: &'a Object,
        members: &'a [Member<'a>],
    },
    Register {
        comm: &'a Object,
        span: Operand<'a>,
    },
    Unregister {
        comm: &'a Object,
        token: u64,
    },
    Shutdown,
}

/// Name of a collective, as in the ledger.
pub fn collective_name(kind: u32) -> &'static str {
    abi::coll_name(kind).unwrap_or("unknown collective")
}

impl<'a> Call<'a> {
    /// The slot's name in the header.
    pub fn slot(&self) -> &'static str {
        match self {
            Call::DeviceCount => "device_count",
            Call::DeviceOpen { .. } => "device_open",
            Call::DeviceClose { .. } => "device_close",
            Call::DeviceInfo { .. } => "device_info",
            Call::DeviceAttr { .. } => "device_attr",
            Call::Alloc { .. } => "mem_alloc",
            Call::Free { .. } => "mem_free",
            Call::Map { .. } => "mem_map",
            Call::Import { .. } => "mem_import",
            Call::Export { .. } => "mem_export",
            Call::StreamCreate { .. } => "stream_create",
            Call::StreamDestroy { .. } => "stream_destroy",
            Call::StreamQuery { .. } => "stream_query",
            Call::StreamSync { .. } => "stream_sync",
            Call::EventCreate { .. } => "event_create",
            Call::EventDestroy { .. } => "event_destroy",
            Call::EventRecord { .. } => "event_record",
            Call::EventQuery { .. } => "event_query",
            Call::EventSync { .. } => "event_sync",
            Call::EventElapsed { .. } => "event_elapsed",
            Call::WaitEvent { .. } => "stream_wait_event",
            Call::HostCall { .. } => "stream_host_call",
            Call::WaitValue { .. } => "stream_wait_value",
            Call::WriteValue { .. } => "stream_write_value",
            Call::Copy { .. } => "copy",
            Call::Copy2d { .. } => "copy_2d",
            Call::CopyPeer { .. } => "copy_peer",
            Call::Fill { .. } => "fill",
            Call::PeerAccess { .. } => "peer_access",
            Call::Prepare { .. } => "op_prepare",
            Call::Launch { .. } => "op_launch",
            Call::Release { .. } => "op_release",
            Call::UniqueId { .. } => "unique_id",
            Call::CommInit { .. } => "comm_init",
            Call::CommSplit { .. } => "comm_split",
            Call::CommQuery { .. } => "comm_query",
            Call::CommAsyncError { .. } => "comm_async_error",
            Call::CommAbort { .. } => "comm_abort",
            Call::CommDestroy { .. } => "comm_destroy",
            Call::Collective { .. } => "launch",
            Call::Register { .. } => "mem_register",
            Call::Unregister { .. } => "mem_unregister",
            Call::Shutdown => "shutdown",
        }
    }

    /// What the call is about, where the slot alone does not say: the op, the collective.
    pub fn subject(&self) -> Option<&'static str> {
        match self {
            Call::Prepare { op, .. } => Some(op.name()),
            Call::Launch { op, .. } => match op.facts() {
                Facts::Op { op, .. } => Some(op.name()),
                _ => None,
            },
            Call::Collective { members, .. } => Some(
                members
                    .first()
                    .map_or("empty group", |m| collective_name(m.desc.kind)),
            ),
            Call::CommQuery { desc, .. } => Some(collective_name(desc.kind)),
            _ => None,
        }
    }

    /// The stream it puts work on.
    pub fn stream(&self) -> Option<&'a Object> {
        match self {
            Call::EventRecord { stream, .. }
            | Call::WaitEvent { stream, .. }
            | Call::HostCall { stream }
            | Call::WaitValue { stream, .. }
            | Call::WriteValue { stream, .. }
            | Call::Copy { stream, .. }
            | Call::Copy2d { stream, .. }
            | Call::CopyPeer { stream, .. }
            | Call::Fill { stream, .. }
            | Call::Launch { stream, .. }
            | Call::Collective { stream, .. } => Some(stream),
            _ => None,
        }
    }

    /// The first of its handles; `None` where it takes the plugin itself.
    pub fn object(&self) -> Option<&'a Object> {
        match self {
            Call::DeviceCount | Call::DeviceOpen { .. } | Call::Shutdown => None,
            Call::DeviceClose { device }
            | Call::DeviceInfo { device }
            | Call::DeviceAttr { device, .. }
            | Call::Alloc { device, .. }
            | Call::Import { device, .. }
            | Call::StreamCreate { device, .. }
            | Call::EventCreate { device, .. }
            | Call::Prepare { device, .. }
            | Call::UniqueId { device, .. }
            | Call::CommInit { device, .. } => Some(device),
            Call::Free { mem } | Call::Map { mem } | Call::Export { mem, .. } => Some(mem),
            Call::StreamDestroy { stream }
            | Call::StreamQuery { stream }
            | Call::StreamSync { stream, .. } => Some(stream),
            Call::EventDestroy { event }
            | Call::EventQuery { event }
            | Call::EventSync { event, .. } => Some(event),
            Call::EventElapsed { from, .. } | Call::PeerAccess { from, .. } => Some(from),
            Call::Release { op } => Some(op),
            Call::CommSplit { comm, .. }
            | Call::CommQuery { comm, .. }
            | Call::CommAsyncError { comm }
            | Call::CommAbort { comm }
            | Call::CommDestroy { comm }
            | Call::Register { comm, .. }
            | Call::Unregister { comm, .. } => Some(comm),
            _ => self.stream(),
        }
    }

    /// Number of the device it is made on; 0: the plugin itself.
    pub fn device(&self) -> u64 {
        match self {
            Call::DeviceOpen { new, .. } => *new,
            _ => self.object().map_or(0, Object::device),
        }
    }

    /// Bytes it moves or asks for.
    pub fn bytes(&self) -> u64 {
        match self {
            Call::Alloc { bytes, .. } => *bytes,
            Call::Import { native, .. } => native.bytes,
            Call::Copy { dst, .. } | Call::CopyPeer { dst, .. } | Call::Fill { dst, .. } => {
                dst.bytes
            }
            Call::Copy2d { width, height, .. } => width.saturating_mul(*height),
            Call::Launch { operands, .. } => operands.iter().map(|o| o.bytes).sum(),
            Call::Collective { members, .. } => {
                members.iter().map(|m| m.send.bytes.max(m.recv.bytes)).sum()
            }
            _ => 0,
        }
    }
}
