//! The data file: read from this machine if it is there, else fetched from the swarm.

use std::fmt::Write;

use peergrad_protocol::limits::{DATA_PIECE_BYTES_MAX, KEPT_DATA_BYTES_MAX};

use super::process::{Ended, LOCAL, Process, TestFolder, invite_of};

const NAME: &str = "table.csv";

/// Two classes that differ by the sum of the columns; the file is several pieces long.
fn table() -> String {
    let mut state = 1_u32;
    let mut text = String::new();
    for _ in 0..2500 {
        let mut sum = 0.0;
        for _ in 0..25 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let value = f64::from(state) / f64::from(u32::MAX) - 0.5;
            sum += value;
            write!(text, "{value:.17},").expect("text takes more text");
        }
        writeln!(text, "{}", u8::from(sum > 0.0)).expect("text takes more text");
    }
    assert!(text.len() > 4 * DATA_PIECE_BYTES_MAX);
    text
}

const RUN_FILE: &str = "\
epochs = 4
batch = 128
[data]
file = \"table.csv\"
[model]
kind = \"softmax\"
[optimizer]
rate = 0.05
";

/// A founder, and a joiner with these files in its folder and these arguments, both to their ends.
fn join_with(files: &[(&str, &str)], more: &[&str]) -> (TestFolder, Ended, Ended) {
    let place = TestFolder::new();
    place.write(NAME, table());
    place.write("run.toml", RUN_FILE);
    let mut founder = place.start("founder", 2, &[]);
    for (name, contents) in files {
        place.write(&format!("elsewhere/{name}"), contents);
    }
    let invite = invite_of(&mut founder);
    let joiner = place.run_in("elsewhere", &[&["join", &invite], more, &LOCAL, &["joiner"]].concat());
    let (founder, joiner) = (Process::end(founder), joiner.end());
    assert_eq!(founder.summary()["digest"], joiner.summary()["digest"]);
    assert!(joiner.summary()["test_accuracy"].as_f64() >= Some(0.9), "{}", joiner.summary());
    (place, founder, joiner)
}

fn fetched_bytes(peer: &Ended) -> Option<u64> {
    peer.all("fetching_data").last().and_then(|event| event["received"].as_u64())
}

#[test]
fn a_joiner_without_the_file_gets_it_from_the_swarm() {
    let (place, founder, joiner) = join_with(&[], &[]);
    let size = table().len() as u64;
    assert_eq!(fetched_bytes(&joiner), Some(size));
    let received: Vec<u64> =
        joiner.all("fetching_data").filter_map(|event| event["received"].as_u64()).collect();
    assert!(received.len() > 4 && received.is_sorted(), "{received:?}");
    assert!(founder.summary()["bytes_sent"].as_u64() > Some(size));
    assert!(!place.path("elsewhere").join(NAME).exists(), "nothing is written where the user works");
}

/// Rows of two numbers and a long label: a file that is too large to be kept in memory.
fn large_table() -> String {
    let labels = ["a", "b"].map(|letter| letter.repeat(1 << 16));
    let row = |row: usize| format!("{row},{},{}\n", row % 7, labels[row % 2]);
    let text: String = (0..1050).map(row).collect();
    assert!(text.len() as u64 > KEPT_DATA_BYTES_MAX);
    text
}

#[test]
fn a_large_file_is_fetched_to_disk_and_a_fetch_that_was_cut_off_goes_on() {
    let place = TestFolder::new();
    place.write(NAME, large_table());
    place.write("run.toml", "epochs = 2\n[data]\nfile = \"table.csv\"\n[model]\nkind = \"softmax\"\n");
    let mut founder = place.start("founder", 2, &[]);
    let invite = invite_of(&mut founder);
    let arguments = [&["join", invite.as_str()], &LOCAL[..], &["joiner"]].concat();
    let mut joiner = place.run_in("elsewhere", &arguments);
    let total = large_table().len() as u64;
    let mut first = 0;
    // Most of what was received is on disk then.
    while first < total / 10 {
        first = joiner.wait_for("fetching_data")["received"].as_u64().expect("a number");
    }
    joiner.kill();
    let mut again = place.run_in("elsewhere", &arguments);
    let next = again.wait_for("fetching_data")["received"].as_u64().expect("a number");
    assert!(next > first / 2, "{next} after {first}: what was there is not fetched again");
    let (founder, joiner) = (founder.end(), again.end());
    assert_eq!(fetched_bytes(&joiner), Some(total));
    assert_eq!(founder.summary()["digest"], joiner.summary()["digest"]);
}

#[test]
fn a_joiner_with_the_file_uses_it() {
    let (_, _, joiner) = join_with(&[(NAME, &table())], &[]);
    assert_eq!(fetched_bytes(&joiner), None);
}

#[test]
fn a_joiner_uses_the_file_given_with_the_data_option() {
    let (_, _, joiner) = join_with(&[("copies/mine.csv", &table())], &["--data", "copies/mine.csv"]);
    assert_eq!(fetched_bytes(&joiner), None);
}

#[test]
fn a_different_file_of_the_same_name_is_not_used() {
    let text = table();
    // Of the same size, so that only the digest differs.
    let altered = text.replacen("0.", "1.", 1);
    let (place, _, joiner) = join_with(&[(NAME, &altered)], &[]);
    assert_eq!(fetched_bytes(&joiner), Some(text.len() as u64));
    let kept = std::fs::read_to_string(place.path("elsewhere").join(NAME)).expect("still there");
    assert!(kept == altered, "the user's file was changed");
}

#[test]
fn a_given_file_that_is_not_the_data_is_reported() {
    let (_, _, joiner) = join_with(&[("mine.csv", "1,2,0\n")], &["--data", "mine.csv"]);
    assert_eq!(fetched_bytes(&joiner), Some(table().len() as u64));
    let words = "mine.csv is not the data file of this run; asking the swarm for `table.csv`";
    assert!(joiner.all("notice").any(|notice| notice["text"] == words), "{:?}", joiner.events);
}
