//! The driver as this process has it, and an open device: its place, its facts, and whether it is lost.

use crate::error;
use crate::lock;
use crate::modules::Modules;
use crate::runtime::{
    Facts, Handle, Outcome, PEER_ALREADY_ENABLED, Place, Previous, Runtime, SUCCESS, Status,
    TOO_MANY_PEERS,
};
use crate::settings::Settings;
use crate::turns::{Turn, Turns};
use crossweave_plugin::{Code, Error, Host, Result, fail};
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Things by index that live as long as somebody holds them.
pub struct Shared<T>(Mutex<BTreeMap<u32, Weak<T>>>);

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Shared(Mutex::default())
    }
}

impl<T> Shared<T> {
    /// The one of this index, made where nobody holds it.
    ///
    /// # Errors
    /// What making it says.
    pub fn get(&self, index: u32, make: impl FnOnce() -> Result<T>) -> Result<Arc<T>> {
        let mut all = lock(&self.0);
        if let Some(one) = all.get(&index).and_then(Weak::upgrade) {
            return Ok(one);
        }
        let one = Arc::new(make()?);
        all.insert(index, Arc::downgrade(&one));
        Ok(one)
    }
}

/// A vendor's driver, opened and started.
pub struct Started {
    /// Its functions.
    pub rt: Box<dyn Runtime>,
    /// The file it came from.
    pub file: String,
    /// Devices visible.
    pub count: u32,
}

/// The driver, opened once.
pub struct Api {
    /// Its functions.
    pub rt: Box<dyn Runtime>,
    /// The file it came from.
    pub file: String,
    /// The host.
    pub host: Host,
    /// What is configured.
    pub settings: Settings,
    /// Devices visible.
    pub count: u32,
    devices: Shared<Dev>,
}

impl Api {
    /// A driver that has started.
    pub fn new(started: Started, host: Host, settings: &Settings) -> Arc<Api> {
        Arc::new(Api {
            rt: started.rt,
            file: started.file,
            host,
            settings: settings.clone(),
            count: started.count,
            devices: Shared::default(),
        })
    }

    /// The device, shared by all who opened it.
    ///
    /// # Errors
    /// `Invalid`: there is no such device. What the driver says.
    pub fn device(self: &Arc<Self>, index: u32) -> Result<Arc<Dev>> {
        if index >= self.count {
            let have = match self.count {
                0 => self.rt.none_seen().to_string(),
                n => format!("there are {n}"),
            };
            return fail(Code::Invalid, format!("device {index}: {have}"));
        }
        self.devices.get(index, || Dev::open(self, index))
    }
}

/// A device that is kept as found: held while open, current on a thread only inside a call (R7).
pub struct Dev {
    /// Its driver.
    pub api: Arc<Api>,
    /// Its index.
    pub index: u32,
    /// Where the driver has it.
    pub place: Place,
    /// What it says of itself.
    pub facts: Facts,
    /// Kernels loaded on it.
    pub(crate) modules: Modules,
    /// Devices whose memory kernels here may touch.
    peers: Mutex<Vec<i32>>,
    /// Threads that join groups, of a library that takes one at a time: HCCL.
    joins: Arc<Turns>,
    /// The status that ended the device, or 0.
    lost: AtomicI32,
    /// The function that first met it.
    lost_at: Mutex<&'static str>,
}

/// The device is current on this thread while this lives; what was current before is so again afterwards.
pub struct Entered<'a>(&'a dyn Runtime, Previous);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        // SAFETY: undoes what `Dev::enter` did on this thread.
        let _ = unsafe { self.0.leave(self.1) };
    }
}

impl Dev {
    fn open(api: &Arc<Api>, index: u32) -> Result<Dev> {
        let rt = &*api.rt;
        let check = |o: Outcome| match o.done() {
            true => Ok(()),
            false => Err(error::error(rt, o)),
        };
        let (mut ordinal, mut ctx) = (0, Handle::NULL);
        // SAFETY: the index is one the driver counted.
        unsafe {
            check(rt.device(&mut ordinal, index as i32))?;
            check(rt.retain(&mut ctx, ordinal))?;
        }
        let place = Place { ordinal, ctx };
        Ok(Dev {
            api: api.clone(),
            index,
            place,
            facts: rt.facts(&place),
            modules: Modules::default(),
            peers: Mutex::default(),
            joins: Arc::default(),
            lost: AtomicI32::new(0),
            lost_at: Mutex::new(""),
        })
    }

    /// A place among the threads that join groups one after the other.
    pub(crate) fn turn(&self) -> Turn {
        self.joins.draw()
    }

    /// The driver's functions.
    pub fn rt(&self) -> &dyn Runtime {
        &*self.api.rt
    }

