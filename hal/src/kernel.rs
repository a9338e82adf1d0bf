//! Prepared ops: native where the device has the op, the core's one decomposition where it has not, then the same in a wider type, then,
//! only where the caller allows it, on the host; the same type either way.

use crate::buffer::Buffer;
use crate::call::check;
use crate::device::{Device, Raw};
use crate::error::{Code, Error, Result};
use crate::graph::{Call, Verb};
use crate::hostop::HostOp;
use crate::ledger::Tag;
use crate::recipe::{Decompose, Prepared};
use crate::stream::{Operand, Stream};
use crate::wider;
use crossweave_abi as abi;
use crossweave_abi::op;
use std::sync::Arc;

/// What to prepare: the key of the kernel cache.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OpRequest {
    /// Id of the op table.
    pub id: u32,
    /// Layouts in the table's order; `Layout::ABSENT` for an absent operand.
    pub operands: Vec<abi::Layout>,
    /// The op's params struct as bytes.
    pub params: Vec<u8>,
    /// `abi::MATH_*`.
    pub math_flags: u32,
}

impl OpRequest {
    /// A request with deterministic math.
    pub fn new(id: u32, operands: &[abi::Layout], params: &[u8]) -> OpRequest {
        OpRequest {
            id,
            operands: operands.to_vec(),
            params: params.to_vec(),
            math_flags: abi::MATH_DETERMINISTIC,
        }
    }
    /// Name in the op table.
    pub fn name(&self) -> &'static str {
        op::spec(self.id).map_or("unknown op", |s| s.name)
    }
    /// Does the op write operand `i`?
    pub fn writes(&self, i: usize) -> bool {
        writes(self.id, i, &self.params)
    }
    /// Name, dtypes and shapes, for messages.
    pub fn describe(&self) -> String {
        let show = |l: &abi::Layout| match abi::DType::from_id(l.dtype) {
            Some(d) => format!("{}{:?}", d.name(), &l.shape[..l.rank as usize]),
            None => "-".into(),
        };
        format!(
            "{}({})",
            self.name(),
            self.operands
                .iter()
                .map(show)
                .collect::<Vec<_>>()
                .join(", ")
        )
    }
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes
        .get(at..at + 4)
        .map_or(0, |b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
}

/// Does op `id` write operand `i`? Read off the op table; repeated groups and programs state it in their params.
fn writes(id: u32, i: usize, params: &[u8]) -> bool {
    match id {
        op::ELEMENTWISE_PROGRAM => u32_at(params, 8) >> i & 1 == 1,
        op::ADAMW => {
            let group = if u32_at(params, 4) & op::FLAG_MASTER != 0 {
                5
            } else {
                4
            };
            i >= 2 && (i - 2) % group != 1
        }
        _ => op::spec(id)
            .and_then(|s| s.operand(i))
            .is_none_or(op::Operand::is_written),
    }
}

pub(crate) enum Route {
    Native {
        handle: Raw,
        release: Option<unsafe extern "C" fn(abi::Handle)>,
    },
    Recipe(Prepared),
    /// Cast, run in f32, cast back.
    Wider(Prepared),
    /// On the host device, through pinned memory.
    Host(HostOp),
}

pub(crate) struct KernelInner {
    pub(crate) route: Route,
    pub(crate) request: OpRequest,
    /// What operands must begin at multiples of, where the device takes no others.
    align: Option<u64>,
    /// Bit i: operand i is written (operands past 63 repeat the last group, see `writes`).
    write_bits: u64,
    pub(crate) workspace: u64,
    pub(crate) tier: u32,
    /// The plugin's estimate in nanoseconds, or 0.
    pub(crate) est_ns: u64,
}

impl Drop for KernelInner {
    fn drop(&mut self) {
        if let Route::Native {
            handle,
            release: Some(f),
        } = self.route
        {
            // SAFETY: prepared by us, released once; the device is still open (its cache or a `Kernel` held it).
            unsafe { f(handle.0) };
        }
    }
}

/// Whose op is prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Within {
    /// A caller's.
    Caller,
    /// A step of a decomposition: never on the host by itself, because the whole op goes there in one round trip.
    Recipe,
}

