//! Hides ops and collectives of a plugin: what is named is refused as if the plugin had never had it, before anything reaches it (R3). It shows what a
//! device would lose, and is how fallbacks are tested on any machine.

use crate::call::{Call, OpFacts, collective_name};
use crate::wrap::Layer;
use crossweave_abi::{CollDesc, DType, Status, coll_by_name, op};
use crossweave_plugin::{Code, Error, Result};

/// One hidden cell: an op or all of a class, in one type or in all.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Cell {
    what: What,
    dtype: Option<DType>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    All,
    Fused,
    Op(u32),
    Collective(u32),
}

/// The layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lacks(Vec<Cell>);

impl Lacks {
    /// Reads `attention_bwd+matmul:bf16+fused+reduce_scatter`: names of the op table, of collectives (but `reduce`, which is the op), `fused` (every optional op but `elementwise_program`) or `all`, each
    /// with `:TYPE` for operands of that type only.
    ///
    /// # Errors
    /// A name or type that is none.
    pub fn parse(text: &str) -> std::result::Result<Lacks, String> {
        let cell = |part: &str| {
            let (name, dtype) =
                match part.split_once(':') {
                    Some((n, t)) => {
                        let hit = DType::ALL.into_iter().find(|d| d.name() == t);
                        (
                            n,
                            Some(hit.ok_or_else(|| {
                                format!("{t:?} is no element type; write e.g. bf16")
                            })?),
                        )
                    }
                    None => (part, None),
                };
            let what = match name {
                "all" => What::All,
                "fused" => What::Fused,
                _ => match (op::by_name(name), coll_by_name(name)) {
                    (Some(s), _) => What::Op(s.id),
                    (None, Some(kind)) => What::Collective(kind),
                    (None, None) => return Err(no_op(name)),
                },
            };
            Ok(Cell { what, dtype })
        };
        let cells = text
            .split('+')
            .map(str::trim)
            .map(cell)
            .collect::<std::result::Result<_, String>>()?;
        Ok(Lacks(cells))
    }

    fn hides(&self, o: &OpFacts) -> bool {
        self.0.iter().any(|c| {
            let fused = op::spec(o.op).is_some_and(|s| s.class == op::Class::Fused);
            let named = match c.what {
                What::Collective(_) => false,
                What::All => true,
                What::Fused => fused && o.op != op::ELEMENTWISE_PROGRAM,
                What::Op(id) => id == o.op,
            };
            named
                && c.dtype
                    .is_none_or(|t| o.operands.iter().any(|l| l.dtype == t.id()))
        })
    }
}

impl Lacks {
    fn hides_collective(&self, d: &CollDesc) -> bool {
        let hit = |c: &Cell| {
            c.what == What::Collective(d.kind) && c.dtype.is_none_or(|t| t.id() == d.dtype)
        };
        self.0.iter().any(hit)
    }
}

fn no_op(name: &str) -> String {
    let close = op::OPS
        .iter()
        .find(|s| s.name.starts_with(name) || name.starts_with(s.name));
    match close {
        Some(s) => format!("no op is called {name:?}; did you mean {}?", s.name),
        None => format!(
            "no op is called {name:?}; names are those of crossweave_ops.h and of collectives, or fused, or all"
        ),
    }
}

fn hidden(name: &str) -> Result<Status> {
    let why = format!("{name} is hidden by the layer lacks");
    Err(Error::new(Code::Unsupported, why))
}

impl Layer for Lacks {
    fn name(&self) -> &'static str {
        "lacks"
    }

    fn around(&self, call: &Call<'_>, next: &mut dyn FnMut() -> Status) -> Result<Status> {
        match call {
            Call::Prepare { op, .. } if self.hides(op) => hidden(op.name()),
            Call::CommQuery { desc, .. } if self.hides_collective(desc) => {
                hidden(collective_name(desc.kind))
            }
            Call::Collective { members, .. } => {
                match members.iter().find(|m| self.hides_collective(&m.desc)) {
                    Some(m) => hidden(collective_name(m.desc.kind)),
                    None => Ok(next()),
                }
            }
            _ => Ok(next()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossweave_abi::Layout;

    fn of(id: u32, dtype: DType) -> OpFacts {
        OpFacts {
            op: id,
            revision: 1,
            operands: vec![Layout::contiguous(dtype, &[2])],
            params: vec![],
            math_flags: 0,
        }
    }

    #[test]
    fn names_classes_and_types() {
        let l = Lacks::parse("matmul:bf16+fused").unwrap();
        assert!(l.hides(&of(op::MATMUL, DType::Bf16)) && !l.hides(&of(op::MATMUL, DType::F32)));
        assert!(
            l.hides(&of(op::ADAMW, DType::F32))
                && !l.hides(&of(op::ELEMENTWISE_PROGRAM, DType::F32))
        );
        assert!(
            Lacks::parse("all")
                .unwrap()
                .hides(&of(op::IOTA, DType::I32))
        );
    }

    #[test]
    fn what_is_no_name_is_refused_in_words() {
        for (text, part) in [
            ("matmull", "did you mean matmul"),
            ("matmul:b16", "element type"),
            ("", "no op is called"),
        ] {
            let e = Lacks::parse(text).unwrap_err();
            assert!(e.contains(part), "{text}: {e}");
        }
    }
}
