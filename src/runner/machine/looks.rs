//! (io) Looks at CD images that end in time. The repository may be on a server that does not answer, and whoever asks that
//! waits until it does, whatever else there is to do: so each look is a thread of its own.

use crate::api::conditions::ConditionReason;
use crate::runner::problem::Problem;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Time for a look, in which everything else waits.
const TIME: Duration = Duration::from_secs(5);

/// Finds an image in the repository: its own path, or why there is none.
pub type Find = Arc<dyn Fn(&Path, &Path) -> Result<PathBuf, Problem> + Send + Sync>;

/// The image repository, and the looks there that take long.
pub struct Looks {
    repository: PathBuf,
    find: Find,
    /// By the configured image.
    begun: HashMap<PathBuf, JoinHandle<Result<PathBuf, Problem>>>,
}

impl Looks {
    /// Looks for images in that repository with that.
    pub fn new(repository: PathBuf, find: Find) -> Self {
        Self {
            repository,
            find,
            begun: HashMap::new(),
        }
    }

    /// Looks in a repository that did not answer when this process gave up all files that it does not need: it can be reached
    /// by the next start only.
    pub fn in_vain(repository: PathBuf) -> Self {
        let find = |repository: &Path, file: &Path| {
            let message = format!(
                "{}: the image repository {} did not answer when the VM was started; look at the server that it is on, then \
                 start the VM anew",
                file.display(),
                repository.display()
            );
            Err(Problem::new(ConditionReason::ImageNotReadable, message))
        };
        Self::new(repository, Arc::new(find))
    }

    /// The image's own path. A look that takes long goes on by itself, and what has come of it is asked for by the next.
    pub async fn look(&mut self, image: &Path) -> Result<PathBuf, Problem> {
        let time = if self.begun.contains_key(image) {
            Duration::ZERO
        } else {
            TIME
        };
        self.look_until(image, Instant::now() + time).await
    }

    /// The same for several images at once, with one time for all.
    pub async fn look_for_all(
        &mut self,
        images: &[Option<PathBuf>],
    ) -> Vec<Option<Result<PathBuf, Problem>>> {
        let until = Instant::now() + TIME;
        for image in images.iter().flatten() {
            if !self.begun.contains_key(image) {
                let look = self.begin(image);
                self.begun.insert(image.clone(), look);
            }
        }
        let mut found = Vec::new();
        for image in images {
            found.push(match image {
                Some(image) => Some(self.look_until(image, until).await),
                None => None,
            });
        }
        found
    }

    fn begin(&self, image: &Path) -> JoinHandle<Result<PathBuf, Problem>> {
        let (find, repository, file) = (
            Arc::clone(&self.find),
            self.repository.clone(),
            image.to_owned(),
        );
        tokio::task::spawn_blocking(move || find(&repository, &file))
    }

    async fn look_until(&mut self, image: &Path, until: Instant) -> Result<PathBuf, Problem> {
        let mut look = self
            .begun
            .remove(image)
            .unwrap_or_else(|| self.begin(image));
        match tokio::time::timeout_at(until, &mut look).await {
            Ok(found) => found.unwrap_or_else(|error| {
                Err(Problem::new(
                    ConditionReason::ImageNotReadable,
                    error.to_string(),
                ))
            }),
            Err(_) => {
                self.begun.insert(image.to_owned(), look);
                let message = format!(
                    "{}: the image repository {} has not answered within {} s; if it stays so, look at the server that it is \
                     on",
                    image.display(),
                    self.repository.display(),
                    TIME.as_secs()
                );
                Err(Problem::new(ConditionReason::ImageNotReadable, message))
            }
        }
    }
}

/// Whether the attributes of that directory can be read in time, as Landlock needs them, or it is known not to be there. The thread
/// that asks ends with the answer.
pub async fn answers(dir: &Path) -> bool {
    let (told, tells) = oneshot::channel();
    let dir = dir.to_owned();
    let ask = move || {
        drop(std::fs::metadata(dir));
        let _ = told.send(());
    };
    match std::thread::Builder::new()
        .name("repository".to_owned())
        .spawn(ask)
    {
        Ok(thread) => {
            let answered = tokio::time::timeout(TIME, tells).await.is_ok();
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
        let find: Find = Arc::new(move |_, file| {
            if file != Path::new("quick.iso") {
                let _ = answers.lock().unwrap().recv();
            }
            Ok(file.to_owned())
        });
        let mut looks = Looks::new("/images".into(), find);
        let images = ["a.iso", "quick.iso", "b.iso"].map(|image| Some(image.into()));
        let quick = looks.begin(Path::new("quick.iso"));
        until_finished(&quick);
        looks.begun.insert("quick.iso".into(), quick);
        let began = Instant::now();
        let look = async {
            (
                looks
                    .look_for_all(&[images.as_slice(), &[None]].concat())
                    .await,
                began.elapsed(),
            )
        };
        // The clock stands still while a look waits in its thread.
        let time_passes = async {
            for _ in 0..images.len() {
                tokio::time::advance(TIME + Duration::from_millis(1)).await;
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
            }
        };
        let ((found, took), ()) = tokio::join!(look, time_passes);
        assert!(took >= TIME && took < TIME * 2, "{took:?}");
        let [Some(Err(a)), Some(Ok(quick)), Some(Err(b)), None] = found.as_slice() else {
            panic!("{found:?}")
        };
        assert!(
            a.message
                .starts_with("a.iso: the image repository /images has not answered within 5 s"),
            "{a:?}"
        );
        assert_eq!(
            (b.reason, quick.as_path()),
            (ConditionReason::ImageNotReadable, Path::new("quick.iso"))
        );
        let began = Instant::now();
        assert!(looks.look(Path::new("a.iso")).await.is_err());
        assert_eq!(
            began.elapsed(),
            Duration::ZERO,
            "an image that was waited for once is not waited for again"
        );
        drop(answer);
        until_finished(&looks.begun[Path::new("a.iso")]);
        assert_eq!(looks.look(Path::new("a.iso")).await, Ok("a.iso".into()));
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
        assert!(answers(Path::new("/none/images")).await && answers(Path::new("/")).await);
        let told = Looks::in_vain("/images".into())
            .look(Path::new("a.iso"))
            .await
            .unwrap_err();
        assert!(
            told.message
                .starts_with("a.iso: the image repository /images did not answer"),
            "{told:?}"
        );
    }
}
