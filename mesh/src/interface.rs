//! The interface by which the processes of a job reach one another, as `run.interface` names it: a name, an address, or a network of which the
//! host has one. Each process looks on its own host, where the same network may have another name.

use std::fmt;
use std::net::IpAddr;

/// The key, in errors.
const KEY: &str = "run.interface";

/// What was asked for, and what this host has of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// As the config writes it.
    asked: String,
    /// The names on this host.
    pub names: Vec<String>,
    /// The addresses that others can use, those of IPv4 first.
    pub addresses: Vec<IpAddr>,
}

/// A host that has nothing of what was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceError {
    /// What is wrong, with the key and what the host has.
    pub what: String,
    /// What would be right.
    pub fix: String,
}

impl Interface {
    /// Looks for interfaces among `all` of the host of that name: those of which one of the words `asked` is the name, an address, or a network
    /// (`10.77.0.0/24`).
    ///
    /// # Errors
    /// No word is any of these here, or none of them has an address that means something on other hosts.
    pub fn find(
        asked: &[String],
        host: &str,
        all: &[(String, IpAddr)],
    ) -> Result<Interface, InterfaceError> {
        let hit = |(name, address): &&(String, IpAddr)| {
            asked.iter().any(|w| w == name || covers(w, *address))
        };
        let (mut names, mut addresses): (Vec<String>, Vec<IpAddr>) = (vec![], vec![]);
        for (name, address) in all.iter().filter(hit) {
            if !names.contains(name) {
                names.push(name.clone());
            }
            // One that needs a scope means another host's on every link.
            let link = matches!(address, IpAddr::V6(a) if a.segments()[0] & 0xffc0 == 0xfe80);
            if !link {
                addresses.push(*address);
            }
        }
        addresses.sort_by_key(IpAddr::is_ipv6);
        let asked = asked.join(", ");
        let why = match names.is_empty() {
            true => "is no interface of it that is up, and no address or network of one",
            false => "has no address there that other hosts can use",
        };
        if addresses.is_empty() {
            let has: Vec<String> = all.iter().map(|(n, a)| format!("{n} {a}")).collect();
            let has = if has.is_empty() {
                "none".into()
            } else {
                has.join(", ")
            };
            return Err(InterfaceError {
                what: format!("{KEY}: {asked:?} on host {host}: {why}; it has {has}"),
                fix: format!(
                    "name an interface, an address or a network (10.77.0.0/24) that every host has; a list names several; without {KEY} all addresses are tried"
                ),
            });
        }
        Ok(Interface {
            asked,
            names,
            addresses,
        })
    }
}

impl fmt::Display for Interface {
    /// The key with its value, and what it is here.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (asked, names) = (&self.asked, self.names.join(", "));
        write!(f, "{KEY} {asked:?} ({names})")
    }
}

/// Is `word` this address, or a network that it is in?
fn covers(word: &str, address: IpAddr) -> bool {
    let Some((network, bits)) = word.split_once('/') else {
        return word.parse() == Ok(address);
    };
    let number = |a: IpAddr| match a {
        IpAddr::V4(a) => (u128::from(u32::from(a)), 32),
        IpAddr::V6(a) => (u128::from(a), 128),
    };
    let (Ok(network), Ok(bits)) = (network.parse::<IpAddr>(), bits.parse::<u32>()) else {
        return false;
    };
    let ((network, of), (address, wide)) = (number(network), number(address));
    let rest = u32::checked_sub(of, bits);
    of == wide && rest.is_some_and(|rest| (network ^ address).checked_shr(rest).unwrap_or(0) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> Vec<(String, IpAddr)> {
        let all = [
            ("lo", "127.0.0.1"),
            ("eth0", "fe80::1"),
            ("eth0", "2001:db8::7"),
            ("eth0", "10.77.0.1"),
            ("docker0", "172.17.0.1"),
            ("ib0", "fe80::2"),
        ];
        let one = |(name, address): (&str, &str)| (name.into(), address.parse().unwrap());
        all.into_iter().map(one).collect()
    }

    fn find(words: &[&str]) -> Result<Interface, InterfaceError> {
        let words: Vec<String> = words.iter().map(|w| w.to_string()).collect();
        Interface::find(&words, "h1", &here())
    }

    #[test]
    fn an_interface_is_found_by_name_address_and_network() {
        let both: Vec<IpAddr> = ["10.77.0.1", "2001:db8::7"]
            .map(|a| a.parse().unwrap())
            .into();
        let by_name = find(&["eth0"]).unwrap();
        assert_eq!(
            (&by_name.names[..], &by_name.addresses),
            (&["eth0".to_string()][..], &both)
        );
        assert_eq!(by_name.to_string(), "run.interface \"eth0\" (eth0)");
        for (word, address) in [
            ("10.77.0.1", both[0]),
            ("10.77.0.0/24", both[0]),
            ("10.0.0.0/8", both[0]),
            ("2001:db8::/32", both[1]),
            ("2001:db8::7", both[1]),
        ] {
            let found = find(&[word]).unwrap();
            assert_eq!(
                (&*found.names[0], &found.addresses[..]),
                ("eth0", &[address][..]),
                "{word}"
            );
        }
        assert_eq!(
            find(&["0.0.0.0/0"]).unwrap().names,
            ["lo", "eth0", "docker0"]
        );
        // The words of other hosts do no harm.
        assert_eq!(find(&["ens3", "eth0"]).unwrap().addresses, both);
    }

    #[test]
    fn what_a_host_does_not_have_is_said_with_key_host_and_what_it_has() {
        for word in [
            "eth9",
            "eth",
            "10.77.1.0/24",
            "10.77.0.2",
            "10.77.0.0/40",
            "10.77.0.0/x",
            "h2",
            "::/129",
        ] {
            let e = find(&[word]).unwrap_err();
            for part in [
                "run.interface: ",
                word,
                "host h1",
                "is no interface of it",
                "eth0 10.77.0.1",
            ] {
                assert!(e.what.contains(part), "{part}: {}", e.what);
            }
        }
        let e = find(&["ib0"]).unwrap_err();
        assert!(
            e.what.contains("no address there that other hosts can use"),
            "{}",
            e.what
        );
    }
}
