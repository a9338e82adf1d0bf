//! `crossweave report`: the page of a run, that of two side by side, and event files on request.

use crate::args::ReportArgs;
use crate::error::{CliError, Result};
use crate::say::say;
use crate::train_error::TrainError;
use crossweave_report as report;
use std::path::PathBuf;

/// Runs the command.
///
/// # Errors
/// No metrics; files that cannot be understood or written.
pub fn run(args: &ReportArgs) -> Result<()> {
    let peak = args.peak_tflops.map(|t| t * 1e12);
    let read = |dir: &PathBuf| report::read(dir, peak);
    let runs = args.dirs.iter().map(read);
    let runs = runs.collect::<std::result::Result<Vec<_>, _>>()?;
    let path = match (&args.out, args.dirs.as_slice()) {
        (Some(out), _) => {
            let page = |e: &std::ffi::OsStr| e.eq_ignore_ascii_case("html");
            if !out.extension().is_some_and(page) {
                // A slip such as `--out runs/b` would else write over what is there.
                return Err(CliError::refused(
                    format!("--out {}: is no .html file", out.display()),
                    "name a file that ends in .html; for a comparison give both folders before --out",
                ));
            }
            TrainError::not_a_file("--out", out)?;
            out.clone()
        }
        (None, [dir, ..]) => dir.join("report.html"),
        (None, []) => PathBuf::from("report.html"),
    };
    match runs.as_slice() {
        [a, b] => {
            let path = match (&args.out, args.dirs.first()) {
                (None, Some(dir)) => dir.join(format!("report-against-{}.html", b.name)),
                _ => path,
            };
            report::write_comparison(a, b, &path)?;
            say!("{}", path.display());
        }
        all => {
            for run in all {
                report::write_page(run, &path)?;
            }
            say!("{}", path.display());
        }
    }
    for dir in args.dirs.iter().filter(|_| args.tensorboard) {
        say!("{}", report::events(dir)?.display());
    }
    Ok(())
}
