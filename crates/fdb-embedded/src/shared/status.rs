//! The document of `\xff\xff/status/json` in the shape of FoundationDB's: the fields that are true of one process on
//! one machine, and under `cluster.embedded` the fields of this engine alone. Fields without a measurement are left
//! out.

use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::disk::format;
use crate::shared::connection::Connection;
use crate::shared::core::Core;
use crate::shared::json::{self, Object};
use crate::shared::rates::Span;
use crate::shared::stats::Stats;

/// The FoundationDB release and protocol that the engine reports.
const RELEASE: &str = "7.3.0";
const PROTOCOL: &str = "fdb00b073000000";
/// The address reported for this process; it accepts no connections.
pub(crate) const ADDRESS: &str = "127.0.0.1:0";
/// The id of the only process and the only machine.
const PROCESS: &str = "embedded";
/// The roles of a cluster's processes, all reported for this one.
const ROLES: [&str; 9] = [
    "cluster_controller",
    "commit_proxy",
    "coordinator",
    "data_distributor",
    "grv_proxy",
    "log",
    "master",
    "resolver",
    "storage",
];

/// Returns the document. `connection` is its reader's.
pub(crate) fn document(core: &Core, connection: &Connection) -> String {
    let span = Span::of(&core.rates, || core.stats());
    let facts = Facts { core, stats: &span.now.stats, disk: Disk::of(&core.dir), connection };
    json::object(|document| {
        document.object("client", |client| facts.client(client));
        document.object("cluster", |cluster| {
            facts.cluster(cluster);
            cluster.object("processes", |all| all.object(PROCESS, |process| facts.process(process, &span)));
            cluster.object("workload", |workload| write_workload(workload, &span));
            cluster.object("embedded", |embedded| facts.embedded(embedded));
        });
    })
}

struct Facts<'f> {
    core: &'f Core,
    stats: &'f Stats,
    disk: Disk,
    connection: &'f Connection,
}

