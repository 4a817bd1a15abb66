//! (io) Finds CD images: regular files in the image repository only (B27).

use crate::api::vm::conditions::ConditionReason;
use crate::runner::failure::Problem;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The image's path without symbolic links. A relative path starts in the repository.
pub fn find_cd_image(repository: &Path, file: &Path) -> Result<PathBuf, Problem> {
    let shown = file.display();
    if file.to_str().is_some_and(|text| text.contains("://")) {
        let message = format!(
            "the CD image {shown} is a URL, but the runner uses only files of the image repository. Copy the image into the \
             repository, and configure the file name of the copy"
        );
        return Err(Problem::new(ConditionReason::UrlNotSupported, message));
    }
    let missing = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => Problem::new(
            ConditionReason::ImageMissing,
            format!(
                "the CD image {shown} is not in the image repository; copy the file into the volume of the image repository"
            ),
        ),
        _ => Problem::new(
            ConditionReason::ImageNotReadable,
            format!(
                "the runner cannot read the CD image {shown}: {error}; check the volume of the image repository"
            ),
        ),
    };
    let base = fs::canonicalize(repository).map_err(|error| {
        Problem::new(
            ConditionReason::ImageMissing,
            format!(
                "the runner cannot use the directory {} with the CD images: {error}; check the volume of the image repository",
                repository.display()
            ),
        )
    })?;
    let path = fs::canonicalize(base.join(file)).map_err(missing)?;
    if !path.starts_with(&base) {
        let message = format!(
            "the CD image {shown} is outside of the image repository {}; copy the image into the repository, and configure the \
             path of the copy",
            repository.display()
        );
        return Err(Problem::new(ConditionReason::OutsideRepository, message));
    }
    // Checked before it is opened, because opening a device or a pipe has side effects.
    if !fs::metadata(&path).map_err(missing)?.is_file() {
        return Err(Problem::new(
            ConditionReason::NotAFile,
            format!(
                "the CD image {shown} is not a regular file; configure the path of an image file"
            ),
        ));
    }
    File::open(&path).map_err(missing)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn b27_only_regular_files_of_the_repository_are_images() {
        let (repository, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let base = repository.path();
        fs::write(base.join("a.iso"), "x").unwrap();
        fs::write(elsewhere.path().join("secret"), "x").unwrap();
        symlink("a.iso", base.join("link.iso")).unwrap();
        symlink(elsewhere.path().join("secret"), base.join("out.iso")).unwrap();
        symlink("/dev/null", base.join("device.iso")).unwrap();
        fs::create_dir(base.join("dir")).unwrap();
        let image = |file: &str| {
            find_cd_image(base, Path::new(file)).map_err(|problem| problem.reason.as_str())
        };
        let own = fs::canonicalize(base.join("a.iso")).unwrap();
        assert_eq!(image("a.iso"), Ok(own.clone()));
        assert_eq!(image("link.iso"), Ok(own.clone()));
        assert_eq!(image(base.join("a.iso").to_str().unwrap()), Ok(own));
        assert_eq!(image("none.iso"), Err("ImageMissing"));
        assert_eq!(image("out.iso"), Err("OutsideRepository"));
        assert_eq!(image("device.iso"), Err("OutsideRepository"));
        assert_eq!(image("/etc/passwd"), Err("OutsideRepository"));
        assert_eq!(image("../../../etc/passwd"), Err("OutsideRepository"));
        assert_eq!(image("dir"), Err("NotAFile"));
        assert_eq!(image("https://example.org/a.iso"), Err("UrlNotSupported"));
    }

    #[test]
    fn a_repository_that_is_not_mounted_is_named() {
        let problem = find_cd_image(Path::new("/none/repository"), Path::new("a.iso")).unwrap_err();
        assert!(
            problem.message.contains("/none/repository"),
            "{}",
            problem.message
        );
    }
}
