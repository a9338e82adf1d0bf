//! The words of `fault` and `throttle`: which calls are meant, and sizes and times as people write them.

use crate::call::Call;
use std::time::Duration;

/// Calls by slot and by what they are about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Calls {
    slot: &'static str,
    subject: Option<String>,
}

/// Short names of slots.
const SHORT: [(&str, &str); 9] = [
    ("alloc", "mem_alloc"),
    ("open", "device_open"),
    ("prepare", "op_prepare"),
    ("launch", "op_launch"),
    ("collective", "launch"),
    ("comm", "comm_init"),
    ("sync", "stream_sync"),
    ("wait", "stream_wait_event"),
    ("record", "event_record"),
];

/// Slots that can be named as they are.
const SLOTS: [&str; 33] = [
    "device_count",
    "device_open",
    "device_info",
    "device_attr",
    "mem_alloc",
    "mem_map",
    "mem_import",
    "mem_export",
    "stream_create",
    "stream_query",
    "stream_sync",
    "event_create",
    "event_record",
    "event_query",
    "event_sync",
    "event_elapsed",
    "stream_wait_event",
    "stream_host_call",
    "stream_wait_value",
    "stream_write_value",
    "copy",
    "copy_2d",
    "copy_peer",
    "fill",
    "peer_access",
    "op_prepare",
    "op_launch",
    "unique_id",
    "comm_init",
    "comm_split",
    "comm_query",
    "comm_async_error",
    "mem_register",
];

impl Calls {
    /// Reads a name at the head of `parts`, and a subject where the next part is one.
    pub fn parse<'a>(parts: &mut &'a [&'a str]) -> Result<Calls, String> {
        let Some((name, rest)) = parts.split_first() else {
            return Err("no call is named".into());
        };
        let short = SHORT.iter().find(|(s, _)| s == name).map(|s| s.1);
        let slot = short.or(SLOTS.into_iter().find(|s| s == name));
        let Some(slot) = slot else {
            let names: Vec<&str> = SHORT.iter().map(|s| s.0).collect();
            return Err(format!(
                "no call is named {name:?}; name a slot of the header, or {}",
                names.join(", ")
            ));
        };
        *parts = rest;
        let mut calls = Calls {
            slot,
            subject: None,
        };
        if let (Some((first, rest)), "op_prepare" | "op_launch" | "launch" | "comm_query") =
            (parts.split_first(), slot)
            && first.starts_with(|c: char| c.is_ascii_alphabetic())
        {
            let known = match slot {
                "launch" | "comm_query" => crossweave_abi::coll_by_name(first).is_some(),
                _ => crossweave_abi::op::by_name(first).is_some(),
            };
            if !known {
                return Err(format!("{first:?} is the name of no op or collective"));
            }
            calls.subject = Some((*first).to_string());
            *parts = rest;
        }
        Ok(calls)
    }

    /// Is it one of these?
    pub fn meant(&self, call: &Call<'_>) -> bool {
        let members = |s: &str| match call {
            Call::Collective { members, .. } => members
                .iter()
                .any(|m| crate::call::collective_name(m.desc.kind) == s),
            _ => call.subject() == Some(s),
        };
        self.slot == call.slot() && self.subject.as_deref().is_none_or(members)
    }

    /// `op_launch of matmul`.
    pub fn describe(&self) -> String {
        match &self.subject {
            Some(s) => format!("{} of {s}", self.slot),
            None => self.slot.into(),
        }
    }
}

/// `10GB/s`, `200MB/s`, `1GiB/s`.
pub(crate) fn rate(text: &str) -> Option<f64> {
    let t = text.strip_suffix("/s")?;
    let at = t.find(|c: char| c.is_ascii_alphabetic())?;
    let unit = match &t[at..] {
        "B" => 1.0,
        "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        "GiB" => 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    let n: f64 = t[..at].parse().ok()?;
    Some(n * unit).filter(|x| *x > 0.0 && x.is_finite())
}

/// `20us`, `1.5ms`, `300ns`, `2s`.
pub(crate) fn time(text: &str) -> Option<Duration> {
    let at = text.find(|c: char| c.is_ascii_alphabetic())?;
    let unit = match &text[at..] {
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return None,
    };
    let n: f64 = text[..at].parse().ok()?;
    Duration::try_from_secs_f64(n * unit).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_times() {
        assert_eq!(rate("10GB/s"), Some(1e10));
        assert_eq!(rate("1.5MiB/s"), Some(1.5 * 1048576.0));
        assert_eq!(time("20us"), Some(Duration::from_micros(20)));
        assert_eq!(time("1.5ms"), Some(Duration::from_micros(1500)));
        for bad in ["10GB", "GB/s", "-1GB/s", "10XB/s", "0B/s", "nanB/s", ""] {
            assert_eq!(rate(bad), None, "{bad}");
        }
        for bad in ["20", "us", "-1ms", "1m", "infs", ""] {
            assert_eq!(time(bad), None, "{bad}");
        }
    }
}
