//! Routers: homes behind masquerading routers, and hosts that everybody can dial.
//!
//! ```text
//!   home 0    home 1                home 0
//! 192.168.1.10   .11             192.168.2.10
//!       |         |                   |
//!      router 0: 203.0.113.1        router 1: .2       host 0: .10    host 1: .11
//!      ------------+-------------------+------------------+--------------+---------   the rest of the world
//! ```
//! A router lets out everything and lets in what answers it. It writes its own address over those of its homes; the port it keeps
//! where nobody else has it, as most do, or draws another one for each connection.

use std::process::Command;

use super::world::{Namespace, try_out};

/// Hosts, and homes behind routers. Dropping it takes them away.
pub(crate) struct Outside {
    _bridge: Namespace,
    hosts: Vec<Namespace>,
    routers: Vec<Router>,
}

struct Router {
    namespace: Namespace,
    homes: Vec<Namespace>,
}

/// What a router makes of ports.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ports {
    /// It keeps them: who knows one knows where an answer to anybody comes in.
    Kept,
    /// It draws one for each connection.
    Drawn,
}

impl Outside {
    /// So many hosts, and so many homes behind each router; `None`, and the reason printed, where the system does not let us.
    pub(crate) fn of(host_count: usize, ports: Ports, homes: &[usize]) -> Option<Self> {
        let has_nft =
            Command::new("nft").arg("--version").output().is_ok_and(|output| output.status.success());
        let trouble = try_out().err().or((!has_nft).then(|| "there is no nft".to_owned()));
        if let Some(reason) = trouble {
            println!("skipped: routers need root, `unshare`, `nsenter`, `ip`, `bash` and `nft`: {reason}");
            return None;
        }
        let bridge = Namespace::hold();
        bridge.ip("link add name pgbridge type bridge\nlink set dev pgbridge up\n");
        let mut outside = Self { _bridge: bridge, hosts: Vec::new(), routers: Vec::new() };
        for index in 0..host_count {
            let host = Namespace::hold();
            outside.plug_in(&host, &format!("pghost{index}"), &format!("203.0.113.{}", 10 + index));
            outside.hosts.push(host);
        }
        for (index, home_count) in homes.iter().enumerate() {
            let router = Router::new(index, ports, *home_count, &outside);
            outside.routers.push(router);
        }
        Some(outside)
    }

    fn plug_in(&self, namespace: &Namespace, port: &str, address: &str) {
        self._bridge.ip(&format!(
            "link add {port} type veth peer name pgwire netns {}\n\
             link set dev {port} master pgbridge\n\
             link set dev {port} up\n",
            namespace.id()
        ));
        namespace.ip(&format!(
            "link set dev lo up\naddress add {address}/24 dev pgwire\nlink set dev pgwire up\n"
        ));
    }

    pub(crate) fn host(&self, index: usize) -> &Namespace {
        &self.hosts[index]
    }

    pub(crate) fn home(&self, router: usize, index: usize) -> &Namespace {
        &self.routers[router].homes[index]
    }

    /// Has a router pass on a port to one of its homes, over TCP and UDP.
    pub(crate) fn forward(&self, router: usize, home: usize, port: u16) {
        let to = format!("192.168.{}.{}", router + 1, 10 + home);
        let rule = |protocol: &str| {
            format!("add rule ip pgnat in iifname pgwire {protocol} dport {port} dnat to {to}:{port}\n")
        };
        self.routers[router].namespace.feed("nft", &["-f", "-"], &(rule("tcp") + &rule("udp")));
    }

    /// Loses what goes over TCP from a router to another one.
    pub(crate) fn keep_out_tcp(&self, from: usize, to: usize) {
        let rule = format!(
            "add rule ip pgguard through oifname pgwire ip daddr 203.0.113.{} meta l4proto tcp drop\n",
            1 + to
        );
        self.routers[from].namespace.feed("nft", &["-f", "-"], &rule);
    }
}

impl Router {
    fn new(index: usize, ports: Ports, home_count: usize, outside: &Outside) -> Self {
        let namespace = Namespace::hold();
        outside.plug_in(&namespace, &format!("pgrouter{index}"), &format!("203.0.113.{}", 1 + index));
        let network = format!("192.168.{}", index + 1);
        namespace.ip(&format!(
            "link add name pghomes type bridge\n\
             address add {network}.1/24 dev pghomes\n\
             link set dev pghomes up\n"
        ));
        let forwarding = "echo 1 >/proc/sys/net/ipv4/ip_forward";
        let status = namespace.command("bash").args(["-c", forwarding]).status();
        assert!(status.is_ok_and(|status| status.success()), "the kernel has that setting");
        let masquerade = match ports {
            Ports::Kept => "masquerade",
            Ports::Drawn => "masquerade fully-random",
        };
        namespace.feed(
            "nft",
            &["-f", "-"],
            &format!(
                "table ip pgnat {{
                    chain in {{ type nat hook prerouting priority -100; }}
                    chain out {{ type nat hook postrouting priority 100; oifname \"pgwire\" {masquerade}; }}
                }}
                table ip pgguard {{
                    chain own {{ type filter hook input priority 0;
                        iifname \"pgwire\" ct state != {{ established, related }} drop; }}
                    chain through {{ type filter hook forward priority 0;
                        iifname \"pgwire\" ct status dnat accept;
                        iifname \"pgwire\" ct state != {{ established, related }} drop; }}
                }}\n"
            ),
        );
        let homes = (0..home_count).map(|home| {
            let inside = Namespace::hold();
            namespace.ip(&format!(
                "link add pghome{home} type veth peer name pgwire netns {}\n\
                 link set dev pghome{home} master pghomes\n\
                 link set dev pghome{home} up\n",
                inside.id()
            ));
            inside.ip(&format!(
                "link set dev lo up\n\
                 address add {network}.{}/24 dev pgwire\n\
                 link set dev pgwire up\n\
                 route add default via {network}.1\n",
                10 + home
            ));
            inside
        });
        let homes = homes.collect();
        Self { namespace, homes }
    }
}
