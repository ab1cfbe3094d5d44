use flatbed_testkit::pass;
use futures_util::FutureExt;

use super::*;
use crate::budget::PATIENCE;
use crate::limits::{Admission, Limits};
use crate::peer::Peer;
use crate::reply::ROOM_MAX;

/// Returns an outlet with memory for some megabytes.
pub(crate) fn any() -> Arc<Outlet> {
    Outlets::new(300_000_000, 8_000_000, ROOM_MAX, Arc::default())
        .connect(true)
        .begin()
        .expect("a new connection has no answers")
}

fn answer(outlets: &Arc<Outlets>, n: u8) -> Arc<Outlet> {
    let answer = outlets.connect(true).begin().expect("a new connection has no answers");
    answer.shares(outlets.share(Some(std::net::IpAddr::from([192, 0, 2, n]).into()), 50));
    answer
}

#[tokio::test(start_paused = true)]
async fn an_address_leaves_room_for_others() {
    const MB: usize = 1_000_000;
    let outlets = Outlets::new(300 * MB, 8 * MB, ROOM_MAX, Arc::default());
    let (of_one, of_other): (Vec<_>, _) = ((0..8).map(|_| answer(&outlets, 1)).collect(), answer(&outlets, 2));
    // 100 MB in total, half of it for each address.
    let mut held: Vec<_> = of_one.iter().filter_map(|answer| answer.try_room(9 * MB)).collect();
    assert_eq!(held.len(), 5);
    assert!(of_other.try_room(9 * MB).is_some());
    let one = of_one[7].clone();
    let waiting = tokio::spawn(async move { one.room(9 * MB).await });
    pass(2 * PATIENCE).await;
    // The task waits for its own address, whose slow readers are cut, and not for others.
    assert!(!waiting.is_finished() && outlets.are_shares_waited_for() && !outlets.pieces.is_waited_for());
    assert!(ContendedBudgets::default().or_of(of_one[0].share.get()).pieces);
    assert_eq!(ContendedBudgets::default().or_of(of_other.share.get()), ContendedBudgets::default());
    held.pop();
    held.push(waiting.await.expect("the task ended with room"));
    assert!(!outlets.are_shares_waited_for());
    // The same for pages: at least two of the largest fit.
    for kind in [PageKind::Documents, PageKind::Rows] {
        let mut taken = Vec::new();
        for answer in &of_one {
            let page = tokio::time::timeout(Duration::from_secs(9), answer.page_room(kind)).await;
            taken.extend(page.ok());
        }
        assert!((2..8).contains(&taken.len()), "{}", taken.len());
        assert!(tokio::time::timeout(Duration::from_secs(9), of_other.page_room(kind)).await.is_ok());
    }
    drop((held, of_one, of_other));
    assert!(outlets.shares.all().is_empty() && outlets.piece_usage().used == 0 && outlets.page_usage().used == 0);
}

#[tokio::test(start_paused = true)]
async fn a_page_more_is_read_where_there_is_room_at_once() {
    const MB: usize = 1_000_000;
    let outlets = Outlets::new(90 * MB, 3 * MB, ROOM_MAX, Arc::default());
    // 45 MB for pages with documents of up to 13 MB; half of it for each address.
    let (one, other) = (answer(&outlets, 1), answer(&outlets, 2));
    let mut held = one.page_room(PageKind::Documents).await;
    assert!(one.try_page_room(PageKind::Documents).is_some());
    let others = [other.page_room(PageKind::Documents).await, other.page_room(PageKind::Documents).await];
    assert!(one.try_page_room(PageKind::Documents).is_none());
    assert!(one.try_page_room(PageKind::Little).is_some());
    held.shrink(MB);
    assert!(one.try_page_room(PageKind::Documents).is_none_or(|_| outlets.page_usage().used < 45 * MB));
    drop((others, held));
    assert!(one.try_page_room(PageKind::Documents).is_some() && outlets.page_usage().used == 0);
}

#[tokio::test(start_paused = true)]
async fn many_addresses_of_one_user_do_not_delay_another_one() {
    const MB: usize = 1_000_000;
    // Memory for one page of rows.
    let outlets = Outlets::new(24 * MB, 8 * MB, ROOM_MAX, Arc::default());
    let blocks = "unix".parse().expect("a list of addresses");
    let admission = Admission::new(Limits::default(), blocks, Arc::default());
    let of = |n, user: &str| {
        let answer = answer(&outlets, n);
        answer.is_of(admission.ask_as(user).expect("no limit is reached"));
        answer
    };
    let held = answer(&outlets, 1).page_room(PageKind::Rows).await;
    let (ended, mut order) = tokio::sync::mpsc::unbounded_channel();
    for (n, user) in (2..=40).map(|n| (n, "eve")).chain([(41, "nora")]) {
        let (answer, ended) = (of(n, user), ended.clone());
        tokio::spawn(async move {
            let room = answer.page_room(PageKind::Rows).await;
            ended.send(user).expect("the test waits");
            drop(room);
        });
        tokio::task::yield_now().await;
    }
    drop((held, ended));
    let mut users = Vec::new();
    while let Some(user) = order.recv().await {
        users.push(user);
    }
    assert_eq!(users.len(), 40);
    assert!(users[..6].contains(&"nora"), "{users:?}");
}

