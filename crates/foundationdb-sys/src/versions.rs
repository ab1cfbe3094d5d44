//! The API version, and the binding's macro for version-dependent code.

/// The API version that this crate declares.
pub const FDB_API_VERSION: u32 = 730;

/// Keeps the code for API version 730 and drops the other.
///
/// Forms: `(min = N => code)`, `(max = N => code)`, `(min = N, max = M => code)`, each also with `else { code }` at
/// the end, where `code` is one item (public or with an attribute), one expression, expressions between semicolons, or
/// a block.
#[macro_export]
macro_rules! if_cfg_api_versions {
    // Ranges that end before 730, or begin after it.
    (min = 740 $($rest:tt)*) => { $crate::if_cfg_api_versions! { @no $($rest)* } };
    (min = $min:tt, max = 730 $($rest:tt)*) => { $crate::if_cfg_api_versions! { @yes $($rest)* } };
    (min = $min:tt, max = 740 $($rest:tt)*) => { $crate::if_cfg_api_versions! { @yes $($rest)* } };
    (min = $min:tt, max = $max:tt $($rest:tt)*) => { $crate::if_cfg_api_versions! { @no $($rest)* } };
    (min = $min:tt $($rest:tt)*) => { $crate::if_cfg_api_versions! { @yes $($rest)* } };
    (max = 730 $($rest:tt)*) => { $crate::if_cfg_api_versions! { @yes $($rest)* } };
    (max = 740 $($rest:tt)*) => { $crate::if_cfg_api_versions! { @yes $($rest)* } };
    (max = $max:tt $($rest:tt)*) => { $crate::if_cfg_api_versions! { @no $($rest)* } };

    (@yes => { $($yes:tt)* } else { $($no:tt)* }) => {{ $($yes)* }};
    (@no => { $($yes:tt)* } else { $($no:tt)* }) => {{ $($no)* }};
    // An attribute can begin an expression too, so items are matched before the parser commits to one.
    (@yes => # $($yes:tt)*) => { # $($yes)* };
    // Several expressions in the place of one need a block.
    (@yes => $first:expr; $($rest:tt)+) => {{ $first; $($rest)+ }};
    (@yes => $($yes:tt)*) => { $($yes)* };
    (@no => $($no:tt)*) => {};
}
