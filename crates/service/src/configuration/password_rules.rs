//! The rules for new passwords: `[chttpd_auth] password_regexp`, as CouchDB writes it.

use std::sync::Arc;

use flatbed_layer::json::{self, Limits, Value};
use flatbed_mango::Selector;

/// The largest number of rules.
const RULES_MAX: usize = 20;

/// CouchDB's words for a password that breaks a rule. The rule's own reason follows.
const REFUSED: &str = "Password does not conform to requirements.";

/// Regular expressions that each new password must match.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PasswordRules(Arc<[PasswordRule]>);

#[derive(Debug)]
struct PasswordRule {
    pattern: String,
    reason: Option<String>,
    /// Selects a document whose member `p` matches the pattern: Mango's expressions are CouchDB's, within bounds.
    selector: Selector,
}

impl PartialEq for PasswordRule {
    fn eq(&self, other: &PasswordRule) -> bool {
        (&self.pattern, &self.reason) == (&other.pattern, &other.reason)
    }
}

impl Eq for PasswordRule {}

impl PasswordRules {
    /// Parses an Erlang list of expressions, and of pairs of an expression and a reason:
    /// `[{".{10,}", "At least 10 characters."}, "\\d+"]`. An empty text is no rule. `None`: the text is no such list.
    pub(crate) fn parse(text: &str) -> Option<PasswordRules> {
        let mut terms = Terms(text.trim());
        let mut rules = Vec::new();
        if !terms.0.is_empty() {
            terms.sign('[')?;
            while !terms.has(']') {
                if !rules.is_empty() {
                    terms.sign(',')?;
                }
                rules.push(terms.rule()?);
            }
            terms.sign(']')?;
        }
        (terms.0.is_empty() && rules.len() <= RULES_MAX).then(|| PasswordRules(rules.into()))
    }

    /// Checks a new password.
    ///
    /// # Errors
    /// The reason of the first rule that it breaks, in CouchDB's words.
    pub fn check(&self, password: &str) -> Result<(), String> {
        if self.0.is_empty() {
            return Ok(());
        }
        let text = document(|text| json::write_string(password, text));
        let document = json::parse(&text, &Limits::default()).unwrap_or(Value::Null);
        let fits = |rule: &&PasswordRule| rule.selector.matches_unless(&document, &|| false).unwrap_or(false);
        match self.0.iter().find(|rule| !fits(rule)) {
            None => Ok(()),
            Some(PasswordRule { reason: Some(reason), .. }) => Err(format!("{REFUSED} {reason}")),
            Some(_) => Err(REFUSED.to_owned()),
        }
    }
}

/// Returns `{"p": VALUE}`.
fn document(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut text = b"{\"p\":".to_vec();
    write(&mut text);
    text.push(b'}');
    text
}

/// The rest of a text with Erlang terms.
struct Terms<'t>(&'t str);

impl Terms<'_> {
    fn has(&self, sign: char) -> bool {
        self.0.starts_with(sign)
    }

    fn sign(&mut self, sign: char) -> Option<()> {
        self.0 = self.0.strip_prefix(sign)?.trim_start();
        Some(())
    }

    fn rule(&mut self) -> Option<PasswordRule> {
        let is_tuple = self.has('{');
        if is_tuple {
            self.sign('{')?;
        }
        let pattern = self.string()?;
        let reason = if is_tuple && self.has(',') {
            self.sign(',')?;
            Some(self.string()?).filter(|reason| !reason.is_empty())
        } else {
            None
        };
        if is_tuple {
            self.sign('}')?;
        }
        let text = document(|text| {
            text.extend_from_slice(b"{\"$regex\":");
            json::write_string(&pattern, text);
            text.push(b'}');
        });
        let selector = Selector::new(&json::parse(&text, &Limits::default()).ok()?).ok()?;
        Some(PasswordRule { pattern, reason, selector })
    }

    /// Takes a string in quotation marks, with Erlang's escapes.
    fn string(&mut self) -> Option<String> {
        let mut signs = self.0.strip_prefix('"')?.chars();
        let mut text = String::new();
        loop {
            text.push(match signs.next()? {
                '"' => break,
                '\\' => match signs.next()? {
                    'n' => '\n',
                    'r' => '\r',
                    's' => ' ',
                    't' => '\t',
                    other => other,
                },
                other => other,
            });
        }
        self.0 = signs.as_str().trim_start();
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_must_match_each_expression() {
        let rules = PasswordRules::parse(r#"[{".{10,}", "At least 10 characters."} , "\\d+", {"^\\S*$"}]"#).unwrap();
        assert_eq!(rules.check("long enough 1"), Err(REFUSED.to_owned()));
        assert_eq!(rules.check("long_enough_1"), Ok(()));
        assert_eq!(rules.check("long_enough"), Err(REFUSED.to_owned()));
        assert_eq!(rules.check("short1"), Err(format!("{REFUSED} At least 10 characters.")));
        for text in ["", "[]", " [ ] "] {
            let none = PasswordRules::parse(text).unwrap();
            assert_eq!((none.check(""), &none), (Ok(()), &PasswordRules::default()));
        }
    }

    #[test]
    fn other_terms_are_no_rules() {
        for text in
            ["x", "[", "[1]", "[\"a\"", "[\"a\",]", "[\"a\" \"b\"]", "[{\"a\",1}]", "[\"(\"]", "[] []", "[\"a\\\"]"]
        {
            assert_eq!(PasswordRules::parse(text), None, "{text}");
        }
        let many = format!("[{}]", vec!["\"a\""; RULES_MAX + 1].join(","));
        assert_eq!(PasswordRules::parse(&many), None);
    }
}
