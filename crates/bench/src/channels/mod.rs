//! Databases with channels: the cost of their users' feeds, first syncs and backfills, of the sync function for
//! writers, and of expiring documents. Each figure stands beside its aim.

mod backfill;
mod expiry;
mod first_sync;
mod live;
mod world;
mod writes;

use std::{io, path::PathBuf};

use serde_json::{Value, json};

use crate::{
    limits::raise_open_files,
    server::ServerError,
    stats::rounded,
    suite::{MODEL, remove},
    way::WayError,
};
use world::World;

pub(crate) struct Options {
    /// Flatbed's binary.
    pub flatbed: PathBuf,
    pub directory: PathBuf,
    /// The names of the parts; none: all.
    pub cases: Vec<String>,
    /// The duration of each load, in seconds.
    pub seconds: u64,
    /// The number of rounds: comparisons take turns in rounds, and other parts are repeated.
    pub rounds: u64,
    /// The documents of the first sync. A tenth of them are backfilled, and as many expire.
    pub documents: u64,
    /// The followers at once; a multiple of 100.
    pub users: usize,
}

/// The reason why there are no figures.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChannelsError {
    /// The server did not start.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// A request failed.
    #[error(transparent)]
    Way(#[from] WayError),
    /// A file or a socket failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The received rows are wrong.
    #[error("{0}")]
    Wrong(String),
    /// The name of a part is unknown.
    #[error("no part is called {0:?}; there are {1}")]
    NoCase(String, String),
    /// Some parts have no figures; the reasons were printed.
    #[error("some parts failed: {0}")]
    Failed(String),
}

pub(crate) type Result<T> = std::result::Result<T, ChannelsError>;

#[derive(Clone, Copy, Debug)]
enum Aim {
    AtLeast(f64),
    AtMost(f64),
}

impl Aim {
    fn is_met(self, found: f64) -> bool {
        match self {
            Aim::AtLeast(least) => found >= least,
            Aim::AtMost(most) => found <= most,
        }
    }

    fn text(self) -> String {
        match self {
            Aim::AtLeast(least) => format!("≥ {least}"),
            Aim::AtMost(most) => format!("≤ {most}"),
        }
    }
}

/// The result of a measurement.
struct Figure {
    name: &'static str,
    aim: Aim,
    found: f64,
    more: Value,
}

impl Figure {
    fn new(name: &'static str, aim: Aim, found: f64, more: Value) -> Figure {
        Figure { name, aim, found: rounded(found, 100.0), more }
    }
}

/// The parts, each with its own data.
const CASES: [&str; 5] = ["live", "sync", "writes", "backfill", "expiry"];

/// Runs the parts, each on the embedded engine and with the simulated cluster's time. Prints a line of JSON for each
/// figure, and a table at the end.
pub(crate) async fn run(options: &Options) -> Result<()> {
    if let Some(wanted) = options.cases.iter().find(|wanted| !CASES.contains(&wanted.as_str())) {
        return Err(ChannelsError::NoCase(wanted.clone(), CASES.join(" ")));
    }
    raise_open_files()?;
    let (mut found, mut failed) = (Vec::new(), Vec::new());
    for case in CASES {
        if !options.cases.is_empty() && !options.cases.iter().any(|wanted| wanted == case) {
            continue;
        }
        let directory = options.directory.join(case);
        remove(&directory)?;
        std::fs::create_dir_all(&directory)?;
        if let Err(error) = part(case, options, &directory, &mut found).await {
            eprintln!("flatbed-bench: {case}: {error}");
            failed.push(case);
        }
        remove(&directory)?;
    }
    print!("\n{}", table(&found));
    if failed.is_empty() { Ok(()) } else { Err(ChannelsError::Failed(failed.join(" "))) }
}

/// Runs one part: filled by a server without the cluster's time, measured by one without and one with it.
async fn part(
    case: &str,
    options: &Options,
    directory: &std::path::Path,
    found: &mut Vec<(bool, Figure)>,
) -> Result<()> {
    let start = |variables: &'static [_]| World::start(&options.flatbed, directory, case != "live", variables);
    let world = World::start(&options.flatbed, directory, true, &[]).await?;
    match case {
        "live" => live::fill(&world, options).await?,
        "sync" => first_sync::fill(&world, options).await?,
        "writes" => writes::fill(&world).await?,
        "backfill" => backfill::fill(&world, options).await?,
        _ => expiry::fill(&world).await?,
    }
    world.stop().await?;
    for is_model in [false, true] {
        let variables = if is_model { MODEL } else { &[] };
        let figures = match case {
            "live" => {
                let plain = live::memory(start(variables).await?, options, live::PLAIN).await?;
                live::run(start(variables).await?, options, usize::from(is_model), plain).await?
            }
            "sync" => first_sync::run(start(variables).await?, options).await?,
            "writes" => writes::run(start(variables).await?, options).await?,
            "backfill" => backfill::run(start(variables).await?, options, is_model).await?,
            _ => expiry::run(start(variables).await?, options, is_model).await?,
        };
        enter(figures, is_model, found);
    }
    if case == "sync" {
        // So slow that a page's time is that of its waits.
        let slow = start(&[("FLATBED_FDB_LATENCY_US", "50000,50000,50000")]).await?;
        enter(first_sync::waits(slow, options).await?, true, found);
    }
    Ok(())
}

fn enter(figures: Vec<Figure>, is_model: bool, found: &mut Vec<(bool, Figure)>) {
    for figure in figures {
        let Figure { name, aim, found: is, more } = &figure;
        println!(
            "{}",
            json!({
                "load": "channels", "figure": name, "model": is_model, "aim": aim.text(), "found": is,
                "met": aim.is_met(*is), "more": more,
            })
        );
        found.push((is_model, figure));
    }
}

/// Formats each figure beside its aim, with a star if it misses the aim.
fn table(found: &[(bool, Figure)]) -> String {
    let mut text = String::from("| figure | aim | embedded | on the cluster's model |\n|---|---:|---:|---:|\n");
    let mut names: Vec<&str> = Vec::new();
    for (_, figure) in found {
        if !names.contains(&figure.name) {
            names.push(figure.name);
        }
    }
    for name in names {
        let cell = |is_model: bool| {
            let of = found.iter().find(|(model, figure)| *model == is_model && figure.name == name);
            of.map_or_else(String::new, |(_, figure)| {
                let star = if figure.aim.is_met(figure.found) { "" } else { " *" };
                format!("{}{star}", figure.found)
            })
        };
        let aim = found.iter().find(|(_, figure)| figure.name == name).map_or_else(String::new, |(_, f)| f.aim.text());
        text.push_str(&format!("| {name} | {aim} | {} | {} |\n", cell(false), cell(true)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_misses_its_aim_has_a_star() {
        let figure = |name, aim, found| Figure::new(name, aim, found, Value::Null);
        let found = [
            (false, figure("rows", Aim::AtLeast(10.0), 12.0)),
            (true, figure("rows", Aim::AtLeast(10.0), 9.0)),
            (true, figure("ms", Aim::AtMost(50.0), 50.001)),
        ];
        let table = table(&found);
        assert!(table.ends_with("| rows | ≥ 10 | 12 | 9 * |\n| ms | ≤ 50 |  | 50 |\n"), "{table}");
    }
}
