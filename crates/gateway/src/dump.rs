//! `_dumpchannel/{channel}`: an HTML page with the documents in a channel and those that have left it.

use std::sync::Arc;
use std::time::Duration;

use flatbed_documents::feed_page_bytes;
use flatbed_http::{Pages, Reply, TenantReply, first_room, shrink, spawn};
use flatbed_layer::{ChangeRow, Documents, Scope, Since};
use flatbed_service::{Administer, Feed, FeedQuery, Filter, Follow};
use hyper::header;

use crate::error::{Failure, Result};
use crate::reply::{self, Interrupted};
use crate::request::Request;

pub(crate) async fn channel(request: Request, db: &str, channel: &str) -> Result<Reply> {
    flatbed_layer::check_channel(channel).map_err(|illegal| Failure::bad_request(illegal.to_string()))?;
    let begins = request.query.get("since").unwrap_or("0");
    let since = match begins {
        "0" => Since::Beginning,
        text => Since::After(text.parse()?),
    };
    let begins = escaped(begins);
    let database = request.context.database(db, Administer).await?;
    let asked = FeedQuery {
        since,
        descending: false,
        limit: None,
        scope: Scope::Channels(Arc::new([channel.to_owned()].into())),
        active_only: false,
        revocations: false,
        filter: Filter::None,
        all_leaves: false,
        documents: Documents::No,
        filtered: Documents::No,
        follow: Follow::No,
        timeout: Duration::ZERO,
    };
    let mut feed: Feed = Box::pin(request.context.feed(&database, asked)).await?;
    let pages = Pages::new(false);
    let mut room = first_room(&pages).await?;
    let mut page = feed.next_page().await?;
    if page.rows.is_empty() && page.at_end {
        return Err(Failure::not_found("no such channel"));
    }
    shrink(&mut room, feed_page_bytes(&page));
    let title = format!("/{}: \u{201c}{}\u{201d} Channel", escaped(db), escaped(channel));
    let (mut reply, mut sender) = reply::stream();
    reply.header(header::CONTENT_TYPE, "text/html; charset=\"UTF-8\"");
    sender.buffer.extend_from_slice(
        format!(
            "<!DOCTYPE html><html><head><title>{title}</title></head><body>\n\t\t<h1>{title}</h1><code>\n\
             \t\t<p>Since = {begins}</p>\n\t\t<table border=1>\n\
             \t\t\t<tr><th>Seq</th><th>Doc</th><th>Rev</th><th>Flags</th></tr>\n"
        )
        .as_bytes(),
    );
    spawn(async move {
        let rest = async {
            loop {
                for row in &page.rows {
                    sender.buffer.extend_from_slice(line(row).as_bytes());
                    sender.send_if_full().await?;
                }
                if page.at_end {
                    break;
                }
                drop(room.take());
                room = sender.page_room(&pages).await?;
                page = sender.unless_gone(feed.next_page()).await??;
                shrink(&mut room, feed_page_bytes(&page));
            }
            sender.buffer.extend_from_slice(b"</table>\n</code></html></body>");
            Ok::<_, Interrupted>(())
        };
        if rest.await.is_ok() {
            let _ = sender.finish().await;
        }
    });
    Ok(TenantReply::of_body(reply).into())
}

/// Formats a row. Its flags are eight binary digits: bit 0 marks a tombstone, bit 1 a document that has left the
/// channel.
fn line(row: &ChangeRow) -> String {
    let flags = u8::from(row.deleted) | u8::from(!row.removed.is_empty()) << 1;
    let (seq, id, rev) = (row.place().to_string(), escaped(&row.id), escaped(&row.rev.to_string()));
    format!("\t<tr><td>{seq}</td><td>{id}</td><td>{rev}</td><td>{flags:08b}</td></tr>\n")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&#34;").replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_no_markup() {
        assert_eq!(escaped("<a href='x'>&\"é"), "&lt;a href=&#39;x&#39;&gt;&amp;&#34;é");
    }
}
