//! The memory of all request bodies.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use flatbed_admission::{Budget, Grant};
use flatbed_flatten::json::tree_bytes;
use hyper::StatusCode;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::metrics::Usage;
use crate::pace::Pace;
use crate::rejection::{Rejection, Result};
use crate::shares::{Sender, Share, Shares};

/// The length up to which a body needs no reservation: the number of connections is bounded.
pub const FREE_BYTES: usize = 16 * 1024;

/// The size up to which a tree needs no reservation, for the same reason.
const FREE_TREE_BYTES: usize = 128 * 1024;

const UNIT_BYTES: usize = 1024;

pub(crate) const STEP_BYTES: usize = 256 * 1024;

const SMALL_BYTES: usize = 1024 * 1024;

/// The memory for small trees divided by this is the largest small tree.
const SMALL_TREE_PART: usize = 8;

/// Trees larger than the memory for trees divided by this wait only briefly: others would wait behind them.
const LARGE_TREE_PART: usize = 4;

const UPLOAD_BYTES: usize = 512 * 1024;

const UPLOAD_GZIP_BYTES: usize = 320 * 1024;

/// The longest wait for memory.
const ROOM_MAX: Duration = Duration::from_secs(30);

/// The longest wait for memory that slow requests are giving up, or that blocks others behind it.
const SOON_MAX: Duration = Duration::from_secs(2);

/// The interval at which slow uploads are ended while others wait.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The memory of request bodies in three parts: texts, trees parsed from them, and uploads. A fraction is reserved
/// for small texts and small trees.
///
/// A text reserves memory as it arrives, never ahead. If memory is exhausted, slow bodies that hold some are ended;
/// if none is slow, the text is refused. The memory of a tree is reserved at once, with a wait. A request that holds
/// tree memory waits for no other memory, so there is no deadlock.
#[derive(Debug, Clone)]
pub struct BodyMemory(Arc<Pools>);

#[derive(Debug)]
struct Pools {
    texts: Arc<Budget>,
    small_texts: Arc<Budget>,
    trees: Arc<Budget>,
    small_trees: Arc<Budget>,
    uploads: Arc<Budget>,
    shares: Arc<Shares>,
    /// The largest body that the memory is made for.
    body_bytes_max: usize,
    /// The largest body that is accepted now.
    body_bytes_now: AtomicUsize,
    began: Instant,
    came: AtomicU64,
    coming: Mutex<HashMap<u64, Weak<ArrivingBody>>>,
}

impl BodyMemory {
    /// `total_bytes`: for texts and trees. Small ones have another eighth of it, and uploads another quarter.
    pub(crate) fn new(total_bytes: usize, body_bytes_max: usize) -> Self {
        // Room for at least one largest body and its inflated text, in a vector whose capacity may be twice its
        // length.
        let texts = (total_bytes / 3).max(3 * body_bytes_max + 2 * STEP_BYTES);
        BodyMemory(Arc::new(Pools {
            texts: Budget::new(texts, UNIT_BYTES),
            small_texts: Budget::new(total_bytes / 16, UNIT_BYTES),
            trees: Budget::new(total_bytes.saturating_sub(texts).max(FREE_TREE_BYTES), UNIT_BYTES),
            small_trees: Budget::new(total_bytes / 16, UNIT_BYTES),
            uploads: Budget::new((total_bytes / 4).max(UPLOAD_BYTES + UPLOAD_GZIP_BYTES), UNIT_BYTES),
            shares: Arc::default(),
            body_bytes_max,
            body_bytes_now: AtomicUsize::new(body_bytes_max),
            began: Instant::now(),
            came: AtomicU64::new(0),
            coming: Mutex::default(),
        }))
    }

    /// Returns the largest body that is accepted now, in bytes.
    pub(crate) fn body_bytes_max(&self) -> usize {
        self.0.body_bytes_now.load(Ordering::Relaxed)
    }

    /// Bounds later bodies, at most to the size that the memory is made for.
    pub(crate) fn bound_bodies(&self, bytes: usize) {
        self.0.body_bytes_now.store(bytes.min(self.0.body_bytes_max), Ordering::Relaxed);
    }

    pub(crate) fn usage(&self) -> [Usage; 3] {
        let all = &self.0;
        [
            Usage::of(&[&all.texts, &all.small_texts]),
            Usage::of(&[&all.trees, &all.small_trees]),
            Usage::of(&[&all.uploads]),
        ]
    }

