//! A slower device: each call of a kind takes as long as its bytes would at a bandwidth, and a latency. The time is spent on the stream,
//! behind the call, where the plugin has host calls; otherwise by the caller.

use crate::call::Call;
use crate::object::Object;
use crate::words::{Calls, rate, time};
use crate::wrap::Layer;
use crossweave_abi as abi;
use crossweave_abi::Status;
use crossweave_plugin::Result;
use std::ffi::c_void;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq)]
struct Rule {
    calls: Calls,
    bytes_per_s: Option<f64>,
    latency: Duration,
}

/// The layer.
#[derive(Debug)]
pub struct Throttle(Vec<Rule>);

impl Throttle {
    /// Reads `copy:10GB/s+collective:1GB/s:20us+launch:matmul:5us`: `CALL[:OP]` with a bandwidth, a latency, or both.
    ///
    /// # Errors
    /// What is wrong with the words.
    pub fn parse(text: &str) -> std::result::Result<Throttle, String> {
        let one = |part: &str| {
            let parts: Vec<&str> = part.split(':').map(str::trim).collect();
            let mut left = &parts[..];
            let calls = Calls::parse(&mut left).map_err(|e| format!("{part}: {e}"))?;
            let mut r = Rule {
                calls,
                bytes_per_s: None,
                latency: Duration::ZERO,
            };
            for word in left {
                match (rate(word), time(word)) {
                    (Some(x), _) => r.bytes_per_s = Some(x),
                    (None, Some(t)) => r.latency = t,
                    _ => {
                        return Err(format!(
                            "{part}: {word:?} is no bandwidth (10GB/s) and no time (20us)"
                        ));
                    }
                }
            }
            match left.is_empty() {
                true => Err(format!("{part}: by how much? write e.g. {part}:10GB/s")),
                false => Ok(r),
            }
        };
        let rules = text
            .split('+')
            .map(str::trim)
            .map(one)
            .collect::<std::result::Result<_, String>>()?;
        Ok(Throttle(rules))
    }

    fn of(&self, call: &Call<'_>) -> Duration {
        let one = |r: &Rule| {
            let moved = r
                .bytes_per_s
                .map(|b| Duration::try_from_secs_f64(call.bytes() as f64 / b));
            r.latency + moved.map_or(Duration::ZERO, |d| d.unwrap_or(Duration::from_secs(3600)))
        };
        self.0.iter().filter(|r| r.calls.meant(call)).map(one).sum()
    }
}

unsafe extern "C" fn nap(arg: *mut c_void, _: Status) {
    // SAFETY: a box made below, and a host call runs once.
    let time = unsafe { Box::from_raw(arg.cast::<Duration>()) };
    std::thread::sleep(*time);
}

/// Puts the time on the stream; `false`: the plugin cannot.
fn on_stream(stream: &Object, time: Duration) -> bool {
    let table = stream.context.inner.device.as_ref();
    let Some(f) = table.and_then(|t| t.stream_host_call) else {
        return false;
    };
    let arg = Box::into_raw(Box::new(time));
    // SAFETY: the stream is alive during the call it was given in; `nap` frees the box, exactly once.
    let s = unsafe { f(stream.inner, nap, arg.cast(), std::ptr::null_mut()) };
    if s != abi::OK {
        // SAFETY: refused, so that nobody else has it.
        drop(unsafe { Box::from_raw(arg) });
    }
    s == abi::OK
}

impl Layer for Throttle {
    fn name(&self) -> &'static str {
        "throttle"
    }

    fn around(&self, call: &Call<'_>, next: &mut dyn FnMut() -> Status) -> Result<Status> {
        let s = next();
        let time = self.of(call);
        if s == abi::OK
            && !time.is_zero()
            && !call.stream().is_some_and(|stream| on_stream(stream, time))
        {
            std::thread::sleep(time);
        }
        Ok(s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_both_kinds() {
        let t = Throttle::parse("copy:10GB/s+collective:all_reduce:1GB/s:20us+launch:matmul:5us")
            .unwrap();
        let all: Vec<_> =
            t.0.iter()
                .map(|r| (r.calls.describe(), r.bytes_per_s, r.latency.as_micros()))
                .collect();
        assert_eq!(
            all,
            [
                ("copy".into(), Some(1e10), 0),
                ("launch of all_reduce".into(), Some(1e9), 20),
                ("op_launch of matmul".into(), None, 5)
            ]
        );
        for (text, part) in [
            ("copy", "by how much"),
            ("copy:fast", "\"fast\" is no bandwidth"),
            ("cpy:1us", "no call is named"),
        ] {
            let e = Throttle::parse(text).unwrap_err();
            assert!(e.contains(part), "{text}: {e}");
        }
    }
}
