//! The threads of one device: a fork-join team with low latency and a fixed size, so that results never depend on who helped.

/// A fixed number of threads that run `body(task)` for `task` in `0..n`. (First version: runs in place; the device module replaces the inside.)
pub struct Team {
    threads: usize,
}

impl Team {
    /// A team of one: everything runs on the caller.
    pub fn solo() -> Team {
        Team { threads: 1 }
    }

    /// Threads, the caller included.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `body(i)` for `i` in `0..tasks`, any order, any thread; returns when all are done. Kernels choose `tasks` and the split from
    /// shapes alone (or from `threads()` where the split cannot change a bit of the result).
    pub fn run(&self, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
        for i in 0..tasks {
            body(i);
        }
    }
}
