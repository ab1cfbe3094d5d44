//! Tests of the whole layer through its public items alone: see `tests/it`.
