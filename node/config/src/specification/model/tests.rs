//! Support vector machines: how they follow from the data, and how well they do beside a plain solver.

use peergrad_models::data::dataset::Samples;
use peergrad_models::data::embedded::{DIGITS, embedded};
use peergrad_models::data::labels::Labels;

use super::*;
use crate::single_process::train_single_process;
use crate::specification::{RunFile, resolve};

const SPARSE: &[u8] = b"+1 2:0.5\n-1 900:2\n+1\n-1 1:1 3:4\n+1 2:1\n";

fn svm(keys: &str, bytes: &[u8]) -> Result<Specification, SpecificationError> {
    let text = format!("[data]\nfile = \"f\"\n{keys}\n[model]\nkind = \"svm\"\n");
    let specification = resolve(&RunFile::parse(&text).unwrap(), "f", bytes)?;
    assert_eq!(Specification::parse(&specification.to_bytes().unwrap()).unwrap(), specification);
    Ok(specification)
}

fn tensors(specification: &Specification) -> Vec<(String, Vec<u32>)> {
    let tensors = specification.manifest();
    tensors.tensors().map(|(tensor, _)| (tensor.name.clone(), tensor.shape.to_vec())).collect()
}

#[test]
fn a_table_gets_a_margin_for_each_class_but_one_for_two() {
    let two = svm("", b"1,2,a\n2,1,b\n1,3,a\n3,1,b\n1,4,a\n").unwrap();
    assert_eq!(tensors(&two)[0], ("layer.0.weight".to_owned(), vec![1, 2]));
    assert_ne!(two.data.standardization, Standardization::identity());
    let predicted = two.predict(&[0.0, 1.0, 0.5], "g", b"1,2\n2,1\n", &None).unwrap();
    let margin = predicted.values[1];
    assert_eq!((predicted.values[0], predicted.classes.len()), (-margin, 2));
    assert!(predicted.values[3] < 0.0 && margin > 0.0, "{predicted:?}");
    let three = svm("", b"1,2,a\n2,1,b\n1,3,c\n3,1,b\n1,4,a\n1,3,c\n").unwrap();
    assert_eq!(tensors(&three)[0], ("layer.0.weight".to_owned(), vec![3, 2]));
    let number = svm("predict = \"number\"", b"1,2,3\n2,1,4.5\n1,3,6\n3,1,7\n").unwrap_err().to_string();
    assert!(number.contains("`model.kind` is svm; allowed: linear or mlp"), "{number}");
}

#[test]
fn a_file_that_lists_what_is_not_zero_stays_sparse() {
    let sparse = svm("", SPARSE).unwrap();
    assert_eq!(tensors(&sparse), [("weight".to_owned(), vec![900]), ("bias".to_owned(), vec![1])]);
    let loaded = sparse.load(SPARSE).unwrap();
    assert!(loaded.task.sparse().is_some());
    let loss = loaded.task.gradient(&[0.0; 901], &[0, 1], &mut [0.0; 901]);
    assert_eq!(loss, 2.0, "a margin of 0 is 1 too small");
    let error = svm("standardize = true", SPARSE).unwrap_err().to_string();
    assert!(error.contains("or \"svm\" with a LIBSVM file"), "{error}");
    // One margin for each of three classes needs all features at once.
    let three = b"1 1:1\n2 1:2\n3 2:1\n1 1:1\n2 1:2\n3 2:1\n";
    assert_eq!(tensors(&svm("", three).unwrap())[0], ("layer.0.weight".to_owned(), vec![3, 2]));
}

