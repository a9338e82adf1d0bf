//! A gather in 8 bits (`zero_quantized_weights`, qwZ of ZeRO++) by itself, over three ranks of the CPU: `zero/src/lower/quantized.rs`.

use crossweave_hal::{Bootstrap, DType, HostServices, KvStore, LocalKv, Plugin, RawPlugin};
use crossweave_machine::Machine;
use crossweave_mesh::{Axis, Channel, GroupKey, Mesh, MeshOptions, Place};
use crossweave_plan::Lane;
use crossweave_program::{Builder, Life, MemId, MemoryDecl, MemorySpace, Program, Tag, Traffic};
use crossweave_zero::lower::quantized::{BLOCK, LARGEST, Slices};
use std::cell::RefCell;
use std::sync::Arc;
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

fn place(rank: u32) -> Place {
    Place::on(&[(Axis::Dp, RANKS)], rank).unwrap()
}

/// The group it is in.
fn gather() -> GroupKey {
    GroupKey::over(Axis::Dp).on(Channel::Gather)
}

/// A gather by itself, over memory of bf16.
fn program(rank: u32, each: u64) -> (Program, MemId) {
    let total = each * u64::from(RANKS);
    let mut b = Builder::default();
    let group = b.group(place(rank).group(&gather()).unwrap());
    let whole = b.memory(MemoryDecl {
        name: "whole".into(),
        bytes: 2 * total,
        dtype: DType::Bf16,
        tag: Tag::Param,
        home: MemorySpace::Device,
        life: Life::Always { turns: 1 },
    });
    let slices = Slices {
        group,
        rank,
        ranks: RANKS,
        each,
        traffic: (Traffic::Param, Traffic::Scale),
    };
    b.call(None, "gather", &[whole.into()], |code| {
        slices.gather(&code.on(Lane::Gather), &code.arg(0, [total], DType::Bf16));
    });
    (b.finish(), whole)
}

fn gathered(each: u64) -> Vec<Vec<f32>> {
    let kv: Arc<dyn KvStore> = Arc::new(LocalKv::default());
    let host = HostServices::builder()
        .config("cpu.devices", "3")
        .config("cpu.threads", "1")
        .kv(kv.clone())
        .build();
    let cpu =
        Plugin::new(RawPlugin::from_static::<crossweave_backend_cpu::CpuBackend>(&host).unwrap());
    let one = |rank: u32| {
        let boot = Boot(kv.clone());
        let device = cpu.open(rank).unwrap();
        let stream = device.stream("gather", 0).unwrap();
        let options = MeshOptions {
            timeout: Some(Duration::from_secs(60)),
            islands: None,
        };
        let mesh = Mesh::new(&device, &boot, place(rank), &[gather()], &options).unwrap();
        let total = each * u64::from(RANKS);
        let (program, whole) = program(rank, each);
        let mut machine = Machine::new(&device, program).unwrap();
        machine.join(&mesh).unwrap();
        let whole = machine.buffer(whole).unwrap().clone();
        stream.fill(whole.all(), 0, 1).unwrap();
        let first = u64::from(rank) * each;
        let mine = (first..first + each).map(|i| (value(i).to_bits() >> 16) as u16);
        let mine: Vec<u8> = mine.flat_map(u16::to_le_bytes).collect();
        stream
            .write(whole.region(2 * first, 2 * each), &mine)
            .unwrap();
        let mesh = RefCell::new(mesh);
        machine.run_alone(&stream, Some(&mesh)).unwrap();
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
    crossweave_tests::in_own_process!();
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
