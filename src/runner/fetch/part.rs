//! (io) The part of an image that is in the repository already: `FILE.part`, and `FILE.part.json` which says of what it is.
//!
//! What always holds: who writes a part has it locked; what the record says is on the disk, also after a loss of power;
//! `FILE` is either not there or whole.

use crate::api::hex;
use crate::api::runner::fetch::FetchReason;
use crate::runner::fetch::answer::Validator;
use crate::runner::fetch::problem::{Problem, size};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// So many bytes are lost at most when the program or the node dies.
const SAVE_EVERY: u64 = 8 << 20;

/// What a part is of, and how much of it is on the disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    bytes: u64,
    total: Option<u64>,
    validator: Option<Validator>,
}

/// Who has the right to write an image.
pub enum Claim {
    /// This process.
    Ours(Box<Part>),
    /// Nobody: it is there, with so many bytes.
    There(u64),
    /// Another process, which has so many bytes.
    Others(u64),
}

/// A locked part.
pub struct Part {
    file: File,
    target: PathBuf,
    record: Record,
    written: u64,
    sum: Option<Sha256>,
}

impl Part {
    /// Takes the part of that file, unless another process has it or the file is there. What a former process has left
    /// is kept if it can be gone on with; with `summed`, it is read.
    pub fn claim(target: &Path, summed: bool) -> Result<Claim, Problem> {
        let problem = |error| problem(target, &error);
        if let Some(bytes) = present(target)? {
            return Ok(Claim::There(bytes));
        }
        let path = part_of(target);
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .mode(0o644)
            .custom_flags(libc::O_NOFOLLOW);
        let file = options.open(&path).map_err(problem)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::AGAIN) => {
                return Ok(Claim::Others(file.metadata().map_err(problem)?.len()));
            }
            Err(error) => {
                return Err(Problem::new(
                    FetchReason::RepositoryNotWritable,
                    format!(
                        "{} cannot be locked: {error}; the repository's volume needs file locks",
                        path.display()
                    ),
                ));
            }
        }
        // Meanwhile another process may have finished or removed what was opened.
        let ours = file.metadata().map_err(problem)?;
        let is_same = |there: fs::Metadata| (ours.dev(), ours.ino()) == (there.dev(), there.ino());
        if !fs::symlink_metadata(&path).is_ok_and(is_same) {
            return Ok(Claim::Others(0));
        }
        if let Some(bytes) = present(target)? {
            let _ = fs::remove_file(path);
            return Ok(Claim::There(bytes));
        }
        let sum = summed.then(Sha256::new);
        let part = Self {
            file,
            target: target.to_owned(),
            record: Record::default(),
            written: 0,
            sum,
        };
        Ok(Claim::Ours(Box::new(part)))
    }

    /// Goes on with what a former process has left, if that can be.
    pub fn resume(&mut self) -> Result<(), Problem> {
        let left = fs::read(record_of(&self.target))
            .ok()
            .and_then(|text| serde_json::from_slice::<Record>(&text).ok());
        let there = self
            .file
            .metadata()
            .map_err(|error| self.problem(&error))?
            .len();
        match left {
            Some(record)
                if record.validator.is_some() && record.bytes > 0 && record.bytes <= there =>
            {
                self.written = record.bytes;
                self.record = record;
                self.read_back().map_err(|error| self.problem(&error))
            }
            _ => self.begin(None, None),
        }
    }

    fn read_back(&mut self) -> io::Result<()> {
        self.file.set_len(self.written)?;
        if let Some(sum) = &mut self.sum {
            self.file.seek(SeekFrom::Start(0))?;
            let (mut buffer, mut left) = (vec![0; 1 << 18], self.written);
            while left > 0 {
                let n = self.file.read(&mut buffer)?;
                let read = buffer
                    .get(..n)
                    .filter(|read| !read.is_empty())
                    .ok_or(ErrorKind::UnexpectedEof)?;
                sum.update(read);
                left = left.saturating_sub(read.len() as u64);
            }
        }
        self.file.seek(SeekFrom::Start(self.written)).map(drop)
    }

    /// Starts again with an image that has that identity.
    pub fn begin(
        &mut self,
        validator: Option<Validator>,
        total: Option<u64>,
    ) -> Result<(), Problem> {
        self.record = Record {
            bytes: 0,
            total,
            validator,
        };
        self.written = 0;
        self.sum = self.sum.take().map(|_| Sha256::new());
        let fresh = self
            .write_record()
            .and_then(|()| self.file.set_len(0))
            .and_then(|()| self.file.rewind());
        fresh.map_err(|error| self.problem(&error))
    }

    /// Puts that behind what is there.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Problem> {
        self.file
            .write_all(bytes)
            .map_err(|error| self.problem(&error))?;
        self.written = self.written.saturating_add(bytes.len() as u64);
        if let Some(sum) = &mut self.sum {
            sum.update(bytes);
        }
        if self.written.saturating_sub(self.record.bytes) < SAVE_EVERY {
            Ok(())
        } else {
            self.save()
        }
    }

    /// Puts it on the disk, and then says so in the record.
    pub fn save(&mut self) -> Result<(), Problem> {
        self.file
            .sync_data()
            .map_err(|error| self.problem(&error))?;
        self.record.bytes = self.written;
        self.write_record().map_err(|error| self.problem(&error))
    }

    /// The same, unless all was thrown away.
    pub fn save_if_there(&mut self) -> Result<(), Problem> {
        if self.written == self.record.bytes {
            Ok(())
        } else {
            self.save()
        }
    }

    fn write_record(&self) -> io::Result<()> {
        let path = record_of(&self.target);
        let fresh = fresh_record_of(&self.target);
        let text = serde_json::to_vec(&self.record).map_err(io::Error::other)?;
        fs::write(&fresh, text)
            .and_then(|()| fs::rename(&fresh, path))
            .inspect_err(|_| _ = fs::remove_file(&fresh))
    }

    /// Bytes that there are.
    pub fn bytes(&self) -> u64 {
        self.written
    }

    /// The whole size, if it was said.
    pub fn total(&self) -> Option<u64> {
        self.record.total
    }

    /// What it is of.
    pub fn validator(&self) -> Option<&Validator> {
        self.record.validator.as_ref()
    }

    /// Whether there is all of it.
    pub fn is_whole(&self) -> bool {
        self.record.total == Some(self.written) && self.written > 0
    }

    /// Whether there is room for an image of that size.
    pub fn room(&self, total: u64) -> Result<(), Problem> {
        let missing = total.saturating_sub(self.written);
        let volume =
            rustix::fs::fstatvfs(&self.file).map_err(|error| self.problem(&error.into()))?;
        let free = volume.f_bavail.saturating_mul(volume.f_frsize);
        // Some network file systems don't say.
        if volume.f_blocks == 0 || free >= missing {
            return Ok(());
        }
        let folder = self.target.parent().unwrap_or(&self.target).display();
        let message = format!(
            "{folder} has {} left, and {} are needed; make room, or a larger volume",
            size(free),
            size(missing)
        );
        Err(Problem::new(FetchReason::RepositoryFull, message))
    }

    /// The sum of all bytes so far, in lower-case hexadecimal digits; nothing if it wasn't asked for.
    pub fn sum(&self) -> Option<String> {
        Some(hex(&self.sum.clone()?.finalize()))
    }

    /// Makes the file of it.
    pub fn finish(&mut self) -> Result<(), Problem> {
        let finish = || {
            self.file.sync_all()?;
            fs::rename(part_of(&self.target), &self.target)?;
            for path in [record_of(&self.target), fresh_record_of(&self.target)] {
                let _ = fs::remove_file(path);
            }
            File::open(self.target.parent().unwrap_or(Path::new("/")))?.sync_all()
        };
        finish().map_err(|error| self.problem(&error))
    }

    /// Removes it: it is not what was asked for.
    pub fn discard(&mut self) {
        self.written = 0;
        self.record = Record::default();
        for path in [
            record_of(&self.target),
            fresh_record_of(&self.target),
            part_of(&self.target),
        ] {
            if let Err(error) = fs::remove_file(&path)
                && error.kind() != ErrorKind::NotFound
            {
                tracing::warn!(%error, "{} cannot be removed", path.display());
            }
        }
    }

    fn problem(&self, error: &io::Error) -> Problem {
        problem(&self.target, error)
    }
}

