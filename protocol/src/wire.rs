//! The wire format, in two layers.
//!
//! | layer | file | about |
//! |---|---|---|
//! | frames | `wire/frame.rs` | one message as bytes: its prefix, its limits and its payload; and messages of tables in their stream |
//! | codec | `wire/codec.rs` | one value as bytes |
//!
//! All types of messages lie between the two: they use the codec, and frames hold them.

pub mod codec;
pub mod frame;

pub use codec::{Decode, DecodeError, Encode, decode_durable, decode_record, encode_record};
pub use frame::{
    Frame, PREFIX_BYTES, Prefix, VERSION, WireError, decode_table_message, encode_table_message, seal,
};
