//! Ops on the device: prepare asks the op's file once, launch checks the spans against what was prepared and enqueues.

use crate::CpuBackend;
use crate::device::Device;
use crate::kernel::Kernel;
use crate::memory::{ALIGN, Mem, address};
use crate::stream::Stream;
use crossweave_abi::op::{self, Class};
use crossweave_plugin::{Code, DType, Dyn, OpRequest, Ops, Plan, Result, Span, fail, unsupported};
use std::sync::Arc;

/// An op with everything known before launch.
pub struct Prepared {
    pub(crate) kernel: Box<dyn Kernel>,
    pub(crate) name: &'static str,
    /// Name and shapes, when the device keeps a profile.
    pub(crate) label: Option<String>,
    /// Per operand: bytes its layout touches and the alignment of its elements; `None` = absent.
    operands: Vec<Option<(u64, u64)>>,
    workspace: u64,
}

/// The ops of the CPU backend.
pub enum CpuOps {}

impl Ops<CpuBackend> for CpuOps {
    type Prepared = Arc<Prepared>;

    fn prepare(_: &CpuBackend, d: &Device, o: &OpRequest<'_>) -> Result<(Arc<Prepared>, Plan)> {
        let Some(spec) = op::spec(o.id) else {
            return unsupported(format!("op {:#06x} is not in this build's table", o.id));
        };
        if o.revision != 1 {
            return unsupported(format!("{}: revision {}", spec.name, o.revision));
        }
        if spec.class == Class::Fused && !d.fused {
            return unsupported(format!("{}: fused ops are off (cpu.fused)", spec.name));
        }
        let mut operands = Vec::with_capacity(o.operands.len());
        for (i, l) in o.operands.iter().enumerate() {
            if !l.present() {
                operands.push(None);
                continue;
            }
            let Some(dt) = DType::from_id(l.dtype) else {
                return unsupported(format!("{}: operand {i} dtype {:#x}", spec.name, l.dtype));
            };
            if l.rank > 8 || l.shape[..l.rank as usize].iter().any(|d| *d < 0) {
                return fail(
                    Code::Invalid,
                    format!(
                        "{}: operand {i} has rank {} shape {:?}",
                        spec.name, l.rank, l.shape
                    ),
                );
            }
            if l.stride[..l.rank as usize].iter().any(|s| *s < 0) {
                return unsupported(format!("{}: operand {i} has a negative stride", spec.name));
            }
            operands.push(Some((l.extent_bytes(), (dt.bits() / 8).max(1))));
        }
        let (kernel, plan) = crate::ops::prepare(o, d.team.threads(), d.isas)?;
        let prepared = Prepared {
            kernel,
            name: spec.name,
            label: d
                .profile
                .as_ref()
                .map(|_| crate::profile::label(spec.name, o)),
            operands,
            workspace: plan.workspace_bytes,
        };
        Ok((Arc::new(prepared), plan))
    }

    fn launch(
        _: &CpuBackend,
        p: &Arc<Prepared>,
        s: &Stream,
        operands: &[Option<Span<'_, Mem>>],
        workspace: Option<Span<'_, Mem>>,
        dynamic: Dyn<'_>,
    ) -> Result<()> {
        if operands.len() != p.operands.len() {
            return fail(
                Code::Invalid,
                format!(
                    "{}: prepared with {} operands, launched with {}",
                    p.name,
                    p.operands.len(),
                    operands.len()
                ),
            );
        }
        for (i, (span, want)) in operands.iter().zip(&p.operands).enumerate() {
            match (span, want) {
                (None, None) => {}
                (Some(span), Some((bytes, align))) => {
                    let at = address(span, p.name)?;
                    if span.bytes < *bytes {
                        return fail(
                            Code::Invalid,
                            format!(
                                "{}: operand {i} needs {bytes} bytes, its span has {}",
                                p.name, span.bytes
                            ),
                        );
                    }
                    if !(at as u64).is_multiple_of(*align) {
                        return fail(
                            Code::Invalid,
                            format!(
                                "{}: operand {i} starts at byte {}, elements need multiples of {align}",
                                p.name, span.offset
                            ),
                        );
                    }
                }
                // An absent optional operand may still be passed as an empty span, and an empty tensor as none.
                (Some(span), None) if span.bytes == 0 => {}
                (None, Some((0, _))) => {}
                (given, _) => {
                    return fail(
                        Code::Invalid,
                        format!(
                            "{}: operand {i} was {} at prepare but {} at launch",
                            p.name,
                            if given.is_some() { "absent" } else { "there" },
                            if given.is_some() {
                                "is given"
                            } else {
                                "is missing"
                            },
                        ),
                    );
                }
            }
        }
        let scratch = match (p.workspace, workspace) {
            (0, _) => std::ptr::null_mut(),
            (need, Some(w)) if w.bytes >= need => {
                let at = address(&w, p.name)?;
                if !(at as u64).is_multiple_of(ALIGN) {
                    return fail(
                        Code::Invalid,
                        format!("{}: the workspace must be {ALIGN}-byte aligned", p.name),
                    );
                }
                at
            }
            (need, given) => {
                return fail(
                    Code::Invalid,
                    format!(
                        "{}: needs {need} bytes of workspace, got {}",
                        p.name,
                        given.map_or(0, |w| w.bytes)
                    ),
                );
            }
        };
        let addresses = operands.iter().zip(&p.operands).map(|(span, want)| {
            match (span, want) {
                // SAFETY: the span was checked above.
                (Some(s), Some(_)) => address(s, p.name).unwrap_or(std::ptr::null_mut()),
                _ => std::ptr::null_mut(),
            }
        });
        p.kernel.check(dynamic.0)?;
        s.kernel(p, addresses, scratch, dynamic.0)
    }
}
