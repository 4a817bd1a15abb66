//! The controller with a provider outside the cluster. Each operator loses its leadership once, and is elected again.

use crate::enumeration::{self, Started};
use crate::layer::Layer;
use crate::timings::Timings;
use std::sync::Arc;
use std::time::Duration;
use vm_operator::controllers::peerpod::{MANAGER, PeerPodController};
use vm_operator::k8s::leader::Leadership;
use vm_operator::k8s::tasks::Tasks;
use vm_operator::settings::peerpod::{PeerPodSettings, Sweep};

/// Connects a controller of that namespace with a simulated provider. The calls pass the layer.
pub type Provide = fn(&mut PeerPodController, &Layer, &str, Leadership);

/// Time for which an operator leads at first. It ends during calls that delete an instance.
const TERM: Duration = Duration::from_secs(14);

/// Time from the end of the leadership to the end of its controllers.
const REST: Duration = Duration::from_secs(5);

/// Starts an operator with that provider.
pub fn start(
    layer: &Layer,
    namespace: &str,
    timings: &Timings,
    sweep: Sweep,
    provide: Provide,
) -> Started {
    let (layer, namespace, timings) = (layer.clone(), namespace.to_owned(), *timings);
    let task = async move {
        let lead = |leadership| lead(&layer, &namespace, &timings, leadership, (sweep, provide));
        let _ = tokio::time::timeout(TERM + REST, lead(Leadership::leading_for(TERM))).await;
        lead(Leadership::alone()).await;
    };
    Started {
        task: tokio::spawn(task),
        busy_reason: Box::new(|| None),
    }
}

async fn lead(
    layer: &Layer,
    namespace: &str,
    timings: &Timings,
    leadership: Leadership,
    (sweep, provide): (Sweep, Provide),
) {
    let mut cluster = enumeration::cluster(layer, namespace, timings, MANAGER);
    cluster.leadership = leadership.clone();
    let settings = PeerPodSettings {
        namespaces: vec![namespace.to_owned()],
        sweep,
        ..PeerPodSettings::default()
    };
    let keys = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];
    let keys = keys.map(|key| (key.to_owned(), "key".to_owned()));
    let mut controller =
        PeerPodController::new(cluster, namespace.to_owned(), settings, keys.into());
    provide(&mut controller, layer, namespace, leadership);
    let changes = controller.watch();
    let (controller, mut tasks) = (Arc::new(controller), Tasks::default());
    tasks.spawn("calls".to_owned(), controller.clone().call_providers());
    tasks.spawn("sweep".to_owned(), controller.clone().sweep_instances());
    enumeration::operate(controller, changes, tasks).await;
}
