//! The names of the built-in reductions.

/// The most values of `_top_N` and `_bottom_N`.
pub const RANK_MAX: u8 = 100;

/// A built-in reduction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reducer {
    /// `_sum`
    Sum,
    /// `_count`
    Count,
    /// `_stats`
    Stats,
    /// `_approx_count_distinct`
    ApproxCountDistinct,
    /// `_first`
    First,
    /// `_last`
    Last,
    /// `_top_N`: N is 1 to [`RANK_MAX`].
    Top(u8),
    /// `_bottom_N`, likewise.
    Bottom(u8),
}

/// An invalid reduction name, refused when the design document is written: 400 `invalid_design_doc`, with this
/// message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// No reduction has this name.
    #[error("`{0}` is not a supported reduce function.")]
    Unknown(String),
    /// `_top_` or `_bottom_` without a number.
    #[error("invalid rank reducer")]
    NoRank,
    /// `_top_` or `_bottom_` with a number out of bounds.
    #[error("rank value must be between 1 and {RANK_MAX}")]
    Rank,
}

impl Reducer {
    /// Returns whether the reduction uses rows' keys.
    pub fn needs_key(self) -> bool {
        self == Reducer::ApproxCountDistinct
    }

    /// Returns whether the reduction uses rows' values.
    pub fn needs_value(self) -> bool {
        !matches!(self, Reducer::Count | Reducer::ApproxCountDistinct)
    }

    /// Returns the reduction that the source of a reduce function names; `None` for the source of a function. As in
    /// CouchDB the prefix counts: `_summer` is `_sum`.
    ///
    /// # Errors
    /// [`NameError`] for another source that begins with an underscore.
    pub fn from_name(source: &str) -> Result<Option<Reducer>, NameError> {
        if !source.starts_with('_') {
            return Ok(None);
        }
        const PLAIN: [(&str, Reducer); 6] = [
            ("_sum", Reducer::Sum),
            ("_count", Reducer::Count),
            ("_stats", Reducer::Stats),
            ("_approx_count_distinct", Reducer::ApproxCountDistinct),
            ("_first", Reducer::First),
            ("_last", Reducer::Last),
        ];
        if let Some((_, reducer)) = PLAIN.iter().find(|(name, _)| source.starts_with(name)) {
            return Ok(Some(*reducer));
        }
        if let Some(rank) = source.strip_prefix("_top_") {
            return Ok(Some(Reducer::Top(number(rank)?)));
        }
        if let Some(rank) = source.strip_prefix("_bottom_") {
            return Ok(Some(Reducer::Bottom(number(rank)?)));
        }
        Err(NameError::Unknown(source.to_owned()))
    }
}

/// Parses a number as Erlang does: digits with an optional sign.
fn number(text: &str) -> Result<u8, NameError> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(NameError::NoRank);
    }
    // A number with too many digits is out of bounds, too.
    text.parse().ok().filter(|rank| (1..=RANK_MAX).contains(rank)).ok_or(NameError::Rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_count_by_their_beginning() {
        let check = |source: &str, expected| assert_eq!(Reducer::from_name(source), Ok(Some(expected)), "{source}");
        check("_sum", Reducer::Sum);
        check("_summer", Reducer::Sum);
        check("_count_all", Reducer::Count);
        check("_stats2", Reducer::Stats);
        check("_approx_count_distinct", Reducer::ApproxCountDistinct);
        check("_first", Reducer::First);
        check("_lasting", Reducer::Last);
        check("_top_1", Reducer::Top(1));
        check("_top_+7", Reducer::Top(7));
        check("_bottom_0100", Reducer::Bottom(100));
        assert_eq!(Reducer::from_name("function(k,v){}"), Ok(None));
        assert_eq!(Reducer::from_name(" _sum"), Ok(None));
        assert_eq!(Reducer::from_name(""), Ok(None));
    }

    #[test]
    fn other_names_are_refused() {
        let check = |source: &str, expected: &str| {
            assert_eq!(Reducer::from_name(source).unwrap_err().to_string(), expected, "{source}");
        };
        check("_average", "`_average` is not a supported reduce function.");
        check("_", "`_` is not a supported reduce function.");
        check("_top", "`_top` is not a supported reduce function.");
        check("_top_x", "invalid rank reducer");
        check("_bottom_", "invalid rank reducer");
        check("_bottom_-", "invalid rank reducer");
        check("_top_1.0", "invalid rank reducer");
        check("_top_0", "rank value must be between 1 and 100");
        check("_top_101", "rank value must be between 1 and 100");
        check("_top_-1", "rank value must be between 1 and 100");
        check("_bottom_1000", "rank value must be between 1 and 100");
        check(&format!("_top_{}", "9".repeat(50)), "rank value must be between 1 and 100");
    }
}
