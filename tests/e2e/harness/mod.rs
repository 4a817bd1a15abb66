//! The fixtures of the tests.
//!
//! | module | content |
//! |---|---|
//! | [`environment`] | the cluster, the images and the guest, prepared once for a run |
//! | [`space`] | a test's namespace with its operator: created, printed if the test fails, removed |
//! | [`watched`] | the history of the namespace's VMs and pods, from a watch |
//! | [`vm`] | a VM with the tiny guest, and waits for its states |
//! | [`disk`] | the guest's disk: a loop device as a PersistentVolume |
//! | [`console`] | the guest's serial console through `kubectl exec` |
//! | [`display`] | a SPICE client |
//! | [`kubectl`] | commands of a user |
//! | [`bridge`] | a bridge of the node |
//! | [`process`] | a pod's processes on the node |
//! | [`outside`] | an operator outside the cluster |
//! | [`audit`] | writes and their authors, from the API server's audit log |

pub mod audit;
pub mod bridge;
pub mod console;
pub mod disk;
pub mod display;
pub mod environment;
pub mod kubectl;
pub mod outside;
pub mod process;
pub mod space;
pub mod vm;
pub mod watched;

pub use space::{Space, e2e, e2e_in_an_empty_namespace, e2e_in_two, e2e_with};

use std::time::{Duration, Instant};

/// The polling interval of conditions.
const INTERVAL: Duration = Duration::from_millis(200);

/// Waits until `probe` succeeds and returns its result. The error of `probe` describes the present state.
///
/// # Panics
/// It takes longer than `seconds`.
pub async fn eventually<T>(
    what: &str,
    seconds: u64,
    mut probe: impl AsyncFnMut() -> Result<T, String>,
) -> T {
    let began = Instant::now();
    loop {
        let instead = match probe().await {
            Ok(found) => return found,
            Err(instead) => instead,
        };
        assert!(
            began.elapsed().as_secs() < seconds,
            "{what}: not within {seconds} s; there is: {instead}"
        );
        tokio::time::sleep(INTERVAL).await;
    }
}
