//! The status format, byte by byte, since other programs read it.

use super::*;

/// A status with every kind of entry.
#[expect(clippy::too_many_lines, reason = "one value with all its fields")]
pub(crate) fn sample() -> Status {
    let link = LinkStatus {
        lane: Some("direct".to_owned()),
        round_trip_seconds: Some(0.0004),
        connections: Some(4),
        line_bytes_per_second: Some(118_000_000.0),
        trouble: None,
        sent_bytes: 1_000_000,
        received_bytes: 900_000,
        sent_bytes_per_second: 25_000.5,
        received_bytes_per_second: 24_000.0,
    };
    let member = |peer: &str, is_this: bool, state, share: f64| MemberStatus {
        peer: peer.to_owned(),
        is_this,
        state,
        capacity: 4,
        samples_per_second: Some(1250.0),
        owned: (share * 1000.0) as u64,
        share,
        replicated: 500,
        steps: Some(41),
        silent_seconds: (!is_this).then_some(0.25),
        link: (!is_this).then(|| link.clone()),
    };
    let broken = LinkStatus {
        lane: None,
        round_trip_seconds: None,
        connections: None,
        line_bytes_per_second: None,
        trouble: Some("connection reset".to_owned()),
        ..link.clone()
    };
    let unreachable = MemberStatus {
        steps: None,
        link: Some(broken),
        silent_seconds: Some(4.5),
        ..member("12D3KooWC", false, MemberState::Unreachable, 0.0)
    };
    Status {
        format: FORMAT,
        version: "0.1.0".to_owned(),
        peer: "12D3KooWA".to_owned(),
        run: Some("193ac52f".repeat(8)),
        uptime_seconds: 252.5,
        phase: Phase::Training,
        is_well: false,
        summary: "12D3KooWC cannot be reached: the other members are about to continue without".to_owned(),
        training: Some(TrainingStatus {
            steps: 41,
            steps_expected: 920,
            epoch: 2,
            epochs: 40,
            loss: Some(0.5),
            rate: Some(0.005),
            steps_per_second: 182.25,
            samples_per_second: 11_664.5,
            tokens_per_second: Some(896_000.0),
            flops_per_second: Some(7e7),
            evaluation: Some(EvaluationStatus {
                steps: 40,
                samples: 359,
                loss: Some(0.25),
                accuracy: Some(0.9375),
                best_steps: 30,
                best_loss: Some(0.125),
            }),
            waits_for: "sums".to_owned(),
            parameters: 1000,
            chunks: 62,
            chunks_to_move: 3,
        }),
        view: Some(ViewStatus {
            number: 3,
            digest: "ab".repeat(32),
            parents: vec!["cd".repeat(32)],
            expelled: vec![],
            age_seconds: 12.5,
        }),
        members: vec![
            member("12D3KooWA", true, MemberState::Working, 0.6),
            member("12D3KooWB", false, MemberState::Working, 0.4),
            unreachable,
        ],
        others: vec![OtherStatus { peer: "12D3KooWD".to_owned(), state: OtherState::Preparing, link: None }],
        rekey: Some(RekeyStatus { missing: vec!["12D3KooWB".to_owned()] }),
        unreached: vec![UnreachedStatus {
            peer: Some("12D3KooWC".to_owned()),
            address: "/ip4/10.0.0.7/tcp/4747".to_owned(),
            trouble: "connection refused".to_owned(),
            tries: 7,
            seconds_ago: 1.25,
        }],
        traffic: TrafficStatus {
            sent_bytes: 1_000_000,
            received_bytes: 900_000,
            sent_bytes_per_second: 25_000.5,
            received_bytes_per_second: 24_000.0,
        },
        events: vec![EventStatus {
            seconds_ago: 4.25,
            event: "member_suspected".to_owned(),
            text: "no contact with peer C".to_owned(),
        }],
    }
}

#[test]
fn the_format_is_unchanged() {
    let text = serde_json::to_string_pretty(&sample()).unwrap() + "\n";
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/src/status/golden.json"), &text).unwrap();
    }
    assert_eq!(
        text,
        include_str!("golden.json"),
        "if the change is intended: UPDATE_GOLDEN=1, and another FORMAT unless fields were only added"
    );
    assert_eq!(serde_json::from_str::<Status>(include_str!("golden.json")).unwrap(), sample());
}

#[test]
fn unknown_fields_are_ignored() {
    let mut value = serde_json::to_value(sample()).unwrap();
    value["mood"] = "good".into();
    value["members"][0]["mood"] = "good".into();
    assert_eq!(serde_json::from_value::<Status>(value).unwrap(), sample());
}

#[test]
fn the_documentation_explains_every_field_and_word() {
    let text = include_str!("../../../../docs/status.md");
    let mut names = Vec::new();
    let mut values = vec![serde_json::to_value(sample()).unwrap()];
    while let Some(value) = values.pop() {
        match value {
            serde_json::Value::Object(fields) => {
                names.extend(fields.keys().cloned());
                values.extend(fields.into_iter().map(|(_, value)| value));
            }
            serde_json::Value::Array(entries) => values.extend(entries),
            _ => {}
        }
    }
    let word = |value: serde_json::Value| value.as_str().unwrap().to_owned();
    names.extend(metrics::PHASES.map(|phase| word(serde_json::to_value(phase).unwrap())));
    names.extend(metrics::STATES.map(|state| word(serde_json::to_value(state).unwrap())));
    let others = [OtherState::Preparing, OtherState::Ready, OtherState::Linked, OtherState::Missing];
    names.extend(others.map(|state| word(serde_json::to_value(state).unwrap())));
    // The words for what a step waits for, and the names of events, are those that two functions return.
    for (source, function) in [
        (include_str!("service.rs"), "fn wait_text("),
        (include_str!("../text/event_json.rs"), "fn event_name("),
    ] {
        let (_, rest) = source.split_once(function).unwrap();
        let (body, _) = rest.split_once("\n}").unwrap();
        names.extend(body.lines().filter_map(|line| line.split('"').nth(1)).map(str::to_owned));
    }
    for name in names {
        assert!(text.contains(&format!("`{name}`")), "docs/status.md does not explain `{name}`");
    }
}
