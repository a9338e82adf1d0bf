//! Readings of this process from `/proc`: processor time of all threads, resident memory and its peak. NaN where there is no `/proc`.

/// Processor seconds of every living thread of this process, to the nanosecond.
pub fn cpu_seconds() -> f64 {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else {
        return f64::NAN;
    };
    let ns = |path: std::path::PathBuf| -> Option<f64> {
        let text = std::fs::read_to_string(path.join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse().ok()
    };
    tasks.flatten().filter_map(|t| ns(t.path())).sum::<f64>() * 1e-9
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
        status("VmHWM") - self.base
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
