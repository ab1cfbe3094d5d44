//! Regular expressions, and what they may take.

use std::collections::HashMap;
use std::sync::Arc;

use regex_automata::meta::{BuildError, Builder, Config, Regex};
use regex_automata::util::syntax;

use crate::invalid::InvalidSelector;
use crate::pcre::{Characters, LineEnd, Translated, translate};
use crate::steps::{Exhausted, Steps};

/// What a compiled regular expression may take, in bytes. Each counts as the first of these that it fits into.
const BYTES: [usize; 4] = [1 << 14, 1 << 16, 1 << 18, 1 << 20];

/// The longest pattern, in bytes; a longer one is refused. The engine parses the whole pattern before it counts the memory, and a
/// short class may take kilobytes. PCRE has the same limit for the compiled pattern.
const TEXT_BYTES_MAX: usize = 1 << 16;

/// What all of a selector may take together; equal ones are compiled once.
const ALL_BYTES_MAX: usize = 4 << 20;

/// A regular expression that takes so many bytes is tried on strings of so many, at most as many as this divided by the
/// former: all of its states may be alive at each byte. On a longer one it does not match, as in CouchDB where PCRE reaches
/// its limit.
const WORK_MAX: usize = 1 << 34;

/// So much of this work is a step.
const STEP_WORK: usize = 1 << 10;

/// A compiled regular expression, and what it takes at most. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Pattern {
    /// The parts, each with whether it must match (true) or must not.
    regexes: Arc<[(Regex, bool)]>,
    text: Arc<str>,
    bytes: usize,
}

impl Pattern {
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// About how much is done for a byte of a string.
    pub(crate) fn weight(&self) -> usize {
        self.bytes >> 10
    }

    pub(crate) fn is_match(&self, text: &str, steps: &mut Steps<'_>) -> Result<bool, Exhausted> {
        let may_match = text.len() <= WORK_MAX / self.bytes;
        steps.take(if may_match { text.len() * self.bytes / STEP_WORK } else { 1 })?;
        Ok(may_match && self.regexes.iter().all(|(regex, wanted)| regex.is_match(text.as_bytes()) == *wanted))
    }
}

/// By the one engine whose memory is known: an automaton's or a table's may be megabytes for each thread, and which engines there are
/// depends on what else a program is built with.
fn build(text: &str, unicode: bool, line_end: LineEnd, bytes: usize) -> Result<Regex, Box<BuildError>> {
    let config = Config::new().nfa_size_limit(Some(bytes)).utf8_empty(false).auto_prefilter(false);
    let config = config.hybrid(false).dfa(false).onepass(false).backtrack(false);
    let syntax = syntax::Config::new().unicode(unicode).utf8(false);
    let (config, syntax) = match line_end {
        LineEnd::Lf => (config, syntax),
        // The line end for `.`, and for `^` and `$` in multi-line mode.
        LineEnd::Cr => (config.line_terminator(b'\r'), syntax.line_terminator(b'\r')),
        LineEnd::Both => (config, syntax.crlf(true)),
    };
    Builder::new().configure(config).syntax(syntax).build(text).map_err(Box::new)
}

/// Those of one selector.
pub(crate) struct Patterns<'s> {
    known: HashMap<String, Pattern>,
    bytes: usize,
    stop: &'s dyn Fn() -> bool,
}

impl<'s> Patterns<'s> {
    /// `stop` is asked before each is compiled.
    pub(crate) fn new(stop: &'s dyn Fn() -> bool) -> Patterns<'s> {
        Patterns { known: HashMap::new(), bytes: 0, stop }
    }

    /// `None`: it is no regular expression that can be compiled.
    pub(crate) fn compile(&mut self, text: &str) -> Result<Option<Pattern>, InvalidSelector> {
        if let Some(known) = self.known.get(text) {
            return Ok(Some(known.clone()));
        }
        if text.len() > TEXT_BYTES_MAX {
            return Err(InvalidSelector::RegexesTooLarge);
        }
        let Some(Translated { characters, line_end, parts }) = translate(text) else { return Ok(None) };
        let (mut regexes, mut bytes) = (Vec::with_capacity(parts.len()), 0);
        for (part, is_wanted) in &parts {
            let Some((regex, taken)) = self.part(part, characters, line_end)? else { return Ok(None) };
            regexes.push((regex, *is_wanted));
            bytes += taken;
        }
        let compiled = Pattern { regexes: regexes.into(), text: text.into(), bytes };
        self.known.insert(text.to_owned(), compiled.clone());
        Ok(Some(compiled))
    }

    /// Compiles one pattern, and returns it with its memory in bytes.
    fn part(
        &mut self,
        text: &str,
        characters: Characters,
        line_end: LineEnd,
    ) -> Result<Option<(Regex, usize)>, InvalidSelector> {
        for bytes in BYTES {
            if (self.stop)() {
                return Err(InvalidSelector::Stopped);
            }
            if self.bytes + bytes > ALL_BYTES_MAX {
                return Err(InvalidSelector::RegexesTooLarge);
            }
            let build = |unicode| build(text, unicode, line_end, bytes);
            // As in CouchDB a character is a byte. Classes of others, which cannot be written so, take whole ones.
            let built = match characters {
                Characters::Whole => build(true),
                Characters::Bytes => match build(false) {
                    Err(error) if error.size_limit().is_none() => build(true),
                    other => other,
                },
            };
            match built {
                Ok(regex) => {
                    self.bytes += bytes;
                    return Ok(Some((regex, bytes)));
                }
                Err(error) if error.size_limit().is_some() => {}
                Err(_) => return Ok(None),
            }
        }
        Err(InvalidSelector::RegexesTooLarge)
    }
}
