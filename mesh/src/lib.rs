//! crossweave-mesh.
