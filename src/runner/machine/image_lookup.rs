//! (io) Finds CD images with a timeout. The image repository may be on a server that does not
//! answer, which blocks the calling thread. Each lookup therefore has its own thread.

use crate::api::vm::conditions::ConditionReason;
use crate::runner::failure::Problem;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Time for a lookup. Other changes of the VM wait for it.
const IMAGE_LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Finds an image in the repository: its path, or the reason why it cannot be used.
pub type FindImage = Arc<dyn Fn(&Path, &Path) -> Result<PathBuf, Problem> + Send + Sync>;

/// The image repository.
pub struct ImageLookup {
    repository: PathBuf,
    find: FindImage,
    /// The lookup that has timed out. No other one begins before it ends, so blocked threads do not accumulate.
    blocked: Option<JoinHandle<Result<PathBuf, Problem>>>,
}

impl ImageLookup {
    /// Finds images in that repository with that function.
    pub fn new(repository: PathBuf, find: FindImage) -> Self {
        Self {
            repository,
            find,
            blocked: None,
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

    /// The image's path.
    pub async fn find(&mut self, image: &Path) -> Result<PathBuf, Problem> {
        let is_blocked = |lookup: &JoinHandle<_>| !lookup.is_finished();
        if self.blocked.as_ref().is_some_and(is_blocked) {
            return Err(self.timeout(image));
        }
        let find = Arc::clone(&self.find);
        let (repository, file) = (self.repository.clone(), image.to_owned());
        let mut lookup = tokio::task::spawn_blocking(move || find(&repository, &file));
        match tokio::time::timeout(IMAGE_LOOKUP_TIMEOUT, &mut lookup).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => Err(Problem::new(
                ConditionReason::ImageNotReadable,
                error.to_string(),
            )),
            Err(_) => {
                self.blocked = Some(lookup);
                Err(self.timeout(image))
            }
        }
    }

    /// Finds several images.
    pub async fn find_all(
        &mut self,
        images: &[Option<PathBuf>],
    ) -> Vec<Option<Result<PathBuf, Problem>>> {
        let mut found = Vec::new();
        for image in images {
            found.push(match image {
                Some(image) => Some(self.find(image).await),
                None => None,
            });
        }
        found
    }

    fn timeout(&self, image: &Path) -> Problem {
        let message = format!(
            "the CD image {} is not available: the storage of the image repository {} has not answered within {} s. \
             Check the storage server; the runner retries",
            image.display(),
            self.repository.display(),
            IMAGE_LOOKUP_TIMEOUT.as_secs()
        );
        Problem::new(ConditionReason::ImageNotReadable, message)
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
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn no_lookup_begins_while_another_one_is_blocked() {
        let (answer, answers) = std::sync::mpsc::channel::<()>();
        let answers = std::sync::Mutex::new(answers);
        let find: FindImage = Arc::new(move |_, file| {
            let _ = answers.lock().unwrap().recv();
            Ok(file.to_owned())
        });
        let mut image_lookup = ImageLookup::new("/images".into(), find);
        let images: [Option<PathBuf>; 3] = [Some("a.iso".into()), None, Some("b.iso".into())];
        let began = Instant::now();
        let lookup = async { (image_lookup.find_all(&images).await, began.elapsed()) };
        // The clock stands still while a lookup waits in its thread.
        let time_passes = async {
            tokio::task::yield_now().await;
            tokio::time::advance(IMAGE_LOOKUP_TIMEOUT + Duration::from_millis(1)).await;
        };
        let ((found, took), ()) = tokio::join!(lookup, time_passes);
        assert!(
            took >= IMAGE_LOOKUP_TIMEOUT && took < IMAGE_LOOKUP_TIMEOUT * 2,
            "{took:?}"
        );
        let [Some(Err(a)), None, Some(Err(b))] = found.as_slice() else {
            panic!("{found:?}")
        };
        assert!(
            a.message
                .starts_with("the CD image a.iso is not available: the storage of the image repository /images has not answered within 5 s"),
            "{a:?}"
        );
        assert_eq!(b.reason, ConditionReason::ImageNotReadable);
        let began = Instant::now();
        assert!(image_lookup.find(Path::new("a.iso")).await.is_err());
        assert_eq!(began.elapsed(), Duration::ZERO);
        drop(answer);
        until_finished(image_lookup.blocked.as_ref().unwrap());
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
    async fn missing_directory_counts_as_reachable() {
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
