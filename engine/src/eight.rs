//! Parameters on an 8-bit wire: each rank sends its slice as E4M3 floats with an f32 scale a block, half the bytes of 16 bits, and
//! every rank, the owner too, computes with what those say.
//!
//! What is quantised is the slice in 16 bits, wherever it came from: so a run whose masters rest on the host has the same bits.

use crate::error::{Error, Result};
use crate::gather::{GROUP, STEP};
use crate::spec::RankSpec;
use crossweave_hal::abi::{Layout, op};
use crossweave_hal::{Buffer, CommTag, DType, Device, OpRequest, Tag};
use crossweave_mesh::Mesh;
use crossweave_tensor::{Decompositions, Prog, Run, Tensor};
use std::sync::Arc;

/// Elements that share a scale.
const BLOCK: u64 = 256;
/// The largest E4M3 value, which the largest magnitude of a block becomes.
const LARGEST: f32 = 448.0;
/// Ledger tag of the scales of a training step.
const SCALES: CommTag = "param.scale";
/// The config key that asks for it.
const KEY: &str = "zero_optimization.zero_quantized_weights";

/// Whether gathers of this job travel in 8 bits; a rank alone, and stage 0, gather nothing.
pub(crate) fn wanted(spec: &RankSpec) -> bool {
    spec.zero.quantized && spec.world > 1 && spec.zero.stage > crossweave_zero::ZeroStage::Zero
}

/// Asks the device, before anything is allocated, whether it can do it.
pub(crate) fn check(device: &Device, spec: &RankSpec) -> Result<()> {
    if !wanted(spec) {
        return Ok(());
    }
    if spec.compute.bits() != 16 {
        return Err(Error::Invalid(format!(
            "{KEY}: parameters are computed with in {}, and only 16-bit ones are gathered in 8 bits; fix: enable bf16 or fp16, or remove {KEY}",
            spec.compute.name()
        )));
    }
    for (to, from) in [(DType::F8E4M3, DType::F32), (spec.compute, DType::F8E4M3)] {
        let shape = [BLOCK];
        let operands = [
            Layout::contiguous(to, &shape),
            Layout::contiguous(from, &shape),
        ];
        let none = op::NoParams::default();
        let request = OpRequest::new(op::CAST, &operands, none.as_bytes());
        if let Err(e) = device.prepare(&request, &Decompositions) {
            return Err(Error::Invalid(format!(
                "{KEY}: this device cannot cast {} to {} ({e}); fix: remove {KEY}, or train on a device with 8-bit floats",
                from.name(),
                to.name()
            )));
        }
    }
    Ok(())
}

/// Whole parameters from the slices of `ranks` ranks, this one's (`rank`) lying in its place in `whole`.
pub(crate) struct Slices<'a> {
    pub whole: &'a Arc<Buffer>,
    /// First element of the parameters in it.
    pub first: u64,
    pub dtype: DType,
    pub rank: u32,
    pub ranks: u32,
    /// Elements of a slice.
    pub each: u64,
}

