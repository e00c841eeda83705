//! Users' mistakes: each is named, with what to do, and nothing hangs.

use std::io::{Read, Write};
use std::net::TcpListener;

use peergrad_protocol::invite::Invite;

use super::process::{LOCAL, TestFolder, invite_of, listening};

/// A folder with a small table and a run file for it.
fn place() -> TestFolder {
    let place = TestFolder::new();
    place.write("table.csv", table().concat());
    place.write("run.toml", "epochs = 2\n[data]\nfile = \"table.csv\"\n");
    place
}

/// Two features and a label of two classes.
fn table() -> Vec<String> {
    (0..60).map(|row| format!("{},{},{}\n", row % 7, row * 3 % 11, row % 2)).collect()
}

/// The table with another line in place of its eighth.
fn table_with(line: &str) -> String {
    let mut rows = table();
    rows[7] = format!("{line}\n");
    rows.concat()
}

#[test]
fn a_table_that_cannot_be_used_is_refused_with_its_line() {
    let one_class: String = table().iter().map(|row| format!("{}1\n", &row[..row.len() - 2])).collect();
    let cases = [
        (table_with("1,2"), "table.csv, line 8: the row has 2 cells, but the first row has 3"),
        (table_with("1,2,0,4"), "table.csv, line 8: the row has 4 cells, but the first row has 3"),
        (table_with("1,zebra,1"), "table.csv, line 8, column 2: `zebra` is not a number"),
        (table_with("1,,1"), "table.csv, line 8, column 2"),
        (table_with("1,NaN,1"), "table.csv, line 8, column 2: `NaN` is not a finite 32-bit number"),
        (table_with("1,-inf,1"), "table.csv, line 8, column 2: `-inf` is not a finite 32-bit number"),
        (table_with("1,1e99,1"), "table.csv, line 8, column 2: `1e99` is not a finite 32-bit number"),
        (String::new(), "table.csv: the file is empty"),
        (one_class, "every row has the label `1`"),
    ];
    for (contents, words) in cases {
        let place = place();
        place.write("table.csv", contents);
        let init = place.ask(&["init", "--data", "table.csv"]);
        assert!(init.failure().contains(words), "{words}: {}", init.stderr);
        assert_eq!(init.stdout, "", "no half run file");
        let start = place.start("alone", 1, &[]).end();
        assert!(start.failure().contains(words), "{words}: {}", start.stderr);
    }
}

#[test]
fn a_file_of_another_format_that_cannot_be_used_is_refused() {
    let images = b"\0\0\x08\x02\0\0\0\x02\0\0\0\x01\x05\x06".as_slice();
    let cases = [
        (b"1 2:1\n0 2:1 1:1\n".as_slice(), "table.csv, line 2: the index 1 follows 2"),
        (b"1 2:1\n0 2:one\n", "table.csv, line 2: `2:one` is not `index:value`"),
        (b"1 0:1\n0 2:1\n", "table.csv, line 1: the index is 0, but indices start at 1"),
        (images, "`cat train-images-idx3-ubyte.gz train-labels-idx1-ubyte.gz > mnist.idx.gz`"),
        (
            &images[..13],
            "the header announces samples of shape 2 x 1 (2 bytes), but the file has only 1 of them",
        ),
    ];
    for (contents, words) in cases {
        let place = place();
        place.write("table.csv", contents);
        let init = place.ask(&["init", "--data", "table.csv"]);
        assert!(init.failure().contains(words), "{words}: {}", init.stderr);
        let start = place.start("alone", 1, &[]).end();
        assert!(start.failure().contains(words), "{words}: {}", start.stderr);
    }
}

#[test]
fn a_run_file_that_cannot_be_used_is_refused() {
    let data = "[data]\nfile = \"table.csv\"\n";
    let cases = [
        (format!("{data}classes = [\"0\", \"2\"]\n"), "line 2: the label `1` is not among the classes"),
        (format!("{data}classes = 1\n"), "`data.classes` is 1"),
        (format!("pases = 3\n{data}"), "unknown field `pases`"),
        (format!("epochs = \"many\"\n{data}"), "epochs = \"many\""),
        (format!("passes = 3\n{data}"), "line 1: `passes` is now called `epochs`"),
        (format!("batch = 0\n{data}"), "`batch` is 0"),
        (format!("{data}[optimizer]\nrate = -1.0\n"), "rate"),
        (format!("{data}[shards]\nreplicas = 9\n"), "`shards.replicas` is 9"),
        (format!("{data}[model]\nkind = \"transformer\"\n"), "transformer"),
        (format!("{data}[network]\npeers = 0\n"), "--peers counts this peer too"),
        (format!("{data}[compute]\nthreads = 0\n"), "give 1 to 1024 threads, or leave the setting out"),
        ("[data]\nfile = \"gone.csv\"\n".to_owned(), "cannot read gone.csv"),
        ("epochs = 3\n".to_owned(), "`data.file` is not given"),
        ("\0\u{1}".to_owned(), "run.toml"),
    ];
    for (run_file, words) in cases {
        let place = place();
        place.write("run.toml", run_file);
        let start = place.run(&[&["start", "run.toml"], LOCAL.as_slice(), &["founder"]].concat()).end();
        assert!(start.failure().contains(words), "{words}: {}", start.stderr);
        assert!(!place.path("founder").exists(), "nothing was begun");
    }
}

