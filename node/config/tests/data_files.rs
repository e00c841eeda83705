//! Data files as people have them: each is read rightly, or refused in words that name the cause and what to do.
//!
//! The files in `cases/` are small copies of kinds that readers of other tools were reported to fail on. Most of them hold the table of
//! `plain.csv` in another form.

#![allow(clippy::unwrap_used, reason = "these are tests, with helpers outside of test functions")]
#![allow(clippy::too_many_lines, reason = "a table of cases is read from top to bottom")]

use std::path::Path;

use peergrad_config::model_file::{DataPart, ModelFile, Origin};
use peergrad_config::single_process::train_single_process;
use peergrad_config::specification::{
    RunFile, Specification, WrittenRunFile, resolve, resolve_with_notices, write_run_file,
};
use peergrad_models::data::dense_table::{DenseTable, unpack};
use peergrad_models::data::labels::Target;
use peergrad_protocol::RunId;
use proptest::prelude::*;

/// What happens to a file.
enum Expected {
    /// It is read.
    Read {
        rows: u32,
        features: usize,
        /// The classes; none if the label is a number.
        classes: &'static [&'static str],
        /// The beginning of each warning.
        warnings: &'static [&'static str],
    },
    /// It is refused, with these words after its name.
    Refused(&'static str),
}

use Expected::{Read, Refused};

