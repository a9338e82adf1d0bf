//! What a plugin has, asked in a process of its own, which a broken driver may take down.

use crate::surroundings::Surroundings;
use serde_json::Value;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a found plugin may take to say what it has.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a found plugin says when it is opened in a process of its own.
///
/// # Errors
/// Why it cannot be used here.
pub fn probed(path: &Path, around: &Surroundings) -> std::result::Result<Value, String> {
    let io = |e: std::io::Error| format!("it could not be asked: {e}");
    let Some(program) = &around.program else {
        return Err("it could not be asked: the file of this program is not known".into());
    };
    let mut child = Command::new(program)
        .args(["backends", "--probe"])
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(io)?;
    // Read while it speaks: a driver may say more than a pipe holds.
    let threads = drained(child.stderr.take()).and_then(|s| Ok((s, drained(child.stdout.take())?)));
    let (said, answer) = threads.map_err(|e| {
        let _ = child.kill();
        let _ = child.wait();
        format!("it could not be asked: cannot start a thread: {e}")
    })?;
    let start = Instant::now();
    while child.try_wait().map_err(io)?.is_none() {
        if start.elapsed() > PATIENCE {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!(
                "it has not answered within {} s",
                PATIENCE.as_secs()
            ));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let status = child.wait().map_err(io)?;
    let end = |t: JoinHandle<Vec<u8>>| t.join().unwrap_or_default();
    let (answer, said) = (end(answer), end(said));
    let said = String::from_utf8_lossy(&said);
    match serde_json::from_slice(&answer) {
        Ok(own) if status.success() => Ok(own),
        _ => Err(match said.lines().last().map(str::trim) {
            Some(line) if !line.is_empty() => {
                line.strip_prefix("error: ").unwrap_or(line).to_string()
            }
            _ => format!("opening it ended with {status}"),
        }),
    }
}

/// Everything that comes out of a pipe, read on a thread of its own.
fn drained(pipe: Option<impl Read + Send + 'static>) -> std::io::Result<JoinHandle<Vec<u8>>> {
    std::thread::Builder::new().spawn(move || {
        let mut all = vec![];
        if let Some(mut pipe) = pipe {
            // What was read before an error is what there is to tell.
            let _ = pipe.read_to_end(&mut all);
        }
        all
    })
}