impl Facts<'_> {
    fn client(&self, client: &mut Object<'_>) {
        if let Some(path) = &self.connection.cluster_file {
            client.object("cluster_file", |file| {
                file.string("path", &path.to_string_lossy());
                file.boolean("up_to_date", true);
            });
        }
        client.object("coordinators", |coordinators| {
            coordinators.list("coordinators", &[()], |coordinator, ()| {
                coordinator.string("address", ADDRESS);
                coordinator.string("protocol", PROTOCOL);
                coordinator.boolean("reachable", true);
            });
            coordinators.boolean("quorum_reachable", true);
        });
        client.object("database_status", |status| {
            status.boolean("available", !self.stats.is_failed);
            status.boolean("healthy", !self.stats.is_failed);
        });
        client.list("messages", &[(); 0], |_, ()| {});
        client.unsigned("timestamp", unix_seconds());
    }

    fn cluster(&self, cluster: &mut Object<'_>) {
        let is_available = !self.stats.is_failed;
        cluster.unsigned("active_tss_count", 0);
        cluster.object("clients", |clients| clients.unsigned("count", 1));
        cluster.unsigned("cluster_controller_timestamp", unix_seconds());
        cluster.object("configuration", |configuration| {
            configuration.unsigned("coordinators_count", 1);
            configuration.string("encryption_at_rest_mode", "disabled");
            configuration.list("excluded_servers", &[(); 0], |_, ()| {});
            configuration.string("log_engine", "lmdb");
            configuration.unsigned("log_replicas", 1);
            configuration.string("redundancy_mode", "single");
            configuration.string("storage_engine", "lmdb");
            configuration.unsigned("storage_replicas", 1);
            configuration.string("tenant_mode", "disabled");
            configuration.unsigned("usable_regions", 1);
        });
        cluster.string("connection_string", &String::from_utf8_lossy(&self.connection.string(&self.core.dir)));
        cluster.object("data", |data| self.data(data));
        cluster.boolean("database_available", is_available);
        cluster.object("database_lock_state", |state| state.boolean("locked", false));
        cluster.unsigned("degraded_processes", 0);
        cluster.object("fault_tolerance", |tolerance| {
            tolerance.unsigned("max_zone_failures_without_losing_availability", 0);
            tolerance.unsigned("max_zone_failures_without_losing_data", 0);
        });
        cluster.boolean("full_replication", true);
        cluster.list("incompatible_connections", &[(); 0], |_, ()| {});
        cluster.object("layers", |layers| layers.boolean("_valid", true));
        cluster.object("machines", |machines| machines.object(PROCESS, write_machine));
        cluster.list("messages", &[(); 0], |_, ()| {});
        cluster.string("protocol_version", PROTOCOL);
        cluster.object("recovery_state", |state| {
            state.unsigned("active_generations", 1);
            state.string("description", "Recovery complete.");
            state.string("name", "fully_recovered");
            state.float("seconds_since_last_recovered", self.core.uptime().as_secs_f64());
        });
        cluster.object("tenants", |tenants| tenants.unsigned("num_tenants", 0));
        cluster.object("version_epoch", |epoch| epoch.boolean("enabled", false));
    }

    fn data(&self, data: &mut Object<'_>) {
        if let Some(free_bytes) = self.disk.free_bytes {
            data.unsigned("least_operating_space_bytes_log_server", free_bytes);
            data.unsigned("least_operating_space_bytes_storage_server", free_bytes);
        }
        data.unsigned("max_machine_failures_without_losing_availability", 0);
        data.unsigned("max_machine_failures_without_losing_data", 0);
        data.object("moving_data", |moving| {
            moving.unsigned("in_flight_bytes", 0);
            moving.unsigned("in_queue_bytes", 0);
            moving.unsigned("total_written_bytes", 0);
        });
        data.unsigned("partitions_count", 1);
        data.object("state", |state| {
            state.string("description", self.stats.failure.as_deref().unwrap_or_default());
            state.boolean("healthy", !self.stats.is_failed);
            state.unsigned("min_replicas_remaining", 1);
            if !self.stats.is_failed {
                state.string("name", "healthy");
            }
        });
        data.unsigned("total_disk_used_bytes", self.disk.file_bytes.unwrap_or(self.stats.data_bytes));
        data.unsigned("total_kv_size_bytes", self.stats.data_bytes);
    }

    fn process(&self, process: &mut Object<'_>, span: &Span) {
        process.string("address", ADDRESS);
        process.string("class_type", "unset");
        if let (Some(now), Some(then)) = (span.now.cpu, span.then_cpu) {
            let used = now.saturating_sub(then).as_secs_f64() / span.seconds;
            process.object("cpu", |cpu| cpu.float("usage_cores", used));
        }
        process.boolean("degraded", false);
        process.object("disk", |disk| self.disk.write(disk, "free_bytes", "total_bytes"));
        process.boolean("excluded", false);
        process.string("fault_domain", PROCESS);
        process.object("locality", |locality| {
            locality.string("machineid", PROCESS);
            locality.string("processid", PROCESS);
            locality.string("zoneid", PROCESS);
        });
        process.string("machine_id", PROCESS);
        process.object("memory", write_process_memory);
        let messages: Vec<_> = self.stats.failure.iter().collect();
        process.list("messages", &messages, |message, failure| {
            message.string("description", failure);
            message.string("name", "io_error");
        });
        process.object("network", |network| network.unsigned("current_connections", 0));
        process.list("roles", &ROLES, |role, name| {
            role.string("role", name);
            match *name {
                "storage" => self.storage(role, span),
                "log" => self.disk.write(role, "queue_disk_free_bytes", "queue_disk_total_bytes"),
                _ => {}
            }
        });
        process.boolean("under_maintenance", false);
        process.float("uptime_seconds", self.core.uptime().as_secs_f64());
        process.string("version", RELEASE);
    }

    fn storage(&self, role: &mut Object<'_>, span: &Span) {
        role.object("data_lag", write_no_lag);
        role.signed("data_version", self.stats.last_committed_version);
        role.object("durability_lag", write_no_lag);
        role.signed("durable_version", self.stats.last_committed_version);
        span.rate(role, "bytes_queried", |stats| stats.bytes_read);
        span.rate(role, "finished_queries", read_requests);
        span.rate(role, "keys_queried", keys_read);
        self.disk.write(role, "kvstore_free_bytes", "kvstore_total_bytes");
        if let Some(free_bytes) = self.disk.free_bytes {
            role.unsigned("kvstore_available_bytes", free_bytes);
        }
        role.unsigned("kvstore_used_bytes", self.stats.data_bytes);
        span.rate(role, "mutation_bytes", |stats| stats.mutation_bytes);
        span.rate(role, "mutations", |stats| stats.mutations);
        role.unsigned("stored_bytes", self.stats.data_bytes);
        span.rate(role, "total_queries", read_requests);
    }

    fn embedded(&self, embedded: &mut Object<'_>) {
        let stats = self.stats;
        embedded.string("engine", env!("CARGO_PKG_NAME"));
        embedded.string("version", env!("CARGO_PKG_VERSION"));
        embedded.unsigned("format_version", u64::from(format::FORMAT_VERSION));
        embedded.string("directory", &self.core.dir.to_string_lossy());
        embedded.float("uptime_seconds", self.core.uptime().as_secs_f64());
        embedded.unsigned("data_bytes", stats.data_bytes);
        embedded.unsigned("map_bytes", stats.map_bytes);
        embedded.unsigned("batches", stats.batches);
        embedded.unsigned("conflict_ranges", stats.conflict_ranges);
        embedded.unsigned("open_snapshots", stats.open_snapshots);
        embedded.unsigned("retained_snapshots", stats.retained_snapshots);
        embedded.float("oldest_snapshot_seconds", self.core.versions.oldest_age().as_secs_f64());
        embedded.unsigned("open_watches", stats.open_watches);
        embedded.unsigned("pending_clears", stats.pending_clears);
        embedded
            .object("faults", |faults| stats.faults.iter().for_each(|fault| faults.unsigned(fault.kind, fault.count)));
        match &stats.failure {
            Some(failure) => embedded.string("failure", failure),
            None => embedded.null("failure"),
        }
    }
}