impl Slices<'_> {
    /// Gathers them in 8 bits; every rank's values, this one's included, become what its codes and scales say.
    pub fn gather(
        &self,
        run: &Run<'_>,
        mesh: &mut Mesh,
        tag: CommTag,
    ) -> std::result::Result<(), crossweave_tensor::Error> {
        let (n, ranks, rank) = (self.each, u64::from(self.ranks), u64::from(self.rank));
        let blocks = n.div_ceil(BLOCK);
        let padded = blocks * BLOCK;
        let stream = run.stream();
        let cast = |to: &Tensor, from: &Tensor| {
            let none = op::NoParams::default();
            run.launch(op::CAST, &[Some(to), Some(from)], none.as_bytes(), &[])
        };
        let codes = run.empty_for([ranks * n], DType::F8E4M3, Tag::Comm)?;
        let scales = run.empty_for([ranks * blocks], DType::F32, Tag::Comm)?;
        let own_codes = codes.narrow(0, rank * n, n);
        let own_scales = scales.narrow(0, rank * blocks, blocks);
        {
            let values = run.empty_for([padded], DType::F32, Tag::Comm)?;
            let slice = Tensor::dense(
                self.whole.clone(),
                self.dtype.bytes(self.first + rank * n),
                [n],
                self.dtype,
            );
            if padded > n {
                stream.fill(values.narrow(0, n, padded - n).region(), 0, 1)?;
            }
            cast(&values.narrow(0, 0, n), &slice)?;
            let table = values.view([blocks, BLOCK]);
            let column = own_scales.view([blocks, 1]);
            let low = run.empty_for([blocks, 1], DType::F32, Tag::Comm)?;
            for (to, kind) in [(&column, op::reduce::MAX), (&low, op::reduce::MIN)] {
                let p = op::ReduceParams {
                    kind,
                    axes: 0b10,
                    ..Default::default()
                };
                run.launch(op::REDUCE, &[Some(to), Some(&table)], p.as_bytes(), &[])?;
            }
            // A block of zeros has some scale too; NaN stays NaN, and so do the block's values.
            let p = Prog::new(2);
            let largest = p.operand(0).max(-p.operand(1));
            let scale = (largest / LARGEST).max(largest.lit(f32::MIN_POSITIVE));
            program(run, &p.finish(&[scale]), &[&column, &low])?;
            let p = Prog::new(2);
            let scaled = p.operand(0) / p.operand(1);
            let spread = own_scales.strided([blocks, BLOCK], &[1, 0], 0);
            program(run, &p.finish(&[scaled]), &[&table, &spread])?;
            cast(&own_codes, &values.narrow(0, 0, n))?;
        }
        let group = mesh.named(GROUP)?;
        // As bytes: not every collective library knows the type, and nothing is added.
        group.all_gather(stream, own_codes.region(), codes.region(), DType::U8, tag)?;
        let beside = if tag == STEP { SCALES } else { tag };
        group.all_gather(
            stream,
            own_scales.region(),
            scales.region(),
            DType::F32,
            beside,
        )?;
        let first = self.dtype.bytes(self.first);
        let whole = Tensor::dense(self.whole.clone(), first, [ranks * n], self.dtype);
        // Every code is a 16-bit float too: the only rounding is that of the product.
        cast(&whole, &codes)?;
        let spread = scales.strided([ranks * blocks, BLOCK], &[1, 0], 0);
        let p = Prog::new(2);
        let product = p.finish(&[p.operand(0) * p.operand(1)]);
        if padded == n {
            return program(
                run,
                &product,
                &[&whole.view([ranks * blocks, BLOCK]), &spread],
            );
        }
        // Slices end inside a block: they are spread out to whole blocks and back.
        let room = run.empty_for([ranks, padded], self.dtype, Tag::Comm)?;
        let filled = room.narrow(1, 0, n);
        let whole = whole.view([ranks, n]);
        let copy = |to: &Tensor, from: &Tensor| {
            let none = op::NoParams::default();
            let operands = [Some(to), Some(from)];
            run.launch(op::COPY_STRIDED, &operands, none.as_bytes(), &[])
        };
        stream.fill(room.region(), 0, 1)?;
        copy(&filled, &whole)?;
        program(
            run,
            &product,
            &[&room.view([ranks * blocks, BLOCK]), &spread],
        )?;
        copy(&whole, &filled)
    }
}

