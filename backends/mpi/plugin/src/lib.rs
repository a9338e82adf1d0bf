//! The MPI backend as a plugin.

crossweave_plugin::export_plugin!(
    crossweave_backend_mpi::MpiBackend,
    manifest = "name=mpi;vendor=Crossweave;kinds=host"
);
