//! What tests ask of the system by a call, so that no program has to be installed for it: signals, named pipes, and an end to a program that
//! hangs.
#![cfg(unix)]

pub use nix::sys::signal::Signal;
use nix::sys::{signal, stat::Mode};
use nix::unistd::{Pid, mkfifo};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Runs a program that may hang: it is killed when `limit` is over.
///
/// # Panics
/// Where it cannot be started or does not end by itself.
pub fn within(limit: Duration, command: &mut Command) -> Output {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped());
    let child = child.stderr(Stdio::piped()).spawn();
    let child = child.unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let pid = child.id();
    let (end, ended) = channel::<()>();
    let watch = std::thread::spawn(move || {
        let late = ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
        late && send_if_there(Signal::SIGKILL, pid)
    });
    let out = child.wait_with_output().expect("its output");
    drop(end);
    let killed = watch.join().expect("the watch ends");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(!killed, "{command:?} hangs after {limit:?}: {said}");
    out
}

/// Sends `signal` to process `pid`.
///
/// # Panics
/// Where there is no such process, or it is another user's.
pub fn send(signal: Signal, pid: u32) {
    let sent = send_if_there(signal, pid);
    assert!(sent, "{signal} cannot be sent to process {pid}");
}

/// Sends `signal` to process `pid`, which may have ended meanwhile; was it sent?
pub fn send_if_there(signal: Signal, pid: u32) -> bool {
    // 0 and negative numbers are groups of processes, this one's among them.
    let pid = i32::try_from(pid).ok().filter(|pid| *pid > 0);
    pid.is_some_and(|pid| signal::kill(Pid::from_raw(pid), signal).is_ok())
}

/// Sends `signal` to this process.
pub fn send_to_self(signal: Signal) {
    send(signal, std::process::id());
}

/// Makes a named pipe.
///
/// # Panics
/// Where it cannot be made.
pub fn pipe(path: &Path) {
    let made = mkfifo(path, Mode::S_IRUSR | Mode::S_IWUSR);
    made.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::time::Instant;

    /// This program as a child that waits for an input.
    fn waiting() -> Command {
        let mut me = Command::new(std::env::current_exe().unwrap());
        me.args(["system::tests::reader", "--exact", "--ignored"]);
        me
    }

    #[test]
    fn a_program_that_hangs_is_killed_and_another_is_not() {
        let out = within(Duration::from_secs(600), &mut waiting());
        assert!(out.status.success());
        let me = std::env::current_exe().unwrap();
        let began = Instant::now();
        let hung = std::panic::catch_unwind(|| {
            let mut hangs = Command::new(me);
            hangs.args(["system::tests::sleeper", "--exact", "--ignored"]);
            within(Duration::from_millis(300), &mut hangs)
        });
        let said = hung.unwrap_err();
        let said = said.downcast_ref::<String>().unwrap();
        assert!(said.contains("sleeper") && said.contains("hangs"), "{said}");
        assert!(began.elapsed() >= Duration::from_millis(300));
    }

    #[test]
    #[ignore = "the child of the test above"]
    fn sleeper() {
        std::thread::sleep(Duration::from_secs(3600));
    }

    #[test]
    fn a_signal_ends_a_child_and_one_that_has_ended_gets_none() {
        // Its input never comes.
        let mut child = waiting().stdin(Stdio::piped()).spawn().unwrap();
        send(Signal::SIGTERM, child.id());
        assert_eq!(child.wait().unwrap().signal(), Some(15));
        assert!(!send_if_there(Signal::SIGTERM, child.id()));
        assert!(!send_if_there(Signal::SIGCONT, 0));
    }

    #[test]
    #[ignore = "the child of the tests above"]
    fn reader() {
        std::io::read_to_string(std::io::stdin()).unwrap();
    }
}
