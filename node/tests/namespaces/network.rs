//! The test network: hosts on one bridge, each in a network namespace, invisible from outside.
//!
//! ```text
//!     host 0          host 1          host 2                a network namespace each
//!   10.77.0.1       10.77.0.2       10.77.0.3
//!     pgwire          pgwire          pgwire
//!       |               |               |
//!    pgport0         pgport1         pgport2
//!   ----------------- pgbridge -----------------            and one for the bridge
//! ```
//! # How it works
//! A namespace lives as long as a process is in it, so each is held by a `cat` that waits for input from the test. No namespace has a name,
//! so test runs cannot meet. The kernel removes everything when the test ends, even if it is killed, since that closes the pipes.
//!
//! Every host knows the hardware address of every other one from the start. No host has to ask for an address, so that a
//! [cut](super::partitions) only changes these addresses.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};

/// Hosts on a bridge, by index. Dropping it removes them.
pub(crate) struct TestNetwork {
    bridge: Namespace,
    hosts: Vec<Namespace>,
}

/// A network namespace, and the process that holds it.
pub(crate) struct Namespace {
    holder: Child,
}

impl TestNetwork {
    /// `count` hosts with a path between each two; `None`, after the reason was printed, if the system does not allow it.
    pub(crate) fn of(count: usize) -> Option<Self> {
        if let Err(reason) = try_out() {
            println!(
                "skipped: network namespaces need root, `unshare`, `nsenter`, `ip` and `bash`: {reason}"
            );
            return None;
        }
        let bridge = Namespace::hold();
        let hosts: Vec<Namespace> = (0..count).map(|_| Namespace::hold()).collect();
        let mut commands = "link add pgbridge type bridge\nlink set dev pgbridge up\n".to_owned();
        for (index, host) in hosts.iter().enumerate() {
            let (inside, mac) = (host.holder.id(), hardware_address(index));
            let _ = writeln!(
                commands,
                "link add pgport{index} type veth peer name pgwire address {mac} netns {inside}\n\
                 link set dev pgport{index} master pgbridge\n\
                 link set dev pgport{index} up"
            );
        }
        bridge.ip(&commands);
        for (index, host) in hosts.iter().enumerate() {
            let address = address(index);
            host.ip(&format!(
                "link set dev lo up\naddress add {address}/24 dev pgwire\nlink set dev pgwire up\n"
            ));
            let others = (0..count).filter(|other| *other != index);
            host.ip(&others.map(|other| neighbour(other, &hardware_address(other))).collect::<String>());
        }
        Some(Self { bridge, hosts })
    }

    /// From now on the bridge takes packets from and to this host only up to `mtu` bytes, and drops larger ones without a word.
    pub(crate) fn lose_large_packets(&self, index: usize, mtu: u32) {
        self.bridge.ip(&format!("link set dev pgport{index} mtu {mtu}\n"));
        // The system would hand several packets over as one, whatever their size.
        for host in &self.hosts {
            host.ip("link set dev pgwire gso_max_segs 1\n");
        }
    }

    /// Undoes [`Self::lose_large_packets`].
    pub(crate) fn allow_large_packets(&self, index: usize) {
        self.bridge.ip(&format!("link set dev pgport{index} mtu 1500\n"));
    }

    /// Number of hosts.
    pub(crate) fn len(&self) -> usize {
        self.hosts.len()
    }

    pub(crate) fn host(&self, index: usize) -> &Namespace {
        &self.hosts[index]
    }
}

impl Namespace {
    /// A new, empty namespace.
    pub(crate) fn hold() -> Self {
        let command = ["--net", "cat"];
        let piped =
            Command::new("unshare").args(command).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut holder = piped.expect("it was tried out");
        // The echo shows that `cat` is running, and so that the namespace exists.
        holder.stdin.as_mut().expect("piped").write_all(b"?").expect("it waits for input");
        holder.stdout.as_mut().expect("piped").read_exact(&mut [0]).expect("it answers");
        Self { holder }
    }

    /// A command that runs in this namespace, in place of the process that enters it.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--net", "--target", &self.holder.id().to_string(), "--"]).arg(program);
        command
    }

    /// The id of the process that holds it.
    pub(crate) fn id(&self) -> u32 {
        self.holder.id()
    }

    /// Runs `ip` with these lines, each of which must succeed.
    pub(crate) fn ip(&self, lines: &str) {
        self.feed("ip", &["-batch", "-"], lines);
    }

    /// Runs a command with these lines as standard input; it must succeed.
    pub(crate) fn feed(&self, program: &str, arguments: &[&str], lines: &str) {
        let mut command = self.command(program);
        command.args(arguments).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it was tried out");
        let mut stdin = child.stdin.take().expect("piped");
        // The command may stop at a line that fails; then it prints the reason.
        let _ = stdin.write_all(lines.as_bytes());
        drop(stdin);
        let output = child.wait_with_output().expect("a child can be waited for");
        assert!(output.status.success(), "{}\n{lines}", String::from_utf8_lossy(&output.stderr));
    }

    /// One of the kernel's counters for this namespace: `("Tcp", "RetransSegs")`.
    pub(crate) fn count(&self, protocol: &str, name: &str) -> u64 {
        let path = format!("/proc/{}/net/snmp", self.holder.id());
        let text = std::fs::read_to_string(path).expect("the holder is there");
        // A line of names, then a line of numbers.
        let start = format!("{protocol}: ");
        let mut lines = text.lines().filter_map(|line| line.strip_prefix(&start));
        let (names, numbers) = (lines.next().expect("names"), lines.next().expect("numbers"));
        let mut pairs = names.split(' ').zip(numbers.split(' '));
        let number = pairs.find(|(found, _)| *found == name).expect("a counter of this name").1;
        number.parse().expect("a number")
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // The process has nothing to lose, and a namespace ends with its last process.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// The address of a host.
pub(crate) fn address(index: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, last_byte(index))
}

/// The hardware address of a host.
pub(crate) fn hardware_address(index: usize) -> String {
    format!("02:70:67:00:00:{:02x}", last_byte(index))
}

/// The line for `ip` that tells a host the hardware address of another one.
pub(crate) fn neighbour(other: usize, hardware_address: &str) -> String {
    format!("neighbour replace {} lladdr {hardware_address} dev pgwire nud permanent\n", address(other))
}

fn last_byte(index: usize) -> u8 {
    u8::try_from(index + 1).expect("a handful of hosts")
}

/// Whether this process may create namespaces; otherwise the system's error.
pub(crate) fn try_out() -> Result<(), String> {
    let script = "for command in nsenter bash; do
            command -v $command >/dev/null || { echo there is no $command >&2; exit 1; }
        done
        ip link add pgbridge type bridge && ip link add pgport type veth peer name pgwire";
    match Command::new("unshare").args(["--net", "sh", "-c", script]).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
