//! Quantized gathers of parameters (`zero_quantized_weights`, qwZ of ZeRO++): each rank sends its slice as E4M3 floats with an f32 scale
//! a block, half the bytes of 16 bits, and every rank, the owner too, computes with what those say.
//!
//! What is quantised is the slice in 16 bits, wherever it came from: so a run whose masters rest on the host has the same bits.

use crossweave_program::abi::op;
use crossweave_program::{
    CollectiveKind, DType, Ex, GroupId, Member, On, Prog, Tag, Traffic, View,
};

/// Elements that share a scale.
pub const BLOCK: u64 = 256;
/// The largest E4M3 value, which the largest magnitude of a block becomes.
pub const LARGEST: f32 = 448.0;

/// Whole parameters from the slices of `ranks` ranks, this one's (`rank`) lying in its place.
pub struct Slices {
    /// Who gathers.
    pub group: GroupId,
    /// This rank's place.
    pub rank: u32,
    /// How many there are.
    pub ranks: u32,
    /// Elements of a slice.
    pub each: u64,
    /// What the codes are counted as in the ledger, and what the scales are.
    pub traffic: (Traffic, Traffic),
}

impl Slices {
    /// Gathers `whole` (`[ranks * each]`, of 16 bits) in 8 bits; every rank's values, this one's included, become what its codes and
    /// scales say.
    pub fn gather(&self, on: &On<'_>, whole: &View<'_>) {
        let (n, ranks, rank) = (self.each, u64::from(self.ranks), u64::from(self.rank));
        let blocks = n.div_ceil(BLOCK);
        let padded = blocks * BLOCK;
        let codes = on.empty_for([ranks * n], DType::F8E4M3, Tag::Comm);
        let scales = on.empty_for([ranks * blocks], DType::F32, Tag::Comm);
        let own_codes = codes.narrow(0, rank * n, n);
        let own_scales = scales.narrow(0, rank * blocks, blocks);
        {
            let values = on.empty_for([padded], DType::F32, Tag::Comm);
            if padded > n {
                on.fill(&values.narrow(0, n, padded - n), 0, 1);
            }
            on.cast(&values.narrow(0, 0, n), &whole.narrow(0, rank * n, n));
            let table = values.view([blocks, BLOCK]);
            let column = own_scales.view([blocks, 1]);
            let low = on.empty_for([blocks, 1], DType::F32, Tag::Comm);
            for (to, kind) in [(&column, op::reduce::MAX), (&low, op::reduce::MIN)] {
                let p = op::ReduceParams {
                    kind,
                    axes: 0b10,
                    ..Default::default()
                };
                on.plain(op::REDUCE, &[to, &table], p.as_bytes());
            }
            // A block of zeros has some scale too; NaN stays NaN, and so do the block's values.
            in_place(on, &column, &low, |column, low| {
                let largest = column.max(-low);
                (largest / LARGEST).max(largest.lit(f32::MIN_POSITIVE))
            });
            let spread = own_scales.strided([blocks, BLOCK], &[1, 0], 0);
            in_place(on, &table, &spread, |value, scale| value / scale);
            on.cast(&own_codes, &values.narrow(0, 0, n));
        }
        let gather = |traffic, dtype, send: &View<'_>, recv: &View<'_>| {
            let member = Member {
                kind: CollectiveKind::AllGather,
                dtype,
                send: Some(send.span()),
                recv: recv.span(),
            };
            on.collective(self.group, traffic, vec![member]);
        };
        // As bytes: not every collective library knows the type, and nothing is added.
        gather(self.traffic.0, DType::U8, &own_codes, &codes);
        gather(self.traffic.1, DType::F32, &own_scales, &scales);
        // Every code is a 16-bit float too: the only rounding is that of the product.
        on.cast(whole, &codes);
        let spread = scales.strided([ranks * blocks, BLOCK], &[1, 0], 0);
        let product = |table: &View<'_>| {
            in_place(on, table, &spread, |code, scale| code * scale);
        };
        if padded == n {
            return product(&whole.view([ranks * blocks, BLOCK]));
        }
        // Slices end inside a block: they are spread out to whole blocks and back.
        let room = on.empty_for([ranks, padded], whole.dtype(), Tag::Comm);
        let filled = room.narrow(1, 0, n);
        let whole = whole.view([ranks, n]);
        let copy = |to: &View<'_>, from: &View<'_>| {
            let none = op::NoParams::default();
            on.plain(op::COPY_STRIDED, &[to, from], none.as_bytes());
        };
        on.fill(&room, 0, 1);
        copy(&filled, &whole);
        product(&room.view([ranks * blocks, BLOCK]));
        copy(&whole, &filled);
    }
}

/// `to = f(to, by)`, element by element; no number of it changes from step to step.
fn in_place<F>(on: &On<'_>, to: &View<'_>, by: &View<'_>, f: F)
where
    F: for<'p> FnOnce(Ex<'p>, Ex<'p>) -> Ex<'p>,
{
    let p = Prog::new(2);
    let params = p.finish_block(&[f(p.operand(0), p.operand(1))]);
    on.launch(op::ELEMENTWISE_PROGRAM, &[Some(to), Some(by)], params, None);
}
