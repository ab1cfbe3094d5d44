//! Rows that no body produces: each gives a typed error or JSON, never a panic.

use crate::support::{Names, Pairs, any_body, slices, text_of};
use flatbed_flatten::json::{self, Limits, ParseErrorKind};
use flatbed_flatten::path::{put_int, put_literal};
use flatbed_flatten::{
    DecodeError, FlattenOptions, flatten, pack, pick, read_body, read_subtree, validate, write_members,
};
use proptest::prelude::*;

/// A path of ids, markers and positions; negative: the literal name "l".
fn path(elements: &[i64]) -> Vec<u8> {
    let mut path = Vec::new();
    for element in elements {
        match u64::try_from(*element) {
            Ok(value) => put_int(&mut path, value),
            Err(_) => put_literal(&mut path, "l"),
        }
    }
    path
}

#[test]
fn what_is_wrong_is_told() {
    use DecodeError::{BadOrder, BadPath, BadRun, BadScalar, Empty, Gap, OutOfOrder, UnknownFieldId};
    const NULL: &[u8] = &[0x10];
    let check = |rows: &[(&[i64], &[u8])], expected: DecodeError| {
        let pairs: Pairs = rows.iter().map(|(at, value)| (path(at), value.to_vec())).collect();
        let names = Names::new(["a", "b", "c"]);
        let mut out = b"before".to_vec();
        assert_eq!(write_members(slices(&pairs), &names, &mut out), Err(expected), "{rows:02x?}");
        assert_eq!(out, b"before");
        assert_eq!(validate(slices(&pairs), &names), Err(expected));
    };
    check(&[], Empty);
    check(&[(&[10], NULL), (&[13], NULL)], UnknownFieldId(13));
    // Roots that are not objects.
    check(&[(&[], NULL)], BadPath);
    check(&[(&[0, 0], NULL)], BadPath);
    check(&[(&[1, 0], &[0x18, 1, b'x'])], BadPath);
    check(&[(&[3, 0], &[0x19, 2, b'[', b']'])], BadScalar);
    check(&[(&[], &[0x16]), (&[10], NULL)], BadPath);
    // Reserved markers, and invalid elements below a marker.
    check(&[(&[4], NULL)], BadPath);
    check(&[(&[10, 9, 0], NULL)], BadPath);
    check(&[(&[10, 0], NULL)], BadPath);
    check(&[(&[10, 0, -1], NULL)], BadPath);
    check(&[(&[10, 1, 0, 0], &[0x18, 1, b'x'])], BadPath);
    check(&[(&[10], NULL), (&[10], NULL)], OutOfOrder);
    check(&[(&[11], NULL), (&[10], NULL)], OutOfOrder);
    check(&[(&[10, 11], NULL), (&[10], NULL)], OutOfOrder);
    // Two values in one place.
    check(&[(&[10], NULL), (&[10, 11], NULL)], BadPath);
    check(&[(&[10, 0, 0], NULL), (&[10, 11], NULL)], BadPath);
    check(&[(&[10, 1, 0], &[0x18, 1, b'x']), (&[10, 11], NULL)], BadPath);
    check(&[(&[10, 3, 0], &[0x19, 2, b'[', b']']), (&[10, 11], NULL)], BadPath);
    check(&[(&[10, -1], NULL), (&[10, 0, 0], NULL)], BadPath);
    check(&[(&[10, 0, 1], NULL)], Gap);
    check(&[(&[10, 0, 0], NULL), (&[10, 0, 2], NULL)], Gap);
    check(&[(&[10, 1, 0], &[0x18, 1, b'x']), (&[10, 1, 2], &[0x18, 1, b'x'])], Gap);
    check(&[(&[10], NULL), (&[11, 2, 0], &[0x1a, 2, 1, 0])], BadOrder);
    check(&[(&[2, 0], &[0x1a, 1, 0]), (&[10], NULL), (&[11], NULL)], BadOrder);
    check(&[(&[2, 0], &[0x1a, 2, 0, 0]), (&[10], NULL), (&[11], NULL)], BadOrder);
    check(&[(&[2, 0], &[0x1a, 2, 0, 2]), (&[10], NULL), (&[11], NULL)], BadOrder);
    check(&[(&[2, 0], &[0x1a, 3, 1, 0, 0]), (&[10], NULL), (&[11], NULL)], BadOrder);
    check(&[(&[2, 0], NULL), (&[10], NULL)], BadScalar);
    check(&[(&[10], &[0x1c])], BadScalar);
    check(&[(&[10], &[0x10, 0x10])], BadScalar);
    check(&[(&[10], &[0x82, 0xc3, 0x28])], BadScalar);
    check(&[(&[10], &[0xc1, b'1', b'.'])], BadScalar);
    check(&[(&[10], &[0x1b, 0x7f, 0xf0, 0, 0, 0, 0, 0, 0])], BadScalar);
    check(&[(&[10], &[0x18, 1, b'x'])], BadScalar);
    check(&[(&[10, 1, 0], NULL)], BadScalar);
    check(&[(&[10, 3, 0], &[0x19, 2, b'[', b'['])], BadScalar);
    check(&[(&[10, 3, 0], &[0x19, 1, b'1'])], BadScalar);
    check(&[(&[10], &[0x81])], BadRun);
    check(&[(&[10], &[])], BadRun);
    check(&[(&[10], &[0x00])], BadRun);
    check(&[(&[10], &[0x02, 0x10])], BadRun);
    check(&[(&[10], &[0x00, 0x10, 0])], BadRun);
    check(&[(&[10], &[0x00, 0x10, 3, 1, 11, 0x10])], BadRun);
    check(&[(&[10], &[0x00, 0x10, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 2, 0, 0x10])], BadRun);
    check(&[(&[10], &[0x01, 0xff, 0xff, 0xff, 0x7f, 0x10])], BadRun);
    check(&[(&[10], &[0x01, 2, 0x10, 0x10])], BadRun);
    check(&[(&[10], &[0x00, 0x10, 1, 1, 10, 0x10])], OutOfOrder);
}

