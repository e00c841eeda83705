//! The shell around one running peer: passes its events to the report, publishes its invite, and saves its model at the end.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow};
use peergrad_config::file_error::explained;
use peergrad_config::model_file::{ModelFile, Origin};
use peergrad_core::io::{Ended, Event, Failure, FinalState};
use peergrad_net::{Directory, FileLimit, Notice, RunRecord, write_private};
use peergrad_protocol::RunId;
use peergrad_protocol::invite::{Invite, Secret};
use peergrad_protocol::message::{Contact, Refusal};
use peergrad_protocol::view::{Member, View};
use tokio::sync::mpsc;

use super::report::Report;
use crate::terminal::program_name;

/// One running peer, as its user sees it.
pub(super) struct RunningPeer {
    pub(super) directory: Directory,
    secret: Secret,
    pub(super) contact: Contact,
    /// The port that it listens on.
    listening: u16,
    /// The run; `None` until it is known.
    run: Option<RunId>,
    /// Some other members, which invites name too.
    others: Vec<Contact>,
    pub(super) report: Report,
    /// Whether other members own everything that this peer owned, so that it can leave without a loss.
    has_handed_over: bool,
    /// How many files may be open; `None` once the user knows that these are too few.
    files: Option<FileLimit>,
    /// Whether the record on disk is older than what this peer knows, because it could not be written.
    is_outdated: bool,
}

impl RunningPeer {
    /// For a peer that is about to start.
    pub(super) fn new(
        directory: Directory,
        secret: Secret,
        contact: Contact,
        listening: u16,
        report: Report,
    ) -> Self {
        let (run, others) = (None, vec![]);
        Self {
            directory,
            secret,
            contact,
            listening,
            run,
            others,
            report,
            has_handed_over: false,
            files: Some(FileLimit::raise()),
            is_outdated: false,
        }
    }

    /// Publishes and prints the invite to a run that this peer founds.
    pub(super) fn found(&mut self, run: RunId) -> anyhow::Result<()> {
        self.run = Some(run);
        self.publish()?;
        self.report.invite(&self.invite(run).to_string(), &run);
        Ok(())
    }

    /// An invite that names this peer first, then some other members, which can admit a joiner after this peer has gone.
    fn invite(&self, run: RunId) -> Invite {
        let contacts = std::iter::once(&self.contact).chain(&self.others).cloned().collect();
        Invite { run, secret: self.secret, contacts }
    }

    /// Writes the record that `peer invite` reads; does nothing before the run is known.
    fn publish(&self) -> anyhow::Result<()> {
        let Some(run) = self.run else { return Ok(()) };
        Ok(self.directory.publish(&RunRecord { invite: self.invite(run), port: self.listening })?)
    }

    /// Writes the record again. If that fails, the run goes on, and the record is written later.
    fn update(&mut self) {
        let result = self.publish();
        let was_outdated = std::mem::replace(&mut self.is_outdated, result.is_err());
        if let Err(error) = result
            && !was_outdated
        {
            self.report.notice(&Notice::RunRecordOutdated { reason: error.to_string() });
        }
    }

    /// Takes the other members that invites name from a new view.
    fn note_members(&mut self, view: &View) {
        if let Some(shortage) = self.files.and_then(|files| files.shortage(view.members.len())) {
            self.files = None;
            self.report.notice(&Notice::FewOpenFiles(shortage));
        }
        let mut members: Vec<&Member> =
            view.members.iter().filter(|member| member.peer != self.contact.peer).collect();
        // Members that own nothing may be unreachable.
        members.sort_by_key(|member| member.capacity == 0);
        let contact = |member: &&Member| Contact {
            peer: member.peer,
            addresses: member.addresses.iter().take(INVITED_ADDRESSES_MAX).cloned().collect(),
        };
        let others = members.iter().take(INVITED_MAX).map(contact).collect();
        if std::mem::replace(&mut self.others, others) != self.others {
            self.update();
        }
    }

    /// Publishes this peer's announced addresses if they have changed.
    fn note_reachability(&mut self, announced: &[String]) {
        if self.contact.addresses != announced {
            self.contact.addresses = announced.to_vec();
            self.update();
        }
    }

    /// Passes events and notices on until the run has ended, and returns how it ended.
    pub(super) async fn watch(
        &mut self,
        mut events: mpsc::UnboundedReceiver<Event>,
        mut notices: mpsc::UnboundedReceiver<Notice>,
        mut disk_notices: mpsc::UnboundedReceiver<Notice>,
    ) -> anyhow::Result<Ended> {
        let mut ended = None;
        let mut retry = tokio::time::interval(UPDATE_RETRY);
        loop {
            tokio::select! {
                event = events.recv() => {
                    let Some(event) = event else { break };
                    match &event {
                        Event::Welcomed { run, .. } => {
                            self.run = Some(*run);
                            self.update();
                        }
                        Event::ViewInstalled { view, .. } => {
                            let is_news = self.run.replace(view.run) != Some(view.run);
                            self.note_members(view);
                            if is_news {
                                self.update();
                            }
                        }
                        Event::Rekeyed { rekey, .. } => {
                            // A later joiner has the new secret from its invite.
                            if std::mem::replace(&mut self.secret, rekey.secret) == rekey.secret {
                                continue;
                            }
                            if let Err(error) = self.publish() {
                                self.is_outdated = true;
                                self.report.notice(&Notice::OldSecretOnDisk { reason: error.to_string() });
                            }
                        }
                        _ => {}
                    }
                    self.has_handed_over |= matches!(event, Event::HandedOver { .. });
                    self.report.event(&event);
                    if let Event::Ended(end) = event {
                        ended = Some(end);
                    }
                }
                Some(notice) = notices.recv(), if ended.is_none() => {
                    if let Notice::Reachability(reachability) = &notice {
                        self.note_reachability(&reachability.announced);
                    }
                    self.report.notice(&notice);
                }
                Some(notice) = disk_notices.recv(), if ended.is_none() => self.report.notice(&notice),
                _ = retry.tick(), if self.is_outdated => self.update(),
            }
        }
        ended.context("the peer stopped without a reason")
    }

