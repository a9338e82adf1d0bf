//! Machines without a run time and without a device: the plugin loads, says what it is, and answers every question for a device with one sentence.

use crossweave_backend_rocm::Rocm;
use crossweave_hal::{Code, HostServices, Plugin, RawPlugin};

/// Debian's own.
const REAL: &str = "libamdhip64.so.5";

#[test]
fn no_run_time_is_one_sentence() {
    crossweave_tests::in_own_process!();
    let host = HostServices::builder()
        .config("rocm.libamdhip64", "/nowhere/libamdhip64.so.6")
        .build();
    let plugin = Plugin::new(RawPlugin::from_static::<Rocm>(&host).unwrap());
    assert_eq!(plugin.name(), "rocm");
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
                "no HIP run time",
                "libamdhip64.so.6",
                "/nowhere",
                "install ROCm's HIP run time",
                "rocm.libamdhip64",
            ] {
                assert!(e.message.contains(part), "{part} is not in: {e}");
            }
            assert!(!e.message.contains('\n'), "{e}");
        }
    }
    plugin.shutdown().unwrap();
}

#[test]
fn the_real_run_time_without_a_device_has_none_and_says_so() {
    crossweave_tests::in_own_process!();
    // SAFETY: running the library's constructors is what opening it is for.
    if let Err(e) = unsafe { libloading::Library::new(REAL) } {
        let why = format!("no {REAL} here: {e} (apt-get install libamdhip64-5)");
        return crossweave_tests::tools::missing("hip", &why);
    }
    if std::path::Path::new("/dev/kfd").exists() {
        println!("skipped: this machine may have an AMD GPU");
        return;
    }
    let host = HostServices::builder()
        .config("rocm.libamdhip64", REAL)
        .build();
    let plugin = Plugin::new(RawPlugin::from_static::<Rocm>(&host).unwrap());
    for _ in 0..2 {
        assert_eq!(plugin.device_count().unwrap(), 0);
        let e = plugin.open(0).map(drop).unwrap_err();
        assert_eq!(e.code, Code::Invalid);
        for part in ["device 0", "the HIP run time sees none", "/dev/kfd"] {
            assert!(e.message.contains(part), "{part} is not in: {e}");
        }
    }
    plugin.shutdown().unwrap();
}
