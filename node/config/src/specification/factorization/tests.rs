use peergrad_models::optimizer::Bounds;
use peergrad_models::task::synthetic_ratings::SyntheticRatings;

use super::*;
use crate::single_process::train_single_process;
use crate::specification::answers::DataPart;
use crate::specification::run_file::ModelKind;
use crate::specification::{resolve, write_run_file};

const SMALL: &[u8] = b"user,item,rating\nann,3,4\nbob,3,2.5\nann,7,1\neve,4,5\nbob,4,3\n";
const MODEL: &str = "[data]\nfile = \"f.csv\"\n[model]\nkind = \"factorization\"\nrank = 2\n";

fn resolved(text: &str, bytes: &[u8]) -> Result<Specification, SpecificationError> {
    resolve(&RunFile::parse(text).unwrap(), "f.csv", bytes)
}

fn settings(specification: &Specification) -> &FactorizationSettings {
    let ModelSettings::Factorization(settings) = &specification.model else { unreachable!("it is one") };
    settings
}

#[test]
fn a_specification_has_the_ids_and_the_shape() {
    let specification = resolved(MODEL, SMALL).unwrap();
    let bytes = specification.to_bytes().unwrap();
    assert_eq!(Specification::parse(&bytes).unwrap(), specification);
    let text = String::from_utf8(bytes).unwrap();
    assert!(
        text.contains("users = [\"ann\", \"bob\", \"eve\"]") && text.contains("items = \"3-4,7\""),
        "{text}"
    );
    let FactorizationSettings { rank, regularization, biases, .. } = *settings(&specification);
    assert_eq!((rank, regularization, biases), (2, REGULARIZATION_DEFAULT, true));
    assert_eq!(specification.manifest().parameter_count(), 6 * 3);
    let names: Vec<String> =
        specification.manifest().tensors().map(|(tensor, _)| tensor.name.clone()).collect();
    assert_eq!(names, ["user_factors", "item_factors", "user_bias", "item_bias"]);
    let loaded = specification.load(SMALL).unwrap();
    assert_eq!((loaded.task.sample_count(), loaded.task.held_out_count()), (4, 1));
    assert_eq!(loaded.manifest, specification.manifest());
    let plain = resolved(&format!("{MODEL}biases = false\nglobal_mean = false\n"), SMALL).unwrap();
    assert_eq!(plain.manifest().parameter_count(), 6 * 2);
    assert_eq!(plain.data.target, Target::Number { mean: 0.0, scale: 1.0 });
}

