use super::*;

fn layout_of(bytes: &[u8], hints: &ColumnHints) -> Result<Inferred<FileLayout>, FormatError> {
    ratings_layout("f.csv", bytes, hints)
}

fn read(bytes: &[u8]) -> Result<Ratings, FormatError> {
    let layout = layout_of(bytes, &ColumnHints::default())?.layout;
    Ok(Ratings::read("f.csv", bytes, &layout)?)
}

fn cells(texts: &LabelTexts) -> Vec<&str> {
    texts.rows().iter().map(|&cell| texts.distinct()[cell as usize].text.as_str()).collect()
}

/// Users, items and values, row by row.
fn rows(ratings: &Ratings) -> Vec<[&str; 3]> {
    let pairs = cells(&ratings.users).into_iter().zip(cells(&ratings.items));
    pairs.zip(cells(&ratings.values)).map(|((user, item), value)| [user, item, value]).collect()
}

fn hints(columns: &[&str], label: Option<&str>) -> ColumnHints {
    let name = |name: &&str| Column::Name((*name).to_owned());
    ColumnHints {
        features: (!columns.is_empty()).then(|| columns.iter().map(name).collect()),
        label: label.as_ref().map(name),
        ..ColumnHints::default()
    }
}

#[test]
fn columns_are_found_by_name_and_else_by_order() {
    let expected = [["bob", "p", "4.5"], ["ann", "q", "2"]];
    let found = read(b"user,item,rating\nbob,p,4.5\nann,q,2.0\n").unwrap();
    assert_eq!(rows(&found), expected);
    let found = read(b"timestamp,movieId,rating,userId\n7,p,4.5,bob\n8,q,2,ann\n").unwrap();
    assert_eq!(rows(&found), expected);
    let found = read(b"bob\tp\t4.5\t7\nann\tq\t2\t8\n").unwrap();
    assert_eq!(rows(&found), expected);
    let notices = |bytes: &[u8]| layout_of(bytes, &ColumnHints::default()).unwrap().notices;
    assert_eq!(notices(b"userId,movieId,rating\nbob,p,4.5\nann,q,2.0\n"), Vec::<String>::new());
    let notices = notices(b"bob,p,4.5\nann,q,2\n");
    assert!(notices[0].starts_with("users are taken from column 1, items from column 2"), "{notices:?}");
}

#[test]
fn hints_name_the_columns() {
    const FILE: &[u8] = b"a,b,c,d\n1,2,3,4\n5,6,7,8\n";
    let columns = |hints: &ColumnHints| match layout_of(FILE, hints) {
        Ok(Inferred { layout: FileLayout::Csv(layout), .. }) => Ok((layout.features, layout.label)),
        Ok(_) => unreachable!("it is CSV"),
        Err(error) => Err(error.to_string()),
    };
    assert_eq!(columns(&hints(&["d", "b"], Some("a"))), Ok((vec![3, 1], 0)));
    assert_eq!(columns(&hints(&["c", "a"], None)), Ok((vec![2, 0], 1)));
    assert_eq!(columns(&hints(&[], Some("b"))), Ok((vec![0, 2], 1)));
    let error = |hints: &ColumnHints| columns(hints).unwrap_err();
    assert!(error(&hints(&["a"], None)).contains("`columns` names 1 columns; a file of ratings needs"));
    assert!(error(&hints(&["a", "b", "c"], None)).contains("names 3 columns"));
    assert!(error(&hints(&["a", "a"], None)).contains("one column is named twice"));
    assert!(error(&hints(&["a", "b"], Some("b"))).contains("one column is named twice"));
    assert!(error(&hints(&["a", "z"], None)).contains("there is no column named `z`"));
    assert!(
        error(&ColumnHints { width: Some(3), ..ColumnHints::default() }).contains("`features` in [data]")
    );
}

#[track_caller]
fn assert_refused(bytes: &[u8], words: &str) {
    let error = read(bytes).unwrap_err().to_string();
    assert!(error.contains(words), "{error}");
}

