//! Downloads of CD images given by URL: each image is downloaded once into the namespace's image repository, for all VMs that name it.
//!
//! ```text
//!            no annotation on the PVC           annotation on the PVC
//!  image ──► no pod ──► download pod ──► Fetched ────────────────────► its file is in the drive
//!              ▲            │ failed
//!              └─ backoff ──┘ (an error that a retry cannot correct waits for another URL, checksum or configuration)
//! ```
//!
//! The state of a download is stored in the cluster only. An annotation of the image repository records a finished download, so that it is
//! deleted with the repository. An annotation of the download pod has the number of attempts. A pod is deleted when its outcome is
//! recorded; a failed pod is kept until the next attempt, so that its log can be read.
//!
//! | file | content |
//! |---|---|
//! | `state` | (pure) the state of an image, and the next step |
//! | `media` | (pure) the files of the drives, and the wait for a boot image |
//! | `condition` | (pure) the condition `MediaFetched` |
//! | `apply` | (client) the writes |
//! | `progress` | (client) the progress of a download, from the pod's log |
//! | `sweep` | (client) deletes download pods that no VM needs |

pub mod apply;
mod condition;
mod media;
pub mod progress;
mod state;
pub mod sweep;

pub use condition::condition;
pub use media::{Media, media};
pub use state::{Attempt, Fetch, PROGRESS_INTERVAL, State, Step, download_state};
