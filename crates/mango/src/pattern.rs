//! Regular expressions with bounds on their memory and time.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use regex_automata::meta::{BuildError, Builder, Config, Regex};
use regex_automata::nfa::thompson::{self, NFA, WhichCaptures};
use regex_automata::util::look::LookMatcher;
use regex_automata::util::syntax;

use crate::invalid::InvalidSelector;
use crate::matching::{MatchResult, all};
use crate::pcre::{Characters, LineEnd, PcreTranslation, translate};
use crate::search::Search;
use crate::steps::{STEPS_BETWEEN, Steps};

/// Memory classes of a compiled regular expression, in bytes. Each expression counts as the smallest class that holds
/// it.
const BYTES: [usize; 4] = [1 << 14, 1 << 16, 1 << 18, 1 << 20];

/// The longest pattern, in bytes; a longer one is refused. The engine parses the whole pattern before it counts the
/// memory, and a short class may take kilobytes. PCRE has the same limit for the compiled pattern.
const TEXT_BYTES_MAX: usize = 1 << 16;

/// The memory limit for all expressions of a selector together. Equal expressions are compiled once. Those that meet
/// long strings take about as much again.
const ALL_BYTES_MAX: usize = 4 << 20;

/// Bounds the product of an expression's memory and the string's length, both in bytes: all states may be alive at each
/// byte. On a longer string the expression does not match, as in CouchDB where PCRE reaches its limit.
const WORK_MAX: usize = 1 << 34;

/// The amount of this work that counts as one step.
const STEP_WORK: usize = 1 << 10;

/// A search of more steps can pause: about 2 ms.
const LONG_SEARCH_STEPS: usize = 100_000;

/// A compiled regular expression with a bound on its memory. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Pattern {
    parts: Arc<[Part]>,
    text: Arc<str>,
    bytes: usize,
}

#[derive(Debug)]
struct Part {
    regex: Regex,
    /// True if the part must match; false if it must not.
    is_wanted: bool,
    source: Source,
    /// The automaton for long strings, built on first use.
    nfa: OnceLock<Option<NFA>>,
}

#[derive(Debug)]
struct Source {
    text: Box<str>,
    unicode: bool,
    line_end: LineEnd,
    bytes: usize,
}

impl Pattern {
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the approximate work for a byte of a string.
    pub(crate) fn weight(&self) -> usize {
        self.bytes >> 10
    }

    pub(crate) fn is_match(&self, text: &str, steps: &mut Steps<'_>) -> MatchResult {
        if text.len() > WORK_MAX / self.bytes {
            steps.take(1)?;
            return Ok(false);
        }
        let text = text.as_bytes();
        let work = text.len() * self.bytes / STEP_WORK;
        if work <= LONG_SEARCH_STEPS {
            steps.take(work)?;
            return Ok(self.parts.iter().all(|part| part.regex.is_match(text) == part.is_wanted));
        }
        if !steps.is_resuming() {
            steps.take_ahead(work)?;
        }
        all(&self.parts, steps, |part, steps| Ok(part.is_match_in_slices(text, steps)? == part.is_wanted))
    }
}

impl Part {
    /// Matches a long string, whose steps have been taken.
    fn is_match_in_slices(&self, text: &[u8], steps: &mut Steps<'_>) -> MatchResult {
        let Some(nfa) = self.nfa.get_or_init(|| self.source.nfa()) else { return Ok(self.regex.is_match(text)) };
        let bytes = (STEPS_BETWEEN * STEP_WORK / self.source.bytes).max(1);
        let mut search = match steps.resume_search() {
            Some((at, states)) => Search::resume(nfa, at, states),
            None => Search::begin(nfa, text),
        };
        loop {
            if let Some(is_match) = search.advance(text, bytes) {
                return Ok(is_match);
            }
            steps.spend(bytes * self.source.bytes / STEP_WORK)?;
            if steps.is_slice_over() {
                return Err(steps.pause_search(search.into_paused()));
            }
        }
    }
}

impl Source {
    /// Compiles for the one engine whose memory is known. The automata and tables of the others may take megabytes for
    /// each thread, and the features of other crates decide which engines exist.
    fn regex(&self) -> Result<Regex, Box<BuildError>> {
        let config = Config::new().nfa_size_limit(Some(self.bytes)).utf8_empty(false).auto_prefilter(false);
        let config = config.hybrid(false).dfa(false).onepass(false).backtrack(false);
        let config = match self.line_end {
            LineEnd::Cr => config.line_terminator(b'\r'),
            LineEnd::Lf | LineEnd::Both => config,
        };
        Builder::new().configure(config).syntax(self.syntax()).build(&self.text).map_err(Box::new)
    }

    /// Builds the automaton of the same engine, without groups.
    fn nfa(&self) -> Option<NFA> {
        let mut look = LookMatcher::new();
        if self.line_end == LineEnd::Cr {
            look.set_line_terminator(b'\r');
        }
        let config = thompson::Config::new().utf8(false).nfa_size_limit(Some(self.bytes)).look_matcher(look);
        let config = config.which_captures(WhichCaptures::None);
        NFA::compiler().configure(config).syntax(self.syntax()).build(&self.text).ok()
    }

