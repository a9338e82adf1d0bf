//! Compares the values of collectives between ranks: results that are the same on all ranks are hashed and the hashes
//! compared; a collective whose results differ from rank to rank is repeated into scratch memory and must give the same
//! bits. What a message or a memory has changed is found at the collective it came through, and the rank is named.
//!
//! This reads each collective's result back and waits for it, so it is enabled by `run.check` and not always on. Sends and
//! receives are not covered: no other rank has their bits.

use crate::faults::flip;
use crate::group::Collectives;
use crate::route::overlap;
use crossweave_hal::{
    Buffer, Code, Collective, CommTag, Counts, DType, Error, GroupRank, Region, Result, Stream, Tag,
};
use std::hash::{DefaultHasher, Hasher};
use std::panic::Location;

/// Ledger tag of what is sent for it.
const TAG: CommTag = "check";

/// The word of a rank whose repetition gave the same bits, or that has nothing to compare.
const SAME: u64 = 0;

/// What is compared of one member of a group.
enum Proof<'a> {
    /// The bits of all ranks.
    Alike(Region<'a>, Option<(&'a Counts, DType)>),
    /// The own bits, twice; the input as it was before, where the call may overwrite it.
    Again(Option<Buffer>),
    /// Nothing.
    None,
}

impl Collectives {
    /// From now on the results of collectives are held against each other. Every member of the group does this at the same point.
    pub fn check_values(&mut self) {
        self.values = true;
    }

