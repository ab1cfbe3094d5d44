use flatbed_testkit::Random;

use super::*;
use crate::engine_request::ReduceRequest;
use crate::list::Link;
use crate::writes::{WriteContext, WriteTexts};

fn replies() -> Vec<Reply> {
    let errors = [
        Error::Forbidden("a".to_owned()),
        Error::Unauthorized("é".to_owned()),
        Error::Missing,
        Error::Language(String::new()),
        Error::Compilation("c".to_owned()),
        Error::Thrown { name: "n".to_owned(), reason: "r".to_owned() },
        Error::TimedOut(Duration::from_millis(7)),
        Error::OutOfResources,
        Error::Busy,
    ];
    let said = SyncOutput {
        channels: ["A".to_owned(), "B".to_owned()].into(),
        grants: [("jan".to_owned(), "A".to_owned())].into(),
        roles: [("jan".to_owned(), "role:r".to_owned())].into(),
        counts: [2, 1],
        is_cut: true,
        rejected: Some((403.0, "no".to_owned())),
        expires_at: Some(17),
        bytes: 0,
    };
    let heard = vec![
        Ok(SyncOutcome::Finished(said)),
        Ok(SyncOutcome::Thrown),
        Ok(SyncOutcome::Finished(SyncOutput::default())),
        Err(Error::Busy),
    ];
    let (documents, logs) = (vec!["[[1,2]]".to_owned(), String::new()], vec!["seen".to_owned()]);
    let outputs = [
        Output::Text("text".to_owned()),
        Output::Mapped { documents: documents.clone(), stopped: Some(Error::OutOfResources), logs },
        Output::Mapped { documents: Vec::new(), stopped: None, logs: Vec::new() },
        Output::Reduced(vec![documents, Vec::new()]),
        Output::Routed(heard),
        Output::Validated(vec![Ok(String::new()), Err(Error::Busy), Ok("[\"error\",\"n\",\"r\"]".to_owned())]),
    ];
    let done = |(at, result)| Reply::Done { is_kept: at % 2 == 0, is_last: at % 3 == 0, result };
    outputs.map(Ok).into_iter().chain(errors.map(Err)).enumerate().map(done).collect()
}

/// Returns a request that expects exactly the items of the reply.
fn asked(reply: &Reply) -> EngineRequest {
    let slice = Duration::ZERO;
    match reply {
        Reply::Exchange(_) => EngineRequest::List { input: String::new(), link: Link::loose() },
        Reply::Done { result: Ok(output), .. } => match output {
            Output::Text(_) => EngineRequest::Check,
            Output::Mapped { documents, .. } => {
                EngineRequest::Map { documents: vec![Vec::new(); documents.len()], views: 1, slice, is_fresh: false }
            }
            Output::Reduced(results) => {
                let ask = |results: &Vec<String>| ReduceRequest {
                    functions: vec![(0, 0); results.len()],
                    is_rereduce: false,
                    input: String::new(),
                };
                EngineRequest::Reduce { asks: results.iter().map(ask).collect(), slice }
            }
            Output::Routed(heard) => {
                let writes = vec![SyncWrite::default(); heard.len()].into();
                EngineRequest::Route { writes, slice, step_max: slice }
            }
            Output::Validated(told) => {
                let writes = vec![WriteTexts { document: String::new(), old: None }; told.len()].into();
                let context = WriteContext { user: "".into(), security: "".into() };
                EngineRequest::Validate { context, writes, slice, step_max: slice }
            }
        },
        Reply::Done { result: Err(_), .. } => EngineRequest::Check,
    }
}

/// A hostile process may claim millions of items of one byte each, which take 150 bytes each as values.
#[test]
fn more_than_was_asked_for_is_not_read() {
    let done = |output| Reply::Done { is_kept: false, is_last: false, result: Ok(output) };
    let mapped = |documents: usize, logs: usize| {
        let (documents, logs) = (vec!["[]".to_owned(); documents], vec![String::new(); logs]);
        done(Output::Mapped { documents, stopped: None, logs })
    };
    let reduced =
        |counts: &[usize]| done(Output::Reduced(counts.iter().map(|count| vec!["[1]".to_owned(); *count]).collect()));
    let thrown = |count: usize| done(Output::Routed((0..count).map(|_| Ok(SyncOutcome::Thrown)).collect()));
    let told = |count: usize| done(Output::Validated(vec![Ok(String::new()); count]));
    let said = |channels: usize, grants: usize| {
        let channels = (0..channels).map(|n| n.to_string()).collect();
        let grants = (0..grants).map(|n| (n.to_string(), "A".to_owned())).collect();
        done(Output::Routed(vec![Ok(SyncOutcome::Finished(SyncOutput { channels, grants, ..SyncOutput::default() }))]))
    };
    for (most, more) in [
        (mapped(3, 0), mapped(4, 0)),
        (mapped(3, LOGS_MAX), mapped(3, LOGS_MAX + 1)),
        (reduced(&[1, 2]), reduced(&[1, 3])),
        (reduced(&[1, 2]), reduced(&[1, 2, 1])),
        (thrown(3), thrown(4)),
        (told(3), told(4)),
        (said(OUTPUT_ENTRIES_MAX, OUTPUT_ENTRIES_MAX), said(OUTPUT_ENTRIES_MAX + 1, 0)),
        (said(OUTPUT_ENTRIES_MAX, OUTPUT_ENTRIES_MAX), said(0, OUTPUT_ENTRIES_MAX + 1)),
    ] {
        let ask = asked(&most);
        assert_eq!(read_reply(&written(&most), &ask).as_ref(), Some(&most));
        assert!(read_reply(&written(&more), &ask).is_none());
        // A reply to another request is refused too.
        let other = if matches!(ask, EngineRequest::Map { .. }) { asked(&thrown(9)) } else { asked(&mapped(9, 0)) };
        assert!(read_reply(&written(&most), &other).is_none());
    }
    let exchange = Reply::Exchange(ListPart::default());
    assert!(read_reply(&written(&exchange), &asked(&exchange)).is_some());
    assert!(read_reply(&written(&exchange), &EngineRequest::Check).is_none());
    assert!(reply_bytes_max(&asked(&said(1, 1))) < 4 << 20 && reply_bytes_max(&EngineRequest::Check) < 4 << 20);
}

