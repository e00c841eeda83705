//! Stop words: words of the grammar, which occur in all texts and say nothing about what one is about.

use std::collections::BTreeSet;

use super::text::words;

/// Words that no vocabulary has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopWords(BTreeSet<String>);

impl StopWords {
    /// No words.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Those of English.
    #[must_use]
    pub fn english() -> Self {
        Self::of_list(ENGLISH)
    }

    /// The words of a text, such as a list with one word a line. They are read as those of documents are: `don't` is `don`.
    #[must_use]
    pub fn of_list(text: &str) -> Self {
        Self(words(text).collect())
    }

    pub(super) fn contains(&self, word: &str) -> bool {
        self.0.contains(word)
    }
}

/// Articles, pronouns, prepositions, conjunctions, auxiliary verbs, some adverbs, and what is left of a shortened `not`. Words of one or two
/// letters are not needed: they are never part of a vocabulary.
const ENGLISH: &str = "
    the
    you she him her his hers its our ours they them their theirs your yours mine
    myself yourself himself herself itself ourselves yourselves themselves oneself
    this that these those here there
    who whom whose which what when where why how whether
    whoever whatever whichever whenever wherever however
    and but nor for yet because since although though unless until while whereas than
    with from into onto upon about above across after against along among amid around before behind below beneath beside besides
    between beyond during except inside near off out over past per through throughout toward towards under underneath via within without
    are was were been being has had have having does did doing done
    can could may might must shall should will would ought cannot let
    not all any both each either neither every few less least many more most much none one other others another same several some such
    anybody anyone anything everybody everyone everything nobody nothing somebody someone something
    again almost already also always else even ever hence instead just maybe never now often once only perhaps quite rather
    sometimes soon still then thence therefore thus too very well
    don didn doesn isn aren wasn weren ain couldn wouldn shouldn hasn hadn mustn needn mightn
";
