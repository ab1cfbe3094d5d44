//! What no Rust file may be or have.

/// Most lines of a file.
pub const LINES_MAX: usize = 700;

/// What must not stand in a line, and why. Cut in two, so that this file may be looked at too.
const FORBIDDEN: [(&str, &str, &str); 3] = [
    ("mod ", "utils", "a module is named by its one idea"),
    ("todo", "!(", "what is not done is an issue, not a panic"),
    ("unimplemented", "!(", "what is not done is an issue, not a panic"),
];

/// What breaks the rules in a file, each as `line: what`.
pub fn broken(text: &str) -> Vec<String> {
    let mut broken = Vec::new();
    let lines = text.lines().count();
    if lines > LINES_MAX {
        broken.push(format!("{lines}: more than {LINES_MAX} lines: one module, one idea"));
    }
    for (number, line) in text.lines().enumerate() {
        for (front, back, why) in FORBIDDEN {
            if line.split(front).skip(1).any(|rest| rest.starts_with(back)) {
                broken.push(format!("{}: `{front}{back}`: {why}", number + 1));
            }
        }
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_can_be_broken() {
        assert!(broken(&"x\n".repeat(LINES_MAX)).is_empty());
        assert_eq!(broken(&"x\n".repeat(LINES_MAX + 1)), ["701: more than 700 lines: one module, one idea"]);
        for (front, back, _) in FORBIDDEN {
            assert_eq!(broken(&format!("fn f() {{\n    {front}{back}\n}}")).len(), 1, "{front}{back}");
        }
        assert!(broken("mod tables;\nlet todo = 1;").is_empty());
    }
}
