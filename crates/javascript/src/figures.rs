//! Counters of function calls and processes.

use flatbed_metrics::{Counter, Gauge, LabelledMetrics};

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

flatbed_metrics::metrics! {
    /// Metrics of the functions of design documents, sync functions and functions of the worker.
    pub struct FunctionFigures {
        function_calls: Counter = "Function calls, including batches of documents.",
        function_processes: Gauge = "Processes that run functions, including spare ones.",
        function_processes_started: Counter = "Processes started to run functions.",
        function_processes_killed: LabelledMetrics<KillCause, Counter> = "Processes that did not stop in time, sent a malformed reply, or died.",
    }
}
