//! Defects of collectives.

use crate::{Seeded, WHILE};
use crossweave_abi as abi;
use crossweave_backend_cpu::{Comm, CpuCollectives, Device, Mem, Stream};
use crossweave_plugin::{
    Backend, Code, Coll, CollShape, Collectives, CommConfig, Error, GroupRank, Health, MemKind,
    Result, Span, Support, unsupported,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The collectives of the CPU back end.
pub enum SeededColl {}

/// A communicator that knows its place.
pub struct Member {
    comm: Comm,
    rank: u32,
    n: u32,
    /// Memory of the host for what is changed there.
    page: Option<Arc<Mem>>,
    /// The colour of its first split.
    colour: Mutex<Option<Option<i32>>>,
    told: AtomicBool,
    /// Launches that its streams have not come to.
    ahead: Arc<AtomicU64>,
    /// How long its end waits after an abort.
    lingers: Option<Duration>,
    aborted: AtomicBool,
    /// A stream beside that of the host.
    side: Option<Stream>,
    /// It came of a split.
    is_part: bool,
}

impl Member {
    fn new(b: &Seeded, d: &Device, comm: Comm, cfg: (u32, u32)) -> Result<Member> {
        let page = match b.is("min_drops_nan_of_ranks") || b.is("counts_are_read_late") {
            true => Some(Arc::new(b.inner().alloc(
                d,
                MemKind::HostPinned,
                PAGE,
                0,
            )?)),
            false => None,
        };
        Ok(Member {
            comm,
            rank: cfg.0,
            n: cfg.1,
            page,
            colour: Mutex::default(),
            told: AtomicBool::new(false),
            ahead: Arc::default(),
            lingers: b.is("destroy_after_abort_waits").then_some(WHILE),
            aborted: AtomicBool::new(false),
            is_part: false,
            side: match b.is("collectives_jump_the_queue") {
                true => Some(b.inner().stream(d, 0)?),
                false => None,
            },
        })
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let (Some(t), true) = (self.lingers, self.aborted.load(Relaxed)) {
            std::thread::sleep(t);
        }
    }
}

/// Bytes of a member's page.
const PAGE: u64 = 1 << 16;

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
        Member::new(b, d, comm, (rank, n))
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
        let color = match b.is("splits_of_one_parent_are_one") {
            true => {
                let mut first = c.colour.lock().unwrap_or_else(PoisonError::into_inner);
                *first.get_or_insert(color)
            }
            false => color,
        };
        let color = match b.is("splits_of_splits_have_one_colour") && c.is_part {
            true => color.map(|_| 7),
            false => color,
        };
        b.leak("leak_in_split");
        let place = (cfg.rank, cfg.nranks);
        let child = CpuCollectives::split(b.inner(), &c.comm, color, key, cfg)?;
        let d = b.inner().open(0)?;
        let member = |comm| {
            let mut member = Member::new(b, &d, comm, place)?;
            member.is_part = true;
            Ok(member)
        };
        child.map(member).transpose()
    }

    fn supports(b: &Seeded, c: &Member, shape: &CollShape) -> Result<Support> {
        b.leak("leak_in_comm_query");
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
            if b.is("gaps_are_closed") && x.kind == abi::COLL_ALL_TO_ALL_V
                || b.is("gathered_gaps_are_closed") && x.kind == abi::COLL_ALL_GATHER_V
            {
                x.recv_offsets = &[];
            }
            if b.is("send_offsets_are_ignored") && x.kind == abi::COLL_ALL_TO_ALL_V {
                x.send_offsets = &[];
            }
            if b.is("reduce_is_to_rank_0") && x.kind == abi::COLL_REDUCE {
                x.root = 0;
            }
            if b.is("chunks_of_131072") && x.kind == abi::COLL_ALL_REDUCE {
                x.count = x.count.min(131_072);
            }
            if b.is("device_scale_is_ignored") {
                x.scale_dev = None;
            }
            let ends = |bug: &str, kind: u32| b.is(bug) && x.kind == kind;
            if ends("broadcasts_end_at_8192", abi::COLL_BROADCAST)
                || ends("reductions_end_at_8192", abi::COLL_REDUCE)
                || ends("messages_end_at_8192", abi::COLL_SEND)
                || ends("messages_end_at_8192", abi::COLL_RECV)
            {
                x.count = x.count.min(8192);
            }
            let small = x.dtype != abi::DType::F32;
            if b.is("other_types_end_at_8192") && small
                || b.is("scattered_sums_end_at_8192") && x.kind == abi::COLL_REDUCE_SCATTER
                || b.is("gathers_end_at_8192") && x.kind == abi::COLL_ALL_GATHER
                || b.is("exchanges_end_at_8192") && x.kind == abi::COLL_ALL_TO_ALL
                || b.is("maxima_end_at_8192") && x.reduce == abi::RED_MAX
            {
                x.count = x.count.min(8192);
            }
            if b.is("scale_of_16_bits") {
                x.scale = f64::from(f32::from_bits((x.scale as f32).to_bits() & 0xFFFF_0000));
            }
            if b.is("odd_elements_are_dropped") && elem == 2 && x.reduce != 0 {
                x.count &= !1;
            }
            if b.is("offsets_round_down_to_words") {
                let down = |y: Span<'_, Mem>| y.offset & !3;
                x.send = x.send.map(|y| Span {
                    offset: down(y),
                    ..y
                });
                x.recv = x.recv.map(|y| Span {
                    offset: down(y),
                    ..y
                });
            }
            if b.is("pairs_need_a_power_of_two")
                && !c.n.is_power_of_two()
                && c.n > 4
                && x.reduce == abi::RED_SUM
            {
                x.reduce = abi::RED_MAX;
            }
            if let (Some(i), Some(o)) = (x.send, x.recv)
                && std::ptr::eq(i.mem, o.mem)
                && x.count > 0
            {
                // In place: the piece that is a rank's own lies behind those of the ranks before it.
                if b.is("in_place_gathers_begin_at_0") && x.kind == abi::COLL_ALL_GATHER {
                    x.send = Some(Span {
                        offset: o.offset,
                        ..i
                    });
                }
                if b.is("in_place_scatters_end_at_0") && x.kind == abi::COLL_REDUCE_SCATTER {
                    x.recv = Some(Span {
                        offset: i.offset,
                        ..o
                    });
                }
            }
            taken_for(b.bug(), x);
        }
        if b.is("refused_group_runs_its_beginning")
            && let Some(at) = wrong.iter().position(|x| x.kind > abi::COLL_BARRIER)
        {
            CpuCollectives::launch(b.inner(), &c.comm, s, &wrong[..at])?;
            return unsupported("a kind");
        }
        if let (true, [first, rest @ ..]) = (b.is("groups_have_one_root"), &mut wrong[..]) {
            rest.iter_mut().for_each(|x| x.root = first.root);
        }
        if let (true, [first, rest @ ..]) = (b.is("groups_have_one_reduction"), &mut wrong[..]) {
            let reduced = rest
                .iter_mut()
                .filter(|x| x.reduce != 0 && first.reduce != 0);
            reduced.for_each(|x| x.reduce = first.reduce);
        }
        if b.is("barrier_holds_nobody") {
            wrong.retain(|x| x.kind != abi::COLL_BARRIER);
        }
        if b.is("groups_have_one_peer") {
            let first = |kind: u32| wrong.iter().find(|x| x.kind == kind).map(|x| x.peer);
            let (to, from) = (first(abi::COLL_SEND), first(abi::COLL_RECV));
            wrong.retain(|x| match x.kind {
                abi::COLL_SEND => Some(x.peer) == to,
                abi::COLL_RECV => Some(x.peer) == from,
                _ => true,
            });
        }
        if b.is("nothing_is_sent_to_oneself") && c.n > 1 {
            let me = c.rank as i32;
            let own = |x: &Coll<'_, Mem>| {
                matches!(x.kind, abi::COLL_SEND | abi::COLL_RECV) && x.peer == me
            };
            wrong.retain(|x| !own(x));
        }
        if b.is("groups_run_their_first") {
            wrong.truncate(1);
        }
        if b.is("groups_end_at_16") {
            wrong.truncate(16);
        }
        let ahead = b.is("a_ring_of_128_launches").then(|| c.ahead.clone());
        if let Some(a) = &ahead
            && a.fetch_add(1, Relaxed) >= 128
        {
            a.fetch_sub(1, Relaxed);
            return Ok(());
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
        if b.is("empty_ones_are_refused")
            && wrong
                .iter()
                .any(|x| x.count == 0 && x.recv_counts.is_empty() && x.kind != abi::COLL_BARRIER)
        {
            return crossweave_plugin::fail(Code::Invalid, "no elements");
        }
        b.leak("leak_in_collective");
        if let Some(side) = &c.side {
            return CpuCollectives::launch(b.inner(), &c.comm, side, &wrong);
        }
        if b.is("launch_waits_for_peers") {
            CpuCollectives::launch(b.inner(), &c.comm, s, &wrong)?;
            // Bounded, so that the kit's own wait is what fails.
            let _ = b.inner().stream_sync(s, Some(Duration::from_secs(6)));
            return Ok(());
        }
        let launched = CpuCollectives::launch(b.inner(), &c.comm, s, &wrong);
        // What is refused is not in flight.
        if let (Err(_), Some(a)) = (&launched, &ahead) {
            a.fetch_sub(1, Relaxed);
        }
        launched?;
        for x in &wrong {
            on_page(b, c, s, x)?;
        }
        if let Some(a) = ahead {
            b.inner().host_call(
                s,
                Box::new(move |_| {
                    a.fetch_sub(1, Relaxed);
                }),
            )?;
        }
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
        b.leak("leak_in_async_error");
        // Not for ever: who asks ten thousand times does not look at the time.
        if b.is("async_error_waits") && c.ahead.fetch_add(1, Relaxed) < 20 {
            std::thread::sleep(WHILE);
        }
        match CpuCollectives::async_error(b.inner(), &c.comm) {
            Err(_) if b.is("failure_is_told_once") && c.told.swap(true, Relaxed) => {
                Ok(Health::Ready)
            }
            Err(e) if b.is("failures_are_not_sticky") => Err(Error { sticky: false, ..e }),
            Err(e) if b.is("the_wrong_rank_is_named") => Err(e.peer(GroupRank(c.n + 5))),
            Err(e) if b.is("a_rank_names_itself") => Err(e.peer(GroupRank(c.rank))),
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
        if b.is("abort_waits_a_little") {
            std::thread::sleep(WHILE);
        }
        c.aborted.store(true, Relaxed);
        CpuCollectives::abort(b.inner(), &c.comm)
    }
}

