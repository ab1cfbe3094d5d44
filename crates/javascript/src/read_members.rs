//! Finds the members of a document that a sync function can read. Most functions read three members and need no
//! others.
//!
//! The analysis is conservative. It succeeds if the source is one function with a body, its first two parameters are
//! plain names, and the first one appears only before the dot of a member. For anything else the function gets the
//! whole document: `doc[name]`, `JSON.stringify(doc)`, an inner parameter of the same name, or syntax that this
//! module does not parse (templates, regular expressions, escapes in names).

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReadMembers {
    pub(crate) members: Option<Vec<String>>,
    /// True if the function may read the replaced document.
    pub(crate) is_old: bool,
}

impl ReadMembers {
    const ALL: ReadMembers = ReadMembers { members: None, is_old: true };

    pub(crate) fn of(source: &str) -> ReadMembers {
        read(source).unwrap_or(ReadMembers::ALL)
    }
}

/// Texts with which code reaches a parameter without its name, or that change how the source is parsed.
const HIDDEN: [&str; 4] = ["eval", "arguments", "<!--", "-->"];

/// The most members and parameters of an analysed function: each member of each written document is compared with all
/// of them. A function with more gets the whole document.
const MEMBERS_MAX: usize = 32;
const PARAMETERS_MAX: usize = 8;

/// Members that every object inherits. They are not members of the document.
const INHERITED: [&str; 12] = [
    "constructor",
    "hasOwnProperty",
    "isPrototypeOf",
    "propertyIsEnumerable",
    "toLocaleString",
    "toString",
    "valueOf",
    "__proto__",
    "__defineGetter__",
    "__defineSetter__",
    "__lookupGetter__",
    "__lookupSetter__",
];

fn read(source: &str) -> Option<ReadMembers> {
    if HIDDEN.iter().any(|hidden| source.contains(hidden)) {
        return None;
    }
    let code = code(source)?;
    let (parameters, body) = parts(&code)?;
    let mut names = parameters.iter();
    let members = names.next().map(|document| members(body, document)).unwrap_or_else(|| Some(Vec::new()));
    let is_old = names.next().is_some_and(|old| words(body).any(|(word, ..)| word == *old));
    Some(ReadMembers { members, is_old })
}

/// Blanks out comments and strings. Returns `None` for syntax that is not supported.
fn code(source: &str) -> Option<String> {
    let mut code = String::with_capacity(source.len());
    let mut rest = source.chars().peekable();
    while let Some(next) = rest.next() {
        match next {
            '"' | '\'' => {
                loop {
                    match rest.next()? {
                        '\\' => drop(rest.next()?),
                        end if end == next => break,
                        '\n' | '\r' => return None,
                        _ => {}
                    }
                }
                // The quotes keep names on both sides apart.
                code.push_str("''");
            }
            '/' => match rest.next()? {
                '/' => {
                    while rest.next_if(|next| !matches!(next, '\n' | '\r' | '\u{2028}' | '\u{2029}')).is_some() {}
                    code.push(' ');
                }
                '*' => {
                    let mut last = ' ';
                    loop {
                        let next = rest.next()?;
                        if (last, next) == ('*', '/') {
                            break;
                        }
                        last = next;
                    }
                    code.push(' ');
                }
                // A division or a regular expression.
                _ => return None,
            },
            '`' | '\\' => return None,
            next if next.is_ascii_graphic() || matches!(next, ' ' | '\t' | '\n' | '\r') => code.push(next),
            _ => return None,
        }
    }
    Some(code)
}

/// Splits a source that is exactly one function into its parameters and its body.
fn parts(code: &str) -> Option<(Vec<&str>, &str)> {
    let code = code.trim_end_matches(|end: char| end.is_ascii_whitespace() || end == ';').trim_start();
    let (head, rest) = code.split_once('(')?;
    let (parameters, rest) = rest.split_once(')')?;
    let rest = rest.trim_start();
    let body = match head.trim_end().strip_prefix("function").map(str::trim) {
        Some("") => rest,
        // A named function.
        Some(name)
            if head["function".len()..].starts_with(|next: char| next.is_ascii_whitespace()) && is_name(name) =>
        {
            rest
        }
        None if head.is_empty() => rest.strip_prefix("=>")?.trim_start(),
        _ => return None,
    };
    let mut depth = 0_usize;
    for (at, next) in body.char_indices() {
        match next {
            '{' => depth += 1,
            '}' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        // Code behind the body may call the function with other arguments.
        if depth == 0 && at + 1 < body.len() {
            return None;
        }
    }
    let parameters: Vec<&str> = match parameters.trim() {
        "" => Vec::new(),
        parameters => parameters.split(',').map(str::trim).take(PARAMETERS_MAX + 1).collect(),
    };
    if parameters.len() > PARAMETERS_MAX {
        return None;
    }
    let are_plain = parameters.iter().all(|name| is_name(name));
    let is_twice = |at: usize| parameters.iter().skip(at + 1).any(|name| parameters.get(at) == Some(name));
    (depth == 0 && are_plain && !(0..parameters.len()).any(is_twice)).then_some((parameters, body))
}

fn is_of_name(next: char) -> bool {
    next.is_ascii_alphanumeric() || matches!(next, '_' | '$')
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(is_of_name) && !text.starts_with(|first: char| first.is_ascii_digit())
}

fn words(code: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let begin = from + code[from..].find(is_of_name)?;
        let end = code[begin..].find(|next| !is_of_name(next)).map_or(code.len(), |length| begin + length);
        from = end;
        Some((&code[begin..end], &code[..begin], &code[end..]))
    })
}

