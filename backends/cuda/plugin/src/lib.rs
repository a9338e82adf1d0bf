//! The CUDA backend as a plugin.

crossweave_plugin::export_plugin!(
    crossweave_backend_cuda::Cuda,
    // No `needs`: the back end reports itself that the driver is missing, and another file for it may be configured.
    manifest = "name=cuda;vendor=Crossweave;kinds=gpu"
);