#[test]
fn wrong_settings_and_files_are_refused() {
    #[track_caller]
    fn refused(text: &str, bytes: &[u8], words: &str) {
        let error = resolved(text, bytes).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let model = |keys: &str| format!("[data]\nfile = \"f.csv\"\n[model]\nkind = \"factorization\"\n{keys}\n");
    refused(
        &model("rank = 0"),
        SMALL,
        "`model.rank` is 0; allowed: 1 to 3: the file has 3 users and 3 items",
    );
    refused(&model(""), SMALL, "`model.rank` is 10; allowed: 1 to 3");
    refused(
        &model("rank = 1\nregularization = -1.0"),
        SMALL,
        "`model.regularization` is -1; allowed: 0 or more",
    );
    refused(&model("rank = 1\nregularization = nan"), SMALL, "`model.regularization` is NaN");
    refused(&model("rank = 1\nhidden = [3]"), SMALL, "`model.hidden` is given");
    refused(
        "[data]\nfile = \"f.csv\"\n[model]\nrank = 1\n",
        SMALL,
        "`model.rank` is given; allowed: only if",
    );
    for key in ["predict = \"class\"", "classes = 2", "standardize = true", "features = 2"] {
        let text = MODEL.replace("[model]", &format!("{key}\n[model]"));
        refused(&text, SMALL, "nothing if `kind` in [model] is \"factorization\"");
    }
    let downpour = format!("{MODEL}[sync]\nkind = \"downpour\"\nn_fetch = 2\n");
    refused(&downpour, SMALL, "`sync.n_fetch` is 2; allowed: 1 with a factorization");
    refused(
        MODEL,
        &[SMALL, b"ann,3,4\n"].concat(),
        "f.csv, line 7: user `ann` has rated item `3` already, in line 2",
    );
    refused(MODEL, b"user,item,rating\n", "there are no rows below the header");
    let many: String = (0..60_000).map(|row| format!("a long name of user {row},{},3\n", row % 7)).collect();
    refused(MODEL, many.as_bytes(), "f.csv: the ids of 60000 users and 7 items take");
}

#[test]
fn a_specification_of_another_peer_is_checked() {
    let text = String::from_utf8(resolved(MODEL, SMALL).unwrap().to_bytes().unwrap()).unwrap();
    for (from, to) in [
        ("items = \"3-4,7\"", "items = \"4,3\""),
        ("items = \"3-4,7\"", "items = \"1-4294967295\""),
        ("items = \"3-4,7\"", "items = \"1-4000000000\""),
        ("\"ann\", \"bob\"", "\"bob\", \"ann\""),
        ("rank = 2", "rank = 4"),
        ("scale = 1.0", "scale = 2.0"),
    ] {
        assert!(text.contains(from), "{text}");
        let changed = text.replace(from, to);
        let loaded =
            Specification::parse(changed.as_bytes()).and_then(|changed| changed.load(SMALL).map(drop));
        // With more items than the file has, ids are in other rows: the model is another one, but a possible one.
        assert!(loaded.is_err() || to.contains("4000000000"), "{to}");
    }
}

#[test]
fn a_model_answers_for_pairs_that_it_knows() {
    let specification = resolved(MODEL, SMALL).unwrap();
    let Target::Number { mean, .. } = specification.data.target else { unreachable!("ratings are numbers") };
    let mut parameters = vec![0.0; 18];
    // Users ann, bob, eve; items 3, 4, 7; then biases.
    parameters[..2].copy_from_slice(&[1.0, 2.0]);
    parameters[6..8].copy_from_slice(&[0.5, 0.25]);
    parameters[12] = 0.125;
    let predict = |bytes: &[u8]| specification.predict(&parameters, "p.csv", bytes, &None);
    let found = predict(b"user,item\nann,3\nbob,7\nann,3\n").unwrap();
    let expected = (mean + 0.125 + 1.0) as f32;
    assert_eq!((found.width(), found.values), (1, vec![expected, mean as f32, expected]));
    let error = predict(b"user,item\nann,3\nann,5\n").unwrap_err().to_string();
    assert!(error.contains("p.csv, line 3: the model knows no item `5` (it knows 3: 3-4, 7)"), "{error}");
    let error = predict(b"user,item\ncarl,3\n").unwrap_err().to_string();
    assert!(error.contains("the model knows no user `carl`"), "{error}");

    let other = b"item,user,rating\n3,ann,4\n7,bob,2\n";
    let evaluated = specification.evaluate(&parameters, "o.csv", other, &None).unwrap();
    let squares = (4.0 - f64::from(expected)).powi(2) + (2.0 - mean).powi(2);
    assert!((evaluated.rmse.unwrap() - (squares / 2.0).sqrt()).abs() < 1e-6, "{evaluated:?}");
    assert_eq!((evaluated.evaluation.samples, evaluated.part), (2, DataPart::All));
    let held_out = specification.evaluate(&parameters, "f.csv", SMALL, &None).unwrap();
    assert_eq!((held_out.evaluation.samples, held_out.part), (1, DataPart::HeldOut));
    let task = specification.load(SMALL).unwrap().task;
    assert_eq!(held_out.evaluation, task.evaluate(&parameters), "the same bits as at the end of a run");
}

#[test]
fn peer_init_writes_a_run_file_for_ratings() {
    let ratings = SyntheticRatings { users: 30, items: 20, rank: 2, density: 0.5, noise: 0.1, seed: 1 }.csv();
    let kind = ModelKind::Factorization;
    let written = write_run_file("f.csv", ratings.as_bytes(), Some(kind)).unwrap();
    let run = RunFile::parse(&written.text).unwrap_or_else(|error| panic!("{error}\n{}", written.text));
    assert_eq!((run.model.kind, run.model.rank), (kind, Some(10)));
    assert_eq!(written.notices, Vec::<String>::new());
    assert!(written.text.contains("columns = [\"user\",\"item\"]"), "{}", written.text);
    let unnamed = ratings.replacen("user,item,rating\n", "", 1);
    let written = write_run_file("f.csv", unnamed.as_bytes(), Some(kind)).unwrap();
    assert!(written.notices[0].contains("users are taken from column 1"), "{:?}", written.notices);
    assert!(written.text.contains("columns = [1,2]"), "{}", written.text);
}

/// Trains in one process, and returns the parameters and the RMSE on the held-out ratings.
fn trained(text: &str, ratings: &str) -> (Vec<f32>, f64) {
    let specification = resolved(text, ratings.as_bytes()).unwrap();
    let parameters = train_single_process(&specification.load(ratings.as_bytes()).unwrap(), |_| {});
    let evaluated = specification.evaluate(&parameters, "f.csv", ratings.as_bytes(), &None).unwrap();
    (parameters, evaluated.rmse.expect("ratings are numbers"))
}

#[test]
fn the_error_on_new_ratings_comes_close_to_the_noise() {
    let noise = 0.5;
    let ratings = SyntheticRatings { users: 1000, items: 1000, rank: 8, density: 0.8, noise, seed: 1 }.csv();
    let text = "epochs = 8\nbatch = 1000\n[data]\nfile = \"f.csv\"\nheld_out = 0.1\n\
        [model]\nkind = \"factorization\"\nrank = 8\nregularization = 0.002\n\
        [optimizer]\nrule = \"adam\"\nrate = 0.02\nschedule = \"cosine\"\n";
    let (_, rmse) = trained(text, &ratings);
    println!("RMSE {rmse:.4}, noise {noise}");
    assert!((0.99..1.02).contains(&(rmse / f64::from(noise))), "{rmse}");
}

#[test]
fn bounds_make_the_factors_nonnegative() {
    let ratings = SyntheticRatings { users: 60, items: 40, rank: 2, density: 0.6, noise: 0.1, seed: 1 }.csv();
    let text = "epochs = 20\nbatch = 64\n[data]\nfile = \"f.csv\"\n\
        [model]\nkind = \"factorization\"\nrank = 4\nbiases = false\nglobal_mean = false\n\
        [optimizer]\nrule = \"adam\"\nrate = 0.02\nbounds = [0, inf]\n";
    let specification = resolved(text, ratings.as_bytes()).unwrap();
    assert_eq!(specification.training.bounds, Some(Bounds::NONNEGATIVE));
    assert_eq!(Specification::parse(&specification.to_bytes().unwrap()).unwrap(), specification);
    let (parameters, rmse) = trained(text, &ratings);
    assert!(parameters.iter().all(|&factor| factor >= 0.0));
    let (free, _) = trained(&text.replace("bounds = [0, inf]", ""), &ratings);
    assert!(free.iter().any(|&factor| factor < 0.0), "without bounds, factors have both signs");
    assert!(rmse < 1.0, "{rmse}");
    let refused = resolved(&text.replace("[0, inf]", "[1.0, 0.5]"), ratings.as_bytes()).unwrap_err();
    assert!(
        refused.to_string().contains("`optimizer.bounds` is [1, 0.5]; allowed: two numbers"),
        "{refused}"
    );
}
