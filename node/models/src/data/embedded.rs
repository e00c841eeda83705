//! Embedded data: the one set that comes inside the binary, so that the demo needs no file.
//!
//! Attribution stands in `data/NOTICE.md`.

/// The name by which a run file asks for the digits.
pub const DIGITS: &str = "digits";

/// The bytes of the embedded set of this name, as they lie in the repository (gzipped CSV).
#[must_use]
pub fn embedded(name: &str) -> Option<&'static [u8]> {
    (name == DIGITS).then_some(include_bytes!("../../data/digits.csv.gz").as_slice())
}
