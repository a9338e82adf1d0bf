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

/// What numbers show: payloads of NaN, roundings, ends of ranges, what has no answer among the integers.
const NUMBERS: &[Defect] = &[
    ("nan_rounds_to_zero", "op.cast.bf16.from_f32"),
    ("signalling_nan_is_infinite", "op.cast.bf16.from_f32"),
    ("ties_go_away_from_zero", "op.cast.bf16.from_f32"),
    ("wide_integers_round_twice", "op.cast.bf16.from_i64"),
    ("floats_round_to_integers", "op.cast.i32.from_f32"),
    ("nan_is_the_least_integer", "op.cast.i32.from_f32"),
    ("large_floats_wrap", "op.cast.i32.from_f32"),
    ("f16_read_as_bf16", "op.cast.f32.from_f16"),
    ("e5m2_read_as_e4m3", "op.cast.f32.from_f8e5m2"),
    ("zeros_are_skipped", "op.matmul.f32"),
    ("bias_after_rounding", "op.matmul.bf16"),
    ("sums_one_after_the_other", "op.reduce.sum.f32.sizes"),
    ("lines_sum_in_bf16", "op.reduce.sum.bf16"),
    ("min_drops_nan", "op.reduce.min.f32"),
    ("nan_is_passed_over", "op.arg_reduce.f32.i32"),
    ("ties_by_higher_index", "op.topk.f32.i32"),
    ("indices_of_32_bits", "op.gather_rows.f32.by_i64"),
    (
        "negative_indices_count_from_the_end",
        "op.gather_rows.f32.by_i32",
    ),
    ("vocabulary_of_16_bits", "op.embedding_fwd.f32.by_i32.sizes"),
    ("bins_of_16_bits", "op.histogram.i32.of_i32.sizes"),
    ("seven_dims_are_six", "op.copy_strided.f32"),
    ("eight_dims_are_seven", "op.binary.add.f32"),
    ("division_by_zero_is_minus_one", "op.binary.div.i32"),
    ("quotients_saturate", "op.binary.div.i32"),
    ("integer_powers_in_floats", "op.binary.pow.i32"),
    ("powers_by_logarithms", "op.binary.pow.f32"),
    ("max_drops_nan", "op.binary.max.f32"),
    ("nan_equals_itself", "op.compare.eq.f32"),
    ("zeros_of_two_signs_differ", "op.compare.eq.f32"),
    ("le_is_lt", "op.compare.le.f32"),
    ("condition_is_its_low_bit", "op.select.f32"),
    ("counts_in_f32", "op.iota.i64"),
    ("fill_goes_through_f32", "op.fill_strided.i64"),
    ("running_sum_is_exclusive", "op.cumsum.f32"),
    ("sum_along_the_last_dim", "op.cumsum.f32"),
    ("zero_times_nan_is_zero", "op.axpby.f32"),
    ("dropped_nan_stays", "op.dropout.f32"),
    ("lo_wins_over_hi", "op.clamp.f32"),
    ("tanh_overflows", "op.unary.tanh.f32"),
    ("floor_cuts_off", "op.unary.floor.f32"),
    ("sine_without_reduction", "op.unary.sin.f32"),
    ("exactness_is_claimed", "op.unary.exp.f32"),
    ("added_and_cut_off", "op.add.bf16"),
    ("softmax_without_maximum", "op.softmax_fwd.f32"),
    ("variance_of_n_minus_1", "op.layer_norm_fwd.f32"),
    ("eps_outside_the_root", "op.rms_norm_fwd.f32"),
    ("normal_lanes_are_swapped", "op.philox.normal.f32"),
    ("offset_of_32_bits", "op.philox.bits.u32"),
];

/// What is not read, ends of types, and many at once.
const CROWDS: &[Defect] = &[
    ("hidden_values_spread", "op.attention_fwd.f32.unread"),
    ("hidden_keys_spread", "op.attention_bwd.f32.unread"),
    (
        "rows_not_added_spread",
        "op.embedding_bwd.f32.by_i32.unread",
    ),
    (
        "rows_not_scattered_spread",
        "op.scatter_add_rows.f32.by_i32.unread",
    ),
    (
        "sums_beyond_f16_are_its_largest",
        "op.reduce.sum.f16.models",
    ),
    (
        "a_tile_of_minus_infinity_is_nan",
        "op.softmax_fwd.f32.models",
    ),
    ("ops_end_at_512", "op.many_prepared"),
    ("structs_in_a_ring_of_64", "op.adamw.f32.grad_f32.launches"),
    ("structs_in_a_ring_of_64", "op.philox.bits.u32.launches"),
    ("prepares_one_at_a_time", "op.softmax_fwd.threads"),
    ("prepares_one_at_a_time", "op.threads.different_ops"),
];

