//! Communication inside blocks: `enter` and `reduce` of a block reach the groups of a mesh.

use crossweave_hal::Reduce;
use crossweave_mesh::{Axis, Mesh};
use crossweave_tensor::{Groups, Result, Run, Tensor, shape_error};
use std::cell::RefCell;

/// The groups of one rank's mesh, for the blocks it runs. Each axis a block communicates on must be a group of the mesh.
pub struct MeshGroups {
    mesh: RefCell<Mesh>,
}

impl MeshGroups {
    /// Takes the mesh; one thread drives it.
    pub fn new(mesh: Mesh) -> MeshGroups {
        MeshGroups {
            mesh: RefCell::new(mesh),
        }
    }
    /// The mesh, for everything blocks do not do.
    pub fn mesh(&self) -> &RefCell<Mesh> {
        &self.mesh
    }
}

impl Groups for MeshGroups {
    fn size(&self, axis: Axis) -> u32 {
        self.mesh.borrow().place().length(axis)
    }
    fn at(&self, axis: Axis) -> u32 {
        self.mesh.borrow().place().at(axis)
    }

    /// Sums in rank order, 16-bit floats in f32, with the same bits on every rank of the axis; in the ledger under `activation`.
    fn all_reduce(&self, run: &Run<'_>, axis: Axis, t: &Tensor) -> Result<()> {
        if !t.is_dense() {
            return shape_error(format!(
                "all_reduce over {axis}: a strided view of shape {:?}; copy it first",
                t.shape()
            ));
        }
        let mut mesh = self.mesh.borrow_mut();
        let group = mesh.group(axis)?;
        group.all_reduce(
            run.stream(),
            t.region(),
            t.dtype(),
            Reduce::Sum,
            "activation",
        )?;
        Ok(())
    }
}