/// Types and reductions by a look-up with a default, or in the order of another header: `type_as:FROM:TO` and
/// `reduction_as:FROM:TO`, of what is reduced.
fn taken_for(bug: &str, x: &mut Coll<'_, Mem>) {
    let words: Vec<&str> = bug.split(':').collect();
    let [what, from, to] = words[..] else { return };
    if !matches!(
        x.kind,
        abi::COLL_ALL_REDUCE | abi::COLL_REDUCE_SCATTER | abi::COLL_REDUCE
    ) {
        return;
    }
    let named = |n: &str| abi::DType::ALL.into_iter().find(|t| t.name() == n);
    match (what, named(from), named(to)) {
        ("type_as", Some(from), Some(to)) if x.dtype == from => {
            x.count = x.count * from.bytes(1) / to.bytes(1);
            x.dtype = to;
        }
        ("reduction_as", ..) if abi::red_name(x.reduce) == Some(from) => {
            let all = [abi::RED_SUM, abi::RED_PROD, abi::RED_MIN, abi::RED_MAX];
            x.reduce = all
                .into_iter()
                .find(|r| abi::red_name(*r) == Some(to))
                .unwrap_or(x.reduce);
        }
        _ => {}
    }
}

/// A result takes its way over the member's page and is changed there.
fn on_page(b: &Seeded, c: &Member, s: &Stream, x: &Coll<'_, Mem>) -> Result<()> {
    let (Some(page), Some(out)) = (&c.page, x.recv) else {
        return Ok(());
    };
    let late = b.is("counts_are_read_late");
    let meant = match late {
        true => x.kind == abi::COLL_ALL_TO_ALL_V,
        false => x.reduce == abi::RED_MIN && x.dtype == abi::DType::F32,
    };
    if !meant || out.bytes > PAGE || out.bytes == 0 {
        return Ok(());
    }
    let here = || Span {
        mem: &**page,
        offset: 0,
        bytes: out.bytes,
    };
    b.inner().copy(s, here(), Span { ..out })?;
    let (at, n) = (b.inner().map(page)? as usize, out.bytes as usize);
    let counts = (
        x.recv_counts.as_ptr() as usize,
        x.recv_counts.first().copied(),
    );
    let keep = page.clone();
    b.inner().host_call(
        s,
        Box::new(move |_| {
            // SAFETY: the page is as long as the result and lives in `keep`.
            let bytes = unsafe { std::slice::from_raw_parts_mut(at as *mut u8, n) };
            match counts {
                // SAFETY: that of a plugin which keeps the host's arrays; the kit's live until the round is over.
                (p, Some(was)) if late => {
                    if unsafe { std::ptr::read_volatile(p as *const u64) } != was {
                        bytes.fill(0);
                    }
                }
                _ => {
                    for v in bytes.chunks_exact_mut(4) {
                        if f32::from_le_bytes([v[0], v[1], v[2], v[3]]).is_nan() {
                            v.fill(0);
                        }
                    }
                }
            }
            drop(keep);
        }),
    )?;
    b.inner().copy(s, out, here())
}

/// The same collective.
fn again<'a>(x: &Coll<'a, Mem>) -> Coll<'a, Mem> {
    Coll { ..*x }
}
