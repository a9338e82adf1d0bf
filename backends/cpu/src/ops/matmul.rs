//! `matmul`: checks layouts and hands over to [`crate::gemm`].

use super::view::{FLOATS, output_strided};
use crate::gemm::elem::Elem;
use crate::gemm::tile::Isa;
use crate::gemm::{Gemm, Operands};
use crate::isa::Isas;
use crate::kernel::{Kernel, Launch};
use crossweave_abi::Layout;
use crossweave_abi::op::{FLAG_ACCUM, MatmulParams, class};
use crossweave_plugin::{Code, DType, OpRequest, Plan, Result, fail, unsupported};

struct Matmul(Gemm);

impl Kernel for Matmul {
    unsafe fn run(&self, l: &Launch<'_>) {
        let o = Operands {
            c: l.operands[0],
            a: l.operands[1],
            b: l.operands[2],
            bias: l.operands.get(3).copied().unwrap_or(std::ptr::null_mut()),
            workspace: l.workspace,
        };
        // SAFETY: the caller's contract: operands valid for the layouts prepared, workspace as planned.
        unsafe { self.0.run(o, l.team) }
    }
}

/// The storage of operand `i` and its layout, whose rank is 2 or 3.
fn matrix<'a>(op: &OpRequest<'a>, i: usize, name: &str) -> Result<(Elem, &'a Layout)> {
    let Some(l) = op.layout(i) else {
        return fail(Code::Invalid, format!("matmul: operand {name} is absent"));
    };
    if !(2..=3).contains(&l.rank) {
        return unsupported(format!(
            "matmul: {name} has rank {}, supported are 2 and 3",
            l.rank
        ));
    }
    match op.dtype(i).and_then(Elem::of) {
        Some(e) => Ok((e, l)),
        None => unsupported(format!(
            "matmul: dtype {} of {name}, supported are f32, bf16, f16",
            op.dtype(i).map_or("unknown", DType::name)
        )),
    }
}

/// `[rows, columns]` of a matrix operand.
fn shape(l: &Layout) -> [usize; 2] {
    let r = l.rank as usize;
    [
        l.shape[r - 2].max(0) as usize,
        l.shape[r - 1].max(0) as usize,
    ]
}

/// Strides `[row, column, batch]` in elements, batch 0 for rank 2.
fn strides(l: &Layout) -> [isize; 3] {
    let r = l.rank as usize;
    let batch = if r == 3 { l.stride[0] } else { 0 };
    [
        l.stride[r - 2] as isize,
        l.stride[r - 1] as isize,
        batch as isize,
    ]
}

/// Prepares a product.
pub fn prepare(op: &OpRequest<'_>, threads: usize, isas: Isas) -> Result<(Box<dyn Kernel>, Plan)> {
    let p: MatmulParams = op.params()?;
    if p.flags & !FLAG_ACCUM != 0 || p.epilogue != 0 {
        return unsupported(format!(
            "matmul: flags {:#x}, epilogue {}",
            p.flags, p.epilogue
        ));
    }
    if p.acc_dtype != 0 && p.acc_dtype != DType::F32.id() {
        return unsupported("matmul: accumulation is in f32 only");
    }
    let (out, c) = matrix(op, 0, "c")?;
    let (ea, a) = matrix(op, 1, "a")?;
    let (eb, b) = matrix(op, 2, "b")?;
    if ea != eb || (out != ea && out != Elem::F32) {
        return unsupported(format!(
            "matmul: a {ea:?}, b {eb:?}, c {out:?}: a and b must agree, c be theirs or f32"
        ));
    }
    let batch = if c.rank == 3 {
        c.shape[0].max(0) as usize
    } else {
        1
    };
    let ([m, n], [ma, k], [kb, nb]) = (shape(c), shape(a), shape(b));
    let same_batch = |l: &Layout| l.rank == 2 || (c.rank == 3 && l.shape[0] == c.shape[0]);
    if ma != m || nb != n || k != kb || !same_batch(a) || !same_batch(b) {
        return fail(
            Code::Invalid,
            format!(
                "matmul: c {:?}, a {:?}, b {:?} do not fit",
                &c.shape[..c.rank as usize],
                &a.shape[..a.rank as usize],
                &b.shape[..b.rank as usize]
            ),
        );
    }
    let (sa, sb, sc) = (strides(a), strides(b), strides(c));
    if n > 1 && sc[1] != 1 {
        return unsupported(format!("matmul: c has last stride {}, must be 1", sc[1]));
    }
    if sc[0] < 0 || (m > 1 && (sc[0] as usize) < n) {
        return unsupported(format!(
            "matmul: rows of c overlap (stride {} < {n})",
            sc[0]
        ));
    }
    output_strided(op, 0, FLOATS)?;
    let bias = match op.layout(3) {
        None => None,
        Some(l) => {
            if l.rank != 1 || l.shape[0].max(0) as usize != n {
                return fail(Code::Invalid, format!("matmul: bias must be [{n}]"));
            }
            match op.dtype(3).and_then(Elem::of) {
                Some(e) => Some((e, l.stride[0] as isize)),
                None => return unsupported("matmul: bias must be f32, bf16 or f16"),
            }
        }
    };
    let alpha = if p.alpha == 0.0 { 1.0 } else { p.alpha as f32 };
    let isa = Isa::of(isas, ea);
    let gemm = Gemm::new(
        [batch, m, n, k],
        ea,
        sa,
        [sb[1], sb[0], sb[2]],
        out,
        [sc[0], sc[2]],
        bias,
        alpha,
        p.flags & FLAG_ACCUM != 0,
        threads,
        isa,
    );
    let plan = Plan {
        tier: if isa.name == "portable" { 1 } else { 2 },
        workspace_bytes: gemm.workspace() as u64,
        est_ns: 0,
        error_class: class::MATMUL,
    };
    Ok((Box::new(Matmul(gemm)), plan))
}
