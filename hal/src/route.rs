//! The route of an op on a device (native, decomposed, wider, host), what a call of it costs, and what the device would need
//! for a better route.

use crate::kernel::{Kernel, KernelInner, Route};
use crossweave_abi::op;
use serde::Serialize;
use std::collections::BTreeMap;

/// The ways, best first: the order in which they are tried. A decomposition is named by what its launches are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RouteKind {
    /// The device takes the op as it is.
    Native,
    /// Nothing but `elementwise_program` and fills.
    ElementwiseProgram,
    /// Primitives and programs or other fused ops.
    Mixed,
    /// Nothing but primitives and fills.
    Primitives,
    /// Somewhere 16-bit operands are cast to f32, the op runs, and results are cast back.
    Wider,
    /// Through pinned memory on the host.
    Host,
}

impl RouteKind {
    /// All of them, best first.
    pub const ALL: [RouteKind; 6] = [
        RouteKind::Native,
        RouteKind::ElementwiseProgram,
        RouteKind::Mixed,
        RouteKind::Primitives,
        RouteKind::Wider,
        RouteKind::Host,
    ];
    /// Name in tables and lock files.
    pub const fn name(self) -> &'static str {
        match self {
            RouteKind::Native => "native",
            RouteKind::ElementwiseProgram => "elementwise_program",
            RouteKind::Mixed => "mixed",
            RouteKind::Primitives => "primitives",
            RouteKind::Wider => "wider",
            RouteKind::Host => "host",
        }
    }
    /// The route of a name.
    pub fn by_name(name: &str) -> Option<RouteKind> {
        RouteKind::ALL.into_iter().find(|r| r.name() == name)
    }
}

/// Launches of one op in a call of another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// Name in the op table, or `fill`.
    pub op: &'static str,
    /// Launches a call.
    pub launches: u64,
}

/// What [`Kernel::explain`] says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explained {
    /// The way.
    pub route: RouteKind,
    /// Launches on the device's streams a call: ops, fills, and the copies of a host round trip.
    pub launches: u64,
    /// Least tier of its native launches (0 reference, 1 native, 2 tuned); `None` where there are none.
    pub tier: Option<u32>,
    /// The plugin's estimate of a call in nanoseconds, where it gives one for every launch.
    pub est_ns: Option<u64>,
    /// Bytes of temporaries and of the largest workspace.
    pub workspace: u64,
    /// What a call launches, by op; of a native op itself.
    pub parts: Vec<Part>,
    /// Ops the device refused, with the types it refused them in: any of them natively makes the route better.
    pub lacking: Vec<String>,
}

#[derive(Default)]
struct Sum {
    parts: BTreeMap<&'static str, u64>,
    native: u64,
    programs: u64,
    fused: u64,
    wider: bool,
    host: bool,
    tier: Option<u32>,
    est: Option<u64>,
    temps: u64,
    workspace: u64,
    lacking: Vec<String>,
}

impl Sum {
    fn launches(&mut self, op: &'static str, n: u64) {
        *self.parts.entry(op).or_default() += n;
    }

    fn add(&mut self, k: &KernelInner) {
        let name = k.request.name();
        match &k.route {
            Route::Native { .. } => {
                self.launches(name, 1);
                self.native += 1;
                match op::spec(k.request.id).map(|s| s.class) {
                    _ if k.request.id == op::ELEMENTWISE_PROGRAM => self.programs += 1,
                    Some(op::Class::Primitive) => {}
                    _ => self.fused += 1,
                }
                self.tier = Some(self.tier.map_or(k.tier, |t| t.min(k.tier)));
                self.est = self.est.filter(|_| k.est_ns > 0).map(|e| e + k.est_ns);
                self.workspace = self.workspace.max(k.workspace);
                return;
            }
            Route::Recipe(p) | Route::Wider(p) => {
                self.wider |= matches!(k.route, Route::Wider(_));
                self.temps += p.temps();
                for part in p.parts() {
                    match part {
                        Some(k) => self.add(k),
                        None => self.launches("fill", 1),
                    }
                }
            }
            Route::Host(h) => {
                self.host = true;
                let (down, up) = h.copies(&k.request);
                self.launches("copy to the host", down);
                self.launches("copy from the host", up);
                // What the host takes is in no estimate of the device's.
                self.est = None;
            }
        }
        let types: Vec<&str> = k
            .request
            .operands
            .iter()
            .filter_map(|l| crossweave_abi::DType::from_id(l.dtype))
            .map(|d| d.name())
            .filter(|d| !matches!(*d, "u8" | "u32" | "i32" | "i64"))
            .collect();
        // The type that distinguishes one claim from another: the narrowest of the floats.
        let narrow = ["bf16", "f16", "f32"]
            .into_iter()
            .find(|t| types.contains(t));
        let lacks = format!("{name} {}", narrow.unwrap_or(""))
            .trim_end()
            .to_string();
        if !self.lacking.contains(&lacks) {
            self.lacking.push(lacks);
        }
    }
}

impl Kernel {
    /// The route of this op on its device, and what a call of it costs.
    pub fn explain(&self) -> Explained {
        let mut s = Sum {
            est: Some(0),
            ..Sum::default()
        };
        s.add(&self.inner);
        let route = match &self.inner.route {
            Route::Native { .. } => RouteKind::Native,
            _ if s.host => RouteKind::Host,
            _ if s.wider => RouteKind::Wider,
            _ if s.programs == s.native && s.native > 0 => RouteKind::ElementwiseProgram,
            _ if s.programs + s.fused == 0 => RouteKind::Primitives,
            _ => RouteKind::Mixed,
        };
        // The op itself first: natively it would need none of the others. Then what its parts lack.
        s.lacking.reverse();
        Explained {
            route,
            launches: s.parts.values().sum(),
            tier: s.tier,
            est_ns: s.est.filter(|_| s.native > 0),
            workspace: s.temps + s.workspace,
            parts: s
                .parts
                .into_iter()
                .map(|(op, launches)| Part { op, launches })
                .collect(),
            lacking: s.lacking,
        }
    }
}
