//! A session: one target, one seed, and as many executions as wanted.
//!
//! The same seed gives the same executions. Every second input starts from an example; the others start from inputs that were accepted
//! earlier in the session, of which a bounded number is kept.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::time::{Duration, Instant};

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use crate::allocations::{self, Requested};
use crate::mutation::Mutator;
use crate::target::{Bound, Target, Verdict};

/// Makes inputs for a target and runs them.
pub struct Session<'a> {
    target: &'a dyn Target,
    generator: ChaCha8Rng,
    mutator: Mutator,
    examples: Vec<Vec<u8>>,
    /// Inputs that were accepted.
    accepted: Vec<Vec<u8>>,
    summary: Summary,
}

/// The results of a session so far.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Number of executions.
    pub executions: u64,
    /// Number of inputs that were accepted.
    pub accepted: u64,
    /// The longest time of an execution.
    pub slowest: Duration,
    /// The input that took it.
    pub slowest_input: Vec<u8>,
    /// The largest request of an execution, and the largest sum of the requests of one, in bytes.
    pub requested: Requested,
}

/// What is wrong with a decoder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It panicked.
    Panic {
        /// The message, with its place.
        message: String,
    },
    /// It requested more memory than its bound.
    Allocation {
        /// What it requested.
        requested: Requested,
        /// What it may request.
        bound: Bound,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Panic { message } => write!(f, "panic: {message}"),
            Self::Allocation { requested, bound } => write!(
                f,
                "allocation: {} bytes at once (bound {}), {} in all (bound {})",
                requested.largest_bytes, bound.largest_bytes, requested.total_bytes, bound.total_bytes
            ),
        }
    }
}

impl Failure {
    /// Whether both are the same defect: panics at the same place, or allocations.
    fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Panic { message: a }, Self::Panic { message: b }) => place(a) == place(b),
            (Self::Allocation { .. }, Self::Allocation { .. }) => true,
            _ => false,
        }
    }
}

impl<'a> Session<'a> {
    /// A session. `earlier` are inputs that failed once: they are examples too.
    #[must_use]
    pub fn new(target: &'a dyn Target, seed: u64, earlier: Vec<Vec<u8>>) -> Self {
        let examples = [target.examples(), earlier].concat();
        let mutator = Mutator::new(target.form(), &examples);
        let generator = ChaCha8Rng::seed_from_u64(seed);
        Self { target, generator, mutator, examples, accepted: Vec::new(), summary: Summary::default() }
    }

    /// The next input: first each example as it is, then changed ones.
    #[must_use]
    pub fn next_input(&mut self) -> Vec<u8> {
        if let Some(example) = self.examples.get(self.summary.executions as usize) {
            return example.clone();
        }
        let Self { generator, examples, accepted, .. } = self;
        let mut draw = |from: &[Vec<u8>]| from[generator.random_range(0..from.len())].clone();
        let starts_from_example = accepted.is_empty() || self.summary.executions.is_multiple_of(2);
        let mut input = draw(if starts_from_example { examples } else { accepted });
        let other = draw(examples);
        self.mutator.mutate(&mut input, &other, generator);
        // Some wrong lengths and checksums stay, since these have to be found.
        if generator.random_range(0..8) > 0 {
            self.target.mend(&mut input);
        }
        input
    }

    /// Runs an input.
    ///
    /// # Errors
    /// The decoder failed.
    pub fn execute(&mut self, input: Vec<u8>) -> Result<(), Failure> {
        let began = Instant::now();
        let (verdict, requested) = execution(self.target, &input);
        let took = began.elapsed();
        let summary = &mut self.summary;
        summary.executions += 1;
        let Requested { largest_bytes, total_bytes } = requested;
        summary.requested.largest_bytes = summary.requested.largest_bytes.max(largest_bytes);
        summary.requested.total_bytes = summary.requested.total_bytes.max(total_bytes);
        if took > summary.slowest {
            summary.slowest = took;
            summary.slowest_input.clone_from(&input);
        }
        if verdict? == Verdict::Accepted {
            summary.accepted += 1;
            match self.accepted.len() {
                ACCEPTED_MAX => {
                    let at = self.generator.random_range(0..ACCEPTED_MAX);
                    self.accepted[at] = input;
                }
                _ => self.accepted.push(input),
            }
        }
        Ok(())
    }

    /// The results so far.
    #[must_use]
    pub fn summary(&self) -> &Summary {
        &self.summary
    }
}

/// How many accepted inputs are kept.
const ACCEPTED_MAX: usize = 512;

/// Runs one input.
///
/// # Errors
/// The decoder failed.
pub fn run_once(target: &dyn Target, input: &[u8]) -> Result<Verdict, Failure> {
    execution(target, input).0
}

