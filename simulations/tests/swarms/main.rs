//! Swarms in virtual time: each module tests one thing that they do. They are one program, since each program with the whole node in it takes
//! seconds to link.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the answer")]

mod attempts;
mod beginnings;
mod bounds;
mod clipping;
mod codecs;
mod command_line;
mod common;
mod counting;
mod dealing;
mod delays;
mod determinism;
mod downpour;
mod early_ends;
mod endings;
mod factorization;
mod faults;
mod formula;
mod hostile;
mod inspect;
mod lbfgs;
mod logs;
mod merge;
mod moving;
mod mutants;
mod ownership;
mod parameter_groups;
mod parameters;
mod programs;
mod replicas;
mod report;
mod scenarios;
mod sparse;
mod tables;
mod topology;
mod training;
