//! The wgpu backend as a plugin.

crossweave_plugin::export_plugin!(
    crossweave_backend_wgpu::Wgpu,
    manifest = "name=wgpu;vendor=Crossweave;kinds=gpu;needs=libvulkan.so.1"
);