/// Runs an elementwise program over the operands.
fn program(
    run: &Run<'_>,
    p: &op::ProgramParams,
    operands: &[&Tensor],
) -> std::result::Result<(), crossweave_tensor::Error> {
    let operands: Vec<_> = operands.iter().map(|t| Some(*t)).collect();
    run.launch(op::ELEMENTWISE_PROGRAM, &operands, p.as_bytes(), &[])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossweave_hal::{Bootstrap, HostServices, KvStore, LocalKv, Plugin, RawPlugin};
    use crossweave_mesh::{Axis, MeshOptions, Topology};
    use crossweave_tensor::KernelCache;
    use std::cell::RefCell;
    use std::time::Duration;

    const RANKS: u32 = 3;

    struct Boot(Arc<dyn KvStore>);
    impl Bootstrap for Boot {
        fn set(&self, key: &str, value: &[u8]) -> crossweave_hal::Result<()> {
            self.0.set(key, value)
        }
        fn get(&self, key: &str, timeout: Duration) -> crossweave_hal::Result<Vec<u8>> {
            self.0.get(key, Some(timeout))
        }
    }

    fn bf16(x: f32) -> f32 {
        let b = x.to_bits();
        f32::from_bits((b + 0x7fff + (b >> 16 & 1)) & 0xffff_0000)
    }

    /// Element `i` of the layout: blocks of very different sizes, one of zeros, and values far below their block's largest.
    fn value(i: u64) -> f32 {
        let block = i / BLOCK;
        let unit = ((i * 2_654_435_761) % 2003) as f32 / 1001.0 - 1.0;
        match block % 4 {
            3 => 0.0,
            b => bf16(unit * unit * unit * 10f32.powi(3 - 3 * b as i32)),
        }
    }

    fn gathered(each: u64) -> Vec<Vec<f32>> {
        let kv: Arc<dyn KvStore> = Arc::new(LocalKv::default());
        let host = HostServices::builder()
            .config("cpu.devices", "3")
            .config("cpu.threads", "1")
            .kv(kv.clone())
            .build();
        let cpu = Plugin::new(
            RawPlugin::from_static::<crossweave_backend_cpu::CpuBackend>(&host).unwrap(),
        );
        let one = |rank: u32| {
            let boot = Boot(kv.clone());
            let device = cpu.open(rank).unwrap();
            let stream = device.stream("gather", 0).unwrap();
            let options = MeshOptions {
                timeout: Some(Duration::from_secs(60)),
                islands: None,
            };
            let topology = Topology::new(&[(Axis::Dp, RANKS)]).unwrap();
            let mut mesh = Mesh::new(&device, &boot, topology, rank, &[], &options).unwrap();
            mesh.join(&device, &boot, GROUP, "dp", &[0, 1, 2], &options)
                .unwrap();
            let total = each * u64::from(RANKS);
            let whole = Arc::new(device.alloc_state(2 * total, Tag::Param).unwrap());
            stream.fill(whole.all(), 0, 1).unwrap();
            let first = u64::from(rank) * each;
            let mine = (first..first + each).map(|i| (value(i).to_bits() >> 16) as u16);
            let mine: Vec<u8> = mine.flat_map(u16::to_le_bytes).collect();
            stream
                .write(whole.region(2 * first, 2 * each), &mine)
                .unwrap();
            let cache = RefCell::new(KernelCache::default());
            let slices = Slices {
                first: 0,
                whole: &whole,
                dtype: DType::Bf16,
                rank,
                ranks: RANKS,
                each,
            };
            let run = Run::new(&stream, &Decompositions, &cache);
            slices.gather(&run, &mut mesh, STEP).unwrap();
            let mut bytes = vec![0; 2 * total as usize];
            stream.read(whole.all(), &mut bytes).unwrap();
            let wide = |b: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16);
            bytes.chunks_exact(2).map(wide).collect()
        };
        std::thread::scope(|s| {
            let one = &one;
            let all: Vec<_> = (0..RANKS).map(|r| s.spawn(move || one(r))).collect();
            all.into_iter().map(|r| r.join().unwrap()).collect()
        })
    }

    /// Slices of whole blocks, slices that end inside one, and slices smaller than one.
    #[test]
    fn every_rank_has_the_same_values_as_near_as_eight_bits_allow() {
        for each in [1024, 1000, 3000, 7, 1] {
            let all = gathered(each);
            assert!(all.iter().all(|r| *r == all[0]), "slices of {each}");
            let mut changed = 0;
            for rank in 0..u64::from(RANKS) {
                for from in (0..each).step_by(BLOCK as usize) {
                    let block = rank * each + from..rank * each + (from + BLOCK).min(each);
                    let largest = block.clone().map(|i| value(i).abs()).fold(0.0, f32::max);
                    let scale = largest / LARGEST;
                    for i in block {
                        let (x, got) = (value(i), all[0][i as usize]);
                        // Half a step of three bits of mantissa, or of the smallest values; and half a step of bf16.
                        let bound = (x.abs() / 16.0).max(scale / 1024.0) + x.abs() / 128.0;
                        let off = (x - got).abs();
                        assert!(off <= bound, "slices of {each}, element {i}: {x} and {got}");
                        changed += u32::from(x != got);
                    }
                }
            }
            assert!(each < 100 || changed > 100, "slices of {each}: {changed}");
        }
    }
}