    /// Returns the engine's settings. The line end affects `.`, and in multi-line mode `^` and `$`.
    fn syntax(&self) -> syntax::Config {
        let syntax = syntax::Config::new().unicode(self.unicode).utf8(false);
        match self.line_end {
            LineEnd::Lf => syntax,
            LineEnd::Cr => syntax.line_terminator(b'\r'),
            LineEnd::Both => syntax.crlf(true),
        }
    }
}

pub(crate) struct Patterns<'s> {
    known: HashMap<String, Pattern>,
    bytes: usize,
    stop: &'s dyn Fn() -> bool,
}

impl<'s> Patterns<'s> {
    /// `stop` is checked before each expression is compiled.
    pub(crate) fn new(stop: &'s dyn Fn() -> bool) -> Patterns<'s> {
        Patterns { known: HashMap::new(), bytes: 0, stop }
    }

    /// Compiles an expression. `None`: the engine cannot compile it.
    pub(crate) fn compile(&mut self, text: &str) -> Result<Option<Pattern>, InvalidSelector> {
        if let Some(known) = self.known.get(text) {
            return Ok(Some(known.clone()));
        }
        if text.len() > TEXT_BYTES_MAX {
            return Err(InvalidSelector::RegexesTooLarge);
        }
        let Some(PcreTranslation { characters, line_end, parts }) = translate(text) else { return Ok(None) };
        let (mut compiled, mut bytes) = (Vec::with_capacity(parts.len()), 0);
        for (part, is_wanted) in &parts {
            let Some((regex, source)) = self.part(part, characters, line_end)? else { return Ok(None) };
            bytes += source.bytes;
            compiled.push(Part { regex, is_wanted: *is_wanted, source, nfa: OnceLock::new() });
        }
        let compiled = Pattern { parts: compiled.into(), text: text.into(), bytes };
        self.known.insert(text.to_owned(), compiled.clone());
        Ok(Some(compiled))
    }

    fn part(
        &mut self,
        text: &str,
        characters: Characters,
        line_end: LineEnd,
    ) -> Result<Option<(Regex, Source)>, InvalidSelector> {
        for bytes in BYTES {
            if (self.stop)() {
                return Err(InvalidSelector::Stopped);
            }
            if self.bytes + bytes > ALL_BYTES_MAX {
                return Err(InvalidSelector::RegexesTooLarge);
            }
            let build = |unicode| {
                let source = Source { text: text.into(), unicode, line_end, bytes };
                source.regex().map(|regex| (regex, source))
            };
            // As in CouchDB a character is a byte. Classes of non-ASCII characters cannot be written so, and match
            // whole characters.
            let built = match characters {
                Characters::Whole => build(true),
                Characters::Bytes => match build(false) {
                    Err(error) if error.size_limit().is_none() => build(true),
                    other => other,
                },
            };
            match built {
                Ok(built) => {
                    self.bytes += bytes;
                    return Ok(Some(built));
                }
                Err(error) if error.size_limit().is_some() => {}
                Err(_) => return Ok(None),
            }
        }
        Err(InvalidSelector::RegexesTooLarge)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches with a pause after each byte.
    fn paused_search(nfa: &NFA, text: &[u8]) -> bool {
        let mut search = Search::begin(nfa, text);
        loop {
            if let Some(is_match) = search.advance(text, 1) {
                return is_match;
            }
            let (at, states) = search.into_paused();
            search = Search::resume(nfa, at, states);
        }
    }

    #[test]
    fn a_search_finds_what_the_engine_finds() {
        let patterns = [
            "",
            "^$",
            "b$",
            "^a",
            "^b$",
            "(?m)^b$",
            "(?i)AB+c?",
            "a(b|c)*d",
            r"\bab\b",
            r"\Bb",
            "[^a]{2,3}",
            ".b",
            "(?s).b",
            "x.*a",
            "(*CR)(?m)^b",
            "(*CR)(?m)a$",
            "(*CR).b",
            "(*ANYCRLF)(?m)a$",
            "(*ANYCRLF).b",
            "(*UTF8)^.b",
            "(*UTF8)\u{e9}",
            "\u{e9}",
            "^(?=.*b)(?!.*x)",
            "^((?!x).)*$",
        ];
        let texts = [
            "",
            "a",
            "b",
            "ab",
            "ba",
            "abd",
            "acbcd",
            "acbc",
            "x\nb",
            "a\nb",
            "a\rb",
            "a\r\nb",
            "ABBC",
            "\u{e9}",
            "\u{e9}b",
            "ab \u{e9}",
            "b\n",
            "xbxa",
            "xab",
            "a\n\n",
        ];
        let mut matches = 0;
        for written in patterns {
            let pattern = Patterns::new(&|| false).compile(written).unwrap().unwrap_or_else(|| panic!("{written}"));
            for (part, text) in pattern.parts.iter().flat_map(|part| texts.map(|text| (part, text.as_bytes()))) {
                let nfa = part.source.nfa().unwrap();
                let is_match = part.regex.is_match(text);
                assert_eq!(paused_search(&nfa, text), is_match, "{written} {text:?}");
                assert_eq!(Search::begin(&nfa, text).advance(text, 1_000), Some(is_match), "{written} {text:?}");
                matches += usize::from(is_match);
            }
        }
        assert!(matches > 50, "{matches}");
    }
}
