//! Chooses the route of a collective (native or composed, and how): once for each kind, dtype, reduction and size class,
//! then remembered.
//!
//! Every rank must choose the same route, or ranks would wait for messages that are never sent. The choice is a function of
//! the collective's arguments and of the plugin's answers to them, which are the same on all ranks of one communicator;
//! counts that differ from rank to rank (the `v` forms) take no part in it. Callers must therefore agree on what they have
//! to agree on anyway: kind, length, dtype, reduction, and whether the call is in place.

use crossweave_hal::{Code, Collective, Communicator, DType, Error, Reduce, Region, Result, abi};

/// Reduce-scatters up to this many bytes of full vector go through one all_reduce when the plugin has that: one latency, not two.
const SMALL: u64 = 4096;

/// How a collective is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// By the plugin.
    Native,
    /// SUM by the plugin, then divided by the ranks.
    SumThenDivide,
    /// Scaled, then SUM by the plugin.
    ScaleThenSum,
    /// Pieces to their owners, folded there in rank order, results gathered (all_reduce) or kept (reduce_scatter).
    Fold,
    /// reduce_scatter: all_reduce in scratch, own slice kept.
    AllReduceSlice,
    /// reduce: all_reduce, kept by the root only.
    AllReduceDrop,
    /// One group of sends and receives.
    PointToPoint,
    /// broadcast: doubling rounds of sends.
    Tree,
    /// barrier: all_reduce of one element.
    OneElement,
}

impl Route {
    /// In words, for `explain`.
    pub fn describe(self) -> &'static str {
        match self {
            Route::Native => "native",
            Route::SumThenDivide => "sum + divide",
            Route::ScaleThenSum => "scale + sum",
            Route::Fold => "pieces to owners + fold in rank order + gather",
            Route::AllReduceSlice => "all_reduce + slice",
            Route::AllReduceDrop => "all_reduce, dropped off root",
            Route::PointToPoint => "grouped send/recv",
            Route::Tree => "tree of sends",
            Route::OneElement => "all_reduce of one element",
        }
    }
}

/// One decided route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteLine {
    /// Kind, as in the ledger.
    pub kind: &'static str,
    /// Element type.
    pub dtype: &'static str,
    /// Reduction, or empty.
    pub reduce: &'static str,
    /// Vectors of fewer bytes than this (and at least half of it) take the route.
    pub below_bytes: u64,
    /// The route; the reason when there is none.
    pub route: std::result::Result<Route, String>,
}

impl std::fmt::Display for RouteLine {
    /// `reduce_scatter bf16 sum  < 1048576 B  native`
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = [self.kind, self.dtype, self.reduce].join(" ");
        let way = match &self.route {
            Ok(r) => r.describe(),
            Err(why) => why,
        };
        write!(
            f,
            "{:<28} < {:>12} B  {way}",
            what.trim_end(),
            self.below_bytes
        )
    }
}

/// What a route is remembered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    pub kind: &'static str,
    pub dtype: DType,
    pub reduce: u32,
    /// Bits of the full vector's length in bytes.
    pub class: u32,
    pub in_place: bool,
}

impl Key {
    pub fn of(c: &Collective<'_>) -> Key {
        let (dtype, bytes, in_place) = match c {
            Collective::AllReduce { buf, dtype, .. }
            | Collective::Broadcast { buf, dtype, .. }
            | Collective::Reduce { buf, dtype, .. } => (*dtype, buf.bytes, true),
            Collective::ReduceScatter {
                send, recv, dtype, ..
            }
            | Collective::AllToAll { send, recv, dtype } => {
                (*dtype, send.bytes, overlap(send, recv))
            }
            Collective::AllGather { send, recv, dtype } => {
                (*dtype, recv.bytes, overlap(send, recv))
            }
            // Lengths differ from rank to rank here (some are nothing at all), so they must not choose.
            Collective::AllToAllV {
                send, recv, dtype, ..
            }
            | Collective::AllGatherV {
                send, recv, dtype, ..
            } => (*dtype, 0, std::ptr::eq(send.buffer, recv.buffer)),
            Collective::Send { dtype, .. } | Collective::Recv { dtype, .. } => (*dtype, 0, false),
            Collective::Barrier => (DType::U8, 0, false),
        };
        Key {
            kind: c.name(),
            dtype,
            reduce: reduction(c).map_or(0, id),
            class: u64::BITS - bytes.leading_zeros(),
            in_place,
        }
    }

    /// First length in bytes beyond the class.
    pub fn below(&self) -> u64 {
        1u64.checked_shl(self.class).unwrap_or(u64::MAX)
    }

    pub fn line(&self, route: &Result<Route>) -> RouteLine {
        RouteLine {
            kind: self.kind,
            dtype: self.dtype.name(),
            reduce: abi::red_name(self.reduce).unwrap_or(""),
            below_bytes: self.below(),
            route: match route {
                Ok(r) => Ok(*r),
                Err(e) => Err(e.to_string()),
            },
        }
    }
}

fn id(r: Reduce) -> u32 {
    match r {
        Reduce::Sum => abi::RED_SUM,
        Reduce::Prod => abi::RED_PROD,
        Reduce::Min => abi::RED_MIN,
        Reduce::Max => abi::RED_MAX,
        Reduce::Avg => abi::RED_AVG,
        Reduce::PremulSum(_) => abi::RED_PREMUL_SUM,
    }
}