/// Returns the members read through a parameter, or `None` if the parameter is used in any other way.
fn members(body: &str, parameter: &str) -> Option<Vec<String>> {
    let mut members = Vec::new();
    for (.., behind) in words(body).filter(|(word, ..)| *word == parameter) {
        let member = behind.trim_start();
        let member = member.strip_prefix("?.").or_else(|| member.strip_prefix('.'))?.trim_start();
        let (member, _, behind) = words(member).next().filter(|(_, before, _)| before.is_empty())?;
        // A function called as a member, also as `(doc.f)()`, gets the whole document as `this`.
        let next = behind.trim_start_matches(|next: char| next.is_ascii_whitespace() || next == ')');
        let is_called = next.strip_prefix("?.").unwrap_or(next).trim_start().starts_with('(');
        if is_called || !is_name(member) || INHERITED.contains(&member) {
            return None;
        }
        if members.iter().any(|known| known == member) {
            continue;
        }
        if members.len() == MEMBERS_MAX {
            return None;
        }
        members.push(member.to_owned());
    }
    Some(members)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(source: &str) -> (Option<Vec<String>>, bool) {
        let ReadMembers { members, is_old } = ReadMembers::of(source);
        (members, is_old)
    }

    #[test]
    fn members_that_are_named_are_wanted() {
        for (source, members, is_old) in [
            ("function (doc) { channel(doc.channels); }", "channels", false),
            ("function(doc,oldDoc,meta){channel(doc.a, doc . b, doc\n?.c, doc.a.d)}", "a b c", false),
            ("function sync (doc, oldDoc) { if (oldDoc) requireUser(oldDoc.owner); channel(doc.x) } ;\n", "x", true),
            ("(doc, old) => { channel(doc.$, doc._id); }", "$ _id", false),
            ("function () { channel('all'); }", "", false),
            ("function (doc) { /* doc itself } */ channel(doc.a, 'doc[\\'x\\']}'); // doc\n }", "a", false),
            ("function (d, doc) { channel(d.a); }", "a", false),
            ("function (doc) { doc.a = 1; delete doc.b; var docs = [document]; channel(doc.c); }", "a b c", false),
        ] {
            let members = members.split_whitespace().map(str::to_owned).collect();
            assert_eq!(of(source), (Some(members), is_old), "{source}");
        }
        assert_eq!(of("function (doc, old) { channel(doc); }"), (None, false));
    }

    #[test]
    fn few_are_told_apart() {
        let members = |count| (0..count).map(|n| format!("doc.m{n};")).collect::<String>();
        let source = |count| format!("function (doc) {{ {0}{0} }}", members(count));
        assert_eq!(of(&source(MEMBERS_MAX)).0.map(|members| members.len()), Some(MEMBERS_MAX));
        assert_eq!(of(&source(MEMBERS_MAX + 1)).0, None);
        let more = |count| (0..count).map(|n| format!(", p{n}")).collect::<String>();
        assert!(of(&format!("function (doc{}) {{ }}", more(PARAMETERS_MAX - 1))).0.is_some());
        assert!(of(&format!("function (doc{}) {{ }}", more(PARAMETERS_MAX))).0.is_none());
    }

    #[test]
    fn all_is_wanted_where_that_is_not_certain() {
        for source in [
            "function (doc) { channel(doc[name]); }",
            "function (doc) { channel(JSON.stringify(doc)); }",
            "function (doc) { var copy = doc; }",
            "function (doc) { for (var name in doc) channel(name); }",
            "function (doc) { return [1].map(function (doc) { return doc.a; }); }",
            "function (doc) { ({doc}); }",
            "function (doc) { channel(doc.hasOwnProperty('a')); }",
            "function (doc) { channel(doc?.['a']); }",
            "function (doc) { channel(doc.#a); }",
            "function (doc) { doc.f = function () { channel(this.a); }; doc.f(); }",
            "function (doc) { doc.f = ({}).valueOf; channel((( doc.f ) ) (0).a); }",
            "function (doc) { doc.f = ({}).valueOf; channel((doc.f)?. ().a); }",
        ] {
            assert_eq!(of(source), (None, false), "{source}");
        }
        for source in [
            "function (doc) { channel(doc.ä); }",
            "function (doc) { channel(doc.\\u0061); }",
            "function (doc) { channel(`${doc.a}`); }",
            "function (doc) { channel(doc.a / 2); }",
            "function (doc) { if (/}/.test(doc.a)) channel(doc); }",
            "function (doc) { channel(arguments[0].a); }",
            "function (doc) { channel(eval('doc')); }",
            "function (doc) { channel(doc.a) <!-- b\n }",
            "function (doc = {}) { channel(doc.a); }",
            "function ({a}) { channel(a); }",
            "function (...doc) { channel(doc.length); }",
            "function (doc, doc) { channel(doc.a); }",
            "async function (doc) { channel(doc.a); }",
            "function* (doc) { channel(doc.a); }",
            "function (doc) { channel(doc.a); }.bind(null, {})",
            "function (a) { channel(a.a); }, function (doc) { channel(doc); }",
            "function (a) { channel(a.a); } && function (doc) { channel(doc); }",
            "(function () { return function (doc) { channel(doc.a); }; })()",
            "doc => channel(doc.a)",
            "(doc) => channel(doc.a)",
            "(doc) => { channel(doc.a); }({})",
            "functions (doc) { channel(doc.a); }",
            "function (doc) { channel('doc.a); }",
            "function (doc) { channel(doc.a); } /* never ended",
            "function (doc) { channel(doc.a); }}",
            "function (doc) { channel(doc.a);",
            "",
        ] {
            assert_eq!(of(source), (None, true), "{source}");
        }
    }
}
