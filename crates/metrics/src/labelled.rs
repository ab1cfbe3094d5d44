//! Metrics by an enum.

use std::marker::PhantomData;

use crate::family::{Family, Kind, Labels, Measure};

/// An enum whose variants are a label's values; [`labels!`](crate::labels) makes one.
pub trait Label: Copy + 'static {
    /// The label's name.
    const NAME: &'static str;
    /// All variants, in their order.
    const ALL: &'static [Self];

    /// Where the variant is in [`Label::ALL`].
    fn index(self) -> usize;

    /// What is written.
    fn value(self) -> &'static str;
}

/// One metric for each value of a label, all of them there from the beginning.
#[derive(Debug)]
pub struct Labelled<L, M> {
    each: Box<[M]>,
    label: PhantomData<L>,
}

impl<L: Label, M: Default> Default for Labelled<L, M> {
    fn default() -> Self {
        Labelled { each: L::ALL.iter().map(|_| M::default()).collect(), label: PhantomData }
    }
}

impl<L: Label, M> Labelled<L, M> {
    /// That of a value.
    pub fn of(&self, label: L) -> &M {
        // Made with one metric for each of the enum's variants.
        &self.each[label.index()]
    }
}

impl<L: Label, M: Measure> Measure for Labelled<L, M> {
    const KIND: Kind = M::KIND;

    fn measure(&self, labels: &mut Labels, family: &mut Family) {
        for (label, metric) in L::ALL.iter().zip(&self.each) {
            labels.push((L::NAME, label.value().into()));
            metric.measure(labels, family);
            labels.pop();
        }
    }
}
