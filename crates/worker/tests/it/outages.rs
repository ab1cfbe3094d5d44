//! The log lines of a job whose source or target fails again and again.

use std::sync::{Arc, Mutex};

use flatbed_worker::output::lines::Lines;
use flatbed_worker::run::{RunEnd, Runner};
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::field::{Field, Visit};
use tracing::span;

use crate::fake::{FakeQueue, FakeSource, Mishap, Unlucky, job, redactor};

/// Collects the warnings of this thread, each as its fields.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

struct Fields<'t>(&'t mut String);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!("{field}={value:?} "));
    }
}

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = String::new();
        event.record(&mut Fields(&mut text));
        self.0.lock().unwrap().push(text);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// Runs a job whose source fails five times, and its target as often as given. Returns its outages, and its warnings.
async fn warnings(target_fails: usize, pause_seconds: f64) -> (u64, Vec<String>) {
    let retry = json!({"retry": {"backoff_base_seconds": pause_seconds, "backoff_max_seconds": pause_seconds}});
    let job = job("cloud", json!({"id": "out", "provider": "stdout"}), Value::Null, retry);
    let (source, queue) = (FakeSource::default(), FakeQueue::default());
    source.write("d", json!({}));
    source.0.lock().unwrap().failing = 5;
    let mishaps = (0..target_fails).map(|_| Some(Mishap::Outage)).collect();
    let target = Unlucky { target: Lines::new(Vec::new(), Vec::new()), mishaps };
    let (_stop, stopping) = watch::channel(false);
    let log = Warnings::default();
    let _logging = tracing::subscriber::set_default(log.clone());
    let (end, counts, ..) = Runner::new(&job, source, target, queue, redactor(), stopping, 1).once().run().await;
    assert_eq!(end, RunEnd::Done);
    let lines = log.0.lock().unwrap().clone();
    (counts.outages, lines.into_iter().filter(|line| line.contains("a job waits")).collect())
}

#[tokio::test(start_paused = true)]
async fn each_cause_of_a_job_has_a_line_a_minute_with_the_number_of_the_others() {
    let (outages, lines) = warnings(20, 0.001).await;
    assert!(outages >= 20 && (1..=2).contains(&lines.len()), "{outages}: {lines:?}");
    assert!(lines.iter().all(|line| line.contains("job=\"j\"") && line.contains("left_out=0")), "{lines:?}");

    // Pauses of 17 to 35 s: not each try has a line, and each but the last ones of both causes is counted.
    let (outages, lines) = warnings(20, 35.0).await;
    assert!(outages >= 20 && (4..20).contains(&lines.len()), "{outages}: {lines:?}");
    let left_out = |line: &String| line.split("left_out=").nth(1)?.split(' ').next()?.parse::<u64>().ok();
    let counted: u64 = lines.iter().filter_map(left_out).sum();
    assert!(counted > 0 && outages - (counted + lines.len() as u64) <= 6, "{outages}: {lines:?}");
}
