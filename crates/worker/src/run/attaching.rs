//! Converts a change to a delivery, with its attachments if the job delivers them.
//!
//! Attachments are requested by the revision that this change has; a later revision has its own change. Attachments of
//! unmatched documents and attachments that the target already has are not fetched.

use bytes::Bytes;
use flatbed_flatten::json::{Limits, Value, parse};
use futures_util::future::join_all;

use super::products::ProductError;
use super::{Queue, Runner};
use crate::attachments::{Attachment, AttachmentFallback, AttachmentMode, Attachments, Stub, with_data};
use crate::output::{Delivery, DeliveryState, Target};
use crate::peer::PeerError;
use crate::rows::{Product, Unmappable};
use crate::source::{Source, SourceError};

const AT_ONCE: usize = 5;

/// The name of the member in a document's text, which this crate has written.
const MEMBER: &str = "\"_attachments\"";

pub(super) struct ChangeIdentity<'c> {
    pub(super) id: &'c str,
    pub(super) rev: &'c str,
    pub(super) seq: &'c str,
    /// True if the document's text is in this program's form and need not be normalized.
    pub(super) is_written: bool,
}

/// The stubs of the attachments to deliver, and the revision.
#[derive(Default)]
struct AttachmentRequest {
    rev: String,
    stubs: Vec<Stub>,
}

