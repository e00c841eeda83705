//! Rounds and mirrors in lockstep against the plain sum, with an adversary who decides which link delivers next, and
//! members that begin each round at different times.

mod case;
mod grouped;
mod interruptions;
mod mirrors;
mod rounds;
mod swarm;
