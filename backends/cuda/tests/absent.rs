//! A machine without the driver: the plugin loads, says what it is, and answers every question for a device with one sentence.

use crossweave_backend_cuda::Cuda;
use crossweave_hal::{Code, HostServices, Plugin, RawPlugin};

#[test]
fn no_driver_is_one_sentence() {
    crossweave_tests::in_own_process!();
    let host = HostServices::builder()
        .config("cuda.libcuda", "/nowhere/libcuda.so.1")
        .build();
    let plugin = Plugin::new(RawPlugin::from_static::<Cuda>(&host).unwrap());
    assert_eq!(plugin.name(), "cuda");
    assert_eq!(
        plugin.interfaces().len(),
        4,
        "device, ops, collectives and graphs"
    );
    for _ in 0..2 {
        for e in [plugin.device_count().map(drop), plugin.open(0).map(drop)] {
            let e = e.unwrap_err();
            assert_eq!((e.code, e.sticky), (Code::Unsupported, false));
            for part in [
                "no CUDA driver",
                "libcuda.so.1",
                "/nowhere",
                "install NVIDIA's driver",
                "cuda.libcuda",
            ] {
                assert!(e.message.contains(part), "{part} is not in: {e}");
            }
            assert!(!e.message.contains('\n'), "{e}");
        }
    }
    plugin.shutdown().unwrap();
}