#[test]
fn files_that_are_not_there_are_named() {
    let place = TestFolder::new();
    let init = place.ask(&["init", "--data", "gone.csv"]);
    assert!(init.failure().contains("cannot read gone.csv"), "{}", init.stderr);
    let start = place.start("founder", 2, &[]).end();
    assert!(start.failure().contains("cannot read run.toml"), "{}", start.stderr);
    let join = place.ask(&["join", "127.0.0.1", "--secret-file", "gone"]);
    assert!(join.failure().contains("cannot read gone"), "{}", join.stderr);
    let list = "[data]\nfile = \"table.csv\"\nstop_words = \"gone.txt\"\n[model]\nkind = \"lda\"\n";
    place.write("run.toml", list);
    let start = place.start("founder", 2, &[]).end();
    assert!(start.failure().contains("cannot read gone.txt"), "{}", start.stderr);
    let other = self::place();
    let mut founder = other.start("founder", 2, &[]);
    let join = place.ask(&["join", &invite_of(&mut founder), "--data", "gone.csv"]);
    assert!(join.failure().contains("cannot read gone.csv"), "{}", join.stderr);
}

#[test]
fn a_run_of_zero_peers_is_refused() {
    let start = place().start("founder", 0, &[]).end();
    assert!(
        start.failure().contains("--peers counts this peer too: give 1 to train alone"),
        "{}",
        start.stderr
    );
}

#[test]
fn wrong_usage_has_another_exit_code_than_a_failure() {
    let place = TestFolder::new();
    let cases: [&[&str]; 8] = [
        &[],
        &["frobnicate"],
        &["join"],
        &["start"],
        &["evaluate", "model.safetensors"],
        &["start", "run.toml", "--port", "80000"],
        &["start", "run.toml", "--capacity", "17"],
        &["demo", "--peers", "0"],
    ];
    for arguments in cases {
        let answer = place.ask(arguments);
        assert_eq!((answer.code, answer.stdout.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(answer.stderr.contains("Usage:") || answer.stderr.contains("--help"), "{}", answer.stderr);
    }
    for (arguments, current) in [
        (&["start", "run.toml", "--weight", "2"][..], "--capacity"),
        (&["bench-table", "--copies", "3"], "--replicas"),
        (&["bench-table", "--passes", "3"], "--epochs"),
    ] {
        let answer = place.ask(arguments);
        let words = format!("this option is now called `{current}`");
        assert!(answer.code == Some(2) && answer.stderr.contains(&words), "{}", answer.stderr);
    }
    assert_eq!(place.ask(&["--help"]).code, Some(0));
    assert_eq!(place.ask(&["--version"]).code, Some(0));
}

#[test]
fn a_cut_or_altered_invite_is_reported() {
    let place = place();
    let mut founder = place.start("founder", 2, &[]);
    let invite = invite_of(&mut founder);
    let middle = invite.len() / 2;
    let other = if invite.as_bytes()[middle] == b'x' { "y" } else { "x" };
    let altered = format!("{}{other}{}", &invite[..middle], &invite[middle + 1..]);
    for text in [&invite[..invite.len() - 1], &invite[..middle], "pg1", &altered] {
        let join = place.join("joiner", text).end();
        assert!(join.failure().contains("the invite is incomplete or altered"), "{}", join.stderr);
    }
    for text in ["hello", "\"\"", "pg2abc"] {
        let join = place.join("joiner", text).end();
        let why = join.failure();
        let is_told = ["an invite begins with `pg1`", "is not an invite (invites begin with pg1)"];
        assert!(is_told.iter().any(|words| why.contains(words)), "{why}");
    }
    let mut join = place.join("joiner", "-");
    join.type_in("");
    assert!(join.end().failure().contains("standard input"), "it says where the invite was expected");
}

#[test]
fn an_address_is_no_invite_and_an_invite_no_address() {
    let place = place();
    for address in ["127.0.0.1", "127.0.0.1:4747", "/ip4/127.0.0.1/tcp/4747", "[::1]:4747"] {
        let join = place.join("joiner", address).end();
        let words = format!(
            "`{address}` is not an invite (invites begin with pg1); to join by address, add --secret-file"
        );
        assert!(join.failure().contains(&words), "{}", join.stderr);
    }
    let join = place.ask(&["join", "127.0.0.1", "127.0.0.2"]);
    assert!(join.failure().contains("to join by address, add --secret-file"), "{}", join.stderr);
    place.write("secret", "00".repeat(32));
    for (secret, address, words) in [
        ("secret", "not an address", "`not an address` is not an address"),
        ("secret", "127.0.0.1:port", "is not an address"),
        ("table.csv", "127.0.0.1", "table.csv: a secret is 64 hexadecimal digits"),
    ] {
        let join = place.ask(&["join", address, "--secret-file", secret]);
        assert!(join.failure().contains(words), "{}", join.stderr);
    }
}

#[test]
fn a_wrong_secret_is_reported() {
    let place = place();
    let mut founder = place.start("founder", 2, &[]);
    let address = format!("127.0.0.1:{}", listening(&mut founder).1);
    founder.wait_for("invite");
    place.write("secret", "00".repeat(32));
    let arguments = ["join", &address, "--secret-file", "secret"];
    let mut joiner = place.run(&[arguments.as_slice(), &LOCAL, &["joiner"]].concat());
    let notice = joiner.wait_for_notice("secret");
    assert!(notice.contains("check the invite") && notice.ends_with("; still trying"), "{notice}");
    joiner.kill();
    // The founder still works.
    let invite = place.ask(&["invite", "--dir", "founder"]).stdout;
    place.join("second", invite.trim()).end().summary();
    founder.end().summary();
}

#[test]
fn a_server_that_is_no_peer_is_reported() {
    // A page from a server on the wrong port; and no bytes at all, from a server that closes the connection.
    let page = format!("HTTP/1.1 400 Bad Request\r\n\r\n{}", "no such thing here\n".repeat(20));
    for (answer, words) in [
        (page.as_str(), "answered, but not as a peer: check the address and the port; still trying"),
        ("", "answered and closed the connection at once: check the address and the port; still trying"),
    ] {
        let place = place();
        place.write("secret", "00".repeat(32));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let answer = answer.to_owned();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                // The joiner may have closed the connection already.
                let _ = stream.write_all(answer.as_bytes());
                let mut heard = [0; 1024];
                while !answer.is_empty() && stream.read(&mut heard).is_ok_and(|count| count > 0) {}
            }
        });
        let arguments = ["join", &address, "--secret-file", "secret"];
        let mut joiner = place.run(&[arguments.as_slice(), &LOCAL, &["joiner"]].concat());
        joiner.wait_for_notice(words);
    }
}

