//! (pure) The format of an image, by its first bytes, and the features of a qcow2 image that are refused.
//!
//! An image comes from a web server, and may be made to read other files of the container: a backing file or an external data file. Such an
//! image is refused before `qemu-img` opens it. The layout is that of QEMU's documentation, docs/interop/qcow2.rst.

use crate::api::runner::fetch::FetchReason;
use crate::runner::fetch::problem::Problem;

/// The number of bytes that decide. The label of an ISO 9660 file system ends here.
pub const HEADER_LENGTH: usize = ISO_OFFSET + ISO_LABEL.len();

const ISO_OFFSET: usize = 0x8001;
const ISO_LABEL: &[u8] = b"CD001";
/// The end of a boot sector. A partition table has it, too.
const BOOT_OFFSET: usize = 510;
const BOOT_LABEL: &[u8] = &[0x55, 0xaa];
const QCOW2_LABEL: &[u8] = b"QFI\xfb";

/// Other formats: offset, label, name, and the command that makes an image for this program.
const OTHERS: [(usize, &[u8], &str, &str); 6] = [
    (0, b"KDMV", "a vmdk image", CONVERT),
    (0, b"# Disk DescriptorFile", "a vmdk image", CONVERT),
    (0, b"vhdxfile", "a vhdx image", CONVERT),
    (0, b"conectix", "a vhd image", CONVERT),
    (0x40, &[0x7f, 0x10, 0xda, 0xbe], "a vdi image", CONVERT),
    (0, b"PK\x03\x04", "a zip file", "unzip"),
];
const CONVERT: &str = "qemu-img convert -O qcow2";

const COMPRESSIONS: [(&[u8], Compression); 3] = [
    (&[0x1f, 0x8b], Compression::Gzip),
    (b"\xfd7zXZ\0", Compression::Xz),
    (&[0x28, 0xb5, 0x2f, 0xfd], Compression::Zstd),
];

/// The format of an image that the user names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// The bytes of the disk, whatever they are.
    Raw,
    /// An image of QEMU.
    Qcow2,
}

/// The program that has compressed an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Compression {
    Gzip,
    Xz,
    Zstd,
}

impl Compression {
    /// The compression with these first bytes.
    pub fn of(header: &[u8]) -> Option<Self> {
        let mut known = COMPRESSIONS.iter();
        let found = known.find(|(label, _)| header.starts_with(label));
        found.map(|(_, compression)| *compression)
    }

    /// Name of the program.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Xz => "xz",
            Self::Zstd => "zstd",
        }
    }

    /// Path of the program in the image of the runner.
    pub fn program(self) -> String {
        format!("/usr/bin/{}", self.name())
    }

    /// The arguments that unpack the standard input to the standard output, with at most 128 MiB of memory.
    pub fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Gzip => &["-dc"],
            Self::Xz => &["-dc", "--threads=1", "--memlimit-decompress=128MiB"],
            Self::Zstd => &["-dcq", "--memory=128MiB"],
        }
    }
}

/// An image that can be imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Image {
    /// The bytes of the disk.
    Raw,
    /// A qcow2 image with a disk of this size in bytes.
    Qcow2(u64),
}

