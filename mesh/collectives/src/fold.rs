//! Adding pieces in rank order on the owner's device: one launch of an elementwise program where the device has it, primitives elsewhere.
//!
//! Both ways give the same bits: floats up to 32 bits are folded in f32, left to right by rank, and rounded once at the end; f64 and
//! integers in their own type.

use crossweave_hal::abi::{Layout, op};
use crossweave_hal::{
    Buffer, DType, Device, Error, Kernel, NoDecompose, OpRequest, Reduce, Region, Result, Stream,
    Tag,
};

/// What is done to the pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Fold {
    Sum,
    Prod,
    Min,
    Max,
    /// Divided by the number of pieces at the end.
    Avg,
    /// Each piece times its rank's factor first.
    Premul,
}

impl From<Reduce> for Fold {
    fn from(r: Reduce) -> Fold {
        match r {
            Reduce::Sum => Fold::Sum,
            Reduce::Prod => Fold::Prod,
            Reduce::Min => Fold::Min,
            Reduce::Max => Fold::Max,
            Reduce::Avg => Fold::Avg,
            Reduce::PremulSum(_) => Fold::Premul,
        }
    }
}

/// What a folder is prepared for, and remembered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FoldKey {
    pub dtype: DType,
    pub fold: Fold,
    /// Pieces.
    pub ranks: u32,
    /// Elements of one piece.
    pub elements: u64,
}

/// The type sums of `dtype` are kept in; also that of factors.
pub(crate) fn accumulator(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::Bf16 => DType::F32,
        d => d,
    }
}

/// The low bytes of a scalar of type `dtype` (f32 or f64) for [`Stream::fill`], and how many.
pub(crate) fn pattern(dtype: DType, x: f64) -> (u64, u32) {
    match dtype {
        DType::F64 => (x.to_bits(), 8),
        _ => (u64::from((x as f32).to_bits()), 4),
    }
}

/// Prepared kernels of one fold.
pub(crate) struct Folder {
    key: FoldKey,
    way: Way,
}

enum Way {
    /// dst, pieces, factors.
    Program(Kernel),
    Steps(Steps),
}

struct Steps {
    /// Accumulator = piece, when the types differ.
    up: Option<Kernel>,
    /// Accumulator += piece of another type.
    add: Option<Kernel>,
    /// Accumulator = accumulator op value.
    join: Kernel,
    /// Value *= factor.
    scale: Option<Kernel>,
    /// Accumulator /= count.
    divide: Option<Kernel>,
    /// Destination = accumulator, when the types differ.
    down: Option<Kernel>,
}

impl Folder {
    pub fn prepare(device: &Device, key: FoldKey) -> Result<Folder> {
        match program(device, key)? {
            Some(k) => {
                let way = Way::Program(k);
                Ok(Folder { key, way })
            }
            None => Folder::of_steps(device, key),
        }
    }

    fn of_steps(device: &Device, key: FoldKey) -> Result<Folder> {
        let acc = accumulator(key.dtype);
        let n = key.elements;
        let wide = Layout::contiguous(acc, &[n]);
        let narrow = Layout::contiguous(key.dtype, &[n]);
        let cast = |to, from| {
            prepare(
                device,
                op::CAST,
                &[to, from],
                op::NoParams::default().as_bytes(),
            )
        };
        let mixed = acc != key.dtype;
        let sums = matches!(key.fold, Fold::Sum | Fold::Avg);
        let add = op::AxpbyParams {
            alpha: 1.0,
            beta: 1.0,
            ..Default::default()
        };
        let join = match key.fold {
            Fold::Sum | Fold::Avg | Fold::Premul => op::binary::ADD,
            Fold::Prod => op::binary::MUL,
            Fold::Min => op::binary::MIN,
            Fold::Max => op::binary::MAX,
        };
        let steps = Steps {
            up: mixed.then(|| cast(wide, narrow)).transpose()?,
            add: (mixed && sums)
                .then(|| prepare(device, op::AXPBY, &[wide, narrow], add.as_bytes()))
                .transpose()?,
            join: joiner_of(device, acc, n, join)?,
            scale: (key.fold == Fold::Premul)
                .then(|| scaler(device, acc, n, op::binary::MUL))
                .transpose()?,
            divide: (key.fold == Fold::Avg)
                .then(|| scaler(device, acc, n, op::binary::DIV))
                .transpose()?,
            down: mixed.then(|| cast(narrow, wide)).transpose()?,
        };
        let way = Way::Steps(steps);
        Ok(Folder { key, way })
    }