/// The route of an op the device refuses (docs/layers.md): decomposition, the same in a wider type, the host. `refused`: what the device said.
fn fallback(
    device: &Device,
    request: &OpRequest,
    decompose: &dyn Decompose,
    within: Within,
    refused: Error,
) -> Result<Route> {
    let mut why = refused;
    if let Some(r) = decompose.recipe(request) {
        match r.prepare(device, decompose) {
            Ok(p) => return Ok(Route::Recipe(p)),
            Err(e) if e.code == Code::Unsupported => why = e.context("its decomposition"),
            Err(e) => return Err(e.context("its decomposition")),
        }
    }
    if let Some(r) = wider::recipe(request) {
        match r.prepare(device, decompose) {
            Ok(p) => return Ok(Route::Wider(p)),
            // What the op itself lacks says more than what its wider form lacks.
            Err(e) if e.code == Code::Unsupported => {}
            Err(e) => return Err(e.context("the same in f32")),
        }
    }
    if within == Within::Recipe {
        return Err(why);
    }
    match device.host_ops() {
        Some(host) => HostOp::prepare(&host, request, decompose)
            .map(Route::Host)
            .map_err(|e| e.context("on the host")),
        None => {
            why.message += "; run.allow_host_ops computes such ops on the host";
            Err(why)
        }
    }
}

/// A prepared op. Clone shares it.
#[derive(Clone)]
pub struct Kernel {
    pub(crate) inner: Arc<KernelInner>,
    device: Device,
}

const STACK: usize = 24;

impl Kernel {
    pub(crate) fn wrap(inner: Arc<KernelInner>, device: &Device) -> Kernel {
        Kernel {
            inner,
            device: device.clone(),
        }
    }

    pub(crate) fn prepare(
        device: &Device,
        request: &OpRequest,
        decompose: &dyn Decompose,
        within: Within,
    ) -> Result<Arc<KernelInner>> {
        let mut write_bits = 0u64;
        for i in 0..request.operands.len().min(64) {
            write_bits |= (request.writes(i) as u64) << i;
        }
        let at = || format!("{} on {}", request.describe(), device.plugin().name());
        let (route, plan) = match native(device, request) {
            Ok((handle, release, plan)) => (Route::Native { handle, release }, Some(plan)),
            Err(e) if e.code == Code::Unsupported => {
                let route = fallback(device, request, decompose, within, e);
                (route.map_err(|e| e.context(at()))?, None)
            }
            Err(e) => return Err(e.context(at())),
        };
        let align = match &route {
            Route::Native { .. } => crate::aligned::wanted(device)?,
            _ => None,
        };
        Ok(Arc::new(KernelInner {
            route,
            align,
            request: request.clone(),
            write_bits,
            workspace: plan.map_or(0, |p| p.workspace_bytes),
            tier: plan.map_or(0, |p| p.tier),
            est_ns: plan.map_or(0, |p| p.est_ns),
        }))
    }

