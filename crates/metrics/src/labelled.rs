//! Metrics with a label whose values are an enum.

use std::marker::PhantomData;

use crate::family::{Family, Kind, Labels, Measure};

/// An enum whose variants are a label's values. [`labels!`](crate::labels) defines one.
pub trait Label: Copy + 'static {
    /// The label's name.
    const NAME: &'static str;
    /// All variants in order.
    const ALL: &'static [Self];

    /// Returns the variant's index in [`Label::ALL`].
    fn index(self) -> usize;

    /// Returns the label's value.
    fn value(self) -> &'static str;
}

/// One metric per label value. All exist from the start.
#[derive(Debug)]
pub struct LabelledMetrics<L, M> {
    each: Box<[M]>,
    label: PhantomData<L>,
}

impl<L: Label, M: Default> Default for LabelledMetrics<L, M> {
    fn default() -> Self {
        LabelledMetrics { each: L::ALL.iter().map(|_| M::default()).collect(), label: PhantomData }
    }
}

impl<L: Label, M> LabelledMetrics<L, M> {
    /// Returns the metric of a label value.
    pub fn of(&self, label: L) -> &M {
        // `each` has one metric per variant.
        &self.each[label.index()]
    }
}

impl<L: Label, M: Measure> Measure for LabelledMetrics<L, M> {
    const KIND: Kind = M::KIND;

    fn measure(&self, labels: &mut Labels, family: &mut Family) {
        for (label, metric) in L::ALL.iter().zip(&self.each) {
            labels.push((L::NAME, label.value().into()));
            metric.measure(labels, family);
            labels.pop();
        }
    }
}
