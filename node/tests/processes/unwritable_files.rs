//! Files that cannot be written: the peer says so, and goes on as far as it can.

use std::fs::OpenOptions;
use std::process::{Command, Stdio};

use super::process::{LOCAL, PROGRAM, Process, TestFolder};

/// A model that is larger than the limit of file sizes; all else that a peer writes is smaller.
#[test]
fn a_file_that_outgrows_its_limit_does_not_end_the_peer() {
    let place = TestFolder::new();
    let run_file = "epochs = 2\n[data]\nfile = \"digits\"\n[model]\nkind = \"mlp\"\nhidden = [4000]\n";
    place.write("run.toml", run_file);
    let limited = "ulimit -f 500; exec \"$0\" \"$@\"";
    let arguments = [&["start", "run.toml", "--peers", "1"], LOCAL.as_slice(), &["alone"]].concat();
    let mut command = Command::new("sh");
    command.args(["-c", limited, PROGRAM]).args(arguments).current_dir(place.path(""));
    let ended = Process::spawn(&mut command).end();
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    ended.all("summary").next().expect("it has trained to the end");
    for words in ["cannot save the model", "File too large", "`ulimit -f`"] {
        assert!(ended.stderr.contains(words), "{}", ended.stderr);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_result_that_cannot_be_written_is_a_failure() {
    let place = TestFolder::new();
    let full = OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
    let mut init = Command::new(PROGRAM);
    init.args(["init", "--data", "digits"]).current_dir(place.path("")).stdout(full);
    let init = init.output().expect("the program starts");
    let text = String::from_utf8_lossy(&init.stderr).into_owned();
    assert_eq!(init.status.code(), Some(1), "{text}");
    assert!(text.contains("cannot write to standard output: No space left on device"), "{text}");
    assert!(text.contains("make room"), "{text}");
}

#[test]
fn a_reader_that_has_gone_is_no_failure() {
    let place = TestFolder::new();
    place.write("run.toml", "epochs = 2\n[data]\nfile = \"digits\"\n");
    let arguments = [&["start", "run.toml", "--peers", "1"], LOCAL.as_slice(), &["alone"]].concat();
    let mut command = Command::new(PROGRAM);
    command.args(arguments).current_dir(place.path("")).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut peer = command.spawn().expect("the program starts");
    drop(peer.stdout.take());
    let ended = peer.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(0), "{text}");
    assert!(!text.contains("standard output"), "{text}");
}
