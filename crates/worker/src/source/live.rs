//! The continuous feed (`feed=continuous`): one long answer, kept from page to page as long as each begins where the
//! last one ended. Older rows are read in pages. It saves a request per page for runs that wait for changes.

use std::time::Duration;

use flatbed_flatten::json::{Limits, parse};

use super::{HttpSource, PageLimits, SourceError, WAIT, json_headers};
use crate::change::{ChangePage, MalformedAnswer, read_row};
use crate::checkpoint::Seq;
use crate::peer::{PeerError, StreamedAnswer};

const HEAD_TIME_MAX: Duration = Duration::from_secs(60);

/// The time within which consecutive rows are grouped into a page.
const GATHER: Duration = Duration::from_millis(5);

const HEARTBEAT_MS: u64 = 10_000;

/// An open answer, and the position of its last row.
#[derive(Debug)]
pub(super) struct Live {
    at: Seq,
    streamed: StreamedAnswer,
}

impl HttpSource {
    async fn open(&self, since: &Seq, bytes_max: usize) -> Result<Live, SourceError> {
        let (method, mut path, body) = self.changes("continuous", since);
        path.push_str(&format!("&heartbeat={}", self.feed.heartbeat_ms.unwrap_or(HEARTBEAT_MS)));
        let mut streamed = self.peer.stream(method, &path, &json_headers(), body, HEAD_TIME_MAX).await?;
        if streamed.status != 200 {
            return Err(SourceError::Status(streamed.status));
        }
        streamed.lines = streamed.lines.bounded(bytes_max);
        Ok(Live { at: since.clone(), streamed })
    }

    /// Returns the next rows when they arrive; none after [`WAIT`]. If the future is dropped, the next call opens
    /// another answer at the same position.
    pub(super) async fn live(&self, since: &Seq, ask: PageLimits) -> Result<ChangePage, SourceError> {
        let mut kept = self.live.lock().await;
        let mut live = match kept.take().filter(|live| live.at == *since) {
            Some(live) => live,
            None => self.open(since, ask.bytes_max).await?,
        };
        let mut page = ChangePage { changes: Vec::new(), rows: 0, last_seq: since.clone(), pending: None };
        let clock = self.peer.clock();
        let (mut bytes, mut until) = (0, clock.now() + WAIT);
        while page.rows < ask.limit && bytes < ask.bytes_max / 2 {
            let Ok(line) = clock.timeout_at(until, live.streamed.lines.next()).await else { break };
            let line = match line {
                Ok(Some(line)) if line.is_empty() => continue,
                Ok(Some(line)) => line,
                // Rows that have arrived are complete.
                Err(_) if page.rows > 0 => return Ok(page),
                Ok(None) => return Ok(page),
                Err(flatbed_client::Error::TooLarge) => return Err(PeerError::TooLarge(200).into()),
                Err(error) => return Err(PeerError::Broken(error.to_string()).into()),
            };
            bytes += line.len();
            let value = parse(&line, &Limits::default()).map_err(|_| MalformedAnswer("a row of it is no JSON"))?;
            // The last line of such an answer.
            if value.get("id").is_none() && value.get("last_seq").is_some() {
                return Ok(page);
            }
            let seq = value.get("seq").and_then(Seq::of).ok_or(MalformedAnswer("a row has no `seq`"))?;
            page.changes.extend(read_row(&value)?);
            page.rows += 1;
            (page.last_seq, live.at) = (seq.clone(), seq);
            until = clock.now() + GATHER;
        }
        *kept = Some(live);
        Ok(page)
    }
}
