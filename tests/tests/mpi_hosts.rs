//! Collectives over several hosts with several ranks each. Processes of this machine are given hosts that are not there, so that
//! what crosses between hosts is counted without any: bits are those of threads, and bytes those of the formulas.

use super::mpi::{as_in_process, in_process};
use super::mpi_ranks::{OUT, Rank, SOON, every, families, launch, text};
use crossweave_hal::{Collective, DType, Reduce, Tag};
use crossweave_hosts::{Algorithm, Call, Hosts, Kind};
use std::path::Path;

/// Elements of a long vector: a multiple of every number of ranks here.
const LONG: u64 = 48_000;
/// Elements of a short one.
const SHORT: u64 = 120;

/// The host of each rank, as a scene says it.
fn scene(name: &str, hosts: &[u32]) -> String {
    let words: Vec<String> = hosts.iter().map(u32::to_string).collect();
    format!("{name}:{}", words.join(","))
}

/// So many ranks on each host.
fn even(hosts: u32, each: usize) -> Vec<u32> {
    (0..hosts).flat_map(|h| vec![h; each]).collect()
}

#[test]
fn bits_do_not_know_how_ranks_are_spread_over_hosts() {
    let families = families();
    let mut cases = vec![
        even(2, 2),
        // Neighbours in unequal numbers; 16-bit sums and blocks along a chain; ranks that are no neighbours.
        vec![0, 1, 1, 2, 2],
        even(2, 3),
        vec![0, 1, 0, 1, 1],
    ];
    if every() {
        cases.extend([even(4, 2), even(2, 4), vec![0, 0, 0, 1]]);
    }
    for (i, hosts) in cases.iter().enumerate() {
        let want = in_process(hosts.len() as u32);
        for (j, family) in families.iter().enumerate() {
            // Each under one family; the first, and where the whole matrix is asked for all, under every one.
            if i > 0 && i % families.len() != j && !every() {
                continue;
            }
            let out = tempfile::tempdir().unwrap();
            let scene = scene("same_bits", hosts);
            let o = launch(family, hosts.len() as u32, &scene, out.path());
            assert!(o.status.success(), "{family} {hosts:?}: {}", text(&o));
            as_in_process(family, &want, out.path());
        }
    }
}

/// A rank's part of what is counted: a line for each collective, of messages and bytes that it has sent to other hosts, and of bytes that it
/// has sent within its own.
pub(super) fn sent(r: Rank) {
    let device = r.device();
    let mpi = r.mpi.open(0).unwrap();
    let (rank, n) = (r.launch.rank, u64::from(r.launch.world));
    let mut comm = r.comm(&device, "dp", SOON);
    let stream = device.stream("compute", 0).unwrap();
    let count = || -> Vec<u64> {
        let text = String::from_utf8(mpi.attr("mpi.sent").unwrap()).unwrap();
        text.split(' ').map(|w| w.parse().unwrap()).collect()
    };
    let mut lines = String::new();
    let op = Reduce::Sum;
    for (dtype, elements) in [(DType::F32, SHORT), (DType::F32, LONG), (DType::Bf16, LONG)] {
        let one = dtype.bytes(elements);
        let x = device.alloc_state(one * n, Tag::Staging).unwrap();
        stream.fill(x.all(), 0, 1).unwrap();
        let mine = x.region(one * u64::from(rank), one);
        let (send, recv) = (x.all(), mine);
        let buf = x.region(0, one);
        let kinds = [
            Collective::AllReduce { buf, dtype, op },
            Collective::ReduceScatter {
                send,
                recv,
                dtype,
                op,
            },
            Collective::Reduce {
                buf,
                dtype,
                op,
                root: 0,
            },
            Collective::AllGather {
                send: mine,
                recv: x.all(),
                dtype,
            },
            Collective::Broadcast {
                buf,
                dtype,
                root: 0,
            },
        ];
        for kind in kinds {
            let before = count();
            comm.group(&stream, &[kind], "test").unwrap();
            stream.sync(Some(SOON)).unwrap();
            let after = count();
            let [messages, bytes, within] = [2, 3, 1].map(|i| after[i] - before[i]);
            lines += &format!("{messages} {bytes} {within}\n");
        }
    }
    let out = std::env::var(OUT).unwrap();
    std::fs::write(Path::new(&out).join(rank.to_string()), lines).unwrap();
    drop((comm, stream, mpi, device));
    r.end();
}

