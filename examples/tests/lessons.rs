//! Every lesson runs, and its loss falls.

use std::process::Command;

fn losses(program: &str) -> Vec<f64> {
    let out = Command::new(program).output().expect("the lesson starts");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{text}{errors}");
    text.lines()
        .filter_map(|l| l.split_once("loss ")?.1.trim().parse().ok())
        .collect()
}

#[test]
fn a_block_and_a_function_of_ones_own_learn() {
    let l = losses(env!("CARGO_BIN_EXE_01-own-block"));
    assert!(l.len() >= 5, "{l:?}");
    assert!(l[l.len() - 1] < 0.2 * l[0], "{l:?}");
}
