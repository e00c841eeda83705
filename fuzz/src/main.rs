//! `peergrad-fuzz`: gives changed inputs to every decoder, and reports those that make one fail.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Parser;
use peergrad_fuzz::inputs::target_of;
use peergrad_fuzz::session::run_once;
use peergrad_fuzz::target::Target;
use peergrad_fuzz::targets::{self, TARGETS};
use peergrad_fuzz::worker::{Ending, Order, watch, work};

/// Gives changed inputs to every decoder. Exit code 1 if one panics, hangs, or takes more memory than it may.
#[derive(Parser)]
#[command(name = "peergrad-fuzz", version)]
struct Arguments {
    /// Only this target; may be repeated [default: all]
    #[arg(long, value_name = "NAME")]
    target: Vec<String>,
    /// How long to run each target
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    seconds: f64,
    /// At most this many executions of each target [default: only the time counts]
    #[arg(long, value_name = "N")]
    executions: Option<u64>,
    /// The seed of the inputs; the same seed gives the same inputs
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// An execution that takes longer counts as a hang
    #[arg(long, default_value_t = 60.0, value_name = "SECONDS")]
    hang_seconds: f64,
    /// Where inputs that fail are written, and the slowest one of each target
    #[arg(long, default_value = "target/fuzz", value_name = "DIR")]
    output: PathBuf,
    /// Run the inputs in these files once; the name of a file begins with its target
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "target")]
    replay: Vec<PathBuf>,
    /// Run the target in this process.
    #[arg(long, hide = true, requires = "target")]
    worker: bool,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    if !arguments.replay.is_empty() {
        return replay(&arguments.replay);
    }
    std::fs::create_dir_all(&arguments.output)
        .with_context(|| format!("cannot make the folder {}", arguments.output.display()))?;
    let seconds = |name: &str, seconds: f64| {
        Duration::try_from_secs_f64(seconds).with_context(|| format!("--{name} {seconds} is not a time"))
    };
    let order = Order {
        seed: arguments.seed,
        time: seconds("seconds", arguments.seconds)?,
        executions: arguments.executions,
        hang: seconds("hang-seconds", arguments.hang_seconds)?,
        folder: arguments.output.clone(),
    };
    let mut failed = 0;
    let chosen = chosen(&arguments.target)?;
    for target in &chosen {
        let ending = match arguments.worker {
            true => work(*target, &order)?,
            false => watch(*target, &order, worker(*target, &arguments)?)?,
        };
        failed += usize::from(ending == Ending::Failed);
    }
    if failed > 0 && !arguments.worker {
        println!("{failed} of {} targets failed", chosen.len());
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn chosen(names: &[String]) -> anyhow::Result<Vec<&'static dyn Target>> {
    if names.is_empty() {
        return Ok(TARGETS.to_vec());
    }
    let known = || TARGETS.iter().map(|target| target.name()).collect::<Vec<_>>().join(", ");
    let find = |name: &String| {
        targets::named(name).with_context(|| format!("no target `{name}`; there are {}", known()))
    };
    names.iter().map(find).collect()
}

/// The command of a process that runs one target.
fn worker(target: &dyn Target, arguments: &Arguments) -> anyhow::Result<Command> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    command.args(["--worker", "--target", target.name()]).arg("--output").arg(&arguments.output);
    command.args(["--seed", &arguments.seed.to_string(), "--seconds", &arguments.seconds.to_string()]);
    command.args(["--hang-seconds", &arguments.hang_seconds.to_string()]);
    if let Some(executions) = arguments.executions {
        command.args(["--executions", &executions.to_string()]);
    }
    Ok(command)
}

fn replay(files: &[PathBuf]) -> anyhow::Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    for file in files {
        let Some(target) = target_of(file) else {
            bail!("the name of {} does not begin with a target", file.display());
        };
        match run_once(target, &read(file)?) {
            Ok(verdict) => println!("{}: {verdict:?}", file.display()),
            Err(failure) => {
                println!("{}: {failure}", file.display());
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}

fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))
}
