//! Moving slices of vectors.

pub mod plan;