fn written(reply: &Reply) -> Vec<u8> {
    let mut frame = Frame::begin(Vec::new());
    match reply {
        Reply::Exchange(part) => {
            write_exchange(&mut frame, part.wants_rows, part.response.as_deref().unwrap_or_default(), &part.text);
        }
        Reply::Done { is_kept, is_last, result } => write_done(&mut frame, (*is_kept, *is_last), result),
    }
    frame.end().unwrap()[4..].to_vec()
}

#[test]
fn replies_are_read_as_they_were_written() {
    let exchange = ListPart { response: Some("{}".to_owned()), text: "t".to_owned(), wants_rows: true, is_end: false };
    for reply in replies().into_iter().chain([Reply::Exchange(exchange)]) {
        assert_eq!(read_reply(&written(&reply), &asked(&reply)).as_ref(), Some(&reply));
    }
}

/// A hostile process may send replies that are cut, changed or random.
#[test]
fn what_is_no_reply_is_refused_and_nothing_panics() {
    let (mut random, all) = (Random(flatbed_testkit::seed(37)), replies());
    let mut refused = 0;
    for reply in &all {
        let (whole, ask) = (written(reply), asked(reply));
        for end in 0..whole.len() {
            assert_eq!(read_reply(&whole[..end], &ask), None, "{reply:?}");
        }
        assert_eq!(read_reply(&[&whole[..], &[0]].concat(), &ask), None, "{reply:?}");
        for _ in 0..2_000 {
            let mut changed = whole.clone();
            for _ in 0..=random.below(3) {
                let at = random.below(changed.len() as u64) as usize;
                changed[at] = match random.below(4) {
                    0 => 255,
                    1 => 0,
                    _ => random.below(256) as u8,
                };
            }
            refused += usize::from(read_reply(&changed, &ask).is_none());
        }
    }
    for length in 0..400 {
        for _ in 0..20 {
            let bytes: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
            let asks = all.iter().map(asked);
            refused += usize::from(asks.map(|ask| read_reply(&bytes, &ask)).all(|reply| reply.is_none()));
        }
    }
    assert!(refused > 8_000, "{refused}");
}

#[test]
fn requests_are_read_as_they_were_written() {
    let writer = Arc::new(Writer { name: "jan".to_owned(), channels: ["A".to_owned()].into(), ..Writer::default() });
    let write = |document: &str, writer: Option<&Arc<Writer>>| SyncWrite {
        document: document.to_owned(),
        old: Some("{}".to_owned()),
        writer: writer.cloned(),
        now_s: 5,
        ..SyncWrite::default()
    };
    let writes = [write("a", Some(&writer)), write("b", None), write("c", Some(&writer))];
    let (slice, step_max) = (Duration::from_millis(20), Duration::from_secs(2));
    let ask = EngineRequest::Route { writes: writes.clone().into(), slice, step_max };
    let mut frame = Frame::begin(Vec::new());
    write_call(&mut frame, 9, (&[3, 4], 5), Some("source"), &ask);
    let frame = &frame.end().unwrap()[4..];
    let Some(Request::Call(request)) = read_request(frame) else { panic!("no call") };
    assert_eq!((request.number, &request.dropped[..], request.slot), (9, &[3, 4][..], 5));
    assert!(request.part == MachineKind::Sync && request.text == Some("source"));
    let Work::Route { writes: read, .. } = request.work else { panic!("no writes") };
    for (read, written) in read.iter().zip(&writes) {
        assert_eq!((&read.document, &read.old, &read.writer), (&written.document, &written.old, &written.writer));
        assert_eq!((read.now_s, &read.meta), (5, &None));
    }
    assert_eq!(read.len(), writes.len());
}

#[test]
fn validations_are_read_as_they_were_written() {
    let texts = [("{}", None), ("{\"é\":1}", Some("null")), ("", Some("{}"))];
    let writes =
        texts.iter().map(|(document, old)| WriteTexts { document: (*document).into(), old: old.map(str::to_owned) });
    let context = WriteContext { user: "u".into(), security: "s".into() };
    let (slice, step_max) = (Duration::from_millis(20), Duration::from_secs(2));
    let ask = EngineRequest::Validate { context, writes: writes.collect(), slice, step_max };
    let mut frame = Frame::begin(Vec::new());
    write_call(&mut frame, 9, (&[], 5), None, &ask);
    let Some(Request::Call(request)) = read_request(&frame.end().unwrap()[4..]) else { panic!("no call") };
    assert!(request.part == MachineKind::Calls && request.text.is_none());
    let Work::Validate { context, writes, slice: read, step_max: most } = request.work else { panic!("no writes") };
    assert_eq!((context, &writes[..], read, most), (["u", "s"], &texts[..], slice, step_max));
}
