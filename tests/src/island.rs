//! A network of a test's own, so that bridges, addresses and rules of the driver never touch the machine's.
//!
//! Two namespaces and a cable between them: the node, in which the test's thread is and everything that it starts from then on, and
//! a machine outside. The outside knows no way to the node's containers, only to the node.

use std::{
    fs::File,
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::{
    must::{Must, patient, seconds},
    task::uuid,
};

/// See the module's head.
#[derive(Debug)]
pub struct Island {
    node: String,
    outside: String,
    home: File,
}

impl Island {
    /// The node's address.
    pub const NODE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    /// The address of the machine outside.
    pub const OUTSIDE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
    /// The node's IPv6 address.
    pub const NODE_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));
    const OUTSIDE_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2));

    /// Makes both and moves the calling thread into the node. Before anything else in a test: threads and processes that are there
    /// already stay where they are.
    pub fn enter() -> Self {
        let number = &uuid()[..8];
        let island = Self {
            node: format!("oci-rs-node-{number}"),
            outside: format!("oci-rs-out-{number}"),
            home: File::open("/proc/thread-self/ns/net").must("this thread's network"),
        };
        for name in [&island.node, &island.outside] {
            ip(&["netns", "add", name]);
            ip(&["-n", name, "link", "set", "lo", "up"]);
        }
        let (node, outside) = (island.node.as_str(), island.outside.as_str());
        ip(&["link", "add", "wire0", "netns", node, "type", "veth", "peer", "name", "wire0", "netns", outside]);
        for (name, v4, v6) in [(node, Self::NODE, Self::NODE_V6), (outside, Self::OUTSIDE, Self::OUTSIDE_V6)] {
            ip(&["-n", name, "address", "add", &format!("{v4}/24"), "dev", "wire0"]);
            ip(&["-n", name, "address", "add", &format!("{v6}/64"), "dev", "wire0", "nodad"]);
            ip(&["-n", name, "link", "set", "wire0", "up"]);
        }
        enter(&path_of(node));
        island
    }

    /// Does something on the machine outside.
    pub fn outside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        inside(&path_of(&self.outside), work)
    }

    /// What is left in the node of containers' networks: their ends of cables, and rules that speak of a single container.
    pub fn left(&self) -> Vec<String> {
        let links = run("ip", &["-n", &self.node, "-brief", "link"]);
        let links = links.lines().filter(|line| line.starts_with("veth")).map(|line| format!("interface {line}"));
        let mut left: Vec<String> = links.collect();
        for program in ["iptables-save", "ip6tables-save"] {
            let rules = run("ip", &["netns", "exec", &self.node, program]);
            left.extend(rules.lines().filter(|line| of_a_container(line)).map(|line| format!("{program}: {line}")));
        }
        left
    }
}

/// Rules for one container name its address or a chain of its own, which CNI calls by a hash.
fn of_a_container(rule: &str) -> bool {
    let hashed = |word: &str| {
        let name = word.trim_start_matches(':');
        let hash = name.strip_prefix("CNI-DN-").or_else(|| name.strip_prefix("CNI-"));
        hash.is_some_and(|hash| hash.len() > 15 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    rule.split(' ').any(|word| hashed(word) || word.ends_with("/32") || word.ends_with("/128"))
}

impl Drop for Island {
    fn drop(&mut self) {
        // The thread may go on with another test.
        move_into_link_name_space(self.home.as_fd(), Some(LinkNameSpaceType::Network)).ok();
        for name in [&self.node, &self.outside] {
            Command::new("ip").args(["netns", "delete", name]).status().ok();
        }
    }
}

fn path_of(name: &str) -> PathBuf {
    Path::new("/run/netns").join(name)
}

fn enter(namespace: &Path) {
    let file = File::open(namespace).must(&format!("open {}", namespace.display()));
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).must("enter a network namespace");
}

/// The directory with CNI plugins: `CNI_PATH`, or where Debian has them.
pub fn cni_path() -> String {
    std::env::var("CNI_PATH").unwrap_or_else(|_| "/usr/lib/cni".to_owned())
}

/// Does something in a network namespace. Sockets that are made there stay there.
pub fn inside<T: Send>(namespace: &Path, work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let done = scope.spawn(|| {
            enter(namespace);
            work()
        });
        done.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The network namespace of a process.
pub fn network_of(pid: i32) -> PathBuf {
    format!("/proc/{pid}/ns/net").into()
}

/// Connects, says something, and returns what is said until the other side hangs up.
pub fn talk(address: SocketAddr, words: &str) -> std::io::Result<String> {
    let limit = patient(seconds(5));
    let mut stream = TcpStream::connect_timeout(&address, limit)?;
    stream.set_read_timeout(Some(limit))?;
    stream.write_all(words.as_bytes())?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn ip(args: &[&str]) {
    run("ip", args);
}

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().must(program);
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[cfg(test)]
mod tests {
    use super::of_a_container;

    #[test]
    fn what_stays_for_all_is_no_trace_of_one() {
        for rule in [
            ":CNI-HOSTPORT-DNAT - [0:0]",
            ":CNI-FORWARD - [0:0]",
            "-A OCI-RS-ADMIN -d 172.26.80.0/20 -o oci-rs -j ACCEPT",
            "-A FORWARD -m comment --comment \"CNI firewall plugin rules\" -j CNI-FORWARD",
            "-A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE",
        ] {
            assert!(!of_a_container(rule), "{rule}");
        }
        for rule in [
            ":CNI-929c4a8dfb7353e5be64b206 - [0:0]",
            ":CNI-DN-929c4a8dfb7353e5be64b - [0:0]",
            "-A CNI-FORWARD -s 172.26.80.77/32 -j ACCEPT",
            "-A CNI-FORWARD -s fd00::2/128 -j ACCEPT",
        ] {
            assert!(of_a_container(rule), "{rule}");
        }
    }
}
