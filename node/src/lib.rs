//! peergrad: training one model on many machines with no server.

mod founding;
mod host;
pub mod io;
mod joining;
pub mod loader;
mod machine;
pub mod node;
mod owned;
pub mod peer;
mod preparation;
pub mod program;
pub mod programs;
mod session;
pub mod task;

pub mod optimizer {
    //! placeholder until merge
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub enum Rule {
        Sgd,
    }
    impl Rule {
        pub fn moment_count(&self) -> usize {
            0
        }
        pub fn apply(&self, _: f64, _: u32, _: f32, _: &[f32], _: &mut [f32], _: &[f32], _: &mut [f32]) {}
    }
    #[derive(Clone, Debug, PartialEq)]
    pub struct Schedule;
    impl Schedule {
        pub fn rate(&self, _: u64) -> f64 {
            0.0
        }
    }
}
