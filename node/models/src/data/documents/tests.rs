use proptest::prelude::*;

use super::text::{split, words};
use super::*;

fn choice() -> VocabularyChoice {
    VocabularyChoice { min_documents: None, max_share: 1.0, stop_words: StopWords::none(), size: 100 }
}

fn list(vocabulary: &Vocabulary) -> Vec<&str> {
    let Vocabulary::Words(words) = vocabulary else { panic!("it has texts") };
    words.iter().map(String::as_str).collect()
}

fn documents(corpus: &Corpus) -> Vec<Vec<u32>> {
    (0..corpus.documents()).map(|document| corpus.words(document).to_vec()).collect()
}

#[test]
fn words_are_runs_of_letters_in_lower_case() {
    let of = |text: &str| words(text).collect::<Vec<_>>();
    assert_eq!(of("The cat's ROPE-ladder, no. 42: x1y2z it"), ["the", "cat", "rope", "ladder"]);
    assert_eq!(
        of("don't l'homme d’été naïve ΛΌΓΟΣ слово"),
        ["don", "homme", "été", "naïve", "λόγος", "слово"]
    );
    assert_eq!(
        of("cafe\u{301} ta\u{300}"),
        ["cafe\u{301}"],
        "an accent belongs to its letter and counts as none"
    );
    assert_eq!(of(&"a".repeat(64)).len(), 1);
    assert_eq!(of(&format!("{} ab", "a".repeat(65))), Vec::<String>::new());
}

#[test]
fn documents_are_lines_or_what_is_between_separators() {
    let text = "Title\n\nCHAPTER 1\nIt was.\r\n\r\n  Chapter 2\nIt is.\nchap";
    assert_eq!(split(text, None).len(), 6);
    assert_eq!(
        split(text, Some("")),
        ["Title\n", "\nCHAPTER 1\nIt was.\r\n", "\r\n  Chapter 2\nIt is.\nchap"]
    );
    let chapters = ["Title\n\n", "CHAPTER 1\nIt was.\r\n\r\n", "  Chapter 2\nIt is.\nchap"];
    assert_eq!(split(text, Some("Chapter ")), chapters);
    assert_eq!(split("", None), Vec::<&str>::new());
    assert_eq!(split("\n \n", Some("x")), Vec::<&str>::new());
}

#[test]
fn a_vocabulary_has_the_words_that_tell_documents_apart() {
    let text = "the cat sat\nthe dog sat sat\nthe bird\n";
    let of = |changed: VocabularyChoice| Vocabulary::choose("f.txt", text, None, &changed);
    assert_eq!(list(&of(choice()).unwrap()), ["bird", "cat", "dog", "sat", "the"]);
    let half = VocabularyChoice { max_share: 0.7, ..choice() };
    assert_eq!(list(&of(half.clone()).unwrap()), ["bird", "cat", "dog", "sat"]);
    assert_eq!(list(&of(VocabularyChoice { min_documents: Some(2), ..half.clone() }).unwrap()), ["sat"]);
    let english = VocabularyChoice { stop_words: StopWords::english(), ..choice() };
    assert_eq!(list(&of(english).unwrap()), ["bird", "cat", "dog", "sat"]);
    let own = VocabularyChoice { stop_words: StopWords::of_list("Sat\ndog\n"), ..choice() };
    assert_eq!(list(&of(own).unwrap()), ["bird", "cat", "the"]);
    let frequent = VocabularyChoice { size: 3, ..choice() };
    assert_eq!(list(&of(frequent).unwrap()), ["bird", "sat", "the"], "of equally frequent ones the first");
    let none = of(VocabularyChoice { min_documents: Some(3), ..half }).unwrap_err();
    assert_eq!(
        none.to_string(),
        "f.txt: no word is left for the vocabulary: of 5 words in 3 documents, 0 are stop words, 4 are in fewer than 3 documents, and 1 in more \
         than a share of 0.7 of them; change `min_documents`, `max_share` or `stop_words` in [data], or `separator` if these are not the documents"
    );
    let error = Vocabulary::choose("f.txt", text, Some("Part "), &choice()).unwrap_err().to_string();
    assert!(error.starts_with("f.txt: no line begins with `Part `; set `separator` in [data]"), "{error}");
}