/// Makes the directory of a file.
pub fn make_folder(target: &Path) -> Result<(), Problem> {
    let folder = target.parent().unwrap_or(Path::new("/"));
    if folder.is_dir() {
        return Ok(());
    }
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(folder)
        .map_err(|error| problem(target, &error))
}

/// The size of the file, if it is there.
pub fn present(target: &Path) -> Result<Option<u64>, Problem> {
    match fs::symlink_metadata(target) {
        Ok(metadata) if metadata.is_file() => Ok(Some(metadata.len())),
        Ok(_) => {
            let message = format!("{} is there, but is no file; remove it", target.display());
            Err(Problem::new(FetchReason::RepositoryNotWritable, message))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(problem(target, &error)),
    }
}

fn part_of(target: &Path) -> PathBuf {
    with_ending(target, ".part")
}

fn record_of(target: &Path) -> PathBuf {
    with_ending(target, ".part.json")
}

/// A record while it is written; a killed process can leave it.
fn fresh_record_of(target: &Path) -> PathBuf {
    with_ending(target, ".part.json.new")
}

fn with_ending(target: &Path, ending: &str) -> PathBuf {
    let mut name = target.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Why the repository does not take it, and what to do.
fn problem(target: &Path, error: &io::Error) -> Problem {
    let folder = target.parent().unwrap_or(target).display();
    let uid = rustix::process::getuid().as_raw();
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            let message =
                format!("{folder} has no room left ({error}); make room, or a larger volume");
            Problem::new(FetchReason::RepositoryFull, message)
        }
        ErrorKind::ReadOnlyFilesystem => {
            let message = format!(
                "{folder} cannot be written by anybody: {error}; the volume must be mounted for writing"
            );
            Problem::new(FetchReason::RepositoryNotWritable, message)
        }
        _ => {
            let gid = rustix::process::getgid().as_raw();
            let message = format!(
                "{folder} cannot be written by uid {uid}: {error}; on the volume, run `chown -R {uid}:{gid}` there, or use a \
                 volume with a driver that follows fsGroup"
            );
            Problem::new(FetchReason::RepositoryNotWritable, message)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours(target: &Path, summed: bool) -> Box<Part> {
        match Part::claim(target, summed).unwrap() {
            Claim::Ours(part) => part,
            Claim::There(_) | Claim::Others(_) => panic!("not ours"),
        }
    }

    fn tag() -> Option<Validator> {
        Some(Validator::ETag("\"a\"".to_owned()))
    }

    #[test]
    fn a_part_is_gone_on_with_as_far_as_it_was_on_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("a.iso");
        let mut part = ours(&target, true);
        part.resume().unwrap();
        part.begin(tag(), Some(10)).unwrap();
        part.write(b"01234").unwrap();
        part.save().unwrap();
        part.write(b"!!").unwrap();
        drop(part);
        let mut part = ours(&target, true);
        part.resume().unwrap();
        assert_eq!(
            (part.bytes(), part.total(), part.validator()),
            (5, Some(10), tag().as_ref())
        );
        part.write(b"56789").unwrap();
        let sum: String = Sha256::digest(b"0123456789")
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(part.sum(), Some(sum));
        assert!(part.is_whole());
        fs::write(dir.path().join("a.iso.part.json.new"), "{").unwrap();
        part.finish().unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"0123456789");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(matches!(
            Part::claim(&target, false).unwrap(),
            Claim::There(10)
        ));
    }

    #[test]
    fn what_is_not_known_to_be_of_the_image_is_thrown_away() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("a.iso");
        let record = |text: &str| fs::write(dir.path().join("a.iso.part.json"), text).unwrap();
        for text in [
            "",
            r#"{"bytes":3}"#,
            r#"{"bytes":9,"validator":{"eTag":"\"a\""}}"#,
            r#"{"bytes":0,"validator":{"eTag":"\"a\""}}"#,
        ] {
            fs::write(dir.path().join("a.iso.part"), "01234").unwrap();
            record(text);
            let mut part = ours(&target, false);
            part.resume().unwrap();
            assert_eq!(part.bytes(), 0, "{text}");
            assert_eq!(
                fs::metadata(dir.path().join("a.iso.part")).unwrap().len(),
                0
            );
        }
    }

    #[test]
    fn a_part_has_one_writer() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("a.iso");
        let mut part = ours(&target, false);
        part.begin(None, None).unwrap();
        part.write(b"012").unwrap();
        assert!(matches!(
            Part::claim(&target, false).unwrap(),
            Claim::Others(3)
        ));
        part.finish().unwrap();
        assert!(matches!(
            Part::claim(&target, false).unwrap(),
            Claim::There(3)
        ));
    }

    #[test]
    fn a_link_or_a_folder_is_not_written_to() {
        let dir = tempfile::tempdir().unwrap();
        let reason = |name: &str| match Part::claim(&dir.path().join(name), false) {
            Ok(_) => panic!("claimed"),
            Err(problem) => problem.reason,
        };
        fs::create_dir(dir.path().join("a.iso")).unwrap();
        std::os::unix::fs::symlink("/dev/null", dir.path().join("b.iso.part")).unwrap();
        assert_eq!(reason("a.iso"), FetchReason::RepositoryNotWritable);
        assert_eq!(reason("b.iso"), FetchReason::RepositoryNotWritable);
    }
}
