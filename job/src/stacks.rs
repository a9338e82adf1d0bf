//! Parameters that files hold in parts: all experts of a layer are one parameter here, and a tensor each in the files that `transformers`
//! writes. A folder is read in either form, and what is written of it has the form that it came in.

use crate::error::{JobError, Result};
use crossweave_checkpoint::HfDir;
use crossweave_nn::{Stack, Tensors};
use std::ops::Range;

/// One tensor of a file that holds a part of a parameter, or all of it.
pub struct Part {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its elements among those of the parameter.
    pub elements: Range<u64>,
}

/// The rule of a parameter, and the name of its layer; none where files hold it as it is.
fn rule<'a>(tensors: &Tensors, name: &'a str) -> Option<(&'a str, &'static Stack)> {
    let mut all = tensors.stacks.iter();
    all.find_map(|s| Some((name.strip_suffix(s.name)?, s)))
}

/// The tensors of files that hold a parameter, in the order in which they lie in it.
pub fn parts(tensors: &Tensors, name: &str, shape: &[usize]) -> Vec<Part> {
    let all = shape.iter().product::<usize>() as u64;
    let whole = |name: String| Part {
        name,
        shape: shape.to_vec(),
        elements: 0..all,
    };
    let Some((layer, stack)) = rule(tensors, name) else {
        return vec![whole(name.to_string())];
    };
    let &[experts, rows, width] = shape else {
        return vec![whole(format!("{layer}{}", stack.parts[0]))];
    };
    let rows = rows / stack.parts.len();
    let each = (rows * width) as u64;
    let ends = (0..experts).flat_map(|e| {
        stack
            .parts
            .iter()
            .map(move |p| p.replace("{}", &e.to_string()))
    });
    let part = |(i, end): (usize, String)| Part {
        name: format!("{layer}{end}"),
        shape: vec![rows, width],
        elements: i as u64 * each..(i as u64 + 1) * each,
    };
    ends.enumerate().map(part).collect()
}

/// Makes one tensor of the parts of each parameter that a folder holds so, and says whether it holds experts as stacks.
///
/// # Errors
/// Parts of which some are missing; a parameter that is there in both forms.
pub fn gather(
    dir: &mut HfDir,
    tensors: &Tensors,
    base: &str,
    expected: &[(String, Vec<usize>)],
) -> Result<bool> {
    let mut stacked = false;
    for (name, shape) in expected {
        if rule(tensors, name).is_none() {
            continue;
        }
        let bare = name.strip_prefix(base).filter(|_| !base.is_empty());
        for own in std::iter::once(name.as_str()).chain(bare) {
            let parts = parts(tensors, own, shape);
            let (there, missing): (Vec<&Part>, Vec<&Part>) = parts
                .iter()
                .partition(|p| dir.tensors.contains_key(&p.name));
            let [first, lacking] = [&there, &missing].map(|all| all.first().map(|p| &p.name));
            let found = |p: &Part| dir.tensors.get(&p.name).map(|t| t.shape.clone());
            let other = there
                .iter()
                .find(|p| found(p).is_some_and(|s| s != p.shape));
            let whole = dir.tensors.contains_key(own);
            stacked |= whole && shape.len() == 3;
            let fault = match (whole, first, lacking, other) {
                (_, None, ..) => continue,
                (true, Some(part), ..) => {
                    format!("`{own}` is there as a whole, and `{part}` is a part of it")
                }
                (_, _, Some(part), _) => {
                    format!(
                        "`{part}` is missing, one of {} parts of `{own}`",
                        parts.len()
                    )
                }
                (.., Some(part)) => format!(
                    "`{}` has shape {:?}, config.json says {:?}",
                    part.name,
                    found(part).unwrap_or_default(),
                    part.shape
                ),
                (_, _, None, None) => {
                    let names: Vec<String> = parts.iter().map(|p| p.name.clone()).collect();
                    dir.stack(own, &names, shape.clone())?;
                    continue;
                }
            };
            return Err(JobError::refused(
                format!("{}: {fault}", dir.path.display()),
                "download or export the directory again",
            ));
        }
    }
    Ok(stacked)
}
