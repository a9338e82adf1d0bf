//! The caching pool: best fit over slabs with splitting and joining, and quick lists in front so that the steady state never searches.
//!
//! Freed blocks keep their track ([`crate::track`]); reuse on the same stream costs nothing, reuse on another inserts a wait through
//! the ordinary hazard check. The plugin is asked only for slabs, so the vendor writes no allocator.

use crate::track::Track;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Every block starts and ends on this many bytes.
pub(crate) const GRAIN: u64 = 256;
/// Slabs are at least this big.
const SLAB: u64 = 32 << 20;

/// A block in use: which slab, where, how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Block {
    pub slab: u32,
    pub offset: u64,
    pub bytes: u64,
}

/// The bookkeeping of the pool; slabs are numbered by the code that allocates them.
#[derive(Default)]
pub(crate) struct Pool {
    /// Recently freed, by exact size: the steady state of a training step lives here.
    quick: HashMap<u64, Vec<(Block, Track)>>,
    /// Joined free blocks by (slab, offset).
    free: BTreeMap<(u32, u64), (u64, Track)>,
    /// The same by size.
    by_size: BTreeSet<(u64, u32, u64)>,
}

impl Pool {
    /// Bytes a request occupies.
    pub fn round(bytes: u64) -> u64 {
        bytes.max(1).div_ceil(GRAIN) * GRAIN
    }

    /// Bytes of the slab to ask the plugin for when `take` finds nothing.
    pub fn slab_bytes(rounded: u64) -> u64 {
        if rounded > SLAB / 2 {
            rounded.div_ceil(2 << 20) * (2 << 20)
        } else {
            SLAB
        }
    }

    /// A free block of `rounded` bytes, if there is one. A block last used on `stream` is preferred.
    pub fn take(&mut self, rounded: u64, stream: u32) -> Option<(Block, Track)> {
        if let Some(list) = self.quick.get_mut(&rounded)
            && !list.is_empty()
        {
            let pick = list
                .iter()
                .rposition(|(_, t)| t.uses().all(|u| u.stream == stream))
                .unwrap_or(list.len() - 1);
            return Some(list.swap_remove(pick));
        }
        if let Some(found) = self.best_fit(rounded) {
            return Some(found);
        }
        if self.flush() {
            self.best_fit(rounded)
        } else {
            None
        }
    }

    fn best_fit(&mut self, rounded: u64) -> Option<(Block, Track)> {
        let &(bytes, slab, offset) = self.by_size.range((rounded, 0, 0)..).next()?;
        let (_, track) = self.remove_free(slab, offset)?;
        if bytes > rounded {
            self.insert_free(slab, offset + rounded, bytes - rounded, track.clone());
        }
        Some((
            Block {
                slab,
                offset,
                bytes: rounded,
            },
            track,
        ))
    }

    /// Gives a block back.
    pub fn give(&mut self, block: Block, track: Track) {
        self.quick
            .entry(block.bytes)
            .or_default()
            .push((block, track));
    }

    /// Adds a fresh slab.
    pub fn add_slab(&mut self, slab: u32, bytes: u64) {
        self.join(
            Block {
                slab,
                offset: 0,
                bytes,
            },
            Track::default(),
        );
    }

    /// Joins the quick lists into the free map; says whether there was anything.
    pub fn flush(&mut self) -> bool {
        let mut any = false;
        let mut blocks: Vec<(Block, Track)> =
            self.quick.values_mut().flat_map(std::mem::take).collect();
        blocks.sort_by_key(|(b, _)| *b);
        for (b, t) in blocks {
            any = true;
            self.join(b, t);
        }
        any
    }

    fn join(&mut self, block: Block, mut track: Track) {
        let (mut offset, mut bytes) = (block.offset, block.bytes);
        let before = self
            .free
            .range(..(block.slab, offset))
            .next_back()
            .map(|(k, v)| (*k, v.0));
        if let Some(((s, o), len)) = before
            && s == block.slab
            && o + len == offset
            && let Some((_, t)) = self.remove_free(s, o)
        {
            track.merge(&t);
            offset = o;
            bytes += len;
        }
        if let Some((len, t)) = self.remove_free(block.slab, offset + bytes) {
            track.merge(&t);
            bytes += len;
        }
        self.insert_free(block.slab, offset, bytes, track);
    }

    fn insert_free(&mut self, slab: u32, offset: u64, bytes: u64, track: Track) {
        self.free.insert((slab, offset), (bytes, track));
        self.by_size.insert((bytes, slab, offset));
    }

    fn remove_free(&mut self, slab: u32, offset: u64) -> Option<(u64, Track)> {
        let (bytes, track) = self.free.remove(&(slab, offset))?;
        self.by_size.remove(&(bytes, slab, offset));
        Some((bytes, track))
    }

    /// Slabs that are entirely free, given their sizes; they are taken out of the pool.
    pub fn drain_idle(&mut self, sizes: &HashMap<u32, u64>) -> Vec<u32> {
        self.flush();
        let idle: Vec<(u32, u64)> = self
            .free
            .iter()
            .filter(|((s, o), (b, _))| *o == 0 && sizes.get(s) == Some(b))
            .map(|((s, o), _)| (*s, *o))
            .collect();
        idle.into_iter()
            .filter_map(|(s, o)| self.remove_free(s, o).map(|_| s))
            .collect()
    }

    /// Bytes of all free blocks.
    pub fn free_bytes(&mut self) -> u64 {
        self.flush();
        self.by_size.iter().map(|b| b.0).sum()
    }

    /// `1 - largest free / free`; 0 when nothing is free. Joins first, so it states what an allocation would meet.
    pub fn fragmentation(&mut self) -> f64 {
        let total = self.free_bytes();
        let largest = self.by_size.iter().next_back().map_or(0, |b| b.0);
        if total == 0 {
            0.0
        } else {
            1.0 - largest as f64 / total as f64
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_split_rejoin_and_never_overlap() {
        let mut p = Pool::default();
        p.add_slab(0, 1 << 20);
        let mut live: Vec<Block> = vec![];
        let mut x = 12345u64;
        for _ in 0..4000 {
            x = x
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            if (x >> 33).is_multiple_of(2) || live.is_empty() {
                let want = Pool::round((x >> 40) % 20_000);
                if let Some((b, _)) = p.take(want, 0) {
                    assert!(
                        live.iter()
                            .all(|l| b.offset + b.bytes <= l.offset
                                || l.offset + l.bytes <= b.offset),
                        "{b:?} overlaps"
                    );
                    assert!(b.offset % GRAIN == 0 && b.offset + b.bytes <= 1 << 20);
                    live.push(b);
                }
            } else {
                let i = (x >> 20) as usize % live.len();
                p.give(live.swap_remove(i), Track::default());
            }
        }
        for b in live.drain(..) {
            p.give(b, Track::default());
        }
        assert_eq!(p.fragmentation(), 0.0, "everything rejoins into one block");
        assert!(p.take(1 << 20, 0).is_some());
    }

    #[test]
    fn an_allocation_no_single_freed_block_could_serve_succeeds_after_joining() {
        let mut p = Pool::default();
        p.add_slab(0, 4096);
        let blocks: Vec<Block> = (0..16)
            .filter_map(|_| p.take(256, 0))
            .map(|b| b.0)
            .collect();
        assert!(p.take(256, 0).is_none());
        blocks.into_iter().for_each(|b| p.give(b, Track::default()));
        assert!(p.take(4096, 0).is_some());
    }
}
