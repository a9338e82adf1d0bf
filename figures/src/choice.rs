//! The algorithms of sums between processes as a config chooses them: for what carries collectives, and for what counts their messages.

use crossweave_config::Communication;
use crossweave_hal::Carrier;
use crossweave_hosts::{Choice, KEY};

/// The choice of a config, whose words its tables have let through.
pub fn choice(of: &Communication) -> Choice {
    let [all_reduce, reduce_scatter] = of.of_kinds().map(|word| word.parse().unwrap_or_default());
    Choice {
        all_reduce,
        reduce_scatter,
        axes: of.axes.clone(),
    }
}

/// Sets it in a carrier, before the groups of a job are made.
pub fn set(of: &Communication, carrier: &Carrier) {
    carrier.configure(KEY, choice(of).to_string());
}

/// What a job says of a choice that is not its default, where it has `several` processes or has not.
pub fn note(of: &Communication, several: bool) -> Option<String> {
    let choice = choice(of);
    if choice.is_auto() {
        return None;
    }
    Some(match (several, of.keeps_order()) {
        (false, _) => "communication.algorithm: all ranks are threads of this process, whose sums go in rank order".into(),
        (true, true) => format!("communication.algorithm: {choice}, in rank order"),
        (true, false) => format!(
            "communication.algorithm: {choice}: sums of floats between processes give up the order of ranks, so that losses equal those of other layouts up to rounding only"
        ),
    })
}
