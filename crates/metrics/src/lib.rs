//! Counters, gauges and histograms, and all of them as Prometheus' text.
//!
//! Whoever measures holds a struct made by [`metrics!`], one field a family, and calls its fields; nothing is registered
//! anywhere and nothing is process-wide. Measuring is one or two relaxed atomic additions: no lock, no allocation, no
//! look-up by name. (`prometheus-client`, the crate closest to this, takes a mutex for each observation of a histogram
//! and a lock around a hash map for each set of labels.) Labels are enums made by [`labels!`], or numbers of which a
//! bounded count is kept apart ([`Keyed`]), so that nothing from outside makes a new time series.
//!
//! Reading is rare and may cost: [`Family`] is a family as it was when it was read, and [`text()`] writes families.
#![forbid(unsafe_code)]

mod family;
mod histogram;
mod keyed;
mod labelled;
mod numbers;
mod text;

pub use family::{Family, Kind, Labels, Measure, Sample, Value, merged, total};
pub use histogram::{BOUNDS_MICROSECONDS, Histogram};
pub use keyed::{Key, Keyed};
pub use labelled::{Label, Labelled};
pub use numbers::{Counter, Gauge, Held};
pub use text::text;

/// Makes a struct of metrics: `field: Type = "What it is."` for each family, which is called `flatbed_` and the field's
/// name. Types are [`Counter`], [`Gauge`], [`Histogram`], [`Keyed`] and [`Labelled`] of these. Durations are in seconds
/// and end in `_seconds`; `_total` is added to counters when they are written.
///
/// The struct has `Default`, and `families()` for what it holds now.
#[macro_export]
macro_rules! metrics {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($field:ident: $kind:ty = $help:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Default)]
        $vis struct $name { $(#[doc = $help] $vis $field: $kind,)* }

        impl $name {
            /// What is measured now, in the order of the fields.
            $vis fn families(&self) -> Vec<$crate::Family> {
                vec![$($crate::Family::of(concat!("flatbed_", stringify!($field)), $help, &self.$field),)*]
            }
        }
    };
}

/// Makes an enum that is a label: `enum Name: "label" { Variant = "value", ... }`.
#[macro_export]
macro_rules! labels {
    ($(#[$meta:meta])* $vis:vis enum $name:ident: $label:literal {
        $($(#[$of:meta])* $variant:ident = $value:literal,)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        $vis enum $name { $($(#[$of])* $variant,)* }

        impl $crate::Label for $name {
            const NAME: &'static str = $label;
            const ALL: &'static [Self] = &[$($name::$variant,)*];

            fn index(self) -> usize {
                self as usize
            }

            fn value(self) -> &'static str {
                match self { $($name::$variant => $value,)* }
            }
        }
    };
}
