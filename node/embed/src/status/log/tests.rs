//! Event logs: which lines are kept, and what remains after a full disk or a crash.

use peergrad_protocol::StepNumber;
use peergrad_protocol::view::Member;

use super::*;

const PEER: PeerId = PeerId([1; 32]);

fn origin() -> LogOrigin {
    LogOrigin { peer: PEER, incarnation: Incarnation(7), run: None }
}

fn at(milliseconds: u64) -> Instant {
    Instant(0).after(Duration::from_millis(milliseconds))
}

/// A committed step of this number.
pub(crate) fn committed(number: u64) -> Committed {
    Committed {
        step: StepNumber(number),
        epoch: 0,
        steps_expected: 1000,
        loss: 0.5,
        samples: 8,
        left_out: 0,
        may_be_late: false,
        is_own: false,
        rate: 0.1,
        digest: None,
    }
}

fn view() -> Event {
    let member = Member { peer: PEER, incarnation: Incarnation(7), addresses: vec![], capacity: 4 };
    let view = View::first(RunId([2; 32]), vec![member]);
    Event::ViewInstalled { digest: view.digest(), view: Arc::new(view), shard: 10, share: 10, change: None }
}

/// The lines of a file, each of which has to be one object.
fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.ends_with('\n'));
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect()
}

fn names(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["event"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn each_event_is_a_line_with_the_steps_around_it() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, _notices) = EventLog::start(folder.path(), &origin());
    log.event(at(0), &view(), Some("training with 1 peer".to_owned()), || 0);
    for number in 0..1000 {
        log.event(at(number), &Event::Committed(committed(number)), None, || number);
    }
    log.event(at(1000), &Event::MemberSuspected(PEER), Some("no contact".to_owned()), || 0);
    log.event(at(1001), &Event::Committed(committed(1000)), None, || 1000);
    log.close().await;
    let lines = lines(&folder.path().join(FILE));
    let names = names(&lines);
    assert_eq!(names[..3], ["log", "view", "step"]);
    assert_eq!(names[names.len() - 3..], ["step", "member_suspected", "step"]);
    let steps: Vec<u64> = lines.iter().filter_map(|line| line["step"].as_u64()).collect();
    assert_eq!(steps[steps.len() - 2..], [999, 1000], "the last before a change, and the first after it");
    assert!(steps.len() < 20, "{steps:?}");
    assert!(lines.is_sorted_by(|a, b| a["at"].as_f64() <= b["at"].as_f64()));
    assert_eq!((&lines[0]["peer"], &lines[0]["format"]), (&json!(PEER.to_string()), &json!(FORMAT)));
    assert_eq!(lines[1]["parents"], json!([]));
    assert_eq!(lines[names.len() - 2]["text"], "no contact");
}

#[test]
fn peers_log_few_steps_and_mostly_the_same_ones() {
    let pause = Duration::from_millis(250);
    let kept = |step_micros: u64, until_micros: u64| -> Vec<u64> {
        let mut sampler = StepSampler::default();
        let numbers = 0..until_micros / step_micros;
        let kept = numbers.filter_map(|number| {
            let now = Instant(0).after(Duration::from_micros(number * step_micros));
            sampler.take(now, &committed(number), pause).map(|step| step.step.0)
        });
        kept.collect()
    };
    for step_micros in [500, 2_000, 70_000] {
        let kept = kept(step_micros, 60_000_000);
        assert!(kept.len() > 60 && kept.len() < 60 * 9, "{step_micros}: {}", kept.len());
    }
    assert_eq!(kept(400_000, 4_000_000), (0..10).collect::<Vec<_>>(), "slow steps are all kept");
    // Two members whose clocks run a little differently.
    let [one, other] = [kept(1_000, 60_000_000), kept(1_010, 60_000_000)];
    let shared = one.iter().filter(|step| other.contains(step)).count();
    assert!(2 * shared > one.len(), "{shared} of {}", one.len());
}

