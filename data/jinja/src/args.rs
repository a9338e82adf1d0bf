//! The arguments of a call, and how they are matched with parameters.

use crate::error::{Result, fail};
use crate::value::{Text, Value};

/// The values that a call gives.
#[derive(Default)]
pub(crate) struct Given {
    pub(crate) positional: Vec<Value>,
    pub(crate) named: Vec<(Text, Value)>,
}

impl Given {
    /// Arguments without names.
    pub(crate) fn of(positional: Vec<Value>) -> Given {
        Given {
            positional,
            named: Vec::new(),
        }
    }

    /// The values of parameters, by place or by name.
    ///
    /// # Errors
    /// One given twice, one that is unknown, or too many.
    pub(crate) fn bind<const N: usize>(
        self,
        of: &str,
        params: [&str; N],
    ) -> Result<[Option<Value>; N]> {
        let mut out = [const { None }; N];
        if self.positional.len() > N {
            return fail(format!(
                "{of}() takes at most {N} arguments ({} given)",
                self.positional.len()
            ));
        }
        for (place, value) in out.iter_mut().zip(self.positional) {
            *place = Some(value);
        }
        for (name, value) in self.named {
            let Some(at) = params.iter().position(|p| *p == name.as_str()) else {
                return fail(format!(
                    "{of}() got an unexpected keyword argument {}",
                    crate::print::short(&Value::Str(name))
                ));
            };
            if out[at].replace(value).is_some() {
                return fail(format!(
                    "{of}() got multiple values for argument '{}'",
                    params[at]
                ));
            }
        }
        Ok(out)
    }

    /// The values of parameters that have no names.
    ///
    /// # Errors
    /// A name, or another number of values than `least` to `N`.
    pub(crate) fn plain<const N: usize>(
        self,
        of: &str,
        least: usize,
    ) -> Result<[Option<Value>; N]> {
        if !self.named.is_empty() {
            return fail(format!("{of}() takes no keyword arguments"));
        }
        let got = self.positional.len();
        if got < least || got > N {
            return fail(match least == N {
                true => format!("{of}() takes exactly {N} arguments ({got} given)"),
                false => format!("{of}() takes {least} to {N} arguments ({got} given)"),
            });
        }
        let mut out = [const { None }; N];
        for (place, value) in out.iter_mut().zip(self.positional) {
            *place = Some(value);
        }
        Ok(out)
    }
}

/// The value of a parameter that must be given.
pub(crate) fn required(value: Option<Value>, of: &str, name: &str) -> Result<Value> {
    match value {
        Some(value) => Ok(value),
        None => fail(format!("{of}() missing required argument: '{name}'")),
    }
}

/// A parameter that is a text.
pub(crate) fn text_of(value: &Value, of: &str) -> Result<Text> {
    match value {
        Value::Str(t) => Ok(t.clone()),
        other => {
            other.defined()?;
            fail(format!(
                "{of}: a string is expected, not {}",
                other.type_name()
            ))
        }
    }
}

/// # Errors
/// Always: the method is not supported.
pub(crate) fn unsupported<T>(of: &Value, name: &str) -> Result<T> {
    fail(format!(
        "method '{name}' of '{}' is not supported in chat templates here",
        of.type_name()
    ))
}
