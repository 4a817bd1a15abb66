//! (io) The firmware's code and variables, always as a pair that belongs together.

use super::access::User;
use super::durable;
use crate::api::outcome::EndReason;
use crate::runner::failure::Failure;
use crate::runner::spec::Firmware;
use std::fs;
use std::path::{Path, PathBuf};

/// Where the reference keeps a VM's variables.
const VARS_FILE: &str = "fw-vars.fd";

/// Firmware files of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirmwareFiles {
    /// The code, shared by all VMs.
    pub rom: PathBuf,
    /// The VM's own variables.
    pub vars: PathBuf,
    /// Whether variables are protected by system management mode.
    pub secure: bool,
    /// What became of the variables that the guest had, where it has them no longer.
    pub put_aside: Option<String>,
}

/// Pairs of code and variables in the order of preference: those of the reference (Fedora, Arch), then Debian's.
fn candidates(firmware: Firmware) -> &'static [(&'static str, &'static str)] {
    match firmware {
        Firmware::Bios => &[],
        Firmware::Uefi => &[
            ("/usr/share/edk2/ovmf/OVMF_CODE.fd", "/usr/share/edk2/ovmf/OVMF_VARS.fd"),
            ("/usr/share/edk2/x64/OVMF_CODE.fd", "/usr/share/edk2/x64/OVMF_VARS.fd"),
            ("/usr/share/OVMF/OVMF_CODE.fd", "/usr/share/OVMF/OVMF_VARS.fd"),
            ("/usr/share/edk2/ovmf-4m/OVMF_CODE.fd", "/usr/share/edk2/ovmf-4m/OVMF_VARS.fd"),
            ("/usr/share/edk2/x64/OVMF_CODE.4m.fd", "/usr/share/edk2/x64/OVMF_VARS.4m.fd"),
            ("/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"),
        ],
        Firmware::Uefi4m => &[
            ("/usr/share/edk2/ovmf-4m/OVMF_CODE.fd", "/usr/share/edk2/ovmf-4m/OVMF_VARS.fd"),
            ("/usr/share/edk2/x64/OVMF_CODE.4m.fd", "/usr/share/edk2/x64/OVMF_VARS.4m.fd"),
            ("/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"),
        ],
        Firmware::Secure => &[
            ("/usr/share/edk2/ovmf/OVMF_CODE.secboot.fd", "/usr/share/edk2/ovmf/OVMF_VARS.secboot.fd"),
            ("/usr/share/edk2/x64/OVMF_CODE.secboot.fd", "/usr/share/edk2/x64/OVMF_VARS.fd"),
            ("/usr/share/edk2/x64/OVMF_CODE.secboot.4m.fd", "/usr/share/edk2/x64/OVMF_VARS.4m.fd"),
            ("/usr/share/OVMF/OVMF_CODE_4M.secboot.fd", "/usr/share/OVMF/OVMF_VARS_4M.ms.fd"),
        ],
        Firmware::Secure4m => &[
            ("/usr/share/edk2/ovmf-4m/OVMF_CODE.secboot.fd", "/usr/share/edk2/ovmf-4m/OVMF_VARS.secboot.fd"),
            ("/usr/share/edk2/x64/OVMF_CODE.secboot.4m.fd", "/usr/share/edk2/x64/OVMF_VARS.4m.fd"),
            ("/usr/share/OVMF/OVMF_CODE_4M.secboot.fd", "/usr/share/OVMF/OVMF_VARS_4M.ms.fd"),
        ],
    }
}

/// Finds the firmware, and gives the VM its own variables if it has none yet, or none that fit (B30). Those of another
/// layout are kept under a name of their own, and are back when their firmware is: nothing is ever overwritten, and
/// the volume of 1 MiB holds each once.
pub fn settle(firmware: Firmware, data: &Path) -> Result<Option<FirmwareFiles>, Failure> {
    let pairs: Vec<_> =
        candidates(firmware).iter().map(|(rom, vars)| (PathBuf::from(rom), PathBuf::from(vars))).collect();
    if firmware == Firmware::Bios {
        return Ok(None);
    }
    choose(&pairs, firmware, data).map(Some)
}

