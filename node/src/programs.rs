//! The built-in programs, one short file each.

pub mod ring;
