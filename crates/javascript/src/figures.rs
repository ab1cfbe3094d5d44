//! Counters of function calls and processes.

use flatbed_metrics::{Counter, Gauge, Labelled};

flatbed_metrics::labels! {
    /// Why a process was killed, or is gone.
    pub enum KillCause: "cause" {
        /// It did not stop in time.
        Deadline = "deadline",
        /// Its caller was gone, and it did not stop.
        Stopped = "stopped",
        /// Its reply was none.
        Malformed = "malformed",
        /// It ended in a call: of memory, or of a fault.
        Died = "died",
    }
}

flatbed_metrics::metrics! {
    /// Metrics of the functions of design documents, sync functions and functions of the worker.
    pub struct FunctionFigures {
        function_calls: Counter = "Calls of functions that ran, batches of documents among them.",
        function_processes: Gauge = "Processes that run functions, spare ones among them.",
        function_processes_started: Counter = "Processes started to run functions.",
        function_processes_killed: Labelled<KillCause, Counter> = "Processes of functions that did not stop in time, replied what is no reply, or died.",
    }
}
