//! The ROCm backend as a plugin.

crossweave_plugin::export_plugin!(
    crossweave_backend_rocm::Rocm,
    // No `needs`: the back end reports itself that the run time is missing, and another file for it may be configured.
    manifest = "name=rocm;vendor=Crossweave;kinds=gpu"
);