    /// Runs the collectives, flips what a fault wants flipped, and compares, where values are checked.
    #[track_caller]
    pub(crate) fn run_held(
        &mut self,
        s: &Stream,
        members: &[Collective<'_>],
        tag: CommTag,
        flips: &[(Region<'_>, u64)],
    ) -> Result<()> {
        let site = self.comm.site(Location::caller());
        let mut proofs = vec![];
        if self.values {
            for m in members {
                proofs.push(proof(s, m)?);
            }
        }
        self.launch(s, members, tag)?;
        for (r, bit) in flips {
            flip(s, *r, *bit)?;
        }
        // Of messages alone nothing is compared, and the group's other ranks do not know of them.
        match proofs.iter().all(|p| matches!(p, Proof::None)) {
            true => Ok(()),
            false => self.compare(s, members, &proofs, tag, site),
        }
    }

    fn compare(
        &mut self,
        s: &Stream,
        members: &[Collective<'_>],
        proofs: &[Proof<'_>],
        tag: CommTag,
        site: &Location<'_>,
    ) -> Result<()> {
        let mut words = vec![];
        for (m, p) in members.iter().zip(proofs) {
            words.push(match p {
                Proof::Alike(r, pieces) => hash(s, *r, *pieces)?.max(1),
                Proof::Again(copy) => self.again(s, m, copy.as_ref())?,
                Proof::None => SAME,
            });
        }
        let all = self.tell_all(s, &words)?;
        for (i, (m, p)) in members.iter().zip(proofs).enumerate() {
            let column: Vec<u64> = all.iter().map(|w| w[i]).collect();
            let odd = match p {
                Proof::Alike(..) => minority(&column),
                _ => (0..column.len()).filter(|r| column[*r] != SAME).collect(),
            };
            if odd.is_empty() {
                continue;
            }
            let bytes = self.comm.bytes(m);
            let members = self.comm.members();
            let names = |list: &[usize]| members.list(list.iter().map(|r| GroupRank::from(*r)));
            let others: Vec<usize> = (0..column.len()).filter(|r| !odd.contains(r)).collect();
            let what = match (p, others.is_empty()) {
                (Proof::Alike(..), false) => {
                    format!("{} got other bits than {}", names(&odd), names(&others))
                }
                (Proof::Alike(..), true) => format!("{} got different bits", names(&odd)),
                _ => format!("{} got other bits the second time", names(&odd)),
            };
            return Err(Error {
                peer: odd.first().map(|r| members.of(*r)),
                sticky: true,
                ..Error::new(
                    Code::Comm,
                    "values",
                    format!(
                        "{what} from {} of {bytes} bytes on {} [{tag}] at {site}: a message or memory was corrupted",
                        m.name(),
                        self.comm.name()
                    ),
                )
            });
        }
        Ok(())
    }

    /// Runs it once more into scratch: are this rank's bits the same?
    fn again(&mut self, s: &Stream, m: &Collective<'_>, copy: Option<&Buffer>) -> Result<u64> {
        let (rank, device) = (self.comm.rank(), s.device());
        let scratch = |bytes: u64| device.alloc(s, bytes.max(1), Tag::Comm);
        Ok(match m {
            Collective::ReduceScatter {
                send,
                recv,
                dtype,
                op,
            } => {
                let out = scratch(recv.bytes)?;
                let c = Collective::ReduceScatter {
                    send: copy.map_or(*send, |b| b.region(0, send.bytes)),
                    recv: out.region(0, recv.bytes),
                    dtype: *dtype,
                    op: *op,
                };
                self.launch(s, &[c], TAG)?;
                differ(
                    hash(s, *recv, None)?,
                    hash(s, out.region(0, recv.bytes), None)?,
                )
            }
            Collective::AllToAll { send, recv, dtype } => {
                let out = scratch(recv.bytes)?;
                let c = Collective::AllToAll {
                    send: copy.map_or(*send, |b| b.region(0, send.bytes)),
                    recv: out.region(0, recv.bytes),
                    dtype: *dtype,
                };
                self.launch(s, &[c], TAG)?;
                differ(
                    hash(s, *recv, None)?,
                    hash(s, out.region(0, recv.bytes), None)?,
                )
            }
            Collective::AllToAllV {
                send,
                recv,
                dtype,
                counts,
            } => {
                let out = scratch(recv.bytes)?;
                let c = Collective::AllToAllV {
                    send: copy.map_or(*send, |b| b.region(0, send.bytes)),
                    recv: out.region(0, recv.bytes),
                    dtype: *dtype,
                    counts,
                };
                self.launch(s, &[c], TAG)?;
                let pieces = Some((*counts, *dtype));
                let second = hash(s, out.region(0, recv.bytes), pieces)?;
                differ(hash(s, *recv, pieces)?, second)
            }
            Collective::Reduce {
                buf,
                dtype,
                op,
                root,
            } => {
                let Some(b) = copy else {
                    return Ok(SAME);
                };
                let again = b.region(0, buf.bytes);
                let c = Collective::Reduce {
                    buf: again,
                    dtype: *dtype,
                    op: *op,
                    root: *root,
                };
                self.launch(s, &[c], TAG)?;
                match *root == rank {
                    true => differ(hash(s, *buf, None)?, hash(s, again, None)?),
                    false => SAME,
                }
            }
            _ => SAME,
        })
    }

    /// Every rank's words, on every rank.
    fn tell_all(&mut self, s: &Stream, words: &[u64]) -> Result<Vec<Vec<u64>>> {
        let (ranks, bytes) = (u64::from(self.comm.size()), 8 * words.len() as u64);
        let device = s.device();
        let (own, all) = (
            device.alloc(s, bytes, Tag::Comm)?,
            device.alloc(s, bytes * ranks, Tag::Comm)?,
        );
        let mine: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        s.write(own.region(0, bytes), &mine)?;
        let c = Collective::AllGather {
            send: own.region(0, bytes),
            recv: all.region(0, bytes * ranks),
            dtype: DType::U64,
        };
        self.launch(s, &[c], TAG)?;
        let mut out = vec![0; (bytes * ranks) as usize];
        s.read(all.region(0, bytes * ranks), &mut out)?;
        let word = |b: &[u8]| b.iter().rev().fold(0u64, |w, x| w << 8 | u64::from(*x));
        let rank = |part: &[u8]| part.chunks(8).map(word).collect();
        Ok(out.chunks(bytes as usize).map(rank).collect())
    }
}

/// What can be compared of it.
fn proof<'a>(s: &Stream, c: &Collective<'a>) -> Result<Proof<'a>> {
    let keep = |r: &Region<'_>| -> Result<Buffer> {
        let b = s.device().alloc(s, r.bytes.max(1), Tag::Comm)?;
        if r.bytes > 0 {
            s.copy(b.region(0, r.bytes), *r)?;
        }
        Ok(b)
    };
    Ok(match c {
        Collective::AllReduce { buf, .. } | Collective::Broadcast { buf, .. } => {
            Proof::Alike(*buf, None)
        }
        Collective::AllGather { recv, .. } => Proof::Alike(*recv, None),
        Collective::AllGatherV {
            recv,
            counts,
            dtype,
            ..
        } => Proof::Alike(*recv, Some((counts, *dtype))),
        Collective::ReduceScatter { send, recv, .. }
        | Collective::AllToAll { send, recv, .. }
        | Collective::AllToAllV { send, recv, .. } => {
            let copy = overlap(send, recv).then(|| keep(send)).transpose()?;
            Proof::Again(copy)
        }
        Collective::Reduce { buf, .. } => Proof::Again(Some(keep(buf)?)),
        Collective::Send { .. } | Collective::Recv { .. } | Collective::Barrier => Proof::None,
    })
}

fn differ(a: u64, b: u64) -> u64 {
    u64::from(a != b)
}

/// A hash of a region's bytes, or of its pieces: gaps between them are nobody's promise.
fn hash(s: &Stream, r: Region<'_>, pieces: Option<(&Counts, DType)>) -> Result<u64> {
    let mut h = DefaultHasher::new();
    let mut one = |r: Region<'_>| -> Result<()> {
        let mut bytes = vec![0; r.bytes as usize];
        s.read(r, &mut bytes)?;
        h.write(&bytes);
        Ok(())
    };
    match pieces {
        None => one(r)?,
        Some((counts, dtype)) => {
            for (at, n) in counts.recv_at.iter().zip(&counts.recv) {
                one(r
                    .buffer
                    .region(r.offset + dtype.bytes(*at), dtype.bytes(*n)))?;
            }
        }
    }
    Ok(h.finish())
}

/// The ranks whose word is not that of most; all of them where no word is.
fn minority(words: &[u64]) -> Vec<usize> {
    let count = |w: u64| words.iter().filter(|x| **x == w).count();
    let most = words.iter().map(|w| count(*w)).max().unwrap_or(0);
    if most == words.len() {
        return vec![];
    }
    let leads: Vec<u64> = words
        .iter()
        .copied()
        .filter(|w| count(*w) == most)
        .collect();
    match leads.iter().all(|w| *w == leads[0]) {
        true => (0..words.len()).filter(|r| words[*r] != leads[0]).collect(),
        false => (0..words.len()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::minority;

    #[test]
    fn the_minority_is_named_and_a_tie_names_all() {
        assert!(minority(&[7, 7, 7]).is_empty());
        assert_eq!(minority(&[7, 8, 7]), [1]);
        assert_eq!(minority(&[7, 8]), [0, 1]);
        assert_eq!(minority(&[7, 8, 8, 7]), [0, 1, 2, 3]);
        assert_eq!(minority(&[1, 2, 3, 3]), [0, 1]);
    }
}
