//! What the CPU back end is asked and given in place of what the host said: layouts and parameters at prepare, structs at launch.

use crate::combined;
use crate::mutant::params;
use crate::ops::{Asked, Wrong};
use crate::programs;
use crossweave_abi::op::{self, inst};
use crossweave_abi::{DType, Layout};
use crossweave_plugin::{Dyn, OpRequest, Result};
use std::sync::PoisonError;

/// `DEFECT@L`: a defect of the kernel that is chosen where some dim of an operand is beyond L; none below.
pub fn of_large<'a>(bug: &'a str, operands: &[Layout]) -> &'a str {
    let Some((bug, least)) = bug.split_once('@') else {
        return bug;
    };
    let dims = |x: &Layout| x.shape[..x.rank as usize].iter().copied().max();
    let most = operands.iter().filter_map(dims).max().unwrap_or(0);
    match least.parse::<i64>() {
        Ok(least) if most > least => bug,
        _ => "",
    }
}

/// What the back end is asked instead, when the defect lies there.
pub fn asked(bug: &str, o: &OpRequest<'_>) -> Result<Option<Asked>> {
    let bug = of_large(bug, o.operands);
    // The back end refuses that.
    if o.operands.is_empty() {
        return Ok(None);
    }
    if let Some(other) = programs::asked(bug, o)? {
        return Ok(Some(other));
    }
    if let Some((l, mut p)) = combined::asked(bug, o, &|| params(o))? {
        let size = p.len() as u32;
        p[..4].copy_from_slice(&size.to_ne_bytes());
        return Ok(Some((l, p)));
    }
    let mut l = o.operands.to_vec();
    macro_rules! with {
        ($t:ident) => {
            o.params::<op::$t>()?.as_bytes().to_vec()
        };
        ($t:ident, $p:ident, $change:expr) => {{
            let mut $p = o.params::<op::$t>()?;
            $change;
            $p.as_bytes().to_vec()
        }};
    }
    let mut p = match (bug, o.id) {
        ("accum_flag_ignored", op::MATMUL) => with!(MatmulParams, p, p.flags &= !op::FLAG_ACCUM),
        ("causal_mask_ignored", op::ATTENTION_FWD) => {
            with!(AttentionParams, p, p.flags &= !op::FLAG_CAUSAL)
        }
        ("window_off_by_one", op::ATTENTION_BWD) => {
            with!(AttentionParams, p, p.window += i64::from(p.window > 0))
        }
        ("scale_ignored", op::ATTENTION_FWD) => with!(AttentionParams, p, p.scale = 0.0),
        ("one_key_head_for_all", op::ATTENTION_FWD) => {
            (l[3].stride[2], l[4].stride[2]) = (0, 0);
            with!(AttentionParams)
        }
        // From the first to the last length: one segment.
        ("segments_ignored", op::ATTENTION_VARLEN_FWD) if l[5].shape[1] > 2 => {
            l[5].stride[1] *= l[5].shape[1] - 1;
            l[5].shape[1] = 2;
            with!(AttentionParams)
        }
        ("lengths_of_the_first_row", op::ATTENTION_VARLEN_BWD) => {
            l[9].stride[0] = 0;
            with!(AttentionParams)
        }
        ("skip_ignored", op::ADAMW) => {
            l[1] = Layout::ABSENT;
            with!(AdamwParams)
        }
        ("factor_ignored", op::MULTI_SCALE) => {
            l[0] = Layout::ABSENT;
            with!(NoParams)
        }
        ("residual_gradient_ignored", op::RMS_NORM_BWD) if l.len() > 6 => {
            l[6] = Layout::ABSENT;
            with!(NormParams)
        }
        ("interleaved_ignored", op::ROPE) => with!(RopeParams, p, p.flags &= !op::FLAG_INTERLEAVED),
        ("inverse_ignored", op::ROPE) => with!(RopeParams, p, p.flags &= !op::FLAG_INVERSE),
        ("ignored_rows_count", op::CROSS_ENTROPY_FWD) => with!(XentParams, p, p.flags = 0),
        ("eps_ignored", op::LAYER_NORM_FWD) => with!(NormParams, p, p.eps = 0.0),
        ("descending_is_ascending", op::SORT_PAIRS) => {
            with!(DimParams, p, p.flags &= !op::FLAG_DESCENDING)
        }
        ("beta_0_reads_y", op::AXPBY) => with!(
            AxpbyParams,
            p,
            if p.beta == 0.0 {
                p.beta = 1e-38
            }
        ),
        ("unknown_flags_are_dropped", op::AXPBY) => with!(AxpbyParams, p, p.flags = 0),
        ("fnuz_read_as_ocp", op::CAST) => {
            for x in l.iter_mut().filter(|x| x.dtype == DType::F8E4M3Fnuz.id()) {
                x.dtype = DType::F8E4M3.id();
            }
            with!(NoParams)
        }
        ("transposed_is_read_as_dense", op::BINARY) if l.len() == 3 && l[2].rank == 2 => {
            if l[2].stride[0] == 1 {
                l[2].stride =
                    Layout::contiguous(DType::F32, &[l[2].shape[0] as u64, l[2].shape[1] as u64])
                        .stride;
            }
            with!(KindParams)
        }
        ("tails_are_dropped", op::UNARY) if l.iter().all(|x| x.rank == 1) => {
            l.iter_mut().for_each(|x| x.shape[0] &= !3);
            with!(KindParams)
        }
        ("product_alpha_ignored", op::MATMUL) => with!(MatmulParams, p, p.alpha = 0.0),
        ("bias_ignored", op::MATMUL) if l.len() > 3 => {
            l[3] = Layout::ABSENT;
            with!(MatmulParams)
        }
        ("batch_of_the_first", op::MATMUL) if l[2].rank == 3 => {
            l[2].stride[0] = 0;
            with!(MatmulParams)
        }
        ("sums_are_not_added", op::REDUCE) => {
            with!(ReduceParams, p, p.flags &= !op::FLAG_ACCUM)
        }
        ("ignored_index_is_read", op::GATHER_ROWS)
        | ("ignored_index_is_added", op::SCATTER_ADD_ROWS)
        | ("ignored_index_is_learnt", op::EMBEDDING_BWD) => with!(IndexParams, p, p.flags = 0),
        ("ignored_rows_have_gradients", op::CROSS_ENTROPY_BWD) => {
            with!(XentParams, p, p.flags = 0)
        }
        ("first_loss_gradient_for_all", op::CROSS_ENTROPY_BWD) => {
            l[4].stride[0] = 0;
            with!(XentParams)
        }
        // Query i sees keys up to i, however many come before the first query.
        ("causal_from_the_left", op::ATTENTION_FWD) => {
            let p = o.params::<op::AttentionParams>()?;
            if p.flags & op::FLAG_CAUSAL != 0 && l[3].shape[1] > l[2].shape[1] {
                (l[3].shape[1], l[4].shape[1]) = (l[2].shape[1], l[2].shape[1]);
                l[3].flags &= !crossweave_abi::LAYOUT_CONTIGUOUS;
                l[4].flags &= !crossweave_abi::LAYOUT_CONTIGUOUS;
            }
            p.as_bytes().to_vec()
        }
        ("window_ignored", op::ATTENTION_FWD) => with!(AttentionParams, p, p.window = 0),
        ("scale_ignored_backward", op::ATTENTION_BWD) => with!(AttentionParams, p, p.scale = 0.0),
        ("mask_ignored_backward", op::ATTENTION_BWD) => {
            with!(AttentionParams, p, p.flags &= !op::FLAG_CAUSAL)
        }
        ("segments_see_ahead", op::ATTENTION_VARLEN_FWD) => {
            with!(AttentionParams, p, p.flags &= !op::FLAG_CAUSAL)
        }
        ("cap_ignored", op::ATTENTION_EXT_FWD)
        | ("cap_ignored_backward", op::ATTENTION_EXT_BWD) => {
            with!(AttentionExtParams, p, p.cap = 0.0)
        }
        ("weights_do_not_drop", op::ATTENTION_EXT_FWD) => {
            with!(AttentionExtParams, p, p.dropout = 0.0)
        }
        ("part_is_taken_for_the_whole", op::ATTENTION_EXT_FWD) => {
            with!(
                AttentionExtParams,
                p,
                (p.heads, p.queries, p.keys) = (0, 0, 0)
            )
        }
        ("distances_ignored", op::ATTENTION_EXT_FWD) if l.len() > 5 => {
            l[5] = Layout::ABSENT;
            with!(AttentionExtParams)
        }
        ("sinks_ignored", op::ATTENTION_EXT_FWD) if l.len() > 6 => {
            l[6] = Layout::ABSENT;
            with!(AttentionExtParams)
        }
        ("first_angles_for_all", op::ROPE) => {
            (l[2].stride[0], l[3].stride[0]) = (0, 0);
            with!(RopeParams)
        }
        ("positions_ignored", op::EMBEDDING_FWD) if l.len() > 3 => {
            l[3] = Layout::ABSENT;
            with!(IndexParams)
        }
        ("decay_is_decoupled_always", op::ADAMW) => with!(AdamwParams, p, p.mode = 0),
        ("weight_decay_ignored", op::ADAMW) => with!(AdamwParams, p, p.weight_decay = 0.0),
        ("betas_are_swapped", op::ADAMW) => {
            with!(AdamwParams, p, (p.beta1, p.beta2) = (p.beta2, p.beta1))
        }
        ("coefficient_ignored", op::ADAMW) => {
            l[0] = Layout::ABSENT;
            with!(AdamwParams)
        }
        ("groups_end_at_30", op::ADAMW) => {
            let p = o.params::<op::AdamwParams>()?;
            let group = if p.flags & op::FLAG_MASTER != 0 { 5 } else { 4 };
            l.truncate(2 + 30 * group);
            p.as_bytes().to_vec()
        }
        ("lists_end_at_64", op::MULTI_SCALE) | ("lists_end_at_32", op::NONFINITE_COUNT) => {
            l.truncate(if o.id == op::MULTI_SCALE {
                1 + 64
            } else {
                1 + 32
            });
            with!(NoParams)
        }
        ("an_empty_tensor_ends_the_list", op::MULTI_SUMSQ) => {
            let end = l.iter().skip(1).position(|x| x.numel() == 0);
            l.truncate(end.map_or(l.len(), |e| 1 + e.max(1)));
            with!(NoParams)
        }
        ("keeps_with_probability_p", op::DROPOUT) => with!(DropoutParams, p, p.p = 1.0 - p.p),
        ("residual_ignored", op::DROPOUT) if l.len() > 2 => {
            l[2] = Layout::ABSENT;
            with!(DropoutParams)
        }
        ("program_min_is_max", op::ELEMENTWISE_PROGRAM) => {
            with!(ProgramParams, p, {
                p.insts
                    .iter_mut()
                    .filter(|i| i.op == inst::MIN)
                    .for_each(|i| i.op = inst::MAX);
            })
        }
        ("program_fma_adds_nothing", op::ELEMENTWISE_PROGRAM) => {
            with!(ProgramParams, p, {
                p.insts
                    .iter_mut()
                    .filter(|i| i.op == inst::FMA)
                    .for_each(|i| i.op = inst::MUL);
            })
        }
        ("program_has_one_scalar", op::ELEMENTWISE_PROGRAM) => {
            with!(ProgramParams, p, {
                p.insts
                    .iter_mut()
                    .filter(|i| i.op == inst::SCALAR)
                    .for_each(|i| i.imm = 0.0);
            })
        }
        ("fill_goes_through_f32", op::FILL_STRIDED) => {
            with!(FillParams, p, p.value = f64::from(p.value as f32))
        }
        ("seven_dims_are_six", op::COPY_STRIDED) if l[1].rank >= 7 => {
            l[1].stride[0] = 0;
            with!(NoParams)
        }
        ("eight_dims_are_seven", op::BINARY) if l[1].rank >= 8 => {
            l[1].stride[0] = 0;
            with!(KindParams)
        }
        ("tables_of_gelu_are_swapped", op::ACTIVATION_FWD) => with!(KindParams, p, {
            if p.kind < 3 {
                p.kind = 3 - p.kind;
            }
        }),
        ("gelu_erf_has_the_gradient_of_tanh", op::ACTIVATION_BWD) => {
            with!(KindParams, p, p.kind = if p.kind == 2 { 1 } else { p.kind })
        }
        ("le_is_lt", op::COMPARE) => {
            with!(KindParams, p, p.kind = if p.kind == 4 { 3 } else { p.kind })
        }
        ("alpha_ignored", op::AXPBY) => with!(AxpbyParams, p, p.alpha = 1.0),
        ("sum_along_the_last_dim", op::CUMSUM) => {
            with!(DimParams, p, p.dim = l[1].rank.saturating_sub(1))
        }
        ("f16_read_as_bf16", op::CAST) | ("e5m2_read_as_e4m3", op::CAST) => {
            let (from, to) = match bug {
                "f16_read_as_bf16" => (DType::F16, DType::Bf16),
                _ => (DType::F8E5M2, DType::F8E4M3),
            };
            if l[1].dtype == from.id() {
                l[1].dtype = to.id();
            }
            with!(NoParams)
        }
        // Integers without a sign are taken for those with one.
        (b, id)
            if op::by_name(b.strip_prefix("signed_instead_").unwrap_or(""))
                .is_some_and(|x| x.id == id) =>
        {
            for x in &mut l {
                x.dtype = match DType::from_id(x.dtype) {
                    Some(DType::U8) if id != op::COMPARE => DType::I8.id(),
                    Some(DType::U32) => DType::I32.id(),
                    Some(DType::U64) => DType::I64.id(),
                    _ => x.dtype,
                };
            }
            params(o)?
        }
        ("adam_eps_ignored", op::ADAMW) => with!(AdamwParams, p, p.eps = 0.0),
        ("bias_of_norm_ignored", op::LAYER_NORM_FWD) if l.len() > 5 => {
            l[5] = Layout::ABSENT;
            with!(NormParams)
        }
        ("no_sum_with_a_bias", op::MATMUL) if l.len() > 3 && l[3].present() => {
            with!(MatmulParams, p, p.flags &= !op::FLAG_ACCUM)
        }
        ("weights_do_not_drop_backward", op::ATTENTION_EXT_BWD) => {
            with!(AttentionExtParams, p, p.dropout = 0.0)
        }
        ("part_is_the_whole_backward", op::ATTENTION_EXT_BWD) => {
            with!(
                AttentionExtParams,
                p,
                (p.heads, p.queries, p.keys) = (0, 0, 0)
            )
        }
        ("segments_see_ahead_backward", op::ATTENTION_VARLEN_BWD) => {
            with!(AttentionParams, p, p.flags &= !op::FLAG_CAUSAL)
        }
        ("segments_have_no_window", op::ATTENTION_VARLEN_FWD)
        | ("segments_have_no_window_backward", op::ATTENTION_VARLEN_BWD) => {
            with!(AttentionParams, p, p.window = 0)
        }
        ("segments_have_no_scale", op::ATTENTION_VARLEN_FWD)
        | ("segments_have_no_scale_backward", op::ATTENTION_VARLEN_BWD) => {
            with!(AttentionParams, p, p.scale = 0.0)
        }
        ("cap_has_no_window", op::ATTENTION_EXT_FWD)
        | ("cap_has_no_window_backward", op::ATTENTION_EXT_BWD) => {
            with!(AttentionExtParams, p, p.window = 0)
        }
        ("shift_ignored", op::ATTENTION_EXT_FWD)
        | ("shift_ignored_backward", op::ATTENTION_EXT_BWD) => {
            with!(AttentionExtParams, p, p.shift = 0)
        }
        ("first_key_ignored", op::ATTENTION_EXT_FWD)
        | ("first_key_ignored_backward", op::ATTENTION_EXT_BWD) => {
            with!(AttentionExtParams, p, p.first_key = 0)
        }
        ("counts_in_segments", op::ATTENTION_EXT_FWD)
        | ("counts_in_segments_backward", op::ATTENTION_EXT_BWD) => {
            with!(AttentionExtParams, p, p.flags &= !op::FLAG_IN_ROW)
        }
        ("beta_ignored", op::AXPBY) => with!(AxpbyParams, p, p.beta = 1.0),
        ("clamp_has_no_top", op::CLAMP) => with!(ClampParams, p, p.hi = f64::MAX),
        ("step_of_iota_is_whole", op::IOTA) => with!(IotaParams, p, p.step = p.step.trunc()),
        ("reduces_the_last_dim_too", op::REDUCE) if l[1].rank > 0 => {
            let p = o.params::<op::ReduceParams>()?;
            let last = l[1].rank as usize - 1;
            if p.axes >> last & 1 == 0 && p.axes != 0 {
                // Only its first element comes in.
                l[1].stride[last] = 0;
            }
            p.as_bytes().to_vec()
        }
        ("positions_of_the_first_row", op::EMBEDDING_FWD) if l.len() > 3 && l[3].rank > 1 => {
            l[3].stride[0] = 0;
            with!(IndexParams)
        }
        ("revisions_are_ignored", op::SELECT) => with!(NoParams),
        _ => return Ok(None),
    };
    // A caller's struct may be longer; these bytes are ours.
    let size = p.len() as u32;
    p[..4].copy_from_slice(&size.to_ne_bytes());
    Ok(Some((l, p)))
}

