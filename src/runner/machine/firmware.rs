//! (io) The firmware's code and variables, always as a pair that belongs together.

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

/// Finds the firmware, and gives the VM its own variables if it has none yet.
pub fn settle(firmware: Firmware, data: &Path) -> Result<Option<FirmwareFiles>, Failure> {
    let pairs: Vec<_> =
        candidates(firmware).iter().map(|(rom, vars)| (PathBuf::from(rom), PathBuf::from(vars))).collect();
    if firmware == Firmware::Bios {
        return Ok(None);
    }
    let (rom, vars) = choose(&pairs, firmware, data)?;
    let secure = matches!(firmware, Firmware::Secure | Firmware::Secure4m);
    Ok(Some(FirmwareFiles { rom, vars, secure }))
}

fn choose(pairs: &[(PathBuf, PathBuf)], firmware: Firmware, data: &Path) -> Result<(PathBuf, PathBuf), Failure> {
    let own = data.join(VARS_FILE);
    let mut present = pairs.iter().filter(|(rom, vars)| rom.is_file() && vars.is_file()).peekable();
    let missing = |message: String| Failure::new(EndReason::FirmwareMissing, message);
    let Some((rom, template)) = present.peek() else {
        let looked: Vec<String> = pairs.iter().map(|(rom, _)| rom.display().to_string()).collect();
        let name = firmware.as_str();
        return Err(missing(format!("the image has no firmware {name}; looked for {}", looked.join(", "))));
    };
    let Ok(own_size) = fs::metadata(&own).map(|metadata| metadata.len()) else {
        durable::copy(template, &own)
            .map_err(|error| Failure::data(format!("{} cannot be written: {error}", own.display())))?;
        return Ok((rom.clone(), own));
    };
    // Code of one layout with variables of another does not boot; the size tells the layouts apart.
    let same_layout = |vars: &Path| fs::metadata(vars).is_ok_and(|metadata| metadata.len() == own_size);
    match present.find(|(_, vars)| same_layout(vars)) {
        Some((rom, _)) => Ok((rom.clone(), own)),
        None => Err(missing(format!(
            "{} has {own_size} bytes, which fits no firmware {} of this image; choose the firmware that the VM was \
             installed with, or remove the file, which loses the guest's boot entries",
            own.display(),
            firmware.as_str()
        ))),
    }
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
        let (rom, vars) = choose(&pairs, Firmware::Uefi, data.path()).unwrap();
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
        assert_eq!(choose(&pairs, Firmware::Uefi, data.path()).unwrap().0, pairs[2].0);
        fs::write(data.path().join("fw-vars.fd"), vec![1; 64]).unwrap();
        assert_eq!(choose(&pairs, Firmware::Uefi, data.path()).unwrap_err().reason, EndReason::FirmwareMissing);
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
