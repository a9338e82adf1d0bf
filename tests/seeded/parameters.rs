//! Defects of the kind "the large kernel does not know": what an op is asked for is ignored only where some dim of an operand is beyond L, as
//! by a kernel that is chosen for large sizes and lacks a mask, a bias, a factor or a flag. The op's case of sizes must name each.

use crate::seeded::frame::{Defect, named, wrapped_cpu};
use crate::seeded::sizes::Changing;
use crossweave_conform::Effort;
use crossweave_conform::op::Trials;
use std::collections::BTreeMap;

/// Where the large kernels begin.
const FROM: usize = 512;

/// What they do not know, and the case of the op.
const UNKNOWN: &[Defect] = &[
    ("accum_flag_ignored", "op.matmul.f32.sizes"),
    ("product_alpha_ignored", "op.matmul.f32.sizes"),
    ("bias_ignored", "op.matmul.f32.sizes"),
    ("no_sum_with_a_bias", "op.matmul.f32.sizes"),
    ("batch_of_the_first", "op.matmul.f32.sizes"),
    ("causal_mask_ignored", "op.attention_fwd.f32.sizes"),
    ("causal_from_the_left", "op.attention_fwd.f32.sizes"),
    ("scale_ignored", "op.attention_fwd.f32.sizes"),
    ("window_ignored", "op.attention_fwd.f32.sizes"),
    ("one_key_head_for_all", "op.attention_fwd.f32.sizes"),
    ("window_off_by_one", "op.attention_bwd.f32.sizes"),
    ("scale_ignored_backward", "op.attention_bwd.f32.sizes"),
    ("mask_ignored_backward", "op.attention_bwd.f32.sizes"),
    ("segments_ignored", "op.attention_varlen_fwd.f32.sizes"),
    ("segments_see_ahead", "op.attention_varlen_fwd.f32.sizes"),
    (
        "segments_have_no_window",
        "op.attention_varlen_fwd.f32.sizes",
    ),
    (
        "segments_have_no_scale",
        "op.attention_varlen_fwd.f32.sizes",
    ),
    (
        "lengths_of_the_first_row",
        "op.attention_varlen_bwd.f32.sizes",
    ),
    (
        "segments_see_ahead_backward",
        "op.attention_varlen_bwd.f32.sizes",
    ),
    (
        "segments_have_no_window_backward",
        "op.attention_varlen_bwd.f32.sizes",
    ),
    (
        "segments_have_no_scale_backward",
        "op.attention_varlen_bwd.f32.sizes",
    ),
    ("cap_ignored", "op.attention_ext_fwd.f32.sizes"),
    ("cap_has_no_window", "op.attention_ext_fwd.f32.sizes"),
    ("weights_do_not_drop", "op.attention_ext_fwd.f32.sizes"),
    (
        "part_is_taken_for_the_whole",
        "op.attention_ext_fwd.f32.sizes",
    ),
    ("distances_ignored", "op.attention_ext_fwd.f32.sizes"),
    ("sinks_ignored", "op.attention_ext_fwd.f32.sizes"),
    ("cap_ignored_backward", "op.attention_ext_bwd.f32.sizes"),
    (
        "cap_has_no_window_backward",
        "op.attention_ext_bwd.f32.sizes",
    ),
    (
        "weights_do_not_drop_backward",
        "op.attention_ext_bwd.f32.sizes",
    ),
    (
        "part_is_the_whole_backward",
        "op.attention_ext_bwd.f32.sizes",
    ),
    ("skip_ignored", "op.adamw.f32.grad_f32.sizes"),
    ("decay_is_decoupled_always", "op.adamw.f32.grad_f32.sizes"),
    ("weight_decay_ignored", "op.adamw.f32.grad_f32.sizes"),
    ("betas_are_swapped", "op.adamw.f32.grad_f32.sizes"),
    ("coefficient_ignored", "op.adamw.f32.grad_f32.sizes"),
    ("adam_eps_ignored", "op.adamw.f32.grad_f32.sizes"),
    ("gradient_scale_ignored", "op.adamw.f32.grad_f32.sizes"),
    ("bias_correction_a_step_late", "op.adamw.f32.grad_f32.sizes"),
    ("steps_of_16_bits", "op.adamw.f32.grad_f32.sizes"),
    ("factor_ignored", "op.multi_scale.f32.sizes"),
    ("host_factor_ignored", "op.multi_scale.f32.sizes"),
    ("residual_gradient_ignored", "op.rms_norm_bwd.bf16.sizes"),
    ("bias_of_norm_ignored", "op.layer_norm_fwd.f32.sizes"),
    ("eps_ignored", "op.layer_norm_fwd.f32.sizes"),
    ("interleaved_ignored", "op.rope.interleaved.f32.sizes"),
    ("inverse_ignored", "op.rope.halves.f32.sizes"),
    ("first_angles_for_all", "op.rope.halves.f32.sizes"),
    (
        "ignored_rows_count",
        "op.cross_entropy_fwd.f32.by_i32.sizes",
    ),
    (
        "ignored_rows_have_gradients",
        "op.cross_entropy_bwd.f32.by_i32.sizes",
    ),
    (
        "first_loss_gradient_for_all",
        "op.cross_entropy_bwd.f32.by_i32.sizes",
    ),
    ("ignored_index_is_read", "op.gather_rows.f32.by_i32.sizes"),
    (
        "ignored_index_is_added",
        "op.scatter_add_rows.f32.by_i32.sizes",
    ),
    (
        "ignored_index_is_learnt",
        "op.embedding_bwd.f32.by_i32.sizes",
    ),
    ("positions_ignored", "op.embedding_fwd.f32.by_i32.sizes"),
    ("sums_are_not_added", "op.reduce.sum.f32.sizes"),
    ("sum_along_the_last_dim", "op.cumsum.f32.sizes"),
    ("descending_is_ascending", "op.sort_pairs.f32.i32.sizes"),
    ("beta_0_reads_y", "op.axpby.f32.sizes"),
    ("beta_ignored", "op.axpby.f32.sizes"),
    ("alpha_ignored", "op.axpby.f32.sizes"),
    ("clamp_has_no_top", "op.clamp.f32.sizes"),
    ("transposed_is_read_as_dense", "op.binary.sub.f32.sizes"),
    ("tails_are_dropped", "op.unary.neg.f32.sizes"),
    ("le_is_lt", "op.compare.le.f32.sizes"),
    (
        "tables_of_gelu_are_swapped",
        "op.activation_fwd.gelu_erf.f32.sizes",
    ),
    (
        "gelu_erf_has_the_gradient_of_tanh",
        "op.activation_bwd.gelu_erf.f32.sizes",
    ),
    ("keeps_with_probability_p", "op.dropout.f32.sizes"),
    ("residual_ignored", "op.dropout.f32.sizes"),
    ("offset_counts_elements", "op.dropout.bf16.sizes"),
    ("seed_of_32_bits", "op.philox.bits.u32.sizes"),
    ("stream_of_32_bits", "op.philox.bits.u32.sizes"),
];

