//! Compares each path's label, right and handler with a recorded table.

use std::fmt::Write;

use flatbed_metrics::Label;
use hyper::Method;

use super::*;
use crate::router::RequiredRight;

proptest::proptest! {
    #[test]
    fn any_path_is_taken_or_refused(path in "(/|[a-z_]{1,8}|%[0-9a-fA-F]{0,2}|\\.\\.|\\PC){0,12}") {
        if let Ok(target) = Target::parse(&path) {
            let _ = (target.route(), target.needs(&Method::GET, true), target.needs(&Method::PUT, false), target.only_reads(&Method::POST));
        }
    }
}

/// One line per path: its segments (`%` is a slash within a segment), the label, the right that an anonymous GET and
/// PUT lack, and the handler with its arguments.
const TABLE: &str = include_str!("paths.txt");

fn lacks(target: &Target, method: &Method) -> &'static str {
    match target.needs(method, false) {
        RequiredRight::Nothing => "-",
        RequiredRight::User => "a name",
        RequiredRight::Metrics => "metrics",
        RequiredRight::Databases | RequiredRight::ServerAdmin => "server",
        RequiredRight::Member | RequiredRight::Whole => "db",
        RequiredRight::Admin => "db admin",
        RequiredRight::Maintainer => "maintainer",
        RequiredRight::Hidden => "hidden",
        RequiredRight::UserViews => "user views",
    }
}

fn handler(target: &Target) -> String {
    let listed = |listed: &DocumentListing| if *listed == DocumentListing::All { "all" } else { "design" };
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
        Target::Scheduler(Scheduler::DocsOf(name)) => format!("scheduler docs of {name}"),
        Target::Scheduler(Scheduler::DocOf(name, id)) => format!("scheduler docs of {name} {id}"),
        Target::Scheduler(Scheduler::Unknown) => "missing".into(),
        Target::Worker(what) => format!("worker {what:?}"),
        Target::Metrics => "metrics".into(),
        Target::DbsInfo { is_longer } => format!("dbs_info {is_longer}"),
        Target::Node(what) => format!("node {what:?}"),
        Target::Membership => "membership".into(),
        Target::ClusterSetup => "cluster_setup".into(),
        Target::Reshard(what) => format!("reshard {what:?}"),
        Target::Utils => "utils".into(),
        Target::Favicon => "favicon".into(),
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
                InDatabase::DesignCall { design, kind, rest } => {
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
fn requests_that_change_something() {
    let changes = |path: &str, method: &Method| Target::parse(path).unwrap().changes(method);
    let reading = [
        "/_dbs_info",
        "/db/_all_docs",
        "/db/_all_docs/queries",
        "/db/_bulk_get",
        "/db/_changes",
        "/db/_design/d/_list/l/v",
        "/db/_design/d/_show/s/doc",
        "/db/_design/d/_view/v",
        "/db/_design_docs",
        "/db/_find",
        "/db/_local_docs",
        "/db/_missing_revs",
        "/db/_partition/p/_find",
        "/db/_revs_diff",
    ];
    for path in reading {
        assert!(!changes(path, &Method::POST) && changes(path, &Method::PUT), "{path}");
    }
    let changing = [
        "/_replicate",
        "/_session",
        "/db",
        "/db/_bulk_docs",
        "/db/_compact",
        "/db/_design/d/_rewrite/x",
        "/db/_design/d/_update/u",
        "/db/_index",
        "/db/_purge",
        "/db/_view_cleanup",
        "/no/such/route",
    ];
    for path in changing {
        assert!(changes(path, &Method::POST), "{path}");
    }
    assert!(changes("/db/_design/d/_update/u", &Method::GET) && !changes("/db", &Method::GET));
}

#[test]
fn databases_that_ask_for_replications_have_one_table() {
    let lacks = |name: &str, rest: &str, method: &Method, is_replicator: bool| {
        let rest = rest.split_whitespace().map(|segment| segment.replace('%', "/"));
        let target = Target::of(std::iter::once(name.to_owned()).chain(rest).collect());
        match target.needs(method, is_replicator) {
            RequiredRight::Member => "member",
            RequiredRight::Whole => "whole",
            RequiredRight::Admin => "admin",
            RequiredRight::Maintainer => "maintainer",
            RequiredRight::ServerAdmin => "server",
            other => panic!("{other:?}"),
        }
    };
    for line in TABLE.lines() {
        let Some(rest) = line.split(" | ").next().and_then(|path| path.strip_prefix("db ")) else { continue };
        for method in [Method::GET, Method::PUT, Method::POST, Method::DELETE] {
            let of = |name: &str, is_replicator: bool| lacks(name, rest, &method, is_replicator);
            assert_eq!(of("a/_replicator", true), of("_replicator", false), "{method} {rest}");
            assert_eq!(of("a/_replicator", false), of("db", false), "{method} {rest}");
        }
    }
    let asked = |path: &str| Target::parse(path).unwrap().may_be_replicator().map(str::to_owned);
    assert_eq!(asked("/a%2F_replicator/_changes").as_deref(), Some("a/_replicator"));
    assert_eq!(asked("/a%2F_replicator/_design%2Fd").as_deref(), Some("a/_replicator"));
    assert_eq!([asked("/_replicator/d"), asked("/db/d"), asked("/_up")], [None, None, None]);
    for (path, of_replicator) in [("_all_docs", "server"), ("_find", "admin"), ("d", "member")] {
        assert_eq!(lacks("a/_replicator", path, &Method::GET, true), of_replicator);
    }
}

#[test]
fn routes_are_numbered() {
    assert!(Route::ALL.iter().enumerate().all(|(at, route)| route.index() == at));
}

/// The table of rights: one line per form of path, one letter per method. `crates/couch/tests/it/rights.rs` sends all
/// of these requests to a server.
const RIGHTS: &str = include_str!("rights.txt");

const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "DELETE", "COPY", "PATCH"];

/// All forms of a path. A new variant does not compile without a form, and the test fails without its line in the
/// table.
macro_rules! forms {
    ($($form:literal: $pattern:pat,)+) => {
        fn form(target: &Target) -> &'static str {
            match target {
                $($pattern => $form,)+
            }
        }

        const FORMS: &[&str] = &[$($form),+];
    };
}