fn choose(pairs: &[(PathBuf, PathBuf)], firmware: Firmware, data: &Path) -> Result<FirmwareFiles, Failure> {
    let present: Vec<_> = pairs.iter().filter(|(rom, vars)| rom.is_file() && vars.is_file()).collect();
    let Some((first_rom, template)) = present.first() else {
        let looked: Vec<String> = pairs.iter().map(|(rom, _)| rom.display().to_string()).collect();
        let message = format!("the image has no firmware {}; looked for {}", firmware.as_str(), looked.join(", "));
        return Err(Failure::new(EndReason::FirmwareMissing, message));
    };
    let own = data.join(VARS_FILE);
    let unusable = |error| User::of_process().cannot("cannot be written", &own, data, &error);
    let secure = firmware.is_secure();
    let files = |rom: &PathBuf, put_aside| FirmwareFiles { rom: rom.clone(), vars: own.clone(), secure, put_aside };
    let mut aside = None;
    if let Some(own_size) = size(&own) {
        // Code of one layout with variables of another does not boot; the size tells the layouts apart.
        if let Some((rom, _)) = present.iter().find(|(_, vars)| size(vars) == Some(own_size)) {
            return Ok(files(rom, None));
        }
        let kept = kept(data, own_size);
        fs::rename(&own, &kept).map_err(unusable)?;
        aside = Some(kept);
    }
    let waiting = |(rom, vars): &&(PathBuf, PathBuf)| {
        let kept = kept(data, size(vars)?);
        kept.is_file().then(|| (rom.clone(), kept))
    };
    let (rom, before) = present.iter().find_map(waiting).unzip();
    // Also by a start before this one, which has come so far and no further.
    let put_aside = aside.or_else(|| last_kept(data, before.as_deref())).map(|kept| {
        format!(
            "the firmware's variables, among them boot entries and keys, are not those that the guest had: the store of \
             {} bytes fits no firmware {} of this image and is kept as {}; it is used again with its firmware",
            size(&kept).unwrap_or_default(),
            firmware.as_str(),
            kept.display()
        )
    });
    match before {
        Some(before) => fs::rename(before, &own),
        None => durable::copy(template, &own),
    }
    .map_err(unusable)?;
    Ok(files(rom.as_ref().unwrap_or(first_rom), put_aside))
}

fn size(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|metadata| metadata.len())
}

/// Where variables of that size wait for their firmware.
fn kept(data: &Path, size: u64) -> PathBuf {
    data.join(format!("fw-vars-{size}.fd"))
}

