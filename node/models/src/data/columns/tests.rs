//! What is inferred of the columns of a CSV file, and what the notices say.

use super::*;

fn infer(bytes: &[u8]) -> Columns {
    Columns::infer("f", bytes, &ColumnHints::default()).unwrap().layout
}

fn notices(bytes: &[u8]) -> String {
    Columns::infer("f", bytes, &ColumnHints::default()).unwrap().notices.join("\n")
}

#[test]
fn a_header_is_a_word_above_a_number() {
    assert!(infer(b"x,y\n1,2\n").header);
    assert!(infer(b"1,y\n1,2\n").header);
    assert!(!infer(b"1,cat\n2,dog\n").header);
    assert!(!infer(b"1,2\n3,4\n").header);
    assert!(!infer(b"x,y\n").header);
    assert!(!infer(b"5.1,?,0\n4.9,3.0,1\n").header, "a missing number is no name");
    assert!(infer(b",x,y\n0,1,2\n").header, "a column of row numbers often has none");
    assert!(infer(b"x,y\n,2\n1,3\n").header, "the first number may be missing");
    assert!(infer(b"x;y\n1,5;a\n").header, "numbers with decimal commas");
    assert!(infer(b"on,off,y\nTRUE,no,1\nFALSE,yes,0\n").header);
    assert!(!infer(b"TRUE,cat\nFALSE,dog\n").header);
}

#[test]
fn a_header_may_count_the_columns() {
    assert!(infer(b"0,1,2,3\n5.1,3.5,1.4,0\n").header);
    assert!(infer(b",0,1,2,3\n0,5.1,3.5,1.4,0\n").header);
    assert!(infer(b"0,1,2,species\n5.1,3.5,1.4,setosa\n").header);
    assert!(!infer(b"0,1,2,3\n").header);
    assert!(!infer(b"0,1,1\n5,3,0\n").header);
}

#[test]
fn the_label_column_is_found_by_its_name_or_is_the_last() {
    assert_eq!(infer(b"Label,x,y\n0,1,2\n").label, 0);
    assert_eq!(infer(b"x,class,y,target\n0,1,2,3\n").label, 3);
    assert_eq!(infer(b"x,y\n0,1\n").label, 1);
    assert_eq!(infer(b"label,x\nlabel,x\n").label, 1, "no header, no names");
    assert_eq!(infer(b"1,2,0,\n3,4,1,\n").label, 2, "the last column is empty");
}

#[test]
fn the_delimiter_is_consistent_over_the_rows() {
    for (bytes, delimiter) in [
        (&b"1,2\n"[..], b','),
        (b"a;b;c,d\n", b';'),
        (b"\n1\t2\n", b'\t'),
        (b"1;2\n3,4,5,6", b';'),
        (b"-0,13;0,26;0\n1,84;-1,47;1\n", b';'),
        (b"\"height, cm\";\"weight, kg\";label\n1.5;2.5;0\n", b';'),
        (b"a|b|label\n1|2|0\n", b'|'),
        (b"1  2.5 \t 0\n 3 4 1\n", b' '),
        (b"1, 2.5, Iris setosa\n3, 4, Iris virginica\n", b','),
        (b"2024-01-01 12:00:00,5,0\n2024-01-02 12:30:00,6,1\n", b','),
        (b"1\t2,5\t0\n3\t4,5\t1\n", b'\t'),
        (b"Smith, John\t5\t0\nMiller, Ann\t6\t1\n", b'\t'),
        (b"1 2,5 0\n3 4,25 1\n", b' '),
    ] {
        assert_eq!(infer(bytes).delimiter, delimiter, "{}", String::from_utf8_lossy(bytes));
    }
}