/// What is taken for something else or left out: parameters, operands, parts of lists, streams.
const PARTS: &[Defect] = &[
    ("alpha_ignored", "op.axpby.f32"),
    ("product_alpha_ignored", "op.matmul.f32"),
    ("bias_ignored", "op.matmul.f32"),
    ("batch_of_the_first", "op.matmul.f32"),
    ("sums_are_not_added", "op.reduce.sum.f32"),
    ("ignored_index_is_read", "op.gather_rows.f32.by_i32"),
    ("ignored_index_is_added", "op.scatter_add_rows.f32.by_i32"),
    ("ignored_index_is_learnt", "op.embedding_bwd.f32.by_i32"),
    ("positions_ignored", "op.embedding_fwd.f32.by_i32"),
    ("count_overwritten", "op.nonfinite_count.f32"),
    ("sum_of_squares_overwritten", "op.multi_sumsq.f32"),
    ("table_gradient_overwritten", "op.embedding_bwd.f32.by_i32"),
    ("table_overwritten", "op.scatter_add_rows.f32.by_i32"),
    (
        "ignored_rows_have_gradients",
        "op.cross_entropy_bwd.f32.by_i32",
    ),
    (
        "first_loss_gradient_for_all",
        "op.cross_entropy_bwd.f32.by_i32",
    ),
    ("target_not_taken_off", "op.cross_entropy_bwd.f32.by_i32"),
    ("dot_left_out", "op.softmax_bwd.f32"),
    ("swiglu_of_the_other_half", "op.swiglu_fwd.f32"),
    (
        "tables_of_gelu_are_swapped",
        "op.activation_fwd.gelu_erf.f32",
    ),
    (
        "gelu_erf_has_the_gradient_of_tanh",
        "op.activation_bwd.gelu_erf.f32",
    ),
    ("causal_from_the_left", "op.attention_fwd.f32"),
    ("window_ignored", "op.attention_fwd.f32"),
    ("lse_of_base_2", "op.attention_fwd.f32"),
    ("scale_ignored_backward", "op.attention_bwd.f32"),
    ("mask_ignored_backward", "op.attention_bwd.f32"),
    ("segments_see_ahead", "op.attention_varlen_fwd.f32"),
    ("cap_ignored", "op.attention_ext_fwd.f32"),
    ("cap_ignored_backward", "op.attention_ext_bwd.f32"),
    ("weights_do_not_drop", "op.attention_ext_fwd.f32"),
    ("part_is_taken_for_the_whole", "op.attention_ext_fwd.f32"),
    ("distances_ignored", "op.attention_ext_fwd.f32"),
    ("sinks_ignored", "op.attention_ext_fwd.f32"),
    ("first_angles_for_all", "op.rope.halves.f32"),
    ("decay_is_decoupled_always", "op.adamw.f32.grad_f32"),
    ("weight_decay_ignored", "op.adamw.f32.grad_f32"),
    ("betas_are_swapped", "op.adamw.f32.grad_f32"),
    ("coefficient_ignored", "op.adamw.f32.grad_f32"),
    ("gradient_scale_ignored", "op.adamw.f32.grad_f32"),
    ("host_factor_ignored", "op.multi_scale.f32"),
    ("keeps_with_probability_p", "op.dropout.f32"),
    ("residual_ignored", "op.dropout.f32"),
    ("program_min_is_max", "op.elementwise_program.f32"),
    ("program_fma_adds_nothing", "op.elementwise_program.f32"),
    ("program_has_one_scalar", "op.elementwise_program.f32"),
    ("groups_end_at_30", "op.adamw.f32.grad_f32.lists"),
    ("lists_end_at_64", "op.multi_scale.f32.lists"),
    ("lists_end_at_32", "op.nonfinite_count.f32.lists"),
    ("an_empty_tensor_ends_the_list", "op.multi_sumsq.f32.lists"),
    ("cache_ignores_strides", "op.matmul.f32"),
    ("cache_ignores_parameters", "op.matmul.f32"),
    ("scratch_is_shared", "op.softmax_fwd.two_streams"),
];

