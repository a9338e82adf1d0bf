//! Every call at the boundary as a timeline in Chrome's JSON, which Perfetto opens: a device is a process of it, a stream a thread, and a
//! span is the time the host spent in the call. What the device did when is another picture (`crossweave train --trace`).

use crate::call::Call;
use crate::wrap::Layer;
use crossweave_abi::Status;
use crossweave_plugin::Result;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Calls written; what comes later is counted and dropped, so that a long run does not fill a disk.
const MOST: u64 = 2_000_000;
/// What ends the file; it is written over when more comes.
const TAIL: &str = "\n],\n\"otherData\":";

struct State {
    file: BufWriter<File>,
    /// Bytes before the tail.
    length: u64,
    /// Is the tail there?
    closed: bool,
    calls: u64,
    dropped: u64,
    devices: u64,
    named: HashSet<(u64, u64)>,
    broken: bool,
}

/// The layer.
pub struct Trace {
    origin: Instant,
    state: Mutex<State>,
}

impl Trace {
    /// Writes to `path`.
    ///
    /// # Errors
    /// A file that cannot be made.
    pub fn to(path: &Path) -> std::io::Result<Trace> {
        let mut file = BufWriter::new(File::create(path)?);
        let head = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[";
        file.write_all(head.as_bytes())?;
        let mut state = State {
            file,
            length: head.len() as u64,
            closed: false,
            calls: 0,
            dropped: 0,
            devices: 0,
            named: HashSet::new(),
            broken: false,
        };
        // A run that ends before its first call leaves a file that can be opened.
        state.close()?;
        Ok(Trace {
            origin: Instant::now(),
            state: Mutex::new(state),
        })
    }
}

impl State {
    fn event(&mut self, e: &Value) -> std::io::Result<()> {
        if self.closed {
            self.file.flush()?;
            self.file.get_mut().set_len(self.length)?;
            self.file.seek(SeekFrom::Start(self.length))?;
            self.closed = false;
        }
        let comma = if self.named.is_empty() && self.calls == 0 {
            "\n"
        } else {
            ",\n"
        };
        let line = format!("{comma}{e}");
        self.length += line.len() as u64;
        self.file.write_all(line.as_bytes())
    }

    fn close(&mut self) -> std::io::Result<()> {
        if !self.closed {
            let other = json!({"program": "crossweave", "layer": "trace", "calls": self.calls, "dropped": self.dropped});
            writeln!(self.file, "{TAIL}{other}}}")?;
            self.closed = true;
        }
        self.file.flush()
    }

    fn lane(&mut self, device: u64, lane: u64) -> std::io::Result<()> {
        let name = match lane {
            0 => "no stream".to_string(),
            n => format!("stream #{n}"),
        };
        if !self.named.contains(&(device, u64::MAX)) {
            let whom = if device == 0 {
                "plugin".into()
            } else {
                format!("device #{device}")
            };
            self.event(
                &json!({"ph": "M", "pid": device, "name": "process_name", "args": {"name": whom}}),
            )?;
            self.named.insert((device, u64::MAX));
        }
        if !self.named.contains(&(device, lane)) {
            self.event(&json!({"ph": "M", "pid": device, "tid": lane, "name": "thread_name", "args": {"name": name}}))?;
            self.named.insert((device, lane));
        }
        Ok(())
    }
}

impl Layer for Trace {
    fn name(&self) -> &'static str {
        "trace"
    }

    fn around(&self, call: &Call<'_>, next: &mut dyn FnMut() -> Status) -> Result<Status> {
        let from = self.origin.elapsed();
        let s = next();
        let took = self.origin.elapsed() - from;
        let mut st = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match call {
            Call::DeviceOpen { .. } if s == crossweave_abi::OK => st.devices += 1,
            Call::DeviceClose { .. } => st.devices = st.devices.saturating_sub(1),
            _ => {}
        }
        if st.broken {
            return Ok(s);
        }
        let device = call.device();
        let lane = match call {
            Call::StreamSync { stream, .. } | Call::StreamQuery { stream } => stream.id(),
            _ => call.stream().map_or(0, |s| s.id()),
        };
        let mut args = json!({"slot": call.slot()});
        if call.bytes() > 0 {
            args["bytes"] = json!(call.bytes());
        }
        if s != crossweave_abi::OK {
            args["status"] = json!(s);
        }
        if let Call::Collective { comm, members, .. } = call {
            args["group"] = json!(comm.describe());
            args["members"] = json!(members.len());
        }
        let event = json!({
            "ph": "X", "name": call.subject().unwrap_or(call.slot()), "cat": call.slot(), "pid": device, "tid": lane,
            "ts": from.as_nanos() as f64 / 1e3, "dur": took.as_nanos() as f64 / 1e3, "args": args,
        });
        if st.calls >= MOST {
            st.dropped += 1;
        } else {
            let written = st.lane(device, lane).and_then(|()| st.event(&event));
            st.calls += 1;
            st.broken |= written.is_err();
        }
        // No device is left: the file is whole, whatever comes.
        if st.devices == 0 {
            st.broken |= st.close().is_err();
        }
        Ok(s)
    }
}
