//! Defects of collectives.

use crate::Seeded;
use crossweave_abi as abi;
use crossweave_backend_cpu::{Comm, CpuCollectives, Device, Mem, Stream};
use crossweave_plugin::{
    Backend, Code, Coll, CollShape, Collectives, CommConfig, Error, Health, Result, Span, Support,
    unsupported,
};
use std::time::Duration;

/// The collectives of the CPU back end.
pub enum SeededColl {}

/// A communicator that knows its place.
pub struct Member {
    comm: Comm,
    rank: u32,
    n: u32,
}

impl Collectives<Seeded> for SeededColl {
    type Comm = Member;

    fn unique_id(b: &Seeded, d: &Device) -> Result<Vec<u8>> {
        match b.is("ids_are_all_the_same") {
            true => Ok(b"the one id".to_vec()),
            false => CpuCollectives::unique_id(b.inner(), d),
        }
    }

    fn init(b: &Seeded, d: &Device, id: &[u8], mut cfg: CommConfig) -> Result<Member> {
        if b.is("comm_timeout_ignored") {
            cfg.timeout = None;
        }
        let (rank, n) = (cfg.rank, cfg.nranks);
        let comm = CpuCollectives::init(b.inner(), d, id, cfg)?;
        Ok(Member { comm, rank, n })
    }

    fn split(
        b: &Seeded,
        c: &Member,
        color: Option<i32>,
        key: i32,
        cfg: CommConfig,
    ) -> Result<Option<Member>> {
        let key = if b.is("split_ignores_the_key") {
            0
        } else {
            key
        };
        let color = match b.is("split_ignores_no_colour") {
            true => Some(color.unwrap_or(7)),
            false => color,
        };
        let (rank, n) = (cfg.rank, cfg.nranks);
        let child = CpuCollectives::split(b.inner(), &c.comm, color, key, cfg)?;
        Ok(child.map(|comm| Member { comm, rank, n }))
    }

    fn supports(b: &Seeded, c: &Member, shape: &CollShape) -> Result<Support> {
        if b.is("query_claims_integer_averages") && shape.reduce == abi::RED_AVG {
            return Ok(Support::default());
        }
        if b.is("query_refuses_what_launch_takes") && shape.reduce == abi::RED_PROD {
            return unsupported("products");
        }
        if b.is("unknown_flags_are_claimed") {
            return CpuCollectives::supports(b.inner(), &c.comm, &CollShape { flags: 0, ..*shape });
        }
        CpuCollectives::supports(b.inner(), &c.comm, shape)
    }

    fn launch(b: &Seeded, c: &Member, s: &Stream, group: &[Coll<'_, Mem>]) -> Result<()> {
        let n = c.n as i32;
        let mut wrong: Vec<Coll<'_, Mem>> = group.iter().map(again).collect();
        for x in &mut wrong {
            let elem = x.dtype.bytes(1).max(1);
            if b.is("avg_sums") && x.reduce == abi::RED_AVG {
                x.reduce = abi::RED_SUM;
            }
            if b.is("counts_taken_as_bytes") && x.kind == abi::COLL_BROADCAST {
                x.count /= elem;
            }
            if b.is("premul_ignores_the_scale") {
                x.scale = 1.0;
            }
            if b.is("root_off_by_one") && x.kind == abi::COLL_BROADCAST {
                x.root = (x.root + 1) % n;
            }
            if b.is("bad_roots_are_clamped")
                && matches!(x.kind, abi::COLL_BROADCAST | abi::COLL_REDUCE)
            {
                x.root = x.root.clamp(0, n - 1);
            }
            if b.is("reduce_writes_everywhere") && x.kind == abi::COLL_REDUCE {
                x.kind = abi::COLL_ALL_REDUCE;
            }
            if b.is("min_is_max") && x.reduce == abi::RED_MIN {
                x.reduce = abi::RED_MAX;
            }
            if b.is("gaps_are_closed") && x.kind == abi::COLL_ALL_TO_ALL_V {
                x.recv_offsets = &[];
            }
        }
        if b.is("barrier_holds_nobody") {
            wrong.retain(|x| x.kind != abi::COLL_BARRIER);
        }
        if b.is("groups_run_their_first") {
            wrong.truncate(1);
        }
        if b.is("messages_overtake") {
            // Receives of a pair come in the other order.
            let recv: Vec<usize> = (0..wrong.len())
                .filter(|i| wrong[*i].kind == abi::COLL_RECV)
                .collect();
            if let [first, .., last] = recv[..] {
                wrong.swap(first, last);
            }
        }
        if b.is("launch_waits_for_peers") {
            CpuCollectives::launch(b.inner(), &c.comm, s, &wrong)?;
            // Bounded, so that the kit's own wait is what fails.
            let _ = b.inner().stream_sync(s, Some(Duration::from_secs(6)));
            return Ok(());
        }
        CpuCollectives::launch(b.inner(), &c.comm, s, &wrong)?;
        if b.is("last_bits_differ_by_rank") && c.rank > 0 {
            for x in wrong
                .iter()
                .filter(|x| x.kind == abi::COLL_ALL_REDUCE && x.count > 0)
            {
                if let Some(out) = x.recv {
                    // The low byte of the last element, which is 0 in whole numbers.
                    let bytes = x.dtype.bytes(x.count);
                    let at = Span {
                        offset: out.offset + bytes - x.dtype.bytes(1),
                        bytes: 1,
                        ..out
                    };
                    b.inner().fill(s, at, 0, 1)?;
                }
            }
        }
        if b.is("input_is_scratch") {
            for x in wrong
                .iter()
                .filter(|x| x.kind == abi::COLL_ALL_REDUCE && x.count > 0)
            {
                if let (Some(i), Some(o)) = (x.send, x.recv)
                    && !std::ptr::eq(i.mem, o.mem)
                {
                    b.inner().fill(s, Span { bytes: 1, ..i }, 0x55, 1)?;
                }
            }
        }
        Ok(())
    }

    fn async_error(b: &Seeded, c: &Member) -> Result<Health> {
        match CpuCollectives::async_error(b.inner(), &c.comm) {
            Err(e) if b.is("failures_are_not_sticky") => Err(Error { sticky: false, ..e }),
            Err(e) if b.is("the_wrong_rank_is_named") => Err(e.peer(c.n + 5)),
            Err(e) if b.is("a_rank_names_itself") => Err(e.peer(c.rank)),
            Err(e) if b.is("nobody_is_named") => Err(Error { peer: None, ..e }),
            Err(_) if b.is("a_dead_communicator_is_well") => Ok(Health::Ready),
            Err(e) if b.is("failures_are_internal") => Err(Error {
                code: Code::Internal,
                ..e
            }),
            other => other,
        }
    }

    fn abort(b: &Seeded, c: &Member) -> Result<()> {
        if b.is("abort_takes_its_time") {
            std::thread::sleep(Duration::from_millis(2500));
        }
        CpuCollectives::abort(b.inner(), &c.comm)
    }
}

/// The same collective.
fn again<'a>(x: &Coll<'a, Mem>) -> Coll<'a, Mem> {
    Coll { ..*x }
}
