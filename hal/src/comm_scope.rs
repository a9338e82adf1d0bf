//! How the members of a communicator are found and named: its scope, by which all of them and nobody else call it, and which ranks of the
//! job they are.

use crate::call::check;
use crate::device::Device;
use crate::error::Result;
use crate::host::HostServices;
use crossweave_abi as abi;
use crossweave_plugin::{JobRank, Members};

/// A group of ranks, as all its members and no other group of the job call it.
#[derive(Clone, Debug)]
pub struct Scope<'a> {
    /// Its name.
    pub name: &'a str,
    /// Which ranks of the job its members are. By default the group is a job of its own.
    pub members: Members,
}

impl<'a> Scope<'a> {
    /// A group of these ranks of the job, by group rank.
    pub fn new(name: &'a str, ranks: &[u32]) -> Scope<'a> {
        Scope {
            name,
            members: Members::new(ranks.iter().copied().map(JobRank)),
        }
    }

    /// The prefix of the keys that its members exchange.
    pub(crate) fn prefix(&self) -> String {
        format!("comm/{}/", self.name)
    }

    /// Lets a plugin of `host` read who the members are: its messages then name ranks of the job.
    pub(crate) fn tell(&self, host: &HostServices) {
        host.set_config(Members::key(&self.prefix()), self.members.text());
    }
}

impl<'a> From<&'a String> for Scope<'a> {
    fn from(name: &'a String) -> Scope<'a> {
        Scope::from(&**name)
    }
}

impl<'a> From<&'a str> for Scope<'a> {
    fn from(name: &'a str) -> Scope<'a> {
        Scope {
            name,
            members: Members::default(),
        }
    }
}

/// A fresh id of a communicator, by the plugin that makes it.
pub(crate) fn unique_id(device: &Device, api: &abi::CollectiveApi) -> Result<Vec<u8>> {
    let mut len = 0u64;
    // SAFETY: cap 0 asks for the length; then the buffer has that length.
    check("unique_id", |e| unsafe {
        call!(api, unique_id)(device.0.handle.0, std::ptr::null_mut(), 0, &mut len, e)
    })?;
    let mut id = vec![0u8; len as usize];
    // SAFETY: as above.
    check("unique_id", |e| unsafe {
        call!(api, unique_id)(
            device.0.handle.0,
            id.as_mut_ptr().cast(),
            id.len() as u64,
            &mut len,
            e,
        )
    })?;
    id.truncate(len as usize);
    Ok(id)
}

/// What all members of a group, and nobody else, call it.
pub(crate) fn watch_key(id: &[u8], scope: &str, size: u32) -> u64 {
    let bytes = id.iter().chain(scope.as_bytes());
    let h = bytes.fold(0xcbf2_9ce4_8422_2325 ^ u64::from(size), |h: u64, b| {
        (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3)
    });
    h | 1
}