#[test]
fn the_decimal_mark_is_the_one_that_cells_show() {
    let decimal = |bytes: &[u8]| infer(bytes).decimal;
    assert_eq!(decimal(b"a;b\n1,5;0\n"), Decimal::Comma);
    assert_eq!(decimal(b"\"1,5\",0\n\"2,25\",1\n"), Decimal::Comma, "cells in quotes");
    assert_eq!(decimal(b"\"1,234\",0\n\"900\",1\n"), Decimal::Point);
    assert_eq!(decimal(b"1,234;0\n900;1\n"), Decimal::Point, "900 is below 1,234");
    assert_eq!(decimal(b"1,234;a\n2,345;b\n"), Decimal::Comma, "always three decimals");
    assert_eq!(decimal(b"192.168.100.110,a\n192.168.100.111,b\n"), Decimal::Point, "addresses");
    assert_eq!(decimal(b"1.234.567;0\n1.234.568;1\n"), Decimal::Comma);
    assert_eq!(decimal(b"1.234,5;0\n2,5;1\n"), Decimal::Comma);
    assert!(
        notices(b"1,234;a\n2,345;b\n")
            .contains("numbers such as `1,234` are read as 1.234; set `decimal = \".\"`")
    );
    assert_eq!(notices(b"a;label\n1,5;0\n"), "", "no doubt, no notice");
}

#[test]
fn lines_before_the_table_are_skipped() {
    for (bytes, skip_lines) in [
        (&b"a,b\n1,2\n"[..], 0),
        (b"# made by a program\n# on a day\na,b\n1,2\n", 2),
        (b"sep=;\na;b\n1;2\n", 1),
        (b"My table\n\na,b,label\n1,2,0\n3,4,1\n", 2),
        (b"My table,,\na,b,label\n1,2,0\n3,4,1\n", 1),
        (b"\"A title, with a comma\"\r\na,b,label\r\n1,2,0\r\n3,4,1\r\n", 1),
        (b"# a b label\n1 2 0\n3 4 1\n", 0),
        (b"# about\n#a,b,label\n1,2,0\n3,4,1\n", 1),
        (b"#ff0000,1,0\n#00ff00,2,1\n", 0),
    ] {
        assert_eq!(infer(bytes).skip_lines, skip_lines, "{}", String::from_utf8_lossy(bytes));
    }
    assert_eq!(infer(b"# a b label\n1 2 0\n3 4 1\n").feature_names, ["a", "b"]);
    let words = notices(b"My table\na,b,label\n1,2,0\n3,4,1\n");
    assert_eq!(
        words,
        "line 1 is not part of the table (`My table`); set `skip_lines = 0` in [data] otherwise"
    );
}

#[test]
fn a_first_row_of_another_width_is_named() {
    let error =
        |bytes: &[u8]| Columns::infer("f.csv", bytes, &ColumnHints::default()).unwrap_err().to_string();
    assert_eq!(
        error(b"x,y\n1,2,0\n3,4,1\n"),
        "f.csv, line 1: the first row has 2 cells, but most rows have 3; complete it (each column needs a name), or set `skip_lines` in [data] to the number of lines before the table"
    );
}

#[test]
fn columns_have_notations() {
    let bytes = b"price,rate,flag,x,label\n\"$1,234\",5%,TRUE,1,0\n$5,7.5%,FALSE,2,1\n";
    let layout = infer(bytes);
    assert_eq!((layout.amounts.as_slice(), layout.percents.as_slice()), (&[0][..], &[1][..]));
    assert_eq!(layout.booleans, [2]);
    assert_eq!(
        notices(bytes),
        "amounts in `price` are read as numbers: `$1,234` is 1234\n\
         percentages in `rate` are read as numbers: `5%` is 5\n\
         words in `flag` are read as numbers: `TRUE` is 1"
    );
    assert_eq!(infer(b"flag,label\nTRUE,0\n0,1\n1,0\n").booleans, [0], "0 and 1 are the same");
    assert!(infer(b"x,label\n1,yes\n2,no\n").booleans.is_empty(), "labels are classes");
}

#[test]
fn the_error_for_an_unknown_column_lists_the_columns() {
    let error = |bytes: &[u8], label| {
        let hints = ColumnHints { label: Some(label), ..ColumnHints::default() };
        Columns::infer("f.csv", bytes, &hints).unwrap_err().to_string()
    };
    assert_eq!(
        error(b"x,y\n1,2\n", Column::Name("z".into())),
        "f.csv: there is no column named `z`; the columns are: x, y"
    );
    assert_eq!(
        error(b"1,2\n", Column::Number(0)),
        "f.csv: there is no column number 0; the file has columns 1 to 2 and no header"
    );
    assert_eq!(
        error(b"x,x\n1,2\n", Column::Name("x".into())),
        "f.csv: several columns are named `x`; give the number of the one that is meant"
    );
}

