//! What a communicator needs for sums whose algorithm somebody chose: that all its members chose the same, and a communicator of the library's own.

use crate::library::{Group, Mpi};
use crossweave_hosts::{Algorithm, Choice, KEY};
use crossweave_plugin::{Code, Error, GroupRank, Host, Members, Result, fail};
use std::sync::Arc;
use std::time::Duration;

/// What a job has chosen for the sums of a group of that name.
pub(crate) fn chosen(host: &Host, name: &str) -> Result<Choice> {
    let text = host.config(KEY).unwrap_or_default();
    match text.parse::<Choice>() {
        Ok(choice) => Ok(choice.of_group(name)),
        Err(why) => fail(Code::Invalid, format!("{KEY} = {text:?}: {why}")),
    }
}

/// The algorithms of a communicator's sums, and the library's own communicator where they go by that.
#[derive(Default)]
pub(crate) struct By {
    pub(crate) choice: Choice,
    pub(crate) group: Option<Group>,
}

impl By {
    /// Ends the library's communicator, on which nothing is under way.
    pub(crate) fn free(&self, mpi: &dyn Mpi) {
        if let (Some(group), Ok(native)) = (self.group, mpi.native()) {
            native.free(group);
        }
    }
}

/// A communicator that is to be made of processes that all are about to make it.
pub(crate) struct Making<'a> {
    mpi: &'a Arc<dyn Mpi>,
    host: &'a Host,
    name: &'a str,
    prefix: &'a str,
    members: &'a Members,
    timeout: Duration,
}

impl<'a> Making<'a> {
    /// A communicator of that name, whose keys in the host's store have a prefix.
    pub(crate) fn new(
        mpi: &'a Arc<dyn Mpi>,
        host: &'a Host,
        (name, prefix): (&'a str, &'a str),
        members: &'a Members,
        timeout: Duration,
    ) -> Making<'a> {
        Making {
            mpi,
            host,
            name,
            prefix,
            members,
            timeout,
        }
    }

    /// What its sums go by. `numbers`: every member's, of [`Choice::number`]; `at`: their processes.
    pub(crate) fn by(&self, choice: Choice, numbers: &[u32], at: &[u32]) -> Result<By> {
        self.agree(numbers)?;
        let group = self.group(&choice, at)?;
        Ok(By { choice, group })
    }

    /// Every member sums by the same algorithms as the first: `numbers` are those of [`Choice::number`].
    fn agree(&self, numbers: &[u32]) -> Result<()> {
        let differs = numbers.iter().position(|n| *n != numbers[0]);
        let Some(odd) = differs else {
            return Ok(());
        };
        let words = |number: u32| match Choice::of_number(number) {
            Some(choice) => choice.to_string(),
            None => "algorithms of another version".into(),
        };
        let [first, other] = [0, odd].map(|r| self.members.of(GroupRank(r as u32)));
        let why = format!(
            "communicator {}: {other} sums by {}, {first} by {}; give every rank the same algorithms",
            self.name,
            words(numbers[odd]),
            words(numbers[0])
        );
        Err(Error::new(Code::Invalid, why).peer(GroupRank(odd as u32)))
    }

    /// The library's own communicator of processes, where sums go by it.
    fn group(&self, choice: &Choice, at: &[u32]) -> Result<Option<Group>> {
        if !choice.has(Algorithm::Native) || at.len() == 1 {
            return Ok(None);
        }
        let wrong = |e: Error| {
            let why = format!(
                "communicator {}: sums by native ({choice}): {}; choose ordered or auto",
                self.name, e.message
            );
            Error::new(e.code, why)
        };
        let mut sorted = at.to_vec();
        sorted.sort_unstable();
        if sorted.windows(2).any(|w| w[0] == w[1]) {
            let e = Error::new(
                Code::Unsupported,
                "several of its ranks are threads of one process, and MPI counts a process once",
            );
            return Err(wrong(e));
        }
        self.mpi.native().map_err(wrong)?;
        // The library waits without a limit, so a thread does it that may be left behind.
        let (tell, told) = std::sync::mpsc::channel();
        let (mpi, at) = (self.mpi.clone(), at.to_vec());
        // One that all members share, and communicators that are made at the same time hardly do.
        let step = |h: u32, b: u8| h.wrapping_mul(31).wrapping_add(u32::from(b));
        let tag = (self.prefix.bytes().fold(0, step) & 0x7fff) as i32;
        self.host.spawn(Box::new(move || {
            let made = mpi.native().and_then(|native| native.group(&at, tag));
            let _ = tell.send(made);
        }))?;
        match told.recv_timeout(self.timeout) {
            Ok(made) => made.map(Some).map_err(wrong),
            Err(_) => fail(
                Code::Timeout,
                format!(
                    "communicator {}: MPI has not connected its ranks within {:?}",
                    self.name, self.timeout
                ),
            ),
        }
    }
}