    /// Makes the device current for the calls that follow; a lost device says so again.
    ///
    /// # Errors
    /// `DeviceLost`. What the driver says.
    pub fn enter(&self) -> Result<Entered<'_>> {
        self.alive()?;
        self.enter_anyway()
    }

    /// The same where things are being released, lost or not.
    ///
    /// # Errors
    /// What the driver says.
    pub fn enter_anyway(&self) -> Result<Entered<'_>> {
        let mut previous = Previous::default();
        // SAFETY: the place is held while `self` lives.
        self.check(unsafe { self.rt().enter(&self.place, &mut previous) })?;
        Ok(Entered(self.rt(), previous))
    }

    /// `Err` once the device is lost.
    ///
    /// # Errors
    /// `DeviceLost`, with what ended it.
    pub fn alive(&self) -> Result<()> {
        match self.lost.load(Ordering::Acquire) {
            SUCCESS => Ok(()),
            status => {
                let name = *lock(&self.lost_at);
                let e = error::error(self.rt(), Outcome { name, status });
                let message = format!(
                    "the device was lost: {}; start the process again",
                    e.message
                );
                Err(Error { message, ..e })
            }
        }
    }

    /// The error of a failed call; remembers what ends the device.
    pub fn failed(&self, o: Outcome) -> Error {
        let e = error::error(self.rt(), o);
        if e.code == Code::DeviceLost && self.lost.load(Ordering::Acquire) == SUCCESS {
            let mut at = lock(&self.lost_at);
            if at.is_empty() {
                *at = o.name;
            }
            drop(at);
            let _ =
                self.lost
                    .compare_exchange(SUCCESS, o.status, Ordering::AcqRel, Ordering::Acquire);
        }
        e
    }

    /// Turns an outcome into a result.
    ///
    /// # Errors
    /// That of the call.
    pub fn check(&self, o: Outcome) -> Result<()> {
        match o.done() {
            true => Ok(()),
            false => Err(self.failed(o)),
        }
    }

    /// Makes `other`'s memory reachable from here where the machine can. Bit 0: loads and stores; bit 1: copies without the host.
    ///
    /// # Errors
    /// What the driver says.
    pub fn reach(&self, other: &Dev) -> Result<u32> {
        let (here, there) = (self.place.ordinal, other.place.ordinal);
        if here == there {
            return Ok(3);
        }
        let mut can = 0;
        // SAFETY: both are devices of this driver.
        self.check(unsafe { self.rt().can_reach(&mut can, here, there) })?;
        if can == 0 {
            return Ok(0);
        }
        let _in = self.enter()?;
        // SAFETY: both are held.
        let o = unsafe { self.rt().reach(&other.place) };
        match o.status {
            SUCCESS | PEER_ALREADY_ENABLED => {
                let mut peers = lock(&self.peers);
                if !peers.contains(&there) {
                    peers.push(there);
                }
                Ok(3)
            }
            s => match self.failed(o) {
                // More peers than the hardware has room for: copies still go directly.
                e if e.code == Code::Unsupported || s == TOO_MANY_PEERS => Ok(2),
                e => Err(e),
            },
        }
    }

    /// Has `reach` made the other's memory reachable for loads and stores?
    pub(crate) fn has_access(&self, other: &Dev) -> bool {
        lock(&self.peers).contains(&other.place.ordinal)
    }

    /// Free and total bytes.
    ///
    /// # Errors
    /// What the driver says.
    pub fn memory(&self) -> Result<(u64, u64)> {
        let _in = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: a plain question.
        self.check(unsafe { self.rt().room(&mut free, &mut total) })?;
        Ok((free as u64, total as u64))
    }

    /// A text of up to 255 bytes that the driver writes.
    fn text(&self, ask: impl FnOnce(*mut c_char, i32) -> Outcome) -> Result<String> {
        let mut b = [0u8; 256];
        self.check(ask(b.as_mut_ptr().cast(), 255))?;
        Ok(CStr::from_bytes_until_nul(&b)
            .map_or(String::new(), |t| t.to_string_lossy().into_owned()))
    }

    /// Its name.
    ///
    /// # Errors
    /// What the driver says.
    pub fn name(&self) -> Result<String> {
        // SAFETY: the driver writes at most the stated length.
        self.text(|p, n| unsafe { self.rt().name(p, n, self.place.ordinal) })
    }

    /// Its address on the bus.
    ///
    /// # Errors
    /// What the driver says.
    pub fn bus(&self) -> Result<String> {
        // SAFETY: the driver writes at most the stated length.
        self.text(|p, n| unsafe { self.rt().bus(p, n, self.place.ordinal) })
    }

    /// Its own number, or zeros where that is unknown.
    pub fn uuid(&self) -> [u8; 16] {
        let mut id = [0; 16];
        // SAFETY: a plain question; a failure leaves zeros.
        match unsafe { self.rt().uuid(&mut id, self.place.ordinal) }.status as Status {
            SUCCESS => id,
            _ => [0; 16],
        }
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        if let Ok(_in) = self.enter_anyway() {
            self.modules.unload(|m| {
                // SAFETY: loaded for this device, unloaded once; nothing prepared for it is left, as that keeps the device.
                let _ = unsafe { self.rt().module_unload(m) };
            });
        }
        // SAFETY: gives back what `open` took hold of.
        let _ = unsafe { self.rt().release(self.place.ordinal) };
    }
}
