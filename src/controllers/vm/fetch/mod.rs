//! CD images given by URL: each is fetched once into the namespace's image repository, for all VMs that name it.
//!
//! ```text
//!            no annotation on the claim      annotation there
//!  image ──► none ──► fetch pod ──► Fetched ──────────────────► its file is in the drive
//!              ▲          │ failed
//!              └─ pause ──┘ (or, where trying again is useless: until URL, checksum or settings change)
//! ```
//!
//! What is known of an image stands in the cluster and nowhere else: that it is there on the repository's claim, so
//! that it goes with the repository; how often it was tried on the pod. A pod is removed once its outcome is taken over;
//! one that has failed stays until the next try, so that its log can be read.
//!
//! | file | what |
//! |---|---|
//! | `state` | (pure) what is to be done about an image, and what there is to tell |
//! | `media` | (pure) what is in which drive meanwhile, and whether the start waits |
//! | `condition` | (pure) the condition `MediaFetched` |
//! | `apply` | (client) the writes |
//! | `progress` | (client) how far a fetch is, from the pod's log |
//! | `sweep` | (client) removes download pods that no VM needs |

pub mod apply;
mod condition;
mod media;
pub mod progress;
mod state;
pub mod sweep;

pub use condition::condition;
pub use media::{Media, media};
pub use state::{Attempt, Fetch, State, Step, look};