    /// Saves the model and reports how the run ended.
    pub(super) fn end(self, ended: Ended) -> anyhow::Result<ExitCode> {
        self.report.close();
        let saved = match &ended.state {
            // Before the first step there is nothing to save.
            Some(state) if state.steps > 0 => save(&self.directory, state).map(|aside| Some((state, aside))),
            Some(_) | None => Ok(None),
        };
        if let Ok(Some((state, aside))) = &saved {
            if let Some(aside) = aside {
                self.report.say(&format!("moved the model of an earlier run to {}", aside.display()));
            }
            self.report.say(&format!(
                "saved the model after {} committed steps; `{} export FILE --dir {}` copies it",
                state.steps,
                program_name(),
                self.directory.path().display()
            ));
        }
        // The last message, since readers of the JSON output stop here.
        let code = match (&ended.outcome, &ended.state) {
            (Ok(()), Some(state)) => {
                self.report.summary(state);
                ExitCode::SUCCESS
            }
            (Ok(()), None) => ExitCode::SUCCESS,
            // Leaving with a handover is success.
            (Err(Failure::Left), state) if self.has_handed_over => {
                self.report.left(state.as_ref());
                ExitCode::SUCCESS
            }
            (Err(failure @ Failure::Left), _) => {
                self.report.stopped(&failure.to_string());
                ExitCode::FAILURE
            }
            (Err(failure), _) => {
                self.report.failed(&failure.to_string());
                ExitCode::FAILURE
            }
        };
        let is_over = matches!(
            ended.outcome,
            Ok(()) | Err(Failure::Refused { refusal: Refusal::Expelled(_) | Refusal::RunComplete, .. })
        );
        let has_left = self.has_handed_over && ended.outcome == Err(Failure::Left);
        if saved.is_ok() && (is_over || has_left) {
            // The others no longer need this peer's vote.
            self.directory.forget_run();
        }
        if let (Ok(()), Some(state), Ok(_)) = (&ended.outcome, &ended.state, &saved) {
            // The final model replaces the checkpoints.
            self.directory.checkpoint_store().forget(&state.run);
        }
        // The outcome is reported even if saving has failed.
        saved.map(|_| code)
    }
}

/// Renames the model of an earlier run, so that an aborted run cannot overwrite it. Returns the new path; `None` if there was no
/// such model.
fn keep_earlier_run(path: &Path, run: RunId) -> Option<PathBuf> {
    let earlier = ModelFile::decode(&std::fs::read(path).ok()?).ok()?.origin.run;
    let aside = path.with_file_name(format!("model-{}.safetensors", earlier.short()));
    // A failure to rename must not keep the new model from being saved.
    (earlier != run && std::fs::rename(path, &aside).is_ok()).then_some(aside)
}

/// Whether there is any checkpoint in the data directory.
fn has_checkpoints(directory: &Directory) -> bool {
    let is_model = |path: PathBuf| path.extension().is_some_and(|extension| extension == "safetensors");
    let entries = std::fs::read_dir(directory.path().join("checkpoints"));
    entries.is_ok_and(|entries| entries.flatten().any(|entry| is_model(entry.path())))
}

/// Writes the model into the data directory. Returns where the model of an earlier run is now, if there was one.
fn save(directory: &Directory, state: &FinalState) -> anyhow::Result<Option<PathBuf>> {
    let path = directory.path().join(super::model::MODEL_FILE);
    let origin = Origin {
        run: state.run,
        steps: state.steps,
        specification: String::from_utf8(state.specification.to_vec()).unwrap_or_default(),
    };
    let aside = keep_earlier_run(&path, state.run);
    let model = ModelFile { manifest: state.manifest.clone(), parameters: state.parameters.to_vec(), origin };
    write_private(&path, &model.encode()).map_err(|error| {
        let (path, reason) = (path.display(), explained(&error));
        let rest = if has_checkpoints(directory) {
            "the checkpoints beside it are kept, and each is a complete model"
        } else {
            "there is no checkpoint either: the model of this run is at the other peers, if there were any"
        };
        anyhow!("cannot save the model to {path}: {reason} ({rest})")
    })?;
    Ok(aside)
}

/// How long after a failure the record for `peer invite` is written again.
const UPDATE_RETRY: Duration = Duration::from_secs(5);
/// How many other members an invite names; more of them make a longer command.
const INVITED_MAX: usize = 3;
/// How many addresses of each other member an invite names.
const INVITED_ADDRESSES_MAX: usize = 3;