forms! {
    "welcome": Target::Welcome,
    "up": Target::Up,
    "session": Target::Session,
    "uuids": Target::Uuids,
    "all_dbs": Target::AllDbs,
    "active_tasks": Target::ActiveTasks,
    "db_updates": Target::DbUpdates,
    "replicate": Target::Replicate,
    "jobs": Target::Scheduler(Scheduler::Jobs),
    "job": Target::Scheduler(Scheduler::Job(_)),
    "docs": Target::Scheduler(Scheduler::Docs),
    "doc": Target::Scheduler(Scheduler::Doc(_)),
    "docs of": Target::Scheduler(Scheduler::DocsOf(_)),
    "doc of": Target::Scheduler(Scheduler::DocOf(..)),
    "scheduler": Target::Scheduler(Scheduler::Unknown),
    "worker jobs": Target::Worker(WorkerApi::Jobs),
    "worker job": Target::Worker(WorkerApi::Job(_)),
    "worker start": Target::Worker(WorkerApi::Start(_)),
    "worker stop": Target::Worker(WorkerApi::Stop(_)),
    "worker reset": Target::Worker(WorkerApi::Reset(_)),
    "worker leases": Target::Worker(WorkerApi::Leases),
    "worker lease": Target::Worker(WorkerApi::Lease(_)),
    "worker lease take": Target::Worker(WorkerApi::TakeLease(_)),
    "worker lease hold": Target::Worker(WorkerApi::HoldLease(_)),
    "worker lease release": Target::Worker(WorkerApi::ReleaseLease(_)),
    "worker dlq": Target::Worker(WorkerApi::Queue(QueuePath::List)),
    "worker count": Target::Worker(WorkerApi::Queue(QueuePath::Count)),
    "worker stats": Target::Worker(WorkerApi::Queue(QueuePath::Stats)),
    "worker explain": Target::Worker(WorkerApi::Queue(QueuePath::Explain)),
    "worker export": Target::Worker(WorkerApi::Queue(QueuePath::Export)),
    "worker import": Target::Worker(WorkerApi::Queue(QueuePath::Import)),
    "worker retry": Target::Worker(WorkerApi::Queue(QueuePath::Retry)),
    "worker entry": Target::Worker(WorkerApi::Queue(QueuePath::One(_))),
    "worker entry retry": Target::Worker(WorkerApi::Queue(QueuePath::RetryOne(_))),
    "worker": Target::Worker(WorkerApi::Unknown),
    "metrics": Target::Metrics,
    "dbs_info": Target::DbsInfo { .. },
    "node": Target::Node(_),
    "membership": Target::Membership,
    "cluster_setup": Target::ClusterSetup,
    "reshard": Target::Reshard(_),
    "utils": Target::Utils,
    "favicon": Target::Favicon,
    "later": Target::Later(..),
    "encoded": Target::EncodedDesign(_),
    "reserved": Target::Database(DatabaseName { kind: DatabaseKind::Reserved, .. }, _),
    "system": Target::Database(DatabaseName { kind: DatabaseKind::System, .. }, _),
    "root": Target::Database(_, InDatabase::Root),
    "_local_docs": Target::Database(_, InDatabase::Endpoint(Endpoint::LocalDocs)),
    "_all_docs": Target::Database(_, InDatabase::Endpoint(Endpoint::AllDocs)),
    "_design_docs": Target::Database(_, InDatabase::Endpoint(Endpoint::DesignDocs)),
    "_bulk_docs": Target::Database(_, InDatabase::Endpoint(Endpoint::BulkDocs)),
    "_bulk_get": Target::Database(_, InDatabase::Endpoint(Endpoint::BulkGet)),
    "_changes": Target::Database(_, InDatabase::Endpoint(Endpoint::Changes)),
    "_revs_diff": Target::Database(_, InDatabase::Endpoint(Endpoint::RevsDiff)),
    "_missing_revs": Target::Database(_, InDatabase::Endpoint(Endpoint::MissingRevs)),
    "_revs_limit": Target::Database(_, InDatabase::Endpoint(Endpoint::RevsLimit)),
    "_ensure_full_commit": Target::Database(_, InDatabase::Endpoint(Endpoint::EnsureFullCommit)),
    "_compact": Target::Database(_, InDatabase::Endpoint(Endpoint::Compact)),
    "_purge": Target::Database(_, InDatabase::Endpoint(Endpoint::Purge)),
    "_purged_infos": Target::Database(_, InDatabase::Endpoint(Endpoint::PurgedInfos)),
    "_purged_infos_limit": Target::Database(_, InDatabase::Endpoint(Endpoint::PurgedInfosLimit)),
    "_raw_keys": Target::Database(_, InDatabase::Endpoint(Endpoint::RawKeys)),
    "_security": Target::Database(_, InDatabase::Endpoint(Endpoint::Security)),
    "all queries": Target::Database(_, InDatabase::Queries(DocumentListing::All)),
    "design queries": Target::Database(_, InDatabase::Queries(DocumentListing::Design)),
    "local queries": Target::Database(_, InDatabase::LocalQueries),
    "_find": Target::Database(_, InDatabase::Mango(Mango::Find)),
    "_explain": Target::Database(_, InDatabase::Mango(Mango::Explain)),
    "_count": Target::Database(_, InDatabase::Mango(Mango::Count)),
    "_index": Target::Database(_, InDatabase::Mango(Mango::Indexes)),
    "_bulk_delete": Target::Database(_, InDatabase::Mango(Mango::BulkDelete)),
    "an index": Target::Database(_, InDatabase::Mango(Mango::Index { .. })),
    "beneath _index": Target::Database(_, InDatabase::Mango(Mango::Unknown)),
    "partitions": Target::Database(_, InDatabase::Partition { partition: None, .. }),
    "partition": Target::Database(_, InDatabase::Partition { partition: Some(_), of: None }),
    "of a partition": Target::Database(_, InDatabase::Partition { partition: Some(_), of: Some(_) }),
    "later in a database": Target::Database(_, InDatabase::Later(..)),
    "document": Target::Database(_, InDatabase::Document { kind: IdKind::Plain, .. }),
    "design document": Target::Database(_, InDatabase::Document { kind: IdKind::Design, .. }),
    "no document": Target::Database(
        _,
        InDatabase::Document { kind: IdKind::Local | IdKind::Endpoint(_) | IdKind::Reserved, .. },
    ),
    "attachment": Target::Database(_, InDatabase::Attachment { kind: IdKind::Plain, .. }),
    "design attachment": Target::Database(_, InDatabase::Attachment { kind: IdKind::Design, .. }),
    "no attachment": Target::Database(
        _,
        InDatabase::Attachment { kind: IdKind::Local | IdKind::Endpoint(_) | IdKind::Reserved, .. },
    ),
    "local": Target::Database(_, InDatabase::Local { .. }),
    "local attachment": Target::Database(_, InDatabase::LocalAttachment),
    "show": Target::Database(_, InDatabase::DesignCall { kind: DesignCall::Show, .. }),
    "list": Target::Database(_, InDatabase::DesignCall { kind: DesignCall::List, .. }),
    "update": Target::Database(_, InDatabase::DesignCall { kind: DesignCall::Update, .. }),
    "rewrite": Target::Database(_, InDatabase::DesignCall { kind: DesignCall::Rewrite, .. }),
    "view": Target::Database(_, InDatabase::View { .. }),
    "info": Target::Database(_, InDatabase::DesignInfo { is_longer: false, .. }),
    "behind info": Target::Database(_, InDatabase::DesignInfo { is_longer: true, .. }),
    "views": Target::Database(_, InDatabase::CompactViews { .. }),
    "cleanup": Target::Database(_, InDatabase::ViewCleanup),
    "temp": Target::Database(_, InDatabase::TempView),
}

