//! The model of a run: saved, exported, evaluated, and refused if it was damaged.

use super::process::{Ended, TestFolder};

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
