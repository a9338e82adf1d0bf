//! One file per family: what is supported, and the launches. The same checks as every back end makes; what an op's file does not do is `Unsupported`.

mod attention;
mod ext;
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
mod varlen;

use crate::args::Plain;
use crate::launch::{ARGS_MAX, Dynamic, Launch, Operands, Place, Prepared, Slot};
use crate::source::{Facts, Kernel};
use crate::view::*;
use crossweave_abi::op;
use crossweave_plugin::{Code, OpRequest, Result, fail, unsupported};
pub use survey::{every_kernel, every_launch, survey};

type Answer = Result<Prepared>;
type Planner = fn(&OpRequest<'_>, &Facts) -> Answer;

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
    (op::ATTENTION_VARLEN_FWD, varlen::forward),
    (op::ATTENTION_VARLEN_BWD, varlen::backward),
    (op::ATTENTION_EXT_FWD, ext::forward),
    (op::ATTENTION_EXT_BWD, ext::backward),
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
pub fn prepare(o: &OpRequest<'_>, f: &Facts) -> Answer {
    if op::spec(o.id).is_some_and(|s| !s.has_revision(o.revision)) {
        return refuse(o, format!("revision {} is not known here", o.revision));
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
pub(crate) fn nothing(o: &OpRequest<'_>) -> Answer {
    done(o, 0, Vec::new(), Dynamic::None)
}

pub(crate) fn done(
    o: &OpRequest<'_>,
    workspace: u64,
    launches: Vec<Launch>,
    dynamic: Dynamic,
) -> Answer {
    // An address without its place in the argument struct would be a kernel that reads address 0.
    for l in &launches {
        let room = l.args.len();
        if room > ARGS_MAX || l.slots.iter().any(|s| s.at as usize + 8 > room) {
            return fail(
                Code::Internal,
                format!(
                    "{}: kernel {} is given an address its {room} bytes of arguments have no field for",
                    name(o),
                    l.kernel.entry
                ),
            );
        }
    }
    Ok(Prepared {
        plan: plan(o, workspace),
        operands: Operands::of(o)?,
        launches,
        dynamic,
    })
}

/// A launch of a kernel with one argument struct. `slots` name the struct's address fields; [`done`] refuses one it does not have.
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
        .map(|(field, place)| {
            let known = A::FIELDS.iter().find(|(f, _)| f == field);
            Slot {
                at: known.map_or(u32::MAX, |(_, at)| *at as u32),
                place: *place,
            }
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

/// Who has a row, by its length alone (`Team` in the source): a whole block, or of short rows some neighbouring threads of a warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Team {
    /// Whether several share a block.
    pub(crate) short: bool,
    /// log2 of the threads that have a short row.
    pub(crate) shift: u64,
    /// Threads of a block.
    pub(crate) threads: u32,
}

impl Team {
    /// For rows of `groups` groups of eight, which up to 32 threads cover or else a block of at most `most`; blocks of short rows have `several`.
    pub(crate) fn of(groups: u64, several: u32, most: u32) -> Team {
        let each = threads_for(groups, 1, most);
        let short = each <= 32;
        Team {
            short,
            shift: if short { each.ilog2() as u64 } else { 0 },
            threads: if short { several } else { each },
        }
    }

    /// Rows of a block.
    pub(crate) fn rows(self) -> u64 {
        if self.short {
            self.threads as u64 >> self.shift
        } else {
            1
        }
    }

    /// What ends the name of a kernel that is compiled for such rows.
    pub(crate) fn suffix(self) -> &'static str {
        if self.short { "_short" } else { "" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{RopeArgs, zero};
    use crate::source::Family;
    use crossweave_abi::Layout;
    use crossweave_plugin::DType;

    fn layout(dtype: DType, shape: &[i64], stride: &[i64]) -> Layout {
        let mut l = Layout {
            dtype: dtype.id(),
            rank: shape.len() as u32,
            ..Layout::ABSENT
        };
        l.shape[..shape.len()].copy_from_slice(shape);
        l.stride[..stride.len()].copy_from_slice(stride);
        l
    }

    #[test]
    fn an_address_for_a_field_that_is_not_there_is_no_launch() {
        let o = OpRequest::new(op::ROPE, &[], &[], 0);
        let with = |field: &str| {
            let k = Kernel::new(Family::Rope, "cw_rope_x".into(), 32, "RopeArgs", "x");
            let l = launch(
                k,
                [1; 3],
                32,
                0,
                &zero::<RopeArgs>(),
                &[(field, Place::Operand(0))],
            );
            done(&o, 0, vec![l], Dynamic::None)
        };
        assert!(with("cos").is_ok());
        let e = with("cosine").err().map(|e| (e.code, e.message));
        assert!(
            matches!(&e, Some((Code::Internal, m)) if m.contains("rope: kernel cw_rope_x")),
            "{e:?}"
        );
    }

    #[test]
    fn what_a_launch_is_given_is_held_against_the_layouts() {
        let l = [
            layout(DType::F32, &[2, 3], &[8, 1]),
            Layout::ABSENT,
            layout(DType::Bf16, &[0], &[1]),
            layout(DType::U8, &[5], &[0]),
        ];
        let o = Operands::of(&OpRequest::new(op::ADD, &l, &[], 0)).unwrap();
        let ask = |given: &[Option<(u64, u64)>]| {
            let mut out = [77; 4];
            o.addresses(given.iter().copied(), &mut out)
                .map(|()| out)
                .map_err(|e| (e.code, e.message))
        };
        let says = |given: &[Option<(u64, u64)>], what: &str| match ask(given) {
            Err((Code::Invalid, m)) => assert!(m.starts_with("add: ") && m.contains(what), "{m}"),
            r => panic!("{r:?}, wanted {what:?}"),
        };
        // Two rows of three, eight apart: eleven elements.
        let x = Some((256, 44));
        assert_eq!(ask(&[x, None, None, Some((3, 1))]), Ok([256, 0, 0, 3]));
        assert_eq!(
            ask(&[Some((4, 99)), Some((8, 0)), Some((2, 0)), Some((3, 1))]),
            Ok([4, 0, 2, 3])
        );
        says(
            &[x, None, None],
            "prepared with 4 operands, launched with 3",
        );
        says(
            &[Some((256, 43)), None, None, Some((3, 1))],
            "operand 0 needs 44 bytes, its span has 43",
        );
        says(
            &[Some((258, 44)), None, None, Some((3, 1))],
            "operand 0 starts at 0x102",
        );
        says(
            &[x, Some((8, 1)), None, Some((3, 1))],
            "operand 1 was absent at prepare but is given",
        );
        says(
            &[None, None, None, Some((3, 1))],
            "operand 0 was there at prepare but is missing",
        );
        says(&[x, None, None, Some((3, 0))], "operand 3 needs 1 bytes");
        assert_eq!(o.workspace(0, None).ok(), Some(0));
        assert_eq!(o.workspace(9, Some((512, 9))).ok(), Some(512));
        for (needs, given) in [(9, None), (9, Some((512, 8))), (9, Some((576, 9)))] {
            assert_eq!(
                o.workspace(needs, given).err().map(|e| e.code),
                Some(Code::Invalid)
            );
        }
        // Layouts no memory has, of operands no planner looked at.
        let huge = [layout(DType::F64, &[1 << 40, 1 << 40], &[1 << 40, 1])];
        assert!(Operands::of(&OpRequest::new(op::ADD, &huge, &[], 0)).is_err());
        let deep = [Layout {
            rank: 9,
            ..layout(DType::F32, &[1], &[1])
        }];
        assert!(Operands::of(&OpRequest::new(op::ADD, &deep, &[], 0)).is_err());
    }
}
