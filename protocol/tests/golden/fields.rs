//! Messages taken apart by hand, field by field, in the order in which they are on the wire.
//!
//! Patterns name every field, so that a new one does not compile until it is shown.

use peergrad_protocol::ledger::{Ledger, Span};
use peergrad_protocol::message::{
    Accepted, Again, Beat, Chosen, Closed, Complete, Content, DataPiece, Departure, Donation, Holdings,
    Inherited, Join, Meeting, Message, Offer, Outbid, Parcel, Phase, Piece, Prepare, Promise, Propose,
    Refusal, Rekey, Report, Save, Saved, Segment, WantBequest, WantChunks, WantData, Welcome, Will, Words,
    Yield,
};
use peergrad_protocol::view::{
    Branch, Cause, Deal, Donor, Expulsion, Forward, Member, Merge, Move, Moves, Recovery, Resume, Root,
    Succession, View,
};

use crate::sheet::Sheet;

/// The frame of a sample: what the encoder makes must be these fields end to end.
pub(crate) fn frame_sheet(message: &Message, payload: Option<&[u8]>) -> Sheet {
    let header = fields(message);
    let header_bytes = header.bytes().len();
    let payload_bytes = payload.map_or(0, <[u8]>::len);
    let (kind, kind_name) = match message {
        Message::Segment(_) | Message::Words(_) => (1, "segment"),
        Message::Data(_) => (2, "data"),
        Message::Parcel(_) | Message::Bequest(_) => (3, "parcel"),
        _ => (0, "control"),
    };
    let mut sheet = Sheet::default();
    sheet.raw(&[1], "prefix: version");
    sheet.raw(&[kind], format!("prefix: kind = {kind_name}"));
    sheet.raw(&(header_bytes as u32).to_le_bytes(), format!("prefix: header bytes = {header_bytes}"));
    sheet.raw(&(payload_bytes as u32).to_le_bytes(), format!("prefix: payload bytes = {payload_bytes}"));
    sheet.lines.extend(header.lines);
    if let Some(payload) = payload.filter(|payload| !payload.is_empty()) {
        sheet.raw(payload, "payload");
    }
    sheet
}

