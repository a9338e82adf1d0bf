//! What an adapter's floats do, measured once when a device is opened: WGSL lets it take subnormal numbers for zeros, and be off by
//! 2.5 ulp in a quotient and by more in a root. The first is declared to the host (`flush_subnormals`), the second is mended in integers.

use crossweave_plugin::{Code, Error, Result};
use wgpu::util::{BufferInitDescriptor, DeviceExt};
use wgpu::{BindGroupDescriptor, BindGroupEntry, BufferUsages, ComputePipelineDescriptor, MapMode};

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Floats {
    /// Some operation takes subnormal numbers for zeros, or gives zeros for them.
    pub flushes: bool,
    /// Quotients and roots are the nearest numbers there are.
    pub rounds: bool,
}

/// Trials: one third each of quotients, roots, and the rest, which is about subnormal numbers.
const N: usize = 3072;

/// Triples of a, b and the result.
const KERNEL: &str = "
@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) gid: vec3<u32>) {
  let i = gid.x; let a = bitcast<f32>(x[3u * i]); let b = bitcast<f32>(x[3u * i + 1u]);
  var y = 0.0;
  switch i % 6u {
    case 0u, 1u: { y = a / b; }
    case 2u, 3u: { y = sqrt(a); }
    case 4u: { y = a * b; }
    default: { y = a + b; }
  }
  x[3u * i + 2u] = bitcast<u32>(y);
}";

/// The numbers of trial `i`: mantissas of every kind, exponents near 0, and subnormal numbers where they are meant.
fn numbers(i: usize) -> (f32, f32) {
    let mut word = (i as u32).wrapping_mul(0x9E37_79B9) ^ 0x85EB_CA6B;
    let mut next = || {
        word ^= word << 13;
        word ^= word >> 17;
        word ^= word << 5;
        word
    };
    let mut plain = || f32::from_bits(next() & 0x007F_FFFF | (121 + (next() >> 28)) << 23);
    let (a, b) = (plain(), plain());
    let scaled = |x: f32| f32::from_bits(x.to_bits() & 0x007F_FFFF | (127 - 65) << 23);
    let small = f32::from_bits(a.to_bits() & 0x007F_FFFF | 1);
    match i % 6 {
        // A subnormal operand, or a product that is subnormal.
        4 if i % 4 < 2 => (small, 2.0),
        4 => (scaled(a), scaled(b)),
        5 => (small, -f32::from_bits(b.to_bits() & 0x007F_FFFF | 1)),
        _ => (a, b),
    }
}

/// The right result.
fn right(i: usize, (a, b): (f32, f32)) -> f32 {
    match i % 6 {
        0 | 1 => a / b,
        2 | 3 => a.sqrt(),
        4 => a * b,
        _ => a + b,
    }
}

/// Runs the trials on an adapter's device.
pub(crate) fn measure(device: &wgpu::Device, queue: &wgpu::Queue) -> Result<Floats> {
    let words: Vec<u32> = (0..N)
        .flat_map(|i| {
            let (a, b) = numbers(i);
            [a.to_bits(), b.to_bits(), 0]
        })
        .collect();
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let data = device.create_buffer_init(&BufferInitDescriptor {
        label: None,
        contents: &bytes,
        usage: BufferUsages::STORAGE | BufferUsages::COPY_SRC,
    });
    let back = device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: bytes.len() as u64,
        usage: BufferUsages::MAP_READ | BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    let pipeline = device.create_compute_pipeline(&ComputePipelineDescriptor {
        label: Some("measure"),
        layout: None,
        module: &device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: Some("measure"),
            source: wgpu::ShaderSource::Wgsl(KERNEL.into()),
        }),
        entry_point: Some("main"),
        compilation_options: Default::default(),
        cache: None,
    });
    let group = device.create_bind_group(&BindGroupDescriptor {
        label: None,
        layout: &pipeline.get_bind_group_layout(0),
        entries: &[BindGroupEntry {
            binding: 0,
            resource: data.as_entire_binding(),
        }],
    });
    let mut commands = device.create_command_encoder(&Default::default());
    {
        let mut pass = commands.begin_compute_pass(&Default::default());
        pass.set_pipeline(&pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(N as u32 / 64, 1, 1);
    }
    commands.copy_buffer_to_buffer(&data, 0, &back, 0, bytes.len() as u64);
    queue.submit([commands.finish()]);
    let failed = |what: &str| {
        Error::new(
            Code::Internal,
            format!("device_open: measuring the adapter's floats: {what}"),
        )
    };
    let (say, said) = std::sync::mpsc::channel();
    back.slice(..).map_async(MapMode::Read, move |r| {
        // Nobody listens any more where the device was lost first.
        let _ = say.send(r);
    });
    device
        .poll(wgpu::PollType::wait_indefinitely())
        .map_err(|e| failed(&e.to_string()))?;
    match said.try_recv() {
        Ok(Ok(())) => {}
        Ok(Err(e)) => return Err(failed(&e.to_string())),
        Err(_) => return Err(failed("the adapter did not answer")),
    }
    let mapped = back.slice(..).get_mapped_range();
    let view = mapped.map_err(|e| failed(&e.to_string()))?;
    let wrong = |i: usize| {
        let at = 12 * i + 8;
        let got = u32::from_le_bytes([view[at], view[at + 1], view[at + 2], view[at + 3]]);
        got != right(i, numbers(i)).to_bits()
    };
    let (small, plain): (Vec<usize>, Vec<usize>) = (0..N).partition(|i| i % 6 > 3);
    Ok(Floats {
        flushes: small.into_iter().any(wrong),
        rounds: !plain.into_iter().any(wrong),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Trials of subnormal numbers have them, on one side or the other; the others keep clear of them.
    #[test]
    fn trials_are_of_their_kind() {
        for i in 0..N {
            let (a, b) = numbers(i);
            let y = right(i, (a, b));
            let some = a.is_subnormal() || b.is_subnormal() || y.is_subnormal();
            assert_eq!(some, i % 6 > 3, "{i}: {a:e} {b:e} {y:e}");
            assert!(y.is_finite(), "{i}: {a:e} {b:e}");
        }
    }
}
