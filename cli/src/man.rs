//! `crossweave man [COMMAND]`: a manual page, written from what `--help` knows.

use crate::args::Cli;
use crate::error::{CliError, Result};
use crate::say::say;
use clap::CommandFactory;
use clap_mangen::Man;

/// Prints the page of a command, named as it is typed.
///
/// # Errors
/// There is no such command.
pub fn run(command: &[String]) -> Result<()> {
    let mut here = Cli::command();
    here.build();
    for name in command {
        let Some(inner) = here.find_subcommand(name) else {
            let all = here.get_subcommands().filter(|c| !c.is_hide_set());
            let all: Vec<&str> = all.map(clap::Command::get_name).collect();
            let fix = match all.is_empty() {
                true => "leave it out".to_string(),
                false => format!("name one of {}", all.join(", ")),
            };
            let what = format!("{} has no command {name:?}", here.get_name());
            return Err(CliError::refused(what, fix));
        };
        here = inner.clone();
    }
    let mut page = vec![];
    Man::new(here)
        .render(&mut page)
        .map_err(|e| CliError::refused(format!("the page: {e}"), "report this"))?;
    say!("{}", String::from_utf8_lossy(&page).trim_end());
    Ok(())
}
