//! One rank's swap: folder, pool and engine under one owner, and the counters of what passed.

use crate::engine::{Engine, Nowhere, Ticket, ticket};
use crate::piece::cut;
use crate::threads::Threads;
use crate::{Block, BlockFile, EngineKind, Error, Folder, Layer, NoFaults, Pool, Result, Settings};
use crossweave_hal::{Device, Tag};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that went through a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes read from files.
    pub read: u64,
    /// Bytes written to files.
    pub written: u64,
    /// Bytes of all files that were made.
    pub reserved: u64,
}

/// One rank's swap. Dropping it finishes every transfer, then gives memory and disk back.
pub struct Store {
    // Dropped in this order: the engine lets go of blocks and files before either goes.
    engine: Box<dyn Engine>,
    why_threads: Option<String>,
    settings: Settings,
    pool: Pool,
    /// None in a rehearsal.
    folder: Option<Folder>,
    read: Arc<AtomicU64>,
    written: Arc<AtomicU64>,
    reserved: AtomicU64,
}

impl Store {
    /// Opens a store in a new folder inside `parent`; its blocks are pinned memory of `device`, counted under `tag`.
    pub fn open(parent: &Path, device: &Device, tag: Tag, settings: Settings) -> Result<Store> {
        Store::open_with(parent, device, tag, settings, Arc::new(NoFaults))
    }

    /// The same with faults under the engine.
    pub fn open_with(
        parent: &Path,
        device: &Device,
        tag: Tag,
        settings: Settings,
        layer: Arc<dyn Layer>,
    ) -> Result<Store> {
        settings.check()?;
        let folder = match settings.engine {
            EngineKind::Nowhere => None,
            _ => Some(Folder::claim(parent)?),
        };
        let pool = Pool::new(device, settings.buffers, settings.buffer_bytes, tag)?;
        let (engine, why_threads) = engine(&settings, &pool, layer)?;
        Ok(Store {
            engine,
            why_threads,
            settings,
            pool,
            folder,
            read: Arc::default(),
            written: Arc::default(),
            reserved: AtomicU64::new(0),
        })
    }

    /// A new file with `bytes` reserved.
    pub fn file(&self, what: &str, bytes: u64) -> Result<BlockFile> {
        let file = match &self.folder {
            Some(folder) => BlockFile::create(folder, what, bytes, self.settings.direct)?,
            None => BlockFile::nowhere(what, bytes),
        };
        self.reserved.fetch_add(file.bytes(), Ordering::Relaxed);
        Ok(file)
    }
    /// The pool of blocks.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }
    /// The folder of this store; none in a rehearsal.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_ref().map(Folder::path)
    }
    /// `io_uring`, `threads` or `nowhere`.
    pub fn engine(&self) -> &'static str {
        self.engine.name()
    }
    /// Why threads serve although io_uring was welcome.
    pub fn why_threads(&self) -> Option<&str> {
        self.why_threads.as_deref()
    }
    /// What passed so far.
    pub fn counters(&self) -> Counters {
        Counters {
            read: self.read.load(Ordering::Relaxed),
            written: self.written.load(Ordering::Relaxed),
            reserved: self.reserved.load(Ordering::Relaxed),
        }
    }

    /// Reads `bytes` at `offset` into the block's beginning.
    pub fn read(&self, file: &BlockFile, offset: u64, block: Block, bytes: u64) -> Result<Ticket> {
        self.transfer(false, file, offset, block, 0..bytes)
    }
    /// Reads a part of the block at `offset`.
    pub fn read_part(
        &self,
        file: &BlockFile,
        offset: u64,
        block: Block,
        part: std::ops::Range<u64>,
    ) -> Result<Ticket> {
        self.transfer(false, file, offset, block, part)
    }
    /// Writes a part of the block at `offset`.
    pub fn write_part(
        &self,
        file: &BlockFile,
        offset: u64,
        block: Block,
        part: std::ops::Range<u64>,
    ) -> Result<Ticket> {
        self.transfer(true, file, offset, block, part)
    }
    /// Writes the block's first `bytes` at `offset`. Up to the next page the rest of the block may be written too.
    pub fn write(&self, file: &BlockFile, offset: u64, block: Block, bytes: u64) -> Result<Ticket> {
        self.transfer(true, file, offset, block, 0..bytes)
    }

    fn transfer(
        &self,
        write: bool,
        file: &BlockFile,
        offset: u64,
        block: Block,
        part: std::ops::Range<u64>,
    ) -> Result<Ticket> {
        let bytes = part.end.saturating_sub(part.start);
        let fits = offset
            .checked_add(bytes)
            .is_some_and(|end| end <= file.bytes());
        if !fits || part.end > block.bytes() {
            return Err(Error::Request {
                file: file.path().to_path_buf(),
                what: format!(
                    "{bytes} bytes at offset {offset} do not fit a file of {} bytes and a block of {}",
                    file.bytes(),
                    block.bytes()
                ),
            });
        }
        let counted = if write { &self.written } else { &self.read };
        let (reply, waiter) = ticket();
        let size = self.settings.block_size;
        let pieces = cut(
            file.0.clone(),
            write,
            offset,
            block,
            part,
            size,
            reply,
            counted.clone(),
        );
        if !pieces.is_empty() {
            self.engine.submit(pieces);
        }
        Ok(waiter)
    }
}

fn engine(
    settings: &Settings,
    pool: &Pool,
    layer: Arc<dyn Layer>,
) -> Result<(Box<dyn Engine>, Option<String>)> {
    let mut why = None;
    if settings.engine == EngineKind::Nowhere {
        return Ok((Box::new(Nowhere), None));
    }
    #[cfg(target_os = "linux")]
    if settings.engine != EngineKind::Threads {
        // Every block is here: the pool was just made.
        let mut blocks: Vec<Block> = std::iter::from_fn(|| pool.try_take()).collect();
        blocks.sort_by_key(Block::index);
        match crate::uring::Uring::new(settings, &mut blocks, layer.clone()) {
            Ok(ring) => return Ok((Box::new(ring), None)),
            Err(e) => why = Some(format!("io_uring is not available here: {e}")),
        }
    }
    #[cfg(not(target_os = "linux"))]
    if settings.engine != EngineKind::Threads {
        why = Some("io_uring is a Linux interface".to_string());
    }
    if settings.engine == EngineKind::Uring {
        return Err(Error::Setting {
            key: "aio.engine",
            value: "io_uring".into(),
            why: "this machine has or allows no io_uring; write \"auto\" or \"threads\"",
        });
    }
    let threads = Threads::new(settings.threads, layer).map_err(Error::Threads)?;
    Ok((Box::new(threads), why))
}
