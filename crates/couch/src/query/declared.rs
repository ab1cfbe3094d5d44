//! Parameters of a query string, declared as a struct.

use flatbed_layer::RevId;

use super::Query;
use crate::error::{Result, parse_rev};

/// The parameters of a route.
pub(crate) trait FromQuery: Sized {
    /// Parses the parameters. The first invalid one is refused, in the order of the fields.
    fn from_query(query: &Query) -> Result<Self>;
}

/// Declares a struct of parameters. Each field is named as its parameter and says how it is parsed: by a function of
/// the query and the name. Parameters that no field names are ignored, as in CouchDB.
macro_rules! parameters {
    (
        $(#[$doc:meta])*
        $visibility:vis struct $Parameters:ident {
            $($(#[$note:meta])* $name:ident: $Value:ty = $parse:path,)+
        }
    ) => {
        $(#[$doc])*
        $visibility struct $Parameters {
            $($(#[$note])* $visibility $name: $Value,)+
        }

        impl $crate::query::FromQuery for $Parameters {
            fn from_query(query: &$crate::query::Query) -> $crate::error::Result<Self> {
                Ok($Parameters { $($name: $parse(query, stringify!($name))?,)+ })
            }
        }
    };
}

pub(crate) use parameters;

/// Parses a parameter as [`Query::switch`] does.
pub(crate) fn switch(query: &Query, name: &str) -> Result<bool> {
    Ok(query.switch(name))
}

/// Parses a parameter that only `ok` turns on.
pub(crate) fn is_ok(query: &Query, name: &str) -> Result<bool> {
    Ok(query.get(name) == Some("ok"))
}

/// Parses a parameter that only `true` turns on. The last of several counts, unlike for [`switch`].
pub(crate) fn is_true(query: &Query, name: &str) -> Result<bool> {
    Ok(query.get(name) == Some("true"))
}

/// Parses a parameter that only `false` turns off.
pub(crate) fn is_not_false(query: &Query, name: &str) -> Result<bool> {
    Ok(query.get(name) != Some("false"))
}

/// Copies a text.
pub(crate) fn text(query: &Query, name: &str) -> Result<Option<String>> {
    Ok(query.get(name).map(str::to_owned))
}

/// Parses a number of rows. Numbers beyond the address space become the maximum.
pub(crate) fn row_count(query: &Query, name: &str) -> Result<Option<usize>> {
    Ok(query.number(name)?.map(|count| usize::try_from(count).unwrap_or(usize::MAX)))
}

/// Parses a revision id.
pub(crate) fn revision(query: &Query, name: &str) -> Result<Option<RevId>> {
    query.get(name).map(parse_rev).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    parameters! {
        struct Sample {
            skip: Option<u64> = Query::number,
            descending: bool = switch,
            active_only: bool = Query::flag,
            batch: bool = is_ok,
            all: bool = is_true,
            new_edits: bool = is_not_false,
            sort: Option<String> = text,
            limit: Option<usize> = row_count,
            rev: Option<RevId> = revision,
        }
    }

    #[test]
    fn the_first_invalid_field_is_refused() {
        let read = |text: &str| Query::parse(Some(text)).unwrap().parameters::<Sample>().map_err(|error| error.reason);
        let Sample { skip, descending, active_only, .. } = read("skip=2&descending=true&other=x").unwrap();
        assert_eq!((skip, descending, active_only), (Some(2), true, false));
        for (text, reason) in [
            ("active_only=x&skip=x", "Invalid value for integer: \"x\""),
            ("rev=x&active_only=x&descending=x", "Invalid boolean parameter: \"x\""),
            ("rev=x&limit=x", "Invalid value for integer: \"x\""),
            ("rev=x", "Invalid rev format"),
        ] {
            assert_eq!(read(text).err().as_deref(), Some(reason));
        }
    }

    #[test]
    fn each_field_has_its_form() {
        for (query, expected) in [
            ("", (false, false, true, None, None)),
            ("batch=true&all=true&all=x&new_edits=x&sort=&limit=7", (false, false, true, Some(""), Some(7))),
            ("batch=ok&all=true&new_edits=false&sort=a&limit=8", (true, true, false, Some("a"), Some(8))),
            ("limit=99999999999999999999", (false, false, true, None, Some(usize::MAX))),
        ] {
            let Sample { batch, all, new_edits, sort, limit, rev, .. } =
                Query::parse(Some(query)).unwrap().parameters().unwrap();
            assert_eq!((batch, all, new_edits, sort.as_deref(), limit), expected, "{query}");
            assert!(rev.is_none());
        }
        let Sample { rev, .. } = Query::parse(Some("rev=1-a")).unwrap().parameters().unwrap();
        assert_eq!(rev.unwrap().to_string(), "1-a");
    }
}
