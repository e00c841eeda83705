//! Compute: one thread that runs a node's jobs in the order in which they were requested.
//!
//! Arithmetic must not run where sockets are served: during a gradient that takes a second, no ping would be answered. So it
//! has its own thread, and its results come back as inputs, like frames.

use std::sync::Arc;
use std::thread;

use peergrad_core::io::{Input, Job};
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
    /// Starts the thread. It counts the time that it computes.
    ///
    /// # Errors
    /// The operating system cannot start another thread.
    pub fn start(counters: Arc<Counters>) -> std::io::Result<Self> {
        let (jobs, queue) = std::sync::mpsc::channel::<Job>();
        let (done, results) = mpsc::unbounded_channel();
        thread::Builder::new().name("compute".to_owned()).spawn(move || {
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
        let mut compute = Compute::start(Arc::clone(&counters)).unwrap();
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
}
