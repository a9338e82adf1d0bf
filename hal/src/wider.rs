//! The same op through a wider type: 16-bit operands are cast to f32, the op runs there, and what it wrote is cast back (docs/layers.md, route `wider`).
//!
//! Arithmetic is f32 whatever the storage, so that this gives what the op itself would: one rounding, at the end. It is a recipe like any
//! other. `cast` itself does not go this way: through f32 an integer would be rounded twice; nor does `copy_strided`, which computes nothing.

use crate::kernel::{OpRequest, u32_at};
use crate::recipe::{Recipe, RecipeStep, Slot};
use crossweave_abi as abi;
use crossweave_abi::{DType, op};

fn is_narrow(l: &abi::Layout) -> bool {
    [DType::F16.id(), DType::Bf16.id()].contains(&l.dtype)
}

/// The operand without its broadcast dims: those have one element, and are read over and over.
fn once(l: &abi::Layout) -> abi::Layout {
    let mut l = *l;
    for i in 0..l.rank as usize {
        if l.stride[i] == 0 && l.shape[i] > 0 {
            l.shape[i] = 1;
        }
    }
    l.flags = 0;
    l
}

/// Dense f32 of the same shape.
fn dense(l: &abi::Layout) -> abi::Layout {
    let shape: Vec<u64> = l.shape[..l.rank as usize]
        .iter()
        .map(|d| *d as u64)
        .collect();
    abi::Layout::contiguous(DType::F32, &shape)
}

/// How the op finds the dense temporary: broadcast dims where it had them.
fn seen(l: &abi::Layout) -> abi::Layout {
    let few = dense(&once(l));
    let shape: Vec<u64> = l.shape[..l.rank as usize]
        .iter()
        .map(|d| *d as u64)
        .collect();
    let stride: Vec<i64> = (0..l.rank as usize)
        .map(|i| if l.stride[i] == 0 { 0 } else { few.stride[i] })
        .collect();
    abi::Layout::strided(DType::F32, &shape, &stride)
}

/// Does the op look at what is in operand `i`, which it writes?
pub(crate) fn reads_written(o: &OpRequest, i: usize) -> bool {
    let adds = |at: usize| u32_at(&o.params, at) & op::FLAG_ACCUM != 0;
    match o.id {
        // Without the flag the product is written over whatever is there.
        op::MATMUL => adds(std::mem::offset_of!(op::MatmulParams, flags)),
        // With it a sum is no mere output, whatever its table row says.
        op::REDUCE => adds(std::mem::offset_of!(op::ReduceParams, flags)),
        // Which operands a program reads is not in its table row.
        op::ELEMENTWISE_PROGRAM | op::ADAMW => true,
        _ => op::spec(o.id)
            .and_then(|s| s.operand(i))
            .is_none_or(|o| o.is_read() && o.is_written()),
    }
}

/// A launch of an op without parameters from one operand to another.
fn step(id: u32, dst: abi::Layout, src: abi::Layout, to: Slot, from: Slot) -> RecipeStep {
    RecipeStep::Launch {
        op: OpRequest::new(id, &[dst, src], op::NoParams::default().as_bytes()),
        operands: vec![to, from],
        dynamic: None,
    }
}

/// From the f32 temporary `temp` to the operand `all` of layout `l`: casts write dense outputs only, so that others take one more copy.
fn cast_back(temps: &mut Vec<u64>, l: abi::Layout, all: Slot, temp: Slot) -> Vec<RecipeStep> {
    let wide = dense(&l);
    let shape: Vec<u64> = l.shape[..l.rank as usize]
        .iter()
        .map(|d| *d as u64)
        .collect();
    let flat = match DType::from_id(l.dtype) {
        Some(d) => abi::Layout::contiguous(d, &shape),
        None => l,
    };
    let strides = |l: &abi::Layout| {
        let d = 0..l.rank as usize;
        d.filter(|i| l.shape[*i] != 1)
            .map(|i| l.stride[i])
            .collect::<Vec<_>>()
    };
    if strides(&flat) == strides(&l) {
        return vec![step(op::CAST, flat, wide, all, temp)];
    }
    let narrow = Slot::Temp {
        i: temps.len(),
        at: 0,
        bytes: flat.extent_bytes(),
    };
    temps.push(flat.extent_bytes());
    vec![
        step(op::CAST, flat, wide, narrow, temp),
        step(op::COPY_STRIDED, l, flat, all, narrow),
    ]
}

