//! Operands with any strides and storage on a real device, and the three routes an op can take there.

use crossweave_backend_cpu::CpuBackend;
use crossweave_hal::abi::{Layout, op};
use crossweave_hal::{
    Buffer, DType, Decompose, Device, HostServices, OpRequest, Operand, Plugin, RawPlugin,
    RecipeStep, Slot, Stream, Tag,
};
use crossweave_tensor::Decompositions;

/// The float storages.
pub const STORAGES: [DType; 3] = [DType::F32, DType::Bf16, DType::F16];

/// A repeatable stream of numbers.
pub struct Rng(pub u64);
impl Rng {
    pub fn bits(&mut self) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32
    }
    pub fn unit(&mut self) -> f64 {
        self.bits() as f64 / (1u64 << 30) as f64 - 1.0
    }
    pub fn floats(&mut self, n: u64, scale: f64) -> Vec<f64> {
        (0..n).map(|_| self.unit() * scale).collect()
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.bits() as u64 % n.max(1)
    }
}

/// An operand: layout and bytes, gaps included.
#[derive(Clone)]
pub struct T {
    pub dtype: DType,
    pub shape: Vec<u64>,
    pub stride: Vec<i64>,
    pub bytes: Vec<u8>,
    pub absent: bool,
}

fn size(t: DType) -> usize {
    (t.bits() / 8) as usize
}

pub fn dense(shape: &[u64]) -> Vec<i64> {
    let mut s = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        s[i - 1] = s[i] * shape[i] as i64;
    }
    s
}

impl T {
    pub fn strided(dtype: DType, shape: &[u64], stride: &[i64], v: &[f64]) -> T {
        let last: i64 = shape
            .iter()
            .zip(stride)
            .map(|(n, s)| (*n as i64 - 1).max(0) * s)
            .sum();
        let mut t = T {
            dtype,
            shape: shape.to_vec(),
            stride: stride.to_vec(),
            bytes: vec![0x7e; (last as usize + 1) * size(dtype)],
            absent: false,
        };
        assert_eq!(v.len() as u64, shape.iter().product::<u64>());
        for (i, v) in v.iter().enumerate() {
            let at = t.offset(i);
            t.put(at, *v);
        }
        t
    }
    pub fn new(dtype: DType, shape: &[u64], v: &[f64]) -> T {
        T::strided(dtype, shape, &dense(shape), v)
    }
    /// Values a correct op overwrites.
    pub fn poison(dtype: DType, shape: &[u64]) -> T {
        T::poison_strided(dtype, shape, &dense(shape))
    }
    pub fn poison_strided(dtype: DType, shape: &[u64], stride: &[i64]) -> T {
        let v = if dtype.is_float() { f64::NAN } else { 77.0 };
        let n = shape.iter().product::<u64>() as usize;
        T::strided(dtype, shape, stride, &vec![v; n])
    }
    pub fn random(r: &mut Rng, dtype: DType, shape: &[u64], scale: f64) -> T {
        let v = r.floats(shape.iter().product(), scale);
        T::new(dtype, shape, &v)
    }
    /// Random, every row padded by three elements.
    pub fn padded(r: &mut Rng, dtype: DType, shape: &[u64], scale: f64) -> T {
        let mut wide = shape.to_vec();
        if let Some(l) = wide.last_mut() {
            *l += 3;
        }
        let v = r.floats(shape.iter().product(), scale);
        T::strided(dtype, shape, &dense(&wide), &v)
    }
    pub fn absent() -> T {
        T {
            dtype: DType::F32,
            shape: vec![],
            stride: vec![],
            bytes: vec![],
            absent: true,
        }
    }
    fn offset(&self, mut i: usize) -> usize {
        let mut at = 0;
        for d in (0..self.shape.len()).rev() {
            let n = self.shape[d] as usize;
            at += i % n * self.stride[d] as usize;
            i /= n;
        }
        at
    }
    fn put(&mut self, at: usize, v: f64) {
        let n = size(self.dtype);
        let b = &mut self.bytes[at * n..(at + 1) * n];
        match self.dtype {
            DType::F32 => b.copy_from_slice(&(v as f32).to_ne_bytes()),
            DType::Bf16 => {
                b.copy_from_slice(&half::bf16::from_f32(v as f32).to_bits().to_ne_bytes())
            }
            DType::F16 => b.copy_from_slice(&half::f16::from_f32(v as f32).to_bits().to_ne_bytes()),
            DType::I64 => b.copy_from_slice(&(v as i64).to_ne_bytes()),
            DType::I32 => b.copy_from_slice(&(v as i32).to_ne_bytes()),
            DType::U32 => b.copy_from_slice(&(v as u32).to_ne_bytes()),
            DType::U8 => b[0] = v as u8,
            other => panic!("dtype {other:?} is not in these tests"),
        }
    }
    /// Row-major values.
    pub fn values(&self) -> Vec<f64> {
        let n = size(self.dtype);
        (0..self.shape.iter().product::<u64>() as usize)
            .map(|i| {
                let at = self.offset(i) * n;
                let b = &self.bytes[at..at + n];
                match self.dtype {
                    DType::F32 => f32::from_ne_bytes(b.try_into().unwrap()) as f64,
                    DType::Bf16 => {
                        half::bf16::from_bits(u16::from_ne_bytes(b.try_into().unwrap())).to_f64()
                    }
                    DType::F16 => {
                        half::f16::from_bits(u16::from_ne_bytes(b.try_into().unwrap())).to_f64()
                    }
                    DType::I64 => i64::from_ne_bytes(b.try_into().unwrap()) as f64,
                    DType::I32 => i32::from_ne_bytes(b.try_into().unwrap()) as f64,
                    DType::U32 => u32::from_ne_bytes(b.try_into().unwrap()) as f64,
                    DType::U8 => b[0] as f64,
                    other => panic!("dtype {other:?} is not in these tests"),
                }
            })
            .collect()
    }
    fn layout(&self) -> Layout {
        if self.absent {
            Layout::ABSENT
        } else {
            Layout::strided(self.dtype, &self.shape, &self.stride)
        }
    }
}

