//! `crossweave mesh show`: nothing but the config's section `mesh` is read, so that meshes can be looked at that the trainer refuses.

use crate::args::MeshAction;
use crate::error::{CliError, Result};
use crate::say::say;
use crate::width::columns;
use crate::{config_file, outputs};
use crossweave_mesh::TopologyError;
use crossweave_mesh_show::{drawing, figures, page};

/// What an SVG begins with.
const SVG: &[u8] = b"<svg ";

fn refused(e: TopologyError) -> CliError {
    CliError::refused(format!("{}: {}", e.key, e.what), e.fix)
}

/// Runs the command.
///
/// # Errors
/// A config that is wrong; axes that do not divide the ranks.
pub fn run(action: &MeshAction) -> Result<()> {
    let MeshAction::Show {
        config,
        ranks,
        sets,
        svg,
        json,
    } = action;
    let read = config_file::read(config, sets)?;
    let ranks = read.ranks(ranks.map(u64::from));
    let mesh = read.settings.mesh.topology(ranks).map_err(refused)?;
    if let Some(path) = svg {
        outputs::check("--svg", path, SVG)?;
        std::fs::write(path, drawing(&mesh)).map_err(CliError::io("write", path))?;
    }
    if *json {
        say!("{:#}", figures(&mesh).map_err(refused)?);
        return Ok(());
    }
    say!("{}", page(&mesh, columns()).map_err(refused)?.trim_end());
    if let Some(path) = svg {
        say!("\ndrawn in {}", path.display());
    }
    Ok(())
}
