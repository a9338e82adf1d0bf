//! The back end under the HAL on the simulator, by its C tables: the configuration's way, the pool, transfers, ordering, and a closed device.

use crate::common;
use crossweave_backend_cuda::Cuda;
use crossweave_hal::{HostServices, Plugin, RawPlugin, Tag};

#[test]
fn the_hal_drives_it_through_its_tables() {
    crossweave_tests::in_own_process!();
    let file = common::simulator("host").display().to_string();
    let host = HostServices::builder()
        .config("cuda.libcuda", &file)
        .build();
    let plugin = Plugin::new(RawPlugin::from_static::<Cuda>(&host).unwrap());
    assert_eq!(plugin.device_count().unwrap(), 8);
    let reads = host.config_reads();
    assert!(
        reads
            .iter()
            .any(|r| r.key == "cuda.libcuda" && r.value.as_deref() == Some(&file))
    );
    let d = plugin.open(3).unwrap();
    assert_eq!(d.info().unwrap().name, "SIMULATED GPU 3");
    assert!(d.attr("cuda.driver").unwrap().starts_with(b"12.8 ("));
    let (s, u) = (
        d.stream("compute", 0).unwrap(),
        d.stream("copy", 2).unwrap(),
    );
    let data: Vec<u8> = (0..100_000u32).map(|i| ((i * 31) >> 3) as u8).collect();
    let mut back = vec![0; data.len()];
    let a = d.alloc(&s, data.len() as u64, Tag::Activation).unwrap();
    let b = d.alloc_state(data.len() as u64, Tag::Activation).unwrap();
    for _ in 0..20 {
        s.write(a.all(), &data).unwrap();
        // Another stream: the HAL orders them by events.
        u.copy(b.all(), a.all()).unwrap();
        s.fill(a.all(), 0, 1).unwrap();
        u.read(b.all(), &mut back).unwrap();
        assert!(back == data);
        s.read(a.all(), &mut back).unwrap();
        assert!(back.iter().all(|x| *x == 0));
    }
    let (early, late) = (s.record().unwrap(), s.record().unwrap());
    s.sync(None).unwrap();
    assert!(early.elapsed(&late).unwrap().is_some());
    drop((a, b, s, u, early, late));
    d.sync().unwrap();
    drop(d);
    plugin.shutdown().unwrap();
}
