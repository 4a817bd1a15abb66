//! (io) The cloud-init seed: a vfat image with the label `CIDATA`, as cloud-init's NoCloud source
//! expects it.

use crate::api::hex;
use crate::api::runner::config::CloudInit;
use crate::api::vm::conditions::ConditionReason;
use crate::runner::failure::{Failure, Problem};
use fatfs::{FileSystem, FormatVolumeOptions, FsOptions};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// Size of the file system's tables, and of rounding files to clusters, in bytes.
const FILESYSTEM_OVERHEAD: u64 = 256 << 10;
const IMAGE_SIZE_UNIT: u64 = 1 << 20;

/// Beginnings of user data that cloud-init and cloudbase-init know, in lower case. Source: `INCLUSION_TYPES_MAP` of cloud-init, and the user
/// data plugins of cloudbase-init.
const USER_DATA_HEADERS: [&str; 12] = [
    "#!",
    "#cloud-config",
    "#cloud-boothook",
    "#include",
    "#part-handler",
    "## template: jinja",
    "content-type:",
    "mime-version:",
    "#ps1",
    "<powershell>",
    "<script>",
    "rem cmd",
];
/// The first bytes of a gzip file.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
/// The part of user data in which cloud-init searches for the header of MIME.
const MIME_SEARCH_LENGTH: usize = 4096;

/// Writes the image. `instance` identifies the VM: the UID of its object, or its UUID. Returns whether the user data has a known header.
pub fn write(
    path: &Path,
    cloud_init: &CloudInit,
    vm: &str,
    instance: &str,
) -> Result<bool, Failure> {
    let mounted = MountedFiles::read(cloud_init)?;
    let files = documents(cloud_init, &mounted, vm, instance);
    let is_known = mounted.user_data.as_deref().is_none_or(has_known_header);
    image(path, &files).map(|()| is_known).map_err(|error| {
        Failure::data(format!(
            "the runner cannot write the cloud-init seed to {}: {error}; check the free space and the permissions of the \
             directory",
            path.display()
        ))
    })
}

/// The files of the image, by name.
pub fn files(
    cloud_init: &CloudInit,
    vm: &str,
    instance: &str,
) -> Result<Vec<(&'static str, Vec<u8>)>, Failure> {
    let mounted = MountedFiles::read(cloud_init)?;
    Ok(documents(cloud_init, &mounted, vm, instance))
}

/// The problem of user data without a known header. `source` names the file that contains them.
pub fn unknown_header(source: &str) -> Problem {
    Problem::new(
        ConditionReason::UnknownHeader,
        format!(
            "the user data in {source} begin with none of the headers that cloud-init and cloudbase-init know, so both \
             ignore the data; write data that begin with one of {} under a new key, set the key in spec.cloudInit.userDataFrom, and \
             restart the VM",
            USER_DATA_HEADERS.join(", ")
        ),
    )
}

/// Whether cloud-init or cloudbase-init recognizes user data that are not inline. They accept empty and compressed data.
fn has_known_header(data: &[u8]) -> bool {
    let head = data.get(..MIME_SEARCH_LENGTH).unwrap_or(data);
    let head = String::from_utf8_lossy(head).to_lowercase();
    let text = head.trim_start();
    data.starts_with(&GZIP_MAGIC)
        || text.is_empty()
        || head.contains("mime-version:")
        || USER_DATA_HEADERS.iter().any(|it| text.starts_with(it))
}

/// Contents of mounted files. They replace inline data unchanged and are never logged. They can be compressed.
#[derive(Default)]
struct MountedFiles {
    user_data: Option<Vec<u8>>,
    network_config: Option<Vec<u8>>,
}

