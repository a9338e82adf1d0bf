//! The cpu backend as a plugin.

crossweave_plugin::export_plugin!(
    crossweave_backend_cpu::CpuBackend,
    manifest = "name=cpu;vendor=Crossweave;kinds=cpu"
);
