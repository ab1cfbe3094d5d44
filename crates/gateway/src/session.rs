//! `_session`: who somebody is.

use flatbed_http::Reply;
use flatbed_layer::json::Object;
use hyper::StatusCode;

use crate::reply::json;

/// What is told to nobody in particular.
pub(crate) fn nobody() -> Reply {
    let text = Object::text(|object| {
        object.array("authentication_handlers").string("default").string("cookie");
        object.bool("ok", true);
        let mut user = object.object("userCtx");
        user.object("channels").end();
        user.null("name");
    });
    json(StatusCode::OK, text)
}