    /// `dst` = fold of the pieces, which lie one after the other in `pieces` and do not overlap `dst`. `factors`: one per rank, in the
    /// accumulator's type, for a scaled sum.
    pub fn run(
        &self,
        s: &Stream,
        dst: Region<'_>,
        pieces: Region<'_>,
        factors: Option<Region<'_>>,
    ) -> Result<()> {
        let FoldKey {
            dtype,
            ranks,
            elements,
            ..
        } = self.key;
        if elements == 0 {
            return Ok(());
        }
        let piece = |r: u32| part(pieces, dtype, u64::from(r) * elements, elements);
        let acc = accumulator(dtype);
        let factor = |r: u32| factors.map(|f| part(f, acc, u64::from(r), 1));
        match &self.way {
            Way::Program(k) => {
                let mut operands = [None; op::PROGRAM_MAX_OPERANDS];
                operands[0] = Some(dst);
                let mut n = 1;
                for r in 0..ranks {
                    operands[n] = Some(piece(r));
                    n += 1;
                }
                for r in (0..ranks).filter(|_| factors.is_some()) {
                    operands[n] = factor(r);
                    n += 1;
                }
                s.launch(k, &operands[..n], &[])
            }
            Way::Steps(k) => {
                let scratch = |wanted: bool| -> Result<Option<Buffer>> {
                    wanted
                        .then(|| s.device().alloc(s, acc.bytes(elements), Tag::Comm))
                        .transpose()
                };
                let sum = scratch(k.up.is_some())?;
                let value = scratch((k.up.is_some() && k.add.is_none()) || k.scale.is_some())?;
                let a = sum.as_ref().map_or(dst, Buffer::all);
                match &k.up {
                    Some(up) => s.launch(up, &[Some(a), Some(piece(0))], &[])?,
                    None => s.copy(a, piece(0))?,
                }
                if let Some(scale) = &k.scale {
                    s.launch(scale, &[Some(a), Some(a), factor(0)], &[])?;
                }
                for r in 1..ranks {
                    let mut x = piece(r);
                    if let Some(add) = &k.add {
                        s.launch(add, &[Some(a), Some(x)], &[])?;
                        continue;
                    }
                    if let (Some(up), Some(v)) = (&k.up, &value) {
                        s.launch(up, &[Some(v.all()), Some(x)], &[])?;
                        x = v.all();
                    }
                    if let (Some(scale), Some(v)) = (&k.scale, &value) {
                        s.launch(scale, &[Some(v.all()), Some(x), factor(r)], &[])?;
                        x = v.all();
                    }
                    s.launch(&k.join, &[Some(a), Some(a), Some(x)], &[])?;
                }
                if let Some(divide) = &k.divide {
                    let count = scalar(s, acc, f64::from(ranks))?;
                    s.launch(divide, &[Some(a), Some(a), Some(count.all())], &[])?;
                }
                match &k.down {
                    Some(down) => s.launch(down, &[Some(dst), Some(a)], &[]),
                    None => Ok(()),
                }
            }
        }
    }
}

/// A device word holding `x`, from the pool.
pub(crate) fn scalar(s: &Stream, dtype: DType, x: f64) -> Result<Buffer> {
    let b = s.device().alloc(s, dtype.bytes(1), Tag::Comm)?;
    let (bits, n) = pattern(dtype, x);
    s.fill(b.all(), bits, n)?;
    Ok(b)
}