/// How an op runs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Route {
    /// As the device prefers: the native op, or the recipe where the device has none.
    Device,
    /// The steps of the op's recipe one by one, each by the device's preference (programs stay native).
    Steps,
}

/// A device and a stream.
pub struct Bench {
    pub device: Device,
    pub stream: Stream,
    pub fused: bool,
}

impl Bench {
    /// The linked backend with fused ops or without. One process keeps the configuration of its first device.
    pub fn open(fused: bool) -> Bench {
        let host = HostServices::builder()
            .config("cpu.fused", if fused { "on" } else { "off" })
            .threads(2)
            .build();
        let raw = RawPlugin::from_static::<CpuBackend>(&host).expect("the linked backend loads");
        Bench::on(Plugin::new(raw).open(0).expect("device 0 opens"), fused)
    }

    /// Any device, which answers fused ops itself or, all of them, does not.
    pub fn on(device: Device, fused: bool) -> Bench {
        let stream = device.stream("ops", 0).expect("a stream");
        Bench {
            device,
            stream,
            fused,
        }
    }

    fn launch(&self, request: &OpRequest, operands: &[Operand<'_>], dynamic: &[u8]) {
        let k = self
            .device
            .prepare(request, &Decompositions)
            .unwrap_or_else(|e| panic!("{}: {e}", request.describe()));
        let class = op::spec(request.id).expect("an op of the table").class;
        assert_eq!(
            k.is_native(),
            self.fused || class == op::Class::Primitive,
            "{}: the route is not what the configuration asks for",
            request.describe()
        );
        self.stream
            .launch(&k, operands, dynamic)
            .unwrap_or_else(|e| panic!("{}: {e}", request.describe()));
    }

    /// Runs an op in place over the operands; `alias (i, j)`: operand i is the memory of operand j.
    pub fn run(
        &self,
        route: Route,
        id: u32,
        params: &[u8],
        dynamic: &[u8],
        operands: &mut [T],
        alias: &[(usize, usize)],
    ) {
        let layouts: Vec<Layout> = operands.iter().map(T::layout).collect();
        let request = OpRequest::new(id, &layouts, params);
        let upload = |bytes: &[u8]| -> Buffer {
            let b = self
                .device
                .alloc(&self.stream, bytes.len().max(1) as u64, Tag::Activation)
                .unwrap();
            self.stream
                .write(b.region(0, bytes.len() as u64), bytes)
                .unwrap();
            b
        };
        let buffers: Vec<Buffer> = operands.iter().map(|t| upload(&t.bytes)).collect();
        let home = |i: usize| alias.iter().find(|a| a.0 == i).map_or(i, |a| a.1);
        let regions: Vec<Operand<'_>> = operands
            .iter()
            .enumerate()
            .map(|(i, t)| {
                (!t.absent).then(|| buffers[home(i)].region(0, t.layout().extent_bytes()))
            })
            .collect();
        match route {
            Route::Device => self.launch(&request, &regions, dynamic),
            Route::Steps => {
                let recipe = Decompositions
                    .recipe(&request)
                    .unwrap_or_else(|| panic!("{} has no recipe", request.describe()));
                // Temporaries arrive full of NaN.
                let temps: Vec<Buffer> = recipe
                    .temps
                    .iter()
                    .map(|n| upload(&vec![0xff; *n as usize]))
                    .collect();
                let find = |s: &Slot| match *s {
                    Slot::Absent => None,
                    Slot::Temp { i, at, bytes } => Some(temps[i].region(at, bytes)),
                    Slot::Operand { i, at, bytes } => Some(buffers[home(i)].region(at, bytes)),
                };
                for s in &recipe.steps {
                    match s {
                        RecipeStep::Launch {
                            op,
                            operands,
                            dynamic: map,
                        } => {
                            let o: Vec<_> = operands.iter().map(find).collect();
                            let d = map.as_ref().map_or(vec![], |m| m(dynamic));
                            self.launch(op, &o, &d);
                        }
                        RecipeStep::Fill { slot, pattern } => {
                            let r = find(slot).expect("fills have a place");
                            self.stream.fill(r, pattern(dynamic) as u64, 4).unwrap();
                        }
                    }
                }
            }
        }
        for (i, t) in operands.iter_mut().enumerate() {
            let mut bytes = vec![0; t.bytes.len()];
            let b = &buffers[home(i)];
            if !bytes.is_empty() {
                let n = bytes.len() as u64;
                self.stream.read(b.region(0, n), &mut bytes).unwrap();
                t.bytes = bytes;
            }
        }
    }

    /// Routes this device can show for an op.
    pub fn routes(&self, id: u32) -> Vec<Route> {
        let fused = op::spec(id).is_some_and(|s| s.class == op::Class::Fused);
        if fused && self.fused && id != op::ELEMENTWISE_PROGRAM {
            vec![Route::Device, Route::Steps]
        } else {
            vec![Route::Device]
        }
    }

    /// Runs on every route and holds the outputs to `want`: `(operand, values, bound relative to the value, absolute bound)`, both besides
    /// the rounding of the storage.
    pub fn check(
        &self,
        what: &str,
        id: u32,
        params: &[u8],
        dynamic: &[u8],
        operands: &[T],
        alias: &[(usize, usize)],
        want: &[(usize, Vec<f64>, f64)],
    ) -> Vec<T> {
        let mut first: Option<Vec<T>> = None;
        for route in self.routes(id) {
            let mut o = operands.to_vec();
            self.run(route, id, params, dynamic, &mut o, alias);
            for (i, values, bound) in want {
                let dtype = operands[*i].dtype;
                let who = format!("{what} [{route:?}, {}] operand {i}", dtype.name());
                close(&who, dtype, &o[*i].values(), values, *bound);
            }
            for (i, (new, old)) in o.iter().zip(operands).enumerate() {
                let touched =
                    want.iter().any(|w| w.0 == i) || alias.iter().any(|a| a.0 == i || a.1 == i);
                assert!(
                    touched || new.bytes == old.bytes,
                    "{what} [{route:?}]: operand {i} is not an output but changed"
                );
            }
            first.get_or_insert(o);
        }
        first.unwrap_or_default()
    }
}

/// Unit roundoff of a storage.
pub fn unit_of(t: DType) -> f64 {
    match t {
        DType::Bf16 => 1.0 / 256.0,
        DType::F16 => 1.0 / 2048.0,
        DType::F32 => 2f64.powi(-24),
        _ => 0.0,
    }
}

/// NaN with NaN, infinities exactly, the rest within the rounding of the storage and `bound` relative to the largest value about (at least 0.1:
/// inputs are of order one, and a result that is all cancellation has no digits to hold it to).
pub fn close(what: &str, t: DType, got: &[f64], want: &[f64], bound: f64) {
    assert_eq!(got.len(), want.len(), "{what}: length");
    let scale = want
        .iter()
        .filter(|w| w.is_finite())
        .fold(0.1f64, |m, w| m.max(w.abs()));
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let ok = if w.is_nan() {
            g.is_nan()
        } else if w.is_infinite() || g.is_infinite() {
            g == w
        } else {
            (g - w).abs() <= w.abs() * unit_of(t) * 1.02 + scale * bound + tiny(t)
        };
        assert!(ok, "{what} element {i}: {g} instead of {w} (scale {scale})");
    }
}

fn tiny(t: DType) -> f64 {
    match t {
        DType::F16 => 2f64.powi(-24),
        _ => 0.0,
    }
}
