//! An open CPU device: a team of threads, an account of memory, and what the configuration allows.

use crate::cores::Cores;
use crate::gemm::{elem::Elem, tile};
use crate::isa::{Isas, Level};
use crate::memory::{Account, machine_bytes};
use crate::pace::Pace;
use crate::profile::Profile;
use crate::schedule::{Slot, Turn};
use crate::team::Team;
use crossweave_abi as abi;
use crossweave_plugin::{Code, Error, Host, Info, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What the configuration says; read when a device is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// `cpu.devices`: devices this machine is divided into.
    pub(crate) devices: u32,
    /// `cpu.threads`: threads of each device, the stream's own included.
    pub(crate) threads: usize,
    /// `cpu.fused`: `off` refuses every fused op, so that decompositions can be tested.
    pub(crate) fused: bool,
    /// `cpu.simd`: the widest instruction set matrix and attention code may use (`auto` = any).
    pub(crate) simd: Level,
    /// `cpu.memory_bytes`: what each device may give out; pinned host memory is not counted.
    pub(crate) memory: u64,
    /// `cpu.comm_timeout_s`: for communicators that state none.
    pub(crate) comm_timeout_s: u64,
    /// `cpu.profile`: `on` keeps the wall time of every kernel, read with the attribute `profile`.
    pub(crate) profile: bool,
    /// `cpu.pin`: `on` gives each device's threads cores of their own.
    pub(crate) pin: bool,
}

impl Settings {
    pub(crate) fn read(host: &Host, cores: usize) -> Result<Settings> {
        let devices = number(host, "cpu.devices", 1, 1)? as u32;
        let threads = number(
            host,
            "cpu.threads",
            (cores / devices as usize).max(1) as u64,
            1,
        )? as usize;
        let fused = match host.config("cpu.fused").as_deref() {
            None | Some("on") => true,
            Some("off") => false,
            Some(x) => return Err(bad("cpu.fused", x, "`on` or `off`")),
        };
        let profile = match host.config("cpu.profile").as_deref() {
            None | Some("off") => false,
            Some("on") => true,
            Some(x) => return Err(bad("cpu.profile", x, "`on` or `off`")),
        };
        let pin = match host.config("cpu.pin").as_deref() {
            None | Some("off") => false,
            Some("on") => true,
            Some(x) => return Err(bad("cpu.pin", x, "`on` or `off`")),
        };
        let simd = level(host.config("cpu.simd").as_deref())?;
        Ok(Settings {
            profile,
            pin,
            devices,
            threads,
            fused,
            simd,
            memory: number(host, "cpu.memory_bytes", machine_bytes(), 1)?,
            comm_timeout_s: number(host, "cpu.comm_timeout_s", 300, 1)?,
        })
    }
}

/// The bound `cpu.simd` sets; a level the processor lacks is no error, because it is only a bound.
fn level(word: Option<&str>) -> Result<Level> {
    match word.map(str::trim) {
        None | Some("auto") => Ok(Level::Avx512),
        Some("scalar") => Ok(Level::Portable),
        Some("avx2") => Ok(Level::Avx2),
        Some("avx512") => Ok(Level::Avx512),
        Some(x) => Err(bad("cpu.simd", x, "`auto`, `scalar`, `avx2` or `avx512`")),
    }
}

fn bad(key: &str, got: &str, want: &str) -> Error {
    Error::new(Code::Invalid, format!("{key} = `{got}`: must be {want}"))
}

pub(crate) fn number(host: &Host, key: &str, default: u64, least: u64) -> Result<u64> {
    match host.config(key) {
        None => Ok(default),
        Some(text) => text
            .trim()
            .parse::<u64>()
            .ok()
            .filter(|n| *n >= least)
            .ok_or_else(|| bad(key, &text, &format!("a whole number of at least {least}"))),
    }
}

/// An open CPU device. Opening one index twice gives two devices with threads of their own (ranks as threads).
pub struct Device {
    pub(crate) index: u32,
    pub(crate) team: Arc<Team>,
    pub(crate) account: Arc<Account>,
    pub(crate) fused: bool,
    pub(crate) isas: Isas,
    pub(crate) comm_timeout: Duration,
    pub(crate) profile: Option<Arc<Profile>>,
    /// Streams made so far.
    pub(crate) streams: AtomicU64,
    /// Its place in a schedule.
    slot: Option<Slot>,
}

