//! `/{db}/_purged_infos`: the recorded purges.

use flatbed_http::{Pages, Reply, Sender, spawn};
use flatbed_layer::Reader;
use flatbed_layer::json::Object;
use flatbed_service::Read;

use crate::error::Result;
use crate::json_out;
use crate::reply::Interrupted;
use crate::request::Request;

pub(crate) async fn purged_infos(mut request: Request, name: &str) -> Result<Reply> {
    request.skip_body().await;
    let database = request.context.database(name, Read).await?;
    database.exists().await?;
    let (reply, mut sender) = Reply::stream();
    spawn(async move {
        let pages = Pages::new(false);
        let Ok(_room) = sender.page_room(&pages).await else { return };
        if write(&database, &mut sender).await.is_ok() {
            let _ = sender.finish().await;
        }
    });
    Ok(reply)
}

async fn write(database: &Reader, sender: &mut Sender) -> std::result::Result<(), Interrupted> {
    sender.buffer.extend_from_slice(b"{\"purged_infos\":[");
    let (mut from, mut written) = (None, 0);
    loop {
        let page = sender.unless_gone(database.purged_infos(from.as_ref())).await??;
        for info in &page.infos {
            json_out::comma(written, &mut sender.buffer);
            let mut object = Object::new(&mut sender.buffer);
            json_out::revs(&info.revs, object.string("id", &info.id).place("revs"));
            object.end();
            written += 1;
            sender.send_if_full().await?;
        }
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    sender.buffer.extend_from_slice(b"]}\n");
    Ok(())
}