/// The launch struct the back end gets instead.
pub fn told(bug: &str, w: &Wrong, given: &[u8]) -> Result<Vec<u8>> {
    let d = Dyn(given);
    let bug = of_large(bug, &w.layouts);
    macro_rules! with {
        ($t:ident, $p:ident, $change:expr) => {{
            let mut $p = d.read::<op::$t>()?;
            $change;
            $p.as_bytes().to_vec()
        }};
    }
    Ok(match (bug, w.id) {
        ("dyn_of_the_first_launch", _) => {
            let mut first = w.first.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert_with(|| given.to_vec()).clone()
        }
        ("bias_correction_a_step_late", op::ADAMW) => with!(AdamwDyn, p, p.step += 1),
        ("seed_of_32_bits", op::PHILOX) => with!(PhiloxDyn, p, p.seed &= 0xFFFF_FFFF),
        ("stream_ignored", op::PHILOX) => with!(PhiloxDyn, p, p.stream = 0),
        ("offset_of_32_bits", op::PHILOX) => with!(PhiloxDyn, p, p.offset &= 0xFFFF_FFFF),
        ("gradient_scale_ignored", op::ADAMW) => with!(AdamwDyn, p, p.grad_scale = 1.0),
        ("host_factor_ignored", op::MULTI_SCALE) => with!(ScaleDyn, p, p.scale = 1.0),
        ("stream_of_32_bits", op::PHILOX) | ("dropout_stream_of_32_bits", op::DROPOUT) => {
            with!(PhiloxDyn, p, p.stream &= 0xFFFF_FFFF)
        }
        ("dropout_seed_of_32_bits", op::DROPOUT) => with!(PhiloxDyn, p, p.seed &= 0xFFFF_FFFF),
        ("dropout_offset_of_32_bits", op::DROPOUT) => with!(PhiloxDyn, p, p.offset &= 0xFFFF_FFFF),
        ("steps_of_16_bits", op::ADAMW) => with!(AdamwDyn, p, p.step = (p.step & 0xFFFF).max(1)),
        ("rates_of_16_bits", op::ADAMW) => {
            with!(
                AdamwDyn,
                p,
                p.lr = f64::from(f32::from_bits((p.lr as f32).to_bits() & 0xFFFF_0000))
            )
        }
        ("offset_counts_elements", op::DROPOUT) => with!(PhiloxDyn, p, p.offset /= 4),
        _ => given.to_vec(),
    })
}