/// The header of `message`, a line for each field.
///
/// A message that is missing here does not compile: give it an arm, a sample in `samples.rs` and a file.
fn fields(message: &Message) -> Sheet {
    let mut sheet = Sheet::default();
    let (tag, name) = tag(message);
    sheet.raw(&[tag], format!("message = {name}"));
    match message {
        Message::Ready | Message::Retire => {}
        Message::Join(join) => join_fields(join, &mut sheet),
        Message::Welcome(welcome) => welcome_fields(welcome, &mut sheet),
        Message::Refer(contact) => sheet.contact("contact", contact),
        Message::Refuse(refusal) => refusal_fields(refusal, &mut sheet),
        Message::WantData(WantData { digest, offset }) | Message::Data(DataPiece { digest, offset }) => {
            sheet.array("digest", &digest.0);
            sheet.value("offset", offset);
        }
        Message::Candidate(member) => member_fields(member, &mut sheet),
        Message::Install(view) => view_fields(view, &mut sheet),
        Message::Beat(beat) => beat_fields(beat, &mut sheet),
        Message::Prepare(Prepare { view, ballot, before }) => {
            sheet.array("view", &view.0);
            sheet.ballot("ballot", ballot);
            sheet.some("before", before.as_ref(), |sheet, before| sheet.value("before", before));
        }
        Message::Promise(promise) => promise_fields(promise, &mut sheet),
        Message::Outbid(Outbid { view, ballot, promised, step }) => {
            sheet.array("view", &view.0);
            sheet.ballot("ballot", ballot);
            sheet.some("promised", promised.as_ref(), |sheet, ballot| sheet.ballot("promised", ballot));
            sheet.value("step", step);
        }
        Message::Propose(Propose { ballot, change }) => {
            sheet.ballot("ballot", ballot);
            change_fields(change, &mut sheet);
        }
        Message::Accepted(Accepted { view, ballot }) => {
            sheet.array("view", &view.0);
            sheet.ballot("ballot", ballot);
        }
        Message::Succeed(change) => change_fields(change, &mut sheet),
        Message::Segment(segment) => segment_fields(segment, &mut sheet),
        Message::WantChunks(WantChunks { view, steps, chunks }) => {
            sheet.array("view", &view.0);
            sheet.value("steps", steps);
            sheet.chunks("chunks", chunks);
        }
        Message::Parcel(parcel) | Message::Bequest(parcel) => parcel_fields(parcel, &mut sheet),
        Message::Complete(Complete { view, steps, left_out }) => {
            sheet.array("view", &view.0);
            sheet.value("steps", steps);
            sheet.value("left_out", left_out);
        }
        Message::Closed(Closed { view, left_out }) => {
            sheet.array("view", &view.0);
            sheet.value("left_out", left_out);
        }
        Message::Leave(Departure { reason }) => sheet.text("reason", reason),
        Message::Offer(Offer { view, step, has_contribution, left_out }) => {
            sheet.array("view", &view.0);
            sheet.value("step", step);
            sheet.value("has_contribution", has_contribution);
            sheet.value("left_out", left_out);
        }
        Message::Chosen(chosen) => chosen_fields(chosen, &mut sheet),
        Message::Save(Save { view, steps }) | Message::Bequeath(Save { view, steps }) => {
            sheet.array("view", &view.0);
            sheet.value("steps", steps);
        }
        Message::Expel(expulsion) => expulsion_fields(expulsion, &mut sheet),
        Message::Meet(meeting) => meeting_fields(meeting, &mut sheet),
        Message::Will(will) => will_fields(will, &mut sheet),
        Message::WantBequest(WantBequest { view, steps, content, chunks }) => {
            sheet.array("view", &view.0);
            sheet.value("steps", steps);
            content_field(*content, &mut sheet);
            sheet.chunks("chunks", chunks);
        }
        Message::Inherited(Inherited { heirs, view, steps, missing }) => {
            sheet.array("heirs", &heirs.0);
            sheet.array("view", &view.0);
            sheet.value("steps", steps);
            sheet.value("missing", missing);
        }
        Message::Yield(Yield { view, question, is_merged, contacts }) => {
            sheet.array("view", &view.0);
            sheet.value("question", question);
            sheet.value("is_merged", is_merged);
            sheet.list("contacts", contacts, |sheet, contact| sheet.contact("contact", contact));
        }
        Message::Rekey(Rekey { at, by, secret }) => {
            sheet.value("at", at);
            sheet.array("by", &by.0);
            sheet.array("secret", &secret.0);
        }
        Message::Rekeyed(at) => sheet.value("at", at),
        Message::Words(Words { view }) => sheet.array("view", &view.0),
    }
    sheet
}

/// The number of a message on the wire, and its name.
fn tag(message: &Message) -> (u8, &'static str) {
    match message {
        Message::Join(_) => (0, "Join"),
        Message::Welcome(_) => (1, "Welcome"),
        Message::Refer(_) => (2, "Refer"),
        Message::Refuse(_) => (3, "Refuse"),
        Message::WantData(_) => (4, "WantData"),
        Message::Data(_) => (5, "Data"),
        Message::Ready => (6, "Ready"),
        Message::Candidate(_) => (7, "Candidate"),
        Message::Retire => (8, "Retire"),
        Message::Install(_) => (9, "Install"),
        Message::Beat(_) => (10, "Beat"),
        Message::Prepare(_) => (11, "Prepare"),
        Message::Promise(_) => (12, "Promise"),
        Message::Outbid(_) => (13, "Outbid"),
        Message::Propose(_) => (14, "Propose"),
        Message::Accepted(_) => (15, "Accepted"),
        Message::Succeed(_) => (16, "Succeed"),
        Message::Segment(_) => (17, "Segment"),
        Message::WantChunks(_) => (18, "WantChunks"),
        Message::Parcel(_) => (19, "Parcel"),
        Message::Complete(_) => (20, "Complete"),
        Message::Closed(_) => (21, "Closed"),
        Message::Leave(_) => (22, "Leave"),
        Message::Offer(_) => (23, "Offer"),
        Message::Chosen(_) => (24, "Chosen"),
        Message::Save(_) => (25, "Save"),
        Message::Expel(_) => (26, "Expel"),
        Message::Meet(_) => (27, "Meet"),
        Message::Bequeath(_) => (28, "Bequeath"),
        Message::Will(_) => (29, "Will"),
        Message::WantBequest(_) => (30, "WantBequest"),
        Message::Bequest(_) => (31, "Bequest"),
        Message::Inherited(_) => (32, "Inherited"),
        Message::Yield(_) => (33, "Yield"),
        Message::Rekey(_) => (34, "Rekey"),
        Message::Rekeyed(_) => (35, "Rekeyed"),
        Message::Words(_) => (36, "Words"),
    }
}