#[test]
fn a_path_may_not_be_longer_than_a_key() {
    let names = Names::new(["a"]);
    let deep: Vec<i64> = vec![10; 1_000];
    let check = |elements: usize, expected: bool| {
        let pairs = vec![(path(&deep[..elements]), vec![0x10])];
        assert_eq!(text_of(&pairs, &names).is_ok(), expected);
        let rest = path(&deep[..elements]);
        let mut run = vec![0x00, 0x10, 0, 0x80 | (rest.len() & 0x7f) as u8, (rest.len() >> 7) as u8];
        run.extend_from_slice(&rest);
        run.push(0x10);
        assert_eq!(text_of(&vec![(path(&[-1]), run)], &names).is_ok(), expected);
    };
    check(1_000, true);
    let long = vec![(path(&vec![10; 5_001]), vec![0x10])];
    assert_eq!(text_of(&long, &names), Err(DecodeError::BadPath));
    for (bytes, expected) in [(9_998, Ok(())), (9_999, Err(DecodeError::BadPath))] {
        let mut long = Vec::new();
        put_literal(&mut long, &"n".repeat(bytes));
        assert_eq!(text_of(&vec![(long, vec![0x10])], &names).map(drop), expected);
    }
    let deep = vec![(path(&vec![10; 1_003]), vec![0x10])];
    assert_eq!(text_of(&deep, &names), Err(DecodeError::BadPath));
}

#[test]
fn a_run_may_not_inflate_beyond_its_bound() {
    let names = Names::new(["a"]);
    for (string_bytes, expected) in [(89_000, true), (90_000, false)] {
        // A tag, three bytes of length, and the string.
        let mut plain = vec![0x15, 0x80 | (string_bytes & 0x7f) as u8, 0x80 | (string_bytes >> 7 & 0x7f) as u8];
        plain.push((string_bytes >> 14) as u8);
        plain.resize(4 + string_bytes, b'x');
        let mut run = vec![0x01, 0x80 | (plain.len() & 0x7f) as u8, 0x80 | (plain.len() >> 7 & 0x7f) as u8];
        run.push((plain.len() >> 14) as u8);
        run.extend_from_slice(&lz4_flex::block::compress(&plain));
        assert_eq!(text_of(&vec![(path(&[10]), run)], &names).is_ok(), expected);
    }
}

