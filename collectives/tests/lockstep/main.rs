//! Rounds and mirrors in lockstep, compared with the plain sum. An adversary decides which link delivers next, and members begin each round
//! at different times.

mod case;
mod grouped;
mod interruptions;
mod mirrors;
mod rounds;
mod swarm;
