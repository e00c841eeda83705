//! `peer compare`: the same model on the same data, trained with each of several run files by real peers on this machine, and how
//! they compare.
//!
//! What is learnt and what is sent is a matter of the algorithm; how long it takes is one of this machine, whose peers share its
//! cores and talk over loopback. Slow lines and many peers are the simulator's (`simulate compare`).
//!
//! # How it works
//! What can be wrong with the files is looked for before hours are spent ([`entries`]). Then every file in turn is trained by a
//! [`swarm`](super::swarm) of its own, with one seed after the other, so that a machine that is busy for a while is so for all
//! of them. A [`course`] is kept of each; [`results`] puts them side by side, pair by pair: with the same seed, all begin with
//! the same parameters, see samples in the same order and hold out the same rows.

use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use peergrad_page::pairing::seeds;
use serde_json::json;

use super::progress::Screen;
use super::swarm::{LineChannel, ScratchDirectory, Swarm, SwarmConfig, SwarmOutput};
use crate::terminal::{emit, print_line};
use crate::text::text_table::plural;
use entries::ComparedRun;
use learning_curve::{LearningCurve, ProgressPoint};
use results::{ComparisonResults, TrainingResult};

mod entries;
mod learning_curve;
mod results;

#[derive(Args)]
pub(super) struct CompareArguments {
    /// Two or more files that train the same model on the same data; the first is what the others are compared with
    #[arg(value_name = "RUN.toml", num_args = 2.., required = true)]
    run_files: Vec<PathBuf>,
    /// Peers to start for each training
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    peers: u32,
    /// Train with each of these seeds: from A up to, not including, B [default: the seed in the files]
    #[arg(long, value_name = "A..B", value_parser = seeds)]
    seeds: Option<Range<u64>>,
    /// Write the table and the curves: one HTML file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// The results as JSON, one object a line, on standard output
    #[arg(long)]
    json: bool,
}

pub(super) fn compare(arguments: &CompareArguments) -> anyhow::Result<ExitCode> {
    let entries = entries::read_all(&arguments.run_files, arguments.seeds.as_ref().map(|seeds| seeds.start))?;
    if let Some(path) = &arguments.report {
        check_writable(path)?;
    }
    let output = SwarmOutput { screen: Screen::new(), is_json: arguments.json };
    let channel = LineChannel::open();
    let mut results: Vec<Vec<TrainingResult>> = entries.iter().map(|_| Vec::new()).collect();
    let seeds = match &arguments.seeds {
        Some(seeds) => seeds.start..=seeds.end - 1,
        None => entries[0].seed()..=entries[0].seed(),
    };
    let peers = plural(arguments.peers as usize, "peer");
    for seed in seeds.clone() {
        for (entry, results) in entries.iter().zip(&mut results) {
            if !output.is_json {
                output.screen.say(&format!("{}, seed {seed}: {peers}", entry.name));
            }
            let result = train(entry, seed, arguments.peers, &output, &channel)?;
            if output.is_json {
                emit(&result.object(&entry.name));
            } else {
                output.screen.say(&format!("{}, seed {seed}: {}", entry.name, result.words()));
            }
            results.push(result);
        }
    }
    let names = entries.into_iter().map(|entry| entry.name).collect();
    tell(arguments, &seeds, &ComparisonResults { names, results })?;
    Ok(ExitCode::SUCCESS)
}

/// Trains what one file says, to its end.
fn train(
    entry: &ComparedRun,
    seed: u64,
    peers: u32,
    output: &SwarmOutput,
    channel: &LineChannel,
) -> anyhow::Result<TrainingResult> {
    let scratch = ScratchDirectory::create("compare")?;
    let config = SwarmConfig {
        name: format!("{} with seed {seed}", entry.name),
        program: &[],
        run_file: &entry.path,
        seed: Some(seed),
        data: entry.data.as_deref(),
        peers,
        folder: scratch.path(),
    };
    let mut swarm = Swarm::start(config, output.clone(), channel)?;
    if output.is_json {
        emit(&json!({"event": "training", "file": entry.name, "seed": seed, "peers": peers}));
    }
    let mut course = LearningCurve::new(entry.samples());
    while swarm.advance()? {
        course.note(&ProgressPoint::of(&swarm));
    }
    swarm.check_digests().with_context(|| entry.name.clone())?;
    Ok(TrainingResult::of(&swarm, seed, course))
}

fn tell(
    arguments: &CompareArguments,
    seeds: &RangeInclusive<u64>,
    results: &ComparisonResults,
) -> anyhow::Result<()> {
    if arguments.json {
        results.objects().iter().for_each(emit);
    } else {
        print_line(results.table().trim_end());
    }
    let Some(path) = &arguments.report else { return Ok(()) };
    let files: Vec<String> = arguments.run_files.iter().map(|path| path.display().to_string()).collect();
    let peers = arguments.peers;
    let mut command = format!("peer compare {} --peers {peers}", files.join(" "));
    if let Some(Range { start, end }) = &arguments.seeds {
        command += &format!(" --seeds {start}..{end}");
    }
    let with = match seeds.clone().count() {
        1 => format!("seed {}", seeds.start()),
        count => format!("medians of {count} seeds"),
    };
    let about = format!(
        "{} on this machine, over loopback; {with}. What is learnt and sent is a matter of the algorithm, time is one of \
         this machine.",
        plural(peers as usize, "peer")
    );
    std::fs::write(path, results.page(&command, &about))
        .with_context(|| format!("cannot write the report {}", path.display()))?;
    if arguments.json {
        emit(&json!({"event": "report", "file": path.display().to_string()}));
    } else {
        print_line(&format!("report: {}", path.display()));
    }
    Ok(())
}

/// An error now rather than after the training.
fn check_writable(report: &Path) -> anyhow::Result<()> {
    let is_new = !report.exists();
    std::fs::OpenOptions::new().create(true).append(true).open(report).with_context(|| {
        format!(
            "cannot write the report {}; give the path of a file in a folder that exists",
            report.display()
        )
    })?;
    if is_new {
        // An empty file would be all that is left if the training is broken off.
        let _ = std::fs::remove_file(report);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_that_can_be_written_is_not_there_before_its_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.html");
        check_writable(&path).unwrap();
        assert!(!path.exists());
        std::fs::write(&path, "earlier").unwrap();
        check_writable(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "earlier");
        let nowhere = check_writable(&folder.path().join("gone/report.html")).unwrap_err();
        assert!(nowhere.to_string().contains("a folder that exists"), "{nowhere}");
    }
}