/// Special numbers by the usual wrong formulas, integers without a sign, parameters of the rarer ops, launch structs of half a width.
const SPECIALS: &[Defect] = &[
    ("neg_by_subtraction", "op.unary.neg.f32"),
    ("abs_by_comparison", "op.unary.abs.f32"),
    ("log_of_nothing_is_large", "op.unary.log.f32"),
    ("exp_ends_at_88", "op.unary.exp.f32"),
    ("sigmoid_by_e_to_x", "op.unary.sigmoid.f32"),
    ("floor_of_large_wraps", "op.unary.floor.f32"),
    ("max_of_16_bits_drops_nan", "op.binary.max.bf16"),
    ("quotients_by_reciprocals", "op.binary.div.f32"),
    ("ne_of_nan_is_false", "op.compare.ne.f32"),
    ("ge_is_not_lt", "op.compare.ge.f32"),
    ("true_is_255", "op.compare.eq.f32"),
    ("relu_drops_nan", "op.activation_fwd.relu.f32"),
    ("relu_gradient_at_zero_is_one", "op.activation_bwd.relu.f32"),
    ("gelu_of_large_is_nan", "op.activation_fwd.gelu_tanh.f32"),
    ("silu_of_far_below_is_nan", "op.activation_fwd.silu.f32"),
    ("swiglu_of_far_below_is_nan", "op.swiglu_fwd.f32"),
    ("negative_floats_wrap_to_bytes", "op.cast.u8.from_f32"),
    ("f64_rounds_twice", "op.cast.bf16.from_f64"),
    ("running_sum_in_bf16", "op.cumsum.bf16"),
    ("outside_is_counted_at_the_ends", "op.histogram.i32.of_i32"),
    ("max_begins_at_zero", "op.reduce.max.f32"),
    ("max_of_nothing_but_minus_infinity", "op.reduce.max.f32"),
    ("zero_of_either_sign_is_filled", "op.fill_strided.f32"),
    ("signed_instead_cast", "op.cast.f32.from_u32"),
    ("signed_instead_cast", "op.cast.f32.from_u64"),
    ("signed_instead_compare", "op.compare.lt.u32"),
    ("signed_instead_binary", "op.binary.max.u64"),
    ("signed_instead_binary", "op.binary.div.u32"),
    ("adam_eps_ignored", "op.adamw.f32.grad_f32"),
    ("bias_of_norm_ignored", "op.layer_norm_fwd.f32"),
    ("no_sum_with_a_bias", "op.matmul.f32"),
    ("weights_do_not_drop_backward", "op.attention_ext_bwd.f32"),
    ("part_is_the_whole_backward", "op.attention_ext_bwd.f32"),
    ("segments_see_ahead_backward", "op.attention_varlen_bwd.f32"),
    ("segments_have_no_window", "op.attention_varlen_fwd.f32"),
    (
        "segments_have_no_window_backward",
        "op.attention_varlen_bwd.f32",
    ),
    ("segments_have_no_scale", "op.attention_varlen_fwd.f32"),
    (
        "segments_have_no_scale_backward",
        "op.attention_varlen_bwd.f32",
    ),
    ("cap_has_no_window", "op.attention_ext_fwd.f32"),
    ("cap_has_no_window_backward", "op.attention_ext_bwd.f32"),
    ("shift_ignored", "op.attention_ext_fwd.f32.parts"),
    ("shift_ignored_backward", "op.attention_ext_bwd.f32.parts"),
    ("first_key_ignored", "op.attention_ext_fwd.f32.parts"),
    ("first_key_ignored_backward", "op.attention_ext_bwd.merged"),
    ("counts_in_segments", "op.attention_ext_fwd.merged"),
    (
        "counts_in_segments_backward",
        "op.attention_ext_bwd.f32.parts",
    ),
    ("beta_ignored", "op.axpby.f32"),
    ("clamp_has_no_top", "op.clamp.f32"),
    ("step_of_iota_is_whole", "op.iota.f32"),
    ("reduces_the_last_dim_too", "op.reduce.sum.f32"),
    ("positions_of_the_first_row", "op.embedding_fwd.f32.by_i32"),
    ("stream_of_32_bits", "op.philox.bits.u32"),
    ("dropout_stream_of_32_bits", "op.dropout.f32"),
    ("dropout_seed_of_32_bits", "op.dropout.f32"),
    ("dropout_offset_of_32_bits", "op.dropout.f32"),
    ("steps_of_16_bits", "op.adamw.f32.grad_f32"),
    ("rates_of_16_bits", "op.adamw.f32.grad_f32"),
];