impl Image {
    /// The image with these first bytes, which has the named format.
    ///
    /// # Errors
    /// The format is another one, or a feature of the image is refused.
    pub fn of(header: &[u8], format: Option<Format>) -> Result<Self, Problem> {
        if format == Some(Format::Raw) {
            return Ok(Self::Raw);
        }
        let has = |offset: usize, label: &[u8]| {
            let rest = header.get(offset..).unwrap_or_default();
            rest.starts_with(label)
        };
        if has(0, QCOW2_LABEL) {
            let size = qcow2_size(header).map_err(|why| {
                Problem::new(FetchReason::ImageRefused, format!("the qcow2 image {why}"))
            })?;
            return Ok(Self::Qcow2(size));
        }
        if format == Some(Format::Qcow2) {
            let message = "the file is not in the format qcow2, which the VM names; correct or remove the field format";
            return Err(Problem::new(FetchReason::FormatNotSupported, message));
        }
        if let Some(compression) = Compression::of(header) {
            let name = compression.name();
            let message =
                format!("the image is compressed twice; publish it without the inner {name}");
            return Err(Problem::new(FetchReason::FormatNotSupported, message));
        }
        let other = OTHERS
            .iter()
            .find(|(offset, label, ..)| has(*offset, label));
        if let Some((_, _, name, command)) = other {
            let message = format!(
                "the file is {name}, which cannot be imported; convert it with `{command}`"
            );
            return Err(Problem::new(FetchReason::FormatNotSupported, message));
        }
        if has(BOOT_OFFSET, BOOT_LABEL) || has(ISO_OFFSET, ISO_LABEL) {
            return Ok(Self::Raw);
        }
        let message = "the file is no disk image: it is not in the format qcow2, and has neither a boot sector nor an ISO 9660 file system; \
                       check the URL, which may lead to a web page";
        Err(Problem::new(FetchReason::FormatNotSupported, message))
    }
}

