//! What an op was prepared with, held against what it is launched with.

use crate::{Code, DType, OpRequest, Result, Span, fail, unsupported};
use crossweave_abi::op::{self, OpSpec};

/// The op's row of the table.
///
/// # Errors
/// `Unsupported` for an op or a revision that this build does not know.
pub fn spec(o: &OpRequest<'_>) -> Result<&'static OpSpec> {
    match op::spec(o.id) {
        None => unsupported(format!("op {:#06x} is not in this build's table", o.id)),
        Some(spec) if !spec.has_revision(o.revision) => {
            unsupported(format!("{}: revision {}", spec.name, o.revision))
        }
        Some(spec) => Ok(spec),
    }
}

/// The bytes that the layout of each operand touches and the alignment of its elements; none of an absent operand.
pub struct Operands {
    name: &'static str,
    each: Vec<Option<(u64, u64)>>,
}

impl Operands {
    /// Reads the operands of a request.
    ///
    /// # Errors
    /// `Invalid` for layouts that are none, `Unsupported` for unknown types and negative strides.
    pub fn read(o: &OpRequest<'_>) -> Result<Operands> {
        let name = spec(o)?.name;
        let mut each = Vec::with_capacity(o.operands.len());
        for (i, l) in o.operands.iter().enumerate() {
            if !l.present() {
                each.push(None);
                continue;
            }
            let Some(dtype) = DType::from_id(l.dtype) else {
                return unsupported(format!("{name}: operand {i} dtype {:#x}", l.dtype));
            };
            if l.rank > 8 || l.shape[..l.rank as usize].iter().any(|d| *d < 0) {
                return fail(
                    Code::Invalid,
                    format!(
                        "{name}: operand {i} has rank {} shape {:?}",
                        l.rank, l.shape
                    ),
                );
            }
            if l.stride[..l.rank as usize].iter().any(|s| *s < 0) {
                return unsupported(format!("{name}: operand {i} has a negative stride"));
            }
            each.push(Some((l.extent_bytes(), (dtype.bits() / 8).max(1))));
        }
        Ok(Operands { name, each })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.each.len()
    }

    /// Which of them are there.
    pub fn present(&self) -> impl Iterator<Item = bool> {
        self.each.iter().map(Option::is_some)
    }

    /// Checks what an op is launched with. `place` looks at the span of operand `i` and gives the number that must be a multiple of its
    /// elements' alignment: its address, or where it begins in its memory.
    ///
    /// # Errors
    /// `Invalid` for an operand that is too short, begins within an element, is missing, or is given and was not.
    pub fn check<M>(
        &self,
        spans: &[Option<Span<'_, M>>],
        mut place: impl FnMut(usize, &Span<'_, M>) -> Result<u64>,
    ) -> Result<()> {
        let name = self.name;
        let refuse = |what: String| fail(Code::Invalid, format!("{name}: {what}"));
        if spans.len() != self.each.len() {
            return refuse(format!(
                "prepared with {} operands, launched with {}",
                self.each.len(),
                spans.len()
            ));
        }
        for (i, (span, want)) in spans.iter().zip(&self.each).enumerate() {
            match (span, want) {
                (None, None) => {}
                (Some(span), Some((bytes, align))) => {
                    let at = place(i, span)?;
                    if span.bytes < *bytes {
                        return refuse(format!(
                            "operand {i} needs {bytes} bytes, its span has {}",
                            span.bytes
                        ));
                    }
                    if !at.is_multiple_of(*align) {
                        return refuse(format!(
                            "operand {i} starts at byte {}, elements need multiples of {align}",
                            span.offset
                        ));
                    }
                }
                // An absent optional operand may still be passed as an empty span, and an empty tensor as none.
                (Some(span), None) if span.bytes == 0 => {}
                (None, Some((0, _))) => {}
                (given, _) => {
                    let (was, is) = match given.is_some() {
                        true => ("absent", "is given"),
                        false => ("there", "is missing"),
                    };
                    return refuse(format!(
                        "operand {i} was {was} at prepare but {is} at launch"
                    ));
                }
            }
        }
        Ok(())
    }
}
