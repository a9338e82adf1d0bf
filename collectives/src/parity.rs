//! The law held against what is there: after an all-reduce every rank has the same bits. Each rank hashes its own, the hashes are gathered,
//! and whoever differs is named on every rank. It waits for the device, so it is for finding a back end that is wrong, not for training.

use crate::group::Collectives;
use crossweave_hal::{Code, Collective, DType, Error, Region, Result, Stream, Tag};

impl Collectives {
    /// From now on every all-reduce ends with [`Collectives::same_bits`]. Every rank of the group must say the same.
    pub fn check_bits(&mut self, on: bool) {
        self.checked = on;
    }

    /// Are the bytes of `r` the same on every rank? Every rank of the group calls this.
    ///
    /// # Errors
    /// `Comm`, the same words on every rank: which ranks have other bits than most.
    pub fn same_bits(&mut self, s: &Stream, r: Region<'_>, what: &str) -> Result<()> {
        let (n, me) = (self.size() as usize, self.rank() as usize);
        let mut bytes = vec![0; r.bytes as usize];
        if r.bytes > 0 {
            s.read(r, &mut bytes)?;
        }
        let all = s.device().alloc(s, 8 * n as u64, Tag::Comm)?;
        let mine = all.region(8 * me as u64, 8);
        s.write(mine, &hash(&bytes).to_le_bytes())?;
        let (recv, dtype) = (all.all(), DType::I64);
        self.run(
            s,
            &Collective::AllGather {
                send: mine,
                recv,
                dtype,
            },
        )?;
        let mut words = vec![0; 8 * n];
        s.read(all.all(), &mut words)?;
        let words: Vec<&[u8]> = words.chunks_exact(8).collect();
        let alike = |w: &&[u8]| words.iter().filter(|o| *o == w).count();
        // Of two halves the one with the lower ranks is taken for most.
        let most = words
            .iter()
            .rev()
            .max_by_key(|w| alike(w))
            .copied()
            .unwrap_or_default();
        let odd: Vec<String> = (0..n)
            .filter(|r| words[*r] != most)
            .map(|r| r.to_string())
            .collect();
        if odd.is_empty() {
            return Ok(());
        }
        let (ranks, have) = match odd.len() {
            1 => ("rank", "has"),
            _ => ("ranks", "have"),
        };
        Err(Error::new(
            Code::Comm,
            "check_bits",
            format!(
                "after {what} of {} bytes on {}, {ranks} {} of {n} {have} other bits than the rest: one rank computes each element and the \
                 others copy it, so a back end or a link is wrong",
                r.bytes,
                self.name(),
                odd.join(", ")
            ),
        ))
    }
}

/// 64 bits of any bytes: FNV-1a over words.
fn hash(bytes: &[u8]) -> u64 {
    let mut h = 0xcbf2_9ce4_8422_2325u64 ^ bytes.len() as u64;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        h = (h ^ u64::from_le_bytes(word)).wrapping_mul(0x0000_0100_0000_01b3);
        h ^= h >> 29;
    }
    h
}
