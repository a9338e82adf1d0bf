//! `coll.*`: every claimed (kind, type, reduction) on every number of ranks, and what cells cannot show: uneven exchanges, groups, splits,
//! two communicators, and the order of streams.

mod cell;
mod desk;
mod differing;
mod special;
mod uneven;
mod value;

use crate::case::{Case, Demanded};
use cell::Cell;
use crossweave_abi::*;

/// The group's cases for these numbers of ranks.
pub fn cases(ranks: &[u32]) -> Vec<Case> {
    let mut v = Vec::new();
    for n in ranks {
        let n = *n;
        let mut add = |kind: u32, name: &str, dtype: DType, reduce: u32, word: &str, flags: u32| {
            let id = match word {
                "" => format!("coll.{name}.{}.r{n}", dtype.name()),
                w => format!("coll.{name}.{}.{w}.r{n}", dtype.name()),
            };
            let cell = Cell {
                kind,
                dtype,
                reduce,
                flags,
                big: match reduce {
                    0 => matches!(dtype, DType::F32 | DType::U8),
                    RED_SUM => matches!(dtype, DType::F32 | DType::Bf16) && flags == 0,
                    RED_MAX => dtype == DType::F32,
                    _ => false,
                },
            };
            let must = profile::coll_need(kind, dtype.id(), reduce, flags);
            let case = Case::new(id, move |ctx| cell.judge(ctx, n)).on_ranks(n);
            v.push(match must {
                true => case.demanded(Demanded::COLLECTIVE),
                false => case,
            });
        };
        for (kind, name) in [
            (COLL_ALL_REDUCE, "all_reduce"),
            (COLL_REDUCE_SCATTER, "reduce_scatter"),
            (COLL_REDUCE, "reduce"),
        ] {
            for t in DType::ALL {
                for (reduce, word) in [
                    (RED_SUM, "sum"),
                    (RED_PROD, "prod"),
                    (RED_MIN, "min"),
                    (RED_MAX, "max"),
                    (RED_AVG, "avg"),
                    (RED_PREMUL_SUM, "premul_sum"),
                ] {
                    add(kind, name, t, reduce, word, 0);
                }
                if matches!(t, DType::F16 | DType::Bf16) {
                    add(kind, name, t, RED_SUM, "sum_acc_f32", COLLF_ACC_F32);
                }
            }
        }
        for (kind, name) in [
            (COLL_ALL_GATHER, "all_gather"),
            (COLL_BROADCAST, "broadcast"),
            (COLL_ALL_TO_ALL, "all_to_all"),
        ] {
            for t in DType::ALL {
                add(kind, name, t, 0, "", 0);
            }
        }
        v.extend(uneven::cases(n));
        v.extend(special::cases(n));
        v.extend(differing::cases(n));
    }
    v
}
