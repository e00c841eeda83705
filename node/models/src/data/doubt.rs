//! A doubt: what was inferred from a file and may be wrong.

/// What was inferred and may be wrong, with what to do in that case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Doubt {
    pub(super) what: String,
    /// How the user says otherwise in a run file.
    pub(super) remedy: String,
}

impl Doubt {
    /// Both in one sentence, for a user who has a run file.
    pub(super) fn advised(&self) -> String {
        format!("{}; {}", self.what, self.remedy)
    }
}
