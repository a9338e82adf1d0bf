//! The order of the axes of a mesh changes who is where and no bit.

use crate::support::{Job, Scratch, same};

/// Ranks of a stage without numbers in a row: other ranks do what they did, to the same bits, and a checkpoint goes on in another order.
#[test]
fn the_order_of_axes_changes_no_bit() {
    let s = Scratch::new();
    let job = |order: &str, stage: u32| -> Job<'_> {
        let order = format!("mesh.order={order:?}");
        let stage = format!("zero_optimization.stage={stage}");
        let job = s.job("config.json").ranks(4).set("mesh.pp=2");
        job.set(&order).set(&stage)
    };
    for stage in [0, 3] {
        let [a, b, c] = ["a", "b", "c"].map(|n| format!("{n}{stage}"));
        job("pp,dp", stage).run(&a);
        job("dp,pp", stage).run(&b);
        same(&s.path(&a), &s.path(&b));
        job("dp,pp", stage).steps(2).run(&c);
        job("pp,dp", stage).resume(&c).goes_on();
        same(&s.path(&a), &s.path(&c));
    }
}
