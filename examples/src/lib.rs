//! Small programs a user of peergrad would write: each is one file in `src/bin/`, with what it prints in its header.

#![forbid(unsafe_code)]

pub mod lasso;
