//! Compute: one thread that runs a node's jobs in the order in which they were requested, and the threads that help it.
//!
//! Arithmetic must not run where sockets are served: during a gradient that takes a second, no ping would be answered. So it
//! has its own thread, and its results come back as inputs, like frames.
//!
//! That thread is the first of a pool (Rayon's). A job that consists of independent pieces offers them to the others of the pool, as a
//! gradient of a large network does; a job that does not runs on the first thread alone. A user's task may use the pool too: inside a
//! job, `rayon::join` and the like share work with its threads.

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread;

use peergrad_core::io::{Input, Job};
use rayon_core::{ThreadPool, ThreadPoolBuilder};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::counters::Counters;

/// The compute thread. If this is dropped, the running job finishes without an effect, and the queued jobs are discarded.
#[derive(Debug)]
pub struct Compute {
    jobs: std::sync::mpsc::Sender<Job>,
    results: mpsc::UnboundedReceiver<Input>,
}

impl Compute {
    /// Starts the thread, with as many others as make `threads`. It counts the time that it computes.
    ///
    /// # Errors
    /// The operating system cannot start another thread.
    pub fn start(counters: Arc<Counters>, threads: NonZeroUsize) -> io::Result<Self> {
        let (jobs, queue) = std::sync::mpsc::channel::<Job>();
        let (done, results) = mpsc::unbounded_channel();
        let (started, start) = std::sync::mpsc::channel();
        thread::Builder::new().name(thread_name(0)).spawn(move || {
            // Dropped at the end, which stops the other threads.
            let (_pool, outcome) = pool_of_this_thread(threads)
                .map_or_else(|error| (None, Err(error)), |pool| (Some(pool), Ok(())));
            if started.send(outcome).is_err() {
                return;
            }
            for job in queue {
                // Once the receiver is gone, the queued jobs need not be computed.
                if done.is_closed() {
                    break;
                }
                let began = Instant::now();
                let answer = run(job);
                counters.add_computing(began.elapsed());
                if done.send(answer).is_err() {
                    break;
                }
            }
        })?;
        start.recv().expect("the thread sends whether it has started")?;
        Ok(Self { jobs, results })
    }

    /// Queues a job.
    pub fn run(&self, job: Job) {
        self.jobs.send(job).expect("the thread runs as long as its owner");
    }

    /// The next finished job, as an input. No result is lost if this is dropped while it waits.
    pub async fn finished(&mut self) -> Input {
        self.results.recv().await.expect("the thread runs as long as its owner")
    }
}

/// Does `work` on `threads` threads, which stop afterwards.
///
/// # Errors
/// The operating system cannot start another thread.
pub fn compute_on<T: Send>(threads: NonZeroUsize, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let pool = ThreadPoolBuilder::new().num_threads(threads.get()).thread_name(thread_name).build();
    Ok(pool.map_err(io::Error::other)?.install(work))
}

/// A pool of `threads` threads, of which the calling one is the first.
fn pool_of_this_thread(threads: NonZeroUsize) -> io::Result<ThreadPool> {
    let builder = ThreadPoolBuilder::new().num_threads(threads.get()).thread_name(thread_name);
    // To hand a job to another thread would take longer than a small gradient.
    builder.use_current_thread().build().map_err(io::Error::other)
}

fn thread_name(index: usize) -> String {
    if index == 0 { "compute".to_owned() } else { format!("compute-{}", index + 1) }
}

fn run(job: Job) -> Input {
    Input::Computed { job: job.id, result: job.run() }
}

#[cfg(test)]
mod tests {
    use std::any::Any;
    use std::time::Duration;

    use super::*;
    use peergrad_core::io::{JobId, Panicked};

    #[tokio::test]
    async fn jobs_are_answered_in_order_and_a_panic_is_reported() {
        let counters = Arc::<Counters>::default();
        let mut compute = Compute::start(Arc::clone(&counters), NonZeroUsize::MIN).unwrap();
        let nap = Duration::from_millis(2);
        let work = move || -> Box<dyn Any + Send> {
            let began = Instant::now();
            while began.elapsed() < nap {}
            Box::new(7_u32)
        };
        compute.run(Job { id: JobId(1), cost: 0, work: Box::new(work) });
        compute.run(Job { id: JobId(2), cost: 0, work: Box::new(|| panic!("no such layer")) });
        compute.run(Job { id: JobId(3), cost: 0, work: Box::new(|| Box::new(9_u32)) });

        let mut answers = Vec::new();
        for _ in 0..3 {
            let Input::Computed { job, result } = compute.finished().await else { panic!("another input") };
            answers.push((job.0, result.map(|answer| *answer.downcast::<u32>().unwrap())));
        }
        assert_eq!(answers, [(1, Ok(7)), (2, Err(Panicked("no such layer".to_owned()))), (3, Ok(9))]);
        assert!(counters.computing() >= nap);
    }

    #[tokio::test]
    async fn a_job_shares_its_work_with_the_threads_of_the_pool() {
        for threads in 1..4 {
            let mut compute = Compute::start(Arc::default(), NonZeroUsize::new(threads).unwrap()).unwrap();
            // Each waits for the others, so all of them run at once.
            let barrier = Arc::new(std::sync::Barrier::new(threads));
            let work = move || -> Box<dyn Any + Send> {
                rayon_core::scope(|scope| {
                    (0..threads).for_each(|_| scope.spawn(|_| _ = barrier.wait()));
                });
                Box::new(())
            };
            compute.run(Job { id: JobId(1), cost: 0, work: Box::new(work) });
            let Input::Computed { result, .. } = compute.finished().await else { panic!("another input") };
            assert!(result.is_ok(), "{threads} threads");
        }
    }
}
