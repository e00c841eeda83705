//! Embedded data: the data set that is part of the binary, so that the demo needs no file.
//!
//! `data/NOTICE.md` says where it comes from.

/// The name by which a run file asks for the digits.
pub const DIGITS: &str = "digits";

/// The bytes of the embedded set of this name, as they lie in the repository (gzipped CSV).
#[must_use]
pub fn embedded(name: &str) -> Option<&'static [u8]> {
    (name == DIGITS).then_some(include_bytes!("../../data/digits.csv.gz").as_slice())
}
