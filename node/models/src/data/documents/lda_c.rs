//! LDA-C: a line for each document, `N word:count word:count ...`, with N pairs of a word's number, from 0, and how often it occurs.

use std::str::SplitAsciiWhitespace;

use super::{Documents, DocumentsError, OCCURRENCES_MAX};
use crate::data::cells::shortened;

/// Whether a text is LDA-C: the first line with more than one field decides.
pub(super) fn is_lda_c(text: &str) -> bool {
    for line in text.lines() {
        let mut fields = line.split_ascii_whitespace();
        let Some(first) = fields.next() else { continue };
        if whole(first).is_none() {
            return false;
        }
        let mut rest = fields.peekable();
        if rest.peek().is_some() {
            // The numbers may be wrong: that is said of LDA-C with its line.
            let is_pair = |field: &str| field.split_once(':').is_some_and(|(word, _)| whole(word).is_some());
            return rest.all(is_pair);
        }
    }
    false
}

/// Reads the documents of a file with words below `vocabulary`.
pub(super) fn read(file: &str, text: &str, vocabulary: usize) -> Result<Documents, DocumentsError> {
    let mut documents = Documents::default();
    let mut words: Vec<u32> = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let mut fields = text.split_ascii_whitespace();
        let Some(stated) = fields.next() else { continue };
        let place = Place { file, line, vocabulary };
        let start = documents.entries.len();
        place.read_pairs(stated, fields, &mut documents.entries)?;
        words.clear();
        words.extend(documents.entries[start..].iter().map(|&(word, _)| word));
        words.sort_unstable();
        if let Some(repeated) = words.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(DocumentsError::Repeated { file: file.to_owned(), line, word: repeated[0] });
        }
        documents.end_document(file)?;
    }
    Ok(documents)
}

/// A line, for errors, and how many words there are.
struct Place<'a> {
    file: &'a str,
    line: u64,
    vocabulary: usize,
}

impl Place<'_> {
    /// Adds the pairs of the line to `entries`; `stated` is its first field.
    fn read_pairs(
        &self,
        stated: &str,
        fields: SplitAsciiWhitespace<'_>,
        entries: &mut Vec<(u32, u32)>,
    ) -> Result<(), DocumentsError> {
        let file = || self.file.to_owned();
        let shown = |text: &str| shortened(text.as_bytes());
        let line = self.line;
        let Some(count) = whole(stated) else {
            return Err(DocumentsError::NotLdaC { file: file(), line, found: shown(stated) });
        };
        let start = entries.len();
        for field in fields {
            let no_pair = || DocumentsError::NotAPair { file: file(), line, found: shown(field) };
            let (word, times) = field.split_once(':').ok_or_else(no_pair)?;
            let word = whole(word).ok_or_else(no_pair)?;
            if word >= self.vocabulary as u64 {
                let (word, count) = (word.to_string(), self.vocabulary);
                return Err(DocumentsError::Outside { file: file(), line, word, count });
            }
            match whole(times).filter(|times| (1..=OCCURRENCES_MAX).contains(times)) {
                Some(times) => entries.push((word as u32, times as u32)),
                None => return Err(DocumentsError::Count { file: file(), line, found: shown(field) }),
            }
        }
        let found = entries.len() - start;
        if found as u64 != count {
            return Err(DocumentsError::PairCount { file: file(), line, stated: shown(stated), found });
        }
        Ok(())
    }
}

/// A whole number from 0 on, without a sign.
fn whole(text: &str) -> Option<u64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}
