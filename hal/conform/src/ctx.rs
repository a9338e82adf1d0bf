//! What a case works with: the plugin, numbers from its seed, guarded memory, a stream that can be held back, and ranks.

use crate::case::Effort;
use crate::local_ranks::{RankThreads, Team};
use crate::raw::{Dev, Event, Mem, Plugin, Raw, Stream};
use crossweave_abi as abi;
use crossweave_abi::Span;
use crossweave_hal::HostServices;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long the kit waits for what must come, on a busy machine too.
pub const SOON: Duration = Duration::from_secs(30);
/// What outputs and fresh areas hold: not a number in every float type.
pub const POISON: u8 = 0xFF;
/// What lies around an area.
const SENTINEL: u8 = 0xC3;
/// Bytes of it on each side.
const MARGIN: u64 = 256;

/// Everything a case gets.
pub struct Ctx {
    /// The plugin.
    pub plugin: Arc<Plugin>,
    /// The services it was given.
    pub host: HostServices,
    /// Its file, if it has one.
    pub file: Option<std::path::PathBuf>,
    /// The seed of this case alone.
    pub seed: u64,
    /// Devices to use, at least one.
    pub devices: Vec<u32>,
    /// Devices that ranks may use beside them: all there are, unless the run names devices.
    pub others: Vec<u32>,
    /// How much is tried.
    pub effort: Effort,
    /// Threads of the process before the plugin was loaded.
    pub threads: Option<usize>,
    /// A case has shut the plugin down.
    pub shut: AtomicBool,
    pub(crate) rank_threads: Mutex<RankThreads>,
    pub(crate) team: Option<Team>,
}

impl Ctx {
    /// Numbers of this case.
    pub fn rng(&self) -> Rng {
        Rng::new(self.seed)
    }

    /// The first device, opened.
    ///
    /// # Errors
    /// The plugin's, in words.
    pub fn device(&self) -> Result<Dev, String> {
        Ok(self.plugin.open(self.devices[0])?)
    }

    /// A device with a stream.
    ///
    /// # Errors
    /// The plugin's, in words.
    pub fn rig(&self) -> Result<Rig, String> {
        Rig::on(self.device()?)
    }
}

/// Small, seeded, the same everywhere: splitmix64.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// From a seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }
    /// 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    /// Below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.word() % n
    }
    /// In [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 53) as f64
    }
    /// So many bytes.
    pub fn bytes(&mut self, n: u64) -> Vec<u8> {
        let mut v = Vec::with_capacity(n as usize + 8);
        while (v.len() as u64) < n {
            v.extend(self.word().to_le_bytes());
        }
        v.truncate(n as usize);
        v
    }
}

/// The seed of one case under the run's seed: independent of what else is run.
pub fn case_seed(seed: u64, id: &str) -> u64 {
    let mut h = 0xCBF2_9CE4_8422_2325u64 ^ seed;
    for b in id.bytes() {
        h = (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01B3);
    }
    Rng::new(h).word()
}

/// A device with a stream: what most cases need.
pub struct Rig {
    /// The stream.
    pub stream: Stream,
    /// The device.
    pub dev: Dev,
}

impl Rig {
    /// On an open device.
    ///
    /// # Errors
    /// The plugin's, in words.
    pub fn on(dev: Dev) -> Result<Rig, String> {
        Ok(Rig {
            stream: dev.stream()?,
            dev,
        })
    }

    /// Page-locked memory with its address.
    ///
    /// # Errors
    /// The plugin's, in words.
    pub fn pinned(&self, bytes: u64) -> Result<Pinned, String> {
        Pinned::new(&self.dev, bytes)
    }

    /// Device memory with sentinels around `bytes` bytes of poison, which start `skew` bytes behind an aligned place.
    ///
    /// # Errors
    /// The plugin's, in words.
    pub fn area_at(&self, bytes: u64, skew: u64) -> Result<Area, String> {
        Area::new(self, abi::MEM_DEVICE, bytes, skew)
    }

    /// As [`Rig::area_at`], aligned.
    ///
    /// # Errors
    /// The plugin's, in words.
    pub fn area(&self, bytes: u64) -> Result<Area, String> {
        self.area_at(bytes, 0)
    }

    /// An area that holds `content`.
    ///
    /// # Errors
    /// The plugin's, in words.
    pub fn area_of(&self, content: &[u8]) -> Result<Area, String> {
        let a = self.area(content.len() as u64)?;
        a.write(self, content)?;
        Ok(a)
    }
}

