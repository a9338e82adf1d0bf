//! What the benches share: options from the command line, readings of the process, statistics, and the models of the peer scripts.
//!
//! Each bench is a program under `src/bin`; none runs under `cargo test`, because a timed test fails on a busy machine.
#![forbid(unsafe_code)]

pub mod files;
pub mod options;
pub mod presets;
pub mod process;
pub mod update;

/// What a bench returns: any failure ends it.
pub type Fallible<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The middle of some figures (the mean of the two in the middle of an even number); NaN for none.
pub fn median(values: &[f64]) -> f64 {
    let mut v = values.to_vec();
    v.sort_by(f64::total_cmp);
    match v.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => v[n / 2],
        n => (v[n / 2 - 1] + v[n / 2]) / 2.0,
    }
}

/// The least of some figures; infinity for none.
pub fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}
