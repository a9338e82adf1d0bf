//! One cell: a kind, a type and a reduction on a number of ranks. Claimed, it is run over counts, places and roots and must be right on
//! every rank; not claimed, query and launch must both refuse it and leave outputs alone.

use super::desk::{Desk, Place, launch};
use super::value::{get, put, reducible, signed, unit};
use crate::case::{Check, Effort, pass, pass_with, refused, skip};
use crate::ctx::{Ctx, POISON};
use crate::local_ranks::{Answer, Rank};
use crate::raw::coll_desc;
use crossweave_abi::*;

/// What is reduced, and how.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// `COLL_*`.
    pub kind: u32,
    /// The type.
    pub dtype: DType,
    /// `RED_*`, or 0.
    pub reduce: u32,
    /// `COLLF_*`.
    pub flags: u32,
    /// Counts beyond a page.
    pub big: bool,
}

/// Inputs of a rank.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Inputs {
    /// Small integers: every order of adding gives the same.
    Exact,
    /// Cancelling pairs, one huge element, fractions.
    Hard,
    /// Exact, with one value that is not a number.
    Nan,
    /// Integers of the whole range: sums and products wrap, order follows the sign the type has.
    Full,
}

fn splat(i: u64, rank: u64, salt: u64) -> u64 {
    let mut r = crate::ctx::Rng::new(i.wrapping_mul(0x1000_0001) ^ (rank << 48) ^ salt);
    r.word()
}

impl Cell {
    /// Runs it on `n` ranks.
    pub fn judge(&self, ctx: &Ctx, n: u32) -> Check {
        if ctx.plugin.coll.is_none() {
            return skip("no collectives: the host carries them");
        }
        let all = ctx.ranks(n, &|r| self.rank(r, ctx.seed, ctx.effort))?;
        if let Some(r) = all.iter().position(|a| a.claimed != all[0].claimed) {
            return Err(format!(
                "rank 0 {} the cell and rank {r} {} it",
                if all[0].claimed { "claims" } else { "refuses" },
                if all[r].claimed { "claims" } else { "refuses" }
            ));
        }
        if !all[0].claimed {
            return refused(all[0].note.clone());
        }
        for (r, a) in all.iter().enumerate() {
            if a.digest.len() != all[0].digest.len() {
                return Err(format!("rank {r} did not finish all of it"));
            }
            if let Some(i) = (0..a.digest.len()).find(|i| a.digest[*i] != all[0].digest[*i]) {
                return Err(format!("rank {r} holds other bits than rank 0 in part {i}"));
            }
        }
        let worst = all
            .iter()
            .map(|a| f64::from_le_bytes(a.bits[..8].try_into().unwrap_or([0; 8])))
            .fold(0.0, f64::max);
        match worst > 0.0 {
            true => pass_with("").map(|v| v.within("(R-1) u_acc sum|x| + u_out |result|", worst)),
            false => pass(),
        }
    }

    /// Its products with whole numbers are exact; that of wide floats is no number of 16 bits.
    fn scale(&self) -> f64 {
        match self.dtype {
            DType::F32 | DType::F64 => 0.5 + 1.0 / 4096.0,
            _ => 0.5,
        }
    }

    fn reduces(&self) -> bool {
        matches!(
            self.kind,
            COLL_ALL_REDUCE | COLL_REDUCE_SCATTER | COLL_REDUCE
        )
    }

    /// Elements a rank gives and gets.
    fn elements(&self, count: u64, n: u64) -> (u64, u64) {
        match self.kind {
            COLL_REDUCE_SCATTER => (count * n, count),
            COLL_ALL_GATHER => (count, count * n),
            COLL_ALL_TO_ALL => (count * n, count * n),
            _ => (count, count),
        }
    }

    fn desc(&self, count: u64) -> CollDesc {
        let mut d = coll_desc(self.kind, self.dtype.id(), self.reduce, count);
        d.flags = self.flags;
        if self.reduce == RED_PREMUL_SUM {
            d.scale = self.scale();
        }
        d
    }

    /// Numbers of elements, up to what goes in several pieces.
    fn counts(&self, effort: Effort) -> Vec<u64> {
        let mut counts = match self.dtype.bits() >= 8 {
            true => vec![0, 1, 3, 64, 1003],
            false => vec![0, 2, 64, 1002],
        };
        if self.big {
            counts.push(65_537);
            // Of the type and the sum that matter most, more.
            let most = self.dtype == DType::F32 && self.reduce != RED_MAX;
            counts.extend(match effort {
                Effort::Default if most => Some((1 << 18) + 1),
                Effort::Big => Some((1 << 20) + 1),
                _ => None,
            });
        }
        counts
    }

