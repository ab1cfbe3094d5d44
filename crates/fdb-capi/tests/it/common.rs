//! A thin C-level client for the tests: handles destroyed once, and futures awaited by callbacks.

use std::ffi::{c_int, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::mpsc::{Receiver, Sender, channel};

use fdb_capi::*;

pub struct Database(pub *mut FDBDatabase);
pub struct Tr(pub *mut FDBTransaction);
pub struct Future(pub *mut FDBFuture);

// SAFETY: the C API lets every object be used from every thread.
unsafe impl Send for Database {}
// SAFETY: as above.
unsafe impl Sync for Database {}
// SAFETY: as above.
unsafe impl Send for Tr {}
// SAFETY: as above.
unsafe impl Send for Future {}
// SAFETY: as above.
unsafe impl Sync for Future {}

impl Drop for Database {
    fn drop(&mut self) {
        // SAFETY: created by `open` and destroyed once.
        unsafe { fdb_database_destroy(self.0) }
    }
}

impl Drop for Tr {
    fn drop(&mut self) {
        // SAFETY: created by `transaction` and destroyed once.
        unsafe { fdb_transaction_destroy(self.0) }
    }
}

impl Drop for Future {
    fn drop(&mut self) {
        // SAFETY: created by a call and destroyed once.
        unsafe { fdb_future_destroy(self.0) }
    }
}

/// Pairs of a range read, and whether more may follow.
pub type Pairs = (Vec<(Vec<u8>, Vec<u8>)>, bool);

pub fn open(dir: &Path) -> Database {
    Database(open_embedded(dir, fdb_embedded::OpenOptions::default()).unwrap())
}

pub fn len(bytes: &[u8]) -> c_int {
    bytes.len() as c_int
}

impl Database {
    pub fn transaction(&self) -> Tr {
        let mut tr = null_mut();
        // SAFETY: the database is open.
        assert_eq!(unsafe { fdb_database_create_transaction(self.0, &mut tr) }, 0);
        Tr(tr)
    }

    pub fn write(&self, key: &[u8], value: &[u8]) {
        let tr = self.transaction();
        tr.set(key, value);
        assert_eq!(tr.commit().wait(), 0);
    }
}

// SAFETY of the calls below: the handles are alive as long as `self`, and slices have their lengths.
impl Tr {
    pub fn set(&self, key: &[u8], value: &[u8]) {
        // SAFETY: see above.
        unsafe { fdb_transaction_set(self.0, key.as_ptr(), len(key), value.as_ptr(), len(value)) }
    }

    pub fn get(&self, key: &[u8]) -> Future {
        // SAFETY: see above.
        Future(unsafe { fdb_transaction_get(self.0, key.as_ptr(), len(key), 0) })
    }

    pub fn watch(&self, key: &[u8]) -> Future {
        // SAFETY: see above.
        Future(unsafe { fdb_transaction_watch(self.0, key.as_ptr(), len(key)) })
    }

    pub fn commit(&self) -> Future {
        // SAFETY: see above.
        Future(unsafe { fdb_transaction_commit(self.0) })
    }

    pub fn range(&self, begin: &[u8], end: &[u8], limit: c_int) -> Future {
        // SAFETY: see above.
        Future(unsafe {
            fdb_transaction_get_range(
                self.0,
                begin.as_ptr(),
                len(begin),
                0,
                1,
                end.as_ptr(),
                len(end),
                0,
                1,
                limit,
                0,
                -2,
                0,
                0,
                0,
            )
        })
    }
}

unsafe extern "C" fn send(future: *mut FDBFuture, parameter: *mut c_void) {
    // SAFETY: the parameter is the sender that `callback` boxed for one callback.
    let sender = unsafe { Box::from_raw(parameter.cast::<Sender<(usize, fdb_error_t)>>()) };
    // SAFETY: the future is alive during its callback.
    let error = unsafe { fdb_future_get_error(future) };
    let _ = sender.send((future.addr(), error));
}

impl Future {
    pub fn is_ready(&self) -> bool {
        // SAFETY: the future is alive.
        unsafe { fdb_future_is_ready(self.0) != 0 }
    }

    pub fn error(&self) -> fdb_error_t {
        // SAFETY: the future is alive.
        unsafe { fdb_future_get_error(self.0) }
    }

    pub fn cancel(&self) {
        // SAFETY: the future is alive.
        unsafe { fdb_future_cancel(self.0) }
    }

    pub fn block(&self) -> fdb_error_t {
        // SAFETY: the future is alive.
        unsafe { fdb_future_block_until_ready(self.0) }
    }

    /// Receives the future's address and error, once for every callback.
    pub fn callback(&self) -> Receiver<(usize, fdb_error_t)> {
        let (sender, receiver) = channel();
        let parameter = Box::into_raw(Box::new(sender)).cast();
        // SAFETY: the future is alive, and `send` takes the parameter.
        assert_eq!(unsafe { fdb_future_set_callback(self.0, Some(send), parameter) }, 0);
        receiver
    }

    /// Waits, and returns the error.
    pub fn wait(&self) -> fdb_error_t {
        assert_eq!(self.block(), 0);
        self.error()
    }

    pub fn value(&self) -> Result<Option<Vec<u8>>, fdb_error_t> {
        let (mut present, mut value, mut length) = (-1, std::ptr::null(), -1);
        // SAFETY: the future is alive, and so is the memory from its getters.
        unsafe {
            match fdb_future_get_value(self.0, &mut present, &mut value, &mut length) {
                0 => {
                    assert!(!value.is_null());
                    let value = std::slice::from_raw_parts(value, length as usize);
                    Ok((present != 0).then(|| value.to_vec()))
                }
                error => Err(error),
            }
        }
    }

    pub fn pairs(&self) -> Result<Pairs, fdb_error_t> {
        let (mut pairs, mut count, mut more) = (std::ptr::null(), -1, -1);
        // SAFETY: the future is alive, and so is the memory from its getters.
        unsafe {
            match fdb_future_get_keyvalue_array(self.0, &mut pairs, &mut count, &mut more) {
                0 => {
                    let pairs = std::slice::from_raw_parts(pairs, count as usize).iter().map(|pair| {
                        let pair = *pair;
                        assert!(!pair.key.is_null() && !pair.value.is_null());
                        let key = std::slice::from_raw_parts(pair.key, pair.key_length as usize);
                        let value = std::slice::from_raw_parts(pair.value, pair.value_length as usize);
                        (key.to_vec(), value.to_vec())
                    });
                    Ok((pairs.collect(), more != 0))
                }
                error => Err(error),
            }
        }
    }
}