#[tokio::test(start_paused = true)]
async fn addresses_take_turns_where_memory_has_no_limit_by_address() {
    let (outlets, held, []) = full_rows::<0>().await;
    let blocks = "unix".parse().expect("a list of addresses");
    let admission = Admission::new(Limits::default(), blocks, Arc::default());
    let (ended, mut order) = tokio::sync::mpsc::unbounded_channel();
    for n in [2_u8; 20].into_iter().chain([3]) {
        let answer = outlets.connect(true).begin().expect("a new connection has no answers");
        let peer = Peer { address: Some(([192, 0, 2, n], 1).into()), is_secure: false };
        let request = admission.ask(&peer).expect("no limit is reached");
        answer.is_from(request.expect("the address has limits"));
        let ended = ended.clone();
        tokio::spawn(async move {
            let room = answer.page_room(PageKind::Rows).await;
            ended.send(n).expect("the test waits");
            drop(room);
        });
        tokio::task::yield_now().await;
    }
    drop((held, ended));
    let mut addresses = Vec::new();
    while let Some(address) = order.recv().await {
        addresses.push(address);
    }
    assert_eq!(addresses.len(), 21);
    assert!(addresses[..6].contains(&3), "{addresses:?}");
}

/// Returns outlets with memory for one page of rows, that page, and tasks of different addresses.
async fn full_rows<const N: usize>() -> (Arc<Outlets>, AnswerMemory, [Arc<Outlet>; N]) {
    const MB: usize = 1_000_000;
    let outlets = Outlets::new(24 * MB, 8 * MB, ROOM_MAX, Arc::default());
    let held = answer(&outlets, 1).page_room(PageKind::Rows).await;
    let mut n = 1;
    let waiting = [(); N].map(|()| {
        n += 1;
        answer(&outlets, n)
    });
    (outlets, held, waiting)
}

#[tokio::test(start_paused = true)]
async fn a_task_that_pauses_while_it_waits_does_not_keep_the_turn() {
    let (_outlets, held, [pausing, other]) = full_rows::<2>().await;
    // A feed whose client does not take its heartbeats.
    let mut paused = Box::pin(pausing.page_room(PageKind::Little));
    assert!((&mut paused).now_or_never().is_none());
    let others = tokio::spawn(async move { drop(other.page_room(PageKind::Little).await) });
    pass(PATIENCE).await;
    assert!(!others.is_finished());
    drop(held);
    tokio::time::timeout(ROOM_MAX, others).await.expect("the turn passes on").expect("the task ended");
    drop(paused.await);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_waits_for_its_turn_is_a_waiter() {
    let (outlets, held, [one, other]) = full_rows::<2>().await;
    let first = tokio::spawn(async move { one.page_room(PageKind::Rows).await });
    tokio::task::yield_now().await;
    let second = tokio::spawn(async move { other.page_room(PageKind::Rows).await });
    pass(PATIENCE * 3 / 5).await;
    drop(held);
    let held = first.await.expect("the task ended");
    assert!(!outlets.rows.is_waited_for());
    // The second has had the turn for less than that.
    pass(PATIENCE * 3 / 5).await;
    assert!(outlets.rows.is_waited_for());
    drop(held);
    drop(second.await.expect("the task ended"));
    assert!(!outlets.rows.is_waited_for() && outlets.page_usage().used == 0);
}

/// No answer has made progress since the server's start.
#[test]
fn an_answer_that_begins_late_is_not_taken_for_one_that_has_stalled() {
    const STALL_MAX_MS: u64 = 50_000;
    let mut outlets = Outlets::new(64 * 1024 * 1024, 8 * 1024 * 1024, ROOM_MAX, Arc::default());
    Arc::get_mut(&mut outlets).expect("no other reference exists").began = Instant::now() - Duration::from_secs(100);
    let connection = outlets.connect(true);
    let answers: Vec<_> = (0..900).filter_map(|_| connection.begin()).collect();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let mut stalled = 0;
            while !is_over.load(Ordering::Relaxed) {
                stalled += answers.iter().filter(|answer| answer.is_stalled(answer.now(), STALL_MAX_MS)).count();
            }
            stalled
        });
        for answer in answers.iter().cycle().take(300_000) {
            answer.moved.store(0, Ordering::Relaxed);
            drop(OutgoingText::new(Bytes::new(), Some(answer.clone()), None));
        }
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(looking.join().expect("looked"), 0);
    });
}
