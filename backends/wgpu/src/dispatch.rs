//! Ops on the device: prepare asks the op's file and compiles, launch checks the spans against what was prepared and enqueues.

use crate::device::{Device, Pipeline};
use crate::kernel::{DYN_WORDS, Dynamic, HostFill, Pass, op_name};
use crate::memory::{Mem, Place, Region, inside};
use crate::stream::{Cmd, Stream};
use crate::{Wgpu, ops};
use crossweave_abi::op::{self, Class};
use crossweave_plugin::{Code, DType, Dyn, OpRequest, Ops, Plan, Result, Span, fail, unsupported};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// An op with everything known before launch.
pub struct Ready {
    pub(crate) name: &'static str,
    pub(crate) passes: Vec<(Pass, Arc<Pipeline>)>,
    /// Per operand: bytes its layout touches and the alignment of its elements; `None` = absent.
    operands: Vec<Option<(u64, u64)>>,
    pub(crate) workspace: u64,
    dynamic: Option<Dynamic>,
    host: Option<HostFill>,
}

impl Ready {
    /// Regions of a launch: the operands, and the workspace where there is one.
    pub(crate) fn regions(&self) -> usize {
        self.operands.len() + usize::from(self.workspace > 0)
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
        let Some(spec) = op::spec(o.id) else {
            return unsupported(format!("op {:#06x} is not in this build's table", o.id));
        };
        if o.revision != 1 {
            return unsupported(format!("{}: revision {}", spec.name, o.revision));
        }
        let facts = &d.shared.facts;
        if spec.class == Class::Fused && !facts.fused {
            return unsupported(format!("{}: fused ops are off (wgpu.fused)", spec.name));
        }
        d.shared.check()?;
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
            let elem = (dt.bits() / 8).max(1);
            if reach(l) > u128::from(MOST_ELEMENTS) {
                return unsupported(format!(
                    "{}: operand {i} has more elements than 32-bit indices reach; split it",
                    spec.name
                ));
            }
            operands.push(Some((l.extent_bytes(), elem)));
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
                    device(span, p.name, &format_args!("operand {i}"))?;
                    if span.bytes < *bytes {
                        return fail(
                            Code::Invalid,
                            format!(
                                "{}: operand {i} needs {bytes} bytes, its span has {}",
                                p.name, span.bytes
                            ),
                        );
                    }
                    if !span.offset.is_multiple_of(*align) {
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
                    let (was, is) = match given.is_some() {
                        true => ("absent", "is given"),
                        false => ("there", "is missing"),
                    };
                    return fail(
                        Code::Invalid,
                        format!(
                            "{}: operand {i} was {was} at prepare but {is} at launch",
                            p.name
                        ),
                    );
                }
            }
        }
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
            for (span, want) in operands.iter().zip(&p.operands) {
                let there = span.as_ref().filter(|_| want.is_some());
                q.regions.push(there.map(region));
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
