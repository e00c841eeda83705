//! Every target accepts its examples, looks behind checksums, and passes the inputs that failed once.

use std::collections::BTreeSet;
use std::fs;

use peergrad_fuzz::inputs::{inputs_in, regressions_folder, target_of};
use peergrad_fuzz::session::{Session, run_once};
use peergrad_fuzz::target::{Target, Verdict};
use peergrad_fuzz::targets::TARGETS;

/// The examples that a target refuses, or fails at.
fn wrong_examples(target: &dyn Target) -> Vec<String> {
    let results =
        target.examples().into_iter().enumerate().map(|(index, example)| (index, run_once(target, &example)));
    let wrong = results.filter(|(_, result)| *result != Ok(Verdict::Accepted));
    wrong.map(|(index, result)| format!("{} {index}: {result:?}", target.name())).collect()
}

#[test]
fn every_example_is_accepted() {
    let wrong: Vec<String> = TARGETS.into_iter().flat_map(wrong_examples).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(TARGETS.iter().all(|target| !target.examples().is_empty()));
    let names: BTreeSet<&str> = TARGETS.iter().map(|target| target.name()).collect();
    assert_eq!(names.len(), TARGETS.len(), "each name is used once");
}

#[test]
fn mending_changes_no_example() {
    for target in TARGETS {
        for (index, example) in target.examples().into_iter().enumerate() {
            let mut mended = example.clone();
            target.mend(&mut mended);
            assert_eq!(mended, example, "{} {index}", target.name());
        }
    }
}

#[test]
fn changed_inputs_are_accepted_behind_their_checksums() {
    for target in TARGETS {
        let mut session = Session::new(target, 1, Vec::new());
        let examples: BTreeSet<Vec<u8>> = target.examples().into_iter().collect();
        let is_changed_and_accepted = (0..20_000).any(|_| {
            let input = session.next_input();
            let accepted = session.summary().accepted;
            let is_example = examples.contains(&input);
            session.execute(input).unwrap_or_else(|failure| panic!("{}: {failure}", target.name()));
            !is_example && session.summary().accepted > accepted
        });
        assert!(is_changed_and_accepted, "{}", target.name());
    }
}

#[test]
fn inputs_that_failed_once_pass() {
    let folder = regressions_folder();
    for target in TARGETS {
        for (path, input) in inputs_in(&folder, target).expect("the folder can be read") {
            if let Err(failure) = run_once(target, &input) {
                panic!("{}: {failure}", path.display());
            }
        }
    }
    let unknown = |entry: &fs::DirEntry| target_of(&entry.path()).is_none();
    let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
    let unknown: Vec<_> = entries.filter(unknown).map(|entry| entry.path()).collect();
    assert!(unknown.is_empty(), "no target has these: {unknown:?}");
}
