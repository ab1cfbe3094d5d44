//! A deterministic load generator for servers with CouchDB's API. It has one thread and one keep-alive connection for
//! each worker, and documents of about 1 KB with 24 leaves on three levels. Every load prints one line of JSON: rates,
//! latencies in milliseconds, and each side's share of a core.

mod access;
mod channels;
mod documents;
mod feeds;
mod histories;
mod limits;
mod load;
mod queries;
mod raw;
mod server;
mod stats;
mod suite;
mod sync;
mod way;
mod worker;

use std::{path::PathBuf, process::ExitCode};

use flatbed_client::Url;
use lexopt::prelude::*;

use load::{Kind, Target};

const HELP: &str = "\
flatbed-bench suite --flatbed BINARY [--pouchdb SCRIPT] [--directory DIR] [--documents N] [--seconds N]
flatbed-bench feeds --flatbed BINARY [--directory DIR] [--case NAME]... [--seconds N] [--rounds N] [--documents N]
flatbed-bench access --flatbed BINARY [--directory DIR] [--seconds N] [--rounds N]
flatbed-bench sync --flatbed BINARY [--directory DIR] [--seconds N] [--rounds N] [--workers N] [--expiring N]
flatbed-bench channels --flatbed BINARY [--directory DIR] [--case NAME]... [--documents N] [--users N] [--seconds N] [--rounds N]
flatbed-bench worker --flatbed BINARY [--directory DIR] [--case NAME]... [--documents N] [--seconds N] [--postgres PORT] [--entries N] [--jobs N]
flatbed-bench raw --source DATA_DIR [--directory DIR] [--documents N]
flatbed-bench put|get|bulk|all-docs|changes|changes-docs|latency|histories|queries [--url URL] [--database DB] [--fresh]
              [--workers N] [--documents N] [--seconds N] [--server-pid PID]
";

struct Arguments {
    command: String,
    url: String,
    database: String,
    fresh: bool,
    workers: Option<usize>,
    documents: u64,
    seconds: u64,
    server_pid: Option<u32>,
    directory: PathBuf,
    source: PathBuf,
    flatbed: PathBuf,
    pouchdb: Option<PathBuf>,
    cases: Vec<String>,
    rounds: u64,
    expiring: u64,
    users: usize,
    postgres: Option<u16>,
    entries: u64,
    jobs: u64,
}

fn parse() -> Result<Option<Arguments>, lexopt::Error> {
    let mut arguments = Arguments {
        command: String::new(),
        url: "http://127.0.0.1:5984".to_owned(),
        database: "bench".to_owned(),
        fresh: false,
        workers: None,
        documents: 100_000,
        seconds: 10,
        server_pid: None,
        directory: "target/bench".into(),
        source: "flatbed-data".into(),
        flatbed: "target/release/flatbed".into(),
        pouchdb: None,
        cases: Vec::new(),
        rounds: 1,
        expiring: 0,
        users: 10_000,
        postgres: None,
        entries: 100_000,
        jobs: 100,
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(None),
            Long("url") => arguments.url = parser.value()?.string()?,
            Long("database") => arguments.database = parser.value()?.string()?,
            Long("fresh") => arguments.fresh = true,
            Long("workers") => arguments.workers = Some(parser.value()?.parse()?),
            Long("documents") => arguments.documents = parser.value()?.parse()?,
            Long("seconds") => arguments.seconds = parser.value()?.parse()?,
            Long("server-pid") => arguments.server_pid = Some(parser.value()?.parse()?),
            Long("directory") => arguments.directory = parser.value()?.into(),
            Long("source") => arguments.source = parser.value()?.into(),
            Long("flatbed") => arguments.flatbed = parser.value()?.into(),
            Long("case") => arguments.cases.push(parser.value()?.string()?),
            Long("rounds") => arguments.rounds = parser.value()?.parse()?,
            Long("users") => arguments.users = parser.value()?.parse()?,
            Long("expiring") => arguments.expiring = parser.value()?.parse()?,
            Long("entries") => arguments.entries = parser.value()?.parse()?,
            Long("jobs") => arguments.jobs = parser.value()?.parse()?,
            Long("postgres") => arguments.postgres = Some(parser.value()?.parse()?),
            Long("pouchdb") => arguments.pouchdb = Some(parser.value()?.into()),
            Value(command) if arguments.command.is_empty() => arguments.command = command.string()?,
            other => return Err(other.unexpected()),
        }
    }
    Ok(if arguments.command.is_empty() { None } else { Some(arguments) })
}

