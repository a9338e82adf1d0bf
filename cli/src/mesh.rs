//! `crossweave mesh show`: nothing but the config's section `mesh` is read, and where hosts are given the node of hpZ, so that meshes can be looked at that the trainer refuses.

use crate::args::MeshAction;
use crate::error::{CliError, Result};
use crate::figures::plan::Spread;
use crate::say::say;
use crate::width::columns;
use crate::{config_file, outputs};
use crossweave_mesh::TopologyError;
use crossweave_mesh::spread::{notes, numbered};
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
        hosts,
        svg,
        json,
    } = action;
    let read = config_file::read(config, sets)?;
    let asked = ranks.or(hosts.and_then(Spread::ranks));
    let ranks = read.ranks(asked.map(u64::from));
    let mesh = read.settings.mesh.topology(ranks).map_err(refused)?;
    let hosts = hosts.map(|spread| spread.over(mesh.world_size()));
    let hosts = hosts.transpose();
    let hosts = hosts.map_err(|e| CliError::refused(e.what, e.fix))?;
    let node = read.settings.zero_optimization.zero_hpz_partition_size as u32;
    let said = match &hosts {
        Some(hosts) => notes(&mesh, node, &numbered(hosts)).map_err(refused)?,
        None => vec![],
    };
    if let Some(path) = svg {
        outputs::check("--svg", path, SVG)?;
        std::fs::write(path, drawing(&mesh)).map_err(CliError::io("write", path))?;
    }
    if *json {
        say!(
            "{:#}",
            figures(&mesh, hosts.as_ref(), &said).map_err(refused)?
        );
        return Ok(());
    }
    let page = page(&mesh, hosts.as_ref(), columns()).map_err(refused)?;
    say!("{}", page.trim_end());
    if !said.is_empty() {
        say!("");
    }
    for note in said {
        say!("note: {note}");
    }
    if let Some(path) = svg {
        say!("\ndrawn in {}", path.display());
    }
    Ok(())
}
