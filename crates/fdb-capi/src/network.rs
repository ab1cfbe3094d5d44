//! The API version and the network thread of the C API.
//!
//! The embedded engine has threads of its own; the network thread of the program runs callbacks ([`crate::delivery`]).
//! The C API defines the order of setup, run and stop. That order and its state are process-wide, as in FoundationDB's
//! library.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Mutex, MutexGuard};

use fdb_embedded::{ClientBuggify, EnvironmentError, Error, OpenOptions, Result};

use crate::delivery;
use crate::error::{
    ALL_EXTERNAL_CLIENTS_FAILED, API_VERSION_ALREADY_SET, API_VERSION_INVALID, API_VERSION_NOT_SUPPORTED,
    API_VERSION_UNSET, ENVIRONMENT_INVALID, NETWORK_ALREADY_SETUP, NETWORK_CANNOT_BE_RESTARTED, NETWORK_NOT_SETUP,
    NO_EXTERNAL_CLIENT_PROVIDED, code,
};
use crate::network_options::{self as options, NETWORK_OPTIONS, NetworkOption};
use crate::types::{FDBNetworkHook, fdb_error_t, option_value};

/// The newest supported API version.
pub const API_VERSION_MAX: c_int = 730;
/// The oldest supported API version.
pub const API_VERSION_MIN: c_int = 710;
/// The protocol version of FoundationDB 7.3.
pub(crate) const PROTOCOL_VERSION: u64 = 0x0FDB_00B0_7300_0000;

/// The FoundationDB release that this library reports.
pub(crate) const RELEASE: &str = "7.3.0";

struct Hook {
    function: unsafe extern "C" fn(*mut c_void),
    parameter: *mut c_void,
}

// SAFETY: the parameter is only passed to the function, on the thread that runs the network, as the contract of
// completion hooks says.
unsafe impl Send for Hook {}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    NotSetUp,
    SetUp,
    Running,
    Stopped,
}

/// Options about other client libraries; this library loads none.
struct OtherClients {
    is_any_named: bool,
    is_local_disabled: bool,
}

struct Network {
    api_version: Option<c_int>,
    phase: Phase,
    is_environment_read: bool,
    hooks: Vec<Hook>,
    other_clients: OtherClients,
}

static NETWORK: Mutex<Network> = Mutex::new(Network {
    api_version: None,
    phase: Phase::NotSetUp,
    is_environment_read: false,
    hooks: Vec::new(),
    other_clients: OtherClients { is_any_named: false, is_local_disabled: false },
});
/// Options that may change at any time, also for open databases.
static CLIENT_BUGGIFY: ClientBuggify = ClientBuggify::new();

fn network() -> MutexGuard<'static, Network> {
    NETWORK.lock().unwrap_or_else(|broken| broken.into_inner())
}

/// Checks the order of calls: 2200 before an API version is selected, 2008 before `fdb_setup_network`.
pub(crate) fn check_set_up() -> Result<()> {
    let network = network();
    match network.phase {
        _ if network.api_version.is_none() => Err(API_VERSION_UNSET),
        Phase::NotSetUp => Err(NETWORK_NOT_SETUP),
        _ => Ok(()),
    }
}

/// The options of a new database: the environment's, and faults while the network option `client_buggify_enable` is
/// set.
pub(crate) fn open_options() -> std::result::Result<OpenOptions, EnvironmentError> {
    let mut options = OpenOptions::from_env()?;
    options.client_buggify = Some(&CLIENT_BUGGIFY);
    Ok(options)
}

/// Selects the API version, once. 2201 the second time, 2202 for a version above the program's header, 2203 for one
/// outside of [`API_VERSION_MIN`] to [`API_VERSION_MAX`].
pub extern "C" fn fdb_select_api_version_impl(runtime_version: c_int, header_version: c_int) -> fdb_error_t {
    let mut network = network();
    if network.api_version.is_some() {
        return API_VERSION_ALREADY_SET.0;
    }
    if runtime_version > header_version {
        return API_VERSION_INVALID.0;
    }
    if header_version > API_VERSION_MAX || runtime_version < API_VERSION_MIN {
        return API_VERSION_NOT_SUPPORTED.0;
    }
    network.api_version = Some(runtime_version);
    0
}

/// Returns the newest supported API version.
pub extern "C" fn fdb_get_max_api_version() -> c_int {
    API_VERSION_MAX
}

/// The result of [`fdb_get_client_version`]; FoundationDB's library has another.
pub const CLIENT_VERSION: &CStr = c"7.3.0,flatbed-embedded,fdb00b073000000";

/// Returns the version of this library: release, source and protocol, separated by commas.
pub extern "C" fn fdb_get_client_version() -> *const c_char {
    CLIENT_VERSION.as_ptr()
}

fn set_network_option(code: c_int, value: Option<&[u8]>) -> Result<()> {
    let option = options::find(code)?;
    let mut network = network();
    if network.api_version.is_none() {
        return Err(API_VERSION_UNSET);
    }
    network.read_environment()?;
    network.set(option, value)
}

impl Network {
    /// Sets the options of the environment, once: `FDB_NETWORK_OPTION_` and an option's name. 2022 for an invalid
    /// value.
    fn read_environment(&mut self) -> Result<()> {
        if self.is_environment_read {
            return Ok(());
        }
        for option in NETWORK_OPTIONS.iter().filter(|option| !option.name.is_empty()) {
            let Some(text) = std::env::var_os(format!("FDB_NETWORK_OPTION_{}", option.name)) else { continue };
            let values = text.to_str().and_then(options::values_of).ok_or(ENVIRONMENT_INVALID)?;
            for value in values {
                let value = option.parse_text(&value).ok_or(ENVIRONMENT_INVALID)?;
                self.set(option, Some(&value)).map_err(|_| ENVIRONMENT_INVALID)?;
            }
        }
        self.is_environment_read = true;
        Ok(())
    }

