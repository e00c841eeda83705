//! Documents of plain text, and the words in them.
//!
//! A word is a run of letters of any script, in lower case, with 3 to 64 of them. Everything else ends a word, an apostrophe too: `Darcy's` is
//! `darcy`, `don't` is `don`, and `l'homme` is `homme`. An accent that is a character of its own belongs to its letter.

use super::vocabulary::Vocabulary;
use super::{Documents, DocumentsError};

/// The fewest letters of a word. Shorter ones mostly have no meaning of their own.
const LETTERS_MIN: usize = 3;
/// The most letters of a word: what is longer is no word of a language.
const LETTERS_MAX: usize = 64;

/// Reads the documents of a text.
pub(super) fn read(
    file: &str,
    text: &str,
    separator: Option<&str>,
    vocabulary: &Vocabulary,
) -> Result<Documents, DocumentsError> {
    let known = vocabulary.numbers();
    let mut documents = Documents::default();
    for document in split(text, separator) {
        let words = words(document).filter_map(|word| known.get(word.as_str()).copied());
        documents.entries.extend(words.map(|word| (word, 1)));
        documents.end_document(file)?;
    }
    Ok(documents)
}

/// The documents of a text, without empty ones. What stands before the first separator is one as well.
pub(super) fn split<'a>(text: &'a str, separator: Option<&str>) -> Vec<&'a str> {
    let separator = separator.map(str::to_lowercase);
    let (mut documents, mut start, mut at) = (Vec::new(), 0, 0);
    for line in text.split_inclusive('\n') {
        let begins = match separator.as_deref() {
            None => true,
            Some("") => line.trim().is_empty(),
            Some(separator) => begins_with(line, separator),
        };
        if begins {
            documents.push(&text[start..at]);
            start = at;
        }
        at += line.len();
    }
    documents.push(&text[start..]);
    documents.retain(|document| !document.trim().is_empty());
    documents
}

/// Whether a line begins with this text, which is in lower case, behind spaces.
pub(super) fn begins_with(line: &str, separator: &str) -> bool {
    let mut line = line.trim_start().chars().flat_map(char::to_lowercase);
    separator.trim_start().chars().all(|expected| line.next() == Some(expected))
}

/// The words of a text, in its order.
pub(super) fn words(text: &str) -> impl Iterator<Item = String> {
    let runs = text.split(|character: char| !character.is_alphabetic() && !is_accent(character));
    let is_word = |run: &&str| {
        let letters = run.chars().filter(|character| character.is_alphabetic()).take(LETTERS_MAX + 1).count();
        (LETTERS_MIN..=LETTERS_MAX).contains(&letters)
    };
    runs.filter(is_word).map(str::to_lowercase)
}

/// Whether a character is an accent of the letter before it.
fn is_accent(character: char) -> bool {
    ('\u{300}'..='\u{36f}').contains(&character)
}
