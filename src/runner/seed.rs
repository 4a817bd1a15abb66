//! (io) The cloud-init seed: a vfat image with the label `CIDATA`, as cloud-init's NoCloud source
//! expects it.

use crate::api::hex;
use crate::api::runner::config::CloudInit;
use crate::runner::failure::Failure;
use fatfs::{FileSystem, FormatVolumeOptions, FsOptions};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// Size of the file system's tables, and of rounding files to clusters, in bytes.
const FILESYSTEM_OVERHEAD: u64 = 256 << 10;
const IMAGE_SIZE_UNIT: u64 = 1 << 20;

/// Writes the image. `instance` identifies the VM: the UID of its object, or its UUID.
pub fn write(path: &Path, cloud_init: &CloudInit, vm: &str, instance: &str) -> Result<(), Failure> {
    let files = files(cloud_init, vm, instance)?;
    image(path, &files).map_err(|error| {
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
) -> Result<Vec<(&'static str, String)>, Failure> {
    Ok(documents(
        cloud_init,
        &MountedFiles::read(cloud_init)?,
        vm,
        instance,
    ))
}

/// Contents of mounted files. They replace inline data unchanged and are never logged.
#[derive(Default)]
struct MountedFiles {
    user_data: Option<String>,
    network_config: Option<String>,
}

impl MountedFiles {
    fn read(cloud_init: &CloudInit) -> Result<Self, Failure> {
        let read = |key: &str, path: &Option<String>| {
            let content = path.as_ref().map(|path| {
                std::fs::read_to_string(path).map_err(|error| {
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
) -> Vec<(&'static str, String)> {
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
        ("meta-data", yaml(&json!(meta_data)) + "\n"),
        (
            "user-data",
            mounted
                .user_data
                .clone()
                .unwrap_or_else(|| format!("#cloud-config\n{}\n", yaml(&json!(user_data)))),
        ),
    ];
    let network = cloud_init
        .network_config
        .as_ref()
        .map(|network| yaml(&json!(network)) + "\n");
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
        list.extend([json!(mounted.user_data), json!(mounted.network_config)]);
    }
    let hash = Sha256::digest(content.to_string().as_bytes());
    format!("i-{}", hex(hash.iter().take(8)))
}

fn image(path: &Path, files: &[(&str, String)]) -> io::Result<()> {
    let content: u64 = files.iter().map(|(_, text)| text.len() as u64).sum();
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

fn fill(image: &mut File, files: &[(&str, String)]) -> io::Result<()> {
    let volume = FileSystem::new(image, FsOptions::new())?;
    for (name, text) in files {
        let mut file = volume.root_dir().create_file(name)?;
        file.write_all(text.as_bytes())?;
        file.flush()?;
    }
    volume.unmount()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn what_yaml_reads_otherwise_is_written_otherwise() {
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
    fn given_meta_data_stays() {
        let meta_data = json!({"instance-id": "v3", "local-hostname": "h"});
        let cloud_init = CloudInit {
            meta_data: meta_data.as_object().cloned(),
            ..CloudInit::default()
        };
        assert_eq!(
            documents(&cloud_init, &MountedFiles::default(), "t", "u")[0].1,
            "{\"instance-id\":\"v3\",\"local-hostname\":\"h\"}\n"
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