    fn rank(&self, r: &Rank, seed: u64, effort: Effort) -> Result<Answer, String> {
        let n = u64::from(r.n);
        let comm = r.comm()?;
        let whole = self.dtype.bits() >= 8;
        let claimed = comm.claims(&self.desc(64))?.is_some();
        if !claimed {
            return self.must_refuse(r);
        }
        if self.reduces() && !reducible(self.dtype) {
            return Err("claimed, and a sum of this type has no meaning".into());
        }
        if self.reduce == RED_AVG && !self.dtype.is_float() {
            return Err(
                "an average of integers is claimed: it must be refused, not truncated".into(),
            );
        }
        let counts = self.counts(effort);
        let (give, get_) = self.elements(counts[counts.len() - 1], n);
        let desk = Desk::new(r, self.dtype.bytes(give.max(get_)).max(8))?;
        let mut a = Answer {
            claimed: true,
            ..Answer::default()
        };
        let mut worst = 0f64;
        for (i, count) in counts.iter().enumerate() {
            if comm.claims(&self.desc(*count))?.is_none() {
                // A limit on sizes is the plugin's right, and the answer the same on all ranks.
                continue;
            }
            // All but an exchange may be in place.
            let places: &[bool] = match self.kind {
                COLL_ALL_TO_ALL => &[false],
                _ => &[false, true],
            };
            let roots: Vec<u32> = match self.kind {
                COLL_BROADCAST | COLL_REDUCE => {
                    let mut v = vec![0, r.n - 1, r.n / 2];
                    v.dedup();
                    v
                }
                _ => vec![0],
            };
            let mut inputs = vec![Inputs::Exact];
            let float = unit(self.dtype) > 0.0 && self.dtype.bits() >= 16;
            if self.reduces() && float && matches!(self.reduce, RED_SUM | RED_AVG | RED_PREMUL_SUM)
            {
                inputs.push(Inputs::Hard);
            }
            let spreads = matches!(self.reduce, RED_SUM | RED_MIN | RED_MAX);
            if self.reduces() && float && spreads && *count > 1 {
                inputs.push(Inputs::Nan);
            }
            if self.reduces() && !self.dtype.is_float() && self.reduce != RED_PREMUL_SUM {
                inputs.push(Inputs::Full);
            }
            for kind in inputs {
                for in_place in places {
                    for root in &roots {
                        let skew = match (i % 2, whole) {
                            (1, true) => self.dtype.bytes(1),
                            _ => 0,
                        };
                        let run = Run {
                            cell: self,
                            count: *count,
                            in_place: *in_place,
                            root: *root,
                            skew,
                            inputs: kind,
                            seed: seed ^ (i as u64) << 8,
                        };
                        let (digest, error) = run.go(r, &desk).map_err(|e| {
                            let how = if *in_place { ", in place" } else { "" };
                            let what = match kind {
                                Inputs::Nan => ", one of them NaN",
                                Inputs::Full => " of the whole range",
                                _ => "",
                            };
                            format!("{count} elements{what}, root {root}{how}: {e}")
                        })?;
                        // What is the same on every rank by definition.
                        if matches!(
                            self.kind,
                            COLL_ALL_REDUCE | COLL_ALL_GATHER | COLL_BROADCAST
                        ) {
                            a.digest.push(digest);
                        }
                        worst = worst.max(error);
                    }
                }
            }
        }
        a.bits = worst.to_le_bytes().to_vec();
        Ok(a)
    }

    /// Both answers are UNSUPPORTED, and nothing is written.
    fn must_refuse(&self, r: &Rank) -> Result<Answer, String> {
        let n = u64::from(r.n);
        let (give, take) = self.elements(64, n);
        let desk = Desk::new(r, self.dtype.bytes(give.max(take)))?;
        let p = Place {
            send: self.dtype.bytes(give),
            recv: self.dtype.bytes(take),
            skew: 0,
            in_place: false,
            own: 0,
        };
        let (send, recv) = desk.lay(&r.rig.stream, &p, &vec![1; p.send as usize])?;
        let mut d = self.desc(64);
        (d.send, d.recv) = (send, recv);
        let note = match r.comm()?.launch(&r.rig.stream, &[d]) {
            Err(e) if e.unsupported() => e.message,
            Err(e) => {
                return Err(format!(
                    "comm_query refuses it, and {e}: UNSUPPORTED is wanted"
                ));
            }
            Ok(()) => {
                // It may wait for the others for ever; the communicator is thrown away.
                return Err("comm_query refuses it and launch accepts it".into());
            }
        };
        let out = desk.lift(&r.rig.stream, &p)?;
        match out.iter().all(|b| *b == POISON) {
            true => Ok(Answer {
                note,
                ..Answer::default()
            }),
            false => Err("refused, and the output was written all the same".into()),
        }
    }
}

/// One collective of a cell.
struct Run<'a> {
    cell: &'a Cell,
    count: u64,
    in_place: bool,
    root: u32,
    skew: u64,
    inputs: Inputs,
    seed: u64,
}

