//! What the tests are told with.
//!
//! | module | what |
//! |---|---|
//! | [`rig`] | the cluster, the images and the guest, made ready once for a run |
//! | [`space`] | a test's namespace with its operator: made, shown if the test fails, removed |
//! | [`watched`] | everything that happened to the namespace's VMs and pods, from the API server's watch |
//! | [`vm`] | a VM with the tiny guest, and what is waited for on it |
//! | [`disk`] | the guest's disk: a loop device as a PersistentVolume |
//! | [`console`] | the guest's serial console, as `kubectl exec` reaches it |
//! | [`display`] | a SPICE client |
//! | [`kubectl`] | what a user types |
//! | [`bridge`] | a bridge of the node |
//! | [`process`] | a pod's processes, seen from the node |
//! | [`outside`] | an operator outside of the cluster |
//! | [`audit`] | who has written what, by the API server's audit log |

pub mod audit;
pub mod bridge;
pub mod console;
pub mod disk;
pub mod display;
pub mod kubectl;
pub mod outside;
pub mod process;
pub mod rig;
pub mod space;
pub mod vm;
pub mod watched;

pub use space::{Space, e2e, e2e_in_two, e2e_with};

use std::time::{Duration, Instant};

/// How often a condition is looked at.
const INTERVAL: Duration = Duration::from_millis(200);

/// Waits until `probe` succeeds, and gives what it found. Its error says what is there instead.
///
/// # Panics
/// If that takes longer than `seconds`.
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