/// A writer, and the receiver of its notices.
fn writer(path: PathBuf) -> (Writer, mpsc::UnboundedReceiver<Notice>) {
    let (notices, noticed) = mpsc::unbounded_channel();
    (Writer::new(path, notices, Arc::default()), noticed)
}

fn run(writer: &mut Writer, lines: impl IntoIterator<Item = Line>) {
    let lines: Vec<Line> = lines.into_iter().collect();
    let (sender, queue) = sync_channel(lines.len());
    lines.into_iter().for_each(|line| sender.try_send(line).unwrap());
    drop(sender);
    writer.run(&queue);
}

#[test]
fn the_log_is_bounded_and_each_file_can_be_read_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let (mut writer, _notices) = writer(folder.path().join(FILE));
    let text = "x".repeat(100_000);
    let head = Line::Head(json!({"event": "log"}));
    let view = Line::View(json!({"event": "view", "number": 3}));
    let plain = |number: u64| Line::Plain(json!({"event": "note", "number": number, "text": text}));
    // Enough lines to fill eleven files.
    let count = 11 * FILE_BYTES / 100_000;
    run(&mut writer, [head, view].into_iter().chain((0..count).map(plain)));
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert_eq!(files.len(), FILES as usize);
    for file in &files {
        assert!(fs::metadata(file).unwrap().len() <= FILE_BYTES);
        let lines = lines(file);
        assert_eq!(names(&lines)[..3], ["log", "view", "note"], "{}", file.display());
        assert_eq!(lines[1]["again"], true);
    }
    let newest = lines(&folder.path().join(FILE));
    assert_eq!(newest[newest.len() - 1]["number"], count - 1);
    let filled = writer.filled.load(Ordering::Relaxed);
    assert!(filled >= 10, "{filled}");
}

#[test]
fn an_incomplete_line_stays_separate() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE);
    fs::write(&path, "{\"event\":\"log\"}\n{\"event\":\"st").unwrap();
    let (mut writer, _notices) = writer(path.clone());
    run(&mut writer, [Line::Head(json!({"event": "log", "incarnation": 2}))]);
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text, "{\"event\":\"log\"}\n{\"event\":\"st\n{\"event\":\"log\",\"incarnation\":2}\n");
}

#[test]
fn a_full_disk_is_reported_once_and_retried() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE);
    // A folder is in the place of the file.
    fs::create_dir(&path).unwrap();
    let (mut writer, mut notices) = writer(path.clone());
    let line = || Line::Plain(json!({"event": "note"}));
    run(&mut writer, [line()]);
    run(&mut writer, [line(), line()]);
    let notice = notices.try_recv().unwrap();
    assert!(matches!(&notice, Notice::NoEventLog { path: reported, .. } if *reported == path));
    assert!(notice.to_string().contains(FILE), "{notice}");
    assert!(notices.try_recv().is_err(), "reported once");
    fs::remove_dir(&path).unwrap();
    run(&mut writer, [line()]);
    let lines = lines(&path);
    assert_eq!(names(&lines), ["lost", "note"]);
    assert_eq!(lines[0]["lines"], 3);
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    writer.file = None;
    run(&mut writer, [line()]);
    assert!(notices.try_recv().is_ok(), "writing had succeeded in between");
}

/// Nothing takes lines out of the queue, as if the disk were stuck.
#[tokio::test]
async fn logging_never_waits() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, _notices) = EventLog::start(folder.path(), &origin());
    let (lines, queue) = sync_channel(2);
    log.lines = Some(lines);
    for number in 0..5 {
        log.notice(number.to_string());
    }
    assert_eq!(log.lost, 3);
    let _first = queue.recv().unwrap();
    log.notice("5".to_owned());
    let written: Vec<Value> = queue
        .try_iter()
        .map(|line| match line {
            Line::Plain(value) => value,
            Line::Head(_) | Line::View(_) => panic!("notices are plain"),
        })
        .collect();
    assert_eq!(written.len(), 2);
    assert_eq!((&written[1]["text"], &written[1]["lost_before"]), (&json!("5"), &json!(3)));
}
