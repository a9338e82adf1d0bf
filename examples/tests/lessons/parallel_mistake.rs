//! Lesson 6: mistakes of parallel code, found in unit tests on one machine and before anything is trained.
//!
//! 1. An MLP that is cut over the ranks of `tp` by hand (Shoeybi et al. 2019): each rank has a part of the inner width, and what the ranks give
//!    is added. Who forgets the sum trains something, and sees it in a loss that is a little too high. The dry run of a block follows how each
//!    value lies over the ranks, and names the unit and what is missing.
//! 2. Rows that depend on who reads them. Two ranks then train on other rows than one; the losses of one rank say in which step.

use crossweave::{DataSource, Team, Trainer};
use crossweave_backend_null::Null;
use crossweave_engine::dry_run;
use crossweave_examples::{Chain, VOCAB, config};
use crossweave_hal::{DType, HostServices, Plugin, RawPlugin};
use crossweave_tensor::{
    Activation, Axis, Block, Builder, Cx, Flow, Init, Param, Pieces, Place, Result, place_on,
};
use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Mutex;

/// x + down(gelu(up(x))), of which each rank computes a part.
struct Mlp {
    up: Param,
    down: Param,
    adds: bool,
}

impl Block for Mlp {
    fn forward(&self, cx: &mut Cx<'_>, flow: Flow) -> Result<Flow> {
        let x = flow.0[0];
        let h = cx.enter(x, Axis::Tp)?;
        let h = cx.linear(h, self.up, None)?;
        let h = cx.activation(h, Activation::GeluTanh)?;
        let mut y = cx.linear(h, self.down, None)?;
        if self.adds {
            y = cx.reduce(y, Axis::Tp)?;
        }
        Ok(Flow(vec![cx.add(x, y)?]))
    }
}

struct Embed(Param);

impl Block for Embed {
    fn forward(&self, cx: &mut Cx<'_>, _: Flow) -> Result<Flow> {
        Ok(Flow(vec![cx.embedding(self.0, None)?]))
    }
}

/// What the dry run of the model says on one of two ranks that share it; with or without the sum.
fn checked(adds: bool) -> std::result::Result<(), Box<dyn Error>> {
    let (width, normal) = (16, Init::Normal(0.02));
    let mut b = Builder::default();
    b.unit("embed", |u| {
        Embed(u.param("weight", &[VOCAB.into(), width], normal))
    });
    b.unit("mlp", |u| {
        // A linear layer has its outputs in dim 0: the first is cut by outputs, the second by inputs.
        let up = u.param("up.weight", &[4 * width, width], normal);
        let down = u.param("down.weight", &[width, 4 * width], normal);
        Mlp {
            up: u.split(up, Axis::Tp, 0, Pieces::One),
            down: u.split(down, Axis::Tp, 1, Pieces::One),
            adds,
        }
    });
    let mut units = b.finish();
    place_on(&mut units, &Place::on(&[(Axis::Tp, 2)], 0)?)?;
    // A device that computes nothing: neither weights nor a second rank are needed.
    let null = Plugin::new(RawPlugin::from_static::<Null>(&HostServices::default())?).open(0)?;
    dry_run(&null, &units, DType::F32, 4, 8)?;
    Ok(())
}

#[test]
fn a_missing_sum_is_named_by_the_dry_run() {
    checked(true).expect("with its sum the block is right");
    let fault = checked(false).expect_err("without it").to_string();
    for part in ["mlp", "add on tp", "reduce the pending sum first"] {
        assert!(fault.contains(part), "{fault}");
    }
}

/// Rows that each rank counts for itself, where they should go by their number: both ranks then train on the same.
#[derive(Default)]
struct Counted(Mutex<BTreeMap<String, u64>>);

impl DataSource for Counted {
    fn seq_len(&self) -> usize {
        Chain.seq_len()
    }
    fn rows(&self) -> u64 {
        Chain.rows()
    }
    fn row(&self, _: u64) -> std::result::Result<Vec<u32>, Box<dyn Error + Send + Sync>> {
        let thread = std::thread::current();
        let rank = thread.name().unwrap_or_default().to_string();
        let mut counts = self.0.lock().map_err(|_| "another rank has failed")?;
        let own = counts.entry(rank).or_default();
        *own += 1;
        Chain.row(*own - 1)
    }
}

/// The first step in which two ranks have another loss than one; none of eight.
fn apart<D: DataSource + 'static>(rows: fn() -> D) -> Option<usize> {
    let losses = |ranks: u32| -> Vec<f64> {
        let dir = tempfile::tempdir().expect("a folder");
        let config = config(&dir.path().join("run"), 8);
        let team = Team::Threads(ranks);
        let mut trainer = Trainer::from_config(config).ranks(team).data(rows());
        let step = |_| trainer.step().expect("a step").loss;
        (0..8).map(step).collect()
    };
    let (one, two) = (losses(1), losses(2));
    let differ = |(a, b): (&f64, &f64)| (a - b).abs() > 1e-4 * a.abs();
    let step = one.iter().zip(&two).position(differ)?;
    Some(step + 1)
}

#[test]
fn two_ranks_have_the_losses_of_one_unless_rows_depend_on_who_reads() {
    assert_eq!(apart(|| Chain), None);
    assert_eq!(apart(Counted::default), Some(1));
}
