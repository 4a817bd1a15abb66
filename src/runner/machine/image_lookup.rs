//! (io) Finds CD images with a timeout. The image repository may be on a server that does not
//! answer, which blocks the calling thread. Each lookup therefore has its own thread.

use crate::api::vm::conditions::ConditionReason;
use crate::runner::failure::Problem;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Time for a lookup. Other changes of the VM wait for it.
const IMAGE_LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Finds an image in the repository: its path, or the reason why it cannot be used.
pub type FindImage = Arc<dyn Fn(&Path, &Path) -> Result<PathBuf, Problem> + Send + Sync>;

/// The image repository and the lookups that have timed out.
pub struct ImageLookup {
    repository: PathBuf,
    find: FindImage,
    /// By the configured path.
    pending: HashMap<PathBuf, JoinHandle<Result<PathBuf, Problem>>>,
}

impl ImageLookup {
    /// Finds images in that repository with that function.
    pub fn new(repository: PathBuf, find: FindImage) -> Self {
        Self {
            repository,
            find,
            pending: HashMap::new(),
        }
    }

    /// A repository that did not answer before this process restricted its file access. Only the
    /// next start can reach it.
    pub fn unreachable(repository: PathBuf) -> Self {
        let find = |repository: &Path, file: &Path| {
            let message = format!(
                "the CD image {} is not available: the storage of the image repository {} did not \
                 answer when the VM started; check the storage server, then restart the VM",
                file.display(),
                repository.display()
            );
            Err(Problem::new(ConditionReason::ImageNotReadable, message))
        };
        Self::new(repository, Arc::new(find))
    }

    /// The image's path. A lookup that times out continues, and the next call returns its result.
    pub async fn find(&mut self, image: &Path) -> Result<PathBuf, Problem> {
        let time = if self.pending.contains_key(image) {
            Duration::ZERO
        } else {
            IMAGE_LOOKUP_TIMEOUT
        };
        self.find_until(image, Instant::now() + time).await
    }

    /// Finds several images at the same time, with one timeout for all.
    pub async fn find_all(
        &mut self,
        images: &[Option<PathBuf>],
    ) -> Vec<Option<Result<PathBuf, Problem>>> {
        let until = Instant::now() + IMAGE_LOOKUP_TIMEOUT;
        for image in images.iter().flatten() {
            if !self.pending.contains_key(image) {
                let lookup = self.start_lookup(image);
                self.pending.insert(image.clone(), lookup);
            }
        }
        let mut found = Vec::new();
        for image in images {
            found.push(match image {
                Some(image) => Some(self.find_until(image, until).await),
                None => None,
            });
        }
        found
    }

    fn start_lookup(&self, image: &Path) -> JoinHandle<Result<PathBuf, Problem>> {
        let (find, repository, file) = (
            Arc::clone(&self.find),
            self.repository.clone(),
            image.to_owned(),
        );
        tokio::task::spawn_blocking(move || find(&repository, &file))
    }

    async fn find_until(&mut self, image: &Path, until: Instant) -> Result<PathBuf, Problem> {
        let mut lookup = self
            .pending
            .remove(image)
            .unwrap_or_else(|| self.start_lookup(image));
        match tokio::time::timeout_at(until, &mut lookup).await {
            Ok(found) => found.unwrap_or_else(|error| {
                Err(Problem::new(
                    ConditionReason::ImageNotReadable,
                    error.to_string(),
                ))
            }),
            Err(_) => {
                self.pending.insert(image.to_owned(), lookup);
                let message = format!(
                    "the CD image {} is not available: the storage of the image repository {} has not answered within {} s. \
                     Check the storage server; the runner retries",
                    image.display(),
                    self.repository.display(),
                    IMAGE_LOOKUP_TIMEOUT.as_secs()
                );
                Err(Problem::new(ConditionReason::ImageNotReadable, message))
            }
        }
    }
}

/// Whether the directory's attributes can be read in time, which Landlock needs. A directory that
/// is known to be missing counts as reachable. The thread exits after the answer.
pub async fn is_reachable(dir: &Path) -> bool {
    let (sender, receiver) = oneshot::channel();
    let dir = dir.to_owned();
    let ask = move || {
        drop(std::fs::metadata(dir));
        let _ = sender.send(());
    };
    match std::thread::Builder::new()
        .name("repository".to_owned())
        .spawn(ask)
    {
        Ok(thread) => {
            let answered = tokio::time::timeout(IMAGE_LOOKUP_TIMEOUT, receiver)
                .await
                .is_ok();
            if answered {
                let _ = thread.join();
            }
            answered
        }
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn images_that_take_long_share_one_time_and_the_next_look_has_what_has_come_of_them() {
        let (answer, answers) = std::sync::mpsc::channel::<()>();
        let answers = std::sync::Mutex::new(answers);
        let find: FindImage = Arc::new(move |_, file| {
            if file != Path::new("quick.iso") {
                let _ = answers.lock().unwrap().recv();
            }
            Ok(file.to_owned())
        });
        let mut image_lookup = ImageLookup::new("/images".into(), find);
        let images = ["a.iso", "quick.iso", "b.iso"].map(|image| Some(image.into()));
        let quick = image_lookup.start_lookup(Path::new("quick.iso"));
        until_finished(&quick);
        image_lookup.pending.insert("quick.iso".into(), quick);
        let began = Instant::now();
        let lookup = async {
            (
                image_lookup
                    .find_all(&[images.as_slice(), &[None]].concat())
                    .await,
                began.elapsed(),
            )
        };
        // The clock stands still while a look waits in its thread.
        let time_passes = async {
            for _ in 0..images.len() {
                tokio::time::advance(IMAGE_LOOKUP_TIMEOUT + Duration::from_millis(1)).await;
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
            }
        };
        let ((found, took), ()) = tokio::join!(lookup, time_passes);
        assert!(
            took >= IMAGE_LOOKUP_TIMEOUT && took < IMAGE_LOOKUP_TIMEOUT * 2,
            "{took:?}"
        );
        let [Some(Err(a)), Some(Ok(quick)), Some(Err(b)), None] = found.as_slice() else {
            panic!("{found:?}")
        };
        assert!(
            a.message
                .starts_with("the CD image a.iso is not available: the storage of the image repository /images has not answered within 5 s"),
            "{a:?}"
        );
        assert_eq!(
            (b.reason, quick.as_path()),
            (ConditionReason::ImageNotReadable, Path::new("quick.iso"))
        );
        let began = Instant::now();
        assert!(image_lookup.find(Path::new("a.iso")).await.is_err());
        assert_eq!(
            began.elapsed(),
            Duration::ZERO,
            "an image that was waited for once is not waited for again"
        );
        drop(answer);
        until_finished(&image_lookup.pending[Path::new("a.iso")]);
        assert_eq!(
            image_lookup.find(Path::new("a.iso")).await,
            Ok("a.iso".into())
        );
    }

    fn until_finished<T>(look: &JoinHandle<T>) {
        let began = std::time::Instant::now();
        while !look.is_finished() {
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "the look does not end"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[tokio::test]
    async fn a_directory_that_is_not_there_is_an_answer() {
        assert!(
            is_reachable(Path::new("/none/images")).await && is_reachable(Path::new("/")).await
        );
        let sender = ImageLookup::unreachable("/images".into())
            .find(Path::new("a.iso"))
            .await
            .unwrap_err();
        assert!(
            sender
                .message
                .starts_with("the CD image a.iso is not available: the storage of the image repository /images did not answer"),
            "{sender:?}"
        );
    }
}
