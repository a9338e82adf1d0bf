//! A back end inside layers, and small programs on it.
#![allow(dead_code)]

use crossweave_abi::{Layout, op};
use crossweave_backend_cpu::CpuBackend;
use crossweave_hal::{
    DType, Device, HostServices, NoDecompose, OpRequest, Plugin, RawPlugin, Result, Tag,
};
use crossweave_layers::{Layer, wrap};

/// The same services every time: a linked back end keeps those of the first host of the process (R9).
pub fn host() -> HostServices {
    HostServices::builder()
        .threads(1)
        .config("cpu.devices", "2")
        .config("null.devices", "2")
        .build()
}

pub fn cpu() -> RawPlugin {
    RawPlugin::from_static::<CpuBackend>(&host()).expect("linked")
}

pub fn within(layer: impl Layer) -> RawPlugin {
    wrap(cpu(), &host(), Box::new(layer))
}

pub fn matmul() -> OpRequest {
    let l = Layout::contiguous(DType::F32, &[8, 8]);
    let operands = [l, l, l, Layout::ABSENT];
    OpRequest::new(
        op::MATMUL,
        &operands,
        op::MatmulParams::default().as_bytes(),
    )
}

/// Uploads, a product, a fill, a copy on a second stream, and what came of it.
pub fn program(device: &Device, factor: f32) -> Result<Vec<u8>> {
    let (one, two) = (device.stream("one", 0)?, device.stream("two", 0)?);
    let kernel = device.prepare(&matmul(), &NoDecompose)?;
    let bytes = 8 * 8 * 4;
    let alloc = |s| device.alloc(s, bytes, Tag::Activation);
    let (a, b, c, d) = (alloc(&one)?, alloc(&one)?, alloc(&one)?, alloc(&two)?);
    let values: Vec<u8> = (0..64)
        .flat_map(|i| (i as f32 * factor).to_le_bytes())
        .collect();
    one.write(a.all(), &values)?;
    one.fill(b.all(), u64::from(0.5f32.to_bits()), 4)?;
    one.launch(
        &kernel,
        &[Some(c.all()), Some(a.all()), Some(b.all()), None],
        &[],
    )?;
    two.copy(d.all(), c.all())?;
    let mut out = vec![0; bytes as usize];
    two.read(d.all(), &mut out)?;
    Ok(out)
}

pub fn run(raw: RawPlugin, factor: f32) -> Result<Vec<u8>> {
    program(&Plugin::new(raw).open(0)?, factor)
}
