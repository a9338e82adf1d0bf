//! What hosts of a job must have in common, a network and a folder. `run.interface`: jobs over imitated hosts which, beside the network that they share, each have one of their own that is called alike and has
//! the same address everywhere, as those of containers do.

use crate::common;
use crate::hosts::{HUNG, Hosts, args, sets};
use common::Scratch;
use common::mpi::{families, plugin};
use crossweave_tests::system::within;
use std::process::Output;

/// Two hosts with a network of their own each.
fn hosts() -> Option<Hosts> {
    let hosts = Hosts::up(2, &[])?;
    for host in ["1", "2"] {
        let ip = |words: &str| {
            let words: Vec<&str> = words.split(' ').collect();
            let all = [&["run", host, "ip"][..], &words].concat();
            hosts.call(&all, &[]).expect("a network");
        };
        ip("link add inner0 type bridge");
        ip("addr add 172.29.0.1/16 dev inner0");
        ip("link set inner0 up");
    }
    Some(hosts)
}

/// Trains two steps with a process on each host. `alone`: no variable names MPI's network.
fn trained(hosts: &Hosts, family: &str, interface: &str, alone: bool) -> (Output, String) {
    let s = Scratch::of_hosts();
    let interface = format!("run.interface={interface}");
    let sizes = sets(&["run.comm_timeout_s=900", &interface]);
    let mut c = hosts.job(&s, family, 1, &args(&sizes, 2));
    if alone {
        for variable in ["OMPI_MCA_btl_tcp_if_include", "UCX_NET_DEVICES"] {
            c.env_remove(variable);
        }
    }
    let o = within(HUNG, &mut c);
    let out = String::from_utf8_lossy(&o.stdout).into_owned();
    let said = format!("{out}{}", String::from_utf8_lossy(&o.stderr));
    (o, said)
}

#[test]
fn processes_meet_on_the_interface_that_is_named() {
    plugin();
    for (family, word) in families()
        .into_iter()
        .zip([r#""eth0""#, r#"["ens9", "10.77.0.0/24"]"#])
    {
        let Some(hosts) = hosts() else {
            return;
        };
        let (o, said) = trained(&hosts, family, word, true);
        assert!(o.status.success(), "{family}, {word}: {said}");
        assert!(said.contains("2 of 2"), "{family}, {word}: {said}");
    }
}

/// An interface that a host does not have, or that leads nowhere, is said with its key, and nobody waits for the others for ever.
#[test]
fn an_interface_that_is_not_there_is_named() {
    plugin();
    let Some((family, hosts)) = families().into_iter().next().zip(hosts()) else {
        return;
    };
    let unknown = r#"run.interface: "ib0" on host h1: is no interface of it that is up"#;
    // MPI's own variables name another, and stay.
    let nowhere = r#"run.interface "inner0" (inner0)"#;
    for (word, parts) in [
        (
            r#""ib0""#,
            [unknown, "eth0 10.77.0.1", "without run.interface"],
        ),
        (
            r#""inner0""#,
            [nowhere, "cannot reach rank 0", "172.29.0.1:"],
        ),
    ] {
        let (o, said) = trained(&hosts, family, word, false);
        assert!(!o.status.success(), "{word}: {said}");
        for part in parts {
            assert!(said.contains(part), "{word}: {part:?} is not in {said}");
        }
    }
    // One that only some hosts have.
    for words in [
        "link add ib0 type bridge",
        "addr add 10.88.0.1/24 dev ib0",
        "link set ib0 up",
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        hosts
            .call(&[&["run", "1", "ip"][..], &words].concat(), &[])
            .expect("a network");
    }
    let (o, said) = trained(&hosts, family, r#""ib0""#, false);
    let other = unknown.replace("h1", "h2");
    assert!(!o.status.success() && said.contains(&other), "{said}");
}

/// An output folder that a host does not share is named before the first step: each imitated host has a `/dev/shm` of its own.
#[test]
fn a_host_without_the_shared_folder_is_named() {
    plugin();
    let Some((family, hosts)) = families().into_iter().next().zip(Hosts::up(2, &[])) else {
        return;
    };
    let s = Scratch::of_hosts();
    let mut args = args(&sets(&["run.comm_timeout_s=900"]), 2);
    let out = args.iter().position(|a| a == "out").expect("a folder");
    args[out] = "/dev/shm/out".into();
    let o = within(HUNG, &mut hosts.job(&s, family, 2, &args));
    let said = String::from_utf8_lossy(&o.stderr).into_owned();
    assert!(!o.status.success(), "{said}");
    let named =
        "--out /dev/shm/out: what rank 0 on h1 has written there is not seen on h2 (rank 2)";
    assert!(said.contains(named), "{said}");
    assert_eq!(said.matches("error: ").count(), 1, "{said}");
}