    pub(crate) fn expect(&self, sender: Option<Sender>) -> Arc<ArrivingBody> {
        let number = self.0.came.fetch_add(1, Ordering::Relaxed);
        Arc::new(ArrivingBody {
            number,
            of: self.clone(),
            sender,
            pace: Pace::default(),
            ended_at: AtomicU64::new(0),
            is_waited_for: AtomicBool::new(false),
            has_text: AtomicBool::new(false),
            has_upload: AtomicBool::new(false),
            cut: Notify::new(),
        })
    }

    pub(crate) fn grow(&self, held: &mut Memory, bytes: usize) -> Result<()> {
        held.add_text(self.0.texts.try_take(bytes).ok_or_else(busy)?);
        Ok(())
    }

    pub(crate) fn room_for(&self, sender: Option<&Sender>, bytes: usize) -> Result<Memory> {
        let mut held = Memory::default();
        if let Some(sender) = sender {
            self.0.shares.grow(&mut held.share, sender, bytes, self.most_of(sender))?;
        }
        match self.0.texts.try_take(bytes) {
            Some(taken) => held.add_text(taken),
            None => merge(&mut held.small_text, self.0.small_texts.try_take(bytes).ok_or_else(busy)?),
        }
        Ok(held)
    }

    /// Returns the most text memory of one sender. The largest body always fits.
    fn most_of(&self, sender: &Sender) -> usize {
        (self.0.texts.limit() / 100 * sender.percent).max(self.0.body_bytes_max + STEP_BYTES)
    }

    pub(crate) async fn grow_coming(&self, held: &mut Memory, has: usize, coming: &Arc<ArrivingBody>) -> Result<()> {
        if let Some(sender) = &coming.sender {
            self.0.shares.grow(&mut held.share, sender, STEP_BYTES, self.most_of(sender))?;
        }
        coming.has_text.store(true, Ordering::Relaxed);
        self.register(coming);
        if let Some(more) = self.0.texts.try_take(STEP_BYTES) {
            held.add_text(more);
            return Ok(());
        }
        if has + STEP_BYTES <= SMALL_BYTES
            && let Some(more) = self.0.small_texts.try_take(STEP_BYTES)
        {
            merge(&mut held.small_text, more);
            return Ok(());
        }
        if self.cut_slow(|coming| &coming.has_text) == 0 {
            return Err(busy());
        }
        // Slow bodies release their memory at once, so this request, which holds memory itself, waits only briefly.
        let more = tokio::time::timeout(SOON_MAX, self.0.texts.take(STEP_BYTES)).await;
        held.add_text(more.ok().flatten().ok_or_else(busy)?);
        Ok(())
    }

    /// Waits for the room of an upload and ends slow uploads for it. `has_gzip`: the upload is compressed or
    /// decompressed.
    pub(crate) async fn upload(&self, has_gzip: bool, coming: &Arc<ArrivingBody>) -> Result<UploadRoom> {
        let bytes = UPLOAD_BYTES + if has_gzip { UPLOAD_GZIP_BYTES } else { 0 };
        let mut take = std::pin::pin!(self.0.uploads.take(bytes));
        let wait = async {
            loop {
                tokio::select! {
                    biased;
                    taken = &mut take => return taken,
                    () = tokio::time::sleep(CHECK_INTERVAL) => {}
                }
                self.cut_slow(|coming| &coming.has_upload);
            }
        };
        let taken = tokio::time::timeout(ROOM_MAX, wait).await.ok().flatten().ok_or_else(busy)?;
        coming.has_upload.store(true, Ordering::Relaxed);
        self.register(coming);
        Ok(UploadRoom { _taken: taken, coming: coming.clone() })
    }

    fn register(&self, coming: &Arc<ArrivingBody>) {
        let mut all = self.0.coming.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(coming.number).or_insert_with(|| Arc::downgrade(coming));
    }

