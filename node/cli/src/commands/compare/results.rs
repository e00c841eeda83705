//! The results of a comparison: a table for people, JSON objects for programs, and an HTML page with learning curves.

use std::time::Duration;

use peergrad_page::axis::duration;
use peergrad_page::comparison::{ComparedTraining, Comparison, Point, QualityMetric, render};
use peergrad_page::pairing::{factor, median};
use serde_json::{Value, json};

use super::learning_curve::{LearningCurve, training_time};
use crate::commands::swarm::Swarm;
use peergrad_embed::text::text_table::{bytes, count, text_table};

/// The result of one training.
#[derive(Clone, Debug)]
pub(super) struct TrainingResult {
    seed: u64,
    /// Its learning curve.
    points: Vec<Point>,
    /// Accuracy on held-out samples; `None` if there are none, or if the model predicts numbers.
    accuracy: Option<f64>,
    /// Loss on held-out samples; `None` if there are none.
    loss: Option<f64>,
    /// Time in training.
    time: Duration,
    /// Bytes that all peers sent.
    bytes_sent: u64,
    samples: u64,
    steps: u64,
    digest: String,
}

/// The results of all trainings.
pub(super) struct ComparisonResults {
    /// The names of the files.
    pub(super) names: Vec<String>,
    /// The results, by file and seed.
    pub(super) results: Vec<Vec<TrainingResult>>,
}

/// The medians of one file's results over all seeds.
struct Medians {
    accuracy: Option<f64>,
    loss: Option<f64>,
    time: Duration,
    bytes_sent: u64,
    samples: u64,
}

impl TrainingResult {
    /// The result of a swarm whose peers have all finished.
    pub(super) fn of(swarm: &Swarm<'_>, seed: u64, curve: LearningCurve) -> Self {
        let summaries = swarm.summaries();
        let number = |key: &str| summaries[0][key].as_u64().unwrap_or(0);
        Self {
            seed,
            points: curve.finish(),
            accuracy: summaries[0]["test_accuracy"].as_f64(),
            loss: summaries[0]["test_loss"].as_f64(),
            time: training_time(swarm),
            bytes_sent: summaries.iter().filter_map(|summary| summary["bytes_sent"].as_u64()).sum(),
            samples: number("samples"),
            steps: number("steps"),
            digest: summaries[0]["digest"].as_str().unwrap_or_default().to_owned(),
        }
    }

    /// The result as a line of text.
    pub(super) fn text(&self) -> String {
        format!(
            "{} on held-out samples after {}; {} sent, {} samples in {} steps",
            evaluation(self.accuracy, self.loss),
            time(self.time),
            bytes(self.bytes_sent),
            count(self.samples),
            count(self.steps)
        )
    }

    /// The result as a JSON object.
    pub(super) fn object(&self, name: &str) -> Value {
        json!({
            "event": "trained", "file": name, "seed": self.seed, "test_accuracy": self.accuracy,
            "test_loss": self.loss, "training_seconds": self.time.as_secs_f64(), "bytes_sent": self.bytes_sent,
            "samples": self.samples, "steps": self.steps, "digest": self.digest,
        })
    }

    /// The accuracy, or the loss of a model without one; `None` if the model was not evaluated.
    fn quality(&self) -> Option<f64> {
        self.accuracy.or(self.loss)
    }
}

impl ComparisonResults {
    /// The results as a text table.
    pub(super) fn table(&self) -> String {
        let rows = self.rows();
        let head: Vec<&str> = rows[0].iter().map(String::as_str).collect();
        let seeds = self.results[0].len();
        let note = if seeds > 1 { format!("medians of {seeds} seeds\n") } else { String::new() };
        format!("{}{note}", text_table(&head, &rows[1..]))
    }

    /// The results as JSON, one object per file.
    pub(super) fn objects(&self) -> Vec<Value> {
        let object = |(index, name): (usize, &String)| {
            let medians = Medians::of(&self.results[index]);
            let seeds: Vec<u64> = self.results[index].iter().map(|result| result.seed).collect();
            json!({
                "event": "compared", "file": name, "seeds": seeds, "test_accuracy": medians.accuracy,
                "test_loss": medians.loss, "to_first": self.pairs(index),
                "training_seconds": medians.time.as_secs_f64(), "bytes_sent": medians.bytes_sent,
                "samples": medians.samples,
            })
        };
        self.names.iter().enumerate().map(object).collect()
    }

    /// The results as an HTML page. Peers do not evaluate during training, so its curves show the training loss.
    pub(super) fn page(&self, command: &str, about: &str) -> String {
        let courses =
            |results: &[TrainingResult]| results.iter().map(|result| result.points.clone()).collect();
        let trainings = self.names.iter().zip(&self.results);
        let trainings: Vec<ComparedTraining<'_>> =
            trainings.map(|(name, results)| ComparedTraining { name, courses: courses(results) }).collect();
        render(&Comparison {
            about,
            command,
            rows: &self.rows(),
            worth: QualityMetric::TrainingLoss,
            how: HOW,
            time: "time in training",
            trainings: &trainings,
        })
    }

    /// The header, and a row for each file.
    fn rows(&self) -> Vec<Vec<String>> {
        let head = [
            "",
            "on held-out samples",
            "difference to the first, by seed",
            "time in training",
            "bytes sent",
            "samples",
        ];
        let first = Medians::of(&self.results[0]);
        let row = |(index, name): (usize, &String)| {
            let own = Medians::of(&self.results[index]);
            let pair = |pair: &Option<f64>| pair.map_or("-".to_owned(), |pair| format!("{pair:+.4}"));
            let pairs: Vec<String> = self.pairs(index).iter().map(pair).collect();
            let times = factor(own.time.as_secs_f64(), first.time.as_secs_f64());
            let volumes = factor(own.bytes_sent as f64, first.bytes_sent as f64);
            vec![
                name.clone(),
                evaluation(own.accuracy, own.loss),
                pairs.join(" "),
                format!("{} ({times})", time(own.time)),
                format!("{} ({volumes})", bytes(own.bytes_sent)),
                count(own.samples),
            ]
        };
        let rows = self.names.iter().enumerate().map(row);
        std::iter::once(head.map(str::to_owned).to_vec()).chain(rows).collect()
    }

