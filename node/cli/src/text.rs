//! Text: what happens to a peer and how it is, as words for people and as JSON for programs.
//!
//! Below both the commands and the status, which say the same things in the same words.

pub(crate) mod change_text;
pub(crate) mod event_json;
pub(crate) mod event_text;
pub(crate) mod quantities;
pub mod text_table;
pub(crate) mod wrapping;
