//! Text: the only place that turns events and states into sentences for people and JSON for programs.
//!
//! Commands and the status service both depend on it, so they say the same thing in the same words. It depends on neither.

pub mod change_text;
pub mod command_name;
pub mod event_json;
pub mod event_text;
pub mod printable;
pub mod summary_text;
pub mod text_table;
