//! Routers: homes behind masquerading routers, and hosts that all peers can dial.
//!
//! ```text
//!   home 0    home 1                home 0
//! 192.168.1.10   .11             192.168.2.10
//!       |         |                   |
//!      router 0: 203.0.113.1        router 1: .2       host 0: .10    host 1: .11
//!      ------------+-------------------+------------------+--------------+---------   the rest of the world
//! ```
//! A router lets all connections out, and only answers to them in. It replaces the addresses of its homes by its own. It keeps the port if
//! that is free, as most routers do, or chooses another one for each connection. A router that answers to UPnP (a real daemon) also has an
//! address that is not reserved for examples, 45.0.0.1: the daemon would accept no other.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use tempfile::NamedTempFile;

use super::network::{Namespace, try_out};

/// Hosts, and homes behind routers. Dropping it removes them.
pub(crate) struct Outside {
    _bridge: Namespace,
    hosts: Vec<Namespace>,
    routers: Vec<Router>,
}

struct Router {
    namespace: Namespace,
    homes: Vec<Namespace>,
    daemon: Option<(Child, NamedTempFile)>,
}

/// How a router maps ports.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ports {
    /// It keeps them: a peer that knows a port knows where answers to any other peer come in.
    Kept,
    /// It chooses one for each connection.
    Drawn,
}

impl Outside {
    /// `host_count` hosts, and for each router a number of homes; `None`, after the reason was printed, if the system does not allow it.
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

    /// Makes a router forward a port to one of its homes, over TCP and UDP.
    pub(crate) fn forward(&self, router: usize, home: usize, port: u16) {
        let to = format!("192.168.{}.{}", router + 1, 10 + home);
        let rule = |protocol: &str| {
            format!("add rule ip pgnat in iifname pgwire {protocol} dport {port} dnat to {to}:{port}\n")
        };
        self.routers[router].namespace.feed("nft", &["-f", "-"], &(rule("tcp") + &rule("udp")));
    }

    /// Makes a router forward what its homes request by UPnP; `false`, after the reason was printed, if there is no daemon for that.
    pub(crate) fn answer_upnp(&mut self, router: usize) -> bool {
        if Command::new("miniupnpd").arg("--version").output().is_err() {
            println!("skipped: a router that answers to UPnP needs `miniupnpd`, built for nftables");
            return false;
        }
        let outside = format!("45.0.0.{}", 1 + router);
        self.hosts.iter().for_each(|host| host.ip("route add 45.0.0.0/24 dev pgwire\n"));
        self.routers[router].answer_upnp(router, &outside);
        true
    }

    /// What a router forwards because of UPnP, as `nft` prints it.
    pub(crate) fn forwarded(&self, router: usize) -> String {
        let mut command = self.routers[router].namespace.command("nft");
        let output = command.args(["list", "chain", "inet", "pgupnp", "redirected"]).output();
        String::from_utf8(output.expect("it was tried out").stdout).expect("it speaks UTF-8")
    }

    /// Drops all TCP packets from one router to another.
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
        Self { namespace, homes, daemon: None }
    }

    fn answer_upnp(&mut self, index: usize, outside: &str) {
        self.namespace.ip(&format!("address add {outside}/24 dev pgwire\n"));
        self.namespace.feed(
            "nft",
            &["-f", "-"],
            "table inet pgupnp {
                chain forward { type filter hook forward priority -1; jump forwarded; }
                chain forwarded { }
                chain in { type nat hook prerouting priority -100; jump redirected; }
                chain redirected { }
                chain out { type nat hook postrouting priority 101; jump returned; }
                chain returned { }
            }\n",
        );
        let settings = NamedTempFile::new().expect("there is room for a small file");
        let homes = format!("192.168.{}.0/24", index + 1);
        let text = format!(
            "ext_ifname=pgwire\next_ip={outside}\nlistening_ip=pghomes\n\
             enable_upnp=yes\nenable_natpmp=no\nsecure_mode=yes\n\
             upnp_table_name=pgupnp\nupnp_nat_table_name=pgupnp\nupnp_forward_chain=forwarded\n\
             upnp_nat_chain=redirected\nupnp_nat_postrouting_chain=returned\n\
             allow 1024-65535 {homes} 1024-65535\ndeny 0-65535 0.0.0.0/0 0-65535\n"
        );
        std::fs::write(settings.path(), text).expect("there is room for a small file");
        // The daemon ends when this test does, even if that is killed: then its standard input is closed.
        let held = "miniupnpd -d -f \"$0\" -P \"$0.pid\" </dev/null & cat; kill $!; rm \"$0.pid\"";
        let mut command = self.namespace.command("bash");
        command.arg("-c").arg(held).arg(settings.path());
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut daemon = command.spawn().expect("it was tried out");
        let said = BufReader::new(daemon.stderr.take().expect("piped"));
        self.daemon = Some((daemon, settings));
        let mut lines = said.lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains("listening")), "it says so, or ends");
        // Its later output is read, or the daemon would wait until the pipe has room.
        std::thread::spawn(move || lines.for_each(drop));
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        if let Some((daemon, _)) = &mut self.daemon {
            drop(daemon.stdin.take());
            let _ = daemon.wait();
        }
    }
}
