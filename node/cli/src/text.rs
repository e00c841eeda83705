//! Text that only commands print: quantities, and lines that fit a terminal.
//!
//! What they say of events and states is in [`peergrad_embed::text`].

pub(crate) mod quantities;
pub(crate) mod wrapping;