#[test]
fn the_invite_of_another_run_is_refused() {
    let place = place();
    place.write("secret", "00".repeat(32));
    let mut founders = ["a", "b"].map(|name| place.start(name, 2, &["--secret-file", "secret"]));
    let [a, b] = founders.each_mut().map(|founder| invite_of(founder).parse::<Invite>().unwrap());
    let mixed = Invite { contacts: b.contacts.clone(), ..a };
    let join = place.join("joiner", &mixed.to_string()).end();
    let words = format!("belongs to run {}, not to the invite's", b.run.short());
    assert!(join.failure().contains(&words), "{}", join.failure());
}

#[test]
fn the_wrong_peer_at_an_address_is_reported() {
    let place = place();
    place.write("secret", "00".repeat(32));
    let mut founders = ["a", "b"].map(|name| place.start(name, 2, &["--secret-file", "secret"]));
    let [a, b] = founders.each_mut().map(|founder| invite_of(founder).parse::<Invite>().unwrap());
    let mut mixed = a;
    mixed.contacts[0].addresses = b.contacts[0].addresses.clone();
    let mut joiner = place.join("joiner", &mixed.to_string());
    joiner.wait_for_notice("answered, but as another peer");
}

#[test]
fn a_port_in_use_is_named() {
    let place = place();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let arguments = ["--no-mdns", "--json", "--listen", "127.0.0.1", "--port", &port, "--dir", "founder"];
    let start = place.run(&[&["start", "run.toml"], arguments.as_slice()].concat()).end();
    assert!(
        start.failure().contains(&format!("port {port} is in use (TCP or UDP): pass --port N")),
        "{}",
        start.stderr
    );
}

#[test]
fn two_peers_do_not_share_a_directory() {
    let place = place();
    let mut founder = place.start("shared", 2, &[]);
    let invite = invite_of(&mut founder);
    let join = place.join("shared", &invite).end();
    assert!(join.failure().contains("shared is in use by another peer"), "{}", join.stderr);
    place.join("own", &invite).end().summary();
    founder.end().summary();
}

#[test]
fn a_closed_output_pipe_causes_no_message() {
    let place = TestFolder::new();
    for arguments in [&["init", "--data", "digits"][..], &["--help"]] {
        let mut command = std::process::Command::new(super::process::PROGRAM);
        let mut child = command
            .args(arguments)
            .current_dir(place.path(""))
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let stderr = child.wait_with_output().unwrap().stderr;
        assert_eq!(String::from_utf8_lossy(&stderr), "", "{arguments:?}");
    }
}
