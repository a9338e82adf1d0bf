//! Adapters of stacks of experts, as PEFT's `target_parameters` has them: beside the weight `W_e` of each expert a product of two small matrices
//! of its own, `W_e + scale B_e A_e`.
//!
//! They are stacks themselves, `STACK.lora_A.weight [experts, r, in]` and `STACK.lora_B.weight [experts, out, r]`, so that experts over ranks, ZeRO
//! and optimizers that look at one expert's matrix take them as they take the weights. PEFT's files hold them as two matrices: the job's
//! adapter folders know how.

use crossweave_tensor::{Axis, Cx, Grouped, Init, Param, Pieces, Pointwise, Result, Unit, Var};

/// The adapter of one stack.
#[derive(Clone, Debug)]
pub struct StackAdapter {
    a: Param,
    b: Param,
    /// Their names within the unit's prefix.
    names: [String; 2],
    scale: f64,
}

impl StackAdapter {
    /// Declares the matrices of the stack `local`, `[experts, output, input]`: of rank r, with the factor of their product, and A as it begins.
    pub(crate) fn declare(
        u: &mut Unit<'_>,
        local: &str,
        [experts, output, input]: [u64; 3],
        (r, scale): (u64, f64),
        begins: Init,
    ) -> StackAdapter {
        let names = ["lora_A", "lora_B"].map(|part| format!("{local}.{part}.weight"));
        StackAdapter {
            a: u.param(&names[0], &[experts, r, input], begins),
            b: u.param(&names[1], &[experts, output, r], Init::Zeros),
            names,
            scale,
        }
    }

    /// States that ranks along `ep` have the matrices of their experts, and that ranks along `etp`, which cut the stack along `dim`, have parts of the
    /// matrix that has this dim: B its outputs (1), A its inputs (2).
    pub fn spread(&self, u: &mut Unit<'_>, dim: u8, pieces: &Pieces) {
        for p in [self.a, self.b] {
            u.split(p, Axis::Ep, 0, Pieces::Each);
        }
        let (cut, whole) = if dim == 1 {
            (self.b, self.a)
        } else {
            (self.a, self.b)
        };
        u.split(cut, Axis::Etp, dim, pieces.clone());
        u.along_parts(whole);
    }

    /// The same adapter of a unit before, borrowed by this one.
    pub fn borrowed(mut self, u: &mut Unit<'_>) -> StackAdapter {
        for (own, name) in [&mut self.a, &mut self.b].into_iter().zip(&self.names) {
            let name = u.full_name(name);
            *own = u.borrow(&name).unwrap_or(*own);
        }
        self
    }

    /// `y_i + scale B_e A_e x_i` for the rows of each expert e; `y` must not be used afterwards.
    pub fn add(&self, cx: &mut Cx<'_>, x: Var, y: Var, by: &Grouped) -> Result<Var> {
        let h = cx.expert_linear(x, self.a, by)?;
        let h = cx.pointwise(&Pointwise::scale(self.scale), &[h])?;
        let update = cx.expert_linear(h, self.b, by)?;
        cx.add_into(y, update)
    }
}
