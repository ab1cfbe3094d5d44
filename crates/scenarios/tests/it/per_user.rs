//! Databases that servers create by themselves: one per user, and the system's own.

use std::time::Duration;

use flatbed_provision::ProvisionOptions;
use flatbed_testkit::until_wanted;
use serde_json::{Value, json};

use super::accounts::{ADMIN, asked, ok, options, options_without_admin, until, user};
use crate::support::{Options, Running, Store, basic};

const CONFIG: &str = "/_node/_local/_config/couch_peruser";
const ANNA: &str = "/userdb-616e6e61";
const BEA: &str = "/userdb-626561";
const CLEO: &str = "/userdb-636c656f";

/// Returns options with an administrator and `[couch_peruser] enable`.
fn enabled() -> Options {
    let mut options = options();
    options.server.settings.push(("couch_peruser".to_owned(), "enable".to_owned(), "true".to_owned()));
    options
}

fn with_system_databases(mut options: Options) -> Options {
    options.server.provision = ProvisionOptions::default();
    options
}

async fn add(server: &Running, name: &str) {
    ok(server, "PUT", &format!("/_users/org.couchdb.user:{name}"), user(name, "secret")).await;
}

async fn delete(server: &Running, name: &str) {
    let path = format!("/_users/org.couchdb.user:{name}");
    let rev = ok(server, "GET", &path, Value::Null).await["_rev"].as_str().unwrap().to_owned();
    ok(server, "DELETE", &format!("{path}?rev={rev}"), Value::Null).await;
}

/// Waits until a database's `_security` names these users, as its administrators and members.
async fn until_open_to(server: &Running, database: &str, names: Value) {
    let group = json!({"roles": ["_admin"], "names": names});
    let wanted = json!({"members": group, "admins": group});
    until(server, &format!("{database}/_security"), |found| *found == wanted).await;
}

/// Waits until a metric of a server has a value.
async fn until_metric(server: &Running, name: &str, wanted: impl Fn(f64) -> bool) {
    let look = async || asked(server, &[ADMIN], "GET", "/metrics", Value::Null).await.body;
    until_wanted(name, look, |text| {
        let of_name = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' '));
        let line = text.lines().find(of_name).unwrap_or_else(|| panic!("{name}: {text}"));
        wanted(line[name.len()..].trim().parse().unwrap())
    })
    .await;
}

async fn status(server: &Running, path: &str) -> u16 {
    asked(server, &[ADMIN], "GET", path, Value::Null).await.status
}

