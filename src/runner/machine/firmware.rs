//! (io) Selects the firmware's code and variables. They are always a matching pair.

use crate::api::runner::outcome::EndReason;
use crate::runner::failure::Failure;
use crate::runner::machine::atomic_file;
use crate::runner::machine::path_failure::ProcessUser;
use crate::runner::spec::Firmware;
use std::fs;
use std::path::{Path, PathBuf};

/// Name of the file with the VM's UEFI variables, the same as in the Java VM-Operator.
const VARS_FILE: &str = "fw-vars.fd";

/// Firmware files of a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirmwareFiles {
    /// The code, shared by all VMs.
    pub rom: PathBuf,
    /// The VM's variables.
    pub vars: PathBuf,
    /// Whether system management mode protects the variables.
    pub secure: bool,
}

/// Size of the variables in the 4 MiB layout, in bytes.
const VARS_SIZE_4M: u64 = 528 << 10;

/// Pairs of code and variables in the order of preference: first those of the Java VM-Operator
/// (Fedora, Arch, and identical names of Debian and Alpine), then others of Debian.
fn candidates(firmware: Firmware) -> &'static [(&'static str, &'static str)] {
    match firmware {
        Firmware::Bios => &[],
        Firmware::Uefi => &[
            (
                "/usr/share/edk2/ovmf/OVMF_CODE.fd",
                "/usr/share/edk2/ovmf/OVMF_VARS.fd",
            ),
            (
                "/usr/share/edk2/x64/OVMF_CODE.fd",
                "/usr/share/edk2/x64/OVMF_VARS.fd",
            ),
            (
                "/usr/share/OVMF/OVMF_CODE.fd",
                "/usr/share/OVMF/OVMF_VARS.fd",
            ),
            (
                "/usr/share/edk2/ovmf-4m/OVMF_CODE.fd",
                "/usr/share/edk2/ovmf-4m/OVMF_VARS.fd",
            ),
            (
                "/usr/share/edk2/x64/OVMF_CODE.4m.fd",
                "/usr/share/edk2/x64/OVMF_VARS.4m.fd",
            ),
            (
                "/usr/share/OVMF/OVMF_CODE_4M.fd",
                "/usr/share/OVMF/OVMF_VARS_4M.fd",
            ),
        ],
        Firmware::Uefi4m => &[
            (
                "/usr/share/edk2/ovmf-4m/OVMF_CODE.fd",
                "/usr/share/edk2/ovmf-4m/OVMF_VARS.fd",
            ),
            (
                "/usr/share/edk2/x64/OVMF_CODE.4m.fd",
                "/usr/share/edk2/x64/OVMF_VARS.4m.fd",
            ),
            (
                "/usr/share/OVMF/OVMF_CODE_4M.fd",
                "/usr/share/OVMF/OVMF_VARS_4M.fd",
            ),
            // Alpine has the 4 MiB layout there. Debian 12 has the 2 MiB layout, which is filtered
            // out by its size.
            (
                "/usr/share/OVMF/OVMF_CODE.fd",
                "/usr/share/OVMF/OVMF_VARS.fd",
            ),
        ],
        Firmware::Secure => &[
            (
                "/usr/share/edk2/ovmf/OVMF_CODE.secboot.fd",
                "/usr/share/edk2/ovmf/OVMF_VARS.secboot.fd",
            ),
            (
                "/usr/share/edk2/x64/OVMF_CODE.secboot.fd",
                "/usr/share/edk2/x64/OVMF_VARS.fd",
            ),
            (
                "/usr/share/edk2/x64/OVMF_CODE.secboot.4m.fd",
                "/usr/share/edk2/x64/OVMF_VARS.4m.fd",
            ),
            (
                "/usr/share/OVMF/OVMF_CODE_4M.secboot.fd",
                "/usr/share/OVMF/OVMF_VARS_4M.ms.fd",
            ),
        ],
        Firmware::Secure4m => &[
            (
                "/usr/share/edk2/ovmf-4m/OVMF_CODE.secboot.fd",
                "/usr/share/edk2/ovmf-4m/OVMF_VARS.secboot.fd",
            ),
            (
                "/usr/share/edk2/x64/OVMF_CODE.secboot.4m.fd",
                "/usr/share/edk2/x64/OVMF_VARS.4m.fd",
            ),
            (
                "/usr/share/OVMF/OVMF_CODE_4M.secboot.fd",
                "/usr/share/OVMF/OVMF_VARS_4M.ms.fd",
            ),
        ],
    }
}

