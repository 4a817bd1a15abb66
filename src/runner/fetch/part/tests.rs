use super::*;
use sha2::Digest;

/// The locked part. A child process of another test can have the descriptor of the lock between its fork and its exec.
fn ours(target: &Path, with_checksum: bool) -> Box<Part> {
    for _ in 0..1000 {
        match Part::acquire(&file(target), checksum(with_checksum).as_ref()).unwrap() {
            LockOutcome::Locked(part) => return part,
            LockOutcome::Complete(_) => panic!("the part is complete"),
            LockOutcome::LockedByOther(_) => {
                std::thread::sleep(std::time::Duration::from_millis(10))
            }
        }
    }
    panic!("another process has locked the part");
}

fn checksum(exists: bool) -> Option<Checksum> {
    exists.then(|| Checksum::Sha256(String::new()))
}

fn file(path: &Path) -> Destination {
    Destination::File(path.to_owned())
}

fn tag() -> Option<Validator> {
    Some(Validator::ETag("\"a\"".to_owned()))
}

#[test]
fn partial_download_resumes_at_the_persisted_length() {
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
    assert!(part.is_complete());
    fs::write(dir.path().join("a.iso.part.json.new"), "{").unwrap();
    part.finish().unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"0123456789");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    assert!(matches!(
        Part::acquire(&file(&target), None).unwrap(),
        LockOutcome::Complete(10)
    ));
}

#[test]
fn partial_file_without_valid_record_is_discarded() {
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
fn partial_download_has_one_writer() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("a.iso");
    let mut part = ours(&target, false);
    part.begin(None, None).unwrap();
    part.write(b"012").unwrap();
    assert!(matches!(
        Part::acquire(&file(&target), None).unwrap(),
        LockOutcome::LockedByOther(3)
    ));
    part.finish().unwrap();
    assert!(matches!(
        Part::acquire(&file(&target), None).unwrap(),
        LockOutcome::Complete(3)
    ));
}

#[test]
fn a_link_or_a_folder_is_not_written_to() {
    let dir = tempfile::tempdir().unwrap();
    let reason = |name: &str| match Part::acquire(&file(&dir.path().join(name)), None) {
        Ok(_) => panic!("locked"),
        Err(problem) => problem.reason,
    };
    fs::create_dir(dir.path().join("a.iso")).unwrap();
    std::os::unix::fs::symlink("/dev/null", dir.path().join("b.iso.part")).unwrap();
    assert_eq!(reason("a.iso"), FetchReason::RepositoryNotWritable);
    assert_eq!(reason("b.iso"), FetchReason::RepositoryNotWritable);
}

/// A file in place of a device, whose image has a header of 4 bytes: the position, in units of 4 bytes.
fn device(path: &Path, metadata: PathBuf) -> Destination {
    let place = |header: &Header<'_>| match header.bytes.first() {
        Some(b'!') => Err(Problem::new(FetchReason::FormatNotSupported, "no image")),
        first => Ok(4 * u64::from(*first.unwrap())),
    };
    Destination::Device(Device {
        path: path.to_owned(),
        metadata,
        header_length: 4,
        place: Arc::new(place),
        end: None,
    })
}

#[test]
fn the_first_bytes_decide_the_position_on_a_device() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("device");
    fs::write(&path, [9; 16]).unwrap();
    let destination = device(&path, dir.path().join("metadata"));
    let acquire = || match Part::acquire(&destination, checksum(true).as_ref()).unwrap() {
        LockOutcome::Locked(mut part) => {
            part.resume().unwrap();
            part
        }
        _ => panic!("a device is never complete"),
    };
    let mut part = acquire();
    part.begin(tag(), Some(6)).unwrap();
    part.write(&[1, 2, 3]).unwrap();
    part.save().unwrap();
    assert_eq!(fs::read(&path).unwrap(), [9; 16], "nothing is decided yet");
    part.write(&[4, 5]).unwrap();
    part.save().unwrap();
    // Another process resumes, and the checksum is that of all bytes.
    let mut part = acquire();
    assert_eq!((part.bytes(), part.offset()), (5, 4));
    part.write(&[6]).unwrap();
    let sum = crate::api::hex(&Sha256::digest([1, 2, 3, 4, 5, 6]));
    assert_eq!(part.sum(), Some(sum));
    part.finish().unwrap();
    assert_eq!(fs::read(&path).unwrap()[3..11], [9, 1, 2, 3, 4, 5, 6, 9]);
    assert!(acquire().is_complete());

    let refused = |image: &[u8]| {
        let mut part = acquire();
        part.begin(tag(), None).unwrap();
        let written = part.write(image).and_then(|()| part.finish());
        part.save_unsaved().unwrap();
        assert!(
            acquire().bytes() == 0 || image.len() > 4,
            "nothing is on the device"
        );
        (
            written.unwrap_err().reason,
            fs::metadata(&path).unwrap().len(),
        )
    };
    assert_eq!(refused(b"!"), (FetchReason::FormatNotSupported, 16));
    assert_eq!(refused(&[3; 5]), (FetchReason::TooLarge, 16));
}
