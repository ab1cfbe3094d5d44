//! The tables of `make bench-feeds`.

use serde_json::Value;

/// The head of the table of followers.
pub(super) const HEAD: &str = "| case | memory idle, MB | kB a feed | at work, peak MB | writes/s | write p50, p99 ms \
    | acknowledged to last row p50, p99, max ms | to each row p50, p99 ms | rows/s | server CPU s | client CPU s \
    | server µs a row | by-seq reads, rows a write | transactions a write | watches set a write |\n\
    |---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n";

/// The head of the table of one follower that starts at 0.
pub(super) const CATCH_UP_HEAD: &str = "\n| case | documents | rows/s | s | written meanwhile | memory before, peak MB | server CPU s \
    | server µs a row | client CPU s | by-seq reads |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n";

fn cell(figures: &Value, pointer: &str) -> String {
    match figures.pointer(pointer) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) => number.to_string(),
        _ => String::new(),
    }
}

pub(super) fn catch_up_row(figures: &Value) -> String {
    let cell = |pointer: &str| cell(figures, pointer);
    let cells = [
        cell("/case"),
        cell("/documents"),
        cell("/rows_per_s"),
        cell("/took_s"),
        cell("/documents_written_meanwhile"),
        format!("{}, {}", cell("/memory_idle_mb"), cell("/memory_peak_mb")),
        cell("/server_cpu_s"),
        cell("/server_us_a_row"),
        cell("/client_cpu_s"),
        cell("/by_seq_reads"),
    ];
    format!("| {} |\n", cells.join(" | "))
}

/// Returns the row of a case of followers.
pub(super) fn row(figures: &Value) -> String {
    let cell = |pointer: &str| cell(figures, pointer);
    let several = |pointers: &[&str]| {
        pointers.iter().map(|pointer| cell(pointer)).filter(|cell| !cell.is_empty()).collect::<Vec<_>>().join(", ")
    };
    let idle = if figures["rate"] == 0 { "/idle_cpu_s" } else { "/server_cpu_s" };
    let last = "/acknowledged_to_last_row_ms";
    let cells = [
        cell("/case"),
        cell("/memory_idle_mb"),
        cell("/idle_kb_a_feed"),
        cell("/memory_peak_mb"),
        cell("/writes_per_s"),
        several(&["/write_ms/p50", "/write_ms/p99"]),
        several(&[&format!("{last}/p50"), &format!("{last}/p99"), &format!("{last}/max")]),
        several(&["/acknowledged_to_row_ms/p50", "/acknowledged_to_row_ms/p99"]),
        cell("/rows_per_s"),
        cell(idle),
        cell("/client_cpu_s"),
        cell("/server_us_a_row"),
        several(&["/by_seq_reads_a_write", "/by_seq_rows_a_write"]),
        cell("/transactions_a_write"),
        cell("/watches_set_a_write"),
    ];
    format!("| {} |\n", cells.join(" | "))
}