#[test]
fn files_that_are_no_ratings_are_refused_with_their_place() {
    assert_refused(b"", "f.csv: the file is empty");
    assert_refused(b"user,item,rating\n", "there are no rows below the header");
    assert_refused(
        b"user,rating\nbob,4\nann,2\n",
        "f.csv: the file has 2 columns; a file of ratings needs a column",
    );
    assert_refused(b"1::2::3\n4::5::1\n", "in place of `::`");
    assert_refused(b"+1 2:0.5\n-1 3:1\n", "this is a LIBSVM file, but ratings are read from a CSV file");
    let head = "user,item,rating\nbob,p,4\n";
    for (row, words) in [
        ("ann,q\n", "line 3: the row has 2 cells, but the first row has 3"),
        (",q,2\n", "f.csv, line 3, column 1: the user is empty; fill it in or delete the row"),
        ("ann, ,2\n", "line 3, column 2: the item is empty"),
        ("ann,q,\n", "line 3, column 3: the rating `` is not a finite 32-bit number"),
        ("ann,q,good\n", "the rating `good` is not a finite"),
        ("ann,q,nan\n", "the rating `nan` is not a finite"),
        ("ann,q,1e99\n", "the rating `1e99` is not a finite"),
    ] {
        assert_refused(format!("{head}{row}").as_bytes(), words);
    }
}

#[test]
fn a_second_rating_of_an_item_is_refused_with_both_lines() {
    let text = "user,item,rating\nbob,p,4\nann,p,4\n\nbob,q,1\nbob,p,4.5\nann,p,4\n";
    assert_refused(
        text.as_bytes(),
        "f.csv, line 6: user `bob` has rated item `p` already, in line 2 (4 there, 4.5 here); keep one of the two rows",
    );
    assert_refused(text.replace("4.5", "4.0").as_bytes(), "in line 2 (both rate it 4)");
}

#[test]
fn pairs_need_no_ratings() {
    const NAMED: &[u8] = b"item,user,rating\np,bob,4.5\nq,ann,2\n";
    let pairs = |trained: &[u8], bytes: &[u8]| {
        let trained = layout_of(trained, &ColumnHints::default()).unwrap().layout;
        let layout = pairs_layout(&trained, "p.csv", bytes).map_err(|error| error.to_string())?.layout;
        let found = Ratings::read_pairs("p.csv", bytes, &layout).map_err(|error| error.to_string())?;
        assert_eq!(found.values.rows().len(), 0);
        Ok((cells(&found.users).join(" "), cells(&found.items).join(" ")))
    };
    let expected: Result<_, String> = Ok(("ann bob ann".to_owned(), "p q p".to_owned()));
    assert_eq!(pairs(NAMED, b"user,item\nann,p\nbob,q\nann,p\n"), expected);
    assert_eq!(pairs(NAMED, b"item,note,user\np,3,ann\nq,3,bob\np,2,ann\n"), expected);
    assert_eq!(pairs(NAMED, b"p,ann\nq,bob\np,ann\n"), expected, "in the order of the training file");
    const UNNAMED: &[u8] = b"bob,p,4.5,881\nann,q,2,882\n";
    assert_eq!(pairs(UNNAMED, b"ann,p\nbob,q\nann,p\n"), expected);
    assert_eq!(pairs(UNNAMED, b"ann,p,0,0\nbob,q,0,0\nann,p,0,0\n"), expected);
    assert!(pairs(UNNAMED, b"ann\nbob\n").unwrap_err().contains("the model was trained on 4"));
    assert!(pairs(NAMED, b"user,rating\nann,2\n").unwrap_err().contains("`item`"));
}

#[test]
fn rows_follow_from_the_ids_and_unknown_ones_are_named() {
    let ratings = read(b"u,v,w\n7,p,1\n3,p,2\n4,q,3\n").unwrap();
    let ids = Ids::of(&ratings.users);
    assert_eq!(rows_of(&ids, &ratings.users, "f.csv", "user").unwrap(), [2, 0, 1]);
    let other = read(b"u,v,w\n7,p,1\n8,p,2\n5,q,3\n").unwrap();
    let error = rows_of(&ids, &other.users, "g.csv", "user").unwrap_err().to_string();
    let expected = "g.csv, line 3: the model knows no user `8` (it knows 3: 3-4, 7); delete the rows of this user, or train again";
    assert!(error.starts_with(expected), "{error}");
}
