//! Naive Bayes: many machines learn to read handwritten digits in a single pass, by counting.
//!
//! A picture has 64 pixels, each with an amount of ink from 0 to 16. For each class, the model is the number of its pictures and the ink of each
//! pixel in all of them. Multinomial naive Bayes treats the ink as independent drops: each falls on a pixel with a probability that depends
//! on the class. It chooses the class under which the picture is most probable.
//!
//! *How it works.* A sample of this task is one of 1437 training pictures, and a row of the table is a class: its number of pictures, then the
//! ink of its pixels. Each worker leases pictures, sums them up by class, and adds the sums to the table. The additions of a clock are all in
//! or none of them. So each picture counts exactly once, also if peers were killed, and the model has the same bits in every run.
//!
//! ```text
//! cargo run --release -p peergrad-examples --bin naive_bayes -- start
//! cargo run --release -p peergrad-examples --bin naive_bayes -- join pg1...   (what `start` printed; on any machine)
//! ```
//! The run ends with an accuracy of 0.8944 on 360 held-out pictures, and a loss of 2.3594 (the mean of -ln of the right class's probability).
//!
//! *Reading.* McCallum and Nigam, *A comparison of event models for naive Bayes text classification*, 1998, where words are the drops of ink.

use peergrad::data::dataset::HeldOutSplit;
use peergrad::data::dense_table::unpack;
use peergrad::data::embedded::{DIGITS, embedded};
use peergrad::prelude::*;

const CLASSES: usize = 10;
const PIXELS: usize = 64;
const HELD_OUT: u32 = 360;

/// The pictures, of which every peer has a copy.
#[derive(Clone)]
struct Digits {
    /// Shape (pictures, `PIXELS` + 1): the ink of each pixel, then the class.
    pictures: Arc<[Vec<f32>]>,
    /// Which pictures are training samples, and which are held out.
    split: Arc<HeldOutSplit>,
}

impl Digits {
    /// The digits that are part of the library.
    fn new() -> Self {
        let packed = embedded(DIGITS).expect("the digits are embedded");
        let bytes = unpack(DIGITS, packed).expect("they are a gzipped file");
        let text = std::str::from_utf8(&bytes).expect("it is text");
        let number = |cell: &str| cell.trim().parse().expect("all cells are numbers");
        let pictures: Arc<[Vec<f32>]> =
            text.lines().map(|line| line.split(',').map(number).collect()).collect();
        let split = HeldOutSplit::draw(1, pictures.len() as u32, HELD_OUT);
        Self { pictures, split: Arc::new(split) }
    }

    /// The ink of a picture, shape (`PIXELS`), and its class.
    fn picture(&self, index: u32) -> (&[f32], usize) {
        let (class, ink) = self.pictures[index as usize].split_last().expect("the label is the last column");
        (ink, *class as usize)
    }
}

/// The algorithm at one worker.
struct Counting {
    digits: Digits,
}

impl Program for Counting {
    const NAME: &'static str = "counting";

    async fn round(&mut self, context: &Context) -> Result<Flow, Interrupted> {
        let clock = context.begin_clock().await?;
        if clock.is_over {
            clock.finish();
            clock.parameters().await?;
            return Ok(Flow::Break(()));
        }
        let (samples, digits) = (Arc::clone(&clock.samples), self.digits.clone());
        let count = samples.len() as u64;
        let sums = clock.compute(count, move || {
            // Shape (CLASSES, 1 + PIXELS).
            let mut sums = vec![0.0; CLASSES * (1 + PIXELS)];
            for sample in samples.iter() {
                let (ink, class) = digits.picture(digits.split.training[*sample as usize]);
                let row = &mut sums[class * (1 + PIXELS)..][..1 + PIXELS];
                row[0] += 1.0;
                row[1..].iter_mut().zip(ink).for_each(|(sum, ink)| *sum += ink);
            }
            sums
        });
        let rows = Rows { indices: RowSet::range(0..CLASSES as Row), values: sums.await? };
        clock.add(rows).expect("finite numbers, for rows of the table");
        clock.end(SampleStats { samples: count, loss: 0.0 });
        Ok(Flow::Continue(()))
    }
}

/// One table with a class in each row: its owners apply additions as they arrive, and no worker waits for another one.
fn table_spec(_: &Loaded) -> TableSpec {
    let table = Table::additive("sums", CLASSES as u64, 1 + PIXELS);
    TableSpec::new(vec![Table { init: Init::Parameters, ..table }], ReadPolicy::Unbounded)
}

/// The parameters of this task, which begin at zero, are the sums.
impl Task for Digits {
    fn manifest(&self) -> Manifest {
        Manifest::tensor("sums", [CLASSES as u32, 1 + PIXELS as u32])
    }

    fn sample_count(&self) -> u32 {
        self.split.training.len() as u32
    }

    fn gradient(&self, _parameters: &[f32], _samples: &[u32], _gradient: &mut [f32]) -> f64 {
        unreachable!("the program of this task computes no gradient")
    }

    fn evaluate(&self, parameters: &[f32]) -> Evaluation {
        // Shape (CLASSES, 1 + PIXELS): logarithms of the probability of a class, and of a pixel in the class. Each count is one too high, so
        // that a pixel without ink in the training pictures does not exclude a class (Laplace's rule).
        let pictures: f32 = parameters.iter().step_by(1 + PIXELS).sum();
        let logarithms = |row: &[f32]| {
            let ink: f32 = row[1..].iter().sum();
            let totals = std::iter::once(pictures + CLASSES as f32).chain([ink + PIXELS as f32; PIXELS]);
            row.iter().zip(totals).map(|(sum, total)| f64::from((sum + 1.0) / total).ln()).collect()
        };
        let model: Vec<Vec<f64>> = parameters.chunks_exact(1 + PIXELS).map(logarithms).collect();
        let (mut right, mut loss) = (0, 0.0);
        for (ink, class) in self.split.held_out.iter().map(|index| self.picture(*index)) {
            let score = |row: &Vec<f64>| {
                let drops = row[1..].iter().zip(ink).map(|(logarithm, ink)| logarithm * f64::from(*ink));
                row[0] + drops.sum::<f64>()
            };
            let scores: Vec<f64> = model.iter().map(score).collect();
            let best = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|score| (score - best).exp()).sum();
            right += u32::from(scores[class] == best);
            loss += best + sum.ln() - scores[class];
        }
        let samples = f64::from(HELD_OUT);
        Evaluation { samples: HELD_OUT, loss: loss / samples, accuracy: Some(f64::from(right) / samples) }
    }
}

fn main() -> ExitCode {
    let program = |_: &Loaded| Counting { digits: Digits::new() };
    peergrad::train("naive-bayes", Digits::new()).tables(table_spec, program).epochs(1).batch(16).run()
}
