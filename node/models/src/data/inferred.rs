//! What was inferred from a file: its layout, and what the user should know of it.

/// A layout with the notices that go with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inferred<L> {
    /// The layout.
    pub layout: L,
    /// The names of all columns of the file; empty if there is no header.
    pub names: Vec<String>,
    /// Feature columns that a model cannot use.
    pub unusable: Vec<UnusableColumn>,
    /// Feature columns in which some numbers are missing, which is an error when they are read; each with how many.
    pub incomplete: Vec<(usize, usize)>,
    /// What was inferred and may be wrong, each with what to do in that case.
    pub notices: Vec<String>,
}

/// A column without the numbers that a feature needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusableColumn {
    /// Its index, from 0.
    pub index: usize,
    /// What it holds, in words.
    pub reason: String,
}

impl<L> Inferred<L> {
    /// This with another form of the layout.
    #[must_use]
    pub fn map<M>(self, form: impl FnOnce(L) -> M) -> Inferred<M> {
        let Self { layout, names, unusable, incomplete, notices } = self;
        Inferred { layout: form(layout), names, unusable, incomplete, notices }
    }

    /// A layout without doubts.
    #[must_use]
    pub fn certain(layout: L) -> Self {
        let (names, unusable, incomplete, notices) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { layout, names, unusable, incomplete, notices }
    }
}
