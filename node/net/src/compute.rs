//! Compute: a thread that runs the jobs of a node's program in the order in which they were requested, the threads that help it, and a
//! thread for all other jobs.
//!
//! Arithmetic must not run where sockets are served: during a gradient that takes a second, no ping would be answered. So it
//! has its own threads, and its results come back as inputs, like frames.
//!
//! The program's thread is the first of a pool (Rayon's). A job that consists of independent pieces offers them to the others of the pool,
//! as a gradient of a large network does; a job that does not runs on the first thread alone. A user's task may use the pool too: inside a
//! job, `rayon::join` and the like share work with its threads.
//!
//! A job of the program may take as long as its task likes. Loading and evaluating do not wait for it, so that a member that was excluded
//! meanwhile can come back. They are rare: each gets a pool of its own.

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread;

use peergrad_core::io::{Input, Job, JobOutput, Panicked};
use rayon_core::{ThreadPool, ThreadPoolBuilder};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::counters::Counters;

/// The compute threads. If this is dropped, running jobs finish without an effect, and queued jobs are discarded.
#[derive(Debug)]
pub struct Compute {
    of_program: std::sync::mpsc::Sender<Job>,
    others: std::sync::mpsc::Sender<Job>,
    results: mpsc::UnboundedReceiver<Input>,
}

impl Compute {
    /// Starts the threads, so many for the jobs of the program. It counts the time that they compute.
    ///
    /// # Errors
    /// The operating system cannot start another thread.
    pub fn start(counters: Arc<Counters>, threads: NonZeroUsize) -> io::Result<Self> {
        let (of_program, queue) = std::sync::mpsc::channel::<Job>();
        let (others, queue_of_others) = std::sync::mpsc::channel::<Job>();
        let (done, results) = mpsc::unbounded_channel();
        let (started, start) = std::sync::mpsc::channel();
        let answers = Answers { done, counters };
        let answers_of_others = answers.clone();
        thread::Builder::new().name(thread_name(0)).spawn(move || {
            // Dropped at the end, which stops the other threads.
            let (_pool, outcome) = pool_of_this_thread(threads)
                .map_or_else(|error| (None, Err(error)), |pool| (Some(pool), Ok(())));
            if started.send(outcome).is_ok() {
                answers.give(queue, |job, part| job.run(part));
            }
        })?;
        let run_alone = move |job: Job, part: PartSender<'_>| {
            let refused = |error| Err(Panicked(format!("cannot start {threads} threads: {error}")));
            compute_on(threads, || job.run(part)).unwrap_or_else(refused)
        };
        thread::Builder::new()
            .name("other jobs".to_owned())
            .spawn(move || answers_of_others.give(queue_of_others, run_alone))?;
        start.recv().expect("the thread sends whether it has started")?;
        Ok(Self { of_program, others, results })
    }

    /// Queues a job.
    pub fn run(&self, job: Job) {
        let queue = if job.is_of_program { &self.of_program } else { &self.others };
        queue.send(job).expect("the threads run as long as their owner");
    }

    /// The next finished job, or the next part of one, as an input. No result is lost if this is dropped while it waits.
    pub async fn finished(&mut self) -> Input {
        self.results.recv().await.expect("the threads run as long as their owner")
    }
}

/// What a job hands its parts to.
type PartSender<'a> = &'a mut (dyn FnMut(JobOutput) + Send);

/// Where results go.
#[derive(Clone)]
struct Answers {
    done: mpsc::UnboundedSender<Input>,
    counters: Arc<Counters>,
}

impl Answers {
    /// Runs jobs until there are no more, or nobody waits for results.
    fn give(&self, queue: Receiver<Job>, run: impl Fn(Job, PartSender<'_>) -> Result<JobOutput, Panicked>) {
        for job in queue {
            // Once the receiver is gone, the queued jobs need not be computed.
            if self.done.is_closed() {
                break;
            }
            let (id, began) = (job.id, Instant::now());
            let result = run(job, &mut |part| {
                // Nobody waits for it if that fails.
                let _ = self.done.send(Input::ComputedPart { job: id, part });
            });
            self.counters.add_computing(began.elapsed());
            if self.done.send(Input::Computed { job: id, result }).is_err() {
                break;
            }
        }
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use peergrad_core::io::{JobId, Work};

    #[tokio::test]
    async fn jobs_are_answered_in_order_and_a_panic_is_reported() {
        let counters = Arc::<Counters>::default();
        let mut compute = Compute::start(Arc::clone(&counters), NonZeroUsize::MIN).unwrap();
        let nap = Duration::from_millis(2);
        let work = move || {
            let began = Instant::now();
            while began.elapsed() < nap {}
            7_u32
        };
        compute.run(job(JobId(1), Work::whole(work)));
        compute.run(job(JobId(2), Work::whole(|| -> u32 { panic!("no such layer") })));
        compute.run(job(JobId(3), Work::whole(|| 9_u32)));

        let mut answers = Vec::new();
        for _ in 0..3 {
            let Input::Computed { job, result } = compute.finished().await else { panic!("another input") };
            answers.push((job.0, result.map(|answer| *answer.downcast::<u32>().unwrap())));
        }
        assert_eq!(answers, [(1, Ok(7)), (2, Err(Panicked("no such layer".to_owned()))), (3, Ok(9))]);
        assert!(counters.computing() >= nap);
    }

    fn job(id: JobId, work: Work) -> Job {
        Job { id, cost: 0, is_of_program: true, work }
    }

    #[tokio::test]
    async fn other_jobs_do_not_wait_for_one_of_the_program() {
        let mut compute = Compute::start(Arc::default(), NonZeroUsize::MIN).unwrap();
        let (end, ending) = std::sync::mpsc::channel::<()>();
        compute.run(job(JobId(1), Work::whole(move || ending.recv().is_ok())));
        compute.run(Job { is_of_program: false, ..job(JobId(2), Work::whole(|| ())) });
        let finished =
            |input| if let Input::Computed { job, .. } = input { job } else { panic!("another input") };
        assert_eq!(finished(compute.finished().await), JobId(2));
        end.send(()).unwrap();
        assert_eq!(finished(compute.finished().await), JobId(1));
    }

    #[tokio::test]
    async fn a_job_shares_its_work_with_the_threads_of_the_pool() {
        for threads in 1..4 {
            let mut compute = Compute::start(Arc::default(), NonZeroUsize::new(threads).unwrap()).unwrap();
            // Each waits for the others, so all of them run at once.
            let barrier = Arc::new(std::sync::Barrier::new(threads));
            let work = move || {
                rayon_core::scope(|scope| {
                    (0..threads).for_each(|_| scope.spawn(|_| _ = barrier.wait()));
                });
            };
            compute.run(job(JobId(1), Work::whole(work)));
            let Input::Computed { result, .. } = compute.finished().await else { panic!("another input") };
            assert!(result.is_ok(), "{threads} threads");
        }
    }
}