/// The op between casts; `None` where nothing is to be widened.
pub(crate) fn recipe(o: &OpRequest) -> Option<Recipe> {
    if matches!(o.id, op::CAST | op::COPY_STRIDED) || !o.operands.iter().any(is_narrow) {
        return None;
    }
    let mut r = Recipe::default();
    let mut wide = o.clone();
    let (mut slots, mut back) = (vec![], vec![]);
    for (i, l) in o.operands.iter().enumerate() {
        let all = Slot::Operand {
            i,
            at: 0,
            bytes: l.extent_bytes(),
        };
        if !l.present() {
            slots.push(Slot::Absent);
            continue;
        }
        if !is_narrow(l) {
            slots.push(all);
            continue;
        }
        let few = once(l);
        let bytes = DType::F32.bytes(few.numel());
        let temp = Slot::Temp {
            i: r.temps.len(),
            at: 0,
            bytes,
        };
        r.temps.push(bytes);
        let writes = o.writes(i);
        if few.numel() > 0 && (!writes || reads_written(o, i)) {
            r.steps.push(step(op::CAST, dense(&few), few, temp, all));
        }
        if few.numel() > 0 && writes {
            back.extend(cast_back(&mut r.temps, few, all, temp));
        }
        // A temporary of its own: it shares memory with nothing.
        wide.operands[i] = seen(l);
        slots.push(temp);
    }
    r.steps.push(RecipeStep::Launch {
        op: wide,
        operands: slots,
        dynamic: Some(std::sync::Arc::new(|d: &[u8]| d.to_vec())),
    });
    r.steps.extend(back);
    Some(r)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layouts(r: &RecipeStep) -> Vec<abi::Layout> {
        match r {
            RecipeStep::Launch { op, .. } => op.operands.clone(),
            RecipeStep::Fill { .. } => vec![],
        }
    }

    #[test]
    fn broadcast_operands_are_cast_once_and_still_broadcast() {
        let dst = abi::Layout::contiguous(DType::Bf16, &[4, 8]);
        let row = abi::Layout::strided(DType::Bf16, &[4, 8], &[0, 1]);
        let add = op::KindParams {
            kind: op::binary::ADD,
            ..Default::default()
        };
        let r = recipe(&OpRequest::new(
            op::BINARY,
            &[dst, dst, row],
            add.as_bytes(),
        ))
        .unwrap();
        // In: a and the row; then the sum; then out.
        assert_eq!(r.temps, [4 * 8 * 4, 4 * 8 * 4, 8 * 4]);
        assert_eq!(r.steps.len(), 4);
        let sum = layouts(&r.steps[2]);
        assert_eq!(sum[2].stride[..2], [0, 1]);
        assert!(sum.iter().all(|l| l.dtype == DType::F32.id()));
        assert_eq!(layouts(&r.steps[3])[0].dtype, DType::Bf16.id());
    }

    #[test]
    fn casts_and_wide_ops_have_no_wider_form() {
        let wide = abi::Layout::contiguous(DType::F32, &[4]);
        let narrow = abi::Layout::contiguous(DType::F16, &[4]);
        let none = op::NoParams::default();
        for operands in [[wide, narrow], [wide, wide]] {
            assert!(recipe(&OpRequest::new(op::CAST, &operands, none.as_bytes())).is_none());
        }
        let kind = op::KindParams::default();
        assert!(recipe(&OpRequest::new(op::UNARY, &[wide, wide], kind.as_bytes())).is_none());
        assert!(recipe(&OpRequest::new(op::UNARY, &[narrow, wide], kind.as_bytes())).is_some());
    }

    #[test]
    fn a_product_that_does_not_add_does_not_read_its_output() {
        let l = abi::Layout::contiguous(DType::F16, &[2, 2]);
        let mut p = op::MatmulParams::default();
        let steps = |p: &op::MatmulParams| {
            let o = OpRequest::new(op::MATMUL, &[l, l, l, abi::Layout::ABSENT], p.as_bytes());
            recipe(&o).unwrap().steps.len()
        };
        assert_eq!(steps(&p), 4);
        p.flags = op::FLAG_ACCUM;
        assert_eq!(steps(&p), 5);
    }
}
