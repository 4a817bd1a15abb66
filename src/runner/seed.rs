//! (io) The seed for cloud-init: a vfat image with the label `CIDATA` (cloud-init's NoCloud).
//!
//! Documents are written as JSON: each reader of YAML, of whatever version, takes the same out of it.

use super::failure::Failure;
use crate::api::runner_config::CloudInit;
use fatfs::{FileSystem, FormatVolumeOptions, FsOptions};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// Name of the image in the runtime directory.
pub const IMAGE: &str = "seed.img";
/// Room for the file system's own tables and for the rounding of files to clusters.
const OVERHEAD: u64 = 256 << 10;
const SMALLEST: u64 = 1 << 20;

/// Makes the image. `who` is what makes the machine itself: the UID of its object, or its UUID.
pub fn write(path: &Path, cloud_init: &CloudInit, vm: &str, who: &str) -> Result<(), Failure> {
    let files = documents(cloud_init, vm, who);
    image(path, &files).map_err(|error| {
        Failure::data(format!("the seed for cloud-init cannot be written to {}: {error}", path.display()))
    })
}

/// The files of the seed.
fn documents(cloud_init: &CloudInit, vm: &str, who: &str) -> Vec<(&'static str, String)> {
    let empty = Map::new();
    let mut meta_data = cloud_init.meta_data.clone().unwrap_or_default();
    let user_data = cloud_init.user_data.as_ref().unwrap_or(&empty);
    let missing = |map: &Map<String, Value>, key: &str| map.get(key).is_none_or(Value::is_null);
    if missing(&meta_data, "instance-id") {
        meta_data.insert("instance-id".to_owned(), json!(instance_id(cloud_init, who)));
    }
    if missing(&meta_data, "local-hostname") {
        meta_data.insert("local-hostname".to_owned(), json!(vm));
    }
    let mut files = vec![
        ("meta-data", json!(meta_data).to_string() + "\n"),
        ("user-data", format!("#cloud-config\n{}\n", json!(user_data))),
    ];
    if let Some(network) = &cloud_init.network_config {
        files.push(("network-config", json!(network).to_string() + "\n"));
    }
    files
}

/// Changes when, and only when, what cloud-init is to do has changed, or the machine is another one: a restart does
/// not make it run its once-per-instance parts again.
fn instance_id(cloud_init: &CloudInit, who: &str) -> String {
    let content = json!([who, cloud_init.meta_data, cloud_init.user_data, cloud_init.network_config]);
    let hash = Sha256::digest(content.to_string().as_bytes());
    let hex: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("i-{hex}")
}

fn image(path: &Path, files: &[(&str, String)]) -> io::Result<()> {
    let content: u64 = files.iter().map(|(_, text)| text.len() as u64).sum();
    let size = (content + content / 16 + OVERHEAD).max(SMALLEST).next_multiple_of(SMALLEST);
    let mut image = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
    image.set_len(size)?;
    fatfs::format_volume(&mut image, FormatVolumeOptions::new().volume_label(*b"CIDATA     "))?;
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

    fn cloud_init(user_data: Value) -> CloudInit {
        CloudInit { user_data: user_data.as_object().cloned(), ..CloudInit::default() }
    }

    fn read_back(cloud_init: &CloudInit) -> (String, Vec<(String, String)>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(IMAGE);
        write(&path, cloud_init, "test-vm", "uid").unwrap();
        let volume =
            FileSystem::new(File::options().read(true).write(true).open(path).unwrap(), FsOptions::new()).unwrap();
        let files = volume.root_dir().iter().filter_map(|entry| {
            let entry = entry.unwrap();
            let mut text = String::new();
            entry.is_file().then(|| entry.to_file().read_to_string(&mut text).unwrap());
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
        assert_eq!(files[1].1, "#cloud-config\n{\"hostname\":\"no\",\"n\":\"0123\"}\n");
        assert!(files[0].1.contains("\"local-hostname\":\"test-vm\""));
    }

    #[test]
    fn a_large_document_has_room() {
        let (_, files) = read_back(&cloud_init(json!({"write_files": "x".repeat(5 << 20)})));
        assert!(files[1].1.len() > 5 << 20);
    }

    #[test]
    fn the_instance_changes_with_its_content_and_its_machine_only() {
        let (one, two) = (cloud_init(json!({"a": 1})), cloud_init(json!({"a": 2})));
        assert_eq!(instance_id(&one, "uid"), instance_id(&one.clone(), "uid"));
        assert_ne!(instance_id(&one, "uid"), instance_id(&two, "uid"));
        assert_ne!(instance_id(&one, "uid"), instance_id(&one, "other"));
    }

    #[test]
    fn given_meta_data_stays() {
        let meta_data = json!({"instance-id": "v3", "local-hostname": "h"});
        let cloud_init = CloudInit { meta_data: meta_data.as_object().cloned(), ..CloudInit::default() };
        assert_eq!(documents(&cloud_init, "t", "u")[0].1, "{\"instance-id\":\"v3\",\"local-hostname\":\"h\"}\n");
    }
}
