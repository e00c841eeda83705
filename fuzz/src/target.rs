//! A target: one decoder, with valid examples of its input.

/// The form of an input, which determines how it is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Words, numbers and lines.
    Text,
    /// Bytes, with integers of fixed and of variable length.
    Binary,
}

/// How a decoder answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It read the input.
    Accepted,
    /// It refused the input, or a part of it.
    Refused,
}

/// What an execution may request from the allocator, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// At once.
    pub largest_bytes: usize,
    /// In all.
    pub total_bytes: usize,
}

/// A decoder.
pub trait Target: Sync {
    /// Its name, on the command line and in the names of files: lower-case letters.
    fn name(&self) -> &'static str;

    /// The form of its inputs.
    fn form(&self) -> Form;

    /// Inputs that it accepts.
    fn examples(&self) -> Vec<Vec<u8>>;

    /// Corrects lengths and checksums of a changed input, so that it gets past them.
    fn mend(&self, _input: &mut Vec<u8>) {}

    /// Decodes an input, and asserts what must hold of the result.
    fn run(&self, input: &[u8]) -> Verdict;

    /// What decoding an input of this length may request.
    fn bound(&self, input_bytes: usize) -> Bound;
}

impl Verdict {
    /// Accepted if `is_accepted`.
    #[must_use]
    pub fn of(is_accepted: bool) -> Self {
        if is_accepted { Self::Accepted } else { Self::Refused }
    }
}

impl Bound {
    /// A fixed number of MiB at once, `factor` times as many in all.
    #[must_use]
    pub fn mebibytes(at_once: usize, factor: usize) -> Self {
        Self { largest_bytes: at_once << 20, total_bytes: (at_once << 20) * factor }
    }
}
