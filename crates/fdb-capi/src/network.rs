//! The API version and the network thread of the C API.
//!
//! The embedded engine has threads of its own; the network thread that a program runs calls back ([`crate::delivery`]).
//! The C API says in which order it is set up, run and stopped. That order, and the state that it needs, is global to
//! the process as it is in FoundationDB's library.

use std::ffi::{c_char, c_int, c_void};
use std::sync::{Mutex, MutexGuard};

use fdb_embedded::{ClientBuggify, EnvironmentError, Error, OpenOptions, Result};

use crate::delivery;
use crate::error::{
    API_VERSION_ALREADY_SET, API_VERSION_INVALID, API_VERSION_NOT_SUPPORTED, API_VERSION_UNSET, NETWORK_ALREADY_SETUP,
    NETWORK_CANNOT_BE_RESTARTED, NETWORK_NOT_SETUP, code,
};
use crate::types::{FDBNetworkHook, fdb_error_t, option_value};

/// The newest API version that this library speaks.
pub const API_VERSION_MAX: c_int = 730;
/// The oldest API version that this library speaks.
pub const API_VERSION_MIN: c_int = 710;
/// The protocol version of FoundationDB 7.3.
pub(crate) const PROTOCOL_VERSION: u64 = 0x0FDB_00B0_7300_0000;

struct Hook {
    function: unsafe extern "C" fn(*mut c_void),
    parameter: *mut c_void,
}

// SAFETY: the parameter is only handed to the function, on the thread that runs the network: what a completion hook is
// for.
unsafe impl Send for Hook {}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    NotSetUp,
    SetUp,
    Running,
    Stopped,
}

struct Network {
    api_version: Option<c_int>,
    phase: Phase,
    hooks: Vec<Hook>,
}

static NETWORK: Mutex<Network> = Mutex::new(Network { api_version: None, phase: Phase::NotSetUp, hooks: Vec::new() });
/// The options may change at any time, and hold for the databases that are open.
static CLIENT_BUGGIFY: ClientBuggify = ClientBuggify::new();

fn network() -> MutexGuard<'static, Network> {
    NETWORK.lock().unwrap_or_else(|broken| broken.into_inner())
}

/// 2200 before an API version is selected, 2008 before `fdb_setup_network`.
pub(crate) fn check_set_up() -> Result<()> {
    let network = network();
    match network.phase {
        _ if network.api_version.is_none() => Err(API_VERSION_UNSET),
        Phase::NotSetUp => Err(NETWORK_NOT_SETUP),
        _ => Ok(()),
    }
}

/// How databases are opened: as the environment says, and with faults while the network option `client_buggify_enable`
/// says so.
pub(crate) fn open_options() -> std::result::Result<OpenOptions, EnvironmentError> {
    let mut options = OpenOptions::from_env()?;
    options.client_buggify = Some(&CLIENT_BUGGIFY);
    Ok(options)
}

/// Selects the API version, once. 2201 the second time, 2202 for a version newer than the program's header, 2203 for
/// one outside [`API_VERSION_MIN`] to [`API_VERSION_MAX`].
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

/// The newest API version that this library speaks.
pub extern "C" fn fdb_get_max_api_version() -> c_int {
    API_VERSION_MAX
}

/// The version of this library: release, source and protocol, separated by commas.
pub extern "C" fn fdb_get_client_version() -> *const c_char {
    c"7.3.0,flatbed-embedded,fdb00b073000000".as_ptr()
}

enum Shape {
    None,
    Int,
    Percent,
    Bytes,
}

/// The shape of a network option's value: `None` where 7.3 has no such option.
fn shape_of(option: c_int) -> Option<Shape> {
    Some(match option {
        // FoundationDB does not look at a value of 80 and 81.
        10 | 20 | 30 | 33..=36 | 39..=43 | 45..=47 | 52..=54 | 62 | 63 | 66 | 80 | 81 | 90 | 91 | 1000 => Shape::Bytes,
        31 | 32 | 65 | 1002 => Shape::Int,
        50 | 51 | 82 | 83 => Shape::Percent,
        37 | 38 | 48 | 49 | 60 | 61 | 64 | 67..=72 | 1001 => Shape::None,
        _ => return None,
    })
}

