//! The collectives of a step on the back end: which it has itself, and of what the others are composed.
//!
//! Ranks as threads join a group on the back end's own devices and ask; what is composed is carried out once, and its launches counted,
//! because what a composition costs depends on the back end's own pieces.

use crate::backend;
use crate::train_error::{Result, TrainError};
use crossweave_hal::{
    Bootstrap, Collective, CommOptions, Communicator, DType, Device, HostServices, Plugin, Reduce,
    Region, Stream, Tag, abi,
};
use crossweave_hosts::{Call, Choice, Hosts, Kind};
use crossweave_layers::{Census, Counts, OfCollective, wrap};
use crossweave_mesh::Collectives;
use serde::Serialize;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Ranks that are asked at most: a larger group is asked as one of so many.
const MOST: u32 = 8;
/// Long enough for a loaded machine; a back end whose ranks do not meet is reported, not waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes of a full vector that are enough to ask with: which way a longer one goes hangs on the back end's own limit alone, and a question
/// must not take the memory of a step.
const ENOUGH: u64 = 1 << 20;

/// The way of a sum where the ranks of its group are processes of one host.
#[derive(Clone, Debug, Serialize)]
pub struct BetweenProcesses {
    /// The algorithm by its name in configs.
    pub algorithm: &'static str,
    /// Messages of the rank that sends most; `None` where they are the affair of a library.
    pub messages: Option<u64>,
    /// Bytes of the rank that sends most; of a library's own algorithm as of a ring.
    pub bytes: u64,
    /// Whether the sum has the bits of rank order.
    pub rank_order: bool,
}

impl BetweenProcesses {
    /// That of a collective, where it is a sum of several ranks.
    fn of(of: &OfCollective, choice: &Choice) -> Option<BetweenProcesses> {
        let chosen = choice.of_group(&of.group);
        let n = u64::try_from(of.ranks).ok().filter(|n| *n > 1)?;
        let (kind, elements, by) = match of.kind {
            abi::COLL_ALL_REDUCE => (Kind::AllReduce, of.count, chosen.all_reduce),
            abi::COLL_REDUCE_SCATTER => (Kind::ReduceScatter, of.count * n, chosen.reduce_scatter),
            _ => return None,
        };
        let sums = [abi::RED_SUM, abi::RED_AVG, abi::RED_PREMUL_SUM];
        let by = by.of_reduction(sums.contains(&of.reduce));
        let dtype = DType::from_id(of.dtype)?;
        let width = dtype.bytes(1);
        let call = Call {
            kind,
            elements,
            width,
            sum: if dtype.is_float() {
                width.max(4)
            } else {
                width
            },
            by,
        };
        let apart = Hosts::even(n as u32, 1);
        Some(BetweenProcesses {
            algorithm: by.name(),
            messages: apart.messages(call),
            bytes: apart.sent(call).iter().map(|s| s.between).max()?,
            rank_order: by.keeps_order(width, dtype.is_float()),
        })
    }
}

/// A collective of a step.
#[derive(Clone, Debug, Serialize)]
pub struct CollectiveRow {
    /// `reduce_scatter bf16 sum`.
    pub what: String,
    /// Its name.
    pub kind: &'static str,
    /// The group of ranks that it is over.
    pub group: String,
    /// Ranks of the group.
    pub ranks: i32,
    /// Elements of a rank.
    pub count: u64,
    /// Calls a step.
    pub calls: u64,
    /// Its way in words; the reason when there is none.
    pub route: String,
    /// Whether the back end has it itself.
    pub native: bool,
    /// Calls of the back end that one costs a rank, where known.
    pub launches_per_call: Option<u64>,
    /// The way of a sum between processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub between_processes: Option<BetweenProcesses>,
}

impl CollectiveRow {
    fn new(of: &OfCollective, calls: u64, choice: &Choice) -> CollectiveRow {
        let dtype = DType::from_id(of.dtype).map_or("?", DType::name);
        let reduce = abi::red_name(of.reduce).unwrap_or("");
        let place = if of.in_place { " in place" } else { "" };
        let what = format!("{} {dtype} {reduce}", of.name());
        CollectiveRow {
            what: what.trim_end().to_string() + place,
            kind: of.name(),
            group: of.group.clone(),
            ranks: of.ranks,
            count: of.count,
            calls,
            route: String::new(),
            native: false,
            launches_per_call: None,
            between_processes: BetweenProcesses::of(of, choice),
        }
    }
}

/// What a rank has found of one collective.
struct Answer {
    route: String,
    native: bool,
    launches: u64,
    /// Bytes of the longest vector the back end takes; 0: of any.
    limit: u64,
}

