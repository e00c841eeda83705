//! The program whose clocks are computed by a loop in Python: it carries out the orders of the user's thread, one after the other.
//!
//! ```text
//!  program                              the user's thread
//!  begin_clock()
//!     offer: clock, samples ----------> Tables.next() returns a Clock
//!     reads rows <--------------------- Clock.get(table, rows)
//!     adds to rows <------------------- Clock.add(table, rows, values)
//!     ends the clock <----------------- Clock.end(loss)
//! ```
//! A job on the compute thread waits for each order, so that the node does not.
//!
//! A member that was thought lost begins again with another clock. If the user still has the one before, the program carries out its
//! orders in the new clock, except that nothing is added: other workers have got the samples.

use std::collections::BTreeMap;
use std::ops::ControlFlow::{Break, Continue};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use peergrad::prelude::{
    Clock, Context, Evaluation, Flow, Interrupted, Manifest, Program, RowSet, Rows, SampleStats, Task,
};
use peergrad::table::TableLayout;
use peergrad::task::StepInfo;

use crate::options::TaskStart;
use crate::peer::locked;
use crate::user_task::give_up;

/// One clock for the user's loop.
pub(crate) struct ClockOffer {
    /// What a task learns about it.
    pub(crate) info: StepInfo,
    /// The samples that this peer computes.
    pub(crate) samples: Arc<[u32]>,
    /// The names and sizes of the tables.
    pub(crate) layout: Arc<TableLayout>,
    /// Where the user's orders go. If it is dropped before the clock has ended, this peer gives up.
    pub(crate) orders: Sender<Order>,
}

/// What the user's thread has the program do.
pub(crate) enum Order {
    /// To read rows, which exist.
    Get { rows: RowSet, reply: Sender<Vec<f32>> },
    /// To add to rows, which exist, numbers that are finite.
    Add { rows: Rows, reply: Sender<()> },
    /// To wait until all additions are safe. The reply says whether they are.
    Push { reply: Sender<bool> },
    /// To end the clock.
    End(SampleStats),
    /// To give the clock back before it was used: this peer is about to leave, and other workers get the samples.
    Decline,
    /// To leave the run. A clock may live on in a traceback, so the user's side does not rely on its end.
    GiveUp,
}

/// The rows of tables at the end of the run that are not zero, by the tables' names. A table's first row is row 0.
pub(crate) type LastRows = Arc<Mutex<BTreeMap<String, Arc<Rows>>>>;

/// The program at one worker.
pub(crate) struct TableProgram {
    /// Where the clocks go that the user is to compute.
    pub(crate) offers: Sender<ClockOffer>,
    /// The tables to read at the end.
    pub(crate) read_at_end: Vec<String>,
    /// Whether all that a clock adds is sent at its end.
    pub(crate) is_atomic: bool,
    /// Where their rows go.
    pub(crate) last_rows: LastRows,
    /// The orders of the clock that the user has; `None` if the user has none.
    pub(crate) open: Option<Arc<Inbox>>,
}

/// The orders that the user gives in a clock.
pub(crate) struct Inbox {
    orders: Mutex<Receiver<Order>>,
    /// The next order, once it is here; it stays here if an interruption prevents it.
    next: Mutex<Option<Order>>,
}

impl Inbox {
    /// Waits for the next order, on the compute thread.
    fn wait(&self) {
        let orders = locked(&self.orders);
        if locked(&self.next).is_some() {
            return;
        }
        match orders.recv() {
            Ok(Order::GiveUp) | Err(_) => give_up(),
            Ok(order) => *locked(&self.next) = Some(order),
        }
    }

    fn take(&self) -> Option<Order> {
        locked(&self.next).take()
    }

    fn put_back(&self, order: Order) {
        *locked(&self.next) = Some(order);
    }
}

/// Whether what the user does in a clock counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// It does.
    Wanted,
    /// It does not: other workers have got the samples.
    Void,
}

impl Program for TableProgram {
    const NAME: &'static str = "tables";