/// Instructions of programs that are another one, or several.
const PROGRAMS: &[Defect] = &[
    ("program_min_drops_nan", "op.elementwise_program.f32"),
    ("program_max_drops_nan", "op.elementwise_program.f32"),
    ("program_sigmoid_by_e_to_x", "op.elementwise_program.f32"),
    ("program_tanh_by_e_to_x", "op.elementwise_program.f32"),
    ("program_selects_by_sign", "op.elementwise_program.f32"),
    ("program_fma_rounds_twice", "op.elementwise_program.f32"),
    ("program_lt_is_le", "op.elementwise_program.f32"),
    ("program_has_32_registers", "op.elementwise_program.f32"),
    ("program_has_60_registers", "op.elementwise_program.f32"),
    ("program_has_4_scalars", "op.elementwise_program.f32"),
    ("programs_end_at_48", "op.elementwise_program.f32"),
];

/// What is right alone and wrong together: what is added to a product that is turned, one of a batch or one row, an input that lies as another
/// does, numbers of an earlier launch, special numbers where there are many.
const COMBINED: &[Defect] = &[
    ("no_sum_with_b_turned", "op.matmul.f32"),
    ("no_sum_in_batches", "op.matmul.f32"),
    ("no_bias_in_batches", "op.matmul.f32"),
    ("no_alpha_in_batches", "op.matmul.f32"),
    ("no_sum_of_one_row", "op.matmul.f32"),
    ("no_bias_of_one_row", "op.matmul.f32"),
    ("alpha_of_16_bits", "op.matmul.f32"),
    ("cuts_beyond:matmul:1:1:100", "op.matmul.f32.sizes"),
    ("cuts_beyond:matmul:2:1:200", "op.matmul.f32.sizes"),
    ("first_numbers:matmul:2", "op.matmul.same_bits"),
    ("numbers_by_address:matmul:2", "op.matmul.same_bits"),
    (
        "numbers_by_address:rms_norm_fwd:3",
        "op.rms_norm_fwd.same_bits",
    ),
    ("equal_strides_are_one_block", "op.copy_strided.f32"),
    ("dense_instead:matmul:3", "op.matmul.f32"),
    ("dense_instead:histogram:1", "op.histogram.i32.of_i32"),
    ("dense_instead:nonfinite_count:1", "op.nonfinite_count.f32"),
    ("dense_instead:multi_sumsq:1", "op.multi_sumsq.f32"),
    (
        "dense_instead:attention_ext_fwd:5",
        "op.attention_ext_fwd.f32",
    ),
    (
        "dense_instead:attention_ext_fwd:6",
        "op.attention_ext_fwd.f32",
    ),
    (
        "dense_instead:attention_ext_fwd:7",
        "op.attention_ext_fwd.f32",
    ),
    (
        "dense_instead:attention_ext_fwd:8",
        "op.attention_ext_fwd.f32",
    ),
    (
        "dense_instead:attention_ext_bwd:11",
        "op.attention_ext_bwd.f32",
    ),
    (
        "dense_instead:attention_ext_bwd:12",
        "op.attention_ext_bwd.f32",
    ),
    (
        "dense_instead:attention_ext_bwd:13",
        "op.attention_ext_bwd.f32",
    ),
    (
        "dense_instead:attention_ext_bwd:14",
        "op.attention_ext_bwd.f32",
    ),
    ("dense_instead:softmax_bwd:1", "op.softmax_bwd.f32"),
    ("dense_instead:layer_norm_bwd:4", "op.layer_norm_bwd.f32"),
    ("dense_instead:rms_norm_bwd:6", "op.rms_norm_bwd.f32"),
    (
        "dense_instead:cross_entropy_bwd:1",
        "op.cross_entropy_bwd.f32.by_i32",
    ),
    ("dense_instead:dropout:1", "op.dropout.f32"),
    ("dense_instead:dropout:2", "op.dropout.f32"),
    (
        "dense_instead:embedding_bwd:2",
        "op.embedding_bwd.f32.by_i32",
    ),
    ("eps_0_is_the_usual_one", "op.rms_norm_fwd.f32"),
    ("no_residual_without_db", "op.layer_norm_bwd.f32"),
    ("no_db_without_residual", "op.layer_norm_bwd.f32"),
    ("nothing_beyond_infinity", "op.arg_reduce.f32.i32"),
    ("minus_infinity_is_not_among_them", "op.topk.f32.i32"),
    (
        "targets_out_of_range_have_gradients",
        "op.cross_entropy_bwd.f32.by_i32",
    ),
    (
        "no_second_ignored_without_flag",
        "op.cross_entropy_bwd.f32.by_i32",
    ),
    (
        "loss_of_minus_infinity_is_large",
        "op.cross_entropy_fwd.f32.by_i32",
    ),
    ("dropped_nan_stays_with_a_residual", "op.dropout.f32"),
    ("keys_by_a_part@1000", "op.sort_pairs.i64.i32.sizes"),
    ("keys_by_a_part@1000", "op.sort_pairs.f32.i32.sizes"),
    ("values_of_32_bits", "op.sort_pairs.f32.i64"),
    ("i32_counts_in_f32", "op.iota.i32"),
    ("running_nan_is_dropped", "op.cumsum.f32"),
    ("products_by_logarithms", "op.reduce.prod.f32"),
    ("products_drop_nan", "op.reduce.prod.f32"),
    ("infinities_of_two_signs_cancel", "op.reduce.sum.f32"),
    (
        "last_rows_first@200",
        "op.scatter_add_rows.f32.by_i32.sizes",
    ),
    ("eps_is_corrected_too", "op.adamw.f32.grad_f32"),
    ("nan_rounds_to_zero@600", "op.cast.bf16.from_f32.sizes"),
    ("large_floats_wrap@600", "op.cast.i32.from_f32.sizes"),
    ("max_drops_nan@600", "op.binary.max.f32.sizes"),
    ("quotients_saturate@600", "op.binary.div.i32.sizes"),
    ("ne_of_nan_is_false@600", "op.compare.ne.f32.sizes"),
    ("exp_ends_at_88@600", "op.unary.exp.f32.sizes"),
    ("relu_drops_nan@600", "op.activation_fwd.relu.f32.sizes"),
    ("min_drops_nan@600", "op.reduce.min.f32.sizes"),
    ("nan_is_passed_over@600", "op.arg_reduce.f32.i32.sizes"),
];