fn execution(target: &dyn Target, input: &[u8]) -> (Result<Verdict, Failure>, Requested) {
    allocations::reset();
    let result = panic::catch_unwind(AssertUnwindSafe(|| target.run(input)));
    let requested = allocations::requested();
    let bound = target.bound(input.len());
    let verdict = match result {
        Err(cause) => Err(Failure::Panic { message: message_of(&*cause) }),
        Ok(_)
            if requested.largest_bytes > bound.largest_bytes || requested.total_bytes > bound.total_bytes =>
        {
            Err(Failure::Allocation { requested, bound })
        }
        Ok(verdict) => Ok(verdict),
    };
    (verdict, requested)
}

thread_local! {
    /// The message and place of this thread's last panic.
    static LAST_PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps the messages of panics for [`Failure`], instead of printing them.
pub fn keep_panic_messages() {
    panic::set_hook(Box::new(|panic| LAST_PANIC.set(Some(panic.to_string()))));
}

fn message_of(cause: &(dyn Any + Send)) -> String {
    let plain = || {
        let text = cause.downcast_ref::<&str>().map(ToString::to_string);
        text.or_else(|| cause.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
    };
    LAST_PANIC.take().unwrap_or_else(plain)
}

/// The place in a panic's message: "panicked at FILE:LINE:COLUMN:".
fn place(message: &str) -> &str {
    message.lines().next().unwrap_or_default()
}

/// A shorter input with the same failure, found by leaving out parts. `on_attempt` is called before each input that is tried.
#[must_use]
pub fn minimized(target: &dyn Target, input: &[u8], failure: &Failure, on_attempt: &dyn Fn()) -> Vec<u8> {
    let mut shortest = input.to_vec();
    let mut attempts = 0;
    let began = Instant::now();
    let mut part = shortest.len().div_ceil(2);
    while part > 0 {
        let mut at = 0;
        while at < shortest.len() && attempts < ATTEMPTS_MAX && began.elapsed() < SHORTENING_MAX {
            attempts += 1;
            let mut shorter = shortest.clone();
            shorter.drain(at..(at + part).min(shortest.len()));
            let mut mended = shorter.clone();
            target.mend(&mut mended);
            let still_fails = |input: &Vec<u8>| {
                on_attempt();
                input.len() < shortest.len()
                    && run_once(target, input).is_err_and(|other| other.is_like(failure))
            };
            match [shorter, mended].into_iter().find(still_fails) {
                Some(found) => shortest = found,
                None => at += part,
            }
        }
        part /= 2;
    }
    shortest
}

/// How many shorter inputs are tried.
const ATTEMPTS_MAX: usize = 3000;
/// How long shorter inputs are tried.
const SHORTENING_MAX: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Form;

    /// A decoder with planted defects.
    struct Planted;

    impl Target for Planted {
        fn name(&self) -> &'static str {
            "planted"
        }

        fn form(&self) -> Form {
            Form::Binary
        }

        fn examples(&self) -> Vec<Vec<u8>> {
            vec![b"abcdefgh".to_vec(), b"ijklmnop".to_vec()]
        }

        fn run(&self, input: &[u8]) -> Verdict {
            assert!(!(input.contains(&b'c') && input.contains(&b'n')), "c and n");
            if input.contains(&0xff) {
                drop(vec![0_u8; 1 << 20]);
            }
            Verdict::of(input.len() > 4)
        }

        fn bound(&self, input_bytes: usize) -> Bound {
            Bound { largest_bytes: 1000 + input_bytes, total_bytes: 10_000 + input_bytes }
        }
    }

    fn first_failure(seed: u64) -> (Vec<u8>, Failure) {
        let mut session = Session::new(&Planted, seed, Vec::new());
        for _ in 0..100_000 {
            let input = session.next_input();
            if let Err(failure) = session.execute(input.clone()) {
                return (input, failure);
            }
        }
        panic!("no failure was found")
    }

    #[test]
    fn planted_defects_are_found_again_with_the_same_seed_and_made_shorter() {
        keep_panic_messages();
        let (mut panics, mut allocations) = (0, 0);
        for seed in 0..20 {
            let (input, failure) = first_failure(seed);
            assert_eq!(first_failure(seed).0, input, "the same seed");
            let shortest = minimized(&Planted, &input, &failure, &|| {});
            match failure {
                Failure::Panic { message } => {
                    assert!(message.contains("session.rs") && message.contains("c and n"), "{message}");
                    assert_eq!(shortest.len(), 2, "{shortest:?}");
                    panics += 1;
                }
                Failure::Allocation { requested, .. } => {
                    assert_eq!(requested.largest_bytes, 1 << 20);
                    assert_eq!(shortest, [0xff]);
                    allocations += 1;
                }
            }
        }
        assert!(panics > 0 && allocations > 0, "{panics} panics, {allocations} allocations");
    }

    #[test]
    fn a_session_counts_what_it_ran() {
        let mut session = Session::new(&Planted, 1, vec![b"zz".to_vec()]);
        for _ in 0..3 {
            let input = session.next_input();
            assert_eq!(session.execute(input), Ok(()));
        }
        let summary = session.summary();
        assert_eq!((summary.executions, summary.accepted), (3, 2), "the examples as they are");
        assert!(summary.slowest > Duration::ZERO && !summary.slowest_input.is_empty());
    }
}