#[test]
fn the_table_of_rights_has_every_path_and_method() {
    let mut missed: Vec<&str> = FORMS.to_vec();
    for line in RIGHTS.lines().filter(|line| !line.starts_with('#')) {
        let columns: Vec<&str> = line.split(" | ").collect();
        let path = columns[0].replace("{db}", "db");
        let target = Target::parse(path.split('?').next().unwrap()).unwrap();
        missed.retain(|missed| *missed != form(&target));
        assert_eq!(columns[1].len(), METHODS.len(), "{line}");
        for (letter, method) in columns[1].chars().zip(METHODS) {
            let needed = match target.needs(&Method::from_bytes(method.as_bytes()).unwrap(), false) {
                RequiredRight::Nothing => "-",
                RequiredRight::User => "n",
                RequiredRight::Metrics => "x",
                RequiredRight::Databases => "l",
                RequiredRight::ServerAdmin => "s",
                // The document and the rules of system databases decide.
                RequiredRight::Member | RequiredRight::Whole => "mdu",
                RequiredRight::Admin => "au",
                RequiredRight::Maintainer => "ku",
                RequiredRight::Hidden | RequiredRight::UserViews => "u",
            };
            assert!(needed.contains(letter), "{method} {line}: {needed}");
        }
    }
    assert!(missed.is_empty(), "no line of the table of rights is of the form {missed:?}");
}