#[test]
fn a_rare_word_is_one_in_fewer_than_five_documents_or_one_in_ten() {
    let of = |documents: usize| {
        let line = |number: usize| if number < 5 { "common five" } else { "common" };
        let text: String = (0..documents).map(|number| line(number).to_owned() + "\n").collect();
        Vocabulary::choose("f", &format!("{text}four four\n{}", "four\n".repeat(3)), None, &choice()).unwrap()
    };
    assert_eq!(list(&of(46)), ["common", "five"], "fifty documents");
    assert_eq!(list(&of(45)), ["common", "five", "four"], "forty-nine");
}

#[test]
fn texts_are_read_with_a_vocabulary() {
    let vocabulary = Vocabulary::Words(vec!["cat".into(), "sat".into()]);
    let read = |text: &str| Documents::read("f", text, DocumentForm::Text, None, &vocabulary);
    let found = read("The Cat sat.\n\nNobody\nA cat! Cat sat, cat\n").unwrap();
    assert_eq!(documents(&found.corpus(2)), [vec![0, 1], vec![0, 0, 1, 0]]);
    assert_eq!((found.count(), found.token_count(), found.left_out(), found.words()), (2, 6, 1, 2));
    assert_eq!(found.numbers(), [1, 3]);
    assert_eq!(
        read("Nobody\nnothing\n").unwrap_err().to_string(),
        "f: none of 2 documents has a word of the vocabulary"
    );
    assert!(text_of("f", b"a\nb\xff").unwrap_err().to_string().starts_with("f, line 2: this is not UTF-8"));
    assert!(
        text_of("f", b"\xfd7zXZ\0\0\x04")
            .unwrap_err()
            .to_string()
            .contains("an xz archive; give a text in UTF-8")
    );
    assert_eq!(text_of("f", b"\xef\xbb\xbfcat"), Ok("cat"));
}

