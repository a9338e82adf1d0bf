//! An op as calls of aclnn's operators on tensors of which everything is known but the addresses.

use crossweave_gpu::Handle;
use crossweave_plugin::{DType, Dyn, OpRequest, Result, unsupported};
use std::ffi::c_void;

/// `aclDataType`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Dtype(pub(crate) i32);

impl Dtype {
    pub(crate) const F32: Dtype = Dtype(0);
    pub(crate) const F16: Dtype = Dtype(1);
    pub(crate) const I32: Dtype = Dtype(3);
    pub(crate) const U8: Dtype = Dtype(4);
    pub(crate) const I16: Dtype = Dtype(6);
    pub(crate) const I64: Dtype = Dtype(9);
    pub(crate) const BOOL: Dtype = Dtype(12);
    pub(crate) const BF16: Dtype = Dtype(27);

    /// Bytes of an element.
    pub(crate) fn bytes(self) -> u64 {
        match self {
            Dtype::U8 | Dtype::BOOL => 1,
            Dtype::F16 | Dtype::BF16 | Dtype::I16 => 2,
            Dtype::I64 => 8,
            _ => 4,
        }
    }

    /// The operators' type of ours; u32 goes as i32, of the same bits.
    fn of(d: DType) -> Option<Dtype> {
        Some(match d {
            DType::F32 => Dtype::F32,
            DType::F16 => Dtype::F16,
            DType::Bf16 => Dtype::BF16,
            DType::I32 | DType::U32 => Dtype::I32,
            DType::I64 => Dtype::I64,
            DType::U8 => Dtype::U8,
            _ => return None,
        })
    }
}

/// `ACL_FORMAT_ND`.
pub(crate) const FORMAT_ND: i32 = 2;
/// What the pieces of a workspace begin at multiples of.
pub(crate) const PIECE: u64 = 512;

/// Where a tensor's memory begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Base {
    Operand(usize),
    /// So many bytes into the workspace.
    Workspace(u64),
}

/// A tensor without its address.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub(crate) base: Base,
    pub(crate) dtype: Dtype,
    pub(crate) dims: Vec<i64>,
    pub(crate) strides: Vec<i64>,
}

fn dense(dims: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; dims.len()];
    for d in (1..dims.len()).rev() {
        strides[d - 1] = strides[d] * dims[d].max(1);
    }
    strides
}

impl Tensor {
    /// Elements.
    pub(crate) fn count(&self) -> i64 {
        self.dims.iter().product()
    }

    /// Row-major without gaps?
    pub(crate) fn is_dense(&self) -> bool {
        let both = self.strides.iter().zip(dense(&self.dims));
        let mut both = both.zip(&self.dims);
        both.all(|((s, d), n)| *n == 1 || *s == d)
    }

    /// The same memory as another type of as many bytes.
    pub(crate) fn as_type(&self, dtype: Dtype) -> Tensor {
        Tensor {
            dtype,
            ..self.clone()
        }
    }

    /// As integers of its bits.
    pub(crate) fn bits(&self) -> Tensor {
        self.as_type(match self.dtype.bytes() {
            1 => Dtype::U8,
            2 => Dtype::I16,
            4 => Dtype::I32,
            _ => Dtype::I64,
        })
    }

    /// A dense tensor in other dims.
    pub(crate) fn shaped(&self, dims: &[i64]) -> Tensor {
        Tensor {
            dims: dims.to_vec(),
            strides: dense(dims),
            ..self.clone()
        }
    }

    /// The same memory with dims and strides of the caller's.
    pub(crate) fn strided(&self, dims: &[i64], strides: &[i64]) -> Tensor {
        Tensor {
            dims: dims.to_vec(),
            strides: strides.to_vec(),
            ..self.clone()
        }
    }

    /// One element, everywhere.
    pub(crate) fn everywhere(&self, dims: &[i64]) -> Tensor {
        self.strided(dims, &vec![0; dims.len()])
    }

    /// As the first dims of larger ones, the same along the rest.
    pub(crate) fn along(&self, rest: &[i64]) -> Tensor {
        let dims = [&self.dims[..], rest].concat();
        let strides = [&self.strides[..], &vec![0; rest.len()]].concat();
        self.strided(&dims, &strides)
    }

    /// The first `n` along a dim.
    pub(crate) fn first(&self, dim: usize, n: i64) -> Tensor {
        let mut t = self.clone();
        t.dims[dim] = n;
        t
    }

