//! Machines without a run time: the plugin loads, says what it is, and answers every question for a device with one sentence.

use crossweave_backend_ascend::Ascend;
use crossweave_hal::{Code, HostServices, Plugin, RawPlugin};

#[test]
fn no_run_time_is_one_sentence() {
    crossweave_tests::in_own_process!();
    let host = HostServices::builder()
        .config("ascend.libascendcl", "/nowhere/libascendcl.so")
        .build();
    let plugin = Plugin::new(RawPlugin::from_static::<Ascend>(&host).unwrap());
    assert_eq!(plugin.name(), "ascend");
    assert_eq!(plugin.interfaces().len(), 3, "device, ops and collectives");
    for _ in 0..2 {
        for e in [plugin.device_count().map(drop), plugin.open(0).map(drop)] {
            let e = e.unwrap_err();
            assert_eq!((e.code, e.sticky), (Code::Unsupported, false));
            for part in [
                "no Ascend run time",
                "libascendcl.so",
                "/nowhere",
                "install CANN's toolkit and source its set_env.sh",
                "ascend.libascendcl",
            ] {
                assert!(e.message.contains(part), "{part} is not in: {e}");
            }
            assert!(!e.message.contains('\n'), "{e}");
        }
    }
    plugin.shutdown().unwrap();
}