fn chosen_fields(chosen: &Chosen, sheet: &mut Sheet) {
    let Chosen { view, step, late, left_out } = chosen;
    sheet.array("view", &view.0);
    sheet.value("step", step);
    sheet.length("late", late.len());
    late.iter().for_each(|rank| sheet.value("rank", rank));
    sheet.value("left_out", left_out);
}

// Coming.

fn join_fields(join: &Join, sheet: &mut Sheet) {
    let Join { run, incarnation, addresses, weight } = join;
    sheet.some("run", run.as_ref(), |sheet, run| sheet.array("run", &run.0));
    sheet.value("incarnation", incarnation);
    sheet.addresses(addresses);
    sheet.value("weight", weight);
}

fn welcome_fields(welcome: &Welcome, sheet: &mut Sheet) {
    let Welcome { specification, nonce, members, workers } = welcome;
    sheet.length("specification", specification.len());
    sheet.raw(specification, format!("{:?}", String::from_utf8_lossy(specification)));
    sheet.array("nonce", nonce);
    sheet.list("members", members, |sheet, contact| sheet.contact("member", contact));
    sheet.list("workers", workers, |sheet, worker| sheet.array("worker", &worker.0));
}

fn refusal_fields(refusal: &Refusal, sheet: &mut Sheet) {
    match refusal {
        Refusal::OtherRun { run } => {
            sheet.raw(&[0], "refusal = OtherRun");
            sheet.array("run", &run.0);
        }
        Refusal::Full => sheet.raw(&[1], "refusal = Full"),
        Refusal::Over => sheet.raw(&[2], "refusal = Over"),
        Refusal::Copied => sheet.raw(&[3], "refusal = Copied"),
        Refusal::NotYet => sheet.raw(&[4], "refusal = NotYet"),
        Refusal::Expelled(expulsion) => {
            sheet.raw(&[5], "refusal = Expelled");
            expulsion_fields(expulsion, sheet);
        }
    }
}

// Views.

fn member_fields(member: &Member, sheet: &mut Sheet) {
    let Member { peer, incarnation, addresses, weight } = member;
    sheet.array("member.peer", &peer.0);
    sheet.value("member.incarnation", incarnation);
    sheet.addresses(addresses);
    sheet.value("member.weight", weight);
}

pub(crate) fn view_fields(view: &View, sheet: &mut Sheet) {
    let View {
        run,
        epoch,
        parents,
        members,
        branch,
        branches_before,
        recovery,
        ledger,
        moves,
        expelled,
        roots,
        estranged,
    } = view;
    sheet.array("run", &run.0);
    sheet.value("epoch", epoch);
    sheet.list("parents", parents, |sheet, parent| sheet.array("parent", &parent.0));
    sheet.list("members", members, |sheet, member| member_fields(member, sheet));
    branch_fields(branch, sheet);
    sheet.list("branches_before", branches_before, |sheet, branch| branch_fields(branch, sheet));
    match recovery {
        Recovery::Found => sheet.raw(&[0], "recovery = Found"),
        Recovery::Resume(resume) => {
            sheet.raw(&[1], "recovery = Resume");
            resume_fields(resume, sheet);
        }
    }
    ledger_fields(ledger, sheet);
    moves_fields(moves, sheet);
    sheet.list("expelled", expelled, |sheet, expulsion| expulsion_fields(expulsion, sheet));
    roots_fields(roots, sheet);
    sheet.list("estranged", estranged, |sheet, contact| sheet.contact("contact", contact));
}

fn roots_fields(roots: &[Root], sheet: &mut Sheet) {
    sheet.list("roots", roots, |sheet, Root { view, trained }| {
        sheet.array("root.view", &view.0);
        sheet.value("root.trained", trained);
    });
}

fn expulsion_fields(Expulsion { peer, by, cause }: &Expulsion, sheet: &mut Sheet) {
    sheet.array("expelled.peer", &peer.0);
    sheet.array("expelled.by", &by.0);
    match cause {
        Cause::Request => sheet.raw(&[0], "expelled.cause = Request"),
        Cause::Violations => sheet.raw(&[1], "expelled.cause = Violations"),
    }
}