/// Selects the firmware among the files below `root`. Copies the variables' template for a VM that
/// has no variables, or variables of another layout: firmware cannot read variables of another
/// size. Variables of another layout are renamed, and used again if the firmware changes back.
pub fn install(
    firmware: Firmware,
    root: &Path,
    data: &Path,
    warnings: &mut Vec<String>,
) -> Result<Option<FirmwareFiles>, Failure> {
    let below = |path: &str| root.join(path.trim_start_matches('/'));
    // Distributions use the same name for both layouts.
    let only_4m = matches!(firmware, Firmware::Uefi4m | Firmware::Secure4m);
    let fits = |vars: &Path| !only_4m || size(vars).is_none_or(|size| size == VARS_SIZE_4M);
    let pairs = candidates(firmware)
        .iter()
        .map(|(rom, vars)| (below(rom), below(vars)));
    let pairs: Vec<_> = pairs.filter(|(_, vars)| fits(vars)).collect();
    if firmware == Firmware::Bios {
        return Ok(None);
    }
    install_pair(&pairs, firmware, data, warnings).map(Some)
}

fn install_pair(
    pairs: &[(PathBuf, PathBuf)],
    firmware: Firmware,
    data: &Path,
    warnings: &mut Vec<String>,
) -> Result<FirmwareFiles, Failure> {
    let present: Vec<_> = pairs
        .iter()
        .filter(|(rom, vars)| rom.is_file() && vars.is_file())
        .collect();
    let Some((first_rom, template)) = present.first() else {
        let searched: Vec<String> = pairs
            .iter()
            .map(|(rom, _)| rom.display().to_string())
            .collect();
        let message = format!(
            "the runner's image does not contain the firmware {} (searched for {}); choose another spec.vm.firmware, or set \
             spec.image to an image with this firmware",
            firmware.as_str(),
            searched.join(", ")
        );
        return Err(Failure::new(EndReason::FirmwareMissing, message));
    };
    let own = data.join(VARS_FILE);
    let failure =
        |error| ProcessUser::current().access_failure("cannot be written", &own, data, &error);
    let files = |rom: &PathBuf| FirmwareFiles {
        rom: rom.clone(),
        vars: own.clone(),
        secure: firmware.is_secure(),
    };
    let renamed = |size: u64| data.join(format!("fw-vars-{size}.fd"));
    if let Some(own_size) = size(&own) {
        // Code of one layout does not boot with variables of another. The size identifies the
        // layout.
        if let Some((rom, _)) = present
            .iter()
            .find(|(_, vars)| size(vars) == Some(own_size))
        {
            return Ok(files(rom));
        }
        let kept = renamed(own_size);
        fs::rename(&own, &kept).map_err(failure)?;
        warnings.push(format!(
            "the VM's firmware variables (boot entries, keys) have {own_size} bytes, but the firmware {} of this runner \
             image needs a different size. The VM starts with default variables, or with older variables of the needed size. The \
             previous variables are retained in {}",
            firmware.as_str(),
            kept.display()
        ));
    }
    match size(template).map(renamed).filter(|kept| kept.is_file()) {
        Some(kept) => fs::rename(kept, &own),
        None => atomic_file::copy(template, &own),
    }
    .map_err(failure)?;
    Ok(files(first_rom))
}

fn size(path: &Path) -> Option<u64> {
    fs::metadata(path)
        .ok()
        .filter(fs::Metadata::is_file)
        .map(|metadata| metadata.len())
}

#[cfg(test)]
mod tests;
