//! Many documents that expire in the same second, and the effect of their tombstones on other writers.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use hyper::Method;
use serde_json::{Value, json};

use super::{
    Aim, ChannelsError, Figure, Options, Result,
    world::{World, in_channels},
};
use crate::{
    documents,
    stats::{percentiles, rounded},
    way::{OpenConnection, WayError, together},
};

/// The other clients: connections that write a document and pause for a moment.
const OTHERS: usize = 8;
const PAUSE: Duration = Duration::from_millis(2);
/// The documents written in a second before they expire, at least.
const FILLED_A_SECOND: u64 = 4_000;
/// The time limit for a server that writes no further tombstone.
const MOST: Duration = Duration::from_secs(200);

const DATABASE: &str = "/ends";

/// Creates the database.
pub(super) async fn fill(world: &World) -> Result<()> {
    world.make(DATABASE, &json!({"channels": true})).await
}

async fn tombstones(open: &mut OpenConnection) -> Result<u64> {
    let (text, _) = open.expect(Method::GET, DATABASE, String::new()).await?;
    let found: Value = serde_json::from_slice(&text).map_err(std::io::Error::other)?;
    found["doc_del_count"].as_u64().ok_or_else(|| ChannelsError::Wrong(found.to_string()))
}

/// Measures the time from the first tombstone to the last, and the others' latencies before and meanwhile.
pub(super) async fn run(world: World, options: &Options, is_model: bool) -> Result<Vec<Figure>> {
    let count = (options.documents / 10).max(1);
    fill(&world).await?;
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let ends_s = now_s + 5 + count / FILLED_A_SECOND;
    let due = Instant::now() + Duration::from_secs(ends_s - now_s);
    let ending = move |number: u64| json!({"channels": [format!("c{}", number % 100)], "_exp": ends_s}).to_string();
    let took = world.fill(DATABASE, count, ending).await?;
    if Instant::now() > due {
        return Err(ChannelsError::Wrong(format!("{count} documents took {took:?}, and ended meanwhile")));
    }
    let seen: Rc<RefCell<Vec<(Instant, f64)>>> = Rc::default();
    let (into, over) = (seen.clone(), Rc::new(Cell::new(false)));
    let is_over = over.clone();
    let base = 50_000_000 + if is_model { 10_000_000 } else { 0 };
    let put = async move |open: &mut OpenConnection, number: u64| {
        if is_over.get() {
            return Ok::<_, WayError>(false);
        }
        let (number, sent) = (base + number, Instant::now());
        let path = format!("{DATABASE}/{}", documents::id(number));
        open.expect(Method::PUT, &path, in_channels(number, &["others".to_owned()])).await?;
        into.borrow_mut().push((Instant::now(), sent.elapsed().as_secs_f64() * 1e3));
        tokio::time::sleep(PAUSE).await;
        Ok(true)
    };
    let watch = async {
        let watched = watch(&world, count, due).await;
        over.set(true);
        watched
    };
    let (others, watched) = tokio::join!(together(&world.admin, OTHERS, put), watch);
    others?;
    let (begun, ended) = watched?;
    world.stop().await?;
    let among = |from: Instant, to: Instant| {
        let mut ms: Vec<f64> =
            seen.borrow().iter().filter(|(at, _)| (from..to).contains(at)).map(|(_, ms)| *ms).collect();
        json!({"writes": ms.len(), "ms": percentiles(&mut ms)})
    };
    // Before the first tombstone the writes of others run alone.
    let before = among(begun - Duration::from_secs(60), begun);
    let meanwhile = among(begun, ended);
    let took_s = (ended - begun).as_secs_f64();
    let p99 = |of: &Value| of["ms"]["p99"].as_f64().unwrap_or(f64::NAN);
    let lifted = p99(&meanwhile) - p99(&before);
    let more = json!({
        "documents": count, "s": rounded(took_s, 1000.0), "others": OTHERS, "before": before, "while": meanwhile,
        "begun_after_s": rounded((begun - due.min(begun)).as_secs_f64(), 10.0),
    });
    Ok(vec![
        Figure::new("tombstones/s of what has ended", Aim::AtLeast(20_000.0), count as f64 / took_s, more),
        Figure::new("ms that others' p99 is lifted by them", Aim::AtMost(50.0), lifted, Value::Null),
    ])
}

/// Returns when the first and the last tombstone appeared.
async fn watch(world: &World, count: u64, due: Instant) -> Result<(Instant, Instant)> {
    let mut open = world.admin.open().await?;
    let (mut begun, mut last, mut heard, mut found) = (None, Instant::now(), due, 0);
    while found < count {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let now = tombstones(&mut open).await?;
        if now > found {
            begun = begun.or(Some(last));
            heard = Instant::now();
        }
        if heard.max(due).elapsed() > MOST {
            return Err(ChannelsError::Wrong(format!("only {now} of {count} tombstones after {MOST:?}")));
        }
        (found, last) = (now, Instant::now());
    }
    Ok((begun.unwrap_or(last), last))
}