#[test]
fn counts_are_read_and_what_is_wrong_is_named_with_its_line() {
    let read = |text: &str| Documents::read("f", text, DocumentForm::LdaC, None, &Vocabulary::Numbered(3));
    let found = read("2 0:1 2:2\r\n0\n\n1\t1:1\n").unwrap();
    assert_eq!(documents(&found.corpus(3)), [vec![0, 2, 2], vec![1]]);
    assert_eq!((found.left_out(), found.numbers()), (1, &[1, 3][..]));
    for (text, words) in [
        ("1 0:1\n1 3:1", "f, line 2: there is no word 3: the vocabulary has 3 words, numbered from 0"),
        ("1 99999999999999999999:1", "f, line 1: `99999999999999999999:1` is no pair"),
        ("1 0:0", "f, line 1: the count of `0:0` is not a whole number from 1 to 16777216"),
        ("1 0:-1", "the count of `0:-1`"),
        ("1 0:1.5", "the count of `0:1.5`"),
        ("1 0:16777217", "the count of `0:16777217`"),
        ("2 0:1", "f, line 1: the line says that it has 2 pairs `word:count`, and has 1"),
        ("1 0:1 1:1", "says that it has 1 pairs"),
        ("2 0:1 0:2", "f, line 1: word 0 has two counts"),
        ("1 -1:1", "`-1:1` is no pair"),
        ("1 0", "`0` is no pair `word:count`"),
        ("cat 0:1", "f, line 1: `cat` is no number of pairs"),
        ("0\n0\n", "f: none of 2 documents has a word"),
        ("1 0:16777216\n1 0:1", "f: the word `0` occurs 16777217 times, and at most 16777216"),
    ] {
        let error = read(text).unwrap_err().to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
    let many = (0..17).map(|word| format!("1 {word}:16777216\n")).collect::<String>();
    let error = Documents::read("f", &many, DocumentForm::LdaC, None, &Vocabulary::Numbered(17)).unwrap_err();
    assert_eq!(error, DocumentsError::TooManyTokens { file: "f".into(), tokens: 17 << 24 });
}

#[test]
fn the_form_is_that_of_the_first_line_with_more_than_a_number() {
    for text in ["2 0:1 1:1\n", "0\n\n3 0:1", "1 0:x", "7 1:1\n"] {
        assert_eq!(DocumentForm::of(text), DocumentForm::LdaC, "{text}");
    }
    for text in
        ["", "12", "The 2 0:1", "2 cats 0:1", "1984\nIt was a bright cold day", "+1 3:0.5", "2 0:1 cats"]
    {
        assert_eq!(DocumentForm::of(text), DocumentForm::Text, "{text}");
    }
}

#[test]
fn a_list_of_words_is_a_vocabulary() {
    let of = |text: &str| Vocabulary::of_list("v.txt", text);
    let vocabulary = of("cat\r\nnew york\n\n").unwrap();
    assert_eq!(list(&vocabulary), ["cat", "new york"]);
    assert_eq!((vocabulary.word(1), vocabulary.word(2)), ("new york".into(), "2".into()));
    assert_eq!(Vocabulary::Numbered(9).word(7), "7");
    let error = |text: &str| of(text).unwrap_err().to_string();
    assert_eq!(
        error("cat\ndog\ncat"),
        "v.txt, line 3: the word `cat` is in line 1 already; each word has one line"
    );
    assert_eq!(error("cat\n\ndog"), "v.txt, line 2: the line is empty; a vocabulary has one word a line");
    assert_eq!(error(""), "v.txt: the vocabulary has 0 words; 1 to 1048576 are supported");
    assert_eq!(Vocabulary::Numbered(0).problem(), Some("its vocabulary has too many words, or none"));
    let twice = Vocabulary::Words(vec!["a".into(), "b".into(), "a".into()]);
    assert_eq!(twice.problem(), Some("a word is twice in its vocabulary"));
    let lines = Vocabulary::Words(vec!["a\nb".into()]);
    assert_eq!(lines.problem(), Some("a word of its vocabulary is none"));
    assert_eq!(vocabulary.problem(), None);
}

proptest! {
    #[test]
    fn no_text_panics(text in "([a-c ']{0,4}|[é\u{301}\n\r]|chapter |\\PC){0,40}", separator in proptest::option::of("(chapter )?")) {
        let separator = separator.as_deref();
        for form in [DocumentForm::Text, DocumentForm::LdaC, DocumentForm::of(&text)] {
            _ = Documents::read("f", &text, form, separator, &Vocabulary::Numbered(3));
        }
        if let Ok(vocabulary) = Vocabulary::choose("f", &text, separator, &choice()) {
            let found = Documents::read("f", &text, DocumentForm::Text, separator, &vocabulary).unwrap();
            let corpus = found.corpus(vocabulary.count());
            prop_assert_eq!(corpus.token_count() as u64, found.token_count());
            let all = split(&text, separator);
            prop_assert_eq!(all.len(), (found.count() + found.left_out()) as usize);
            for (document, number) in (0..).zip(found.numbers()) {
                let read: Vec<_> = corpus.words(document).iter().map(|word| vocabulary.word(*word).into_owned()).collect();
                let expected: Vec<_> =
                    words(all[*number as usize - 1]).filter(|word| list(&vocabulary).contains(&word.as_str())).collect();
                prop_assert_eq!(read, expected);
            }
        }
    }

    #[test]
    fn counts_are_read_as_they_were_written(counts in proptest::collection::vec(proptest::collection::btree_map(0_u32..9, 1_u32..50, 0..6), 1..20)) {
        let line = |document: &std::collections::BTreeMap<u32, u32>| {
            let pairs: String = document.iter().map(|(word, times)| format!(" {word}:{times}")).collect();
            format!("{}{pairs}\n", document.len())
        };
        let text: String = counts.iter().map(line).collect();
        let kept: Vec<_> = counts.iter().filter(|document| !document.is_empty()).collect();
        match Documents::read("f", &text, DocumentForm::LdaC, None, &Vocabulary::Numbered(9)) {
            Err(error) => prop_assert!(kept.is_empty(), "{}", error),
            Ok(found) => {
                let corpus = found.corpus(9);
                prop_assert_eq!(corpus.documents() as usize, kept.len());
                for (document, expected) in (0..).zip(kept) {
                    let mut counted = std::collections::BTreeMap::new();
                    corpus.words(document).iter().for_each(|&word| *counted.entry(word).or_insert(0) += 1);
                    prop_assert_eq!(&counted, expected);
                }
            }
        }
    }
}