/// The size of the disk of a qcow2 image, in bytes.
///
/// # Errors
/// The image is damaged, or has a feature that is refused. The error completes "the image …".
fn qcow2_size(header: &[u8]) -> Result<u64, String> {
    /// Dirty, compression type, extended L2 entries.
    const ALLOWED_FEATURES: u64 = 0b11001;
    const CORRUPT: u64 = 0b10;
    const EXTERNAL_DATA: u64 = 0b100;
    const SIZE_MAX: u64 = 1 << 56;
    const TRUNCATED: &str = "is truncated; check the URL";
    let number = |offset: usize, length: usize| {
        let bytes = header
            .get(offset..offset.saturating_add(length))
            .ok_or(TRUNCATED)?;
        Ok::<u64, &str>(
            bytes
                .iter()
                .fold(0, |number, byte| number << 8 | u64::from(*byte)),
        )
    };
    let version = number(4, 4)?;
    let features = match version {
        2 => 0,
        3 => number(72, 8)?,
        version => {
            return Err(format!(
                "has the version {version}; convert it with `{CONVERT}`"
            ));
        }
    };
    if number(8, 8)? != 0 || number(16, 4)? != 0 {
        return Err("has a backing file; convert it on a machine that has this file, with `qemu-img convert -O qcow2`".to_owned());
    }
    if features & EXTERNAL_DATA != 0 {
        return Err("has an external data file; convert it on a machine that has this file, with `qemu-img convert -O qcow2`".to_owned());
    }
    if number(32, 4)? != 0 {
        return Err("is encrypted; convert it to an image without encryption".to_owned());
    }
    if features & CORRUPT != 0 {
        return Err("is marked as corrupt; repair it with `qemu-img check -r all`".to_owned());
    }
    let unknown = features & !ALLOWED_FEATURES;
    if unknown != 0 {
        return Err(format!(
            "has unknown features ({unknown:#x}); convert it with `{CONVERT}`"
        ));
    }
    let (clusters, size) = (number(20, 4)?, number(24, 8)?);
    if !(9..=21).contains(&clusters) || size == 0 || size > SIZE_MAX {
        return Err("has an invalid header; check the URL".to_owned());
    }
    Ok(size)
}

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing {
    //! The properties of the check for any bytes.

    use super::{Image, QCOW2_LABEL};

    /// An accepted qcow2 image reads no other file, is not encrypted, and has a disk.
    pub fn check_image(header: &[u8]) {
        let is_qcow2 = header.starts_with(QCOW2_LABEL);
        let field = |from: usize, to: usize| header.get(from..to).unwrap_or_default();
        match Image::of(header, None) {
            Ok(Image::Qcow2(size)) => {
                assert!(is_qcow2 && size > 0);
                let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
                // Backing file, encryption, and the feature bits of a version 3 for a corrupt image and an external data file.
                assert!(is_zero(field(8, 20)) && is_zero(field(32, 36)));
                assert!(
                    field(4, 8) == [0, 0, 0, 2]
                        || field(79, 80).iter().all(|bits| bits & 0b110 == 0)
                );
            }
            Ok(Image::Raw) => assert!(!is_qcow2),
            Err(problem) => assert!(!problem.reason.may_retry() && !problem.message.is_empty()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn qcow2(changes: &[(usize, u8)]) -> Vec<u8> {
        let mut header = vec![0; 512];
        header[..4].copy_from_slice(QCOW2_LABEL);
        for (offset, byte) in [(7, 3), (23, 16), (28, 1)].iter().chain(changes) {
            header[*offset] = *byte;
        }
        header
    }

    fn refusal(header: &[u8]) -> (FetchReason, String) {
        let problem = Image::of(header, None).unwrap_err();
        (problem.reason, problem.message)
    }

    #[test]
    fn the_header_decides_and_images_that_read_other_files_are_refused() {
        assert_eq!(Image::of(&qcow2(&[]), None), Ok(Image::Qcow2(1 << 24)));
        // Version 2, dirty, zstd and extended L2 entries.
        assert_eq!(
            Image::of(&qcow2(&[(7, 2), (79, 0b10)]), None),
            Ok(Image::Qcow2(1 << 24))
        );
        assert_eq!(
            Image::of(&qcow2(&[(79, 0b11001)]), None),
            Ok(Image::Qcow2(1 << 24))
        );
        for (change, part) in [
            ((15, 8), "backing file"),
            ((19, 1), "backing file"),
            ((79, 0b100), "external data file"),
            ((35, 2), "encrypted"),
            ((79, 0b10), "corrupt"),
            ((79, 0b10_0000), "unknown features (0x20)"),
            ((72, 1), "unknown features"),
            ((7, 4), "version 4"),
            ((23, 22), "invalid header"),
            ((24, 0xff), "invalid header"),
        ] {
            let (reason, message) = refusal(&qcow2(&[change]));
            assert_eq!(reason, FetchReason::ImageRefused);
            assert!(message.contains(part), "{message}");
        }
        let mut boot = vec![0; 512];
        boot[BOOT_OFFSET..].copy_from_slice(BOOT_LABEL);
        assert_eq!(Image::of(&boot, None), Ok(Image::Raw));
        let iso = [vec![0; ISO_OFFSET], ISO_LABEL.to_vec()].concat();
        assert_eq!(Image::of(&iso, None), Ok(Image::Raw));
        for (offset, label, name, command) in OTHERS {
            let (reason, message) = refusal(&[vec![0; offset], label.to_vec()].concat());
            assert_eq!(reason, FetchReason::FormatNotSupported);
            assert!(
                message.contains(name) && message.contains(command),
                "{message}"
            );
        }
        for (label, compression) in COMPRESSIONS {
            assert_eq!(Compression::of(label), Some(compression));
            assert_eq!(refusal(label).0, FetchReason::FormatNotSupported);
        }
        assert_eq!(Image::of(b"<!", Some(Format::Raw)), Ok(Image::Raw));
        assert!(Image::of(&boot, Some(Format::Qcow2)).is_err());
        let (reason, message) = refusal(b"<!DOCTYPE html>");
        assert_eq!(reason, FetchReason::FormatNotSupported);
        assert!(message.contains("web page"), "{message}");
    }

    proptest! {
        #[test]
        fn any_header_is_decided(mut header in proptest::collection::vec(any::<u8>(), 0..200), is_qcow2: bool) {
            if is_qcow2 && header.len() > 4 {
                header[..4].copy_from_slice(QCOW2_LABEL);
            }
            fuzzing::check_image(&header);
        }
    }
}
