//! What blocks exchange before anything runs: the dry run has the shapes, the bytes and the collectives of its rank's place, ranks that
//! exchange different things are named, and what cannot be exchanged is refused in a sentence.

use crate::transitions::{DIM, Rows, TOKENS, on_ranks};
use crossweave_engine::{Dry, MeshGroups, dry_run};
use crossweave_hal::{Bootstrap, Counts, DType, Device, HostServices, Plugin, RawPlugin};
use crossweave_mesh::{Axis, Mesh, MeshOptions, Place, Topology};
use crossweave_plan::{Facts, Peer, Plan, check_world};
use crossweave_tensor::{
    Block, Builder, Cx, Decompositions, Exchange, Flow, Groups, Init, KernelCache, Lane, Link,
    Param, Rehearsed, Result, Run, Shape, UnitDecl, Var, place_on,
};
use std::cell::RefCell;
use std::time::Duration;

/// For a rank that meets nobody.
struct Nobody;
impl Bootstrap for Nobody {
    fn set(&self, _: &str, _: &[u8]) -> crossweave_hal::Result<()> {
        Ok(())
    }
    fn get(&self, _: &str, _: Duration) -> crossweave_hal::Result<Vec<u8>> {
        Ok(vec![0; 8])
    }
}

fn null() -> Device {
    let host = HostServices::default();
    let raw = RawPlugin::from_static::<crossweave_backend_null::Null>(&host).unwrap();
    Plugin::new(raw).open(0).unwrap()
}

/// A table of tokens.
struct Table(Param);
impl Block for Table {
    fn forward(&self, cx: &mut Cx<'_>, _: Flow) -> Result<Flow> {
        Ok(Flow(vec![cx.embedding(self.0, None)?]))
    }
}

