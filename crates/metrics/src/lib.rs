//! Counters, gauges and histograms, and their export in Prometheus' text format.
//!
//! A part of the program owns a struct defined by [`metrics!`], with one field per family. There is no registry and no
//! process-wide state. An update is one or two relaxed atomic additions, without lock, allocation or lookup by name;
//! `prometheus-client` takes a mutex per histogram observation and a lock per label lookup. Labels are enums defined by
//! [`labels!`] or a bounded set of numbers ([`KeyedCounter`]), so input cannot create time series.
//!
//! A read is rare and may be slow: [`Family`] holds the values of a read, and [`text()`] formats families.
#![forbid(unsafe_code)]

mod family;
mod histogram;
mod keyed;
mod labelled;
mod numbers;
mod text;

pub use family::{Family, Kind, Labels, Measure, Sample, Value, merged, total};
pub use histogram::{BOUNDS_MICROSECONDS, Histogram};
pub use keyed::{Key, KeyedCounter};
pub use labelled::{Label, LabelledMetrics};
pub use numbers::{Counter, Gauge, GaugeGuard};
pub use text::text;

/// Defines a struct of metrics: `field: Type = "Description."` per family, whose name is `flatbed_` and the field's
/// name. Types are [`Counter`], [`Gauge`], [`Histogram`], [`KeyedCounter`] and [`LabelledMetrics`] of these. Durations are
/// in seconds and their names end in `_seconds`. The export appends `_total` to counters.
///
/// The struct implements `Default` and has `families()`, which reads all metrics.
#[macro_export]
macro_rules! metrics {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($field:ident: $kind:ty = $help:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Default)]
        $vis struct $name { $(#[doc = $help] $vis $field: $kind,)* }

        impl $name {
            /// Reads all metrics, in the order of the fields.
            $vis fn families(&self) -> Vec<$crate::Family> {
                vec![$($crate::Family::of(concat!("flatbed_", stringify!($field)), $help, &self.$field),)*]
            }
        }
    };
}

/// Defines an enum of label values: `enum Name: "label" { Variant = "value", ... }`.
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
