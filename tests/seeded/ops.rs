//! Defects of ops, each with the case that must fail for it.

use crate::seeded::frame::{Defect, all_named, failures, holds, options, run, wrapped_cpu};
use crossweave_conform::Effort;

/// In the wrapper of the CPU back end.
const OPS: &[Defect] = &[
    ("cast_truncates", "op.cast.bf16.from_f32"),
    ("fnuz_read_as_ocp", "op.cast.f32.from_f8e4m3fnuz"),
    ("matmul_sums_in_bf16", "op.matmul.bf16"),
    ("accum_flag_ignored", "op.matmul.f32"),
    ("transposed_is_read_as_dense", "op.binary.sub.f32"),
    ("tails_are_dropped", "op.unary.neg.f32"),
    ("beta_0_reads_y", "op.axpby.f32"),
    ("nan_is_clamped", "op.clamp.f32"),
    ("stores_past_the_end", "op.fill_strided.f32"),
    ("op_input_is_scratch", "op.softmax_fwd.f32"),
    ("last_of_equals", "op.arg_reduce.f32.i32"),
    ("sort_is_unstable", "op.sort_pairs.i32.i32"),
    ("descending_is_ascending", "op.sort_pairs.f32.i32"),
    ("minus_infinity_not_counted", "op.nonfinite_count.f32"),
    ("out_of_range_is_the_last_row", "op.gather_rows.f32.by_i32"),
    ("duplicates_overwrite", "op.embedding_bwd.f32.by_i32"),
    ("seed_of_32_bits", "op.philox.bits.u32"),
    ("stream_ignored", "op.philox.uniform.f32"),
    ("dropout_keeps_what_it_drops", "op.dropout.f32"),
    ("offset_counts_elements", "op.dropout.bf16"),
    ("dyn_of_the_first_launch", "op.adamw.f32.grad_f32"),
    (
        "bias_correction_a_step_late",
        "op.adamw.f32.grad_f32.master",
    ),
    ("skip_ignored", "op.adamw.bf16.grad_bf16"),
    ("factor_ignored", "op.multi_scale.f32"),
    ("eps_ignored", "op.layer_norm_fwd.f32"),
    ("weight_gradient_overwritten", "op.layer_norm_bwd.f32"),
    ("residual_gradient_ignored", "op.rms_norm_bwd.bf16"),
    ("workspace_understated", "op.rms_norm_bwd.f32"),
    ("lse_without_maximum", "op.cross_entropy_fwd.f32.by_i64"),
    ("ignored_rows_count", "op.cross_entropy_fwd.bf16.by_i32"),
    ("causal_mask_ignored", "op.attention_fwd.f32"),
    ("one_key_head_for_all", "op.attention_fwd.bf16"),
    ("scale_ignored", "op.attention_fwd.f16"),
    ("window_off_by_one", "op.attention_bwd.f32"),
    ("segments_ignored", "op.attention_varlen_fwd.f32"),
    ("lengths_of_the_first_row", "op.attention_varlen_bwd.f32"),
    ("interleaved_ignored", "op.rope.interleaved.f32"),
    ("inverse_ignored", "op.rope.halves.f32"),
    ("class_overstated", "op.select.f32"),
    ("sums_change_from_run_to_run", "op.multi_sumsq.same_bits"),
    ("unknown_flags_are_dropped", "op.refuse.flags"),
    ("revisions_are_ignored", "op.refuse.revision"),
];

#[test]
fn defects_of_ops_are_named() {
    let plugin = wrapped_cpu();
    holds(&plugin, OPS);
    all_named(&plugin, OPS);
}

/// Nobody says where to look: all cases of an op find its defect, and those of other ops find none.
#[test]
fn whole_ops_find_a_sample() {
    let plugin = wrapped_cpu();
    for (bug, wanted) in [
        ("sort_is_unstable", "op.sort_pairs."),
        ("skip_ignored", "op.adamw."),
    ] {
        let mut o = options(
            &plugin,
            bug,
            &["op.sort_pairs.*", "op.adamw.*", "op.rope.*"],
        );
        o.effort = Effort::Quick;
        let bad = failures(&run(&o));
        assert!(!bad.is_empty(), "{bug} is not found");
        assert!(bad.iter().all(|f| f.starts_with(wanted)), "{bug}: {bad:?}");
    }
}
