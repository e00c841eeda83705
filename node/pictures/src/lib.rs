//! Pictures as data: a folder of pictures becomes one packed file, and a single picture becomes the bytes that a model sees.
//!
//! A run has one data file, in a format that the program already reads (IDX). People have pictures in folders, one folder for each class:
//!
//! ```text
//! photos/cat/1.jpg                 pictures  u8 (count, channels, height, width), or (count, height, width) if grey
//! photos/cat/2.png     pack        labels    u8 or i32 (count), from 0, in the order of the names
//! photos/dog/1.webp  -------->     names     u8 (classes, bytes of the longest name), filled up with zeros
//! ```
//! All pictures of a packed file have one [`Shape`]. [`pack`] shrinks each picture so that its shorter side fits, and cuts the middle out.
//! For a prediction, [`read_picture`] does the same with one file, so a model sees new pictures as it saw those of its training.
//!
//! # Invariants
//! - The same folder gives the same bytes, whatever the number of threads.
//! - No input makes a function panic, and every list, file and picture in memory is bounded: see `limits`.
//!
//! # Not here
//! Random changes of pictures while a model is trained, and reading the packed file: the crate `peergrad-models` does both.
#![forbid(unsafe_code)]

mod archive;
mod complete;
mod counted;
mod decode;
mod folder;
mod idx_writer;
mod layout;
mod limits;
mod pack;
mod pack_error;
mod packer;
mod shape;
mod sniff;

pub use decode::{PictureError, decode, read_picture};
pub use folder::pictures_below;
pub use limits::{DECODED_BYTES_MAX, FILE_BYTES_MAX, SIDE_MAX};
pub use pack::{Broken, Packed, pack};
pub use pack_error::PackError;
pub use shape::{Shape, ShapeError};
pub use sniff::looks_like_pictures;