/// Those that were used last of all that wait, but for one.
fn last_kept(data: &Path, but: Option<&Path>) -> Option<PathBuf> {
    let paths = fs::read_dir(data).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let waits =
        |path: &PathBuf| size(path).is_some_and(|size| *path == kept(data, size)) && Some(path.as_path()) != but;
    paths.filter(waits).max_by_key(|path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Code and variables with sizes as in the layouts of 2 and 4 MiB.
    fn image() -> (tempfile::TempDir, Vec<(PathBuf, PathBuf)>) {
        let dir = tempfile::tempdir().unwrap();
        let pair = |name: &str, size: usize| {
            let (rom, vars) = (dir.path().join(format!("CODE{name}")), dir.path().join(format!("VARS{name}")));
            fs::write(&rom, "rom").unwrap();
            fs::write(&vars, vec![7; size]).unwrap();
            (rom, vars)
        };
        let pairs = vec![("/none".into(), "/none".into()), pair("2m", 128), pair("4m", 528)];
        (dir, pairs)
    }

    #[test]
    fn variables_are_seeded_once_and_whole() {
        let (_image, pairs) = image();
        let data = tempfile::tempdir().unwrap();
        let FirmwareFiles { rom, vars, .. } = choose(&pairs, Firmware::Uefi, data.path()).unwrap();
        assert_eq!((rom, fs::read(&vars).unwrap().len()), (pairs[1].0.clone(), 128));
        fs::write(&vars, vec![9; 128]).unwrap();
        choose(&pairs, Firmware::Uefi, data.path()).unwrap();
        assert_eq!(fs::read(&vars).unwrap(), vec![9; 128]);
        assert_eq!(fs::read_dir(data.path()).unwrap().count(), 1);
    }

    #[test]
    fn variables_of_another_layout_choose_their_code() {
        let (_image, pairs) = image();
        let data = tempfile::tempdir().unwrap();
        fs::write(data.path().join("fw-vars.fd"), vec![1; 528]).unwrap();
        let files = choose(&pairs, Firmware::Uefi, data.path()).unwrap();
        assert_eq!((files.rom, files.put_aside), (pairs[2].0.clone(), None));
    }

    #[test]
    fn b30_variables_that_fit_no_firmware_are_kept_and_come_back_with_theirs() {
        let (_image, pairs) = image();
        let data = tempfile::tempdir().unwrap();
        let content = |name: &str| fs::read(data.path().join(name)).ok();
        fs::write(data.path().join("fw-vars.fd"), vec![1; 128]).unwrap();
        let only_4m = &pairs[2..];
        let told = choose(only_4m, Firmware::Uefi4m, data.path()).unwrap().put_aside.unwrap();
        assert!(told.contains("fw-vars-128.fd") && told.contains("uefi-4m"), "{told}");
        assert_eq!((content("fw-vars.fd"), content("fw-vars-128.fd")), (Some(vec![7; 528]), Some(vec![1; 128])));
        // Told once: the next start finds what fits.
        assert_eq!(choose(only_4m, Firmware::Uefi4m, data.path()).unwrap().put_aside, None);
        let only_2m = &pairs[..2];
        fs::write(data.path().join("fw-vars.fd"), vec![2; 528]).unwrap();
        choose(only_2m, Firmware::Uefi, data.path()).unwrap();
        assert_eq!((content("fw-vars.fd"), content("fw-vars-528.fd")), (Some(vec![1; 128]), Some(vec![2; 528])));
        assert_eq!(fs::read_dir(data.path()).unwrap().count(), 2, "each is there once");
    }

    #[test]
    fn b30_variables_that_were_put_aside_by_a_start_that_did_not_come_to_its_end_are_told_by_the_next() {
        let (_image, pairs) = image();
        let only_4m = &pairs[2..];
        let data = tempfile::tempdir().unwrap();
        let content = |name: &str| fs::read(data.path().join(name)).ok();
        fs::write(data.path().join("fw-vars-128.fd"), vec![1; 128]).unwrap();
        let told = choose(only_4m, Firmware::Uefi4m, data.path()).unwrap().put_aside.unwrap();
        assert!(told.contains("128 bytes") && told.contains("fw-vars-128.fd"), "{told}");
        assert_eq!((content("fw-vars.fd"), content("fw-vars-128.fd")), (Some(vec![7; 528]), Some(vec![1; 128])));
        // An image that has their firmware too takes them back, and has nothing to tell.
        fs::remove_file(data.path().join("fw-vars.fd")).unwrap();
        fs::rename(data.path().join("fw-vars-128.fd"), data.path().join("fw-vars-528.fd")).unwrap();
        fs::write(data.path().join("fw-vars-528.fd"), vec![2; 528]).unwrap();
        let files = choose(&pairs, Firmware::Uefi, data.path()).unwrap();
        assert_eq!((files.rom, files.put_aside), (pairs[2].0.clone(), None));
        assert_eq!((content("fw-vars.fd"), content("fw-vars-528.fd")), (Some(vec![2; 528]), None));
    }

    #[test]
    fn an_image_without_the_firmware_says_where_it_looked() {
        let data = tempfile::tempdir().unwrap();
        let pairs = [("/none/CODE".into(), "/none/VARS".into())];
        let failure = choose(&pairs, Firmware::Secure, data.path()).unwrap_err();
        assert_eq!(failure.reason, EndReason::FirmwareMissing);
        assert!(failure.message.contains("/none/CODE"), "{failure}");
        assert_eq!(fs::read_dir(data.path()).unwrap().count(), 0);
    }

    #[test]
    fn every_kind_but_bios_has_pairs_of_code_and_variables() {
        for firmware in [Firmware::Uefi, Firmware::Uefi4m, Firmware::Secure, Firmware::Secure4m] {
            for (rom, vars) in candidates(firmware) {
                assert!(rom.contains("_CODE") && vars.contains("_VARS"), "{rom} {vars}");
            }
        }
    }
}