    /// By seed: accuracy (or loss) of a file minus that of the first file. Empty for the first file itself.
    fn pairs(&self, index: usize) -> Vec<Option<f64>> {
        let pair = |(own, first): (&TrainingResult, &TrainingResult)| Some(own.quality()? - first.quality()?);
        let pairs = self.results[index].iter().zip(&self.results[0]).map(pair);
        if index == 0 { Vec::new() } else { pairs.collect() }
    }
}

impl Medians {
    fn of(results: &[TrainingResult]) -> Self {
        let of = |value: fn(&TrainingResult) -> Option<f64>| median(results.iter().filter_map(value));
        let seconds = of(|result| Some(result.time.as_secs_f64()));
        let bytes_sent = of(|result| Some(result.bytes_sent as f64));
        let samples = of(|result| Some(result.samples as f64));
        Self {
            accuracy: of(|result| result.accuracy),
            loss: of(|result| result.loss),
            time: Duration::from_secs_f64(seconds.unwrap_or(0.0)),
            bytes_sent: bytes_sent.unwrap_or(0.0) as u64,
            samples: samples.unwrap_or(0.0) as u64,
        }
    }
}

fn evaluation(accuracy: Option<f64>, loss: Option<f64>) -> String {
    match (accuracy, loss) {
        (Some(accuracy), Some(loss)) => format!("accuracy {accuracy:.4}, loss {loss:.4}"),
        (Some(accuracy), None) => format!("accuracy {accuracy:.4}"),
        (None, Some(loss)) => format!("loss {loss:.4}"),
        (None, None) => "not evaluated".to_owned(),
    }
}

fn time(time: Duration) -> String {
    duration(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

const HOW: &str = "The mean loss over each interval of training, measured on each sample before the update that it contributes to; \
    one line per seed. The table shows the results on held-out samples.";

#[cfg(test)]
mod tests {
    use super::*;

    fn result(seed: u64, accuracy: Option<f64>, seconds: u64, bytes_sent: u64) -> TrainingResult {
        let point =
            |samples| Point { samples, time: Duration::from_secs(seconds), bytes: bytes_sent, worth: 0.5 };
        TrainingResult {
            seed,
            points: vec![point(100), point(200)],
            accuracy,
            loss: Some(0.25),
            time: Duration::from_secs(seconds),
            bytes_sent,
            samples: 57_480,
            steps: 920,
            digest: "d".to_owned(),
        }
    }

    fn results(results: [Vec<TrainingResult>; 2]) -> ComparisonResults {
        ComparisonResults {
            names: vec!["sync.toml".to_owned(), "local.toml".to_owned()],
            results: results.into(),
        }
    }

    #[test]
    fn a_table_has_medians_and_pairs() {
        let sync = [(1, 0.96, 4), (2, 0.97, 5), (3, 0.98, 9)];
        let sync = sync.map(|(seed, accuracy, seconds)| result(seed, Some(accuracy), seconds, 60_000_000));
        let local = [(1, 0.95, 1), (2, 0.98, 1), (3, 0.98, 2)];
        let local = local.map(|(seed, accuracy, seconds)| result(seed, Some(accuracy), seconds, 6_000_000));
        let results = results([sync.to_vec(), local.to_vec()]);
        let rows = results.rows();
        assert_eq!(
            rows[1],
            [
                "sync.toml",
                "accuracy 0.9700, loss 0.2500",
                "",
                "5.00 s (1.00 x)",
                "60.0 MB (1.00 x)",
                "57,480"
            ]
        );
        assert_eq!(
            rows[2][1..5],
            ["accuracy 0.9800, loss 0.2500", "-0.0100 +0.0100 +0.0000", "1.00 s (0.20 x)", "6.0 MB (0.10 x)"]
        );
        assert!(results.table().ends_with("medians of 3 seeds\n"), "{}", results.table());
        let objects = results.objects();
        assert_eq!((&objects[0]["to_first"], &objects[1]["seeds"]), (&json!([]), &json!([1, 2, 3])));
        assert_eq!(
            (&objects[1]["file"], &objects[1]["bytes_sent"]),
            (&json!("local.toml"), &json!(6_000_000))
        );
    }

    #[test]
    fn missing_results_are_shown_as_missing() {
        let mut unknown = result(7, None, 3, 0);
        unknown.loss = None;
        let results = results([vec![unknown], vec![result(7, None, 3, 0)]]);
        let rows = results.rows();
        assert_eq!((rows[1][1].as_str(), rows[1][4].as_str()), ("not evaluated", "0 B (-)"));
        assert_eq!((rows[2][1].as_str(), rows[2][2].as_str()), ("loss 0.2500", "-"));
        assert!(!results.table().contains("medians"));
    }

    #[test]
    fn a_page_shows_every_file() {
        let page = results([vec![result(7, None, 3, 9)], vec![result(7, None, 3, 9)]]).page("again", "about");
        assert_eq!(page.matches("<svg").count(), 3, "against samples, time and bytes");
        assert!(page.contains("<td>local.toml</td>") && page.contains("<code>again</code>"), "{page}");
    }
}
