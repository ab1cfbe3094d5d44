//! Counters of function calls and processes.

use flatbed_metrics::{Counter, Gauge, Histogram, LabelledMetrics};

flatbed_metrics::labels! {
    /// Why a process was killed or died.
    pub enum KillCause: "cause" {
        /// The call did not stop in time.
        Deadline = "deadline",
        /// The caller was gone, and the call did not stop.
        Stopped = "stopped",
        /// The reply was malformed.
        Malformed = "malformed",
        /// The process died in a call: out of memory, or a fault.
        Died = "died",
    }
}

flatbed_metrics::labels! {
    /// The class of a database by the processor time of its last calls.
    pub enum CallClass: "class" {
        /// The last call was short.
        Short = "short",
        /// The last call was not short, or it is not known.
        Unproven = "unproven",
        /// A call was long, and the term of its database is not over.
        Slow = "slow",
    }
}

flatbed_metrics::metrics! {
    /// Metrics of the functions of design documents, sync functions and functions of the worker.
    pub struct FunctionFigures {
        function_calls: Counter = "Function calls, including batches of documents.",
        function_wait_seconds: LabelledMetrics<CallClass, Histogram> = "Time that calls waited for a thread, by the class of their database.",
        function_calls_crowded_out: Counter = "Calls that were stopped because others needed their threads.",
        function_processes: Gauge = "Processes that run functions, including spare ones.",
        function_processes_started: Counter = "Processes started to run functions.",
        function_processes_killed: LabelledMetrics<KillCause, Counter> = "Processes that did not stop in time, sent a malformed reply, or died.",
    }
}
