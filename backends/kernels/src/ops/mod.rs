//! One file per family: what is supported, and the launches. The same checks as every back end makes; what an op's file does not do is `Unsupported`.

mod attention;
mod index;
mod matmul;
mod multi;
mod norm;
mod point;
mod program;
mod reduce;
mod rope;
mod softmax;
mod sort;
mod survey;

use crate::args::Plain;
use crate::launch::{Dynamic, Launch, Place, Prepared, Slot};
use crate::source::{Facts, Kernel};
use crate::view::*;
use crossweave_abi::op;
use crossweave_plugin::{Op, Result, unsupported};
pub use survey::{every_kernel, every_launch};

type Answer = Result<Prepared>;
type Planner = fn(&Op<'_>, &Facts) -> Answer;

/// Which planner serves which id: the only list of ops in this crate.
const TABLE: &[(u32, Planner)] = &[
    (op::COPY_STRIDED, point::copy_strided),
    (op::CAST, point::cast),
    (op::FILL_STRIDED, point::fill_strided),
    (op::IOTA, point::iota),
    (op::UNARY, point::unary),
    (op::BINARY, point::binary),
    (op::COMPARE, point::compare),
    (op::SELECT, point::select),
    (op::AXPBY, point::axpby),
    (op::CLAMP, point::clamp),
    (op::REDUCE, reduce::reduce),
    (op::ARG_REDUCE, reduce::arg_reduce),
    (op::CUMSUM, reduce::cumsum),
    (op::NONFINITE_COUNT, multi::nonfinite_count),
    (op::MATMUL, matmul::matmul),
    (op::GATHER_ROWS, index::gather_rows),
    (op::SCATTER_ADD_ROWS, index::scatter_add_rows),
    (op::SORT_PAIRS, sort::sort_pairs),
    (op::TOPK, sort::topk),
    (op::HISTOGRAM, reduce::histogram),
    (op::PHILOX, point::philox),
    (op::ELEMENTWISE_PROGRAM, program::program),
    (op::ADAMW, multi::adamw),
    (op::LAYER_NORM_FWD, norm::layer_forward),
    (op::LAYER_NORM_BWD, norm::layer_backward),
    (op::RMS_NORM_FWD, norm::rms_forward),
    (op::RMS_NORM_BWD, norm::rms_backward),
    (op::SOFTMAX_FWD, softmax::softmax),
    (op::SOFTMAX_BWD, softmax::softmax_backward),
    (op::CROSS_ENTROPY_FWD, softmax::cross_entropy),
    (op::CROSS_ENTROPY_BWD, softmax::cross_entropy_backward),
    (op::ATTENTION_FWD, attention::forward),
    (op::ATTENTION_BWD, attention::backward),
    (op::ACTIVATION_FWD, point::activation),
    (op::ACTIVATION_BWD, point::activation_backward),
    (op::SWIGLU_FWD, point::swiglu),
    (op::SWIGLU_BWD, point::swiglu_backward),
    (op::ROPE, rope::rope),
    (op::EMBEDDING_FWD, index::embedding),
    (op::EMBEDDING_BWD, index::embedding_backward),
    (op::MULTI_SUMSQ, multi::sumsq),
    (op::MULTI_SCALE, multi::scale_all),
    (op::DROPOUT, point::dropout),
    (op::ADD, point::add),
];

/// Answers with launches for a device of these facts, or `Unsupported` without side effects.
pub fn prepare(o: &Op<'_>, f: &Facts) -> Answer {
    if o.revision != 1 {
        return refuse(o, format!("revision {} (the kernels know 1)", o.revision));
    }
    match TABLE.iter().find(|(id, _)| *id == o.id) {
        Some((_, planner)) => planner(o, f),
        None => unsupported(format!(
            "op {:#06x} {}",
            o.id,
            op::spec(o.id).map_or("(unknown)", |s| s.name)
        )),
    }
}

/// Nothing to launch.
pub(crate) fn nothing(o: &Op<'_>) -> Answer {
    done(o, 0, Vec::new(), Dynamic::None)
}

pub(crate) fn done(o: &Op<'_>, workspace: u64, launches: Vec<Launch>, dynamic: Dynamic) -> Answer {
    Ok(Prepared {
        plan: plan(o, workspace),
        launches,
        dynamic,
    })
}

/// A launch of a kernel with one argument struct. `slots` name the struct's address fields.
pub(crate) fn launch<A: Plain>(
    kernel: Kernel,
    grid: [u64; 3],
    threads: u32,
    shared: u64,
    args: &A,
    slots: &[(&str, Place)],
) -> Launch {
    let slots = slots
        .iter()
        .filter_map(|(field, place)| {
            let (_, at) = A::FIELDS.iter().find(|(f, _)| f == field)?;
            Some(Slot {
                at: *at as u32,
                place: *place,
            })
        })
        .collect();
    Launch {
        kernel,
        grid: grid.map(|g| g.clamp(1, i32::MAX as u64) as u32),
        block: [threads, 1, 1],
        shared: shared as u32,
        args: args.bytes().to_vec(),
        slots,
        dynamic: None,
    }
}

/// Blocks for `work` items in blocks of `each`, at most `waves` rounds of all multiprocessors; kernels stride over the rest.
pub(crate) fn blocks(work: u64, each: u64, f: &Facts) -> u64 {
    work.div_ceil(each).clamp(1, f.sms.max(1) as u64 * 32)
}

/// Threads of a block that covers `groups` groups of eight, a power of two from a warp on.
pub(crate) fn threads_for(groups: u64, least: u32, most: u32) -> u32 {
    (groups.clamp(1, most as u64) as u32)
        .next_power_of_two()
        .clamp(least, most)
}