impl Device {
    pub(crate) fn new(
        index: u32,
        settings: &Settings,
        isas: Isas,
        host: &Host,
        pace: &Arc<Pace>,
        slot: Option<Slot>,
    ) -> Device {
        let cores = settings.pin.then(|| Cores::of(index, settings.threads));
        Device {
            index,
            streams: AtomicU64::new(0),
            slot,
            team: Arc::new(Team::paced(settings.threads, host, pace.clone()).on(cores)),
            account: Arc::new(Account {
                total: settings.memory,
                bytes: AtomicU64::new(0),
                live: AtomicU64::new(0),
            }),
            fused: settings.fused,
            profile: settings.profile.then(Arc::default),
            isas,
            comm_timeout: Duration::from_secs(settings.comm_timeout_s),
        }
    }

    pub(crate) fn info(&self) -> Info {
        let mut uuid = *b"crossweave-cpu\0\0";
        uuid[15] = self.index as u8;
        let given = self.account.bytes.load(Ordering::Relaxed);
        Info {
            kind: 1,
            mem_total: self.account.total,
            mem_free: self.account.total.saturating_sub(given),
            caps: abi::CAP_HOST_PROGRESS | abi::CAP_DETERMINISTIC,
            numa_node: u32::MAX,
            align: crate::memory::ALIGN as u32,
            uuid,
            name: processor_name(),
            pci_bus_id: String::new(),
            arch: std::env::consts::ARCH.into(),
        }
    }

    /// The turn of its host, under a schedule.
    pub(crate) fn turn(&self) -> Option<Turn> {
        self.slot.as_ref().map(Slot::turn)
    }

    /// Gives the turn away once, as a poll does: for hosts that wait for each other outside the device. An error is the schedule's end.
    pub(crate) fn give_turn(&self) -> Result<Vec<u8>> {
        let Some(turn) = self.turn() else {
            return crossweave_plugin::unsupported(
                "device_attr `schedule.yield`: no schedule is kept",
            );
        };
        turn.poll();
        turn.verdict().map_or(Ok(vec![]), Err)
    }

    /// `schedule`: the account of the schedule this device is part of (`schedule.yield` is [`Device::give_turn`]). `threads`, `fused`, `profile` (see [`Profile::text`]), `mem.live` (allocations alive), `mem.bytes` (given out): numbers as text.
    /// `isa`: the level matrix and attention code uses (`scalar`, `avx2`, `avx512`); `isa.bf16`: the tile of bf16 products, by name.
    pub(crate) fn attr(&self, key: &str) -> Option<Vec<u8>> {
        let text = match key {
            "threads" => self.team.threads().to_string(),
            "fused" => u8::from(self.fused).to_string(),
            "isa" => self.isas.level.name().into(),
            "isa.bf16" => tile::Isa::of(self.isas, Elem::Bf16).name.into(),
            "schedule" => self.slot.as_ref()?.schedule.account(),
            "mem.live" => self.account.live.load(Ordering::Relaxed).to_string(),
            "profile" => self.profile.as_ref()?.text(),
            "mem.bytes" => self.account.bytes.load(Ordering::Relaxed).to_string(),
            _ => return None,
        };
        Some(text.into_bytes())
    }
}

fn processor_name() -> String {
    std::fs::read_to_string("/proc/cpuinfo")
        .ok()
        .and_then(|text| {
            let line = text.lines().find(|l| l.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_string())
        })
        .unwrap_or_else(|| "CPU".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_one_of_four_words() {
        for l in [Level::Portable, Level::Avx2, Level::Avx512] {
            assert_eq!(level(Some(l.name())).unwrap(), l);
        }
        assert_eq!(level(None).unwrap(), level(Some("auto")).unwrap());
        let e = level(Some("sse")).unwrap_err();
        assert_eq!(e.code, Code::Invalid);
        assert!(e.to_string().contains("cpu.simd"));
    }
}