fn main() -> ExitCode {
    let arguments = match parse() {
        Ok(Some(arguments)) => arguments,
        Ok(None) => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("flatbed-bench: {error}");
            return ExitCode::from(2);
        }
    };
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("flatbed-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<(), Box<dyn std::error::Error>> {
    if arguments.command == "raw" {
        let documents = usize::try_from(arguments.documents)?;
        for figures in raw::run(&arguments.source, &arguments.directory, documents)? {
            println!("{figures}");
        }
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if arguments.command == "suite" {
        let Arguments { flatbed, pouchdb, directory, documents, seconds, .. } = arguments;
        runtime.block_on(suite::run(&suite::Options { flatbed, pouchdb, directory, documents, seconds }))?;
        return Ok(());
    }
    if arguments.command == "access" {
        let Arguments { flatbed, directory, seconds, rounds, .. } = arguments;
        let directory = directory.join("access");
        suite::remove(&directory)?;
        println!("{}", runtime.block_on(access::run(&flatbed, &directory, rounds, seconds))?);
        suite::remove(&directory)?;
        return Ok(());
    }
    if arguments.command == "sync" {
        let Arguments { flatbed, directory, workers, seconds, rounds, expiring, .. } = arguments;
        let (flatbed, directory, workers) = (&*flatbed, &*directory.join("sync"), workers.unwrap_or(64));
        runtime.block_on(sync::run(&sync::Options { flatbed, directory, seconds, rounds, workers, expiring }))?;
        return Ok(());
    }
    if arguments.command == "channels" {
        let Arguments { flatbed, directory, cases, seconds, rounds, documents, users, .. } = arguments;
        let directory = directory.join("channels");
        let options = channels::Options { flatbed, directory, cases, seconds, rounds, documents, users };
        runtime.block_on(channels::run(&options))?;
        return Ok(());
    }
    if arguments.command == "worker" {
        let Arguments { flatbed, directory, cases, seconds, documents, postgres, entries, jobs, .. } = arguments;
        let directory = directory.join("worker");
        let options = worker::Options { flatbed, directory, cases, documents, seconds, postgres, entries, jobs };
        runtime.block_on(worker::run(&options))?;
        return Ok(());
    }
    if arguments.command == "feeds" {
        let Arguments { flatbed, directory, cases, seconds, rounds, documents, .. } = arguments;
        runtime.block_on(feeds::run(&feeds::Options { flatbed, directory, cases, seconds, rounds, documents }))?;
        return Ok(());
    }
    runtime.block_on(async {
        let database = format!("/{}", arguments.database);
        let target = Target { url: Url::parse(&arguments.url)?, database, pid: arguments.server_pid };
        if arguments.fresh {
            load::fresh(&target).await?;
        }
        let Arguments { documents, seconds, .. } = arguments;
        let workers = arguments.workers.unwrap_or(1);
        let figures = match arguments.command.as_str() {
            "put" => load::single(&target, Kind::Put(0), workers, documents, seconds).await?,
            "get" => load::single(&target, Kind::Get(documents), workers, u64::MAX, seconds).await?,
            "bulk" => load::bulk(&target, 1000, documents, seconds).await?,
            "all-docs" => load::rows(&target, "/_all_docs?include_docs=true").await?,
            "changes" => load::rows(&target, "/_changes").await?,
            "changes-docs" => load::rows(&target, "/_changes?include_docs=true").await?,
            "latency" => load::latency(&target, documents.min(500), 50).await?,
            "histories" => histories::run(&target).await?,
            "queries" => queries::run(&target, documents).await?,
            other => return Err(format!("unknown command {other:?} (--help lists them)").into()),
        };
        println!("{figures}");
        Ok(())
    })
}
