//! No thread stays behind. A file of its own, so that no other test of the process starts threads meanwhile.
#![cfg(target_os = "linux")]

use crossweave_backend_cpu::CpuBackend;
use crossweave_plugin::{Backend, Host, MemKind, Span};
use std::time::{Duration, Instant};

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn every_thread_ends_with_its_owner() {
    crossweave_tests::in_own_process!();
    let before = threads();
    for _ in 0..50 {
        let b = CpuBackend::init(Host::none()).unwrap();
        let d = b.open(0).unwrap();
        let m = b.alloc(&d, MemKind::Device, 8 << 20, 0).unwrap();
        let all = Span {
            mem: &m,
            offset: 0,
            bytes: m.bytes(),
        };
        let streams: Vec<_> = (0..3).map(|_| b.stream(&d, 0).unwrap()).collect();
        for s in &streams {
            b.fill(s, all, 0, 1).unwrap();
        }
    }
    // The last instructions of a thread run after it has said that it ended.
    let start = Instant::now();
    while threads() > before && start.elapsed() < Duration::from_secs(120) {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(threads(), before);
}
