use std::sync::atomic::AtomicBool;

use flatbed_testkit::until_blocking;

use super::*;

#[test]
fn the_dead_are_waited_for_where_none_starts() {
    crate::child::link();
    // A process that receives an invalid setup ends.
    let nursery = Nursery::begin(Frame::begin(Vec::new()), 1).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    assert!(nursery.take().is_none());
                }
            });
        }
        let gone = || {
            let started = i64::try_from(nursery.figures.function_processes_started.get()).unwrap();
            started - nursery.figures.function_processes.get()
        };
        until_blocking("many are waited for", || gone() >= 10);
        is_over.store(true, Ordering::Relaxed);
    });
    nursery.close();
    until_blocking("none is left", || nursery.figures.function_processes.get() == 0);
}

#[test]
fn a_process_that_counts_falsely_takes_no_more_than_it_can_have() {
    crate::child::link();
    let (of_one, all) = (16 << 20, 1 << 40);
    let nursery = Nursery::start(&Code::compile(of_one).unwrap(), all).unwrap();
    let process = nursery.take().unwrap();
    let pages = nursery.lock().pages.clone();
    nursery.total.bytes.store(usize::MAX, Ordering::Relaxed);
    until_blocking("it is counted", || nursery.counted() == 0);
    pages.iter().for_each(|page| page.counted.store(usize::MAX, Ordering::Relaxed));
    until_blocking("it is bounded", || nursery.counted() > 0);
    assert!(nursery.counted() <= pages.len() * ENGINES_MAX * of_one);
    drop(process);
    until_blocking("it is counted no more", || nursery.counted() <= SPARE_MAX * ENGINES_MAX * of_one);
    nursery.close();
    until_blocking("nothing is left", || nursery.counted() == 0);
}
