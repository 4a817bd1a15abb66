//! (io) Writes files atomically: after a crash, a file has its old or its new content, never a part
//! of it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Replaces the content of the file.
pub fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    replace(path, |file| file.write_all(content))
}

/// Copies `from` to `to`. The paths may be equal: the copy then belongs to this process's user.
pub fn copy(from: &Path, to: &Path) -> io::Result<()> {
    replace(to, |file| {
        io::copy(&mut File::open(from)?, file).map(|_| ())
    })
}

fn replace(path: &Path, fill: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    let part: PathBuf = path.with_file_name(name);
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(&part)?;
    let written = fill(&mut file)
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&part, path));
    if let Err(error) = written {
        let _ = fs::remove_file(&part);
        return Err(error);
    }
    path.parent()
        .map_or(Ok(()), |dir| File::open(dir)?.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_copy_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("to");
        assert!(copy(Path::new("/nonexistent"), &to).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        write(&to, b"whole").unwrap();
        assert_eq!(fs::read(&to).unwrap(), b"whole");
    }
}
