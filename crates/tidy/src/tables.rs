//! Markdown's tables and code spans.

/// The rows of the first table under the heading `## {heading}`, without its head; cells are trimmed. Empty if there is
/// no such heading or table.
pub fn under<'t>(markdown: &'t str, heading: &str) -> Vec<Vec<&'t str>> {
    let mut lines = markdown.lines().skip_while(|line| line.strip_prefix("## ") != Some(heading)).skip(1);
    let table = lines.by_ref().take_while(|line| !line.starts_with("## ")).skip_while(|line| !line.starts_with('|'));
    table.take_while(|line| line.starts_with('|')).skip(2).map(cells).collect()
}

fn cells(row: &str) -> Vec<&str> {
    row.trim().trim_matches('|').split('|').map(str::trim).collect()
}

/// The texts between backticks in a line.
pub fn code_spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_ends_with_its_lines_and_a_heading_is_whole() {
        let text = "## Crates and more\n| x |\n|---|\n| 0 |\n## Crates\nText.\n\n| a | b |\n|---|---|\n| `1` | 2 |\n\n| x | y |";
        assert_eq!(under(text, "Crates"), [["`1`", "2"]]);
        assert!(under(text, "Others").is_empty());
        assert!(under("## Crates\n## Next\n| a |\n|---|\n| 1 |", "Crates").is_empty());
        assert_eq!(code_spans("a `b` c `d`, e").collect::<Vec<_>>(), ["b", "d"]);
    }
}