fn branch_fields(Branch { epoch, step, fork }: &Branch, sheet: &mut Sheet) {
    sheet.value("branch.epoch", epoch);
    sheet.value("branch.step", step);
    sheet.value("branch.fork", fork);
}

fn resume_fields(resume: &Resume, sheet: &mut Sheet) {
    let Resume { step, newcomers, deal, forward, is_restored, merge } = resume;
    sheet.value("resume.step", step);
    sheet.list("resume.newcomers", newcomers, |sheet, rank| sheet.value("newcomer", rank));
    sheet.some("resume.deal", deal.as_ref(), |sheet, Deal { pass, parts }| {
        sheet.value("deal.pass", pass);
        sheet.list("deal.parts", parts, |sheet, part| {
            sheet.list("part", part, |sheet, span| span_fields(span, sheet));
        });
    });
    sheet.some("resume.forward", forward.as_ref(), |sheet, Forward { tally, donors }| {
        sheet.tally("forward.tally", tally);
        sheet.list("forward.donors", donors, |sheet, Donor { first, end, rank }| {
            sheet.value("donor.first", first);
            sheet.value("donor.end", end);
            sheet.value("donor.rank", rank);
        });
    });
    sheet.value("resume.is_restored", is_restored);
    sheet.some("resume.merge", merge.as_deref(), |sheet, merge| {
        let Merge { view, steps, ours, theirs, ledger, history } = merge;
        sheet.array("merge.view", &view.0);
        sheet.value("merge.steps", steps);
        sheet.value("merge.ours", ours);
        sheet.value("merge.theirs", theirs);
        ledger_fields(ledger, sheet);
        roots_fields(history, sheet);
    });
}

fn ledger_fields(ledger: &Ledger, sheet: &mut Sheet) {
    let Ledger { pass, position, given_back, put_off } = ledger;
    sheet.value("ledger.pass", pass);
    sheet.value("ledger.position", position);
    sheet.list("ledger.given_back", given_back, |sheet, span| span_fields(span, sheet));
    sheet.list("ledger.put_off", put_off, |sheet, span| span_fields(span, sheet));
}

fn span_fields(span: &Span, sheet: &mut Sheet) {
    let Span { start, end } = span;
    sheet.value("span.start", start);
    sheet.value("span.end", end);
}

fn moves_fields(moves: &Moves, sheet: &mut Sheet) {
    let Moves { list, rate, restarted } = moves;
    sheet.list("moves.list", list, |sheet, Move { chunk, from }| {
        sheet.value("move.chunk", chunk);
        sheet.list("move.from", from, |sheet, rank| sheet.value("keeper", rank));
    });
    sheet.value("moves.rate", rate);
    sheet.list("moves.restarted", restarted, |sheet, chunk| sheet.value("chunk", chunk));
}

// Agreeing.

fn beat_fields(beat: &Beat, sheet: &mut Sheet) {
    let Beat { view, epoch, complete, computing } = beat;
    sheet.array("view", &view.0);
    sheet.value("epoch", epoch);
    sheet.value("complete", complete);
    sheet.some("computing", computing.as_ref(), |sheet, step| sheet.value("step", step));
}

fn promise_fields(promise: &Promise, sheet: &mut Sheet) {
    let Promise { view, ballot, accepted, report } = promise;
    let Report {
        is_over,
        complete,
        states,
        states_before,
        is_entering,
        tally,
        next,
        lost,
        has_bequest,
        again,
    } = report;
    sheet.array("view", &view.0);
    sheet.ballot("ballot", ballot);
    sheet.some("accepted", accepted.as_ref(), |sheet, (ballot, change)| {
        sheet.ballot("accepted.ballot", ballot);
        change_fields(change, sheet);
    });
    sheet.value("report.is_over", is_over);
    sheet.some("report.complete", complete.as_ref(), |sheet, steps| sheet.value("report.complete", steps));
    sheet.chunks("report.states", states);
    sheet.some("report.states_before", states_before.as_ref(), |sheet, states| {
        sheet.chunks("report.states_before", states);
    });
    sheet.value("report.is_entering", is_entering);
    sheet.some("report.tally", tally.as_ref(), |sheet, tally| sheet.tally("report.tally", tally));
    sheet.some("report.next", next.as_ref(), |sheet, Holdings { values, states, tally }| {
        sheet.chunks("next.values", values);
        sheet.chunks("next.states", states);
        sheet.some("next.tally", tally.as_ref(), |sheet, tally| sheet.tally("next.tally", tally));
    });
    sheet.list("report.lost", lost, |sheet, rank| sheet.value("lost", rank));
    sheet.value("report.has_bequest", has_bequest);
    sheet.some("report.again", again.as_deref(), |sheet, Again { member, saved }| {
        member_fields(member, sheet);
        sheet.list("again.saved", saved, |sheet, saved| saved_fields(saved, sheet));
    });
}

