//! The program executor: runs a program's coroutine inside the node, without an async runtime.
//!
//! After each input of the node, it polls the program until the program waits for something that has not happened yet. It passes the
//! program's commands on to the machine.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{self, Wake, Waker};

use futures_channel::mpsc;

use crate::program::command::ProgramCommand;
use crate::program::context::{Context, Interrupted};
use crate::program::{Flow, Program};

type Coroutine = Pin<Box<dyn Future<Output = Result<(), Interrupted>> + Send>>;

/// A program's coroutine and its mailbox.
pub(crate) struct ProgramExecutor {
    /// The coroutine; `None` once it has ended.
    program: Option<Coroutine>,
    /// The node's end of the mailbox.
    commands: mpsc::UnboundedReceiver<ProgramCommand>,
    /// Whether the program has run since the mailbox was last seen empty.
    has_commands: bool,
    /// Whether the program was woken since it was last polled.
    wake_flag: Arc<WakeFlag>,
    /// Sets `wake_flag`.
    waker: Waker,
}

impl ProgramExecutor {
    pub(crate) fn new(program: impl Program) -> Self {
        let (sender, commands) = mpsc::unbounded();
        let wake_flag = Arc::new(WakeFlag(AtomicBool::new(true)));
        let waker = Waker::from(Arc::clone(&wake_flag));
        let program = Some(Box::pin(run(program, Context::new(sender))) as Coroutine);
        Self { program, commands, has_commands: false, wake_flag, waker }
    }

    /// The program's next command; `None` when the program waits for an input or has ended.
    pub(crate) fn next(&mut self) -> Option<ProgramCommand> {
        loop {
            if self.has_commands {
                match self.commands.try_recv() {
                    Ok(command) => return Some(command),
                    Err(_) => self.has_commands = false,
                }
            }
            if !self.wake_flag.0.swap(false, Ordering::Relaxed) {
                return None;
            }
            let program = self.program.as_mut()?;
            self.has_commands = true;
            if program.as_mut().poll(&mut task::Context::from_waker(&self.waker)).is_ready() {
                self.program = None;
            }
        }
    }
}

/// Calls `round` until the run is done; a last step may still be undone. After an interruption it first waits for a view, so that a program
/// which returns at once cannot spin.
async fn run(mut program: impl Program, context: Context) -> Result<(), Interrupted> {
    loop {
        match program.round(&context).await {
            Ok(Flow::Continue(())) => {}
            Ok(Flow::Break(())) => match context.finished().await {
                Ok(()) => return Ok(()),
                Err(Interrupted) => context.ready().await?,
            },
            Err(Interrupted) => context.ready().await?,
        }
    }
}

/// A waker that only records that it was called. This skips idle polls, and a lost wake-up shows as a hang in any test.
struct WakeFlag(AtomicBool);

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}