    async fn round(&mut self, context: &Context) -> Result<Flow, Interrupted> {
        let clock = context.begin_clock().await?;
        if let Some(inbox) = &self.open {
            let _ = serve(&clock, inbox, Standing::Void, self.is_atomic).await?;
            self.open = None;
        }
        if clock.is_over {
            self.read_last(&clock).await?;
            return Ok(Break(()));
        }
        if clock.samples.is_empty() {
            // Other workers have the remaining samples, and wait for this clock to end.
            clock.end(SampleStats::default());
            return Ok(Continue(()));
        }
        let (orders, ordered) = channel();
        let inbox = Arc::new(Inbox { orders: Mutex::new(ordered), next: Mutex::default() });
        self.open = Some(Arc::clone(&inbox));
        let (samples, layout) = (Arc::clone(&clock.samples), Arc::clone(&clock.layout));
        // If there is no user any more, the offer is dropped, and the peer gives up.
        let _ = self.offers.send(ClockOffer { info: clock.info(), samples, layout, orders });
        let stats = serve(&clock, &inbox, Standing::Wanted, self.is_atomic).await?;
        self.open = None;
        let Some(stats) = stats else {
            // From now on no clock begins.
            clock.finish();
            return Ok(Continue(()));
        };
        // The worker does not wait until the additions are safe: the node repeats them until they are.
        drop(clock.commit(stats));
        Ok(Continue(()))
    }
}

impl TableProgram {
    /// Reads the tables once all workers have finished.
    async fn read_last(&self, clock: &Clock) -> Result<(), Interrupted> {
        clock.finish();
        // These are the model that the peers end with.
        let parameters = clock.parameters();
        let read = self.read_at_end.iter().map(|table| {
            let rows = clock.layout.rows(table).expect("a table of this run");
            (table, rows.start, clock.pull(rows).expect("a read has as many rows as a table that is read"))
        });
        for (table, first, rows) in read.collect::<Vec<_>>() {
            let Rows { indices, values } = rows.await?;
            let indices = indices.ranges().map(|range| range.start - first..range.end - first).collect();
            locked(&self.last_rows).insert(table.clone(), Arc::new(Rows { indices, values }));
        }
        parameters.await?;
        Ok(())
    }
}

/// Carries out the user's orders until the clock ends. Returns the samples that were computed; `None` if the user has declined them.
async fn serve(
    clock: &Clock,
    inbox: &Arc<Inbox>,
    standing: Standing,
    is_atomic: bool,
) -> Result<Option<SampleStats>, Interrupted> {
    let mut unpushed_bytes = 0;
    loop {
        let waiting = Arc::clone(inbox);
        clock.compute(0, move || waiting.wait()).await?;
        // A reply that the user does not wait for any more is dropped.
        match inbox.take() {
            Some(Order::Get { rows, reply }) => {
                match clock.get(rows.clone()).expect("the user's thread has checked them").await {
                    Ok(values) => _ = reply.send(values),
                    Err(Interrupted) => {
                        inbox.put_back(Order::Get { rows, reply });
                        return Err(Interrupted);
                    }
                }
            }
            Some(Order::Add { rows, reply }) => {
                if standing == Standing::Wanted {
                    unpushed_bytes += size_of_val(&rows.values[..]);
                    clock.add(rows).expect("the user's thread has checked them");
                }
                let _ = reply.send(());
            }
            Some(Order::Push { reply }) => match clock.push().await {
                Ok(()) => _ = reply.send(standing == Standing::Wanted),
                Err(Interrupted) => {
                    inbox.put_back(Order::Push { reply });
                    return Err(Interrupted);
                }
            },
            Some(Order::End(stats)) => return Ok(Some(stats)),
            Some(Order::Decline) => return Ok(None),
            Some(Order::GiveUp) | None => {
                unreachable!("a job has waited for an order, and has given up at this one")
            }
        }
        // An atomic clock must not be cut. It takes as much memory as the rows that it adds to.
        if unpushed_bytes > UNPUSHED_BYTES_MAX && !is_atomic {
            clock.push().await?;
            unpushed_bytes = 0;
        }
    }
}

/// Bytes of additions after which a clock waits until they are safe. Owners have room for several times as many.
const UNPUSHED_BYTES_MAX: usize = 64 << 20;

/// The task behind the tables, whose parameters are the tables that do not start with zeros.
pub(crate) struct TableTask(pub(crate) TaskStart);

impl Task for TableTask {
    fn manifest(&self) -> Manifest {
        self.0.manifest.clone()
    }

    fn initial(&self, _seed: u64, parameters: &mut [f32]) {
        parameters.copy_from_slice(&self.0.initial);
    }

    fn sample_count(&self) -> u32 {
        self.0.samples
    }

    fn gradient(&self, _: &[f32], _: &[u32], _: &mut [f32]) -> f64 {
        unreachable!("the program of this task computes no gradient")
    }

    fn flops_per_sample(&self) -> Option<u64> {
        self.0.flops_per_sample
    }

    fn configure(&self, settings: &str) -> Result<(), String> {
        self.0.configure(settings);
        Ok(())
    }

    fn held_out_count(&self) -> u32 {
        0
    }

    fn evaluate(&self, _: &[f32]) -> Evaluation {
        Evaluation { samples: 0, loss: 0.0, accuracy: None }
    }
}
