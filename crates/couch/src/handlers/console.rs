//! `/_utils/`: the console, in Fauxton's place. Its files contain no data, so anonymous clients get them; its requests
//! to the API sign in as usual.

use flatbed_http::Reply;

use super::console_files;
use crate::error::{Failure, Result};
use crate::request::Request;
use crate::state::State;

pub(crate) async fn console(state: &State, mut request: Request) -> Result<Reply> {
    request.skip_body().await;
    if !state.has_console {
        return Err(turned_off());
    }
    console_files::reply(&request)
}

pub(super) fn turned_off() -> Failure {
    Failure::not_found("The console is turned off.")
}
