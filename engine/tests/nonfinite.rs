//! Where a value stops being finite is reported by rank, step of the plan, layer, op and parameter, the same on every rank.

use crate::common;
use common::{gpt2, ranked, spec, units, world};
use crossweave_engine::{Engine, MicroBatch, StateKind, dry_run};
use crossweave_hal::{Bootstrap, KvStore, LocalKv, Result};
use std::sync::Arc;
use std::time::Duration;

struct Boot(Arc<LocalKv>);
impl Bootstrap for Boot {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.0.set(key, value)
    }
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        self.0.get(key, Some(timeout))
    }
}

/// Three steps on `ranks` ranks, before which `plant` may change a rank's parameters; each rank's error, if any.
fn errors(ranks: u32, plant: impl Fn(&mut Engine, u32) + Sync) -> Vec<Option<String>> {
    let w = world();
    let kv = Arc::new(LocalKv::default());
    let s = spec(ranks, 1);
    let one = |rank: u32| {
        let model = gpt2(2, 0.1);
        let units = units(&model);
        let null = w.null.open(0).unwrap();
        let dry = dry_run(&null, &units, s.compute, s.rows.batch, s.rows.seq_len).unwrap();
        let device = w.cpu.open(rank).unwrap();
        let spec = ranked(&s, rank);
        let mut t = w
            .rank(&device, units, &spec, &dry, &Boot(kv.clone()))
            .unwrap();
        t.init().unwrap();
        t.find_nonfinite();
        plant(&mut t, rank);
        let n = (s.rows.batch * s.rows.seq_len) as usize;
        let ids: Vec<i32> = (0..n).map(|i| (i % 31) as i32).collect();
        let batch = MicroBatch {
            tokens: &ids,
            targets: &ids,
            lengths: &[],
            images: &[],
            first_sequence: u64::from(rank) * s.rows.batch,
        };
        for _ in 0..3 {
            if let Err(e) = t.step(&[batch], 1e-3) {
                return Some(e.to_string());
            }
            t.metrics().unwrap();
        }
        None
    };
    std::thread::scope(|scope| {
        let one = &one;
        let all: Vec<_> = (0..ranks).map(|r| scope.spawn(move || one(r))).collect();
        all.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn overwrite(t: &mut Engine, part: &str, value: f32) -> String {
    let name = t
        .params()
        .into_iter()
        .map(|p| p.name)
        .find(|n| n.contains(part));
    let name = name.expect("a parameter of that name");
    let numel = t
        .params()
        .iter()
        .find(|p| p.name == name)
        .unwrap()
        .shape
        .numel();
    let mut values = vec![0.01; numel as usize];
    values[5] = value;
    t.load(&name, StateKind::Value, 0, &values).unwrap();
    t.publish().unwrap();
    name
}

#[test]
fn a_planted_nan_is_named_on_all_ranks_by_the_rank_that_has_it() {
    assert_eq!(errors(3, |_, _| ()), [None, None, None]);
    let ends = errors(3, |t, rank| {
        if rank == 1 {
            overwrite(t, "h.1.mlp.c_fc.weight", f32::NAN);
        }
    });
    let first = ends[0].clone().expect("an error");
    for end in &ends {
        assert_eq!(end.as_ref(), Some(&first));
    }
    for part in [
        "not finite: step 1, rank 1, plan step ",
        "forward of micro-batch 0 in layer ",
        "h.1",
        "op matmul",
        "because its input was not finite already",
        "parameter ",
        "h.1.mlp.c_fc.weight",
        "1 of 900 values NaN or infinite",
    ] {
        assert!(first.contains(part), "{part:?} not in {first}");
    }
}

#[test]
fn an_op_that_makes_an_infinity_of_finite_inputs_is_named() {
    // A gain so large that what is further than one deviation from the mean overflows.
    let ends = errors(2, |t, _| {
        let gain = t
            .params()
            .into_iter()
            .find(|p| p.name.ends_with("h.0.ln_1.weight"));
        let gain = gain.expect("a gain");
        let values = vec![3e38; gain.shape.numel() as usize];
        t.load(&gain.name, StateKind::Value, 0, &values).unwrap();
        t.publish().unwrap();
    });
    let first = ends[0].clone().expect("an error");
    assert_eq!(ends[1].as_ref(), Some(&first));
    for part in ["step 1, rank 0, plan step ", "from inputs that are finite"] {
        assert!(first.contains(part), "{part:?} not in {first}");
    }
}
