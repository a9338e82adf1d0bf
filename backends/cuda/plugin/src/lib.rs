//! The CUDA backend as a plugin.

crossweave_plugin::export_plugin!(
    crossweave_backend_cuda::Cuda,
    // No `needs`: the back end says itself that the driver is missing, and may be told another file for it.
    manifest = "name=cuda;vendor=Crossweave;kinds=gpu"
);
