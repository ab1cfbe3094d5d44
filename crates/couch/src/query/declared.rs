//! Parameters of a query string, declared as a struct.

use super::Query;
use crate::error::Result;

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
        struct $Parameters:ident {
            $($(#[$note:meta])* $name:ident: $Value:ty = $parse:path,)+
        }
    ) => {
        $(#[$doc])*
        struct $Parameters {
            $($(#[$note])* $name: $Value,)+
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

#[cfg(test)]
mod tests {
    use super::*;

    parameters! {
        struct Sample {
            skip: Option<u64> = Query::number,
            descending: bool = switch,
            active_only: bool = Query::flag,
        }
    }

    #[test]
    fn the_first_invalid_field_is_refused() {
        let read = |text: &str| Query::parse(Some(text)).unwrap().parameters::<Sample>().map_err(|error| error.reason);
        let Sample { skip, descending, active_only } = read("skip=2&descending=true&other=x").unwrap();
        assert_eq!((skip, descending, active_only), (Some(2), true, false));
        for (text, reason) in [
            ("active_only=x&skip=x", "Invalid value for integer: \"x\""),
            ("active_only=x&descending=x", "Invalid boolean parameter: \"x\""),
        ] {
            assert_eq!(read(text).err().as_deref(), Some(reason));
        }
    }
}
