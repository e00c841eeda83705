//! Parquet files as data: what `init` makes of them, and what the peers make of that. The file was written by pyarrow, in three row groups: sizes, rooms,
//! cities, lists of tags and prices of sixty houses.

use std::fs;

use super::process::TestFolder;

const HOUSES: &[u8] = include_bytes!("houses.parquet");

#[test]
fn a_table_becomes_a_csv_file_that_peers_train_on() {
    let place = TestFolder::new();
    place.write("houses.parquet", HOUSES);
    let init = place.ask(&["init", "--data", "houses.parquet"]);
    assert_eq!(init.code, Some(0), "{}", init.stderr);
    assert!(
        init.stderr.contains("converted 60 rows with 4 columns into houses.csv")
            && init.stderr.contains("warning: houses.parquet: left out 1 column: \"tags\" holds lists"),
        "{}",
        init.stderr
    );
    let csv = fs::read_to_string(place.path("houses.csv")).unwrap();
    assert!(csv.starts_with("size,rooms,city,price\n20,1,Bonn,95.5\n21.5,2,Ulm,110\n"), "{csv}");
    assert!(csv.lines().count() == 61 && csv.ends_with("\n108.5,5,Ulm,690\n"), "{csv}");
    assert!(init.stdout.contains("file = \"houses.csv\""), "{}", init.stdout);
    let run_file: Vec<&str> = init
        .stdout
        .lines()
        .map(|line| if line.starts_with("epochs") { "epochs = 2" } else { line })
        .collect();
    place.write("run.toml", run_file.join("\n"));
    let run = place.start("alone", 1, &[]).end();
    assert!(run.summary()["test_loss"].as_f64().is_some(), "{}", run.summary());

    let again = place.ask(&["init", "--data", "houses.parquet"]);
    assert!(
        again.failure().contains("houses.csv exists: use it with `--data houses.csv`"),
        "{}",
        again.stderr
    );
}

#[test]
fn shards_become_one_file_and_damaged_ones_none() {
    let place = TestFolder::new();
    fs::create_dir(place.path("shards")).unwrap();
    for name in ["shards/1.parquet", "shards/0.parquet"] {
        place.write(name, HOUSES);
    }
    let init = place.ask(&["init", "--data", "shards/", "--json"]);
    assert_eq!(init.code, Some(0), "{}", init.stderr);
    let csv = fs::read_to_string(place.path("shards.csv")).unwrap();
    assert_eq!(csv.lines().filter(|line| line.starts_with("21.5,")).count(), 2, "{csv}");

    fs::remove_file(place.path("shards.csv")).unwrap();
    let mut damaged = HOUSES.to_vec();
    damaged[40..60].fill(0xaa);
    place.write("shards/1.parquet", &damaged);
    let init = place.ask(&["init", "--data", "shards"]);
    assert!(init.failure().contains("1.parquet is damaged"), "{}", init.stderr);
    place.write("shards/1.parquet", &HOUSES[..1000]);
    let init = place.ask(&["init", "--data", "shards"]);
    assert!(init.failure().contains("the end of shards/1.parquet is missing"), "{}", init.stderr);
    let left: Vec<_> =
        fs::read_dir(place.path(".")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["shards"], "neither a file nor a draft");
}

#[test]
fn a_column_of_texts_becomes_a_text() {
    let place = TestFolder::new();
    place.write("houses.parquet", HOUSES);
    for arguments in [&["--column", "city"][..], &["--model", "gpt"]] {
        // What comes next needs deep networks, and a longer text.
        place.ask(&[&["init", "--data", "houses.parquet"], arguments].concat());
        let text = fs::read_to_string(place.path("houses.txt")).unwrap();
        assert!(text.starts_with("Bonn\n\nUlm\n\nBonn\n\n") && text.ends_with("Bonn\n\nUlm"), "{text}");
        fs::remove_file(place.path("houses.txt")).unwrap();
    }
    let wrong = place.ask(&["init", "--data", "houses.parquet", "--column", "price"]);
    assert!(
        wrong.failure().contains("no column of texts called \"price\"; it has the column \"city\""),
        "{}",
        wrong.stderr
    );
    place.write("table.csv", "a,b\n1,2\n");
    let wrong = place.ask(&["init", "--data", "table.csv", "--column", "a"]);
    assert!(wrong.failure().contains("`--column` is for Parquet files"), "{}", wrong.stderr);
}
