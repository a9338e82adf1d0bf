//! Ops on the device: prepare asks the op's file and compiles, launch checks the spans against what was prepared and enqueues.

use crate::device::{Device, Pipeline};
use crate::kernel::{DYN_WORDS, Dynamic, HostFill, Pass, op_name};
use crate::memory::{Mem, Place, Region, inside};
use crate::stream::{Cmd, Stream};
use crate::{Wgpu, ops};
use crossweave_abi::Layout;
use crossweave_abi::op::Class;
use crossweave_plugin::op::{Operands, spec};
use crossweave_plugin::{Code, Dyn, OpRequest, Ops, Plan, Result, Span, fail, unsupported};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// An op with everything known before launch.
pub struct Ready {
    pub(crate) name: &'static str,
    pub(crate) passes: Vec<(Pass, Arc<Pipeline>)>,
    operands: Operands,
    pub(crate) workspace: u64,
    dynamic: Option<Dynamic>,
    host: Option<HostFill>,
}

impl Ready {
    /// Regions of a launch: the operands, and the workspace where there is one.
    pub(crate) fn regions(&self) -> usize {
        self.operands.count() + usize::from(self.workspace > 0)
    }
}

/// The ops of the wgpu backend.
pub enum WgpuOps {}

/// Elements that indices of 32 bits reach, with room for a workgroup beyond.
const MOST_ELEMENTS: u64 = u32::MAX as u64 - 65_536;

impl Ops<Wgpu> for WgpuOps {
    type Prepared = Arc<Ready>;

    fn prepare(b: &Wgpu, d: &Device, o: &OpRequest<'_>) -> Result<(Arc<Ready>, Plan)> {
        b.fault("wgpu.op_prepare", Some(d))?;
        let spec = spec(o)?;
        let facts = &d.shared.facts;
        if spec.class == Class::Fused && !facts.fused {
            return unsupported(format!("{}: fused ops are off (wgpu.fused)", spec.name));
        }
        d.shared.check()?;
        let operands = Operands::read(o)?;
        let far = |l: &&Layout| l.present() && reach(l) > u128::from(MOST_ELEMENTS);
        if let Some(i) = o.operands.iter().position(|l| far(&l)) {
            return unsupported(format!(
                "{}: operand {i} has more elements than 32-bit indices reach; split it",
                spec.name
            ));
        }
        let made = ops::prepare(o, facts)?;
        let mut passes = Vec::with_capacity(made.passes.len());
        for pass in made.passes {
            let pipeline = d.shared.pipeline(&pass)?;
            passes.push((pass, pipeline));
        }
        let plan = Plan {
            tier: made.tier.max(1),
            workspace_bytes: made.workspace_bytes,
            est_ns: 0,
            error_class: match made.error_class {
                0 => spec.error,
                c => c,
            },
        };
        let ready = Ready {
            name: op_name(o),
            passes,
            operands,
            workspace: made.workspace_bytes,
            dynamic: made.dynamic,
            host: made.host,
        };
        Ok((Arc::new(ready), plan))
    }

    fn launch(
        b: &Wgpu,
        p: &Arc<Ready>,
        s: &Stream,
        operands: &[Option<Span<'_, Mem>>],
        workspace: Option<Span<'_, Mem>>,
        dynamic: Dyn<'_>,
    ) -> Result<()> {
        b.fault("wgpu.op_launch", None)?;
        s.sticky()?;
        p.operands.check(operands, |i, span| {
            device(span, p.name, &format_args!("operand {i}"))?;
            Ok(span.offset)
        })?;
        if p.workspace > 0 {
            match &workspace {
                Some(w) if w.bytes >= p.workspace => {
                    device(w, p.name, &"the workspace")?;
                    if !w.offset.is_multiple_of(64) {
                        return fail(
                            Code::Invalid,
                            format!("{}: the workspace must be 64-byte aligned", p.name),
                        );
                    }
                }
                given => {
                    return fail(
                        Code::Invalid,
                        format!(
                            "{}: needs {} bytes of workspace, got {}",
                            p.name,
                            p.workspace,
                            given.as_ref().map_or(0, |w| w.bytes)
                        ),
                    );
                }
            }
        }
        let words = match &p.dynamic {
            Some(f) => f(dynamic.0)?,
            None => [0; DYN_WORDS],
        };
        s.device.counts.launches.fetch_add(1, Relaxed);
        let region = Region::unchecked;
        if p.host.is_some() {
            let Some(dst) = operands.first().and_then(|o| o.as_ref()).map(region) else {
                return Ok(());
            };
            let (op, bytes) = (p.clone(), dynamic.0.to_vec());
            return s.push(|_| Cmd::Upload {
                dst,
                make: Box::new(move || match &op.host {
                    Some(f) => f(&bytes),
                    None => Ok(vec![]),
                }),
            });
        }
        s.push(|q| {
            let first = q.regions.len() as u32;
            for (span, there) in operands.iter().zip(p.operands.present()) {
                let span = span.as_ref().filter(|_| there);
                q.regions.push(span.map(region));
            }
            if p.workspace > 0 {
                q.regions.push(workspace.as_ref().map(region));
            }
            let at = q.words.len() as u32;
            q.words.push(words);
            Cmd::Launch {
                op: p.clone(),
                first,
                words: at,
            }
        })
    }
}

/// Elements from the first to one past the last.
fn reach(l: &crossweave_abi::Layout) -> u128 {
    let dims = 0..l.rank as usize;
    let last: u128 = dims
        .clone()
        .map(|i| (l.shape[i].max(1) - 1) as u128 * l.stride[i] as u128)
        .sum();
    // Broadcast dims count too: kernels number the elements of the shape.
    let total: u128 = dims
        .map(|i| l.shape[i] as u128)
        .fold(1, |a, b| a.saturating_mul(b));
    last.max(total)
}

fn device(span: &Span<'_, Mem>, op: &str, what: &dyn std::fmt::Display) -> Result<()> {
    match span.mem.place {
        Place::Device(_) => inside(span, &format_args!("{op}: {what}")),
        Place::Host(_) => fail(
            Code::Invalid,
            format!(
                "{op}: {what} is in pinned host memory; kernels of this device need device memory"
            ),
        ),
    }
}
