//! Reads the alert rules: one line for each value, as the file says of itself.

const RULES: &str = include_str!("../../../../../monitoring/alerts.yml");

/// An alert rule.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rule {
    pub name: String,
    pub expression: String,
    pub lasts: String,
    pub severity: String,
    pub summary: String,
}

/// Returns all rules in the order of the file.
pub fn all() -> Vec<Rule> {
    let mut rules: Vec<Rule> = Vec::new();
    for line in RULES.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix("- alert: ") {
            rules.push(Rule { name: name.to_owned(), ..Rule::default() });
            continue;
        }
        let (key, value) = line.split_once(':').unwrap_or_else(|| panic!("no key: {line}"));
        let Some(rule) = rules.last_mut() else { continue };
        let place = match key {
            "expr" => &mut rule.expression,
            "for" => &mut rule.lasts,
            "severity" => &mut rule.severity,
            "summary" => &mut rule.summary,
            "labels" | "annotations" => {
                assert_eq!(value, "", "{line}");
                continue;
            }
            _ => panic!("{} has the unknown key {key}", rule.name),
        };
        *place = value.trim().to_owned();
    }
    rules
}

/// Returns the rule of this name.
pub fn named(name: &str) -> Rule {
    all().into_iter().find(|rule| rule.name == name).unwrap_or_else(|| panic!("no alert {name}"))
}

#[test]
fn each_rule_has_everything() {
    let rules = all();
    assert!(rules.len() >= 10, "{rules:?}");
    for rule in rules {
        assert!(rule.name.starts_with("Flatbed") && !rule.expression.is_empty(), "{rule:?}");
        assert!(["critical", "warning"].contains(&rule.severity.as_str()), "{rule:?}");
        let minutes = rule.lasts.strip_suffix('m').or(rule.lasts.strip_suffix('h'));
        assert!(minutes.is_some_and(|minutes| minutes.parse::<u32>().is_ok()), "{rule:?}");
        assert!(rule.summary.contains("{{ $labels.instance }}"), "{rule:?}");
    }
}