fn from(bug: &str) -> String {
    format!("{bug}@{FROM}")
}

#[test]
fn a_sample_of_what_large_kernels_do_not_know_is_named() {
    let plugin = wrapped_cpu();
    // A prime step; attention, which takes longest, in the sweep only.
    let quick = UNKNOWN.iter().filter(|d| !d.1.contains("attention"));
    let each = quick
        .step_by(7)
        .map(|(bug, case)| named(&plugin, (&from(bug), case)));
    let lost: Vec<String> = each.filter_map(Result::err).collect();
    assert_eq!(lost, Vec::<String>::new(), "defects that were not named");
}

#[test]
#[ignore = "minutes: cargo test --release -p crossweave-tests --test suite large_kernels -- --ignored --nocapture"]
fn what_large_kernels_do_not_know_is_named() {
    let plugin = Changing::new();
    let mut cases: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    UNKNOWN
        .iter()
        .for_each(|(bug, case)| cases.entry(case).or_default().push(bug));
    let mut lost = vec![];
    for (case, bugs) in cases {
        let trials = Trials::of(case, Effort::Default).expect("a case of sizes");
        let all = |bug: &str| trials.hold(plugin.with(bug), None);
        let clean = all("").err();
        lost.extend(clean.map(|e| format!("{case} without a defect: {e}")));
        for bug in bugs {
            let found = all(&from(bug));
            println!("{bug}: {}", found.as_ref().err().map_or("LOST", |e| e));
            lost.extend(
                found
                    .ok()
                    .map(|n| format!("{bug}: {n} trials of {case} hold")),
            );
        }
    }
    assert_eq!(lost, Vec::<String>::new(), "defects that were not named");
}
