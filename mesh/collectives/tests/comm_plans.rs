//! Collective plans: every algorithm proved on symbols for 1 to 64 ranks, broken plans refused in words, costs and traffic equal to their
//! formulas, and identical bits on all ranks whatever vendors that do not exist do to sums.

use crossweave_collectives::comm_plan::numbers::{
    Sum, Vendor, in_rank_order, result, round_bf16, simulate,
};
use crossweave_collectives::comm_plan::verify::verify;
use crossweave_collectives::comm_plan::{
    Algorithm, Buf, CommPlan, Cut, Kind, Move, Nodes, Order, Span, across, cost, hierarchical,
    hierarchical_scatter, plan,
};

fn every_kind(n: u32) -> Vec<Kind> {
    let mut kinds = vec![
        Kind::AllReduce,
        Kind::ReduceScatter,
        Kind::AllGather,
        Kind::AllToAll,
    ];
    // All roots of small groups; first, middle and last of large ones.
    let roots: Vec<u32> = if n <= 9 {
        (0..n).collect()
    } else {
        vec![0, n / 2, n - 1]
    };
    for root in roots {
        kinds.push(Kind::Broadcast { root });
        kinds.push(Kind::Reduce { root });
    }
    kinds
}

#[test]
fn every_algorithm_is_proved_for_1_to_64_ranks() {
    let (mut proved, mut absent) = (0, 0);
    for n in 1..=64u32 {
        let mut counts = vec![0, 1, u64::from(n) + 1];
        if n <= 12 {
            counts.extend([2, u64::from(n) - 1, u64::from(n), 3 * u64::from(n) + 2]);
        }
        for kind in every_kind(n) {
            for algorithm in Algorithm::ALL {
                for &count in &counts {
                    // Elements of one vector, so that 64 ranks stay cheap.
                    let each = kind.data(count, n).max(kind.out(count, n));
                    if n > 24 && each > 66 * 3 {
                        continue;
                    }
                    match plan(kind, algorithm, count, n) {
                        None => absent += 1,
                        Some(p) => {
                            if let Err(e) = verify(&p) {
                                panic!("{} of {count}, {n} ranks: {e}\n{p}", algorithm.name());
                            }
                            proved += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(
        proved > 2000 && absent > 0,
        "{proved} proved, {absent} absent"
    );
}

/// Node shapes: even, uneven, interleaved, of one rank.
fn shapes() -> Vec<Nodes> {
    let shape = |sizes: &[u32]| {
        let mut next = 0;
        let node = |&s: &u32| {
            next += s;
            (next - s..next).collect()
        };
        Nodes::new(sizes.iter().map(node).collect()).unwrap()
    };
    let interleaved = |n: u32, k: u32| {
        Nodes::new(
            (0..k)
                .map(|j| (j..n).step_by(k as usize).collect())
                .collect(),
        )
        .unwrap()
    };
    let mut all: Vec<Nodes> = [
        &[1][..],
        &[3],
        &[1, 1],
        &[2, 2],
        &[1, 3],
        &[4, 2],
        &[2, 2, 2],
        &[1, 2, 5],
        &[3, 3, 3, 3],
        &[1, 1, 1, 1],
        &[8, 1, 2, 4],
    ]
    .map(shape)
    .into();
    all.extend([interleaved(5, 2), interleaved(8, 3), interleaved(12, 4)]);
    all
}

#[test]
fn hierarchical_plans_are_proved_and_cross_as_little_as_the_formula_says() {
    for nodes in shapes() {
        for count in [0, 1, 5, 24, 101] {
            let p = hierarchical(count, &nodes);
            verify(&p).unwrap_or_else(|e| panic!("{nodes:?} of {count}: {e}\n{p}"));
            let k = nodes.iter().count() as u64;
            let sent = across(&p, &nodes);
            // 2 (k-1)/k of the vector leave all nodes together k times: once as parts to their homes, once as results.
            assert_eq!(sent.iter().sum::<u64>(), 2 * (k - 1) * count, "{nodes:?}");
            if count.is_multiple_of(k * u64::from(nodes.lanes())) {
                let each = 2 * (k - 1) * count / k;
                assert!(sent.iter().all(|&s| s == each), "{nodes:?}: {sent:?}");
            }
            let p = hierarchical_scatter(count, &nodes);
            verify(&p).unwrap_or_else(|e| panic!("{nodes:?} of {count} a rank: {e}\n{p}"));
            // A node's sum of a piece leaves it once: for each rank that is not its own.
            let out = nodes
                .iter()
                .map(|m| count * u64::from(nodes.ranks() - m.len() as u32));
            assert_eq!(across(&p, &nodes), out.collect::<Vec<_>>(), "{nodes:?}");
        }
    }
    for (nodes, said) in [
        (vec![vec![0], vec![]], "node 1 has no ranks"),
        (vec![vec![0, 1], vec![1]], "rank 1 is in two nodes"),
        (vec![vec![0, 7]], "rank 7 is listed"),
    ] {
        let e = Nodes::new(nodes).unwrap_err().to_string();
        assert!(e.contains(said), "{e}");
    }
}

#[test]
fn traffic_and_time_equal_the_formulas() {
    let link = cost::Link {
        alpha: 1000.0,
        beta: 1.0,
        gamma: 0.25,
    };
    let close = |a: f64, b: f64, what: &str| assert!((a - b).abs() < 1e-9 * b, "{what}: {a} {b}");
    for n in [2u32, 3, 4, 7, 8, 16] {
        let (s, f) = (u64::from(n) * 96, f64::from(n));
        let whole = s as f64;
        let time = |kind, algorithm, count| {
            let p = plan(kind, algorithm, count, n).unwrap();
            verify(&p).unwrap();
            cost::time(&p, link)
        };
        let ring = plan(Kind::AllReduce, Algorithm::Ring, s, n).unwrap();
        for r in 0..n {
            assert_eq!(ring.sent(r), 2 * s * u64::from(n - 1) / u64::from(n));
            assert_eq!(ring.joined(r), s * u64::from(n - 1) / u64::from(n));
        }
        let share = whole * (f - 1.0) / f;
        let two_phases = |alphas: f64| alphas * link.alpha + 2.0 * share + share * link.gamma;
        close(
            time(Kind::AllReduce, Algorithm::Ring, s),
            two_phases(2.0 * (f - 1.0)),
            "ring",
        );
        close(
            time(Kind::AllReduce, Algorithm::Direct, s),
            two_phases(2.0 * (f - 1.0)),
            "direct",
        );
        if n.is_power_of_two() {
            let log = f.log2();
            let halving = time(Kind::AllReduce, Algorithm::Halving, s);
            close(halving, two_phases(2.0 * log), "halving");
            let tree = time(Kind::AllReduce, Algorithm::Tree, s);
            let up = log * (link.alpha + whole) + log * whole * link.gamma;
            close(tree, up + log * (link.alpha + whole), "tree");
        }
        let rounds = f64::from(n.next_power_of_two().ilog2());
        close(
            time(Kind::AllGather, Algorithm::Halving, s / u64::from(n)),
            rounds * link.alpha + share,
            "Bruck",
        );
        close(
            time(Kind::AllToAll, Algorithm::Direct, s / u64::from(n)),
            (f - 1.0) * link.alpha + share,
            "pairwise",
        );
    }
}

/// Breaks a plan in one place.
fn broken(how: &str) -> CommPlan {
    let mut p = plan(Kind::AllReduce, Algorithm::Ring, 12, 3).unwrap();
    let rounds = &mut p.ranks[1].rounds;
    match how {
        "a send left out" => {
            rounds[0].retain(|m| !matches!(m, Move::Send { .. }));
        }
        "a shorter receive" => {
            for m in &mut rounds[0] {
                if let Move::Recv { span, .. } = m {
                    span.n -= 1;
                }
            }
        }
        "a fold left out" => {
            rounds.remove(1);
        }
        "a fold done twice" => {
            let again = rounds[1].clone();
            rounds.insert(2, again);
        }
        "a fold in the round of its receive" => {
            let fold = rounds.remove(1);
            rounds[0].extend(fold);
        }
        "the wrong peer" => {
            for m in &mut rounds[0] {
                if let Move::Send { to, .. } = m {
                    *to = 0;
                }
            }
        }
        "a rank that does not exist" => {
            for m in &mut rounds[0] {
                if let Move::Send { to, .. } = m {
                    *to = 3;
                }
            }
        }
        "outside the vector" => {
            for m in &mut rounds[0] {
                if let Move::Send { span, .. } = m {
                    span.at = 100;
                }
            }
        }
        "a ring that sums everywhere" => {
            // Every rank adds all three vectors itself, beginning with its own: sums of three built differently.
            p = CommPlan {
                kind: Kind::AllReduce,
                count: 2,
                rank_order: false,
                ranks: (0..3u32)
                    .map(|me| {
                        let own = Span::new(Buf::Data, 0, 2);
                        let slot = |k: u64| Span::new(Buf::Scratch, 2 * k, 2);
                        let mut swap = vec![];
                        let mut parts = vec![own];
                        for (k, step) in (1..3).enumerate() {
                            let peer = (me + step) % 3;
                            swap.push(Move::Send {
                                span: own,
                                to: peer,
                            });
                            let span = slot(k as u64);
                            swap.push(Move::Recv { span, from: peer });
                            parts.push(span);
                        }
                        let fold = Move::Fold {
                            dst: own,
                            parts,
                            by: Order::Given,
                        };
                        crossweave_collectives::comm_plan::RankPlan {
                            scratch: 4,
                            rounds: vec![swap, vec![fold]],
                            inside: None,
                        }
                    })
                    .collect(),
            };
        }
        "a cycle of sends" => {
            // Each sends first and receives in the round after: comes through only with buffers nobody promised.
            let span = Span::new(Buf::Data, 0, 12);
            for (r, p) in p.ranks.iter_mut().enumerate() {
                let (to, from) = ((r as u32 + 1) % 3, (r as u32 + 2) % 3);
                p.rounds = vec![
                    vec![Move::Send { span, to }],
                    vec![Move::Recv { span, from }],
                ];
            }
        }
        "said to be in rank order" => p.rank_order = true,
        _ => unreachable!("no such mutant"),
    }
    p
}

#[test]
fn broken_plans_are_refused_in_words() {
    for (how, said) in [
        ("a send left out", "is joined with element 4"),
        ("a shorter receive", "4 elements meets a receive of 3"),
        ("a fold left out", "lacks a rank's input"),
        ("a fold done twice", "enters the sum twice"),
        ("a fold in the round of its receive", "in one round"),
        ("the wrong peer", "waits for ever"),
        ("a rank that does not exist", "no such other rank"),
        ("outside the vector", "outside its vector"),
        (
            "a ring that sums everywhere",
            "the sum rank 0 has, bit by bit",
        ),
        ("a cycle of sends", "waits for ever"),
        ("said to be in rank order", "not summed in rank order"),
    ] {
        let e = verify(&broken(how)).expect_err(how).to_string();
        assert!(e.contains(said), "{how}: {e}");
    }
    // Text shows the plan one would look at.
    let text = plan(Kind::AllReduce, Algorithm::Direct, 4, 2)
        .unwrap()
        .to_string();
    assert!(
        text.contains("rank order") && text.contains("send data[2..4] to 1"),
        "{text}"
    );
}

/// A generator of random numbers (splitmix64): cases must be the same on every machine.
struct Random(u64);
impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    /// Values of all sizes, that cancel, swamp each other, or are subnormal.
    fn value(&mut self) -> f32 {
        let x = (self.below(2001) as f32 - 1000.0) / 1024.0;
        x * [1.0, 1.0, 300.0, 1e-3, 1e30, 1e-38, 3e-42][self.below(7) as usize]
    }
    fn vendor(&mut self) -> Vendor {
        Vendor {
            order: [Sum::Forward, Sum::Reverse, Sum::Tree][self.below(3) as usize],
            rounds_each: self.below(3) == 0,
            flushes: self.below(3) == 0,
        }
    }
}

#[test]
fn all_ranks_get_identical_bits_from_vendors_that_add_differently() {
    let mut random = Random(7);
    let (mut cases, mut differ) = (0, 0);
    while cases < 12_000 {
        let n = 1 + random.below(9) as u32;
        let count = random.below(23);
        // A vendor an island; its ranks add alike.
        let islands = 1 + random.below(u64::from(n).min(4)) as u32;
        let mut nodes = vec![vec![]; islands as usize];
        for r in 0..n {
            let k = if r < islands {
                u64::from(r)
            } else {
                random.below(u64::from(islands))
            };
            nodes[k as usize].push(r);
        }
        let vendors: Vec<Vendor> = (0..islands).map(|_| random.vendor()).collect();
        let mut of_rank = vec![Vendor::PLAIN; n as usize];
        for (k, ranks) in nodes.iter().enumerate() {
            ranks.iter().for_each(|&r| of_rank[r as usize] = vendors[k]);
        }
        let nodes = Nodes::new(nodes).unwrap();
        let narrow = random.below(2) == 0;
        let inputs: Vec<Vec<f32>> = (0..n)
            .map(|_| {
                let value = |_| match (random.value(), narrow) {
                    (x, true) => round_bf16(x),
                    (x, false) => x,
                };
                (0..count).map(value).collect()
            })
            .collect();
        let same = |p: &CommPlan, who: &[Vendor]| -> Vec<f32> {
            let ends = simulate(p, who, &inputs).expect("the plan runs to its end");
            let first = result(p, &ends[0]);
            for (r, e) in ends.iter().enumerate() {
                let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                let (a, b) = (bits(&result(p, e)), bits(&first));
                assert_eq!(a, b, "rank {r} of {of_rank:?}, {nodes:?}");
            }
            first
        };
        // The vendors' own sums inside islands: identical on all ranks, though not what one vendor alone would give.
        let mixed = same(&hierarchical(count, &nodes), &of_rank);
        // Rank order: the bits of the homogeneous job, whichever ranks take part.
        let direct = plan(Kind::AllReduce, Algorithm::Direct, count, n).unwrap();
        let ordered = same(&direct, &of_rank);
        for (i, x) in ordered.iter().enumerate() {
            assert_eq!(x.to_bits(), in_rank_order(&inputs, i).to_bits());
        }
        differ += usize::from(
            mixed
                .iter()
                .zip(&ordered)
                .any(|(a, b)| a.to_bits() != b.to_bits()),
        );
        for algorithm in [Algorithm::Ring, Algorithm::Halving, Algorithm::Tree] {
            same(
                &plan(Kind::AllReduce, algorithm, count, n).unwrap(),
                &of_rank,
            );
        }
        cases += 1;
    }
    // The vendors do add differently: else this test would prove nothing.
    assert!(differ > cases / 10, "{differ} of {cases}");
}

#[test]
fn all_reduce_is_reduce_scatter_then_all_gather() {
    let mut random = Random(11);
    for n in 1..=9u32 {
        for piece in [1u64, 3] {
            let count = piece * u64::from(n);
            let inputs: Vec<Vec<f32>> = (0..n)
                .map(|_| (0..count).map(|_| random.value()).collect())
                .collect();
            let plain = vec![Vendor::PLAIN; n as usize];
            for algorithm in [Algorithm::Direct, Algorithm::Ring] {
                let made = |kind, count| plan(kind, algorithm, count, n).unwrap();
                let whole = simulate(&made(Kind::AllReduce, count), &plain, &inputs).unwrap();
                let scattered =
                    simulate(&made(Kind::ReduceScatter, piece), &plain, &inputs).unwrap();
                let pieces: Vec<Vec<f32>> = scattered.into_iter().map(|(_, out)| out).collect();
                let gathered = simulate(&made(Kind::AllGather, piece), &plain, &pieces).unwrap();
                // The ring in place ends each piece one rank earlier than the ring that scatters, so its sums begin elsewhere.
                if algorithm == Algorithm::Direct {
                    for (w, g) in whole.iter().zip(&gathered) {
                        assert_eq!(w.0, g.1, "{n} ranks");
                    }
                }
                for (_, out) in &gathered {
                    assert_eq!(*out, gathered[0].1, "{n} ranks");
                }
            }
        }
    }
}

#[test]
fn cuts_cover_everything_once() {
    for count in [0u64, 1, 5, 64, 101] {
        for owners in 1..9u32 {
            let cut = Cut::new(count, owners);
            assert_eq!((cut.at(0), cut.at(owners)), (0, count));
            let (least, most) = (cut.len(owners - 1), cut.len(0));
            assert!(most - least <= 1);
        }
    }
}
