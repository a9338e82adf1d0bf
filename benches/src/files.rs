//! Speed of the files behind offloaded state: the store beside fio on the same file system, or beside a plain loop without it.

use crate::Fallible;
use crossweave_engine::FileSettings;
use crossweave_hal::{Device, Tag};
use crossweave_store::{Store, Ticket};
use serde_json::Value;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Prints GB/s of a store in `dir` on `device`'s pinned memory over a file of `bytes`, beside fio's (`fio`, or the one on PATH) or a
/// plain loop's.
///
/// # Errors
/// The disk; a `fio` that was named and does not run.
pub fn transfers(device: &Device, dir: &Path, bytes: u64, fio: Option<&str>) -> Fallible<()> {
    let store = Store::open(dir, device, Tag::Moment, FileSettings::default())?;
    let file = store.file("bench", bytes)?;
    let block = store.pool().bytes();
    let mut rates = vec![];
    for write in [true, false] {
        let began = Instant::now();
        let mut going = VecDeque::new();
        for at in (0..bytes / block).map(|i| i * block) {
            while going.len() >= store.pool().count() {
                wait(&mut going)?;
            }
            let b = store.pool().take(Duration::from_secs(60))?;
            going.push_back(match write {
                true => store.write(&file, at, b, block)?,
                false => store.read(&file, at, b, block)?,
            });
        }
        while wait(&mut going)? {}
        let moved = bytes / block * block;
        rates.push(moved as f64 / began.elapsed().as_secs_f64() / 1e9);
    }
    let how = if file.is_direct() {
        "direct"
    } else {
        "through the page cache"
    };
    println!(
        "\nfile transfers, {:>10}          write      read",
        crossweave_words::Size(bytes)
    );
    let line = |name: &str, r: &[f64]| println!("{name:32} {:8.2}  {:8.2} GB/s", r[0], r[1]);
    line(&format!("store ({}, {how})", store.engine()), &rates);
    match fio_rates(fio, dir, bytes)? {
        Some(r) => line("fio (direct, depth 8)", &r),
        None => line("plain loop, page cache, synced", &plain(dir, bytes)?),
    }
    Ok(())
}

/// Ends the oldest transfer; whether there was one.
fn wait(going: &mut VecDeque<Ticket>) -> Fallible<bool> {
    match going.pop_front() {
        Some(t) => t.wait().map(|_| true).map_err(|f| f.error.into()),
        None => Ok(false),
    }
}

/// GB/s written and read by fio, if there is one.
fn fio_rates(path: Option<&str>, dir: &Path, bytes: u64) -> Fallible<Option<Vec<f64>>> {
    let file = dir.join("fio");
    let mut rates = vec![];
    for rw in ["write", "read"] {
        let mut c = Command::new(path.unwrap_or("fio"));
        c.args([
            "--name=bench",
            "--bs=1m",
            "--direct=1",
            "--iodepth=8",
            "--ioengine=io_uring",
        ]);
        c.args([
            format!("--rw={rw}"),
            format!("--size={bytes}"),
            "--output-format=json".into(),
        ]);
        c.arg(format!("--filename={}", file.display()));
        let out = match c.output() {
            Ok(out) => out,
            Err(e) if path.is_none() && e.kind() == std::io::ErrorKind::NotFound => {
                return Ok(None);
            }
            Err(e) => return Err(format!("{c:?}: {e}").into()),
        };
        if !out.status.success() {
            return Err(format!("{c:?}: {}", String::from_utf8_lossy(&out.stderr)).into());
        }
        let v: Value = serde_json::from_slice(&out.stdout)?;
        let rate = v["jobs"][0][rw]["bw_bytes"].as_f64();
        rates.push(rate.ok_or("fio printed no bw_bytes")? / 1e9);
    }
    Ok(Some(rates))
}

/// GB/s of the plainest loop: a file written in MiB through the page cache and synced, then read back (from that cache).
fn plain(dir: &Path, bytes: u64) -> Fallible<Vec<f64>> {
    let path = dir.join("plain");
    let mut piece = vec![7u8; 1 << 20];
    let began = Instant::now();
    let mut f = std::fs::File::create(&path)?;
    for _ in 0..bytes >> 20 {
        f.write_all(&piece)?;
    }
    f.sync_all()?;
    let wrote = began.elapsed().as_secs_f64();
    let began = Instant::now();
    let mut f = std::fs::File::open(&path)?;
    for _ in 0..bytes >> 20 {
        f.read_exact(&mut piece)?;
    }
    let read = began.elapsed().as_secs_f64();
    Ok(vec![bytes as f64 / wrote / 1e9, bytes as f64 / read / 1e9])
}
