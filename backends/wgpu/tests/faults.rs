//! When waiting for the adapter fails or panics, every thread that waits gets the error, and a device opened afterwards works.

use crate::common::adapter;

use crossweave_hal::{
    Buffer, Code, Device, HostBuffer, HostServices, Plugin, Result, Stream, Tag, abi,
};
use std::time::Duration;

/// Nobody waits so long unless nobody is notified.
const FOR_EVER: Option<Duration> = Some(Duration::from_secs(100));

struct Rig {
    device: Device,
    stream: Stream,
    memory: Buffer,
    pinned: HostBuffer,
}

fn rig(plugin: &Plugin) -> Rig {
    let device = plugin.open(0).expect("the adapter opens");
    Rig {
        stream: device.stream("waits", 0).expect("a stream"),
        memory: device.alloc_state(64, Tag::Param).expect("memory"),
        pinned: device.alloc_host(64, Tag::Staging).expect("host memory"),
        device,
    }
}

impl Rig {
    /// Fills on the adapter and reads back.
    fn byte(&self, pattern: u64) -> Result<u8> {
        let mut got = [0; 64];
        self.stream.fill(self.memory.all(), pattern, 1)?;
        self.stream.read(self.memory.all(), &mut got)?;
        Ok(got[63])
    }
}

/// The ways to wait.
const WAITS: [(&str, fn(&Rig) -> Result<()>); 3] = [
    ("sync", |r| r.stream.sync(FOR_EVER)),
    ("event", |r| r.stream.record()?.sync(FOR_EVER)),
    ("read back", |r| {
        let to = r.pinned.buffer().all();
        r.stream.copy(to, r.memory.all())?;
        r.stream.sync(FOR_EVER)
    }),
];

#[test]
fn a_failure_while_the_adapter_is_waited_for_reaches_all_who_wait() {
    crossweave_tests::in_own_process!();
    let host = HostServices::default();
    let Some(plugin) = adapter::plugin(&host) else {
        return;
    };
    for (status, code) in [
        (abi::E_PANIC, Code::Panic),
        (abi::E_INTERNAL, Code::Internal),
        (abi::E_DEVICE_LOST, Code::DeviceLost),
    ] {
        for (name, wait) in WAITS {
            let r = rig(&plugin);
            assert_eq!(r.byte(5).expect("a whole device"), 5);
            let other = r.device.stream("waits too", 0).expect("a stream");
            host.set_fault("wgpu.wait", (-status) as u32);
            let filled = r.stream.fill(r.memory.all(), 6, 1);
            let e = filled.and_then(|()| wait(&r)).expect_err("not waited for");
            assert_eq!(e.code, code, "{name}: {e}");
            host.set_fault("wgpu.wait", 0);
            let e = r.byte(6).expect_err("a failed device stays so");
            assert_eq!(e.code, code, "{name}: {e}");
            let e = other.sync(FOR_EVER).expect_err("on every stream");
            assert_eq!(e.code, code, "{name}: {e}");
            drop(other);
            drop(r);
            let again = rig(&plugin).byte(7).expect("a device opened afterwards");
            assert_eq!(again, 7, "{name} after {code:?}");
        }
    }
}
