//! `/_worker/_api` in a build without the feature `worker`.

use flatbed_http::Reply;

use crate::error::{Failure, Result};
use crate::path::WorkerApi;
use crate::request::Request;
use crate::state::State;

/// Refuses every request, as a server without a dispatcher does.
pub(crate) async fn worker(_: &State, mut request: Request, _: WorkerApi) -> Result<Reply> {
    request.refuse(Failure::not_implemented("_worker")).await
}
