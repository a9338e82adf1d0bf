//! The matrices of adapters in PEFT's files: names, shapes and the order of elements.
//!
//! Of a linear layer they are what they are here. Of a stack of E experts PEFT keeps two matrices for all of them: A `[E r, in]`, the rows of one
//! expert after another, and B `[out, r E]`, in whose rows the experts of one of the r places stand together. They are named by the module that has
//! the stack, without the stack's own name; where several stacks of a module are adapted, each wraps those before it, which `.base_layer` says.

use crossweave_tensor::ParamDecl;

/// The words that PEFT's files put before the model's own names.
pub(crate) const PREFIX: &str = "base_model.model.";

/// The name of the matrix of a linear layer's adapter in PEFT's files.
pub fn file_name(name: &str) -> String {
    format!("{PREFIX}{name}")
}

/// A matrix of an adapter in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The name of the tensor.
    pub name: String,
    /// The shape of the tensor.
    pub shape: Vec<usize>,
    /// Experts, outputs and rank of a B, where the order is another one.
    turned: Option<[usize; 3]>,
}

/// The module of the stack whose adapter a parameter belongs to, the stack's name and the matrix's.
fn of_stack(p: &ParamDecl) -> Option<(&str, &str, &str)> {
    let (stack, matrix) = p.name.split_at(p.name.rfind(".lora_")?);
    let (module, stack) = stack.rsplit_once('.')?;
    (p.shape.dims().len() == 3).then_some((module, stack, matrix))
}

impl Stored {
    /// That of parameter `p`, one of all `params` of the model, which are in the order of their declaration.
    pub fn of(params: &[ParamDecl], p: &ParamDecl) -> Stored {
        let dims: Vec<usize> = p.shape.dims().iter().map(|d| *d as usize).collect();
        let (Some((module, stack, matrix)), &[experts, a, b]) = (of_stack(p), &dims[..]) else {
            return Stored {
                name: file_name(&p.name),
                shape: dims,
                turned: None,
            };
        };
        let mut around: Vec<&str> = vec![];
        let behind = params.iter().skip_while(|o| o.name != p.name);
        for (of, other, _) in behind.filter_map(of_stack) {
            if of == module && other != stack && !around.contains(&other) {
                around.push(other);
            }
        }
        let layers = ".base_layer".repeat(around.len());
        let is_b = matrix.contains("lora_B");
        Stored {
            name: format!("{PREFIX}{module}{layers}{matrix}"),
            shape: match is_b {
                true => vec![a, b * experts],
                false => vec![experts * a, b],
            },
            turned: is_b.then_some([experts, a, b]),
        }
    }

    /// The places of the file's elements among those of the parameter, in the order of the file; none where it is the same.
    fn places(&self) -> Option<impl Iterator<Item = usize>> {
        let [experts, outputs, r] = self.turned?;
        let all = (0..outputs).flat_map(move |o| (0..r).map(move |k| (o, k)));
        Some(all.flat_map(move |(o, k)| (0..experts).map(move |e| (e * outputs + o) * r + k)))
    }

    /// The elements in the order of the file, from those of the parameter.
    pub fn to_file(&self, values: Vec<f32>) -> Vec<f32> {
        match self.places() {
            Some(places) => places.map(|at| values[at]).collect(),
            None => values,
        }
    }

    /// The elements of the parameter, from those of the file.
    pub fn from_file(&self, values: Vec<f32>) -> Vec<f32> {
        let Some(places) = self.places() else {
            return values;
        };
        let mut out = vec![0.0; values.len()];
        places.zip(values).for_each(|(at, value)| out[at] = value);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossweave_tensor::{Builder, Cx, Flow, Init, Result};

    struct Nothing;
    impl crossweave_tensor::Block for Nothing {
        fn forward(&self, _: &mut Cx<'_>, flow: Flow) -> Result<Flow> {
            Ok(flow)
        }
    }

    /// The matrices of some stacks of two experts, of outputs 3, rank 2 and inputs 4.
    fn declared(stacks: &[&str]) -> Vec<ParamDecl> {
        let mut b = Builder::default();
        b.unit("l.0", |u| {
            u.param("q.lora_A.weight", &[2, 4], Init::Zeros);
            for s in stacks {
                u.param(&format!("{s}.lora_A.weight"), &[2, 2, 4], Init::Zeros);
                u.param(&format!("{s}.lora_B.weight"), &[2, 3, 2], Init::Zeros);
            }
            Nothing
        });
        b.finish().remove(0).params
    }

    #[test]
    fn the_last_stack_of_a_module_is_the_outermost() {
        let names = |stacks: &[&str]| -> Vec<String> {
            let all = declared(stacks);
            let named = all.iter().map(|p| Stored::of(&all, p).name);
            named.map(|n| n[PREFIX.len()..].to_string()).collect()
        };
        assert_eq!(
            names(&["experts.up", "experts.down", "others.down"]),
            [
                "l.0.q.lora_A.weight",
                "l.0.experts.base_layer.lora_A.weight",
                "l.0.experts.base_layer.lora_B.weight",
                "l.0.experts.lora_A.weight",
                "l.0.experts.lora_B.weight",
                "l.0.others.lora_A.weight",
                "l.0.others.lora_B.weight",
            ]
        );
        assert_eq!(names(&["experts.up"])[1], "l.0.experts.lora_A.weight");
    }

    #[test]
    fn a_b_of_a_file_has_the_experts_of_a_place_of_the_rank_together() {
        let all = declared(&["experts.up"]);
        let [a, b] = [1, 2].map(|i| Stored::of(&all, &all[i]));
        assert_eq!((a.shape.clone(), b.shape.clone()), (vec![4, 4], vec![3, 4]));
        let at = |e: usize, o: usize, k: usize| (100 * e + 10 * o + k) as f32;
        let ours: Vec<f32> = (0..12).map(|i| at(i / 6, i / 2 % 3, i % 2)).collect();
        let file: Vec<f32> = (0..12).map(|i| at(i % 2, i / 4, i / 2 % 2)).collect();
        assert_eq!(b.to_file(ours.clone()), file);
        assert_eq!(b.from_file(file), ours);
        assert_eq!(a.to_file(ours.clone()), ours);
        assert_eq!(a.from_file(ours.clone()), ours);
    }
}