/// The rows of a step.
///
/// # Errors
/// A thread that cannot be started.
pub fn rows(
    plugin: &Plugin,
    services: &HostServices,
    counts: &Counts,
    world: u32,
    choice: &Choice,
) -> Result<Vec<CollectiveRow>> {
    let asked: Vec<&OfCollective> = counts.collectives.iter().map(|(of, _)| of).collect();
    let rows = counts.collectives.iter();
    let mut rows: Vec<CollectiveRow> = rows
        .map(|(of, calls)| CollectiveRow::new(of, *calls, choice))
        .collect();
    if backend::carried(plugin, world).is_some() {
        for r in &mut rows {
            let alone = r.ranks == 1;
            r.route = if alone {
                "none needed".into()
            } else {
                "by the host, through pinned memory".into()
            };
        }
        return Ok(rows);
    }
    let mut sizes: Vec<i32> = rows.iter().map(|r| r.ranks).collect();
    sizes.sort_unstable();
    sizes.dedup();
    for size in sizes {
        let mine: Vec<usize> = (0..rows.len()).filter(|i| rows[*i].ranks == size).collect();
        let asked: Vec<OfCollective> = mine.iter().map(|i| asked[*i].clone()).collect();
        match ask(plugin, services, size.max(1) as u32, &asked) {
            Ok(answers) => {
                for (i, a) in mine.into_iter().zip(answers) {
                    let r = &mut rows[i];
                    (r.native, r.route, r.launches_per_call) =
                        (a.native, a.route, Some(a.launches));
                }
            }
            Err(e) => mine
                .into_iter()
                .for_each(|i| rows[i].route = format!("unknown: {e}")),
        }
    }
    Ok(rows)
}

/// Over the store of the services, which the ranks of this process share.
struct Meet<'a>(&'a HostServices);

impl Bootstrap for Meet<'_> {
    fn set(&self, key: &str, value: &[u8]) -> crossweave_hal::Result<()> {
        self.0.kv().set(&format!("explain/{key}"), value)
    }
    fn get(&self, key: &str, timeout: Duration) -> crossweave_hal::Result<Vec<u8>> {
        self.0.kv().get(&format!("explain/{key}"), Some(timeout))
    }
}

fn ask(
    plugin: &Plugin,
    services: &HostServices,
    size: u32,
    all: &[OfCollective],
) -> Result<Vec<Answer>> {
    let ranks = size.min(MOST);
    let devices = crate::backend::count(plugin)?;
    let census = Census::default();
    let layer = Box::new(census.clone());
    // Rank 0 inside a census of its own, so that only its calls are counted.
    let counted = plugin.layered(|raw| Ok::<_, TrainError>(wrap(raw, services, layer)))?;
    let one = |rank: u32| -> crossweave_hal::Result<Vec<Answer>> {
        let from = if rank == 0 { &counted } else { plugin };
        let device = from.open(rank % devices)?;
        let options = CommOptions {
            name: format!("explain{size}"),
            timeout: Some(PATIENCE),
        };
        let comm = Communicator::in_scope(
            &device,
            &Meet(services),
            &options.name,
            rank,
            ranks,
            &options,
        )?;
        let mut comm = Collectives::from(comm);
        let stream = device.stream("explain", 0)?;
        let mut answers = vec![];
        for c in all {
            let bits = DType::from_id(c.dtype).map_or(8, DType::bits);
            let enough = (ENOUGH * 8 / bits / u64::from(ranks)).max(1);
            let mut ask = |count| answer(&device, &mut comm, &stream, c, count, ranks, &census);
            let mut found = ask(c.count.min(enough))?;
            // What the back end has for a short one it may not have for this. Routes are those of a power of two, hence twice.
            let whole = c.count.saturating_mul(bits) / 8;
            if found.limit > 0 && whole.saturating_mul(2 * u64::from(ranks)) >= found.limit {
                found = ask(c.count)?;
            }
            answers.push(found);
        }
        stream.sync(None)?;
        Ok(answers)
    };
    std::thread::scope(|s| {
        let mut others = vec![];
        for r in 1..ranks {
            // None begins before all are there: each waits for the others.
            let (go, begin) = channel::<()>();
            let run = move || begin.recv().map_or(Ok(()), |()| one(r).map(|_| ()));
            let thread = std::thread::Builder::new().spawn_scoped(s, run);
            let thread = thread.map_err(|e| {
                let what = format!("cannot start a thread for rank {r} of {ranks}: {e}");
                let fix = "raise the limits of the process (ulimit -u of threads, -v of memory)";
                TrainError::refused(what, fix)
            })?;
            others.push((go, thread));
        }
        let begun = others.into_iter().map(|(go, thread)| {
            let _ = go.send(());
            thread
        });
        let others: Vec<_> = begun.collect();
        let first = one(0);
        let mut failure = None;
        for o in others {
            failure = match o.join() {
                Ok(Err(e)) => failure.or(Some(e)),
                _ => failure,
            };
        }
        match (first, failure) {
            (Ok(a), None) => Ok(a),
            (Err(e), _) | (_, Some(e)) => Err(e.into()),
        }
    })
}

fn reduction(id: u32) -> Reduce {
    match id {
        abi::RED_PROD => Reduce::Prod,
        abi::RED_MIN => Reduce::Min,
        abi::RED_MAX => Reduce::Max,
        abi::RED_AVG => Reduce::Avg,
        abi::RED_PREMUL_SUM => Reduce::PremulSum(1.0),
        _ => Reduce::Sum,
    }
}

