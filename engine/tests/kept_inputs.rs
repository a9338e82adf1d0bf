//! Kept inputs of recomputed units that are cut over the ranks which share layers (`RankSpec::cuts_kept_inputs`): the bits are those of whole ones,
//! each rank keeps its part on the device and on the host, and what is gathered is what the formula counts.

use crate::common::*;
use crossweave_engine::{
    OffloadDevice, OffloadSpec, PipelineOrder, PipelineSpec, RankSpec, Recompute,
};
use crossweave_hal::DType;
use crossweave_nn::ModelSpec;

const STEPS: u64 = 3;

fn model(layers: u64) -> ModelSpec {
    with(
        &gpt2(layers, 0.1),
        &[("n_head", 4), ("n_embd", 24), ("n_inner", 48)],
    )
}

fn job(dp: u32, micro: u32) -> RankSpec {
    RankSpec {
        recompute: Recompute::Full,
        cuts_kept_inputs: true,
        ..of_length(spec(dp, micro), 8)
    }
}

fn whole(s: &RankSpec) -> RankSpec {
    RankSpec {
        cuts_kept_inputs: false,
        ..s.clone()
    }
}

/// ZeRO stages, pipelines, 16 bits and offload: nothing of what is computed changes.
#[test]
fn parts_of_kept_inputs_have_the_bits_of_whole_ones() {
    let (w, dir) = (world(), tempfile::tempdir().unwrap());
    for (k, (dp, tp, pp)) in [(1, 2, 1), (2, 2, 1), (1, 4, 1), (1, 2, 2), (1, 3, 1)]
        .into_iter()
        .enumerate()
    {
        for stage in [0, 3] {
            let model = with(&model(2), &[("n_head", 12)]);
            let mut s = staged(job(dp, 2), stage);
            s.compute = [DType::F32, DType::Bf16][(k + stage as usize) % 2];
            if pp > 1 {
                let units = units(&model).len() as u32;
                s.pipeline = Some(PipelineSpec::even(units, pp, PipelineOrder::OneFOneB));
            }
            if k % 2 == 0 {
                s.offload = Some(OffloadSpec {
                    activations: true,
                    ..offload(dir.path(), OffloadDevice::Host)
                });
            }
            let cut = Cut(model.clone(), None, tp);
            let [a, b] = [s.clone(), whole(&s)].map(|s| train(&w, &cut, &cut_over(s, tp), STEPS));
            assert_eq!(
                a.bits(),
                b.bits(),
                "dp {dp}, tp {tp}, pp {pp}, stage {stage}"
            );
        }
    }
}

/// With w = bsh (t-1)/t: one w more for each kept input of each micro-batch, and (t-1)/t of the memory of them less.
#[test]
fn a_kept_input_is_gathered_once_and_kept_in_parts() {
    let w = world();
    let (layers, width, micro) = (6, 24, 2);
    for tp in [2, 4] {
        let (s, cut) = (job(1, micro), Cut(model(layers), None, tp));
        let rows = s.rows.batch * s.rows.seq_len;
        let found = [s.clone(), whole(&s)].map(|s| train(&w, &cut, &cut_over(s, tp), STEPS));
        let sent = |o: &Outcome, rank: usize| -> u64 {
            let of = o.ledgers[rank].collectives.iter();
            let of = of.filter(|c| of_blocks(c, "tp"));
            of.map(|c| c.wire_elements).sum()
        };
        let wire = rows * width * u64::from(tp - 1) / u64::from(tp);
        // The layers and the head keep an input; the embedding has none.
        let kept = layers + 1;
        for rank in 0..tp as usize {
            let more = sent(&found[0], rank) - sent(&found[1], rank);
            assert_eq!(
                more,
                STEPS * u64::from(micro) * kept * wire,
                "rank {rank} of {tp}"
            );
        }
        let [a, b] = found
            .each_ref()
            .map(|o| o.ledgers[0].memory.tags["activation"].peak);
        // Of the inputs that are kept when the last layer runs.
        let less = (layers - 1) * 4 * wire;
        assert!(
            a + less <= b,
            "over {tp}: {a} bytes, and {b} of whole inputs, {less} apart"
        );
        let of = |o: &Outcome| o.facts.units.iter().map(|u| u.saved_input).sum::<u64>();
        assert_eq!(of(&found[1]) - of(&found[0]), kept * 4 * wire);
    }
}

/// Hidden states that are cut by tokens are kept as they are.
#[test]
fn what_is_cut_already_is_not_cut_again() {
    let w = world();
    let (cut, s) = (Tokens(Cut(model(2), None, 2)), cut_over(job(1, 1), 2));
    let [a, b] = [s.clone(), whole(&s)].map(|s| train(&w, &cut, &s, STEPS));
    assert_eq!(a.bits(), b.bits());
    let lines = |o: &Outcome| -> Vec<(String, u64)> {
        let of = o.ledgers[0].collectives.iter();
        of.map(|c| (format!("{} {} {}", c.group, c.kind, c.tag), c.elements))
            .collect()
    };
    assert_eq!(lines(&a), lines(&b));
}

/// The same model with the tokens of its hidden states cut over the ranks that share its layers.
struct Tokens(Cut);

impl Declares for Tokens {
    fn declare(&self) -> Vec<crossweave_tensor::UnitDecl> {
        let mut units = self.0.declare();
        let over = crossweave_mesh::Axis::Tp.into();
        units.iter_mut().for_each(|u| u.hidden_over = over);
        units
    }
}