#[test]
fn defects_of_ops_are_named() {
    let plugin = wrapped_cpu();
    let sample = [SPECIALS, PROGRAMS, COMBINED].concat();
    let sample = sample.into_iter().step_by(3);
    let mut all = [OPS, NUMBERS, PARTS, CROWDS].concat();
    all.extend(sample);
    holds(&plugin, &all);
    all_named(&all, &|_| plugin.clone());
}

#[test]
#[ignore = "minutes: cargo test --release -p crossweave-tests --test suite special_numbers -- --ignored"]
fn defects_at_special_numbers_and_in_programs_are_named() {
    let plugin = wrapped_cpu();
    let all = [SPECIALS, PROGRAMS, COMBINED].concat();
    holds(&plugin, &all);
    all_named(&all, &|_| plugin.clone());
}

/// A device whose arithmetic takes subnormal numbers for 0: every op that meets them fails and names the attribute by which a device says so;
/// of one that says so every case of these ops holds.
#[test]
fn subnormal_numbers_are_lost_by_claim_only() {
    let bug = "subnormals_are_flushed";
    let only = [
        "op.unary.*.f32",
        "op.binary.*.f32",
        "op.cast.*.from_f32",
        "op.axpby.*",
    ];
    let mut o = options(&wrapped_cpu(), bug, &only);
    o.effort = Effort::Quick;
    let bad = failures(&run(&o));
    for case in ["op.unary.neg.f32", "op.binary.mul.f32"] {
        let said = |f: &&String| f.starts_with(case) && f.contains("flush_subnormals");
        assert!(bad.iter().any(|f| said(&f)), "{case}: {bad:?}");
    }
    let meant = |f: &String| f.contains("flush_subnormals");
    assert!(bad.iter().all(meant), "failures of another kind: {bad:?}");
    o.config.insert("seeded.flush".into(), "1".into());
    assert_eq!(failures(&run(&o)), Vec::<String>::new(), "with the claim");
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