fn answer(
    device: &Device,
    comm: &mut Collectives,
    stream: &Stream,
    c: &OfCollective,
    count: u64,
    ranks: u32,
    census: &Census,
) -> crossweave_hal::Result<Answer> {
    let dtype = DType::from_id(c.dtype).unwrap_or(DType::U8);
    let (n, op, me) = (
        u64::from(ranks),
        reduction(c.reduce),
        u64::from(comm.rank()),
    );
    let piece = dtype.bytes(count);
    // The longest operand any kind has: a piece for each rank, and one more to receive into.
    let whole = piece * n;
    let memory = device.alloc_state((whole + piece).max(whole * 2).max(1), Tag::Comm)?;
    stream.fill(memory.all(), 0, 1)?;
    let region = |at: u64, bytes: u64| -> Region<'_> { memory.region(at, bytes) };
    let (all, own, apart) = (
        region(0, whole),
        region(me * piece, piece),
        region(whole, piece),
    );
    let buf = region(0, piece);
    let asked = match c.kind {
        abi::COLL_ALL_REDUCE => Collective::AllReduce { buf, dtype, op },
        abi::COLL_REDUCE_SCATTER if c.in_place => Collective::ReduceScatter {
            send: all,
            recv: own,
            dtype,
            op,
        },
        abi::COLL_REDUCE_SCATTER => Collective::ReduceScatter {
            send: all,
            recv: apart,
            dtype,
            op,
        },
        abi::COLL_ALL_GATHER if c.in_place => Collective::AllGather {
            send: own,
            recv: all,
            dtype,
        },
        abi::COLL_ALL_GATHER => Collective::AllGather {
            send: apart,
            recv: all,
            dtype,
        },
        abi::COLL_BROADCAST => Collective::Broadcast {
            buf,
            dtype,
            root: 0,
        },
        abi::COLL_REDUCE => Collective::Reduce {
            buf,
            dtype,
            op,
            root: 0,
        },
        abi::COLL_ALL_TO_ALL if c.in_place => Collective::AllToAll {
            send: all,
            recv: all,
            dtype,
        },
        abi::COLL_ALL_TO_ALL => Collective::AllToAll {
            send: all,
            recv: region(whole, whole),
            dtype,
        },
        abi::COLL_BARRIER => Collective::Barrier,
        // Messages between pairs of ranks are what every back end has.
        _ => {
            return Ok(Answer {
                route: "native".into(),
                native: true,
                launches: 1,
                limit: 0,
            });
        }
    };
    let route = match comm.route(&asked) {
        Ok(r) => r,
        Err(e) => {
            return Ok(Answer {
                route: format!("none: {}", e.message),
                native: false,
                launches: 0,
                limit: 0,
            });
        }
    };
    let native = route.describe() == "native";
    let limit = match native {
        true => comm.query(&asked)?.map_or(0, |s| s.max_bytes),
        false => 0,
    };
    let mut launches = 1;
    if !native {
        // Twice: the first prepares what it needs.
        comm.group(stream, &[asked], "explain")?;
        let before = census.counts();
        comm.group(stream, &[asked], "explain")?;
        stream.sync(Some(PATIENCE))?;
        let used = census.counts().since(&before);
        launches = used.groups
            + used.ops.iter().map(|o| o.1).sum::<u64>()
            + used.moves.values().map(|m| m.0).sum::<u64>();
    }
    Ok(Answer {
        route: route.describe().into(),
        native,
        launches,
        limit,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_takes_no_memory_of_the_step() {
        let host = HostServices::builder().threads(1).build();
        let whole = backend::open_linked("cpu", &host).unwrap();
        let lacks = Box::new(crossweave_layers::Lacks::parse("reduce_scatter").unwrap());
        let poor = whole.layered(|raw| Ok::<_, TrainError>(wrap(raw, &host, lacks)));
        // A petabyte each.
        let of = |kind, in_place| OfCollective {
            kind,
            dtype: DType::F32.id(),
            reduce: abi::RED_SUM,
            count: 1 << 48,
            in_place,
            ranks: 2,
            group: "dp".into(),
        };
        let asked = [
            of(abi::COLL_ALL_REDUCE, true),
            of(abi::COLL_REDUCE_SCATTER, true),
            of(abi::COLL_REDUCE_SCATTER, false),
            of(abi::COLL_ALL_GATHER, false),
            of(abi::COLL_ALL_TO_ALL, false),
        ];
        let counts = Counts {
            collectives: asked.into_iter().map(|c| (c, 1)).collect(),
            ..Counts::default()
        };
        let rows = rows(&poor.unwrap(), &host, &counts, 2, &Choice::default()).unwrap();
        for r in rows {
            let composed = r.kind == "reduce_scatter";
            assert_eq!(r.native, !composed, "{}: {}", r.what, r.route);
            let launches = r.launches_per_call;
            assert!(launches.is_some_and(|n| (n > 1) == composed), "{}", r.route);
            assert_eq!(r.count, 1 << 48);
        }
    }
}
