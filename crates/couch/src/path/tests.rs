//! What each path is, against a table that was written by the rules before there was a [`Target`]: three matches over the
//! path's segments, one each for the label, the right and the handler.

use std::fmt::Write;

use flatbed_metrics::Label;

use super::*;

/// A line a path: its segments (`%` stands for a slash within one), the label, what a stranger lacks who reads it and who
/// puts to it, and the handler with what it is given.
const TABLE: &str = include_str!("paths.txt");

fn lacks(target: &Target, method: &Method) -> &'static str {
    match target.needs(method) {
        Needed::Nothing => "-",
        Needed::User => "a name",
        Needed::Metrics => "metrics",
        Needed::ServerAdmin => "server",
        Needed::Member(_) => "db",
        Needed::Admin(_) => "db admin",
        Needed::Maintainer(_) => "maintainer",
    }
}

/// The handler by its name, and what it is given.
fn handler(target: &Target) -> String {
    let listed = |listed: &Listed| if *listed == Listed::All { "all" } else { "design" };
    match target {
        Target::Welcome => "welcome".into(),
        Target::Up => "up".into(),
        Target::Session => "session".into(),
        Target::Uuids => "uuids".into(),
        Target::AllDbs => "all_dbs".into(),
        Target::ActiveTasks => "active_tasks".into(),
        Target::DbUpdates => "db_updates".into(),
        Target::Replicate => "replicate".into(),
        Target::Scheduler(Scheduler::Jobs) => "scheduler jobs".into(),
        Target::Scheduler(Scheduler::Job(id)) => format!("scheduler jobs {id}"),
        Target::Scheduler(Scheduler::Docs) => "scheduler docs".into(),
        Target::Scheduler(Scheduler::Doc(id)) => format!("scheduler docs {id}"),
        Target::Scheduler(Scheduler::Unknown) => "missing".into(),
        Target::Metrics => "metrics".into(),
        Target::Later(what, _) => format!("later {what}"),
        Target::EncodedDesign(target) => format!("redirect or {}", handler(target)),
        Target::Database(name, what) => {
            let name = &name.text;
            match what {
                InDatabase::Root => format!("database {name}"),
                InDatabase::Endpoint(Endpoint::AllDocs) => format!("all_docs {name} all"),
                InDatabase::Endpoint(Endpoint::DesignDocs) => format!("all_docs {name} design"),
                InDatabase::Endpoint(endpoint) => format!("{} {name}", endpoint.route().value()),
                InDatabase::LocalQueries => format!("local queries {name}"),
                InDatabase::Queries(what) => format!("queries {name} {}", listed(what)),
                InDatabase::Mango(what) => format!("{what:?} {name}"),
                InDatabase::Later(what, _) => format!("later {what}"),
                InDatabase::Document { id, .. } => format!("document {name} {id}"),
                InDatabase::Attachment { id, name: file, .. } => format!("attachment {name} {id} {file}"),
                InDatabase::Local { id } => format!("local {name} {id}"),
                InDatabase::LocalAttachment => "no attachments".into(),
                InDatabase::Partition { partition, of } => format!("partition {name} {partition:?} {of:?}"),
                InDatabase::Answering { design, kind, rest } => {
                    format!("{kind:?} {name} {design} {}", rest.join(" "))
                }
                InDatabase::View { design, rest } => format!("view {name} {design} {}", rest.join(" ")),
                InDatabase::DesignInfo { design, is_longer: false } => format!("info {name} {design}"),
                InDatabase::DesignInfo { design, is_longer: true } => format!("behind info {name} {design}"),
                InDatabase::CompactViews { design } => format!("compact {name} {design}"),
                InDatabase::ViewCleanup => format!("cleanup {name}"),
                InDatabase::TempView => "gone".into(),
            }
        }
    }
}

fn line(path: &str) -> String {
    let segments = path.split_whitespace().map(|segment| segment.replace('%', "/")).collect();
    let target = Target::of(segments);
    let mut line = format!("{path} | {} | ", target.route().value());
    let lacks = [&Method::GET, &Method::PUT].map(|method| lacks(&target, method));
    write!(line, "{} | {} | {}", lacks[0], lacks[1], handler(&target)).unwrap();
    line
}

#[test]
fn paths_are_what_they_were() {
    let mut count = 0;
    for expected in TABLE.lines() {
        let (path, _) = expected.split_once(" | ").unwrap();
        assert_eq!(line(path), expected);
        count += 1;
    }
    assert!(count > 200, "{count}");
}

#[test]
fn segments_are_decoded_and_several_slashes_are_one() {
    let read = |path: &str| handler(&Target::parse(path).unwrap());
    assert_eq!(read("//a+b%2Fc//d%20e/"), "document a b/c d e");
    assert_eq!(read("/"), "welcome");
    assert_eq!(read("/db/_design%2fx"), "redirect or document db _design/x");
    assert_eq!(Target::parse("/db/%ff").unwrap_err().status.as_u16(), 400);
}

#[test]
fn queries_change_nothing() {
    let reads = |path: &str, method: &Method| Target::parse(path).unwrap().only_reads(method);
    for path in ["/db/_find", "/db/_count", "/db/_explain", "/db/_partition/p/_find"] {
        assert!(reads(path, &Method::POST), "{path}");
    }
    for path in ["/db/_index", "/db/_index/_bulk_delete", "/db/_bulk_docs", "/db"] {
        assert!(!reads(path, &Method::POST), "{path}");
    }
    assert!(reads("/db/_index", &Method::GET) && !reads("/db/doc", &Method::DELETE));
}

#[test]
fn routes_are_numbered() {
    assert!(Route::ALL.iter().enumerate().all(|(at, route)| route.index() == at));
}
