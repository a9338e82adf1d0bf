//! The back end, where there is an adapter.

use crossweave_backend_wgpu::Wgpu;
use crossweave_hal::{HostServices, Plugin, RawPlugin};

/// The back end on this host, or a line that says that there is no adapter. Nothing else is a reason to test nothing.
pub fn plugin(host: &HostServices) -> Option<Plugin> {
    let raw = RawPlugin::from_static::<Wgpu>(host).expect("the backend loads");
    let plugin = Plugin::new(raw);
    if plugin.device_count().expect("the adapters are counted") == 0 {
        crossweave_tests::tools::missing(
            "wgpu",
            "no Vulkan adapter (apt-get install mesa-vulkan-drivers)",
        );
        return None;
    }
    Some(plugin)
}
