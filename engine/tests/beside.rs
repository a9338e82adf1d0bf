//! What blocks exchange in the backward beside their products (tensor and sequence parallelism): the bits, the elements and the peak of memory
//! are known beforehand, and those of exchanges in order with the kernels are the same bits and elements.

use crate::common::*;
use crossweave_engine::{RankSpec, Recompute};
use crossweave_hal::DType;
use crossweave_mesh::Axis;
use crossweave_nn::ModelSpec;
use crossweave_tensor::UnitDecl;

const STEPS: u64 = 3;

/// A model whose layers are cut over two ranks, and between attention and MLP its tokens too where that is asked for.
struct Pieces(Cut, bool);

impl Declares for Pieces {
    fn declare(&self) -> Vec<UnitDecl> {
        let mut units = self.0.declare();
        if self.1 {
            units
                .iter_mut()
                .for_each(|u| u.hidden_over = Axis::Tp.into());
        }
        units
    }
}

/// Even heads and widths; two key-value heads, so that queries, keys and values are products of their own.
fn models() -> [ModelSpec; 2] {
    let sizes = [("n_head", 4), ("n_embd", 16), ("n_inner", 32)];
    let gated = [
        ("num_attention_heads", 4),
        ("num_key_value_heads", 2),
        ("head_dim", 4),
        ("intermediate_size", 12),
    ];
    [with(&gpt2(2, 0.1), &sizes), with(&llama(2), &gated)]
}

/// Elements that the ranks of an axis send for blocks, and the calls.
fn said(o: &Outcome) -> Vec<[u64; 2]> {
    let of = |l: &crossweave_engine::RankLedger| {
        let all = l.collectives.iter().filter(|c| of_blocks(c, "tp"));
        all.fold([0; 2], |[n, calls], c| {
            [n + c.wire_elements, calls + c.calls]
        })
    };
    o.ledgers.iter().map(of).collect()
}

/// Does the plan have exchanges beside the blocks' kernels?
fn beside(o: &Outcome) -> bool {
    let units = o.facts.units.iter().flat_map(|u| &u.talk.backward);
    units.filter_map(|s| s.moves.as_ref()).any(|m| m.beside)
}

#[test]
fn gradients_travel_beside_products_to_the_same_bits() {
    let w = world();
    for model in models() {
        for (sequence, compute) in [(false, DType::F32), (true, DType::F32), (true, DType::Bf16)] {
            for recompute in [Recompute::None, Recompute::Selective, Recompute::Full] {
                let [got, ordered] = [true, false].map(|overlap| {
                    let mut s = RankSpec {
                        compute,
                        recompute,
                        ..cut_over(of_length(spec(1, 2), 6), 2)
                    };
                    s.zero.overlap = overlap;
                    let pieces = Pieces(Cut(model.clone(), None, 2), sequence);
                    train(&w, &pieces, &s, STEPS)
                });
                let what = format!("{sequence}, {compute:?}, {recompute:?}");
                assert!(beside(&got), "{what}: nothing travels beside the products");
                assert!(got.bits() == ordered.bits(), "{what}");
                assert_eq!(said(&got), said(&ordered), "{what}");
                for l in &got.ledgers {
                    assert_eq!(l.device_allocs_after_step_2, 0, "{what}");
                }
            }
        }
    }
}