#[test]
fn a_name_that_stands_twice_is_found() {
    let names = Names::new(["l"]);
    let pairs = vec![(path(&[-1]), vec![0x10]), (path(&[10]), vec![0x10])];
    assert_eq!(text_of(&pairs, &names).unwrap(), r#"{"l":null,"l":null}"#);
    assert_eq!(validate(slices(&pairs), &names), Err(DecodeError::BadPath));
}

#[derive(Debug, Clone)]
enum Damage {
    Set(prop::sample::Index, prop::sample::Index, u8, bool),
    Cut(prop::sample::Index, prop::sample::Index, bool),
    Insert(prop::sample::Index, prop::sample::Index, Vec<u8>, bool),
    Drop(prop::sample::Index),
    Repeat(prop::sample::Index),
    Swap(prop::sample::Index, prop::sample::Index),
}

impl Damage {
    fn any() -> impl Strategy<Value = Damage> {
        let index = any::<prop::sample::Index>;
        let byte = prop_oneof![0..0x20_u8, any::<u8>()];
        prop_oneof![
            (index(), index(), byte.clone(), any::<bool>())
                .prop_map(|(pair, at, byte, path)| Damage::Set(pair, at, byte, path)),
            (index(), index(), any::<bool>()).prop_map(|(pair, at, path)| Damage::Cut(pair, at, path)),
            (index(), index(), proptest::collection::vec(byte, 1..4), any::<bool>())
                .prop_map(|(pair, at, bytes, path)| Damage::Insert(pair, at, bytes, path)),
            index().prop_map(Damage::Drop),
            index().prop_map(Damage::Repeat),
            (index(), index()).prop_map(|(one, other)| Damage::Swap(one, other)),
        ]
    }

    fn apply(&self, pairs: &mut Pairs) {
        if pairs.is_empty() {
            return;
        }
        let len = pairs.len();
        fn side(pair: &mut (Vec<u8>, Vec<u8>), path: bool) -> &mut Vec<u8> {
            if path { &mut pair.0 } else { &mut pair.1 }
        }
        match self {
            Damage::Set(pair, at, byte, path) => {
                let bytes = side(&mut pairs[pair.index(len)], *path);
                if !bytes.is_empty() {
                    let at = at.index(bytes.len());
                    bytes[at] = *byte;
                }
            }
            Damage::Cut(pair, at, path) => {
                let bytes = side(&mut pairs[pair.index(len)], *path);
                bytes.truncate(at.index(bytes.len() + 1));
            }
            Damage::Insert(pair, at, inserted, path) => {
                let bytes = side(&mut pairs[pair.index(len)], *path);
                let at = at.index(bytes.len() + 1);
                bytes.splice(at..at, inserted.iter().copied());
            }
            Damage::Drop(pair) => drop(pairs.remove(pair.index(len))),
            Damage::Repeat(pair) => pairs.push(pairs[pair.index(len)].clone()),
            Damage::Swap(one, other) => pairs.swap(one.index(len), other.index(len)),
        }
    }
}

/// The output is JSON, though it may be too deep or contain a number that the parser refuses.
fn look_at(pairs: &Pairs, names: &Names) {
    let mut out = b"{".to_vec();
    if write_members(slices(pairs), names, &mut out).is_ok() {
        out.push(b'}');
        let refused = json::parse(&out, &Limits::default()).err().map(|error| error.kind);
        assert!(matches!(refused, None | Some(ParseErrorKind::Depth | ParseErrorKind::Number)), "{refused:?}");
    } else {
        assert_eq!(out, b"{");
        assert!(validate(slices(pairs), names).is_err() && read_body(slices(pairs), names).is_err());
    }
    let _ = read_subtree(slices(pairs), &path(&[10]), names);
    let _ = pick(slices(pairs), &[path(&[10]), path(&[11, 12])], names);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn damaged_rows_do_not_panic(
        body in any_body(), run_bytes in prop_oneof![Just(0_usize), 1..300_usize],
        path_bytes_max in prop_oneof![Just(40_usize), Just(8_000)],
        damage in proptest::collection::vec(Damage::any(), 1..4),
    ) {
        let names = Names::of(&body, |name| name.len() == 1);
        let mut pairs = pack(&flatten(&body, &names, &FlattenOptions { path_bytes_max }), run_bytes);
        damage.iter().for_each(|damage| damage.apply(&mut pairs));
        look_at(&pairs, &names);
    }

    #[test]
    fn foreign_bytes_do_not_panic(
        pairs in proptest::collection::vec((
            proptest::collection::vec(prop_oneof![0x14..0x17_u8, 0..16_u8, any::<u8>()], 0..8),
            proptest::collection::vec(prop_oneof![0..0x20_u8, any::<u8>()], 0..20),
        ), 0..6),
    ) {
        look_at(&pairs, &Names::new(["a", "b"]));
    }
}
