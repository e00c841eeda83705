//! `peer compare`: trains the same model on the same data with each of several run files, with real peers on this machine, and
//! compares the results.
//!
//! Accuracy and traffic depend on the algorithm only. Time depends on this machine too, since its peers share the cores and use
//! loopback. For slow links and many peers, use the simulator (`simulate compare`).
//!
//! # How it works
//! All files are checked before any training starts ([`entries`]). Then, for one seed after another, each file is trained by its own
//! [`swarm`](super::swarm), so that a temporary load on the machine affects all files alike. Each training records a learning curve
//! ([`learning_curve`]). [`results`] compares the files seed by seed: with the same seed, all start from the same parameters, visit
//! samples in the same order and hold out the same rows.

use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::Args;
use peergrad_config::file_error::explained;
use peergrad_page::pairing::seeds;
use serde_json::json;

use super::progress::Screen;
use super::scratch_directory::ScratchDirectory;
use super::swarm::{LineChannel, Swarm, SwarmConfig, SwarmOutput};
use crate::terminal::{OutputFormat, emit, print_line};
use entries::ComparedRun;
use learning_curve::{LearningCurve, ProgressPoint};
use peergrad_embed::text::text_table::plural;
use results::{ComparisonResults, TrainingResult};

mod entries;
mod learning_curve;
mod results;

#[derive(Args)]
pub(super) struct CompareArguments {
    /// Two or more run files that train the same model on the same data; the first is the baseline
    #[arg(value_name = "RUN.toml", num_args = 2.., required = true)]
    run_files: Vec<PathBuf>,
    /// How many peers to start for each training
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    peers: u32,
    /// Train with each of the seeds from A up to, but not including, B [default: the seed in the files]
    #[arg(long, value_name = "A..B", value_parser = seeds)]
    seeds: Option<Range<u64>>,
    /// Write the table and the learning curves to an HTML file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Print the results as JSON on standard output, one object a line
    #[arg(long)]
    json: bool,
}

pub(super) fn compare(arguments: &CompareArguments) -> anyhow::Result<ExitCode> {
    let entries = entries::read_all(&arguments.run_files, arguments.seeds.as_ref().map(|seeds| seeds.start))?;
    if let Some(path) = &arguments.report {
        check_writable(path)?;
    }
    let output = SwarmOutput { screen: Screen::new(), format: OutputFormat::of_flag(arguments.json) };
    let channel = LineChannel::open();
    let mut results: Vec<Vec<TrainingResult>> = entries.iter().map(|_| Vec::new()).collect();
    let seeds = match &arguments.seeds {
        Some(seeds) => seeds.start..=seeds.end - 1,
        None => entries[0].seed()..=entries[0].seed(),
    };
    let peers = plural(arguments.peers as usize, "peer");
    for seed in seeds.clone() {
        for (entry, results) in entries.iter().zip(&mut results) {
            if !output.format.is_json() {
                output.screen.say(&format!("{}, seed {seed}: {peers}", entry.name));
            }
            let result = train(entry, seed, arguments.peers, &output, &channel)?;
            if output.format.is_json() {
                emit(&result.object(&entry.name));
            } else {
                output.screen.say(&format!("{}, seed {seed}: {}", entry.name, result.text()));
            }
            results.push(result);
        }
    }
    let names = entries.into_iter().map(|entry| entry.name).collect();
    print(arguments, &seeds, &ComparisonResults { names, results })?;
    Ok(ExitCode::SUCCESS)
}

/// Runs the training that one file describes.
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
    if output.format.is_json() {
        emit(&json!({"event": "training", "file": entry.name, "seed": seed, "peers": peers}));
    }
    let mut curve = LearningCurve::new(entry.samples());
    while swarm.advance()? {
        curve.note(&ProgressPoint::of(&swarm));
    }
    swarm.check_digests().with_context(|| entry.name.clone())?;
    Ok(TrainingResult::of(&swarm, seed, curve))
}

/// Prints the results, and writes the report if one was asked for.
fn print(
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
        "{} on this machine, over loopback; {with}. Accuracy and traffic depend on the algorithm only, time on this machine \
         too.",
        plural(peers as usize, "peer")
    );
    std::fs::write(path, results.page(&command, &about))
        .map_err(|error| anyhow!("cannot write the report {}: {}", path.display(), explained(&error)))?;
    if arguments.json {
        emit(&json!({"event": "report", "file": path.display().to_string()}));
    } else {
        print_line(&format!("report: {}", path.display()));
    }
    Ok(())
}

/// Fails before the training if the report could not be written after it.
pub(super) fn check_writable(report: &Path) -> anyhow::Result<()> {
    let is_new = !report.exists();
    std::fs::OpenOptions::new().create(true).append(true).open(report).with_context(|| {
        format!("cannot write the report {}; give a path in a folder that exists", report.display())
    })?;
    if is_new {
        // An aborted training should not leave an empty file.
        let _ = std::fs::remove_file(report);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checking_a_report_leaves_no_file_behind() {
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
