//! The reconciles in progress of the operators in this process, from the spans of their log.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use tracing::Subscriber;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// The number of reconciles in progress for each VM name, in all namespaces.
#[derive(Clone, Default)]
pub struct Reconciles(Arc<Mutex<BTreeMap<String, usize>>>);

/// The VM of a span.
struct Vm(String);

impl Reconciles {
    /// Starts to count.
    pub fn start() -> Self {
        let reconciles = Self::default();
        tracing_subscriber::registry()
            .with(reconciles.clone().with_filter(LevelFilter::ERROR))
            .init();
        reconciles
    }

    pub fn are_under_way(&self, vm: &str) -> bool {
        self.0.lock().unwrap().contains_key(vm)
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Reconciles {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if attributes.metadata().name() != "reconcile" {
            return;
        }
        let mut name = Name::default();
        attributes.record(&mut name);
        let span = context.span(id).unwrap();
        span.extensions_mut().insert(Vm(name.0.clone()));
        *self.0.lock().unwrap().entry(name.0).or_default() += 1;
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let span = context.span(&id).unwrap();
        let extensions = span.extensions();
        let Some(Vm(name)) = extensions.get() else {
            return;
        };
        let mut under_way = self.0.lock().unwrap();
        let count = under_way.get_mut(name).unwrap();
        *count -= 1;
        if *count == 0 {
            under_way.remove(name);
        }
    }
}

/// The name in the field `object`, which has namespace and name.
#[derive(Default)]
struct Name(String);

impl Visit for Name {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "object" {
            let object = format!("{value:?}");
            let name = object.rsplit('/').next().unwrap_or_default();
            name.clone_into(&mut self.0);
        }
    }
}

#[test]
fn reconcile_is_under_way_until_its_span_is_closed() {
    let reconciles = Reconciles::default();
    let subscriber = tracing_subscriber::registry().with(reconciles.clone());
    tracing::subscriber::with_default(subscriber, || {
        let id = 1;
        let object = tracing::field::display("ns/vm-1");
        let first = tracing::error_span!("reconcile", object, id);
        let second = tracing::error_span!("reconcile", object, id);
        let other = tracing::error_span!("request", object = "ns/vm-2");
        assert!(reconciles.are_under_way("vm-1") && !reconciles.are_under_way("vm-2"));
        drop((first, other));
        assert!(reconciles.are_under_way("vm-1"));
        drop(second);
        assert!(!reconciles.are_under_way("vm-1"));
    });
}
