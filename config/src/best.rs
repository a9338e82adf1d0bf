//! The best of a run: `run.keep_best` and `run.stop_after` go by validations, so there must be some before the end.

use crate::resolve::Resolver;
use crate::settings::{Data, Settings};

pub(crate) fn check(r: &mut Resolver<'_>, s: &Settings) {
    let held_back = match &s.data {
        Some(Data::Text(d)) => {
            d.validation.is_some()
                || d.validation_fraction.is_some_and(|f| f > 0.0)
                || d.split.is_some()
        }
        _ => false,
    };
    for (key, asked) in [
        ("run.keep_best", s.run.keep_best),
        ("run.stop_after", s.run.stop_after.is_some()),
    ] {
        if asked && !held_back {
            let what = "goes by the validation loss, and no data are held back for validation";
            let fix = "add data.validation, data.validation_fraction or data.split, or remove it";
            r.error(key, what, fix);
        } else if asked && s.run.validate_every == 0 {
            let what = "goes by validations, and run.validate_every 0 makes one only at the end";
            r.error(key, what, "set run.validate_every, or remove it");
        }
    }
}
