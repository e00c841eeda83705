//! RunningPeer: what surrounds one peer while it runs, for its user: what is said, what is kept where, how it ends.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use peergrad_config::model_file::{ModelFile, Origin};
use peergrad_core::io::{Ended, Event, Failure, FinalState};
use peergrad_net::{Directory, Notice, RunRecord, write_atomically};
use peergrad_protocol::RunId;
use peergrad_protocol::invite::{Invite, Secret};
use peergrad_protocol::message::{Contact, Refusal};
use peergrad_protocol::view::{Member, View};
use tokio::sync::mpsc;

use super::report::Report;
use crate::terminal::program_name;

/// What the shell keeps of one peer while it runs.
pub(super) struct RunningPeer {
    pub(super) directory: Directory,
    secret: Secret,
    pub(super) contact: Contact,
    /// The port on which it listens.
    listening: u16,
    /// The run, once it is known.
    run: Option<RunId>,
    /// Other members, some of them.
    others: Vec<Contact>,
    pub(super) report: Report,
    /// Others own what this peer owned, as it was asked to see to before it leaves.
    has_handed_over: bool,
}

impl RunningPeer {
    /// Around a peer that is about to start.
    pub(super) fn new(
        directory: Directory,
        secret: Secret,
        contact: Contact,
        listening: u16,
        report: Report,
    ) -> Self {
        let (run, others) = (None, vec![]);
        Self { directory, secret, contact, listening, run, others, report, has_handed_over: false }
    }

    /// It founds this run.
    pub(super) fn found(&mut self, run: RunId) -> anyhow::Result<()> {
        self.run = Some(run);
        self.publish()?;
        self.report.invite(&self.invite(run).to_string(), &run);
        Ok(())
    }

    /// This peer first, and some others, who let a joiner in where this one is gone by then.
    fn invite(&self, run: RunId) -> Invite {
        let contacts = std::iter::once(&self.contact).chain(&self.others).cloned().collect();
        Invite { run, secret: self.secret, contacts }
    }

    /// Lets `peer invite` find this run, and where its members are.
    fn publish(&self) -> anyhow::Result<()> {
        let Some(run) = self.run else { return Ok(()) };
        Ok(self.directory.publish(&RunRecord { invite: self.invite(run), port: self.listening })?)
    }

    /// Takes note of members that can be dialed, for invites.
    fn note_members(&mut self, view: &View) -> anyhow::Result<()> {
        let mut members: Vec<&Member> =
            view.members.iter().filter(|member| member.peer != self.contact.peer).collect();
        // Those that own nothing may be out of reach.
        members.sort_by_key(|member| member.capacity == 0);
        let contact = |member: &&Member| Contact {
            peer: member.peer,
            addresses: member.addresses.iter().take(INVITED_ADDRESSES_MAX).cloned().collect(),
        };
        let others = members.iter().take(INVITED_MAX).map(contact).collect();
        if std::mem::replace(&mut self.others, others) == self.others {
            return Ok(());
        }
        self.publish()
    }

    /// Others reach this peer elsewhere than they did.
    fn note_reachability(&mut self, announced: &[String]) -> anyhow::Result<()> {
        if self.contact.addresses == announced {
            return Ok(());
        }
        self.contact.addresses = announced.to_vec();
        self.publish()
    }

    /// Passes on what happens until the run has ended.
    pub(super) async fn watch(
        &mut self,
        mut events: mpsc::UnboundedReceiver<Event>,
        mut notices: mpsc::UnboundedReceiver<Notice>,
    ) -> anyhow::Result<Ended> {
        let mut ended = None;
        loop {
            tokio::select! {
                event = events.recv() => {
                    let Some(event) = event else { break };
                    match &event {
                        Event::Welcomed { run, .. } => {
                            self.run = Some(*run);
                            self.publish()?;
                        }
                        Event::ViewInstalled { view, .. } => {
                            let is_news = self.run.replace(view.run) != Some(view.run);
                            self.note_members(view)?;
                            if is_news {
                                self.publish()?;
                            }
                        }
                        Event::Rekeyed { rekey, .. } => {
                            // One that has come since had it from its invite.
                            if std::mem::replace(&mut self.secret, rekey.secret) == rekey.secret {
                                continue;
                            }
                            // The run is worth more than its record, which the next change writes again.
                            if let Err(error) = self.publish() {
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
                        self.note_reachability(&reachability.announced)?;
                    }
                    self.report.notice(&notice);
                }
            }
        }
        ended.context("the peer stopped without saying why")
    }

    /// Saves what the run leaves here, and says how it ended.
    pub(super) fn end(self, ended: Ended) -> anyhow::Result<ExitCode> {
        self.report.close();
        let saved = match &ended.state {
            // Before the first step there is nothing that was learnt.
            Some(state) if state.steps > 0 => save(&self.directory, state).map(|aside| Some((state, aside))),
            Some(_) | None => Ok(None),
        };
        if let Ok(Some((state, aside))) = &saved {
            if let Some(aside) = aside {
                self.report.say(&format!("the model of an earlier run is kept in {}", aside.display()));
            }
            self.report.say(&format!(
                "the state after {} committed steps is saved; `{} export FILE --dir {}` copies it",
                state.steps,
                program_name(),
                self.directory.path().display()
            ));
        }
        // The last words: whoever reads JSON stops here.
        let code = match (&ended.outcome, &ended.state) {
            (Ok(()), Some(state)) => {
                self.report.summary(state);
                ExitCode::SUCCESS
            }
            (Ok(()), None) => ExitCode::SUCCESS,
            // It did all that it was asked to do.
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
        if saved.is_ok() && (is_over || self.has_handed_over) {
            // Nobody needs this peer's vote any more.
            self.directory.forget_run();
        }
        if let (Ok(()), Some(state), Ok(_)) = (&ended.outcome, &ended.state, &saved) {
            // What the run has come to is saved.
            self.directory.checkpoint_store().forget(&state.run);
        }
        // What the run came to is said all the same.
        saved.map(|_| code)
    }
}

/// Puts the model of another run aside, so that a run that is broken off does not cost what an earlier one learnt. Where
/// to, if there was one.
fn keep_earlier_run(path: &Path, run: RunId) -> Option<PathBuf> {
    let earlier = ModelFile::decode(&std::fs::read(path).ok()?).ok()?.origin.run;
    let aside = path.with_file_name(format!("model-{}.safetensors", earlier.short()));
    // If it cannot be put aside, the newer one still has to be saved.
    (earlier != run && std::fs::rename(path, &aside).is_ok()).then_some(aside)
}

/// Writes the model into the data directory. Where the one of an earlier run is now, if there was one.
fn save(directory: &Directory, state: &FinalState) -> anyhow::Result<Option<PathBuf>> {
    let path = directory.path().join(super::model::MODEL_FILE);
    let origin = Origin {
        run: state.run,
        steps: state.steps,
        specification: String::from_utf8(state.specification.to_vec()).unwrap_or_default(),
    };
    let aside = keep_earlier_run(&path, state.run);
    let model = ModelFile { manifest: state.manifest.clone(), parameters: state.parameters.to_vec(), origin };
    write_atomically(&path, &model.encode())
        .with_context(|| {
            let path = path.display();
            format!("cannot save the model to {path}: make room (the checkpoints beside it are kept, and each is a model too)")
        })?;
    Ok(aside)
}

/// Other members that an invite names, and addresses of each: more of them make a longer line.
const INVITED_MAX: usize = 3;
const INVITED_ADDRESSES_MAX: usize = 3;
