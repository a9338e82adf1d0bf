//! Which host a process runs on, and by which interfaces and addresses others reach it.

use std::ffi::CStr;
use std::net::IpAddr;
use std::path::Path;

/// A host of the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName {
    /// As people call it.
    pub name: String,
    /// What distinguishes it from the others, also from one of the same name.
    pub identity: String,
}

impl HostName {
    /// A host that is known by its name alone.
    pub fn named(name: &str) -> HostName {
        HostName {
            name: name.into(),
            identity: name.into(),
        }
    }

    /// The host of this process. Two processes are on one host where they have the same name, boot, machine, network and numbers of processes,
    /// and the same folder `shared` for memory in common: containers that share only some of these are hosts of their own.
    pub fn here(shared: &Path) -> HostName {
        let read = |path: &str| {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            text.trim().to_string()
        };
        let space = |kind: &str| {
            let link = std::fs::read_link(format!("/proc/self/ns/{kind}"));
            link.map_or(String::new(), |l| l.display().to_string())
        };
        let name = read("/proc/sys/kernel/hostname");
        let parts = [
            name.clone(),
            read("/proc/sys/kernel/random/boot_id"),
            read("/etc/machine-id"),
            space("net"),
            space("pid"),
            folder(shared),
        ];
        HostName {
            name,
            identity: parts.join(" "),
        }
    }
}

/// What distinguishes a folder from others of its name, on other file systems.
fn folder(path: &Path) -> String {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let seen = std::fs::metadata(path);
        seen.map_or(String::new(), |m| format!("{}:{}", m.dev(), m.ino()))
    }
    #[cfg(not(unix))]
    {
        path.display().to_string()
    }
}

/// The addresses of this host under which others may reach it, those of IPv4 first. Without its own loopback, and without addresses that mean
/// something on one link only.
pub fn addresses() -> Vec<IpAddr> {
    let mut all: Vec<IpAddr> = vec![];
    for (_, a) in interfaces() {
        if useful(&a) && !all.contains(&a) {
            all.push(a);
        }
    }
    all.sort_by_key(IpAddr::is_ipv6);
    all
}

/// The network interfaces of this host that are up, by name, each as often as it has addresses.
pub fn interfaces() -> Vec<(String, IpAddr)> {
    let mut first = std::ptr::null_mut();
    // SAFETY: the list is written to `first`, and given back below.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return vec![];
    }
    let mut all = vec![];
    let mut next = first;
    while !next.is_null() {
        // SAFETY: an entry of the list, which lives until it is freed.
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        let up = entry.ifa_flags & libc::IFF_UP as u32 != 0;
        // SAFETY: an address is there or NULL; its family says how long it is.
        let found = unsafe { address(entry.ifa_addr) };
        if let Some(a) = found.filter(|_| up) {
            // SAFETY: an entry of the list has a name, which ends with 0.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) };
            all.push((name.to_string_lossy().into_owned(), a));
        }
    }
    // SAFETY: from `getifaddrs`, freed once.
    unsafe { libc::freeifaddrs(first) };
    all
}

/// # Safety
/// NULL, or a socket address as long as its family says.
unsafe fn address(at: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: promised by the caller.
    let family = i32::from(unsafe { at.as_ref() }?.sa_family);
    match family {
        libc::AF_INET => {
            // SAFETY: as above.
            let a = unsafe { at.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(IpAddr::from(a.sin_addr.s_addr.to_ne_bytes()))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let a = unsafe { at.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(IpAddr::from(a.sin6_addr.s6_addr))
        }
        _ => None,
    }
}

fn useful(a: &IpAddr) -> bool {
    let link = match a {
        IpAddr::V4(a) => a.is_link_local(),
        IpAddr::V6(a) => a.segments()[0] & 0xffc0 == 0xfe80,
    };
    !a.is_loopback() && !a.is_unspecified() && !a.is_multicast() && !link
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_told_from_one_of_the_same_name_by_the_folder_of_its_memory() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [a, b] = dirs.each_ref().map(|d| HostName::here(d.path()));
        assert_eq!(a, HostName::here(dirs[0].path()));
        assert_eq!(a.name, b.name);
        assert_ne!(a, b);
    }

    #[test]
    fn addresses_that_others_cannot_use_are_left_out() {
        for (text, of_use) in [
            ("127.0.0.1", false),
            ("169.254.3.4", false),
            ("fe80::1", false),
            ("::1", false),
            ("10.77.0.1", true),
            ("2001:db8::1", true),
        ] {
            assert_eq!(useful(&text.parse().unwrap()), of_use, "{text}");
        }
        assert!(addresses().iter().all(useful));
    }
}
