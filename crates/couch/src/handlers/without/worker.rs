//! `/_worker/_api` in a build without the feature `worker`.

use flatbed_http::Reply;

use crate::error::{Failure, Result};
use crate::path::WorkerApi;
use crate::request::Request;
use crate::state::State;

/// Refuses every request, as a server without a dispatcher does.
pub(crate) async fn worker(_: &State, mut request: Request, what: WorkerApi) -> Result<Reply> {
    let allowed = what.methods();
    request.skip_body().await;
    if !allowed.split(',').any(|method| method == request.method.as_str()) {
        return Err(Failure::method(allowed));
    }
    Err(Failure::not_implemented("_worker"))
}