    fn set(&mut self, option: &NetworkOption, value: Option<&[u8]>) -> Result<()> {
        let number = option.check(value)?;
        let percent = || u8::try_from(number).unwrap_or(100);
        // Options about client libraries are final when the network is set up.
        let is_too_late = self.phase != Phase::NotSetUp;
        match option.code {
            options::DISABLE_MULTI_VERSION_CLIENT_API | options::CALLBACKS_ON_EXTERNAL_THREADS if is_too_late => {
                return Err(Error::INVALID_OPTION);
            }
            options::EXTERNAL_CLIENT_LIBRARY
            | options::EXTERNAL_CLIENT_DIRECTORY
            | options::FUTURE_VERSION_CLIENT_LIBRARY
            | options::DISABLE_LOCAL_CLIENT
            | options::CLIENT_THREADS_PER_VERSION => {
                if is_too_late {
                    return Err(Error::INVALID_OPTION);
                }
                match option.code {
                    options::DISABLE_LOCAL_CLIENT => self.other_clients.is_local_disabled = true,
                    options::CLIENT_THREADS_PER_VERSION => self.other_clients.is_local_disabled |= number > 1,
                    _ => self.other_clients.is_any_named = true,
                }
            }
            options::CLIENT_BUGGIFY_ENABLE => CLIENT_BUGGIFY.enable(true),
            options::CLIENT_BUGGIFY_DISABLE => CLIENT_BUGGIFY.enable(false),
            options::CLIENT_BUGGIFY_ACTIVATED => CLIENT_BUGGIFY.set_activated_percent(percent()),
            options::CLIENT_BUGGIFY_FIRED => CLIENT_BUGGIFY.set_fired_percent(percent()),
            // The other options are about traces and TLS, which this library does not have.
            _ => {}
        }
        Ok(())
    }
}

/// Sets a network option by its FDBNetworkOption number. 2007 for a number that 7.3 does not have and for one that
/// must be set before the network is set up, 2006 for a value of the wrong shape, 1511 for a missing library, 2200
/// before an API version is selected, 2022 if the environment sets an option to an invalid value.
///
/// # Safety
/// `value` is null or points to `value_length` readable bytes.
pub unsafe extern "C" fn fdb_network_set_option(option: c_int, value: *const u8, value_length: c_int) -> fdb_error_t {
    // SAFETY: the caller's promise.
    code(set_network_option(option, unsafe { option_value(value, value_length) }))
}

/// Sets the network up. 2009 the second time, 2200 before an API version is selected, 2022 if the environment sets an
/// option to an invalid value, 2123 and 2124 if the program disabled this client: no other client is loaded.
pub extern "C" fn fdb_setup_network() -> fdb_error_t {
    let mut network = network();
    if network.api_version.is_none() {
        return API_VERSION_UNSET.0;
    }
    if network.phase != Phase::NotSetUp {
        return NETWORK_ALREADY_SETUP.0;
    }
    if let Err(error) = network.read_environment() {
        return error.0;
    }
    match network.other_clients {
        OtherClients { is_local_disabled: true, is_any_named: false } => return NO_EXTERNAL_CLIENT_PROVIDED.0,
        OtherClients { is_local_disabled: true, is_any_named: true } => return ALL_EXTERNAL_CLIENTS_FAILED.0,
        _ => {}
    }
    network.phase = Phase::SetUp;
    delivery::set_up();
    0
}

/// Runs the network: runs the callbacks of futures that become ready. Returns after `fdb_stop_network`, once the due
/// callbacks and the completion hooks have returned. 2008 before `fdb_setup_network`, 2025 if it runs or has run.
pub extern "C" fn fdb_run_network() -> fdb_error_t {
    let mut network = network();
    match network.phase {
        Phase::NotSetUp => return NETWORK_NOT_SETUP.0,
        Phase::Running | Phase::Stopped => return NETWORK_CANNOT_BE_RESTARTED.0,
        Phase::SetUp => network.phase = Phase::Running,
    }
    drop(network);
    delivery::run();
    let mut network = self::network();
    network.phase = Phase::Stopped;
    let hooks = std::mem::take(&mut network.hooks);
    drop(network);
    for hook in hooks {
        // SAFETY: by the contract of `fdb_add_network_thread_completion_hook` the hook may run once, on this thread,
        // with its parameter.
        unsafe { (hook.function)(hook.parameter) };
    }
    0
}

/// Ends `fdb_run_network`, also a future call of it. 2008 before `fdb_setup_network`.
pub extern "C" fn fdb_stop_network() -> fdb_error_t {
    if network().phase == Phase::NotSetUp {
        return NETWORK_NOT_SETUP.0;
    }
    delivery::stop();
    0
}

/// Registers a hook that runs when `fdb_run_network` ends, on its thread; at once if it has ended. 2000 for a null
/// hook, 2008 before `fdb_setup_network`.
///
/// # Safety
/// The hook may be called once, from the thread that runs the network, with its parameter.
pub unsafe extern "C" fn fdb_add_network_thread_completion_hook(
    hook: FDBNetworkHook,
    hook_parameter: *mut c_void,
) -> fdb_error_t {
    let Some(function) = hook else { return Error::CLIENT_INVALID_OPERATION.0 };
    let mut network = network();
    match network.phase {
        Phase::NotSetUp => return NETWORK_NOT_SETUP.0,
        Phase::SetUp | Phase::Running => network.hooks.push(Hook { function, parameter: hook_parameter }),
        Phase::Stopped => {
            drop(network);
            // SAFETY: the caller's promise.
            unsafe { function(hook_parameter) };
        }
    }
    0
}
