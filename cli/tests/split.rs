//! `mesh.tp` over processes: they have the bits of threads. What else runs over cut layers promise: `train/tests/split.rs`.

use crate::common;
use common::mpi::{families, mpirun, ok, plugin};
use common::{Scratch, same};

/// Between processes as between threads.
#[test]
fn processes_have_the_bits_of_threads() {
    plugin();
    let s = Scratch::new();
    let sets = ["mesh.tp=2", "zero_optimization.stage=1"];
    let threads = ["train", "config.json", "--ranks", "4", "--out", "threads"];
    let cut = sets.iter().flat_map(|set| ["--set", *set]);
    s.ok(&threads.into_iter().chain(cut).collect::<Vec<_>>());
    for family in families() {
        let args = [
            "train",
            "config.json",
            "--out",
            family,
            "--set",
            sets[0],
            "--set",
            sets[1],
        ];
        ok(mpirun(&s, family, 4, &args));
        same(&s.path("threads"), &s.path(family));
    }
}
