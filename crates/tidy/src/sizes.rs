//! Sizes of documents and crates.

/// Most lines of the repository's `README.md`.
pub const README_LINES_MAX: usize = 200;

/// Most bytes of `ARCHITECTURE.md`.
pub const ARCHITECTURE_BYTES_MAX: usize = 15_000;

/// Most bytes of all files in `design/` together.
pub const DESIGN_BYTES_MAX: usize = 250_000;

/// Most lines of a crate's `README.md`.
pub const CRATE_README_LINES_MAX: usize = 40;

/// Most lines of all Rust files of a crate together, if `lines.txt` does not allow more.
pub const CRATE_LINES_MAX: usize = 25_000;

/// Allowances of lines are multiples of this, so that few commits change `lines.txt`.
const LINES_STEP: usize = 1_000;

/// Returns what is wrong with a size above its limit.
pub fn above(name: &str, size: usize, max: usize, unit: &str) -> Option<String> {
    (size > max).then(|| format!("{name} has {size} {unit}, and the limit is {max}"))
}

/// The allowance in `lines.txt` that a crate needs: 0 up to [`CRATE_LINES_MAX`].
pub fn allowance(lines: usize) -> usize {
    if lines > CRATE_LINES_MAX { lines.next_multiple_of(LINES_STEP) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sizes_above_the_limit_are_wrong() {
        assert_eq!(above("a", 40, 40, "lines"), None);
        assert_eq!(above("a", 41, 40, "lines").as_deref(), Some("a has 41 lines, and the limit is 40"));
        assert_eq!([0, 25_000, 25_001, 26_000, 26_001].map(allowance), [0, 0, 26_000, 26_000, 27_000]);
    }
}