/// Something done to the hidden state.
struct Moving(fn(&mut Cx<'_>, Var) -> Result<Var>);
impl Block for Moving {
    fn forward(&self, cx: &mut Cx<'_>, f: Flow) -> Result<Flow> {
        Ok(Flow(vec![(self.0)(cx, f.0[0])?]))
    }
}

/// A cut MLP over rows that are cut; what it gives every rank has.
struct Back(Rows);
impl Block for Back {
    fn forward(&self, cx: &mut Cx<'_>, f: Flow) -> Result<Flow> {
        let x = match self.0.again {
            true => cx.gather_again(f.0[0], Axis::Tp, 1)?,
            false => cx.gather(f.0[0], Axis::Tp, 1)?,
        };
        let h = cx.linear(x, self.0.up, None)?;
        let h = cx.silu(h)?;
        let d = cx.linear(h, self.0.down, None)?;
        Ok(Flow(vec![cx.reduce(d, Axis::Tp)?]))
    }
}

/// A table, rows that are cut, `f` of them, and an MLP behind their gather.
fn chain(again: bool, f: fn(&mut Cx<'_>, Var) -> Result<Var>) -> Vec<UnitDecl> {
    let mut b = Builder::default();
    b.unit("embed", |u| {
        Table(u.param("weight", &[32, DIM], Init::Normal(0.02)))
    });
    b.unit("slice", |_| Moving(|cx, x| cx.slice(x, Axis::Tp, 1)));
    b.unit("moves", |_| Moving(f));
    b.unit("back", |u| Back(Rows::declare(u, again)));
    b.finish()
}

/// The dry run of a rank of `n` along tp.
fn dry(units: &[UnitDecl], (rank, n): (u32, u32)) -> std::result::Result<Dry, String> {
    let mut units = units.to_vec();
    place_on(&mut units, &Place::on(&[(Axis::Tp, n)], rank).unwrap()).unwrap();
    let found = dry_run(&null(), &units, DType::F32, 2, TOKENS);
    found.map_err(|e| e.to_string())
}

/// The facts of every rank.
fn facts(units: &[UnitDecl], n: u32) -> Vec<Facts> {
    let of = |rank| Facts {
        units: dry(units, (rank, n)).unwrap().units,
        micro_batches: 1,
        ranks: 1,
        ..Facts::default()
    };
    (0..n).map(of).collect()
}

fn hold(n: u32, plan: &str, facts: &[Facts]) -> std::result::Result<(), String> {
    let plan: Plan = plan.parse().unwrap();
    let mesh = Topology::new(&[(Axis::Tp, n)]).unwrap();
    let ranks: Vec<_> = facts.iter().map(|f| (&plan, f)).collect();
    check_world(&mesh, &ranks).map_err(|e| e.to_string())
}

const PLAN: &str = "F0.0 F1.0 F2.0 F3.0 B3.0 B2.0 B1.0 B0.0";

/// The dry run has the shapes, the bytes and the collectives of its rank's place, in the order in which they are made.
#[test]
fn the_dry_run_has_the_sizes_of_the_place() {
    let (all, bytes) = (2 * TOKENS * DIM, 4 * 2 * TOKENS * DIM);
    for n in [2u32, 3, 4] {
        let part = bytes / u64::from(n);
        let [kept, again] =
            [false, true].map(|again| dry(&chain(again, |cx, x| cx.silu(x)), (0, n)).unwrap());
        for found in [&kept, &again] {
            let shape = Shape::new(&[2, TOKENS / u64::from(n), DIM]);
            assert_eq!(found.flows[1], [(shape, DType::F32)]);
            let sizes = [1, 2, 3].map(|u| (found.units[u].saved_input, found.units[u].flow_bytes));
            assert_eq!(sizes, [(bytes, part), (part, part), (part, bytes)]);
            assert_eq!(found.units[2].saved_all, part);
        }
        // What is made again is not kept, and what it is made of is.
        let saved = |d: &Dry| [d.units[3].saved_all, d.units[3].saved_selective];
        assert_eq!(saved(&again), saved(&kept).map(|b| b - bytes + part));
        let said = |d: &Dry, backward: bool| -> Vec<(String, &str, u64, bool)> {
            let talk = &d.units[3].talk;
            let list = if backward {
                &talk.backward
            } else {
                &talk.forward
            };
            let each = list
                .iter()
                .map(|s| (s.what.clone(), s.moves.clone().unwrap()));
            each.map(|(what, m)| (what, m.kind, m.elements, m.again))
                .collect()
        };
        let one = |op: &str, kind, again| (format!("{op} of {all} elements"), kind, all, again);
        for d in [&kept, &again] {
            let forward = [
                one("gather", "all_gather", false),
                one("reduce", "all_reduce", false),
            ];
            assert_eq!(said(d, false), forward);
        }
        let scattered = one("gather", "reduce_scatter", false);
        assert_eq!(said(&kept, true), std::slice::from_ref(&scattered));
        assert_eq!(
            said(&again, true),
            [one("gather", "all_gather", true), scattered]
        );
        hold(n, PLAN, &facts(&chain(true, |cx, x| cx.silu(x)), n)).unwrap();
    }
    // What is not given back to all ranks is no loss.
    let mut short = chain(false, |cx, x| cx.silu(x));
    short.pop();
    let e = dry(&short, (0, 2)).unwrap_err();
    assert!(e.contains("the loss on tp: wants I, got V"), "{e}");
}

/// Ranks whose blocks move other numbers of elements, of another type, or other messages, are named before anything runs.
#[test]
fn ranks_that_exchange_different_things_are_named() {
    let ring = |cx: &mut Cx<'_>, x: Var| cx.shift(x, Axis::Tp, 1);
    for n in [2u32, 3, 4] {
        let right = facts(&chain(true, ring), n);
        hold(n, PLAN, &right).unwrap();
        let elements = 2 * TOKENS * DIM / u64::from(n);
        let peer = |ahead, sends| Peer {
            ahead,
            elements,
            sends,
        };
        let moves = right[0].units[2].talk.forward[0].moves.clone().unwrap();
        assert_eq!((moves.kind, moves.ranks), ("messages", n));
        assert_eq!(moves.peers, [peer(1, true), peer(n - 1, false)]);
        let wrong = |change: &dyn Fn(&mut crossweave_plan::Moves), unit: usize, words: &[&str]| {
            let mut all = right.clone();
            let said = &mut all[1].units[unit].talk.forward[0];
            change(said.moves.as_mut().unwrap());
            let e = hold(n, PLAN, &all).unwrap_err();
            assert!(words.iter().all(|w| e.contains(w)), "{n} ranks: {e}");
        };
        wrong(&|m| m.elements += 1, 3, &["over tp", "gather", "rank 0"]);
        wrong(&|m| m.dtype = "bf16", 3, &["over tp", "gather", "rank 0"]);
        let twice = (2 * elements).to_string();
        wrong(
            &|m| m.peers[0].elements *= 2,
            2,
            &[
                "over tp",
                "shift",
                "sends",
                &twice,
                "expects",
                &elements.to_string(),
            ],
        );
        wrong(
            &|m| m.peers.truncate(1),
            2,
            &["over tp", "shift", "expects []"],
        );
    }
}

/// Every exchange that its ranks cannot make is one sentence with the op, the axis and the numbers; the same in the dry run and in a job.
#[test]
fn what_cannot_be_exchanged_is_refused() {
    let refused = |groups: &dyn Groups, run: &Run<'_>, words: &[(usize, &[&str])]| {
        let t = |n: u64| run.zeros([n], DType::F32).unwrap();
        let (a, b, c, wide) = (t(4), t(7), t(8), run.zeros([8], DType::Bf16).unwrap());
        let turned = t(12).view([3, 4]).t();
        let counts = |send: &[u64], recv_at: &[u64]| Counts {
            send: send.to_vec(),
            send_at: vec![0; send.len()],
            recv: vec![2, 2],
            recv_at: recv_at.to_vec(),
        };
        let [short, far] = [counts(&[4], &[0, 2]), counts(&[2, 2], &[0, 3])];
        let v = |counts| Exchange::AllToAllV {
            send: &a,
            recv: &a,
            counts,
        };
        let cases = [
            Exchange::AllGather { send: &a, recv: &b },
            Exchange::ReduceScatter { send: &b, recv: &a },
            Exchange::AllToAll { send: &b, recv: &b },
            Exchange::AllToAll { send: &a, recv: &c },
            Exchange::AllGather {
                send: &a,
                recv: &wide,
            },
            Exchange::AllReduce(&turned),
            Exchange::Send { to: 2, what: &a },
            Exchange::Recv { from: 5, what: &a },
            v(&short),
            v(&far),
        ];
        assert_eq!(words.len(), cases.len());
        for (i, words) in words {
            let on = Link::new("dispatch", Axis::Tp);
            let e = groups.exchange(run, &on, &cases[*i..=*i]).unwrap_err();
            let e = e.to_string();
            let all = ["dispatch", "over tp of 2 ranks"]
                .iter()
                .chain(words.iter());
            all.for_each(|w| assert!(e.contains(w), "{w:?} is not in {e:?}"));
        }
    };
    let words: [(usize, &[&str]); 10] = [
        (0, &["all_gather", "make 8", "room for 7"]),
        (1, &["reduce_scatter", "make 8", "7 are given"]),
        (2, &["all_to_all", "7 elements"]),
        (3, &["all_to_all", "4 elements", "8 come"]),
        (4, &["all_gather", "f32[4]", "bf16[8]", "one type"]),
        (5, &["all_reduce", "strided", "[4, 3]", "copy it"]),
        (6, &["send", "no rank 2", "the last is 1"]),
        (7, &["recv", "no rank 5"]),
        (8, &["all_to_all_v", "sends 1 pieces", "one for each rank"]),
        (
            9,
            &[
                "all_to_all_v",
                "from 3 on",
                "receives with rank 1",
                "within 4",
            ],
        ),
    ];
    on_ranks(2, |device, groups, _| {
        let stream = device.stream("compute", 0).unwrap();
        let cache = RefCell::new(KernelCache::default());
        let run = Run::new(&stream, &Decompositions, &cache);
        refused(groups, &run, &words);
        let place = Place::on(&[(Axis::Tp, 2)], 0).unwrap();
        refused(&Rehearsed::of(place), &run, &words);
        let plain = MeshGroups::new(alone(device));
        let on = Link {
            lane: Lane::Beside,
            ..Link::new("dispatch", Axis::Tp)
        };
        let t = run.zeros([4], DType::F32).unwrap();
        let e = plain
            .exchange(&run, &on, &[Exchange::AllReduce(&t)])
            .unwrap_err();
        assert!(e.to_string().contains("no stream beside"), "{e}");
    });
    type Run1 = fn(&mut Cx<'_>, Var) -> Result<Var>;
    let cases: [(Run1, &[&str]); 4] = [
        (
            |cx, x| cx.slice(x, Axis::Tp, 1),
            &["slice over tp", "5 ranks", "dim 1", "multiple"],
        ),
        (
            |cx, x| cx.slice(x, Axis::Tp, 3),
            &["slice over tp", "no dim 3"],
        ),
        (
            |cx, x| cx.all_to_all(x, Axis::Tp, [1, 2]),
            &["all_to_all over tp", "5 ranks", "dim 1"],
        ),
        (
            |cx, x| cx.scatter(x, Axis::Tp, 0),
            &["scatter over tp", "5 ranks", "dim 0"],
        ),
    ];
    for (f, words) in cases {
        let mut b = Builder::default();
        b.unit("embed", |u| {
            Table(u.param("weight", &[32, DIM], Init::Normal(0.02)))
        });
        b.unit("moves", |_| Moving(f));
        let e = dry(&b.finish(), (0, 5)).unwrap_err();
        let all = words.iter().chain(&["dry run of moves"]);
        all.for_each(|w| assert!(e.contains(w), "{w:?} is not in {e:?}"));
    }
}

/// A mesh of one rank.
fn alone(device: &Device) -> Mesh {
    let (place, tp) = (Place::alone(), [Axis::Tp]);
    Mesh::new(device, &Nobody, place, &tp, &MeshOptions::default()).unwrap()
}