fn set_network_option(option: c_int, value: Option<&[u8]>) -> Result<()> {
    let shape = shape_of(option).ok_or(Error::INVALID_OPTION)?;
    let value = value.unwrap_or_default();
    let number = <[u8; 8]>::try_from(value).map(i64::from_le_bytes);
    let mut percent = 0;
    match shape {
        Shape::None if !value.is_empty() => return Err(Error::INVALID_OPTION_VALUE),
        Shape::None | Shape::Bytes => {}
        Shape::Int => {
            number.map_err(|_| Error::INVALID_OPTION_VALUE)?;
        }
        Shape::Percent => {
            let number = number.ok().and_then(|number| u8::try_from(number).ok()).filter(|&number| number <= 100);
            percent = number.ok_or(Error::INVALID_OPTION_VALUE)?;
        }
    }
    if network().api_version.is_none() {
        return Err(API_VERSION_UNSET);
    }
    // What is not listed speaks of traces, TLS and other client libraries, of which there are none here.
    match option {
        80 => CLIENT_BUGGIFY.enable(true),
        81 => CLIENT_BUGGIFY.enable(false),
        82 => CLIENT_BUGGIFY.set_activated_percent(percent),
        83 => CLIENT_BUGGIFY.set_fired_percent(percent),
        _ => {}
    }
    Ok(())
}

/// Sets a network option by its FDBNetworkOption number. 2007 for a number that 7.3 does not have, 2006 for a value of
/// the wrong shape, 2200 before an API version is selected.
///
/// # Safety
/// `value` is null or points to `value_length` readable bytes.
pub unsafe extern "C" fn fdb_network_set_option(option: c_int, value: *const u8, value_length: c_int) -> fdb_error_t {
    // SAFETY: the caller's promise.
    code(set_network_option(option, unsafe { option_value(value, value_length) }))
}

/// Sets the network up. 2009 the second time, 2025 after it was stopped, 2200 before an API version is selected.
pub extern "C" fn fdb_setup_network() -> fdb_error_t {
    let mut network = network();
    if network.api_version.is_none() {
        return API_VERSION_UNSET.0;
    }
    match network.phase {
        Phase::NotSetUp => network.phase = Phase::SetUp,
        Phase::SetUp | Phase::Running => return NETWORK_ALREADY_SETUP.0,
        Phase::Stopped => return NETWORK_CANNOT_BE_RESTARTED.0,
    }
    0
}

/// Runs the network: returns after `fdb_stop_network`, when the completion hooks are back. 2008 before
/// `fdb_setup_network`, 2009 where it runs already, 2025 after its end.
pub extern "C" fn fdb_run_network() -> fdb_error_t {
    let mut network = network();
    match network.phase {
        Phase::NotSetUp => return NETWORK_NOT_SETUP.0,
        Phase::Running => return NETWORK_ALREADY_SETUP.0,
        Phase::Stopped => return NETWORK_CANNOT_BE_RESTARTED.0,
        Phase::SetUp => network.phase = Phase::Running,
    }
    drop(network);
    delivery::run();
    let mut network = self::network();
    network.phase = Phase::Stopped;
    let hooks = std::mem::take(&mut network.hooks);
    drop(network);
    for hook in hooks {
        // SAFETY: whoever added the hook promised that it may be called once, on this thread, with its parameter.
        unsafe { (hook.function)(hook.parameter) };
    }
    0
}

/// Ends `fdb_run_network`, also one that is yet to come. 2008 before `fdb_setup_network`.
pub extern "C" fn fdb_stop_network() -> fdb_error_t {
    if network().phase == Phase::NotSetUp {
        return NETWORK_NOT_SETUP.0;
    }
    delivery::stop();
    0
}

/// Has `hook` called when `fdb_run_network` ends, on its thread; at once where it has ended. 2000 for a null hook, 2008
/// before `fdb_setup_network`.
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
