//! Data files as people have them: what `init`, `start` and `evaluate` say about them on the screen.

use super::process::TestFolder;

/// Sixty rows of three features and a label with three classes.
fn rows(line: impl Fn(&str, &str, &str, usize) -> String) -> String {
    let number =
        |value: usize, row: usize| format!("{:.2}", value as f64 * 2.0 + (row * 7 % 13) as f64 * 0.1);
    let row = |row: usize| {
        let class = row % 3;
        line(&number(class, row), &number(2 - class, row + 1), &number(class, row + 2), class)
    };
    (0..60).map(row).collect()
}

fn table() -> String {
    format!("a,b,c,label\n{}", rows(|a, b, c, class| format!("{a},{b},{c},{class}\n")))
}

#[test]
fn warnings_go_to_standard_error_and_the_run_file_works() {
    let place = TestFolder::new();
    let text = rows(|a, b, c, class| {
        format!(
            "{};{};{};{}\n",
            a.replace('.', ","),
            b.replace('.', ","),
            c.replace('.', ","),
            ["Maier", "M\u{fc}ller", "M\u{f6}ller"][class]
        )
    });
    let latin: Vec<u8> = format!("a;b;town;kind\n{text}").chars().map(|character| character as u8).collect();
    place.write("table.csv", latin);
    let init = place.ask(&["init", "--data", "table.csv"]);
    assert_eq!(init.code, Some(0), "{}", init.stderr);
    let warnings: Vec<&str> = init.stderr.lines().collect();
    let [encoding, label] = warnings.as_slice() else { panic!("{warnings:?}") };
    assert!(
        encoding.starts_with(
            "warning: table.csv: the text is not UTF-8; it is read as windows-1252, which is a guess"
        ),
        "{encoding}"
    );
    assert!(
        label.starts_with(
            "warning: table.csv: no column is called label, class or target, so `kind` is taken"
        ),
        "{label}"
    );
    for line in [
        "delimiter = \";\"",
        "decimal = \",\"",
        "encoding = \"windows-1252\"",
        "classes = [\"Maier\",\"M\u{f6}ller\",\"M\u{fc}ller\"]",
    ] {
        assert!(init.stdout.contains(line), "{line}: {}", init.stdout);
    }
    place.write("run.toml", init.stdout);
    let run = place.start("alone", 1, &[]).end();
    assert!(run.summary()["test_accuracy"].as_f64() > Some(0.5), "{}", run.summary());
    assert_eq!(run.stderr, "", "run.toml says what was doubtful");
}

#[test]
fn a_model_finds_its_columns_or_is_not_evaluated() {
    let place = TestFolder::new();
    place.write("table.csv", table());
    place.write("run.toml", place.init("table.csv", &[("epochs", "5")]));
    place.start("alone", 1, &[]).end().summary();
    let evaluate = |text: String| {
        place.write("other.csv", text);
        place.ask(&["evaluate", "alone/model.safetensors", "--data", "other.csv"])
    };
    let same = evaluate(table() + "\n");
    let swapped =
        evaluate(format!("label,c,a,b\n{}", rows(|a, b, c, class| format!("{class},{c},{a},{b}\n"))));
    assert!(same.stdout.contains("on 60 rows") && same.code == Some(0), "{} {}", same.stdout, same.stderr);
    assert_eq!((&swapped.stdout, swapped.stderr.as_str()), (&same.stdout, ""));
    let renamed = evaluate(table().replacen("a,b,c", "a,b,d", 1));
    assert!(
        renamed.failure().contains("other.csv: the model was trained on `c`, which the file does not have; the columns are: a, b, d, label"),
        "{}",
        renamed.stderr
    );
    let unnamed = evaluate(rows(|a, b, c, class| format!("{a},{b},{c},{class}\n")));
    assert_eq!(unnamed.stdout, same.stdout);
    assert!(unnamed.stderr.starts_with("warning: other.csv: the file has no header;"), "{}", unnamed.stderr);
}

#[test]
fn a_loss_of_no_samples_is_not_a_number() {
    let place = TestFolder::new();
    place.write("table.csv", "a,b,c,label\n1,2,3,0\n4,5,6,1\n");
    place.write("run.toml", place.init("table.csv", &[("epochs", "2")]));
    let run = place.start("alone", 1, &[]).end();
    assert!(
        run.summary()["test_loss"].is_null() && run.summary()["test_accuracy"].is_null(),
        "{}",
        run.summary()
    );
    let arguments = [
        "start",
        "run.toml",
        "--peers",
        "1",
        "--no-mdns",
        "--listen",
        "127.0.0.1",
        "--port",
        "0",
        "--dir",
        "words",
    ];
    let run = place.ask(&arguments);
    let said = run.stdout + &run.stderr;
    assert!(
        said.contains("not tested, because no samples are held out") && !said.contains("0 held-out"),
        "{said}"
    );
    let own = place.ask(&["evaluate", "alone/model.safetensors", "--data", "table.csv"]);
    assert!(
        own.stdout.contains("on 2 rows that the model was trained on (none was held out)"),
        "{}",
        own.stdout
    );
}

#[test]
fn files_of_other_formats_are_named_without_their_bytes() {
    let place = TestFolder::new();
    for (bytes, words) in [
        (
            &b"PK\x03\x04\x14\0\x06\0\x08\0\0\0!\0xl/workbook.xml"[..],
            "an Excel workbook (.xlsx); save the table as CSV",
        ),
        (b"\xfd7zXZ\0\0\x04\xe6\xd6\xb4F", "an xz archive; unpack it"),
        #[cfg(not(feature = "parquet"))]
        (b"PAR1\x15\x04\x15\x10\x15\x14", "a Parquet file; convert it to CSV"),
        (b"<!DOCTYPE html>\n<html><body>not found</body></html>\n", "an HTML page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "a Git LFS pointer"),
        (b"[{\"a\": 1}]\n", "JSON; convert it to CSV"),
    ] {
        place.write("table.csv", bytes);
        let init = place.ask(&["init", "--data", "table.csv"]);
        assert!(
            init.failure().starts_with("error: table.csv: this looks like ")
                && init.failure().contains(words),
            "{}",
            init.stderr
        );
        assert!(!init.stderr.trim_end().contains(char::is_control), "{:?}", init.stderr);
        assert_eq!(init.stdout, "");
    }
}
