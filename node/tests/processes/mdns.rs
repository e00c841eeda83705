//! Peers of one local network find each other: a joiner with the right secret and a wrong address joins nevertheless.

use std::process::Command;

use super::process::{PROGRAM, Process, TestFolder};

#[test]
fn neighbours_are_found_without_an_address() {
    let probe = Command::new("unshare").args(["-n", "ip", "link", "add", "pg0", "type", "veth"]).output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        println!("skipped: a separate network needs root, `unshare` and `ip`");
        return;
    }
    let place = TestFolder::new();
    place.write("run.toml", "epochs = 2\n[data]\nfile = \"digits\"\n[network]\nport = 5001\n");
    // One interface with multicast; there is no host at 10.77.0.9.
    let script = format!(
        "ip link set lo up && ip link add pg0 type veth peer name pg1 && ip addr add 10.77.0.1/24 dev pg0 \
         && ip link set pg0 up && ip link set pg1 up && ip route add default dev pg0 \
         && ('{PROGRAM}' start run.toml --secret-file secret --dir founder --json > founder.json &) \
         && until [ -s secret ] && grep -q peer_ready founder.json; do sleep 0.1; done \
         && '{PROGRAM}' join 10.77.0.9:5999 --secret-file secret --port 5002 --dir joiner --json"
    );
    let mut command = Command::new("unshare");
    command.args(["-n", "sh", "-c", &script]).current_dir(place.path(""));
    let output = Process::spawn(&mut command).end_in_words();
    assert_eq!(output.code, Some(0), "{} {}", output.stdout, output.stderr);
    assert!(output.stdout.contains("\"event\":\"summary\"") && output.stdout.contains("\"peers\":2"));
}
