//! The model of a run: saved, exported, evaluated, and refused if it was damaged.

use super::process::{ENDLESS, Ended, TestFolder};

/// A folder where one peer has trained the digits for a few epochs, and its output.
fn trained() -> (TestFolder, Ended) {
    let place = TestFolder::new();
    place.write("run.toml", "epochs = 2\n[data]\nfile = \"digits\"\n");
    let peer = place.start("alone", 1, &[]).end();
    peer.summary();
    (place, peer)
}

#[test]
fn an_exported_model_has_the_accuracy_of_the_summary() {
    let (place, peer) = trained();
    let export = place.ask(&["export", "m.safetensors", "--dir", "alone"]);
    assert_eq!((export.code, export.stdout.as_str()), (Some(0), "m.safetensors\n"), "{}", export.stderr);
    let evaluation = place.run(&["evaluate", "m.safetensors", "--data", "digits", "--json"]).end();
    let [evaluation] = evaluation.events.as_slice() else { panic!("one line") };
    assert_eq!(evaluation["accuracy"], peer.summary()["test_accuracy"]);
    assert_eq!(evaluation["loss"], peer.summary()["test_loss"]);
    assert_eq!((&evaluation["samples"], &evaluation["held_out"]), (&359.into(), &true.into()));
    let words = place.ask(&["evaluate", "m.safetensors", "--data", "digits"]);
    assert!(words.stdout.contains("on 359 held-out rows"), "{}", words.stdout);
}

#[test]
fn predictions_are_probabilities_for_rows_with_and_without_labels() {
    let place = TestFolder::new();
    let rows: String =
        (0..200).map(|row| format!("{}.5,{},{}\n", row % 7, row, ["far", "near"][row / 100])).collect();
    place.write("table.csv", format!("noise,distance,place\n{rows}"));
    place.write("run.toml", "epochs = 20\n[data]\nfile = \"table.csv\"\n");
    place.start("alone", 1, &[]).end().summary();
    let model = "alone/model.safetensors";
    let labelled = place.ask(&["predict", model, "--data", "table.csv"]);
    let lines: Vec<&str> = labelled.stdout.lines().collect();
    assert_eq!(lines.len(), 201, "{}", labelled.stderr);
    let header: Vec<&str> = lines[0].split(',').collect();
    assert_eq!(header[..2], ["row", "prediction"], "{}", lines[0]);
    let mut right = 0;
    for (row, line) in lines[1..].iter().enumerate() {
        let cells: Vec<&str> = line.split(',').collect();
        let shares = cells[2..].iter().map(|cell| cell.parse::<f64>().unwrap());
        assert!((shares.sum::<f64>() - 1.0).abs() < 1e-3, "{line}");
        assert_eq!(cells[0], (row + 1).to_string());
        right += usize::from(cells[1] == ["far", "near"][row / 100]);
    }
    assert!(right >= 180, "{right} of 200");
    // Columns in another order, and no labels.
    place.write("other.csv", "distance,noise\n0,1.5\n199,1.5\n");
    let unlabelled = place.ask(&["predict", model, "--data", "other.csv"]);
    let classes: Vec<&str> =
        unlabelled.stdout.lines().skip(1).filter_map(|line| line.split(',').nth(1)).collect();
    assert_eq!(classes, ["far", "near"], "{}", unlabelled.stderr);
    place.write("narrow.csv", "noise\n1.5\n");
    let error = place.ask(&["predict", model, "--data", "narrow.csv"]);
    assert!(error.failure().contains("distance"), "{}", error.stderr);
}

#[test]
fn a_damaged_model_is_refused() {
    let (place, _) = trained();
    let bytes = std::fs::read(place.path("alone/model.safetensors")).unwrap();
    for cut in [0, 4, 9, 200, bytes.len() / 2, bytes.len() - 1] {
        refuse(&place, &bytes[..cut], "not a complete safetensors file");
    }
    let mut altered = bytes.clone();
    altered[bytes.len() - 100] ^= 1;
    refuse(&place, &altered, "were altered after the export");
    let mut header = bytes.clone();
    header[7] = 0x7f;
    refuse(&place, &header, "at most");
    refuse(&place, b"0123456789,this is text, not a model", "");
}

fn refuse(place: &TestFolder, bytes: &[u8], words: &str) {
    place.write("damaged.safetensors", bytes);
    let evaluation = place.ask(&["evaluate", "damaged.safetensors", "--data", "digits"]);
    let why = evaluation.failure();
    assert!(why.starts_with("error: damaged.safetensors: ") && why.contains(words), "{why}");
    assert_eq!(evaluation.stdout, "");
}