#[test]
fn columns_that_are_not_numbers_are_found() {
    let bytes = b"id,kind,x,empty,z\n7,a,,,2\n8,b,3,,4\n9,c,5,,6\n";
    let inferred = Columns::infer("f", bytes, &ColumnHints::default()).unwrap();
    assert_eq!(inferred.names, ["id", "kind", "x", "empty", "z"]);
    let unusable: Vec<_> =
        inferred.unusable.iter().map(|column| (column.index, column.reason.as_str())).collect();
    assert_eq!(inferred.incomplete, [(2, 1)]);
    assert_eq!(
        unusable,
        [(1, "text, such as `a`"), (3, "empty")],
        "one number of `x` is missing, which is an error later"
    );
}

#[test]
fn names_are_kept_or_replaced_by_their_digest() {
    let layout = infer(b"a,b,label\n1,2,0\n");
    assert_eq!(
        (layout.feature_names.as_slice(), layout.label_name.as_deref()),
        (&["a".into(), "b".into()][..], Some("label"))
    );
    let mut short = layout.clone();
    short.shorten_names();
    assert!(short.feature_names.is_empty() && short.label_name.is_none() && short.names_digest.is_some());
    assert_eq!((layout.problem(), short.problem()), (None, None));
    let long = "n".repeat(NAMES_BYTES_MAX);
    assert!(infer(format!("{long},label\n1,0\n").as_bytes()).names_digest.is_some());
}

#[test]
fn layouts_from_other_peers_are_checked() {
    let valid = infer(b"a,b,label\n$1,2%,0\n");
    assert_eq!(valid.problem(), None);
    let altered = |alter: fn(&mut Columns)| {
        let mut layout = valid.clone();
        alter(&mut layout);
        layout.problem()
    };
    for alter in [
        (|layout: &mut Columns| layout.delimiter = b'"') as fn(&mut Columns),
        |layout| layout.skip_lines = usize::MAX,
        |layout| layout.amounts = vec![3],
        |layout| layout.amounts = vec![usize::MAX],
        |layout| layout.booleans = vec![0],
        |layout| layout.percents = vec![1, 1],
        |layout| layout.feature_names = vec!["a".into()],
        |layout| layout.label_name = None,
        |layout| layout.names_digest = Some("00".repeat(32)),
        |layout| layout.header = false,
        |layout| layout.label = usize::MAX,
        |layout| layout.features = vec![usize::MAX],
        |layout| {
            layout.shorten_names();
            layout.names_digest = Some("x".into());
        },
    ] {
        assert!(altered(alter).is_some());
    }
}

#[test]
fn another_separator_is_named() {
    let error = |bytes: &[u8]| Columns::infer("f", bytes, &ColumnHints::default()).unwrap_err().to_string();
    let one = "f: there is no column besides the label: each row has a single cell; write commas, semicolons, tabs, | or spaces between the cells";
    assert_eq!(error(b"1\n2\n"), one);
    assert_eq!(error(b"a^b^label\n1^2^0\n"), format!("{one}, in place of `^`"));
    assert_eq!(error(b"1::2::0\n3::4::1\n"), format!("{one}, in place of `::`"));
    let hinted = |hints: ColumnHints| Columns::infer("f", b"1,2\n", &hints).unwrap_err().to_string();
    assert_eq!(
        hinted(ColumnHints { delimiter: Some(Delimiter::Pipe), ..ColumnHints::default() }),
        "f: there is no column besides the label: each row has a single cell; correct `delimiter` in [data]"
    );
    assert_eq!(
        hinted(ColumnHints { skip_lines: Some(7), ..ColumnHints::default() }),
        "f: no line is left after the first 7; correct `skip_lines` in [data]"
    );
}
