//! The check of a request's signature, before anything else of the request is read.

use flatbed_http::Request;
use flatbed_syncstorage::Uid;
use hyper::{Method, header};

use crate::error::{Failure, Result};
use crate::hawk::{Header, SignatureError, SignedRequest};
use crate::path::Info;
use crate::path::StoragePart;
use crate::place::place_of;
use crate::state::State;

/// The check that remains until the body has arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SignedBody(Option<String>);

/// Checks a request's signature, and that its user is the one in the path.
///
/// # Errors
/// 401, and 400 for another user.
pub(crate) fn check(state: &State, request: &Request, uid: Uid, of: &StoragePart) -> Result<SignedBody> {
    match check_signature(state, request, uid, of) {
        Ok((owner, body)) if owner == uid => Ok(body),
        Ok((owner, _)) => Err(Failure::bad_request(format!("the token is that of the user {owner}"))),
        Err(unsigned) => Err(refuse(state, request, uid, unsigned)),
    }
}

fn check_signature(
    state: &State,
    request: &Request,
    uid: Uid,
    of: &StoragePart,
) -> std::result::Result<(Uid, SignedBody), SignatureError> {
    let text = request.header(header::AUTHORIZATION).ok_or(SignatureError::Missing)?;
    let header = Header::parse(text).ok_or(SignatureError::Malformed)?;
    let place = place_of(request, state.public_url()).ok_or(SignatureError::Mac)?;
    let target = state.signed_target(&request.uri);
    let signed = SignedRequest { method: request.method.as_str(), target: &target, place: &place };
    // A device with an expired token then learns at once whether there are changes.
    let may_be_expired = request.method == Method::GET && *of == StoragePart::Info(Info::Collections);
    let now = state.store.now().hundredths() as f64 / 100.0;
    let token = header.check(&state.secret, now, &signed, may_be_expired)?;
    tracing::trace!(%uid, "signed");
    Ok((Uid(token.uid), SignedBody((!header.hash.is_empty()).then(|| header.hash.to_owned()))))
}

/// Returns 401, and logs the reason, which the client does not learn.
fn refuse(state: &State, request: &Request, uid: Uid, unsigned: SignatureError) -> Failure {
    state.metrics.sync_unsigned.add(1);
    if let Some(passed_over) = state.sparing.may_write() {
        let peer = request.peer.map(tracing::field::display);
        tracing::warn!(%uid, peer, reason = %unsigned, passed_over, "a request to sync is not signed as it must be");
    }
    Failure::unauthorized(unsigned.to_string())
}

impl SignedBody {
    /// Checks that the body is the signed one, if one was signed.
    ///
    /// # Errors
    /// 401.
    pub(crate) fn check(&self, state: &State, request: &Request, uid: Uid, body: &[u8]) -> Result<()> {
        let Some(hash) = &self.0 else { return Ok(()) };
        let kind = request.header(header::CONTENT_TYPE).unwrap_or_default();
        let header = Header { hash, ..Header::default() };
        if header.has_body(kind, body) { Ok(()) } else { Err(refuse(state, request, uid, SignatureError::Body)) }
    }
}