#[test]
fn a_missing_model_is_named() {
    let place = TestFolder::new();
    let export = place.ask(&["export", "m.safetensors", "--dir", "nowhere"]);
    assert!(export.failure().contains("no peer has saved a model in nowhere yet"), "{}", export.stderr);
    let evaluation = place.ask(&["evaluate", "m.safetensors", "--data", "digits"]);
    assert!(evaluation.failure().contains("cannot read m.safetensors"), "{}", evaluation.stderr);
}

#[test]
fn data_with_other_columns_is_refused() {
    let (place, _) = trained();
    place.write("narrow.csv", "1,2,0\n3,4,1\n");
    let evaluation = place.ask(&["evaluate", "alone/model.safetensors", "--data", "narrow.csv"]);
    assert!(
        evaluation.failure().contains("the file has 3 columns, but the model was trained on 65"),
        "{}",
        evaluation.stderr
    );
}

/// A run that writes a checkpoint each second.
fn checkpointing(place: &TestFolder, seconds: u32) {
    let text = format!("epochs = {ENDLESS}\n[data]\nfile = \"digits\"\n[checkpoints]\nseconds = {seconds}\n");
    place.write("run.toml", text);
}

#[test]
fn the_newest_checkpoint_of_a_run_that_goes_on_is_exported() {
    let place = TestFolder::new();
    checkpointing(&place, 1);
    let mut peer = place.start("alone", 1, &[]);
    let early = place.ask(&["export", "early.safetensors", "--dir", "alone"]);
    if early.code != Some(0) {
        assert!(early.stderr.contains("no peer has saved") || early.stderr.contains("no checkpoint yet"));
    }
    let saved = peer.wait_for("saved")["steps"].as_u64().expect("a number");
    let export = place.run(&["export", "m.safetensors", "--dir", "alone", "--json"]).end();
    let [exported] = export.events.as_slice() else { panic!("one line: {}", export.stderr) };
    assert!(exported["steps"].as_u64() >= Some(saved) && exported["is_checkpoint"] == true, "{exported}");
    let evaluation = place.run(&["evaluate", "m.safetensors", "--data", "digits", "--json"]).end();
    assert_eq!(evaluation.events[0]["samples"], 359);
    // The peer was not disturbed.
    peer.wait_for("saved");
    peer.kill();
    let words = place.ask(&["export", "after.safetensors", "--dir", "alone"]);
    assert_eq!(words.code, Some(0), "{}", words.stderr);
    assert!(words.stderr.contains("the newest checkpoint; the run was interrupted"), "{}", words.stderr);
    let size = |name: &str| std::fs::metadata(place.path(name)).expect("written").len();
    assert_eq!(size("after.safetensors"), size("m.safetensors"), "without the optimizer's state");
}

#[test]
fn a_run_without_a_checkpoint_says_when_there_will_be_one() {
    for (settings, words) in [
        ("[checkpoints]\nseconds = 3600\n", "it writes one every 3600 s"),
        ("[checkpoints]\nseconds = 0\n", "writes one only when it stops"),
        ("[checkpoints]\nseconds = 3600\n[sync]\nkind = \"ssp\"\n", "it writes one every 3600 s"),
    ] {
        let place = TestFolder::new();
        place.write("run.toml", format!("epochs = {ENDLESS}\n[data]\nfile = \"digits\"\n{settings}"));
        let mut peer = place.start("alone", 1, &[]);
        peer.wait_for("step");
        let export = place.ask(&["export", "m.safetensors", "--dir", "alone"]);
        assert!(export.failure().contains(words), "{}", export.stderr);
        assert!(!place.path("m.safetensors").exists());
        peer.kill();
        let after = place.ask(&["export", "m.safetensors", "--dir", "alone"]);
        assert!(after.failure().contains("it was interrupted before it wrote one"), "{}", after.stderr);
    }
    let place = TestFolder::new();
    checkpointing(&place, 1);
    let mut founder = place.start("founder", 2, &[]);
    founder.wait_for("invite");
    let export = place.ask(&["export", "m.safetensors", "--dir", "founder"]);
    assert!(export.failure().contains("training has not begun there"), "{}", export.stderr);
}

/// The directory holds the model of a run that has ended, and a run that has only begun.
#[test]
fn the_model_of_an_earlier_run_is_not_passed_off_as_that_of_the_present_one() {
    let (place, _) = trained();
    checkpointing(&place, 3600);
    let mut peer = place.start("alone", 1, &[]);
    peer.wait_for("step");
    let export = place.ask(&["export", "m.safetensors", "--dir", "alone"]);
    assert!(export.failure().contains("is of an earlier run"), "{}", export.stderr);
}