/// Bytes that each host sends to others in the collectives of `sent`, by the formulas of the algorithms. `each`: ranks of each host.
fn formulas(each: &[u64], width: u64, count: u64) -> [Vec<u64>; 5] {
    let (n, hosts) = (each.iter().sum::<u64>(), each.len());
    let (last, others) = (hosts - 1, hosts as u64 - 1);
    // Bytes of the vector or block, and of its sums under way.
    let (s, sums) = (count * width, count * 4);
    let all = |of: &dyn Fn(usize, u64) -> u64| -> Vec<u64> {
        each.iter().enumerate().map(|(h, r)| of(h, *r)).collect()
    };
    let less = |chain: Vec<u64>, owners: Vec<u64>| match chain.iter().max() < owners.iter().max() {
        true => chain,
        false => owners,
    };
    let if_not = |h: usize, at: usize, bytes: u64| if h == at { 0 } else { bytes };
    let all_reduce = match s <= 4096 {
        true => all(&|_, r| r * others * s),
        false => less(
            all(&|h, _| if_not(h, last, sums) + if_not(h, 0, s)),
            all(&|_, r| 2 * r * (n - r) * s / n),
        ),
    };
    // The vector is `n` blocks of `s` bytes.
    let blocks = less(
        all(&|h, r| match h == last {
            true => (n - r) * s,
            false => n * sums,
        }),
        all(&|_, r| r * (n - r) * s),
    );
    let reduce = less(
        all(&|h, _| if h == last { s } else { sums }),
        all(&|h, r| (r * (n - r) + if_not(h, 0, r)) * s / n),
    );
    let gather = all(&|_, r| r * others * s);
    let broadcast = match s > 128 << 10 {
        true => all(&|h, _| if_not(h, last, s)),
        // A binomial tree from the first host.
        false => all(&|h, _| {
            let free = if h == 0 { 64 } else { h.trailing_zeros() };
            let children = (0..free.min(32)).filter(|k| h + (1 << k) < hosts);
            children.count() as u64 * s
        }),
    };
    [all_reduce, blocks, reduce, gather, broadcast]
}

#[test]
fn bytes_between_hosts_are_those_of_the_formulas() {
    let families = families();
    let mut cases: Vec<Vec<u64>> = vec![vec![2, 2], vec![3, 3], vec![1, 2, 2, 1]];
    if every() {
        cases.extend([vec![2, 2, 2, 2], vec![4, 4]]);
    }
    for (i, each) in cases.iter().enumerate() {
        let Some(family) = families.get(i % families.len().max(1)) else {
            return;
        };
        let numbers = each.iter().enumerate();
        let hosts: Vec<u32> = numbers
            .flat_map(|(h, r)| vec![h as u32; *r as usize])
            .collect();
        let out = tempfile::tempdir().unwrap();
        let o = launch(
            family,
            hosts.len() as u32,
            &scene("sent", &hosts),
            out.path(),
        );
        assert!(o.status.success(), "{family} {each:?}: {}", text(&o));
        // Messages and bytes of each host, by collectives.
        let mut got = vec![vec![[0u64; 3]; each.len()]; 15];
        for (rank, host) in hosts.iter().enumerate() {
            let said = std::fs::read_to_string(out.path().join(rank.to_string())).unwrap();
            assert_eq!(said.lines().count(), got.len());
            for (line, got) in said.lines().zip(&mut got) {
                for (word, sum) in line.split(' ').zip(&mut got[*host as usize]) {
                    *sum += word.parse::<u64>().unwrap();
                }
            }
        }
        let vectors = [(4, SHORT), (4, LONG), (2, LONG)];
        for (v, (width, count)) in vectors.into_iter().enumerate() {
            let want = formulas(each, width, count);
            for (kind, want) in want.iter().enumerate() {
                let bytes: Vec<u64> = got[5 * v + kind].iter().map(|g| g[1]).collect();
                assert_eq!(
                    &bytes, want,
                    "{each:?}: vector {v} of {count}, collective {kind}"
                );
            }
            // What plans say of it.
            let n = hosts.len() as u64;
            for (kind, elements, at) in [
                (Kind::AllReduce, count, 0),
                (Kind::ReduceScatter, n * count, 1),
                (Kind::AllGather, n * count, 3),
            ] {
                let call = Call {
                    kind,
                    elements,
                    width,
                    sum: 4,
                    by: Algorithm::Auto,
                };
                let planned = Hosts::new(&hosts).sent(call);
                let planned: Vec<[u64; 2]> =
                    planned.iter().map(|s| [s.between, s.within]).collect();
                let counted: Vec<[u64; 2]> = got[5 * v + at].iter().map(|g| [g[1], g[2]]).collect();
                assert_eq!(counted, planned, "{each:?}: {call:?}");
            }
            let most = got[5 * v].iter().map(|g| g[1]).max();
            if (width, count) == (4, LONG) {
                assert!(most <= Some(2 * width * count), "{each:?}: {most:?}");
            }
        }
        // A short sum is one message to each other host; by each of the ranks to each of the others it would be r (n - r).
        let messages: Vec<u64> = got[0].iter().map(|g| g[0]).collect();
        assert_eq!(messages, vec![each.len() as u64 - 1; each.len()]);
    }
}
