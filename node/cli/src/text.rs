//! Text: the only place that turns events and states into sentences for people and JSON for programs.
//!
//! Commands and the status service both depend on it, so they say the same thing in the same words. It depends on neither.

pub(crate) mod change_text;
pub(crate) mod event_json;
pub(crate) mod event_text;
pub(crate) mod printable;
pub(crate) mod quantities;
pub(crate) mod summary_text;
pub mod text_table;
pub(crate) mod wrapping;