/// The reduction of a collective that has one.
pub(crate) fn reduction(c: &Collective<'_>) -> Option<Reduce> {
    match c {
        Collective::AllReduce { op, .. }
        | Collective::ReduceScatter { op, .. }
        | Collective::Reduce { op, .. } => Some(*op),
        _ => None,
    }
}

/// The same collective with another reduction.
pub(crate) fn with_op<'a>(c: &Collective<'a>, with: Reduce) -> Collective<'a> {
    let mut c = *c;
    match &mut c {
        Collective::AllReduce { op, .. }
        | Collective::ReduceScatter { op, .. }
        | Collective::Reduce { op, .. } => *op = with,
        _ => {}
    }
    c
}

/// Do two regions share bytes?
pub(crate) fn overlap(a: &Region<'_>, b: &Region<'_>) -> bool {
    std::ptr::eq(a.buffer, b.buffer)
        && a.offset < b.offset + b.bytes
        && b.offset < a.offset + a.bytes
}

/// Does the plugin take every vector of the class? A limit inside the class counts as no, so that the route is the class's.
fn native(comm: &Communicator, c: &Collective<'_>) -> Result<bool> {
    let below = Key::of(c).below();
    Ok(comm
        .query(c)?
        .is_some_and(|s| s.max_bytes == 0 || s.max_bytes >= below - 1))
}

/// A `v` collective as every rank of it would ask: in place or not, whatever this rank's own pieces are.
fn alike<'a>(c: &Collective<'a>) -> Collective<'a> {
    let mut c = *c;
    match &mut c {
        Collective::AllToAllV { send, recv, .. } | Collective::AllGatherV { send, recv, .. }
            if std::ptr::eq(send.buffer, recv.buffer) =>
        {
            *send = *recv;
        }
        _ => {}
    }
    c
}

/// Chooses. Errors are refusals: nothing has happened. Between islands the bridge is used for messages, so that what stays inside an island
/// never goes there, and for sums that devices need not have.
pub(crate) fn decide(comm: &Communicator, c: &Collective<'_>, islands: bool) -> Result<Route> {
    let message = matches!(c, Collective::Send { .. } | Collective::Recv { .. });
    // Devices add what they train in; 64-bit figures and bytes are few, and the host adds them.
    let added = [DType::F32, DType::Bf16, DType::F16, DType::I32];
    let by_host = reduction(c).is_some() && !added.contains(&Key::of(c).dtype);
    if message || ((by_host || !islands) && native(comm, &alike(c))?) {
        return Ok(Route::Native);
    }
    let native = |comm: &Communicator, c: &Collective<'_>| match islands {
        true => Ok(false),
        false => native(comm, c),
    };
    let by_sum = |comm, c, dtype, op| match islands {
        true => Ok(None),
        false => by_sum(comm, c, dtype, op),
    };
    Ok(match c {
        Collective::Send { .. } | Collective::Recv { .. } => Route::Native,
        Collective::AllGather { .. }
        | Collective::AllGatherV { .. }
        | Collective::AllToAll { .. }
        | Collective::AllToAllV { .. } => Route::PointToPoint,
        Collective::Broadcast { .. } => Route::Tree,
        Collective::Barrier => Route::OneElement,
        Collective::AllReduce { dtype, op, .. } => {
            reducible(comm, c, *dtype, *op)?;
            by_sum(comm, c, *dtype, *op)?.unwrap_or(Route::Fold)
        }
        Collective::Reduce { dtype, op, .. } => {
            reducible(comm, c, *dtype, *op)?;
            by_sum(comm, c, *dtype, *op)?.unwrap_or(Route::AllReduceDrop)
        }
        Collective::ReduceScatter {
            send, dtype, op, ..
        } => {
            reducible(comm, c, *dtype, *op)?;
            let all = Collective::AllReduce {
                buf: *send,
                dtype: *dtype,
                op: *op,
            };
            match by_sum(comm, c, *dtype, *op)? {
                Some(r) => r,
                None if Key::of(c).below() <= SMALL && native(comm, &all)? => Route::AllReduceSlice,
                None => Route::Fold,
            }
        }
    })
}

/// AVG and PREMUL_SUM of wide floats ride on the plugin's SUM. 16-bit floats do not: their sum would be rounded (and in f16 may
/// overflow) before the division.
fn by_sum(
    comm: &Communicator,
    c: &Collective<'_>,
    dtype: DType,
    op: Reduce,
) -> Result<Option<Route>> {
    let route = match op {
        Reduce::Avg => Route::SumThenDivide,
        Reduce::PremulSum(_) => Route::ScaleThenSum,
        _ => return Ok(None),
    };
    let wide = matches!(dtype, DType::F32 | DType::F64);
    Ok((wide && native(comm, &with_op(c, Reduce::Sum))?).then_some(route))
}

fn reducible(comm: &Communicator, c: &Collective<'_>, dtype: DType, op: Reduce) -> Result<()> {
    let refuse = |why: &str| {
        Err(Error::new(
            Code::Unsupported,
            "launch",
            format!("{} {} on {}: {why}", c.name(), dtype.name(), comm.name()),
        ))
    };
    let wants_float = matches!(op, Reduce::Avg | Reduce::PremulSum(_));
    if wants_float && !dtype.is_float() {
        return refuse("the average or scaled sum of integers would be cut; sum, then divide");
    }
    if dtype.is_float() && dtype.bits() < 16 {
        return refuse("8- and 4-bit floats are never summed as they are; dequantise first");
    }
    Ok(())
}
