//! Computes deep networks with the tensors of the framework burn: a [`Backend`](peergrad_models::deep::Backend).
//!
//! The networks are described in [`peergrad_models::deep`], with their tensors, first values, samples and random draws. What is here, is
//! the arithmetic alone: a forward pass for each kind of layer. burn records it and computes the gradient.
//!
//! Without the feature `flex` this crate is empty, and burn is neither downloaded nor compiled.

#![cfg(feature = "flex")]
#![forbid(unsafe_code)]

mod backend;
mod convolutional;
mod dropout;
#[cfg(feature = "wgpu")]
mod gpu;
mod pass;
mod training;
mod transformer;
mod weights;

pub use backend::Burn;
#[cfg(feature = "wgpu")]
pub use gpu::NoGpu;
