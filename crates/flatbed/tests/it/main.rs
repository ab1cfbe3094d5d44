//! The tests of the binary, in one program: linking takes longer than compiling them. Tests that need a process of
//! their own are programs beside this one and say why.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, reason = "tests and their helpers")]

mod accounts;
mod all_digits;
mod backup;
mod check_all;
mod crash;
mod dump_everything;
mod failing_disk;
mod feeds_torture;
mod follower;
mod hostile;
mod import;
mod import_answers;
mod import_torture;
mod import_users;
mod import_verify;
mod load_and_dump;
mod load_as_member;
mod log;
mod metrics;
mod monitoring;
mod otel;
mod per_user;
mod reload;
mod renew;
mod service_manager;
mod slow_followers;
mod startup;
mod support;
mod syncstorage;
mod upgrade;
mod worker;
mod worker_attachments;
mod worker_gateway;
mod worker_process;
mod worker_torture;
