//! `flatbed check`: the layer's checker on one database, for operators.

use std::sync::Arc;

use flatbed_javascript::{Runner, RunnerOptions};
use flatbed_layer::{Layer, check};
use flatbed_service::Functions;

use crate::{
    progress::{Progress, Unit},
    settings::Settings,
    storage::Storage,
};

/// Checks a database, and prints each problem on a line, and a summary.
///
/// Returns whether there is no problem.
///
/// # Errors
/// If the storage cannot be opened or read, or the database does not exist.
pub(crate) async fn check(database: &str, settings: &Settings) -> Result<bool, Box<dyn std::error::Error>> {
    let storage = Storage::open(settings).await?;
    let (layer, _) = Layer::open(storage.database(), settings.layer_options(), None).await?;
    let functions = Runner::new(RunnerOptions::default())?;
    layer.run_views_by(Arc::new(Functions::new(functions)));
    let mut progress = Progress::new(format!("check {database}"), Unit::Documents, None);
    let handle = layer.reader(database);
    if let Ok(info) = handle.info().await {
        progress.set_total(info.doc_count + info.doc_del_count);
    }
    let found = check::check_database(&handle, |documents| progress.draw(documents, documents)).await;
    progress.clear();
    let report = match found {
        Err(flatbed_layer::Error::DatabaseNotFound) => return Err(format!("there is no database {database:?}").into()),
        found => found?,
    };
    for violation in &report.violations {
        println!("{violation}");
    }
    let seconds = progress.elapsed().as_secs_f64();
    let sums = if report.sums_compared {
        ""
    } else {
        ", counters not compared because it was written to or compacted meanwhile"
    };
    let verdict = match report.violation_count {
        0 => "clean".to_owned(),
        count => format!("{count} violations"),
    };
    let mapped = match report.mapped {
        0 => String::new(),
        mapped => format!(", {mapped} mapped anew"),
    };
    println!(
        "{database}: {verdict}; {} documents{mapped}, {} keys in {seconds:.1} s{sums}",
        report.documents, report.keys
    );
    layer.shutdown();
    storage.close();
    Ok(report.is_clean())
}
