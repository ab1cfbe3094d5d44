//! Paths beneath `/_worker/_api`.

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WorkerApi {
    Jobs,
    /// `jobs/{id}`; `jobs/test`, with POST, tries a mapping.
    Job(String),
    Start(String),
    Stop(String),
    Reset(String),
    /// `leases`; with POST, all leases of a process.
    Leases,
    Lease(String),
    TakeLease(String),
    HoldLease(String),
    ReleaseLease(String),
    /// `dlq`, and beneath it.
    Queue(QueuePath),
    Unknown,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum QueuePath {
    List,
    Count,
    Stats,
    Explain,
    Export,
    Import,
    Retry,
    One(String),
    RetryOne(String),
}

impl WorkerApi {
    pub(super) fn of(segments: &[&str]) -> WorkerApi {
        let text = |id: &str| id.to_owned();
        match *segments {
            ["jobs"] => WorkerApi::Jobs,
            ["jobs", id] => WorkerApi::Job(text(id)),
            ["jobs", id, "start"] => WorkerApi::Start(text(id)),
            ["jobs", id, "stop"] => WorkerApi::Stop(text(id)),
            ["jobs", id, "reset"] => WorkerApi::Reset(text(id)),
            ["leases"] => WorkerApi::Leases,
            ["leases", id] => WorkerApi::Lease(text(id)),
            ["leases", id, "take"] => WorkerApi::TakeLease(text(id)),
            ["leases", id, "hold"] => WorkerApi::HoldLease(text(id)),
            ["leases", id, "release"] => WorkerApi::ReleaseLease(text(id)),
            ["dlq"] => WorkerApi::Queue(QueuePath::List),
            ["dlq", "count"] => WorkerApi::Queue(QueuePath::Count),
            ["dlq", "stats"] => WorkerApi::Queue(QueuePath::Stats),
            ["dlq", "explain"] => WorkerApi::Queue(QueuePath::Explain),
            ["dlq", "export"] => WorkerApi::Queue(QueuePath::Export),
            ["dlq", "import"] => WorkerApi::Queue(QueuePath::Import),
            ["dlq", "retry"] => WorkerApi::Queue(QueuePath::Retry),
            ["dlq", id] => WorkerApi::Queue(QueuePath::One(text(id))),
            ["dlq", id, "retry"] => WorkerApi::Queue(QueuePath::RetryOne(text(id))),
            _ => WorkerApi::Unknown,
        }
    }

    pub(crate) fn methods(&self) -> &'static str {
        match self {
            WorkerApi::Job(id) if id == "test" => "GET,HEAD,POST",
            WorkerApi::Jobs | WorkerApi::Job(_) => "GET,HEAD",
            WorkerApi::Leases => "GET,HEAD,POST",
            WorkerApi::Start(_) | WorkerApi::Stop(_) | WorkerApi::Reset(_) => "POST",
            WorkerApi::TakeLease(_) | WorkerApi::HoldLease(_) | WorkerApi::ReleaseLease(_) => "POST",
            WorkerApi::Lease(_) => "DELETE",
            WorkerApi::Queue(queued) => match queued {
                QueuePath::List => "GET,HEAD,DELETE",
                QueuePath::Count | QueuePath::Stats | QueuePath::Explain | QueuePath::Export => "GET,HEAD",
                QueuePath::Import | QueuePath::Retry | QueuePath::RetryOne(_) => "POST",
                QueuePath::One(_) => "GET,HEAD,PUT,DELETE",
            },
            WorkerApi::Unknown => "GET,HEAD,POST,PUT,DELETE",
        }
    }
}