#[tokio::test(flavor = "multi_thread")]
async fn each_user_gets_a_database_that_others_may_not_read() {
    let store = Store::new();
    let (one, two) = (store.serve(options()).await, store.serve(options()).await);
    ok(&one, "PUT", "/_users", Value::Null).await;
    add(&one, "anna").await;
    assert_eq!(status(&one, ANNA).await, 404, "it is off");
    // Enabled at run time, for all processes: users from before get theirs, and later ones of any process.
    assert_eq!(ok(&one, "PUT", &format!("{CONFIG}/enable"), json!("true")).await, "false");
    until_open_to(&one, ANNA, json!(["anna"])).await;
    add(&two, "bea").await;
    until_open_to(&one, BEA, json!(["bea"])).await;
    assert_eq!(ok(&one, "GET", BEA, Value::Null).await["cluster"]["q"], 1);

    let anna = basic("anna", "secret");
    let anna = [("authorization", &*anna)];
    assert_eq!(asked(&two, &anna, "PUT", &format!("{ANNA}/doc"), json!({})).await.status, 201);
    assert_eq!(asked(&two, &anna, "PUT", &format!("{ANNA}/_design/own"), json!({})).await.status, 201);
    let refused = asked(&two, &anna, "GET", &format!("{BEA}/_all_docs"), Value::Null).await.status;
    assert!((401..=404).contains(&refused), "{refused}");

    // Without delete_dbs the database stays, closed to the name.
    delete(&one, "anna").await;
    until_open_to(&one, ANNA, json!([])).await;
    assert_eq!(status(&one, &format!("{ANNA}/doc")).await, 200);
    ok(&one, "PUT", &format!("{CONFIG}/delete_dbs"), json!("true")).await;
    delete(&two, "bea").await;
    until(&one, BEA, |found| found["error"] == "not_found").await;
    // The account that comes again gets the database that is there.
    add(&two, "anna").await;
    until_open_to(&two, ANNA, json!(["anna"])).await;
    assert_eq!(status(&one, &format!("{ANNA}/doc")).await, 200);
    two.stop().await;
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_database_begins_with_the_default_security() {
    let store = Store::new();
    let mut options = enabled();
    options.server.settings.push(("couchdb".to_owned(), "default_security".to_owned(), "everyone".to_owned()));
    let server = store.serve(options).await;
    ok(&server, "PUT", "/_users", Value::Null).await;
    add(&server, "anna").await;
    // Without the role that is the default elsewhere.
    let anna = json!({"names": ["anna"]});
    until(&server, &format!("{ANNA}/_security"), |found| *found == json!({"admins": anna, "members": anna})).await;
    let refused = asked(&server, &[], "GET", &format!("{ANNA}/_all_docs"), Value::Null).await.status;
    assert!((401..=404).contains(&refused), "{refused}");
    // One that exists gets the user, and keeps what it has.
    ok(&server, "PUT", BEA, Value::Null).await;
    ok(&server, "PUT", &format!("{BEA}/_security"), json!({"members": {"names": ["x"], "roles": ["r"]}, "y": 1})).await;
    add(&server, "bea").await;
    let wanted = json!({"members": {"names": ["bea", "x"], "roles": ["r"]}, "admins": {"names": ["bea"]}, "y": 1});
    until(&server, &format!("{BEA}/_security"), |found| *found == wanted).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_work_for_users_is_counted() {
    let store = Store::new();
    let server = store.serve(options()).await;
    ok(&server, "PUT", "/_users", Value::Null).await;
    add(&server, "anna").await;
    // Another process has the lease, and does nothing.
    let layer = store.layer().await;
    layer.database("_users").take_lease("couch_peruser", &[9; 16], None).await.unwrap();
    let lag = "flatbed_user_databases_lag_seconds";
    until_metric(&server, lag, |lag| lag == 0.0).await;
    ok(&server, "PUT", &format!("{CONFIG}/enable"), json!("true")).await;
    until_metric(&server, lag, |lag| lag > 0.0).await;
    until_metric(&server, "flatbed_user_databases_created_total", |created| created == 0.0).await;
    assert!(layer.database("_users").hold_lease("couch_peruser", &[9; 16], b"", true).await.unwrap());
    layer.shutdown();
    until_metric(&server, "flatbed_user_databases_created_total", |created| created == 1.0).await;
    until_metric(&server, lag, |lag| lag == 0.0).await;
    add(&server, &"x".repeat(200)).await;
    until_metric(&server, "flatbed_user_database_failures_total", |failures| failures >= 1.0).await;
    ok(&server, "PUT", &format!("{CONFIG}/delete_dbs"), json!("true")).await;
    delete(&server, "anna").await;
    until_metric(&server, "flatbed_user_databases_deleted_total", |deleted| deleted == 1.0).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_prefix_gives_all_users_another_database() {
    let server = Store::new().serve(enabled()).await;
    ok(&server, "PUT", "/_users", Value::Null).await;
    add(&server, "anna").await;
    until_open_to(&server, ANNA, json!(["anna"])).await;
    for (key, text) in [("database_prefix", "_users"), ("database_prefix", "A"), ("q", "many")] {
        let answer = asked(&server, &[ADMIN], "PUT", &format!("{CONFIG}/{key}"), json!(text)).await;
        assert_eq!(answer.status, 400, "{key}: {answer:?}");
    }
    ok(&server, "PUT", &format!("{CONFIG}/q"), json!("3")).await;
    ok(&server, "PUT", &format!("{CONFIG}/database_prefix"), json!("u/")).await;
    until_open_to(&server, "/u%2F616e6e61", json!(["anna"])).await;
    assert_eq!(ok(&server, "GET", "/u%2F616e6e61", Value::Null).await["cluster"]["q"], 3);
    // A user whose name is too long for a database's does not stop the others.
    add(&server, &"x".repeat(200)).await;
    add(&server, "cleo").await;
    until_open_to(&server, "/u%2F636c656f", json!(["cleo"])).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_dies_before_it_creates_a_database_is_replaced() {
    let store = Store::new();
    let server = store.serve(enabled()).await;
    ok(&server, "PUT", "/_users", Value::Null).await;
    add(&server, "anna").await;
    until_open_to(&server, ANNA, json!(["anna"])).await;
    // Its database is deleted by hand: a later start does not look at the account again.
    ok(&server, "DELETE", ANNA, Value::Null).await;
    server.stop().await;

    // The account comes to a process that holds the lease and dies.
    let layer = store.layer().await;
    layer.database("_users").take_lease("couch_peruser", &[9; 16], None).await.unwrap();
    layer.shutdown();
    let without = store.serve(options()).await;
    add(&without, "bea").await;
    without.stop().await;

    let mut options = enabled();
    options.server.provision.lease = Duration::from_millis(500);
    let server = store.serve(options).await;
    until_open_to(&server, BEA, json!(["bea"])).await;
    add(&server, "cleo").await;
    until_open_to(&server, CLEO, json!(["cleo"])).await;
    assert_eq!(status(&server, ANNA).await, 404);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_an_administrator_has_its_system_databases_from_the_start() {
    let store = Store::new();
    let options = || with_system_databases(options());
    let (one, two) = tokio::join!(store.serve(options()), store.serve(options()));
    for path in ["/_users", "/_replicator"] {
        assert_eq!((status(&one, path).await, status(&two, path).await), (200, 200), "{path}");
    }
    assert_eq!(status(&one, "/_global_changes").await, 404);
    // One that is deleted stays so until the next start.
    let security = json!({"admins": {"names": ["anna"]}, "members": {"roles": ["_admin"]}});
    ok(&one, "PUT", "/_replicator/_security", security.clone()).await;
    ok(&one, "DELETE", "/_users", Value::Null).await;
    assert_eq!(status(&two, "/_users").await, 404);
    two.stop().await;
    one.stop().await;
    let again = store.serve(options()).await;
    assert_eq!(status(&again, "/_users").await, 200);
    // One that is there stays as it is.
    assert_eq!(ok(&again, "GET", "/_replicator/_security", Value::Null).await, security);
    again.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_administrator_brings_the_system_databases() {
    let server = Store::new().serve(with_system_databases(options_without_admin())).await;
    assert_eq!(server.json("GET", "/_users", Value::Null).await.0, 404);
    server.ok("PUT", "/_node/_local/_config/admins/admin", json!("password")).await;
    for path in ["/_users", "/_replicator"] {
        until(&server, path, |found| found["db_name"] == path[1..]).await;
    }
    server.stop().await;
}