/// `dst = x kind word` for `n` elements; `dst` may be `x`.
pub(crate) fn scaler(device: &Device, dtype: DType, n: u64, kind: u32) -> Result<Kernel> {
    let dense = Layout::contiguous(dtype, &[n]);
    let word = Layout::strided(dtype, &[n], &[0]);
    let p = op::KindParams {
        kind,
        ..Default::default()
    };
    prepare(device, op::BINARY, &[dense, dense, word], p.as_bytes())
}

/// Elements `at .. at + n` of a region.
pub(crate) fn part(r: Region<'_>, dtype: DType, at: u64, n: u64) -> Region<'_> {
    r.buffer.region(r.offset + dtype.bytes(at), dtype.bytes(n))
}

pub(crate) fn prepare(
    device: &Device,
    id: u32,
    operands: &[Layout],
    params: &[u8],
) -> Result<Kernel> {
    device.prepare(&OpRequest::new(id, operands, params), &NoDecompose)
}

/// `dst = a kind b` of `n` elements. Integer sums and products wrap, so signed and unsigned agree bit by bit: a device needs one of the two.
pub(crate) fn joiner_of(device: &Device, acc: DType, n: u64, kind: u32) -> Result<Kernel> {
    let p = op::KindParams {
        kind,
        ..Default::default()
    };
    let with = |d: DType| {
        let l = Layout::contiguous(d, &[n]);
        prepare(device, op::BINARY, &[l, l, l], p.as_bytes())
    };
    let twin = match acc {
        DType::I8 => Some(DType::U8),
        DType::U8 => Some(DType::I8),
        DType::I32 => Some(DType::U32),
        DType::U32 => Some(DType::I32),
        DType::I64 => Some(DType::U64),
        DType::U64 => Some(DType::I64),
        _ => None,
    };
    let wraps = matches!(kind, op::binary::ADD | op::binary::MUL);
    let told = |e: Error| e.context(format!("reducing {} on its owner", acc.name()));
    match (with(acc), twin) {
        (Err(_), Some(t)) if wraps => with(t).map_err(told),
        (r, _) => r.map_err(told),
    }
}

/// The whole fold as one program; `None` where operands are too many, the type is not a program's, or the device has no programs.
fn program(device: &Device, key: FoldKey) -> Result<Option<Kernel>> {
    use op::inst;
    let n = key.ranks as usize;
    let scaled = key.fold == Fold::Premul;
    let operands = 1 + n * if scaled { 2 } else { 1 };
    let float = matches!(key.dtype, DType::F32 | DType::F16 | DType::Bf16);
    if !float || operands > op::PROGRAM_MAX_OPERANDS || key.elements == 0 {
        return Ok(None);
    }
    let join = match key.fold {
        Fold::Sum | Fold::Avg | Fold::Premul => inst::ADD,
        Fold::Prod => inst::MUL,
        Fold::Min => inst::MIN,
        Fold::Max => inst::MAX,
    };
    let mut p = op::ProgramParams {
        writes: 1,
        ..Default::default()
    };
    let mut push = |op, dst: usize, a: usize, b: usize, imm| {
        let i = op::ProgramInst {
            op,
            dst: dst as u32,
            a: a as u32,
            b: b as u32,
            imm,
            ..Default::default()
        };
        p.insts[p.n_insts as usize] = i;
        p.n_insts += 1;
    };
    // Registers: the operands, then the running value, then one temporary.
    let (sum, tmp) = (operands, operands + 1);
    if scaled {
        push(inst::MUL, sum, 1, 1 + n, 0.0);
    } else {
        push(inst::MOV, sum, 1, 1, 0.0);
    }
    for r in 1..n {
        let mut x = 1 + r;
        if scaled {
            push(inst::MUL, tmp, x, 1 + n + r, 0.0);
            x = tmp;
        }
        push(join, sum, sum, x, 0.0);
    }
    if key.fold == Fold::Avg {
        push(inst::CONST, tmp, 0, 0, key.ranks as f32);
        push(inst::DIV, sum, sum, tmp, 0.0);
    }
    push(inst::MOV, 0, sum, sum, 0.0);
    let dense = Layout::contiguous(key.dtype, &[key.elements]);
    let word = Layout::strided(DType::F32, &[key.elements], &[0]);
    let layouts: Vec<Layout> = (0..operands)
        .map(|i| if i <= n { dense } else { word })
        .collect();
    match prepare(device, op::ELEMENTWISE_PROGRAM, &layouts, p.as_bytes()) {
        Ok(k) => Ok(Some(k)),
        Err(e) if e.code == crossweave_hal::Code::Unsupported => Ok(None),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossweave_hal::{HostServices, Plugin, RawPlugin};
    use half::{bf16, f16};

    fn bits(dtype: DType, x: f32) -> Vec<u8> {
        match dtype {
            DType::Bf16 => bf16::from_f32(x).to_le_bytes().to_vec(),
            DType::F16 => f16::from_f32(x).to_le_bytes().to_vec(),
            _ => x.to_le_bytes().to_vec(),
        }
    }

    fn value(dtype: DType, x: f32) -> f32 {
        match dtype {
            DType::Bf16 => bf16::from_f32(x).to_f32(),
            DType::F16 => f16::from_f32(x).to_f32(),
            _ => x,
        }
    }

    #[test]
    fn program_and_primitives_give_the_bits_of_the_rank_order_sum() {
        let host = HostServices::builder().threads(1).build();
        let raw = RawPlugin::from_static::<crossweave_backend_cpu::CpuBackend>(&host).unwrap();
        let device = Plugin::new(raw).open(0).unwrap();
        let s = device.stream("test", 0).unwrap();
        let (ranks, n) = (5usize, 131usize);
        for dtype in [DType::F32, DType::Bf16, DType::F16] {
            for fold in [
                Fold::Sum,
                Fold::Prod,
                Fold::Min,
                Fold::Max,
                Fold::Avg,
                Fold::Premul,
            ] {
                let x = |r: usize, i: usize| {
                    let big = [1.0, 300.0, -300.0, 0.01][(r + i) % 4];
                    value(dtype, ((r * 37 + i * 11) % 64) as f32 / 7.0 * big)
                };
                let factor = |r: usize| 0.3 + r as f32 / 3.0;
                let want: Vec<u8> = (0..n)
                    .flat_map(|i| {
                        let y = |r: usize| match fold {
                            Fold::Premul => x(r, i) * factor(r),
                            _ => x(r, i),
                        };
                        let mut a = y(0);
                        for r in 1..ranks {
                            a = match fold {
                                Fold::Prod => a * y(r),
                                Fold::Min => a.min(y(r)),
                                Fold::Max => a.max(y(r)),
                                _ => a + y(r),
                            };
                        }
                        if fold == Fold::Avg {
                            a /= ranks as f32;
                        }
                        bits(dtype, a)
                    })
                    .collect();
                let data: Vec<u8> = (0..ranks)
                    .flat_map(|r| (0..n).flat_map(move |i| bits(dtype, x(r, i))))
                    .collect();
                let pieces = device.alloc(&s, data.len() as u64, Tag::Comm).unwrap();
                s.write(pieces.all(), &data).unwrap();
                let words: Vec<u8> = (0..ranks).flat_map(|r| factor(r).to_le_bytes()).collect();
                let factors = device.alloc(&s, words.len() as u64, Tag::Comm).unwrap();
                s.write(factors.all(), &words).unwrap();
                let key = FoldKey {
                    dtype,
                    fold,
                    ranks: ranks as u32,
                    elements: n as u64,
                };
                let program = Folder::prepare(&device, key).unwrap();
                assert!(matches!(program.way, Way::Program(_)));
                let steps = Folder::of_steps(&device, key).unwrap();
                for f in [program, steps] {
                    let dst = device.alloc(&s, want.len() as u64, Tag::Comm).unwrap();
                    let scaled = (fold == Fold::Premul).then(|| factors.all());
                    f.run(&s, dst.all(), pieces.all(), scaled).unwrap();
                    let mut got = vec![0; want.len()];
                    s.read(dst.all(), &mut got).unwrap();
                    let way = matches!(f.way, Way::Program(_));
                    assert!(got == want, "{dtype:?} {fold:?} by program: {way}");
                }
            }
        }
    }
}