    /// Rank 3, where a matrix stands for all of a batch.
    pub(crate) fn batch_of(&self, n: i64) -> Tensor {
        match self.dims.len() {
            2 => self.strided(
                &[n, self.dims[0], self.dims[1]],
                &[0, self.strides[0], self.strides[1]],
            ),
            _ => self.clone(),
        }
    }

    /// Elements from the first to behind the last.
    pub(crate) fn reach(&self) -> i64 {
        let steps = self.dims.iter().zip(&self.strides);
        1 + steps.map(|(n, s)| (n - 1).max(0) * s).sum::<i64>()
    }
}

/// A number for an operator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Number(pub(crate) Dtype, pub(crate) [u8; 8]);

impl Number {
    pub(crate) fn f32(v: f64) -> Number {
        Number(Dtype::F32, wide(&(v as f32).to_ne_bytes()))
    }
    pub(crate) fn i64(v: i64) -> Number {
        Number(Dtype::I64, v.to_ne_bytes())
    }
    /// By its bits.
    pub(crate) fn bits(dtype: Dtype, bits: u32) -> Number {
        Number(dtype, wide(&bits.to_ne_bytes()))
    }
}

fn wide(b: &[u8]) -> [u8; 8] {
    let mut w = [0; 8];
    w[..b.len()].copy_from_slice(b);
    w
}

/// An argument of an operator.
pub(crate) enum Arg {
    Tensor(Tensor),
    Scalar(Number),
    Ints(Vec<i64>),
    Bools(Vec<u8>),
    /// An integer, a type, a truth, the bits of a float, the address of a text, nothing.
    Word(u64),
}

/// A call of an operator: its first phase through a function that knows its type.
pub(crate) struct Call {
    pub(crate) name: &'static str,
    pub(crate) args: Vec<Arg>,
    pub(crate) first: unsafe fn(*const c_void, &[u64], *mut u64, *mut Handle) -> i32,
}

/// What the host computes for a launch: all the bytes of a tensor.
pub(crate) type Make = Box<dyn Fn(&mut [u8], Dyn<'_>) -> Result<()> + Send + Sync>;

pub(crate) enum Step {
    Call(Call),
    /// The host's numbers into a dense tensor.
    Host(Tensor, Make),
}

/// What an op becomes.
#[derive(Default)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    /// Bytes of the workspace, so far and at most.
    used: u64,
    pub(crate) most: u64,
}

impl Plan {
    pub(crate) fn push(&mut self, c: Call) {
        self.steps.push(Step::Call(c));
    }

    /// The host computes a dense tensor's bytes at every launch.
    pub(crate) fn host(&mut self, to: &Tensor, make: Make) {
        self.steps.push(Step::Host(to.clone(), make));
    }

    /// A dense tensor in the workspace.
    pub(crate) fn temp(&mut self, dtype: Dtype, dims: &[i64]) -> Tensor {
        let bytes = dims.iter().product::<i64>().max(1) as u64 * dtype.bytes();
        let at = self.used;
        self.used = (at + bytes).next_multiple_of(PIECE);
        self.most = self.most.max(self.used);
        Tensor {
            base: Base::Workspace(at),
            dtype,
            dims: dims.to_vec(),
            strides: dense(dims),
        }
    }

    /// What `f` takes of the workspace is free again afterwards.
    pub(crate) fn scoped(&mut self, f: impl FnOnce(&mut Plan)) {
        let used = self.used;
        f(self);
        self.used = used;
    }
}

/// Operand `i` of an op, or `Unsupported` for a type that no operator has.
pub(crate) fn operand(o: &OpRequest<'_>, i: usize) -> Result<Tensor> {
    let Some((l, dtype)) = o.layout(i).zip(o.dtype(i).and_then(Dtype::of)) else {
        return unsupported(format!(
            "{}: operand {i} is of a type that the operators do not have",
            crossweave_plugin::operand::name(o)
        ));
    };
    let rank = l.rank as usize;
    let (mut dims, mut strides) = (l.shape[..rank].to_vec(), l.stride[..rank].to_vec());
    if rank == 0 {
        (dims, strides) = (vec![1], vec![1]);
    }
    Ok(Tensor {
        base: Base::Operand(i),
        dtype,
        dims,
        strides,
    })
}
