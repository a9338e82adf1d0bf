//! How the engine works: DeepSpeed's `aio` keys, and which engine.

use crate::{ALIGN, Error, Result};

/// Which engine moves the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineKind {
    /// io_uring where the machine allows it, else threads.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// Threads.
    Threads,
    /// None: no file is made and no byte moves, each transfer is over at once. For the rehearsal of a step; no configuration names it.
    Nowhere,
}

impl EngineKind {
    /// The kind of that name, as configurations write it.
    pub fn from_name(name: &str) -> Option<EngineKind> {
        match name {
            "auto" => Some(EngineKind::Auto),
            "io_uring" => Some(EngineKind::Uring),
            "threads" => Some(EngineKind::Threads),
            _ => None,
        }
    }
}

/// How the engine works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bytes of one request to the system; longer transfers are cut into so many. A multiple of [`ALIGN`].
    pub block_size: u64,
    /// Requests the system holds at once.
    pub queue_depth: u32,
    /// Threads of the fallback.
    pub threads: u32,
    /// One system call per request, instead of one for all that wait.
    pub single_submit: bool,
    /// New requests go in while old ones run; else each batch ends before the next begins.
    pub overlap_events: bool,
    /// Which engine.
    pub engine: EngineKind,
    /// Bypass the page cache where the file system can.
    pub direct: bool,
    /// Blocks of the pool.
    pub buffers: usize,
    /// Bytes of a block; rounded up to [`ALIGN`].
    pub buffer_bytes: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            block_size: 1 << 20,
            queue_depth: 8,
            threads: 2,
            single_submit: false,
            overlap_events: true,
            engine: EngineKind::Auto,
            direct: true,
            buffers: 4,
            buffer_bytes: 8 << 20,
        }
    }
}

impl Settings {
    /// Refuses what cannot be.
    pub fn check(&self) -> Result<()> {
        let no = |key, value: u64, why| {
            let value = value.to_string();
            Err(Error::Setting { key, value, why })
        };
        if self.block_size == 0
            || !self.block_size.is_multiple_of(ALIGN)
            || self.block_size > 1 << 30
        {
            return no(
                "aio.block_size",
                self.block_size,
                "must be a multiple of 4096, at most 1 GiB",
            );
        }
        if self.queue_depth == 0 || self.queue_depth > 4096 {
            return no(
                "aio.queue_depth",
                self.queue_depth.into(),
                "must be 1 to 4096",
            );
        }
        if self.threads == 0 || self.threads > 256 {
            return no("aio.thread_count", self.threads.into(), "must be 1 to 256");
        }
        if self.buffers == 0 {
            return no("buffer_count", 0, "must be at least 1");
        }
        if self.buffer_bytes == 0 || self.buffer_bytes > 1 << 40 {
            return no("buffer_size", self.buffer_bytes, "must be 1 byte to 1 TiB");
        }
        Ok(())
    }
}