    /// The device it was prepared on.
    pub fn device(&self) -> &Device {
        &self.device
    }
    /// What was prepared.
    pub fn request(&self) -> &OpRequest {
        &self.inner.request
    }
    /// Did the device take the op as it is?
    pub fn is_native(&self) -> bool {
        matches!(self.inner.route, Route::Native { .. })
    }
    pub(crate) fn launch(
        &self,
        stream: &Stream,
        operands: &[Operand<'_>],
        dynamic: &[u8],
    ) -> Result<()> {
        let k = &*self.inner;
        if operands.len() != k.request.operands.len() {
            return Err(Error::new(
                Code::Invalid,
                "launch",
                format!("{} operands for {}", operands.len(), k.request.describe()),
            ));
        }
        match &k.route {
            Route::Recipe(p) | Route::Wider(p) => p.launch(stream, operands, dynamic),
            Route::Host(h) => h.launch(stream, &k.request, operands, dynamic),
            Route::Native { .. } => {
                if let Some(align) = k.align.filter(|a| crate::aligned::astray(operands, *a)) {
                    return crate::aligned::launch(self, stream, operands, dynamic, align);
                }
                // The workspace comes last.
                let mut small = [abi::Span::NULL; STACK];
                let mut large = vec![];
                let spans: &mut [abi::Span] = if operands.len() < STACK {
                    &mut small[..operands.len() + 1]
                } else {
                    large.resize(operands.len() + 1, abi::Span::NULL);
                    &mut large
                };
                for (s, o) in spans.iter_mut().zip(operands) {
                    if let Some(r) = o {
                        *s = r.buffer.span(r.offset, r.bytes)?;
                    }
                }
                let ws = if k.workspace > 0 {
                    Some(stream.workspace(k.workspace)?)
                } else {
                    None
                };
                if let (Some(w), Some(last)) = (&ws, spans.last_mut()) {
                    *last = w.span(0, k.workspace)?;
                }
                let uses = operands
                    .iter()
                    .enumerate()
                    .filter_map(|(i, o)| {
                        o.as_ref().map(|r| {
                            (
                                r.buffer,
                                if i < 64 {
                                    k.write_bits >> i & 1 == 1
                                } else {
                                    k.request.writes(i)
                                },
                            )
                        })
                    })
                    .chain(ws.iter().map(|w| (&**w, true)));
                let call = Call {
                    verb: Verb::Op(&self.inner),
                    spans,
                    dynamic,
                };
                stream.submit_call(uses, &call)
            }
        }
    }
}

impl KernelInner {
    /// Gives a launch of a native op to the plugin.
    pub(crate) fn enqueue(
        &self,
        launch: LaunchFn,
        stream: abi::Handle,
        operands: &[abi::Span],
        workspace: abi::Span,
        dynamic: &[u8],
    ) -> Result<()> {
        let Route::Native { handle, .. } = &self.route else {
            return Err(Error::new(Code::Internal, "launch", "no native op"));
        };
        // SAFETY: spans are inside live buffers whose tracks order every other use; `dynamic` lives for the call.
        check("op_launch", |e| unsafe {
            launch(
                handle.0,
                stream,
                operands.as_ptr(),
                operands.len() as u32,
                workspace,
                dynamic.as_ptr().cast(),
                dynamic.len() as u64,
                e,
            )
        })
        .map_err(|e| e.context(self.request.describe()))
    }
}

pub(crate) type LaunchFn = unsafe extern "C" fn(
    abi::Handle,
    abi::Handle,
    *const abi::Span,
    u32,
    abi::Span,
    *const std::ffi::c_void,
    u64,
    *mut abi::Error,
) -> abi::Status;

type Native = (Raw, Option<unsafe extern "C" fn(abi::Handle)>, abi::OpPlan);

fn native(device: &Device, r: &OpRequest) -> Result<Native> {
    let Some((prepare, ops)) = device
        .0
        .plugin
        .0
        .ops
        .as_ref()
        .and_then(|o| o.op_prepare.map(|p| (p, o)))
    else {
        return Err(Error::new(
            Code::Unsupported,
            "op_prepare",
            "the plugin provides no ops",
        ));
    };
    let desc = abi::OpDesc {
        size: size_of::<abi::OpDesc>() as u32,
        op: r.id,
        op_revision: op::revision_of(r.id, &r.operands, &r.params),
        n_operands: r.operands.len() as u32,
        operands: r.operands.as_ptr(),
        params: r.params.as_ptr().cast(),
        params_bytes: r.params.len() as u64,
        math_flags: r.math_flags,
        reserved: 0,
    };
    let mut handle = std::ptr::null_mut();
    // SAFETY: a zeroed plan is valid; its size limits how much the plugin may write.
    let mut plan: abi::OpPlan = unsafe { std::mem::zeroed() };
    plan.size = size_of::<abi::OpPlan>() as u32;
    // SAFETY: every pointer in the descriptor lives for the call.
    check("op_prepare", |e| unsafe {
        prepare(device.0.handle.0, &desc, &mut handle, &mut plan, e)
    })?;
    Ok((Raw(handle), ops.op_release, plan))
}

impl Stream {
    /// The stream's scratch (one workspace per lane), grown to `bytes`.
    pub(crate) fn workspace(&self, bytes: u64) -> Result<std::cell::Ref<'_, Buffer>> {
        if self
            .scratch
            .borrow()
            .as_ref()
            .is_none_or(|b| b.bytes() < bytes)
        {
            // Old scratch goes first: two generations need not be live together. It lives as long as the stream, so it has memory of
            // its own: in the pool it would stand for ever between blocks that could otherwise join.
            self.scratch.replace(None);
            let grown = self.device.alloc_state(bytes, Tag::Workspace)?;
            self.scratch.replace(Some(grown));
        }
        std::cell::Ref::filter_map(self.scratch.borrow(), Option::as_ref)
            .map_err(|_| Error::new(Code::Internal, "workspace", "scratch vanished"))
    }
}
