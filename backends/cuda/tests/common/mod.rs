//! The back end on the simulator (`tests/sim`), opened by the way the real driver is.

#![allow(dead_code)]

use crossweave_backend_cuda::{ABOUT, Cuda, Device, Mem, Settings, Stream};
use crossweave_plugin::{Backend, Host, MemKind, Span};
use libloading::Library;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

/// The simulator's file for this test program.
pub fn simulator(program: &str) -> PathBuf {
    crossweave_tests::sim::library("cuda", program)
}

/// The back end on the simulator, and the simulator's own functions.
pub struct Simulated {
    pub b: Cuda,
    pub sim: Library,
}

impl Simulated {
    /// The simulator for a test program, with these libraries of the simulator's beside the driver (`cuda.lib…`); the others are not there.
    pub fn new(program: &str, libraries: &[&str]) -> Simulated {
        let settings = Settings::new(&ABOUT).with("cuda.exportable", "on");
        Simulated::with(&simulator(program), libraries, settings)
    }

    /// The same of a simulator that is there, with these settings.
    pub fn with(file: &Path, libraries: &[&str], settings: Settings) -> Simulated {
        let mut s = settings;
        for key in [
            "cuda.libcuda",
            "cuda.libnccl",
            "cuda.libnvrtc",
            "cuda.libcublaslt",
            "cuda.libcudnn",
        ] {
            let there = key == "cuda.libcuda" || libraries.contains(&key);
            let name = if there {
                file.display().to_string()
            } else {
                "/nowhere/at-all.so".into()
            };
            s = s.with(key, name);
        }
        let t = Simulated {
            b: Cuda::with(Host::none(), s),
            // SAFETY: a library of ours, whose constructor maps memory.
            sim: unsafe { Library::new(file) }.expect("the simulator opens"),
        };
        // Launches are written down, and compute where a test wants that.
        t.ask("sim_only_notes", 1);
        t
    }

    /// A function of the simulator's that takes and gives integers.
    pub fn ask(&self, name: &str, arg: i64) -> i64 {
        // SAFETY: `sim_*` functions of one integer argument.
        unsafe {
            let f = self
                .sim
                .get::<unsafe extern "C" fn(i64) -> i64>(name.as_bytes())
                .expect(name);
            f(arg)
        }
    }

    /// Contexts this thread has entered and not left.
    pub fn depth(&self) -> i64 {
        self.ask("sim_depth", 0) as i32 as i64
    }

    pub fn live(&self, kind: char) -> i64 {
        self.ask("sim_live", kind as i64)
    }

    pub fn kill(&self, device: u32, status: i32) {
        // SAFETY: the simulator's function of two ints.
        unsafe {
            let f = self
                .sim
                .get::<unsafe extern "C" fn(i32, i32)>(b"sim_kill")
                .expect("sim_kill");
            f(device as i32, status)
        }
    }

    /// What was launched since the last question, a line each.
    pub fn launches(&self) -> Vec<String> {
        let mut b = vec![0u8; 1 << 16];
        // SAFETY: the simulator writes at most the stated length.
        unsafe {
            let f = self
                .sim
                .get::<unsafe extern "C" fn(*mut u8, usize) -> i32>(b"sim_launches")
                .expect("sim_launches");
            f(b.as_mut_ptr(), b.len());
        }
        let text = String::from_utf8_lossy(b.split(|c| *c == 0).next().unwrap_or(&[])).into_owned();
        text.lines().map(str::to_string).collect()
    }

    pub fn pinned(&self, d: &Device, bytes: u64) -> Mem {
        self.b
            .alloc(d, MemKind::HostPinned, bytes, 0)
            .expect("pinned memory")
    }

    pub fn device_memory(&self, d: &Device, bytes: u64) -> Mem {
        self.b
            .alloc(d, MemKind::Device, bytes, 0)
            .expect("device memory")
    }

    /// The bytes of pinned memory; touched only while streams are idle.
    #[allow(clippy::mut_from_ref)]
    pub fn bytes<'a>(&self, m: &'a Mem, n: usize) -> &'a mut [u8] {
        // SAFETY: mapped memory of at least that many bytes.
        unsafe { std::slice::from_raw_parts_mut(self.b.map(m).expect("mapped"), n) }
    }

    /// Holds a stream until the sender is used or dropped.
    pub fn stall(&self, s: &Stream) -> mpsc::Sender<()> {
        let (open, gate) = mpsc::channel::<()>();
        let wait = move |_| {
            let _ = gate.recv();
        };
        self.b.host_call(s, Box::new(wait)).expect("a host call");
        open
    }
}

pub fn span(m: &Mem, offset: u64, bytes: u64) -> Span<'_, Mem> {
    Span {
        mem: m,
        offset,
        bytes,
    }
}