impl MountedFiles {
    fn read(cloud_init: &CloudInit) -> Result<Self, Failure> {
        let read = |key: &str, path: &Option<String>| {
            let content = path.as_ref().map(|path| {
                std::fs::read(path).map_err(|error| {
                    Failure::data(format!("cloudInit.{key}: cannot read {path}: {error}; check that the file exists and that the pod's user may read it"))
                })
            });
            content.transpose()
        };
        Ok(Self {
            user_data: read("userDataFile", &cloud_init.user_data_file)?,
            network_config: read("networkConfigFile", &cloud_init.network_config_file)?,
        })
    }
}

/// Encodes a value as JSON that YAML 1.1 parsers, such as cloud-init's, read unchanged. YAML treats
/// some characters that JSON need not escape as line ends (U+0085, U+2028), and rejects others
/// (U+007F to U+009F). All strings are quoted, so that `on`, `0644` and `2024-01-01` stay strings.
/// Limit: YAML 1.1 reads numbers such as `1e20` as strings.
fn yaml(value: &Value) -> String {
    let mut text = String::new();
    for character in value.to_string().chars() {
        match u32::from(character) {
            code @ 0x7f..=0xffff => text.push_str(&format!("\\u{code:04x}")),
            _ => text.push(character),
        }
    }
    text
}

fn documents(
    cloud_init: &CloudInit,
    mounted: &MountedFiles,
    vm: &str,
    instance: &str,
) -> Vec<(&'static str, Vec<u8>)> {
    let empty = Map::new();
    let mut meta_data = cloud_init.meta_data.clone().unwrap_or_default();
    let user_data = cloud_init.user_data.as_ref().unwrap_or(&empty);
    let missing = |map: &Map<String, Value>, key: &str| map.get(key).is_none_or(Value::is_null);
    if missing(&meta_data, "instance-id") {
        meta_data.insert(
            "instance-id".to_owned(),
            json!(instance_id(cloud_init, mounted, instance)),
        );
    }
    if missing(&meta_data, "local-hostname") {
        meta_data.insert("local-hostname".to_owned(), json!(vm));
    }
    let mut files = vec![
        ("meta-data", (yaml(&json!(meta_data)) + "\n").into_bytes()),
        (
            "user-data",
            mounted.user_data.clone().unwrap_or_else(|| {
                format!("#cloud-config\n{}\n", yaml(&json!(user_data))).into_bytes()
            }),
        ),
    ];
    let network = cloud_init
        .network_config
        .as_ref()
        .map(|network| (yaml(&json!(network)) + "\n").into_bytes());
    files.extend(
        mounted
            .network_config
            .clone()
            .or(network)
            .map(|network| ("network-config", network)),
    );
    files
}

/// The instance id. It changes exactly if the seed's content or the VM changes. After a restart,
/// cloud-init therefore does not repeat its once-per-instance modules.
fn instance_id(cloud_init: &CloudInit, mounted: &MountedFiles, instance: &str) -> String {
    let mut content = json!([
        instance,
        cloud_init.meta_data,
        cloud_init.user_data,
        cloud_init.network_config
    ]);
    if let (Some(list), true) = (
        content.as_array_mut(),
        mounted.user_data.is_some() || mounted.network_config.is_some(),
    ) {
        list.extend([&mounted.user_data, &mounted.network_config].map(as_json));
    }
    let hash = Sha256::digest(content.to_string().as_bytes());
    format!("i-{}", hex(hash.iter().take(8)))
}

/// A text, or the bytes of a file that is no text.
fn as_json(file: &Option<Vec<u8>>) -> Value {
    let text = file.as_deref().map(str::from_utf8);
    match text {
        Some(Err(_)) => json!(file),
        Some(Ok(text)) => json!(text),
        None => Value::Null,
    }
}

fn image(path: &Path, files: &[(&str, Vec<u8>)]) -> io::Result<()> {
    let content: u64 = files.iter().map(|(_, data)| data.len() as u64).sum();
    let size = (content + content / 16 + FILESYSTEM_OVERHEAD)
        .max(IMAGE_SIZE_UNIT)
        .next_multiple_of(IMAGE_SIZE_UNIT);
    let mut image = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)?;
    image.set_len(size)?;
    fatfs::format_volume(
        &mut image,
        FormatVolumeOptions::new().volume_label(*b"CIDATA     "),
    )?;
    fill(&mut image, files)?;
    image.flush()
}

