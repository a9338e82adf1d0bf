//! Ops on the device: prepare asks the op's file once, launch checks the spans against what was prepared and enqueues.

use crate::CpuBackend;
use crate::device::Device;
use crate::kernel::Kernel;
use crate::memory::{ALIGN, Mem, address};
use crate::stream::Stream;
use crossweave_abi::op::Class;
use crossweave_plugin::op::{Operands, spec};
use crossweave_plugin::{Code, Dyn, OpRequest, Ops, Plan, Result, Span, fail, unsupported};
use std::sync::Arc;

/// An op with everything known before launch.
pub struct Prepared {
    pub(crate) kernel: Box<dyn Kernel>,
    pub(crate) name: &'static str,
    /// Name and shapes, when the device keeps a profile.
    pub(crate) label: Option<String>,
    operands: Operands,
    workspace: u64,
}

/// The ops of the CPU backend.
pub enum CpuOps {}

impl Ops<CpuBackend> for CpuOps {
    type Prepared = Arc<Prepared>;

    fn prepare(_: &CpuBackend, d: &Device, o: &OpRequest<'_>) -> Result<(Arc<Prepared>, Plan)> {
        let spec = spec(o)?;
        if spec.class == Class::Fused && !d.fused {
            return unsupported(format!("{}: fused ops are off (cpu.fused)", spec.name));
        }
        let operands = Operands::read(o)?;
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
        p.operands
            .check(operands, |_, span| Ok(address(span, p.name)? as u64))?;
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
        let addresses = operands
            .iter()
            .zip(p.operands.present())
            .map(|(span, there)| {
                match (span, there) {
                    // SAFETY: the span was checked above.
                    (Some(s), true) => address(s, p.name).unwrap_or(std::ptr::null_mut()),
                    _ => std::ptr::null_mut(),
                }
            });
        p.kernel.check(dynamic.0)?;
        s.kernel(p, addresses, scratch, dynamic.0)
    }
}
