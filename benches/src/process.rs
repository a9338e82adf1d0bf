//! Readings of this process: processor time of all its threads, resident memory and its peak. NaN where the system does not say.

use crossweave_words::Size;
use nix::time::{ClockId, clock_gettime};

/// Processor seconds that this process has used so far, those of threads that have ended included: it never goes back.
pub fn cpu_seconds() -> f64 {
    match clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID) {
        Ok(t) => t.tv_sec() as f64 + t.tv_nsec() as f64 * 1e-9,
        Err(_) => f64::NAN,
    }
}

/// MiB as people read them; NaN is not known.
pub fn mebibytes(mib: f64) -> String {
    match mib.is_nan() {
        true => "not known".into(),
        false => Size((mib.max(0.0) * f64::from(1 << 20)) as u64).to_string(),
    }
}

/// A line of `/proc/self/status` in MiB.
fn status(key: &str) -> f64 {
    let Ok(text) = std::fs::read_to_string("/proc/self/status") else {
        return f64::NAN;
    };
    let kib = text.lines().find_map(|l| {
        l.strip_prefix(key)?
            .strip_prefix(':')?
            .split_whitespace()
            .next()?
            .parse::<f64>()
            .ok()
    });
    kib.map_or(f64::NAN, |k| k / 1024.0)
}

/// Resident memory above what the process held when the meter was made.
pub struct Memory {
    base: f64,
}

impl Memory {
    /// Forgets the peak so far and takes the present as the base.
    pub fn start() -> Memory {
        // Without the right to write it the peak since the start of the process is reported: never too small.
        let _ = std::fs::write("/proc/self/clear_refs", "5");
        Memory {
            base: status("VmRSS"),
        }
    }
    /// MiB at the peak above the base.
    pub fn peak_mib(&self) -> f64 {
        (status("VmHWM") - self.base).max(0.0)
    }
}

/// The load average of the last minute: says how much to believe a wall time.
pub fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace()
        .next()
        .and_then(|w| w.parse().ok())
        .unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_never_goes_back_when_threads_end() {
        let begun = cpu_seconds();
        let mut before = begun;
        for _ in 0..8 {
            let spin = || {
                let mut x = 1u64;
                for i in 0..3_000_000u64 {
                    x = std::hint::black_box(x.wrapping_mul(31).wrapping_add(i));
                }
            };
            std::thread::spawn(spin).join().unwrap();
            let now = cpu_seconds();
            assert!(now >= before, "{now} after {before}");
            before = now;
        }
        // What the threads did still counts now that they are gone.
        assert!(before > begun);
    }
}