fn case(file: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases").join(file);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The specification of the run file that `peer init` writes, and the warnings.
fn specification(file: &str, bytes: &[u8]) -> Result<(Specification, Vec<String>), String> {
    let WrittenRunFile { text, notices } =
        write_run_file(file, bytes, None).map_err(|error| error.to_string())?;
    let run = RunFile::parse(&text).unwrap_or_else(|error| panic!("{file}: {error}\n{text}"));
    let (specification, again) = resolve_with_notices(&run, file, bytes)
        .unwrap_or_else(|error| panic!("what init writes, start takes: {error}\n{text}"));
    for notice in &again {
        assert!(notices.contains(notice), "{file}: start warns, and init does not: {notice}");
    }
    let again = Specification::parse(&specification.to_bytes().unwrap()).unwrap();
    assert_eq!(again, specification, "it reads back");
    Ok((specification, notices))
}

fn table(specification: &Specification, file: &str, bytes: &[u8]) -> DenseTable {
    specification.data.layout.read(file, &unpack(file, bytes).unwrap()).unwrap()
}

#[track_caller]
fn assert_outcome(file: &str, bytes: &[u8], expected: &Expected) {
    match (specification(file, bytes), expected) {
        (Ok((found, notices)), Read { rows, features, classes, warnings }) => {
            assert_eq!((found.data.rows, found.data.layout.columns()), (*rows, *features), "{file}");
            match &found.data.target {
                Target::Class { classes: found } => assert_eq!(found, classes, "{file}"),
                Target::Number { .. } => assert!(classes.is_empty(), "{file}: the label is a number"),
                Target::Token { .. } => panic!("{file}: a table is no prose"),
            }
            assert_eq!(notices.len(), warnings.len(), "{file}: {notices:#?}");
            for (notice, words) in notices.iter().zip(*warnings) {
                assert!(notice.starts_with(words), "{file}: {notice}");
            }
            found.load(bytes).unwrap_or_else(|error| panic!("{file}: {error}"));
        }
        (Err(error), Refused(words)) => {
            let words = format!("{file}{words}");
            assert!(error.starts_with(&words), "{error}\nexpected: {words}");
            assert!(!error.contains(char::is_control), "{error:?}");
        }
        (Ok((found, notices)), Refused(words)) => {
            panic!("{file} was read instead of `{words}`: {:#?} {notices:#?}", found.data)
        }
        (Err(error), Read { .. }) => panic!("{error}"),
    }
}

const THREE: &[&str] = &["0", "1", "2"];
const TWO: &[&str] = &["0", "1"];

#[test]
fn the_files_of_the_collection_are_read_or_refused_in_words() {
    let plain = || Read { rows: 60, features: 3, classes: THREE, warnings: &[] };
    let cases = [
        ("plain.csv", plain()),
        ("bom_quoted.csv", plain()),
        ("cr.csv", plain()),
        ("pipe.csv", plain()),
        ("swapped.csv", plain()),
        ("semi_deccomma.csv", plain()),
        ("semi_deccomma_nohead.csv", plain()),
        ("semi_quoted_header_commas.csv", plain()),
        ("space.txt", plain()),
        (
            "utf16.csv",
            Read { rows: 60, features: 3, classes: THREE, warnings: &["the text is read as utf-16le"] },
        ),
        ("multi.csv.gz", plain()),
        ("comment.svm", Read { rows: 60, features: 3, classes: TWO, warnings: &[] }),
        ("dblmax.svm", Refused(", line 4: `1:1.79769313486e+308` is not a finite 32-bit number")),
        (
            "label_NA.csv",
            Read {
                rows: 60,
                features: 3,
                classes: &["DE", "NA", "ZA"],
                warnings: &["no column is called label, class or target, so `country` is taken as the label"],
            },
        ),
        (
            "label_bigint.csv",
            Read {
                rows: 60,
                features: 3,
                classes: &["9007199254740993", "9007199254740994", "9007199254740995"],
                warnings: &[],
            },
        ),
        (
            "label_spaces.csv",
            Read {
                rows: 60,
                features: 3,
                classes: &["Iris setosa", "Iris versicolor", "Iris virginica"],
                warnings: &[],
            },
        ),
        ("mnistlike.idx.gz", Read { rows: 60, features: 16, classes: THREE, warnings: &[] }),
        ("odd_type.idx", Refused(": the samples have the value type 0x0a")),
        ("qid.svm", Refused(", line 1: `qid:0` is a ranking group, which is not supported")),
        (
            "quoted_newline.csv",
            Read {
                rows: 60,
                features: 3,
                classes: THREE,
                warnings: &[
                    "left out, because a model needs numbers: `note` (text, such as `line one line two`)",
                ],
            },
        ),
        ("trunc.csv.gz", Refused(": the gzip file is damaged")),
        ("zero.svm", Refused(", line 1: the index is 0, but indices start at 1")),
        (
            "label_first_higgs.csv",
            Read {
                rows: 60,
                features: 3,
                classes: TWO,
                warnings: &[
                    "there is no header, and column 1 has few values, the last column many, so column 1 is taken as the label",
                ],
            },
        ),
        (
            "latin_merge.csv",
            Read {
                rows: 90,
                features: 2,
                classes: &["Maier", "M\u{f6}ller", "M\u{fc}ller"],
                warnings: &[
                    "the text is not UTF-8; it is read as windows-1252, which is a guess (line 2: `M\u{fc}ller`)",
                ],
            },
        ),
        (
            "missing_first_row.csv",
            Refused(
                ", line 2, column 2: a number is missing; fill it in, delete the row, or leave the column out with `columns` in [data]; in all, numbers are missing in `b` (in 1 row)",
            ),
        ),
        ("multilabel.svm", Refused(", line 1: `0,1` are several labels, but a sample has one")),
        (
            "two_rows.csv",
            Read {
                rows: 2,
                features: 3,
                classes: TWO,
                warnings: &["no row is held out for a test, because the file has only 2 rows"],
            },
        ),
    ];
    for (file, expected) in &cases {
        assert_outcome(file, &case(file), expected);
    }
    let mut named: Vec<&str> = cases.iter().map(|(file, _)| *file).collect();
    named.sort_unstable();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let names =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut found: Vec<String> = names.collect();
    found.sort_unstable();
    assert_eq!(found, named, "each file is tried");
}

#[test]
fn the_same_table_in_other_forms_has_the_same_numbers() {
    let read = |file: &str| {
        let bytes = case(file);
        let (specification, _) = specification(file, &bytes).unwrap();
        (table(&specification, file, &bytes).features, specification.data.standardization)
    };
    let expected = read("plain.csv");
    for file in [
        "bom_quoted.csv",
        "cr.csv",
        "pipe.csv",
        "space.txt",
        "utf16.csv",
        "multi.csv.gz",
        "semi_deccomma.csv",
        "semi_deccomma_nohead.csv",
        "semi_quoted_header_commas.csv",
        "label_spaces.csv",
        "quoted_newline.csv",
    ] {
        assert_eq!(read(file), expected, "{file}");
    }
}

/// A model that was briefly trained on a file.
fn trained_on(file: &str, bytes: &[u8]) -> ModelFile {
    let (specification, _) = specification(file, bytes).unwrap();
    let loaded = specification.load(bytes).unwrap();
    let parameters = train_single_process(&loaded, |_| ());
    let specification = String::from_utf8(specification.to_bytes().unwrap()).unwrap();
    let origin = Origin { run: RunId([7; 32]), steps: 1, specification };
    let bytes = ModelFile { manifest: loaded.manifest, parameters, origin }.encode();
    ModelFile::decode(&bytes).unwrap()
}

#[test]
fn a_saved_model_finds_its_columns_by_name() {
    let model = trained_on("plain.csv", &case("plain.csv"));
    let expected = model.evaluate("pipe.csv", case("pipe.csv"), &None).unwrap();
    assert_eq!((expected.evaluation.samples, expected.part, expected.notices.len()), (60, DataPart::All, 0));
    assert!(expected.evaluation.accuracy.unwrap() > 0.8, "{expected:?}");
    for file in ["swapped.csv", "semi_deccomma.csv", "bom_quoted.csv", "utf16.csv", "cr.csv"] {
        let found = model.evaluate(file, case(file), &None).unwrap();
        assert_eq!(found.evaluation, expected.evaluation, "{file}");
    }
    let by_place = model.evaluate("space.txt", case("space.txt"), &None).unwrap();
    assert_eq!(by_place.evaluation, expected.evaluation);
    assert!(
        by_place.notices[0].starts_with("the file has no header; its columns are taken in the order"),
        "{by_place:?}"
    );
    let error =
        model.evaluate("other.csv", case("semi_quoted_header_commas.csv"), &None).unwrap_err().to_string();
    assert!(
        error.starts_with("other.csv: the model was trained on `a`, `b`, `c`, which the file does not have"),
        "{error}"
    );
}

#[test]
fn a_model_without_names_is_still_evaluated() {
    let mut model = trained_on("plain.csv", &case("plain.csv"));
    let text = &mut model.origin.specification;
    let names = text.find("feature_names").unwrap();
    let end = names + text[names..].find("\n\n").unwrap();
    text.replace_range(names..end, "");
    let found = model.evaluate("pipe.csv", case("pipe.csv"), &None).unwrap();
    assert_eq!(found.evaluation.samples, 60);
    assert!(
        found.notices[0].starts_with("the model was saved without the names of its columns"),
        "{found:?}"
    );
    let own = model.evaluate("plain.csv", case("plain.csv"), &None).unwrap();
    assert_eq!((own.evaluation.samples, own.part), (12, DataPart::HeldOut));
}

#[test]
fn without_held_out_rows_the_evaluated_rows_are_named() {
    let bytes = case("two_rows.csv");
    let found = trained_on("two_rows.csv", &bytes).evaluate("two_rows.csv", &bytes, &None).unwrap();
    assert_eq!((found.evaluation.samples, found.part), (2, DataPart::Trained));
}

#[test]
fn wide_files_are_written_so_that_start_takes_them() {
    let header: Vec<String> = (0..20_000).map(|column| format!("c{column}")).collect();
    let row = |number: usize| {
        format!("{},", number as f64 * 0.37).repeat(20_000) + &(number % 2).to_string() + "\n"
    };
    let rows: String = (0..20).map(row).collect();
    let text = header.join(",") + ",label\n" + &rows;
    let (found, notices) = specification("wide.csv", text.as_bytes()).unwrap();
    assert_eq!(found.data.layout.columns(), 20_000);
    assert!(notices[0].starts_with("`standardize = false` is written, because"), "{notices:?}");
    // A header in another order is told from its own by the digest of the names.
    let other = text.replacen("c0,c1,", "c1,c0,", 1);
    let parameters = vec![0.0; found.manifest().parameter_count()];
    assert!(found.evaluate(&parameters, "g.csv", format!("{text}{}", row(1)).as_bytes(), &None).is_ok());
    let error = found.evaluate(&parameters, "g.csv", other.as_bytes(), &None).unwrap_err().to_string();
    assert!(error.starts_with("g.csv: the header is not the one that the model was trained on"), "{error}");
}

/// Ten rows of two features and a label, in which `alter` may change each line.
fn rows(header: &str, alter: impl Fn(usize, [f64; 2], usize) -> String) -> Vec<u8> {
    let rows = (0..10).map(|row| alter(row, [row as f64 * 1.5 + 0.25, 7.5 - row as f64], row % 2));
    let lines: Vec<String> =
        std::iter::once(header.to_owned()).filter(|header| !header.is_empty()).chain(rows).collect();
    (lines.join("\n") + "\n").into_bytes()
}

#[test]
fn further_kinds_of_csv_files() {
    const UNNAMED: &str = "there is no header";
    let read = |features, warnings| Read { rows: 10, features, classes: TWO, warnings };
    let plain = |_: usize, [a, b]: [f64; 2], label: usize| format!("{a},{b},{label}");
    let comma = |number: f64| format!("{number:.2}").replace('.', ",");
    for (name, bytes, expected) in [
        ("tabs.csv", rows("a\tb\tlabel", |_, [a, b], label| format!("{a}\t{b}\t{label}")), read(2, &[])),
        (
            "tab-comma.csv",
            rows("a\tb\tlabel", |_, [a, b], label| format!("{}\t{}\t{label}", comma(a), comma(b))),
            read(2, &[]),
        ),
        (
            "quoted.csv",
            rows("a,b,label", |_, [a, b], label| format!("\"{}\",\"{}\",{label}", comma(a), comma(b))),
            read(2, &[]),
        ),
        (
            "sep.csv",
            rows("sep=;\na;b;label", |_, [a, b], label| format!("{};{};{label}", comma(a), comma(b))),
            read(2, &["line 1 is not part of the table"]),
        ),
        (
            "title.csv",
            rows("Report of May\n\na,b,label", plain),
            read(2, &["lines 1 to 2 are not part of the table (`Report of May`)"]),
        ),
        (
            "padded-title.csv",
            rows("Report,,\na,b,label", plain),
            read(2, &["line 1 is not part of the table (`Report,,`)"]),
        ),
        (
            "comments.csv",
            rows("# one\n# two\na,b,label", plain),
            read(2, &["lines 1 to 2 are not part of the table (`# one`)"]),
        ),
        ("numpy.txt", rows("# a b label", |_, [a, b], label| format!("{a:e} {b:e} {label:e}")), read(2, &[])),
        (
            "flags.csv",
            rows("a,b,label", |row, [a, _], label| {
                format!("{a},{},{label}", if row < 4 { "TRUE" } else { "FALSE" })
            }),
            read(2, &["words in `b` are read as numbers: `TRUE` is 1"]),
        ),
        (
            "shares.csv",
            rows("a,b,label", |_, [a, b], label| format!("{a}%,{b},{label}")),
            read(2, &["percentages in `a` are read as numbers: `0.25%` is 0.25"]),
        ),
        (
            "prices.csv",
            rows("a,b,label", |row, [a, _], label| format!("{a},\"${},500.00\",{label}", row + 1)),
            read(2, &["amounts in `b` are read as numbers: `$1,500.00` is 1500"]),
        ),
        (
            "dates.csv",
            rows("day,a,b,label", |row, [a, b], label| format!("2024-01-{:02},{a},{b},{label}", row + 1)),
            read(2, &["left out, because a model needs numbers: `day` (text, such as `2024-01-01`)"]),
        ),
        (
            "mostly-missing.csv",
            rows("a,b,label", |row, [a, b], label| {
                format!("{a},{},{label}", if row < 8 { "NA".to_owned() } else { b.to_string() })
            }),
            read(1, &["left out, because a model needs numbers: `b` (no number in 8 of 10 rows)"]),
        ),
        (
            "trailing.csv",
            rows("a,b,label,", |_, [a, b], label| format!("{a},{b},{label},")),
            read(2, &["left out, because a model needs numbers: column 4 (empty)"]),
        ),
        ("first.csv", rows("", |_, [a, b], label| format!("{label},{a},{b}")), read(2, &[UNNAMED])),
        (
            "nulls.csv",
            rows("a,b,label", |row, [a, b], label| {
                format!("{a},{},{label}", if row == 3 { "null".to_owned() } else { b.to_string() })
            }),
            Refused(", line 5, column 2: a number is missing (`null`)"),
        ),
        (
            "mixed.csv",
            rows("a,b,label", |row, [a, b], label| {
                format!("{a},{},{label}", if row == 3 { "much".to_owned() } else { b.to_string() })
            }),
            Refused(", line 5, column 2: `much` is not a number"),
        ),
        (
            "metadata.csv",
            rows("Station,Berlin\na,b,c,label", |_, [a, b], label| format!("{a},{b},1,{label}")),
            Refused(", line 1: the first row has 2 cells, but most rows have 4"),
        ),
        (
            "ragged.csv",
            rows(
                "a,b,label",
                |row, [a, b], label| if row == 3 { format!("{a},{b}") } else { format!("{a},{b},{label}") },
            ),
            Refused(", line 5: the row has 2 cells, but the first row has 3"),
        ),
        (
            "one-column.csv",
            rows("label", |_, _, label| label.to_string()),
            Refused(": there is no column besides the label"),
        ),
        ("header.csv", b"a,b,label\n".to_vec(), Refused(": there are no rows below the header")),
        ("empty.csv", b"".to_vec(), Refused(": the file is empty")),
        (
            "utf-16be.csv",
            String::from_utf8(rows("a,b,label", plain))
                .unwrap()
                .encode_utf16()
                .flat_map(u16::to_be_bytes)
                .collect(),
            read(2, &["the text is read as utf-16be"]),
        ),
        (
            "utf-32.csv",
            String::from_utf8(rows("a,b,label", plain))
                .unwrap()
                .chars()
                .flat_map(|c| (c as u32).to_le_bytes())
                .collect(),
            Refused(": this is text in UTF-32, which is not supported; save it as UTF-8"),
        ),
    ] {
        assert_outcome(name, &bytes, &expected);
    }
}

#[test]
fn a_given_encoding_is_used_and_a_wrong_one_is_refused() {
    let bytes = case("latin_merge.csv");
    let with = |encoding: &str| {
        let run = RunFile::parse(&format!("[data]\nfile = \"f.csv\"\nencoding = \"{encoding}\"")).unwrap();
        resolve(&run, "f.csv", &bytes)
    };
    let Target::Class { classes } = with("iso-8859-2").unwrap().data.target else { panic!("classes") };
    assert_eq!(classes.len(), 3);
    assert_eq!(
        with("utf-8").unwrap_err().to_string(),
        "f.csv, line 2: the bytes are not text in utf-8; save the file as UTF-8, or set `encoding` in [data] to the encoding that it has"
    );
}

#[test]
fn further_kinds_of_libsvm_files_are_refused_in_their_own_words() {
    for (text, words) in [
        (
            "0:0.5 1:1 2:3\n1:0.25 1:2 2:1\n",
            ", line 1: the line begins with the feature `0:0.5`, and not with a label",
        ),
        ("1:0.5 1:1 2:3\n", ", line 1: `1:0.5` is a label with the weight of its sample"),
        ("-1:0.5 1:1 2:3\n", ", line 1: `-1:0.5` is a label with the weight of its sample"),
        ("1:1 2:3\n1:2 2:5\n", ", line 1: the line begins with the feature `1:1`"),
        ("cat 1:1 2:3\ndog 1:2 2:1\n", ", line 1: the label `cat` is not a finite number"),
        ("1 -1:1 2:3\n", ", line 1: the index of `-1:1` is negative"),
        ("1,2 3:1\n", ", line 1: `1,2` are several labels"),
    ] {
        assert_outcome("f.svm", text.as_bytes(), &Refused(words));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// `start` takes what `init` writes, and all peers read it: also for files that are nearly like those of the collection.
    #[test]
    fn altered_files_are_read_or_refused(
        file in prop::sample::select(vec![
            "plain.csv", "semi_deccomma.csv", "space.txt", "pipe.csv", "latin_merge.csv", "bom_quoted.csv", "quoted_newline.csv",
            "label_NA.csv", "multilabel.svm", "comment.svm", "two_rows.csv", "label_first_higgs.csv",
        ]),
        head in "(sep=;\n|# [a-c ,;]{0,6}\n|[A-C]{1,3}\n|,,\n|\n){0,2}",
        changes in prop::collection::vec((0_usize..400, "[0-9a-z,;|\t .%$\"\n\r#?:+-]{0,3}"), 0..4),
    ) {
        let mut bytes = case(file);
        for (place, text) in changes {
            let place = place.min(bytes.len());
            bytes.splice(place..(place + 1).min(bytes.len()), text.bytes());
        }
        let bytes = [head.as_bytes(), &bytes].concat();
        if let Ok((found, _)) = specification("f.csv", &bytes) {
            prop_assert!(found.load(&bytes).is_ok());
            let parameters = vec![0.0; found.manifest().parameter_count()];
            // The same table as another file, with a blank line at its end.
            let other = found.evaluate(&parameters, "g.csv", [&bytes, &b"\n"[..]].concat(), &None);
            prop_assert!(other.is_ok(), "{:?}", other);
        }
    }

    /// The same numbers and labels come out of a table however it is written.
    #[test]
    fn a_table_reads_back_from_any_dialect(
        rows in prop::collection::vec((-99_999..99_999_i32, -99_999..99_999_i32, -999..999_i32), 12..30),
        digits in [0_usize..=4, 0_usize..=4, 0_usize..=4],
        (delimiter, ends, mark) in (0_usize..5, 0_usize..3, prop::sample::select(vec!['.', ','])),
        (header, preamble, is_quoted) in (any::<bool>(), 0_usize..4, any::<bool>()),
        encoding in 0_usize..5,
    ) {
        // Three digits behind every comma are thousands as well.
        prop_assume!(mark == '.' || digits.iter().any(|&digits| !matches!(digits, 0 | 3)));
        const LABELS: [&str; 3] = ["rot", "gr\u{fc}n", "gr\u{f6}n"];
        let separator = [",", ";", "\t", "|", "  "][delimiter];
        let end = ["\n", "\r\n", "\r"][ends];
        let number = |value: i32, digits: usize| f64::from(value) / [1.0, 10.0, 100.0, 1e3, 1e4][digits];
        let cell = |value: i32, digits: usize| {
            let text = format!("{:.digits$}", number(value, digits)).replace('.', &mark.to_string());
            if is_quoted || (separator == "," && mark == ',') { format!("\"{text}\"") } else { text }
        };
        let mut lines = vec![match preamble {
            1 => format!("# a comment{end}"),
            2 if separator != "  " => format!("sep={separator}{end}"),
            3 => format!("Title{end}{end}"),
            _ => String::new(),
        }];
        lines.extend(header.then(|| ["x", "\u{e4}", "z", "label"].join(separator) + end));
        for (row, &(a, b, c)) in rows.iter().enumerate() {
            let cells = [cell(a, digits[0]), cell(b, digits[1]), cell(c, digits[2]), LABELS[row % 3].to_owned()];
            lines.push(cells.join(separator) + end);
        }
        let text = lines.concat();
        let bytes: Vec<u8> = match encoding {
            0 => text.clone().into_bytes(),
            1 => ["\u{feff}", &text].concat().into_bytes(),
            2 => text.encode_utf16().flat_map(u16::to_le_bytes).collect(),
            3 => text.encode_utf16().flat_map(u16::to_be_bytes).collect(),
            _ => text.chars().map(|character| character as u8).collect(),
        };
        let (found, notices) = specification("f.csv", &bytes).map_err(TestCaseError::fail)?;
        let expected: Vec<f64> = (rows.iter())
            .flat_map(|&(a, b, c)| [number(a, digits[0]), number(b, digits[1]), number(c, digits[2])])
            .collect();
        prop_assert_eq!(table(&found, "f.csv", &bytes).features, expected, "{} {:#?}", text, notices);
        let Target::Class { classes } = found.data.target else { return Err(TestCaseError::fail("a number")) };
        prop_assert_eq!(classes.len(), 3);
        prop_assert!(encoding == 4 || classes.iter().all(|class| LABELS.contains(&class.as_str())), "{:?}", classes);
    }
}