/// Page-locked memory with its address.
pub struct Pinned {
    /// The memory.
    pub mem: Mem,
    at: *mut u8,
}
// SAFETY: an address of memory that `mem` owns; the kit orders who touches it.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Allocates and maps.
    ///
    /// # Errors
    /// The plugin's, in words.
    pub fn new(dev: &Dev, bytes: u64) -> Result<Pinned, String> {
        let mem = dev.alloc(abi::MEM_HOST_PINNED, bytes.max(1), 0)?;
        let at = mem.map()?;
        if at.is_null() {
            return Err("mem_map answered OK and no address".into());
        }
        Ok(Pinned { mem, at })
    }

    /// The address.
    pub fn address(&self) -> *mut u8 {
        self.at
    }

    /// Writes from the host.
    pub fn put(&self, offset: u64, bytes: &[u8]) {
        assert!(offset + bytes.len() as u64 <= self.mem.bytes);
        // SAFETY: inside the allocation; no stream is using it (the caller's order).
        unsafe {
            let to = self.at.add(offset as usize);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }

    /// Reads on the host.
    pub fn get(&self, offset: u64, bytes: u64) -> Vec<u8> {
        assert!(offset + bytes <= self.mem.bytes);
        let mut v = vec![0u8; bytes as usize];
        // SAFETY: as `put`.
        unsafe {
            let from = self.at.add(offset as usize);
            std::ptr::copy_nonoverlapping(from, v.as_mut_ptr(), v.len());
        }
        v
    }

    /// The 64-bit word at `offset`, shared with streams.
    pub fn word(&self, offset: u64) -> &AtomicU64 {
        assert!(offset + 8 <= self.mem.bytes && offset.is_multiple_of(8));
        // SAFETY: inside the allocation, which is aligned to more than 8.
        unsafe { &*self.at.add(offset as usize).cast::<AtomicU64>() }
    }
}

/// Device memory with sentinels around it. Every read looks at them.
pub struct Area {
    mem: Mem,
    from: u64,
    /// Bytes of the middle.
    pub bytes: u64,
}

impl Area {
    /// Poisoned memory between sentinels.
    ///
    /// # Errors
    /// The plugin's, in words.
    pub fn new(rig: &Rig, kind: u32, bytes: u64, skew: u64) -> Result<Area, String> {
        let total = bytes + 2 * MARGIN + skew;
        let a = Area {
            mem: rig.dev.alloc(kind, total, 0)?,
            from: MARGIN + skew,
            bytes,
        };
        let mut image = vec![SENTINEL; total as usize];
        image[a.from as usize..(a.from + bytes) as usize].fill(POISON);
        a.upload(rig, 0, &image)?;
        Ok(a)
    }

    fn upload(&self, rig: &Rig, offset: u64, bytes: &[u8]) -> Result<(), String> {
        if bytes.is_empty() {
            return Ok(());
        }
        let n = bytes.len() as u64;
        let staging = rig.pinned(n)?;
        staging.put(0, bytes);
        let to = self.mem.span(offset, n);
        rig.stream.copy(to, staging.mem.span(0, n))?;
        rig.stream.finish()?;
        Ok(())
    }

    /// The middle.
    pub fn span(&self) -> Span {
        self.mem.span(self.from, self.bytes)
    }

    /// A part of the middle.
    pub fn part(&self, offset: u64, bytes: u64) -> Span {
        self.mem.span(self.from + offset, bytes)
    }

    /// Replaces the middle.
    ///
    /// # Errors
    /// The plugin's, in words.
    pub fn write(&self, rig: &Rig, bytes: &[u8]) -> Result<(), String> {
        assert_eq!(bytes.len() as u64, self.bytes);
        self.upload(rig, self.from, bytes)
    }

    /// Waits for the rig's stream and reads the middle.
    ///
    /// # Errors
    /// The plugin's, or that something around the area was written.
    pub fn read(&self, rig: &Rig) -> Result<Vec<u8>, String> {
        let total = self.mem.bytes;
        let staging = rig.pinned(total)?;
        let to = staging.mem.span(0, total);
        rig.stream.copy(to, self.mem.whole())?;
        rig.stream.finish()?;
        let image = staging.get(0, total);
        let (from, to) = (self.from as usize, (self.from + self.bytes) as usize);
        let at = |i: usize, b: &u8| (*b != SENTINEL).then_some(i);
        if let Some(i) = image[..from].iter().enumerate().find_map(|(i, b)| at(i, b)) {
            return Err(format!("{} bytes before its span were written", from - i));
        }
        if let Some(i) = image[to..].iter().enumerate().find_map(|(i, b)| at(i, b)) {
            return Err(format!("the byte {i} behind its span was written"));
        }
        Ok(image[from..to].to_vec())
    }