/// One of ten one-versus-rest problems: the weights, and the bias behind them, of the least mean squared hinge loss with an L2 penalty, by
/// accelerated gradient steps in double precision.
fn plain(samples: &Samples, side: impl Fn(usize) -> f64, penalty: f64) -> Vec<f64> {
    const RATE: f64 = 0.05;
    let width = samples.columns + 1;
    let value = |row: &[f32], column: usize| row.get(column).map_or(1.0, |&value| f64::from(value));
    let (mut weights, mut ahead) = (vec![0.0; width], vec![0.0; width]);
    for step in 0..1000_u32 {
        let mut slopes = vec![0.0; width];
        for (index, row) in samples.features.chunks_exact(samples.columns).enumerate() {
            let margin: f64 = (0..width).map(|column| ahead[column] * value(row, column)).sum();
            let slope = -2.0 * side(index) * (1.0 - side(index) * margin).max(0.0);
            slopes.iter_mut().enumerate().for_each(|(column, sum)| *sum += slope * value(row, column));
        }
        let rows = samples.rows() as f64;
        let stepped = |(at, slope): (&f64, &f64)| at - RATE * (slope / rows + penalty * at);
        let next: Vec<f64> = ahead.iter().zip(&slopes).map(stepped).collect();
        let push = f64::from(step) / f64::from(step + 3);
        ahead = next.iter().zip(&weights).map(|(next, before)| next + push * (next - before)).collect();
        weights = next;
    }
    weights
}

#[test]
fn the_digits_are_recognized_as_well_as_by_a_plain_solver() {
    const PENALTY: f64 = 0.01;
    let bytes = embedded(DIGITS).unwrap();
    let text = format!(
        "epochs = 800\nbatch = 2000\n[data]\nfile = \"digits\"\n[model]\nkind = \"svm\"\n\
         [optimizer]\nrule = \"momentum\"\nrate = 0.05\nweight_decay = {PENALTY}\n"
    );
    let specification = resolve(&RunFile::parse(&text).unwrap(), DIGITS, bytes).unwrap();
    let parameters = train_single_process(&specification.load(bytes).unwrap(), |_| {});
    let evaluation = specification.evaluate(&parameters, DIGITS, bytes, &None).unwrap().evaluation;

    let dataset = specification.dataset(bytes).unwrap();
    let classes = |labels: &Labels| match labels {
        Labels::Classes(classes) => classes.clone(),
        Labels::Numbers(_) => unreachable!("digits are classes"),
    };
    let labels = classes(&dataset.training.labels);
    let machines: Vec<Vec<f64>> = (0..10)
        .map(|class| plain(&dataset.training, |row| if labels[row] == class { 1.0 } else { -1.0 }, PENALTY))
        .collect();
    let rows = dataset.held_out.features.chunks_exact(dataset.held_out.columns);
    let right = rows.zip(classes(&dataset.held_out.labels)).filter(|(row, label)| {
        let margin = |machine: &Vec<f64>| {
            machine[row.len()]
                + row.iter().zip(machine).map(|(&value, weight)| f64::from(value) * weight).sum::<f64>()
        };
        let margins: Vec<f64> = machines.iter().map(margin).collect();
        (0..10).all(|class| margins[class] <= margins[*label as usize])
    });
    let expected = right.count() as f64 / dataset.held_out.rows() as f64;
    let found = evaluation.accuracy.unwrap();
    assert!((found - expected).abs() <= 0.005 && found > 0.93, "{found}, with a plain solver {expected}");
    // (10, 64) weights, then 10 biases; the plain solver has each bias behind its weights.
    let own = |class: usize| {
        let weights = parameters[class * 64..(class + 1) * 64].iter().chain([&parameters[640 + class]]);
        weights.map(|&weight| f64::from(weight)).collect::<Vec<f64>>()
    };
    for (class, machine) in machines.iter().enumerate() {
        let side = |row: usize| if labels[row] as usize == class { 1.0 } else { -1.0 };
        let [found, least] = [&own(class), machine].map(|it| objective(&dataset.training, side, PENALTY, it));
        assert!(
            (0.999..1.02).contains(&(found / least)),
            "class {class}: {found}, by a plain solver {least}"
        );
    }
}

/// The mean squared hinge loss, with the penalty.
fn objective(samples: &Samples, side: impl Fn(usize) -> f64, penalty: f64, machine: &[f64]) -> f64 {
    let losses = samples.features.chunks_exact(samples.columns).enumerate().map(|(index, row)| {
        let features = row.iter().map(|&value| f64::from(value)).chain([1.0]);
        let margin: f64 = features.zip(machine).map(|(value, weight)| value * weight).sum();
        (1.0 - side(index) * margin).max(0.0).powi(2)
    });
    let squares: f64 = machine.iter().map(|weight| weight * weight).sum();
    losses.sum::<f64>() / samples.rows() as f64 + 0.5 * penalty * squares
}