fn saved_fields(Saved { steps, branch, ledger, digest, states }: &Saved, sheet: &mut Sheet) {
    sheet.value("saved.steps", steps);
    branch_fields(branch, sheet);
    ledger_fields(ledger, sheet);
    sheet.array("saved.digest", &digest.0);
    sheet.chunks("saved.states", states);
}

pub(crate) fn change_fields(change: &Succession, sheet: &mut Sheet) {
    let Succession { parent, removed, added, weights, resume, ledger, moves, expelled, roots } = change;
    sheet.array("change.parent", &parent.0);
    sheet.list("change.removed", removed, |sheet, rank| sheet.value("removed", rank));
    sheet.list("change.added", added, |sheet, member| member_fields(member, sheet));
    sheet.list("change.weights", weights, |sheet, (rank, weight)| {
        sheet.value("rank", rank);
        sheet.value("weight", weight);
    });
    resume_fields(resume, sheet);
    ledger_fields(ledger, sheet);
    moves_fields(moves, sheet);
    sheet.list("change.expelled", expelled, |sheet, expulsion| expulsion_fields(expulsion, sheet));
    roots_fields(roots, sheet);
}

// Healing.

fn meeting_fields(meeting: &Meeting, sheet: &mut Sheet) {
    let Meeting { run, view, steps, trained, roots, convener, yields, question, answers } = meeting;
    sheet.array("run", &run.0);
    sheet.array("view", &view.0);
    sheet.value("steps", steps);
    sheet.value("trained", trained);
    roots_fields(roots, sheet);
    sheet.contact("convener", convener);
    sheet.some("yields", yields.as_ref(), |sheet, view| sheet.array("yields", &view.0));
    sheet.value("question", question);
    sheet.value("answers", answers);
}

fn will_fields(will: &Will, sheet: &mut Sheet) {
    let Will { view, steps, ledger, trained, roots, donors, convener, question } = will;
    sheet.array("view", &view.0);
    sheet.value("steps", steps);
    ledger_fields(ledger, sheet);
    sheet.value("trained", trained);
    roots_fields(roots, sheet);
    sheet.list("donors", donors, |sheet, Donation { contact, states }| {
        sheet.contact("donor", contact);
        sheet.chunks("states", states);
    });
    sheet.array("convener", &convener.0);
    sheet.value("question", question);
}

// Training.

fn segment_fields(segment: &Segment, sheet: &mut Sheet) {
    let Segment { view, step, phase, owner, index, tally } = segment;
    sheet.array("view", &view.0);
    sheet.value("step", step);
    match phase {
        Phase::Reduce => sheet.raw(&[0], "phase = Reduce"),
        Phase::Gather => sheet.raw(&[1], "phase = Gather"),
        Phase::Mirror => sheet.raw(&[2], "phase = Mirror"),
    }
    sheet.value("owner", owner);
    sheet.value("index", index);
    sheet.tally("tally", tally);
}

fn content_field(content: Content, sheet: &mut Sheet) {
    match content {
        Content::Values => sheet.raw(&[0], "content = Values"),
        Content::State => sheet.raw(&[1], "content = State"),
    }
}

fn parcel_fields(message: &Parcel, sheet: &mut Sheet) {
    let Parcel { view, steps, content, pieces, digest } = message;
    sheet.array("view", &view.0);
    sheet.value("steps", steps);
    content_field(*content, sheet);
    sheet.list("pieces", pieces, |sheet, Piece { chunk, updates }| {
        sheet.value("chunk", chunk);
        sheet.value("updates", updates);
    });
    sheet.array("digest", &digest.0);
}