    /// Ends slow bodies that hold this kind of memory, and returns their number.
    fn cut_slow(&self, holds: impl Fn(&ArrivingBody) -> &AtomicBool) -> usize {
        let all: Vec<Arc<ArrivingBody>> = {
            let all = self.0.coming.lock().unwrap_or_else(PoisonError::into_inner);
            // The vector keeps the bodies alive: dropping one takes the lock again.
            all.values().filter_map(Weak::upgrade).collect()
        };
        let now = self.now();
        let is_slow = |coming: &&Arc<ArrivingBody>| {
            holds(coming).load(Ordering::Relaxed)
                && coming.is_waited_for.load(Ordering::Relaxed)
                && coming.pace.is_slow(now)
        };
        all.iter().filter(is_slow).map(|coming| coming.cut.notify_one()).count()
    }

    fn now(&self) -> u64 {
        u64::try_from(self.0.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

#[derive(Debug)]
pub(crate) struct ArrivingBody {
    number: u64,
    of: BodyMemory,
    /// Set if the address of the body has a limit.
    sender: Option<Sender>,
    pace: Pace,
    ended_at: AtomicU64,
    is_waited_for: AtomicBool,
    has_text: AtomicBool,
    has_upload: AtomicBool,
    cut: Notify,
}

impl ArrivingBody {
    pub(crate) fn sender(&self) -> Option<&Sender> {
        self.sender.as_ref()
    }

    /// Waits for more of the body. Returns `None` if the body must end because others need its memory.
    pub(crate) async fn more<T>(&self, more: impl Future<Output = T>, bytes: impl Fn(&T) -> usize) -> Option<T> {
        let now = self.of.now();
        // The time in which the server did not read is not the client's fault.
        if now.saturating_sub(self.ended_at.load(Ordering::Relaxed)) > CHECK_INTERVAL.as_millis() as u64 {
            self.pace.restart(now);
        }
        self.is_waited_for.store(true, Ordering::Relaxed);
        let come = tokio::select! {
            biased;
            come = more => Some(come),
            () = self.cut.notified() => None,
        };
        self.is_waited_for.store(false, Ordering::Relaxed);
        let now = self.of.now();
        self.ended_at.store(now, Ordering::Relaxed);
        self.pace.moved(come.as_ref().map_or(0, bytes), now);
        come
    }
}

impl Drop for ArrivingBody {
    fn drop(&mut self) {
        let mut all = self.of.0.coming.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(&self.number);
    }
}

/// The room of an upload; released when dropped.
#[derive(Debug)]
pub struct UploadRoom {
    _taken: Grant,
    coming: Arc<ArrivingBody>,
}

impl Drop for UploadRoom {
    fn drop(&mut self) {
        self.coming.has_upload.store(false, Ordering::Relaxed);
    }
}

/// Detects that the client of a detached request has hung up.
#[derive(Debug)]
pub struct Client(mpsc::Sender<()>);

impl Client {
    /// Returns the pair. The task that waits for the answer keeps the receiver.
    pub fn new() -> (Client, mpsc::Receiver<()>) {
        let (client, there) = mpsc::channel(1);
        (Client(client), there)
    }

    /// Resolves when the client has hung up; never without a client.
    pub async fn wait_until_gone(client: Option<&Client>) {
        match client {
            Some(client) => client.0.closed().await,
            None => std::future::pending().await,
        }
    }
}

pub(crate) fn busy() -> Rejection {
    Rejection::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", "Too many large requests at once")
}

pub(crate) fn too_large() -> Rejection {
    Rejection::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "the request entity is too large")
}

/// The memory of a request; released when dropped.
#[derive(Debug, Default)]
pub struct Memory {
    text: Option<Grant>,
    small_text: Option<Grant>,
    tree: Option<Grant>,
    share: Option<Share>,
}

/// `more`: a grant of the same budget. One of another budget is returned to it.
fn merge(held: &mut Option<Grant>, more: Grant) {
    match held {
        Some(held) => drop(held.merge(more)),
        None => *held = Some(more),
    }
}

impl Memory {
    fn add_text(&mut self, more: Grant) {
        merge(&mut self.text, more);
    }

    pub(crate) async fn reserve_tree(&mut self, of: &BodyMemory, text: &[u8], client: Option<&Client>) -> Result<()> {
        let bytes = tree_bytes(text);
        if bytes <= FREE_TREE_BYTES {
            return Ok(());
        }
        let (small, all) = (&of.0.small_trees, &of.0.trees);
        let (part, most) = match bytes {
            _ if bytes <= small.limit() / SMALL_TREE_PART => (small, ROOM_MAX),
            _ if bytes > all.limit() => return Err(too_large()),
            _ if bytes > all.limit() / LARGE_TREE_PART => (all, SOON_MAX),
            _ => (all, ROOM_MAX),
        };
        tokio::select! {
            biased;
            taken = tokio::time::timeout(most, part.take(bytes)) => self.tree = Some(taken.ok().flatten().ok_or_else(busy)?),
            () = Client::wait_until_gone(client) => return Err(busy()),
        }
        Ok(())
    }

    pub(crate) fn drop_tree(&mut self) {
        self.tree = None;
    }

    /// Keeps `bytes` for an answer that may have no end, and releases the rest.
    pub fn keep(self, of: &BodyMemory, bytes: usize) -> Result<Memory> {
        if bytes <= FREE_TREE_BYTES {
            return Ok(Memory::default());
        }
        // Long-lived memory must not come from the reserve for small bodies.
        drop(self);
        let tree = of.0.trees.try_take(bytes).ok_or_else(busy)?;
        Ok(Memory { tree: Some(tree), ..Memory::default() })
    }
}

/// A body with its memory.
#[derive(Debug)]
pub struct Body {
    /// The text.
    pub bytes: Bytes,
    /// Kept while the text or anything parsed from it is in use.
    pub memory: Memory,
}

#[cfg(test)]
mod tests {
    use flatbed_flatten::json::Value;
    use flatbed_testkit::pass;

    use super::*;

    fn room(value: &Value<'_>) -> usize {
        match value {
            Value::Array(items) => items.capacity() * size_of::<Value<'_>>() + items.iter().map(room).sum::<usize>(),
            Value::Object(members) => {
                let each = members.iter().map(|(_, value)| room(value)).sum::<usize>();
                members.capacity() * size_of::<(std::borrow::Cow<'_, str>, Value<'_>)>() + each
            }
            Value::String(text) | Value::Number(text) => text.len(),
            Value::Null | Value::Bool(_) => 0,
        }
    }

    #[test]
    fn what_comes_beside_bodies_takes_room() {
        let memory = BodyMemory::new(3_000_000, 100_000);
        let used = || memory.usage()[0].used;
        let one = memory.room_for(None, 40_000).unwrap();
        assert_eq!(used(), 40 * UNIT_BYTES);
        let mut held = vec![one];
        while let Ok(more) = memory.room_for(None, 40_000) {
            held.push(more);
        }
        let [texts, ..] = memory.usage();
        assert!(texts.limit - used() < 2 * 40 * UNIT_BYTES, "{texts:?}");
        assert_eq!(memory.room_for(None, 40_000).unwrap_err().status, StatusCode::SERVICE_UNAVAILABLE);
        drop(held);
        assert_eq!(used(), 0);
    }

    #[test]
    fn trees_are_never_larger_than_reckoned() {
        let many = |item: &str| format!("[{}]", vec![item; 1_000].join(","));
        for text in [
            "[0,0,0,0,0]".to_owned(),
            many("0"),
            many("[0]"),
            many("[]"),
            many("{\"\":0}"),
            many("{\"a\":1,\"b\":2,\"c\":3,\"d\":4,\"e\":5}"),
            many("\"\\u0041\\n\""),
            format!("{{{}}}", (0..1_000).map(|n| format!("\"{n}\":{n}")).collect::<Vec<_>>().join(",")),
            format!("{}1{}", "[".repeat(400), "]".repeat(400)),
        ] {
            let value = flatbed_flatten::json::parse(text.as_bytes(), &Default::default()).unwrap();
            assert!(room(&value) <= tree_bytes(text.as_bytes()), "{} {}", room(&value), text.len());
        }
    }

    fn goes_on<T: Send + 'static>(
        coming: &Arc<ArrivingBody>,
        held: T,
    ) -> (tokio::sync::oneshot::Sender<()>, tokio::task::JoinHandle<bool>) {
        let (go_on, goes_on) = tokio::sync::oneshot::channel();
        let coming = coming.clone();
        let task = tokio::spawn(async move {
            let _held = held;
            coming.more(goes_on, |_| 100_000).await.is_some()
        });
        (go_on, task)
    }

    #[tokio::test(start_paused = true)]
    async fn slow_texts_end_where_others_need_their_room() {
        let memory = BodyMemory::new(0, 256 * 1024);
        let steps = memory.usage()[0].limit / STEP_BYTES;
        let (first, second) = (memory.expect(None), memory.expect(None));
        let mut held = Memory::default();
        for step in 0..steps {
            memory.grow_coming(&mut held, step * STEP_BYTES, &first).await.unwrap();
        }
        let (go_on, task) = goes_on(&first, held);
        pass(Duration::from_secs(1)).await;
        let mut more = Memory::default();
        let refused = memory.grow_coming(&mut more, FREE_BYTES, &second).await;
        assert_eq!(refused.unwrap_err().status, StatusCode::SERVICE_UNAVAILABLE, "the first is not slow yet");
        pass(Duration::from_secs(2)).await;
        memory.grow_coming(&mut more, FREE_BYTES, &second).await.unwrap();
        assert!(!task.await.unwrap(), "it was ended");
        drop((go_on, more));
        assert_eq!(memory.usage()[0].used, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn small_texts_have_room_of_their_own() {
        let memory = BodyMemory::new(16 * STEP_BYTES, 1024 * 1024);
        let (large, small) = (memory.expect(None), memory.expect(None));
        let (mut held, mut has) = (Memory::default(), FREE_BYTES);
        while memory.grow_coming(&mut held, has, &large).await.is_ok() {
            has += STEP_BYTES;
        }
        assert_eq!(memory.usage()[0].used, memory.usage()[0].limit - STEP_BYTES);
        memory.grow_coming(&mut Memory::default(), FREE_BYTES, &small).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn slow_uploads_end_where_others_wait() {
        let memory = BodyMemory::new(0, 256 * 1024);
        let (first, second, third) = (memory.expect(None), memory.expect(None), memory.expect(None));
        let room = memory.upload(true, &first).await.unwrap();
        assert_eq!(memory.usage()[2].used, memory.usage()[2].limit);
        let (_go_on, task) = goes_on(&first, room);
        // Without waiting uploads a slow one continues.
        pass(Duration::from_secs(20)).await;
        assert!(!task.is_finished());
        let room = memory.upload(true, &second).await.unwrap();
        assert!(!task.await.unwrap(), "it was ended");
        // An upload that continues is not ended, and the waiting one is refused.
        let task = tokio::spawn(async move {
            let _room = room;
            for _ in 0..100 {
                second.more(pass(Duration::from_secs(1)), |()| 70_000).await?;
            }
            Some(())
        });
        let refused = memory.upload(true, &third).await;
        assert_eq!(refused.unwrap_err().status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(task.await.unwrap().is_some());
        assert_eq!(memory.usage()[2].used, 0);
    }

    fn array(items: usize) -> Vec<u8> {
        format!("[{}0]", "0,".repeat(items)).into_bytes()
    }

    #[tokio::test(start_paused = true)]
    async fn large_trees_keep_no_small_ones_waiting() {
        let memory = BodyMemory::new(64 << 20, 1 << 20);
        let [_, trees, _] = memory.usage();
        // One long-lived tree has most of the memory, and another one waits for the rest.
        let (mut lasts, mut small) = (Memory::default(), Memory::default());
        let half = trees.limit / 2 / (2 * size_of::<Value<'_>>());
        lasts.reserve_tree(&memory, &array(half), None).await.unwrap();
        let (client, there) = Client::new();
        let waits = {
            let (memory, array) = (memory.clone(), array(half));
            tokio::spawn(async move { Memory::default().reserve_tree(&memory, &array, Some(&client)).await })
        };
        tokio::task::yield_now().await;
        let before = tokio::time::Instant::now();
        let waited = || tokio::time::Instant::now() - before;
        small.reserve_tree(&memory, &array(5_000), None).await.unwrap();
        assert_eq!(waited(), Duration::ZERO, "it found room of its own");
        assert!(!waits.is_finished());
        drop(there);
        assert_eq!(waits.await.unwrap().unwrap_err().status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(waited(), Duration::ZERO);
        let refused = Memory::default().reserve_tree(&memory, &array(half), None).await;
        assert_eq!(refused.unwrap_err().status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(waited() < ROOM_MAX, "large ones do not stay long in the way");
        let kept = lasts.keep(&memory, 1 << 20).unwrap();
        drop(small);
        assert_eq!(memory.usage()[1].used, 1 << 20);
        drop(kept);
        assert_eq!(memory.usage()[1].used, 0);
    }
}
