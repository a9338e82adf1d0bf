//! The CUDA backend as a plugin.

crossweave_plugin::export_plugin!(
    crossweave_backend_cuda::Cuda,
    manifest = "name=cuda;vendor=Crossweave;kinds=gpu;needs=libcuda.so.1"
);