impl<S: Source, T: Target, Q: Queue> Runner<'_, S, T, Q> {
    /// Makes the delivery of a document's text within `bytes_max`; `None`: the document is gone.
    pub(super) async fn made(
        &mut self,
        of: ChangeIdentity<'_>,
        text: Option<&str>,
        bytes_max: usize,
    ) -> Result<Delivery, ProductError> {
        let ChangeIdentity { id, rev, seq, is_written } = of;
        let delivery = |state, attachments| Delivery {
            id: id.to_owned(),
            rev: rev.to_owned(),
            seq: seq.to_owned(),
            state,
            attachments,
        };
        let described = self.job;
        let (Some(settings), Some(with)) = (&described.attachments, text.filter(|text| text.contains(MEMBER))) else {
            return Ok(delivery(self.produce(text, is_written, bytes_max).await?, Vec::new()));
        };
        if settings.mode == AttachmentMode::Individual {
            let mut delivery = delivery(self.produce(text, is_written, bytes_max).await?, Vec::new());
            if matches!(delivery.state, DeliveryState::Is(Product::Nothing)) {
                return Ok(delivery);
            }
            let wanted = self.wanted(settings, with).await?;
            let left = bytes_max.saturating_sub(delivery.bytes());
            delivery.attachments = self.fetch(settings, &delivery, wanted, left).await?;
            return Ok(delivery);
        }
        let wanted = self.wanted(settings, with).await?;
        if wanted.stubs.is_empty() && settings.mode == AttachmentMode::Inline {
            return Ok(delivery(self.produce(text, is_written, bytes_max).await?, Vec::new()));
        }
        // The product, and at least one copy beside it, share this memory.
        let left = bytes_max.checked_sub(with.len()).ok_or(ProductError::Beyond)? / 4 * 3;
        let fetched = self.fetch(settings, &delivery(DeliveryState::Gone, Vec::new()), wanted, left).await?;
        let text = {
            let _alone = self.memory.parsing(with.len()).await;
            let document = parse(with.as_bytes(), &Limits::default());
            with_data(document.map_err(|_| ProductError::Unmappable(Unmappable::TooLarge))?, &fetched, settings.mode)
        };
        drop(fetched);
        Ok(delivery(self.produce(Some(&text), false, bytes_max).await?, Vec::new()))
    }

    async fn holds(&mut self, of: &Delivery, stub: &Stub) -> bool {
        match &mut self.target {
            Some(target) => target.holds(of, stub).await,
            None => false,
        }
    }

    async fn wanted(&mut self, settings: &Attachments, text: &str) -> Result<AttachmentRequest, ProductError> {
        let _alone = self.memory.parsing(text.len()).await;
        let document = parse(text.as_bytes(), &Limits::default());
        let document = document.map_err(|_| ProductError::Unmappable(Unmappable::TooLarge))?;
        if !self.job.mapping.matches(&document).map_err(|too_large| ProductError::Unmappable(too_large.into()))? {
            return Ok(AttachmentRequest::default());
        }
        let stubs = settings.select_stubs(&document).map_err(ProductError::Unmappable)?;
        Ok(AttachmentRequest {
            rev: document.get("_rev").and_then(Value::as_str).unwrap_or_default().to_owned(),
            stubs,
        })
    }

    /// Fetches the attachments that are available, within a number of bytes.
    async fn fetch(
        &mut self,
        settings: &Attachments,
        of: &Delivery,
        wanted: AttachmentRequest,
        bytes_max: usize,
    ) -> Result<Vec<Attachment>, ProductError> {
        let AttachmentRequest { rev, stubs } = wanted;
        let said = stubs.iter().fold(0_usize, |sum, stub| sum.saturating_add(stub.length.unwrap_or(0)));
        if said > bytes_max {
            return Err(ProductError::Beyond);
        }
        let rev = if rev.is_empty() { of.rev.as_str() } else { &rev };
        let generation = rev.split('-').next().and_then(|digits| digits.parse::<u64>().ok());
        let (mut fetched, mut taken) = (Vec::with_capacity(stubs.len()), 0_usize);
        let mut asked: Vec<Stub> = Vec::with_capacity(stubs.len());
        for stub in stubs {
            if let Some(body) = self.fetched.get(&of.seq, rev, &stub.name) {
                taken = taken.saturating_add(body.len());
                fetched.push(Attachment { stub, body: Some(body) });
                continue;
            }
            // An attachment new in this revision cannot be at the target, except after a failed attempt.
            let may_be_there = self.failures > 0 || stub.revpos.zip(generation).is_none_or(|(pos, own)| pos < own);
            if may_be_there && !stub.digest.is_empty() && self.holds(of, &stub).await {
                self.progress.add_attachment_held();
                fetched.push(Attachment { stub, body: None });
            } else {
                asked.push(stub);
            }
        }
        let mut rest = asked.as_slice();
        while let Some(first) = rest.first() {
            // Attachments of unknown length are fetched one at a time.
            let count = rest.iter().take(AT_ONCE).take_while(|stub| stub.length.is_some()).count();
            let (group, behind) =
                rest.split_at_checked(count).filter(|_| first.length.is_some()).unwrap_or_else(|| rest.split_at(1));
            rest = behind;
            let bounds = group.iter().map(|stub| settings.bytes_max(stub, taken).min(bytes_max.saturating_sub(taken)));
            let source = self.source.clone();
            let all =
                group.iter().zip(bounds).map(|(stub, bytes_max)| source.attachment(&of.id, rev, &stub.name, bytes_max));
            let all: Vec<Result<Option<Bytes>, SourceError>> = join_all(all).await;
            for (stub, answer) in group.iter().zip(all) {
                let is_bounded_by_room = settings.bytes_max(stub, taken) > bytes_max.saturating_sub(taken);
                let body = match answer {
                    Ok(body) => body,
                    Err(SourceError::Peer(PeerError::TooLarge(_))) if stub.length.is_none() && is_bounded_by_room => {
                        return Err(ProductError::Beyond);
                    }
                    Err(SourceError::Peer(PeerError::TooLarge(_))) if stub.length.is_none() => {
                        self.progress.add_attachment_failed();
                        settings.too_large().map_err(ProductError::Unmappable)?;
                        continue;
                    }
                    // The attachment does not have the declared length.
                    Err(SourceError::Peer(PeerError::TooLarge(_))) => None,
                    Err(error) => {
                        self.progress.add_attachment_failed();
                        return Err(ProductError::Source(error));
                    }
                };
                self.source_failures = 0;
                self.tell_failing();
                let body = body.filter(|body| stub.length.is_none_or(|length| length == body.len()));
                if body.is_none() {
                    self.progress.add_attachment_failed();
                }
                match body {
                    Some(body) => {
                        self.progress.add_attachment(body.len());
                        self.fetched.keep(&of.seq, rev, &stub.name, &body, &self.memory);
                        taken = taken.saturating_add(body.len());
                        fetched.push(Attachment { stub: stub.clone(), body: Some(body) });
                    }
                    None if settings.on_missing == AttachmentFallback::Dlq && self.is_newest(&of.id, rev).await? => {
                        let missing = "the source does not have one of its attachments as it says";
                        return Err(ProductError::Unmappable(Unmappable::Attachments(missing)));
                    }
                    None => {}
                }
            }
        }
        Ok(fetched)
    }

    /// Returns whether the revision still is the newest. A later one brings its own attachments.
    async fn is_newest(&mut self, id: &str, rev: &str) -> Result<bool, ProductError> {
        let found = self.read_document(id, crate::rows::ROWS_BYTES_MAX).await?;
        Ok(found.is_some_and(|text| super::replays::rev_of(&text) == rev))
    }
}