impl Run<'_> {
    /// Element `i` of what rank `rank` gives.
    fn value(&self, rank: u64, i: u64, n: u64) -> f64 {
        let c = self.cell;
        let w = splat(i, rank, self.seed);
        if self.inputs == Inputs::Nan && i == 1 && rank == n - 1 {
            return f64::NAN;
        }
        if self.inputs == Inputs::Hard {
            // Pairs that cancel over ranks, one huge element, fractions: the order of adding shows in the last bits.
            let base = splat(i, 77, self.seed) as f64 / 2f64.powi(60);
            let x = match (i % 4, rank % 2) {
                (0, 0) => base * 1000.0,
                (0, _) => -base * 1000.0 * (1.0 - 2f64.powi(-6)),
                (1, _) if rank == n / 2 => 30_000.0,
                _ => (w >> 11) as f64 / 2f64.powi(51) - 2.0,
            };
            // As the type holds it.
            let mut b = Vec::with_capacity(8);
            put(&mut b, c.dtype, x);
            return get(&b, c.dtype, 0);
        }
        match c.reduce {
            RED_PROD => match (rank % 3, signed(c.dtype) && w.is_multiple_of(2)) {
                (0, _) => 1.0 + (w >> 8 & 1) as f64,
                (_, true) => -1.0,
                _ => 1.0,
            },
            // Multiples of the ranks, so that the average is a whole number; the sum stays below 256.
            RED_AVG if c.dtype.bits() > 8 => ((w % 5) as f64 - 2.0) * n as f64,
            RED_AVG => 2.0,
            RED_PREMUL_SUM => ((w % 5) as f64 - 2.0) * 2.0,
            RED_SUM if c.dtype.bits() == 8 && c.dtype.is_float() => (w % 2) as f64,
            _ if signed(c.dtype) => (w % 9) as f64 - 4.0,
            _ => (w % 5) as f64,
        }
    }

    /// Elements as bytes: numbers where something is added, any bits where they are only moved.
    fn bytes(&self, rank: u64, from: u64, len: u64, n: u64) -> Vec<u8> {
        let c = self.cell;
        if !c.reduces() {
            let all = c.dtype.bytes(from + len);
            let mut v = Vec::with_capacity(all as usize);
            for i in 0..all {
                v.push(splat(i, rank, self.seed) as u8);
            }
            return v.split_off(c.dtype.bytes(from) as usize);
        }
        let mut v = Vec::new();
        for i in from..from + len {
            match self.inputs {
                Inputs::Full => {
                    let bits = splat(i, rank, self.seed).to_le_bytes();
                    v.extend(&bits[..c.dtype.bytes(1) as usize]);
                }
                _ => put(&mut v, c.dtype, self.value(rank, i, n)),
            }
        }
        v
    }

    /// Integers of the whole range, by the rules of integers: the low bits of sums and products, order by sign.
    fn wrapped(&self, out: &[u8], from: u64, n: u64) -> Result<(), String> {
        let c = self.cell;
        let size = c.dtype.bytes(1) as usize;
        let whole = |bytes: &[u8]| -> i128 {
            let mut w = [0u8; 16];
            w[..size].copy_from_slice(bytes);
            if signed(c.dtype) && bytes[size - 1] >= 0x80 {
                w[size..].fill(0xFF);
            }
            i128::from_le_bytes(w)
        };
        for i in 0..self.count {
            let xs = (0..n).map(|q| whole(&splat(from + i, q, self.seed).to_le_bytes()[..size]));
            let want = match c.reduce {
                RED_PROD => xs.fold(1i128, i128::wrapping_mul),
                RED_MIN => xs.fold(i128::MAX, i128::min),
                RED_MAX => xs.fold(i128::MIN, i128::max),
                _ => xs.fold(0i128, i128::wrapping_add),
            };
            let got = &out[i as usize * size..][..size];
            if *got != want.to_le_bytes()[..size] {
                let want = whole(&want.to_le_bytes()[..size]);
                return Err(format!(
                    "element {i} is {}, and {want} is right",
                    whole(got)
                ));
            }
        }
        Ok(())
    }

    /// Runs it; answers a digest of the output and the worst error as a part of the bound.
    fn go(&self, r: &Rank, desk: &Desk) -> Result<(u64, f64), String> {
        let c = self.cell;
        let (n, me, root) = (u64::from(r.n), u64::from(r.rank), u64::from(self.root));
        let (give, take) = c.elements(self.count, n);
        let is_root = me == root;
        let p = Place {
            send: c.dtype.bytes(give),
            recv: c.dtype.bytes(take),
            skew: self.skew,
            in_place: self.in_place,
            // Where the piece that only this rank gives or gets lies in the whole.
            own: match c.kind {
                COLL_ALL_GATHER | COLL_REDUCE_SCATTER => c.dtype.bytes(me * self.count),
                _ => 0,
            },
        };
        let input = self.bytes(me, 0, give, n);
        // In place only the root of a broadcast has something to give.
        let laid = match (c.kind, self.in_place, is_root) {
            (COLL_BROADCAST, true, false) => &[][..],
            _ => &input[..],
        };
        let s = &r.rig.stream;
        let (send, recv) = desk.lay(s, &p, laid)?;
        let mut d = c.desc(self.count);
        d.root = self.root as i32;
        (d.send, d.recv) = (send, recv);
        launch(r, std::slice::from_ref(&d))?;
        let out = desk.lift(s, &p)?;
        if !self.in_place && desk.input(s, &p)? != input {
            return Err("the input was changed".into());
        }
        let writes = c.kind != COLL_REDUCE || is_root;
        if !writes {
            // What is not the root's is either untouched or, in place, whatever the plugin left.
            if !self.in_place && out.iter().any(|b| *b != POISON) {
                return Err("a rank that is not the root had its output written".into());
            }
            return Ok((0, 0.0));
        }
        if c.reduces() {
            let from = match c.kind {
                COLL_REDUCE_SCATTER => me * self.count,
                _ => 0,
            };
            let error = match self.inputs {
                Inputs::Full => self.wrapped(&out, from, n).map(|()| 0.0)?,
                _ => self.sums(&out, from, n)?,
            };
            return Ok((digest(&out), error));
        }
        let want: Vec<u8> = match c.kind {
            COLL_ALL_GATHER => (0..n)
                .flat_map(|q| self.bytes(q, 0, self.count, n))
                .collect(),
            COLL_BROADCAST => self.bytes(root, 0, self.count, n),
            _ => (0..n)
                .flat_map(|q| self.bytes(q, me * self.count, self.count, n))
                .collect(),
        };
        match out.iter().zip(&want).position(|(a, b)| a != b) {
            None => Ok((digest(&out), 0.0)),
            Some(i) => Err(format!(
                "byte {i} of {} is {:#04x}, and {:#04x} is right",
                want.len(),
                out[i],
                want[i]
            )),
        }
    }

    /// Holds results against sums in f64.
    fn sums(&self, out: &[u8], from: u64, n: u64) -> Result<f64, String> {
        let c = self.cell;
        let mut worst = 0f64;
        for i in 0..self.count {
            let xs: Vec<f64> = (0..n).map(|q| self.value(q, from + i, n)).collect();
            let magnitude: f64 = xs.iter().map(|x| x.abs()).sum();
            let (want, factor) = match c.reduce {
                RED_PROD => (xs.iter().product(), 1.0),
                RED_MIN | RED_MAX if xs.iter().any(|x| x.is_nan()) => (f64::NAN, 1.0),
                RED_MIN => (xs.iter().copied().fold(f64::INFINITY, f64::min), 1.0),
                RED_MAX => (xs.iter().copied().fold(f64::NEG_INFINITY, f64::max), 1.0),
                RED_AVG => (xs.iter().sum::<f64>() / n as f64, 1.0 / n as f64),
                RED_PREMUL_SUM => (xs.iter().sum::<f64>() * c.scale(), c.scale()),
                _ => (xs.iter().sum(), 1.0),
            };
            let got = get(out, c.dtype, i as usize);
            if want.is_nan() {
                if !got.is_nan() {
                    return Err(format!(
                        "element {i}: one rank gives NaN, the result is {got}"
                    ));
                }
                continue;
            }
            let bound = match self.inputs {
                Inputs::Exact | Inputs::Nan | Inputs::Full => 0.0,
                Inputs::Hard => {
                    let acc = match c.flags & COLLF_ACC_F32 != 0 {
                        true => unit(DType::F32).max(unit(DType::F64)),
                        false => unit(c.dtype),
                    };
                    // A scale or a share is one more rounding of each term.
                    let steps = (n - 1) as f64 + if factor < 1.0 { 1.0 } else { 0.0 };
                    (steps * acc * magnitude * factor + unit(c.dtype) * want.abs()) * (1.0 + 1e-9)
                }
            };
            let error = (got - want).abs();
            if error.is_nan() || error > bound {
                return Err(format!(
                    "element {i} is {got}, and {want} is right{}",
                    if bound > 0.0 {
                        format!(" within {bound:.3e}")
                    } else {
                        String::new()
                    }
                ));
            }
            if bound > 0.0 {
                worst = worst.max(error / bound);
            }
        }
        Ok(worst)
    }
}

/// 64 bits of a hash: the same bytes, the same word.
fn digest(bytes: &[u8]) -> u64 {
    let mut h = 0xCBF2_9CE4_8422_2325u64;
    for b in bytes {
        h = (h ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01B3);
    }
    h
}
