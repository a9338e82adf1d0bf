//! The checker on ranks that are threads: each kind of mistake ends on every rank with one sentence that names who, what and where; right
//! programs that look odd are left alone.

use crate::common;
use crossweave_backend_cpu::CpuBackend;
use crossweave_collectives::Collectives;
use crossweave_hal::{
    Buffer, Code, Collective, CommOptions, Counts, DType, Device, Error, HostServices, JobRank,
    KvStore, LocalKv, Plugin, RawPlugin, Reduce, Result, Stream, Tag,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

const F: DType = DType::F32;
const SUM: Reduce = Reduce::Sum;

struct Rank {
    device: Device,
    s: Stream,
    kv: Arc<dyn KvStore>,
    plugin: Plugin,
    rank: u32,
    n: u32,
    timeout: Duration,
}

impl Rank {
    /// A communicator of all ranks.
    fn group(&self, name: &str) -> Collectives {
        self.part(name, self.rank, self.n)
    }
    fn part(&self, name: &str, rank: u32, n: u32) -> Collectives {
        let options = CommOptions {
            name: name.into(),
            timeout: Some(self.timeout),
        };
        let boot = common::Boot(self.kv.clone());
        Collectives::new(&self.device, &boot, rank, n, &options).unwrap()
    }
    fn buffer(&self, elements: u64) -> Buffer {
        let b = self.device.alloc_state(4 * elements, Tag::Grad).unwrap();
        self.s.fill(b.all(), 0, 4).unwrap();
        b
    }
    fn sync(&self) -> Result<()> {
        self.s.sync(None)
    }
}

/// Runs a program on `n` ranks; how each ends.
fn run(n: u32, program: impl Fn(&mut Rank) -> Result<()> + Sync) -> Vec<Result<()>> {
    run_within(n, Duration::from_secs(60), program)
}

fn run_within(
    n: u32,
    timeout: Duration,
    program: impl Fn(&mut Rank) -> Result<()> + Sync,
) -> Vec<Result<()>> {
    let kv: Arc<dyn KvStore> = Arc::new(LocalKv::default());
    let host = HostServices::builder().config("cpu.threads", "1").build();
    let plugin = Plugin::new(RawPlugin::from_static::<CpuBackend>(&host).unwrap());
    let one = |rank: u32| {
        let device = plugin.open(0).unwrap();
        device.set_rank(rank);
        let s = device.stream("test", 0).unwrap();
        let mut r = Rank {
            device,
            s,
            kv: kv.clone(),
            plugin: plugin.clone(),
            rank,
            n,
            timeout,
        };
        program(&mut r)
    };
    let one = &one;
    std::thread::scope(|t| {
        let all: Vec<_> = (0..n).map(|r| t.spawn(move || one(r))).collect();
        let panicked = || Error::new(Code::Panic, "test", "panicked");
        all.into_iter()
            .map(|h| h.join().unwrap_or_else(|_| Err(panicked())))
            .collect()
    })
}

/// The one sentence all ranks ended with.
fn sentence(ends: &[Result<()>]) -> String {
    let said: Vec<String> = ends
        .iter()
        .map(|e| match e {
            Err(e) => e.message.clone(),
            Ok(()) => "ended well".into(),
        })
        .collect();
    assert!(said.windows(2).all(|w| w[0] == w[1]), "{said:#?}");
    println!("{}", said[0]);
    said[0].clone()
}

fn holds(text: &str, parts: &[&str]) {
    for p in parts {
        assert!(text.contains(p), "{p:?} is missing in: {text}");
    }
}

/// File and line of a marked line of this file, as it stands in sentences.
fn line(mark: &str) -> String {
    let text = include_str!("checker.rs");
    let mark = format!("// {mark}");
    let at = text.lines().position(|l| l.ends_with(&mark));
    format!("checker.rs:{}", at.expect("the mark is there") + 1)
}

#[test]
fn who_deviates_from_the_majority_is_named_with_both_call_sites() {
    type Change = fn(&mut Rank, &mut Collectives, &Buffer) -> Result<()>;
    let cases: [(&str, &str, Change); 5] = [
        ("7 x f32 sum", "count", |r, c, b| {
            c.all_reduce(&r.s, b.region(0, 28), F, SUM, "grad") // count
        }),
        ("8 x i32 sum", "dtype", |r, c, b| {
            c.all_reduce(&r.s, b.all(), DType::I32, SUM, "grad") // dtype
        }),
        ("8 x f32 max", "reduction", |r, c, b| {
            c.all_reduce(&r.s, b.all(), F, Reduce::Max, "grad") // reduction
        }),
        ("broadcast of 8 x f32 root 1", "kind", |r, c, b| {
            c.broadcast(&r.s, b.all(), F, 1, "grad") // kind
        }),
        ("barrier", "other", |r, c, _| {
            c.barrier(&r.s) // other
        }),
    ];
    for (what, mark, change) in cases {
        let ends = run(3, |r| {
            let mut c = r.group("dp");
            let b = r.buffer(8);
            for _ in 0..3 {
                c.all_reduce(&r.s, b.all(), F, SUM, "loss")?;
            }
            match r.rank {
                1 => change(r, &mut c, &b)?,
                _ => c.all_reduce(&r.s, b.all(), F, SUM, "grad")?, // all
            }
            r.sync()
        });
        let text = sentence(&ends);
        holds(
            &text,
            &[
                "rank 1 calls",
                what,
                "#4 of dp",
                "ranks 0 and 2 call all_reduce of 8 x f32 sum",
            ],
        );
        holds(&text, &[&line(mark), &line("all"), "tag grad"]);
        let e = ends[0].as_ref().unwrap_err();
        assert_eq!(
            (e.code, e.peer, e.sticky),
            (Code::Comm, Some(JobRank(1)), true)
        );
    }
}

#[test]
fn no_byte_moves_and_a_tie_names_both() {
    let launched = AtomicU32::new(0);
    let ends = run(2, |r| {
        let mut c = r.group("tp");
        let b = r.buffer(4096);
        r.s.fill(b.all(), 0x3f80_0000, 4)?;
        r.sync()?;
        let root = r.rank;
        let done = c
            .broadcast(&r.s, b.all(), F, root, "x")
            .and_then(|()| r.sync());
        let e = done.unwrap_err();
        for line in r.device.collectives() {
            launched.fetch_add(line.calls as u32, Relaxed);
        }
        // Where the failure has not yet come to the streams the memory can still be read, and is as it was.
        let fresh = r.device.stream("fresh", 0)?;
        let mut bytes = vec![0; 4 * 4096];
        if fresh.read(b.all(), &mut bytes).is_ok() {
            assert!(bytes.chunks(4).all(|x| x == 1f32.to_le_bytes()));
        }
        Err(e)
    });
    // The rank that came second launched nothing.
    let launched = launched.into_inner();
    assert!(launched <= 1, "{launched} of two were launched");
    let text = sentence(&ends);
    holds(
        &text,
        &[
            "ranks 0 and 1 differ at collective #1 of tp",
            "rank 0 calls",
            "root 0",
            "rank 1 calls",
            "root 1",
        ],
    );
}

#[test]
fn a_call_that_is_missing_or_too_many_is_told_from_one_that_is_different() {
    // In a loop: rank 2 leaves out the second collective of the third round.
    let ends = run(3, |r| {
        let mut c = r.group("dp");
        let b = r.buffer(16);
        for i in 0..5 {
            c.all_reduce(&r.s, b.all(), F, SUM, "grad")?;
            if r.rank != 2 || i != 2 {
                c.broadcast(&r.s, b.all(), F, 0, "loss")?; // left out
            }
            r.sync()?;
        }
        Ok(())
    });
    let text = sentence(&ends);
    holds(
        &text,
        &[
            "rank 2 missed broadcast of 16 x f32 root 0 (#6 of dp",
            "which ranks 0 and 1 call; rank 2 is at all_reduce",
            &line("left out"),
        ],
    );
    // Rank 1 leaves one out and goes on, through others of the kind to the same again; the others stand where it was left out.
    let ends = run(3, |r| {
        let mut c = r.group("dp");
        let b = r.buffer(16);
        for round in 0..3 {
            for (i, n) in [64, 48, 32, 16, 32, 48, 64].into_iter().enumerate() {
                if r.rank != 1 || (round, i) != (2, 0) {
                    c.all_reduce(&r.s, b.region(0, n), F, SUM, "grad")?;
                }
                if r.rank != 1 {
                    r.sync()?;
                }
            }
        }
        r.sync()
    });
    holds(
        &sentence(&ends),
        &[
            "rank 1 missed all_reduce of 16 x f32 sum (#15 of dp",
            "which ranks 0 and 2 call; rank 1 is at all_reduce of 12 x f32 sum",
        ],
    );
    // Asynchronous, so that the others have gone on: rank 1 calls one that nobody else does.
    let ends = run(4, |r| {
        let mut c = r.group("dp");
        let b = r.buffer(16);
        if r.rank == 1 {
            std::thread::sleep(Duration::from_millis(50));
            c.all_gather(&r.s, b.region(16, 16), b.all(), F, "odd")?; // extra
        }
        for _ in 0..4 {
            c.all_reduce(&r.s, b.all(), F, SUM, "grad")?;
        }
        r.sync()
    });
    let e: Vec<&Error> = ends.iter().map(|e| e.as_ref().unwrap_err()).collect();
    let text = sentence(&ends);
    holds(
        &text,
        &[
            "rank 1 calls",
            "all_gather of 4 x f32 (",
            &line("extra"),
            "ranks 0, 2, 3 call all_reduce",
        ],
    );
    assert!(e.iter().all(|e| e.peer == Some(JobRank(1))));
}

#[test]
fn messages_and_splits_that_do_not_fit_name_both_ends() {
    let ends = run(2, |r| {
        let mut c = r.group("pp");
        let b = r.buffer(8);
        let (buf, peer) = (b.region(0, 16 - 8 * u64::from(r.rank)), 1 - r.rank);
        let one = match r.rank {
            0 => Collective::Send {
                buf,
                dtype: F,
                peer,
            },
            _ => Collective::Recv {
                buf,
                dtype: F,
                peer,
            },
        };
        c.group(&r.s, &[one], "act")?; // message
        r.sync()
    });
    let text = sentence(&ends);
    holds(
        &text,
        &[
            "rank 0 sends 4 x f32 to rank 1 as message #1 of the pair on pp",
            "which receives 2 x f32",
            &line("message"),
        ],
    );
    let ends = run(2, |r| {
        let mut c = r.group("ep");
        let (a, b) = (r.buffer(16), r.buffer(16));
        let recv = if r.rank == 0 { vec![2, 3] } else { vec![4, 2] };
        let counts = Counts {
            send: vec![2, 4],
            send_at: vec![0, 4],
            recv,
            recv_at: vec![0, 8],
        };
        c.all_to_all_v(&r.s, a.all(), b.all(), F, &counts, "tokens")?; // splits
        r.sync()
    });
    let text = sentence(&ends);
    holds(
        &text,
        &[
            "rank 1 sends 2 elements to rank 0 in all_to_all_v #1 of ep",
            "which expects 3",
            &line("splits"),
        ],
    );
}

#[test]
fn ranks_that_wait_for_each_other_are_told_at_once() {
    let began = Instant::now();
    // Everybody receives from the right first.
    let ends = run(3, |r| {
        let mut c = r.group("ring");
        let b = r.buffer(8);
        let (right, left) = ((r.rank + 1) % 3, (r.rank + 2) % 3);
        let buf = b.all();
        let take = [Collective::Recv {
            buf,
            dtype: F,
            peer: right,
        }];
        c.group(&r.s, &take, "x")?; // cycle
        r.sync()?;
        c.group(
            &r.s,
            &[Collective::Send {
                buf,
                dtype: F,
                peer: left,
            }],
            "x",
        )?;
        r.sync()
    });
    let text = sentence(&ends);
    holds(
        &text,
        &[
            "deadlock of ranks 0, 1, 2",
            "rank 0 waits in recv of 8 x f32 from 1",
            "for rank 1, which has not called it",
            &line("cycle"),
        ],
    );
    // Two groups in opposite orders on one stream.
    let ends = run(2, |r| {
        let (mut a, mut b) = (r.group("tp"), r.group("dp"));
        let x = r.buffer(8);
        let order = match r.rank {
            0 => [&mut a, &mut b],
            _ => [&mut b, &mut a],
        };
        for group in order {
            group.all_reduce(&r.s, x.all(), F, SUM, "sum")?; // first
        }
        r.sync()
    });
    let text = sentence(&ends);
    holds(
        &text,
        &[
            "deadlock of ranks 0 and 1",
            "#1 of tp",
            "#1 of dp",
            "they call the groups dp and tp in different orders",
            &line("first"),
        ],
    );
    // The host waits for a stream that waits for the stream of the collective.
    let ends = run(2, |r| {
        let (mut a, mut b) = (r.group("tp"), r.group("dp"));
        let (x, y) = (r.buffer(8), r.buffer(8));
        let compute = r.device.stream("compute", 0)?;
        let first = if r.rank == 0 { &mut a } else { &mut b };
        first.all_reduce(&r.s, x.all(), F, SUM, "one")?;
        compute.copy(y.all(), x.all())?;
        compute.sync(None)?;
        let second = if r.rank == 0 { &mut b } else { &mut a };
        second.all_reduce(&r.s, x.all(), F, SUM, "two")?;
        r.sync()
    });
    holds(
        &sentence(&ends),
        &["deadlock of ranks 0 and 1", "which has not called it"],
    );
    // A timeout would have said that somebody did not come.
    println!("three deadlocks in {:?}", began.elapsed());
}

#[test]
fn a_rank_that_has_ended_never_comes() {
    for early in ["returns", "panics"] {
        let ends = run(3, |r| {
            let mut c = r.group("dp");
            let b = r.buffer(8);
            for i in 0..4 {
                if r.rank == 2 && i == 2 {
                    match early {
                        "returns" => return Ok(()),
                        _ => std::panic::resume_unwind(Box::new("planted")),
                    }
                }
                c.all_reduce(&r.s, b.all(), F, SUM, "grad")?; // ended
                r.sync()?;
            }
            Ok(())
        });
        let text = sentence(&ends[..2]);
        let how = if early == "returns" {
            "rank 2 has ended"
        } else {
            "rank 2 has panicked"
        };
        holds(
            &text,
            &[
                how,
                "never comes to all_reduce of 8 x f32 sum (#3 of dp",
                "its last call was all_reduce",
                &line("ended"),
            ],
        );
        assert_eq!(ends[0].as_ref().unwrap_err().peer, Some(JobRank(2)));
    }
}

#[test]
fn a_rank_that_does_not_come_in_time_is_found_where_it_is() {
    let ends = run_within(2, Duration::from_secs(2), |r| {
        let mut c = r.group("dp");
        let b = r.buffer(8);
        c.all_reduce(&r.s, b.all(), F, SUM, "grad")?; // last
        r.sync()?;
        if r.rank == 1 {
            std::thread::sleep(Duration::from_secs(6));
        }
        c.broadcast(&r.s, b.all(), F, 0, "loss")?; // awaited
        r.sync()
    });
    let text = sentence(&ends);
    holds(
        &text,
        &[
            "rank 1 did not come to broadcast of 8 x f32 root 0 (#2 of dp",
            "where rank 0 waits",
            "its last call was all_reduce",
        ],
    );
    holds(
        &text,
        &[
            "its host is busy elsewhere",
            &line("last"),
            &line("awaited"),
        ],
    );
    assert_eq!(ends[0].as_ref().unwrap_err().code, Code::Timeout);
}

#[test]
fn odd_looking_programs_are_right() {
    let ends = run(4, |r| {
        let (mut all, mut pair) = (
            r.group("dp"),
            r.part(&format!("pair{}", r.rank / 2), r.rank % 2, 2),
        );
        let b = r.buffer(64);
        // Slow ranks, one after another; ranks far ahead of others.
        for i in 0..8 {
            if r.rank == i % 4 {
                std::thread::sleep(Duration::from_millis(60));
            }
            all.all_reduce(&r.s, b.all(), F, SUM, "grad")?;
            if i % 2 == 0 {
                r.sync()?;
            }
        }
        for _ in 0..1500 {
            pair.all_reduce(&r.s, b.region(0, 4), F, SUM, "x")?;
        }
        r.sync()?;
        // Sends before receives in one call, to oneself's neighbours; different roles.
        let (right, left) = ((r.rank + 1) % 4, (r.rank + 3) % 4);
        let ring = [
            Collective::Send {
                buf: b.region(0, 16),
                dtype: F,
                peer: right,
            },
            Collective::Recv {
                buf: b.region(16, 16),
                dtype: F,
                peer: left,
            },
        ];
        all.group(&r.s, &ring, "ring")?;
        // One rank waits for the other by other means than a collective.
        if r.rank == 0 {
            std::thread::sleep(Duration::from_millis(100));
            r.kv.set("go", b"")?;
        } else {
            r.kv.get("go", None)?;
        }
        // In place here, out of place there.
        let quarter = 64;
        let own = match r.rank {
            0 => b.region(0, quarter),
            _ => b.region(u64::from(r.rank) * quarter, quarter),
        };
        let other = r.buffer(64);
        let from = if r.rank % 2 == 0 {
            own
        } else {
            other.region(0, quarter)
        };
        all.all_gather(&r.s, from, b.all(), F, "gather")?;
        all.barrier(&r.s)?;
        r.sync()?;
        assert!(r.plugin.checker().verdict().is_none());
        all.close()?;
        pair.close()
    });
    for e in ends {
        e.unwrap();
    }
}

#[test]
fn what_is_left_over_at_the_end_is_named() {
    let ends = run(2, |r| {
        let mut c = r.group("dp");
        let b = r.buffer(8);
        c.all_reduce(&r.s, b.all(), F, SUM, "grad")?; // unawaited
        let end = c.close();
        r.sync()?;
        end
    });
    for (rank, e) in ends.iter().enumerate() {
        let text = &e.as_ref().unwrap_err().message;
        holds(
            text,
            &[
                &format!("rank {rank} ends without having waited for all_reduce"),
                &line("unawaited"),
            ],
        );
    }
    // Rank 1 ends without the receive.
    let ends = run(2, |r| {
        let mut c = r.group("dp");
        let b = r.buffer(8);
        if r.rank == 0 {
            let give = [Collective::Send {
                buf: b.all(),
                dtype: F,
                peer: 1,
            }];
            c.group(&r.s, &give, "act")?; // unmatched
            r.kv.get("gone", Some(Duration::from_secs(60)))?;
            let end = c.close();
            let _ = r.sync();
            return end;
        }
        drop(c);
        r.kv.set("gone", b"")
    });
    let text = &ends[0].as_ref().unwrap_err().message;
    holds(
        text,
        &[
            "rank 0 sends to rank 1",
            "never received",
            &line("unmatched"),
        ],
    );
}

#[test]
fn an_aborted_communicator_says_who_used_it_where() {
    let ends = run(1, |r| {
        let mut c = r.group("dp");
        let b = r.buffer(8);
        c.abort_handle().abort()?;
        c.all_reduce(&r.s, b.all(), F, SUM, "grad") // aborted
    });
    let e = ends[0].as_ref().unwrap_err();
    assert_eq!(e.code, Code::Aborted);
    holds(
        &e.message,
        &[
            "rank 0 calls all_reduce",
            "after communicator dp was aborted",
            &line("aborted"),
        ],
    );
}

#[test]
fn memory_shared_in_the_wrong_way_is_refused_where_it_is_called() {
    let ends = run(2, |r| {
        let mut c = r.group("dp");
        let b = r.buffer(16);
        let piece = |i: u64| b.region(32 * i, 32);
        let (mine, other) = (u64::from(r.rank), u64::from(1 - r.rank));
        c.all_gather(&r.s, piece(mine), b.all(), F, "x")?;
        c.all_to_all(&r.s, b.all(), b.all(), F, "x")?;
        r.sync()?;
        assert!(
            c.reduce_scatter(&r.s, b.all(), piece(other), F, SUM, "x")
                .is_err()
        );
        c.all_gather(&r.s, piece(other), b.all(), F, "x") // aliased
    });
    for (rank, e) in ends.iter().enumerate() {
        let e = e.as_ref().unwrap_err();
        assert_eq!(e.code, Code::Invalid);
        let who = format!("rank {rank} of dp: all_gather whose input and output overlap");
        holds(&e.message, &[&who, &line("aliased")]);
    }
}

#[test]
fn composed_collectives_are_recorded_as_what_was_asked_for() {
    let masks = common::masks();
    let (_, bare) = masks.last().unwrap();
    let ends = common::ranks(bare, 3, |r| {
        let b = r.poisoned(64);
        for _ in 0..2 {
            r.comm.all_reduce(&r.s, b.all(), F, SUM, "grad").unwrap();
        }
        r.s.sync(None).unwrap();
        let flight = r.device.plugin().checker().flight();
        for f in flight.ranks {
            let said: Vec<String> = f.ops.iter().take(2).map(|o| o.what()).collect();
            assert_eq!(said, ["all_reduce of 16 x f32 sum"; 2]);
        }
        r.comm.barrier(&r.s).unwrap();
        r.s.sync(None).unwrap();
        let op = if r.rank == 0 { Reduce::Max } else { SUM };
        r.comm
            .all_reduce(&r.s, b.all(), F, op, "grad")
            .and_then(|()| r.s.sync(None))
    });
    let text = sentence(&ends);
    holds(
        &text,
        &[
            "rank 0 calls all_reduce of 16 x f32 max",
            "ranks 1 and 2 call all_reduce of 16 x f32 sum",
        ],
    );
}