fn write_workload(workload: &mut Object<'_>, span: &Span) {
    workload.object("bytes", |bytes| {
        span.rate(bytes, "read", |stats| stats.bytes_read);
        span.rate(bytes, "written", |stats| stats.mutation_bytes);
    });
    workload.object("keys", |keys| span.rate(keys, "read", keys_read));
    workload.object("operations", |operations| {
        span.rate(operations, "read_requests", read_requests);
        span.rate(operations, "reads", read_requests);
        span.rate(operations, "writes", |stats| stats.mutations);
    });
    workload.object("transactions", |transactions| {
        span.rate(transactions, "committed", |stats| stats.commits);
        span.rate(transactions, "conflicted", |stats| stats.conflicts);
        span.rate(transactions, "started", |stats| stats.read_versions);
    });
}

fn read_requests(stats: &Stats) -> u64 {
    stats.reads + stats.range_reads + stats.key_reads
}

fn keys_read(stats: &Stats) -> u64 {
    stats.reads + stats.key_reads + stats.keys_read
}

fn write_no_lag(lag: &mut Object<'_>) {
    lag.float("seconds", 0.0);
    lag.unsigned("versions", 0);
}

fn write_process_memory(memory: &mut Object<'_>) {
    // Virtual and resident size, in pages; only Linux has this file.
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let mut pages = text.split(' ').map_while(|number| number.parse::<u64>().ok());
    if let (Some(used), Some(resident), Some(page_bytes)) = (pages.next(), pages.next(), page_bytes()) {
        memory.unsigned("rss_bytes", resident * page_bytes);
        memory.unsigned("used_bytes", used * page_bytes);
    }
}

fn write_machine(machine: &mut Object<'_>) {
    machine.string("address", ADDRESS);
    machine.unsigned("contributing_workers", 1);
    machine.boolean("excluded", false);
    machine.string("machine_id", PROCESS);
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let bytes = |name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.split_ascii_whitespace().next()?.parse::<u64>().ok()? * 1_024)
    };
    if let (Some(total), Some(free)) = (bytes("MemTotal:"), bytes("MemAvailable:")) {
        machine.object("memory", |memory| {
            memory.unsigned("committed_bytes", total.saturating_sub(free));
            memory.unsigned("free_bytes", free);
            memory.unsigned("total_bytes", total);
        });
    }
}

/// The disk of the directory, as far as the system reports it.
struct Disk {
    free_bytes: Option<u64>,
    total_bytes: Option<u64>,
    /// The bytes that the data file uses of it.
    file_bytes: Option<u64>,
}

impl Disk {
    fn of(dir: &Path) -> Disk {
        let statistics = std::ffi::CString::new(dir.as_os_str().as_bytes()).ok().and_then(|path| {
            let mut statistics = MaybeUninit::<libc::statvfs>::uninit();
            // SAFETY: the path ends with a zero byte, and the call fills the struct if it returns 0.
            unsafe { (libc::statvfs(path.as_ptr(), statistics.as_mut_ptr()) == 0).then(|| statistics.assume_init()) }
        });
        // The types of these fields differ between systems.
        #[allow(clippy::unnecessary_cast, reason = "u64 on Linux, u32 elsewhere")]
        let bytes = |blocks: libc::fsblkcnt_t, statistics: &libc::statvfs| blocks as u64 * statistics.f_frsize as u64;
        Disk {
            free_bytes: statistics.as_ref().map(|statistics| bytes(statistics.f_bavail, statistics)),
            total_bytes: statistics.as_ref().map(|statistics| bytes(statistics.f_blocks, statistics)),
            file_bytes: std::fs::metadata(dir.join(format::DATA_FILE)).ok().map(|file| file.blocks() * 512),
        }
    }

    fn write(&self, object: &mut Object<'_>, free: &str, total: &str) {
        if let (Some(free_bytes), Some(total_bytes)) = (self.free_bytes, self.total_bytes) {
            object.unsigned(free, free_bytes);
            object.unsigned(total, total_bytes);
        }
    }
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn page_bytes() -> Option<u64> {
    // SAFETY: the call takes and returns a number.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()
}