    /// Is the middle still poison, and all around it?
    ///
    /// # Errors
    /// What was written.
    pub fn untouched(&self, rig: &Rig) -> Result<(), String> {
        match self.read(rig)?.iter().position(|b| *b != POISON) {
            None => Ok(()),
            Some(i) => Err(format!("byte {i} of the output was written")),
        }
    }
}

/// Holds a stream back until released.
pub enum Stall {
    /// A host call that waits.
    Call(Arc<AtomicBool>),
    /// A word the stream waits for.
    Word(Pinned),
    /// Nothing can hold it: much work lies before.
    Work(Vec<Mem>),
}

/// How streams of a device can be held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StallKind {
    /// By a host call.
    Call,
    /// By a word.
    Word,
    /// By work only.
    Work,
}

unsafe extern "C" fn hold(arg: *mut c_void, _: abi::Status) {
    // SAFETY: a share of the flag, made for this one call.
    let go = unsafe { Arc::from_raw(arg.cast::<AtomicBool>()) };
    let end = Instant::now() + 4 * SOON;
    while !go.load(Ordering::Acquire) && Instant::now() < end {
        std::thread::sleep(Duration::from_micros(200));
    }
}

impl Stall {
    /// What this plugin has.
    pub fn kind(p: &Plugin) -> StallKind {
        if p.d.stream_host_call.is_some() {
            StallKind::Call
        } else if p.d.stream_wait_value.is_some() {
            StallKind::Word
        } else {
            StallKind::Work
        }
    }

    /// Everything enqueued on `s` from now on waits for the release (or, where nothing can hold a stream, for a pile of copies).
    ///
    /// # Errors
    /// The plugin's, in words.
    pub fn new(s: &Stream) -> Result<Stall, String> {
        Stall::with(s, Stall::kind(s.dev().plugin()))
    }

    /// By one means.
    ///
    /// # Errors
    /// The plugin's, in words.
    pub fn with(s: &Stream, kind: StallKind) -> Result<Stall, String> {
        let p = s.dev().plugin();
        match kind {
            StallKind::Call => {
                let Some(f) = p.d.stream_host_call else {
                    return Err("stream_host_call is not there".into());
                };
                let go = Arc::new(AtomicBool::new(false));
                let arg = Arc::into_raw(go.clone()).cast_mut().cast();
                // SAFETY: `hold` takes the share back in its one call.
                let done = p.call("stream_host_call", |e| unsafe {
                    f(s.handle(), hold, arg, e)
                });
                if let Err(r) = done {
                    // SAFETY: refused, so nobody will take it.
                    drop(unsafe { Arc::from_raw(arg.cast::<AtomicBool>()) });
                    return Err(r.into());
                }
                Ok(Stall::Call(go))
            }
            StallKind::Word => {
                let Some(f) = p.d.stream_wait_value else {
                    return Err("stream_wait_value is not there".into());
                };
                let word = Pinned::new(s.dev(), 8)?;
                word.word(0).store(0, Ordering::Release);
                // SAFETY: the word lives in the stall, which the case keeps until the stream has passed.
                p.call("stream_wait_value", |e| unsafe {
                    f(s.handle(), word.mem.span(0, 8), 1, e)
                })?;
                Ok(Stall::Word(word))
            }
            StallKind::Work => {
                let bytes = 8u64 << 20;
                let (a, b) = (
                    s.dev().alloc(abi::MEM_DEVICE, bytes, 0)?,
                    s.dev().alloc(abi::MEM_DEVICE, bytes, 0)?,
                );
                for _ in 0..8 {
                    s.fill(a.whole(), 0, 4)?;
                    s.copy(b.whole(), a.whole())?;
                }
                Ok(Stall::Work(vec![a, b]))
            }
        }
    }

    /// Is it certain that the stream stands still until released?
    pub fn certain(&self) -> bool {
        !matches!(self, Stall::Work(_))
    }

    /// Lets the stream go on.
    pub fn release(&self) {
        match self {
            Stall::Call(go) => go.store(true, Ordering::Release),
            Stall::Word(w) => w.word(0).store(1, Ordering::Release),
            Stall::Work(_) => {}
        }
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        self.release();
    }
}

/// Waits until an event is passed, by asking.
///
/// # Errors
/// The plugin's.
pub fn poll(e: &Event, within: Duration) -> Raw<bool> {
    let end = Instant::now() + within;
    loop {
        if e.query()? {
            return Ok(true);
        }
        if Instant::now() >= end {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}