fn fill(image: &mut File, files: &[(&str, Vec<u8>)]) -> io::Result<()> {
    let volume = FileSystem::new(image, FsOptions::new())?;
    for (name, data) in files {
        let mut file = volume.root_dir().create_file(name)?;
        file.write_all(data)?;
        file.flush()?;
    }
    volume.unmount()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn yaml_special_values_are_quoted_and_escaped() {
        let value = json!({"on": "22:22", "~": null, "a\u{2028}b": "\u{7f}\u{fffe}\u{85}é😀\n"});
        assert_eq!(
            yaml(&value),
            r#"{"a\u2028b":"\u007f\ufffe\u0085\u00e9😀\n","on":"22:22","~":null}"#
        );
        assert_eq!(serde_json::from_str::<Value>(&yaml(&value)).unwrap(), value);
    }

    fn cloud_init(user_data: Value) -> CloudInit {
        CloudInit {
            user_data: user_data.as_object().cloned(),
            ..CloudInit::default()
        }
    }

    fn read_back(cloud_init: &CloudInit) -> (String, Vec<(String, String)>) {
        write_to(tempfile::tempdir().unwrap().path(), cloud_init)
    }

    fn write_to(dir: &Path, cloud_init: &CloudInit) -> (String, Vec<(String, String)>) {
        let path = dir.join("seed.img");
        write(&path, cloud_init, "test-vm", "uid").unwrap();
        let volume = FileSystem::new(
            File::options().read(true).write(true).open(path).unwrap(),
            FsOptions::new(),
        )
        .unwrap();
        let files = volume.root_dir().iter().filter_map(|entry| {
            let entry = entry.unwrap();
            let mut text = String::new();
            entry
                .is_file()
                .then(|| entry.to_file().read_to_string(&mut text).unwrap());
            entry.is_file().then(|| (entry.file_name(), text))
        });
        (volume.volume_label(), files.collect())
    }

    #[test]
    fn the_image_is_labelled_and_holds_the_documents() {
        let (label, files) = read_back(&cloud_init(json!({"hostname": "no", "n": "0123"})));
        assert_eq!(label, "CIDATA");
        let names: Vec<_> = files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["meta-data", "user-data"]);
        // Strings stay strings for readers to whom `no` is false and 0123 is 83.
        assert_eq!(
            files[1].1,
            "#cloud-config\n{\"hostname\":\"no\",\"n\":\"0123\"}\n"
        );
        assert!(files[0].1.contains("\"local-hostname\":\"test-vm\""));
    }

    #[test]
    fn b06_a_network_configuration_that_is_removed_is_in_no_later_seed() {
        let dir = tempfile::tempdir().unwrap();
        let names = |cloud_init: &CloudInit| {
            write_to(dir.path(), cloud_init)
                .1
                .into_iter()
                .map(|(name, _)| name)
        };
        let network_config = json!({"version": 2}).as_object().cloned();
        let with = CloudInit {
            network_config,
            ..cloud_init(json!({}))
        };
        assert!(names(&with).eq(["meta-data", "user-data", "network-config"]));
        assert!(names(&cloud_init(json!({}))).eq(["meta-data", "user-data"]));
    }

    #[test]
    fn b08_a_large_document_has_room() {
        let (_, files) = read_back(&cloud_init(json!({"write_files": "x".repeat(5 << 20)})));
        assert!(files[1].1.len() > 5 << 20);
    }

    #[test]
    fn b07_the_instance_changes_with_its_content_and_its_machine_only() {
        let (one, two) = (cloud_init(json!({"a": 1})), cloud_init(json!({"a": 2})));
        let id = |cloud_init: &CloudInit, instance: &str| {
            instance_id(cloud_init, &MountedFiles::default(), instance)
        };
        assert_eq!(id(&one, "uid"), id(&one.clone(), "uid"));
        assert_ne!(id(&one, "uid"), id(&two, "uid"));
        assert_ne!(id(&one, "uid"), id(&one, "other"));
    }

    #[test]
    fn configured_meta_data_is_unchanged() {
        let meta_data = json!({"instance-id": "v3", "local-hostname": "h"});
        let cloud_init = CloudInit {
            meta_data: meta_data.as_object().cloned(),
            ..CloudInit::default()
        };
        assert_eq!(
            documents(&cloud_init, &MountedFiles::default(), "t", "u")[0].1,
            b"{\"instance-id\":\"v3\",\"local-hostname\":\"h\"}\n"
        );
    }

    #[test]
    fn mounted_bytes_are_copied_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let gzip = [0x1f, 0x8b, 8, 0, 0xff, 0, 0xfe];
        let path = |name: &str| dir.path().join(name).display().to_string();
        let cloud_init = CloudInit {
            user_data_file: Some(path("user")),
            network_config_file: Some(path("network")),
            ..CloudInit::default()
        };
        std::fs::write(path("user"), gzip).unwrap();
        std::fs::write(path("network"), gzip).unwrap();
        let image = dir.path().join("seed.img");
        assert!(write(&image, &cloud_init, "vm", "uid").unwrap());
        let image = File::options().read(true).write(true).open(image).unwrap();
        let volume = FileSystem::new(image, FsOptions::new()).unwrap();
        for name in ["user-data", "network-config"] {
            let mut bytes = Vec::new();
            let mut file = volume.root_dir().open_file(name).unwrap();
            file.read_to_end(&mut bytes).unwrap();
            assert_eq!(bytes, gzip, "{name}");
        }
    }

    #[test]
    fn user_data_without_a_known_header_are_a_problem_that_does_not_quote_them() {
        for known in [
            "",
            "#cloud-config\nusers: []",
            "#cloud-config-archive\n",
            "#!/bin/sh",
            "\n #include-once",
            "## template: jinja\n",
            "From: x\nMIME-Version: 1.0\n",
            "Content-Type: multipart/mixed",
            "#ps1_sysnative\r\n",
            "<powershell>",
            "rem cmd\n",
            "REM CMD\n",
        ] {
            assert!(has_known_header(known.as_bytes()), "{known:?}");
        }
        for unknown in [
            "geheim: 1\n",
            "# cloud-config\n",
            "users: []\n#cloud-config",
        ] {
            assert!(!has_known_header(unknown.as_bytes()), "{unknown:?}");
        }
        let message = unknown_header("Secret \"s\", key \"k\"").message;
        assert!(message.contains("Secret \"s\", key \"k\""), "{message}");
        assert!(
            message.contains("#cloud-config") && message.contains("<powershell>"),
            "{message}"
        );
    }

    #[test]
    fn a_mounted_document_is_used_as_it_is_and_a_missing_one_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("user-data");
        std::fs::write(&path, "#!/bin/sh\necho geheim\n").unwrap();
        let mut cloud_init = CloudInit {
            user_data_file: Some(path.display().to_string()),
            ..CloudInit::default()
        };
        let (_, files) = read_back(&cloud_init);
        assert_eq!(
            files[1],
            (
                "user-data".to_owned(),
                "#!/bin/sh\necho geheim\n".to_owned()
            )
        );
        let id = |text: &str| {
            std::fs::write(&path, text).unwrap();
            instance_id(
                &cloud_init,
                &MountedFiles::read(&cloud_init).unwrap(),
                "uid",
            )
        };
        assert_ne!(id("one"), id("two"));
        cloud_init.network_config_file = Some("/none/network-config".to_owned());
        let failure = write(&dir.path().join("seed.img"), &cloud_init, "t", "u").unwrap_err();
        assert!(
            failure
                .message
                .starts_with("cloudInit.networkConfigFile: cannot read /none/network-config")
        );
    }
}
