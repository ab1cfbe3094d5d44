use proptest::prelude::*;

use super::*;

fn seq(number: u64) -> Seq {
    Seq::parse(&number.to_string()).unwrap()
}

fn admit(plan: &mut Plan<u64>, id: &str, number: u64) {
    assert_eq!(plan.admit(id, seq(number), number), Ok(()));
}

fn checkpoint(plan: &mut Plan<u64>) -> Option<u64> {
    plan.checkpoint().and_then(|seq| seq.number()?.try_into().ok())
}

#[test]
fn the_checkpoint_waits_for_what_is_under_way() {
    let mut plan = Plan::new(10);
    for (number, id) in (1..).zip(["a", "b", "c"]) {
        admit(&mut plan, id, number);
    }
    let (a, b, c) = (plan.take(3).unwrap(), plan.take(3).unwrap(), plan.take(3).unwrap());
    assert_eq!([&a.id, &b.id, &c.id], ["a", "b", "c"]);
    let reach = |plan: &Plan<u64>, places: &[PlanPosition]| {
        plan.reach(&places.iter().copied().collect()).and_then(|seq| seq.number()?.try_into().ok())
    };
    assert_eq!([reach(&plan, &[]), reach(&plan, &[1, 2]), reach(&plan, &[0, 2])], [None, None, Some(1)]);
    plan.settle("b", b.place);
    plan.settle("c", c.place);
    assert_eq!(checkpoint(&mut plan), None);
    assert_eq!(reach(&plan, &[0]), Some(3));
    plan.settle("a", a.place);
    assert_eq!(checkpoint(&mut plan), Some(3));
    assert_eq!(checkpoint(&mut plan), None);
    assert!(plan.is_empty());
    // Rows that do not concern this job.
    plan.pass(seq(9));
    assert_eq!(checkpoint(&mut plan), Some(9));
    admit(&mut plan, "a", 10);
    plan.pass(seq(12));
    let a = plan.take(1).unwrap();
    assert_eq!(checkpoint(&mut plan), None);
    plan.settle("a", a.place);
    assert_eq!(checkpoint(&mut plan), Some(12));
}

#[test]
fn one_of_a_document_at_a_time_and_the_newest_of_those_that_wait() {
    let mut plan = Plan::new(10);
    admit(&mut plan, "a", 1);
    let first = plan.take(9).unwrap();
    admit(&mut plan, "a", 2);
    admit(&mut plan, "b", 3);
    admit(&mut plan, "a", 4);
    assert_eq!(plan.take(9).map(|taken| taken.change), Some(3));
    assert_eq!(plan.take(9), None);
    plan.settle("a", first.place);
    // A run that resumes after 2 finds 4.
    assert_eq!(checkpoint(&mut plan), Some(2));
    let newest = plan.take(9).unwrap();
    assert_eq!(newest.change, 4);
    // 2 is overtaken; 3 is under way.
    assert_eq!(checkpoint(&mut plan), None);
    plan.give_back(newest);
    assert_eq!(plan.take(9).map(|taken| taken.change), Some(4));
}

#[test]
fn what_is_given_back_is_overtaken_or_comes_again() {
    let mut plan = Plan::new(10);
    admit(&mut plan, "a", 1);
    let first = plan.take(1).unwrap();
    assert_eq!(plan.take(1), None);
    plan.give_back(first);
    let first = plan.take(1).unwrap();
    assert_eq!(first.change, 1);
    admit(&mut plan, "a", 2);
    plan.give_back(first);
    let second = plan.take(1).unwrap();
    assert_eq!(second.change, 2);
    plan.settle("a", second.place);
    assert_eq!(checkpoint(&mut plan), Some(2));
    assert_eq!((plan.under_way(), plan.is_empty()), (0, true));
    // Settled twice, or by a caller that did not take it.
    plan.settle("a", 0);
    plan.settle("x", 7);
    assert_eq!(plan.under_way(), 0);
}

#[test]
fn there_is_a_bound() {
    let mut plan = Plan::new(2);
    admit(&mut plan, "a", 1);
    admit(&mut plan, "a", 2);
    // Two changes of one document: the newer settles the older, which makes room.
    assert_eq!(plan.room(), 1);
    admit(&mut plan, "b", 3);
    assert_eq!((plan.room(), plan.admit("c", seq(4), 4)), (0, Err(4)));
}

proptest! {
    /// Admissions, deliveries and failures in any order, compared with a model target.
    #[test]
    fn documents_are_delivered_in_order_and_the_checkpoint_passes_nothing(
        steps in proptest::collection::vec((0_u8..4, any::<u16>()), 1..200), at_once in 1_usize..6, room in 1_usize..20,
    ) {
        let mut plan = Plan::new(room);
        let (mut number, mut under_way) = (0_u64, Vec::<PlannedChange<u64>>::new());
        let mut newest: HashMap<String, u64> = HashMap::new();
        // The newest settled change of each document.
        let mut target: HashMap<String, u64> = HashMap::new();
        let mut all: Vec<(u64, String)> = Vec::new();
        let mut passed = 0;
        let mut steps = steps.into_iter();
        loop {
            let (step, chance) = match steps.next() {
                Some(step) => step,
                None if plan.is_empty() => break,
                None => (1 + u8::from(!under_way.is_empty()), 0),
            };
            let pick = |under_way: &[PlannedChange<u64>]| usize::from(chance) % under_way.len();
            match step {
                0 => {
                    let id = format!("d{}", chance % 7);
                    if plan.room() > 0 {
                        number += 1;
                        admit(&mut plan, &id, number);
                        newest.insert(id.clone(), number);
                        all.push((number, id));
                    } else {
                        prop_assert!(plan.admit(&id, seq(number + 1), 0).is_err());
                    }
                }
                1 => {
                    if let Some(taken) = plan.take(at_once) {
                        prop_assert!(under_way.iter().all(|other| other.id != taken.id));
                        under_way.push(taken);
                    }
                }
                2 if !under_way.is_empty() => {
                    let taken = under_way.swap_remove(pick(&under_way));
                    plan.settle(&taken.id, taken.place);
                    let before = target.insert(taken.id, taken.change);
                    prop_assert!(before < Some(taken.change));
                }
                3 if !under_way.is_empty() => {
                    let taken = under_way.swap_remove(pick(&under_way));
                    plan.give_back(taken);
                }
                _ => {}
            }
            prop_assert!(under_way.len() <= at_once && plan.under_way() == under_way.len());
            if let Some(at) = checkpoint(&mut plan) {
                prop_assert!(at > passed);
                passed = at;
            }
            // A run that resumes from the checkpoint misses nothing: each earlier change is settled, or followed by a
            // newer change of its document.
            for (number, id) in all.iter().filter(|(number, _)| *number <= passed) {
                let has = target.get(id).copied().unwrap_or(0);
                prop_assert!(has >= *number || newest[id] > passed, "{} of {}", number, id);
            }
        }
        prop_assert_eq!(target, newest);
        prop_assert_eq!(passed, number);
    }
}
