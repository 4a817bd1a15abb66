//! (io) The firmware's code and variables, always as a pair that belongs together.

use crate::api::runner::outcome::EndReason;
use crate::runner::failure::Failure;
use crate::runner::machine::access::User;
use crate::runner::machine::durable;
use crate::runner::resolved::Firmware;
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

/// Size of the variables in the layout of 4 MiB.
const VARS_OF_4M: u64 = 528 << 10;

/// Pairs of code and variables in the order of preference: those of the reference (Fedora, Arch, and what Debian and Alpine
/// call alike), then Debian's others.
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
            // Alpine's; Debian 12 has the layout of 2 MiB there.
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

/// Finds the firmware among the files below `root`, and gives the VM its own variables if it has none yet, or none that fit
/// (B30). Variables of another layout are renamed, and used again when a firmware of their layout is chosen.
pub fn settle(
    firmware: Firmware,
    root: &Path,
    data: &Path,
    warnings: &mut Vec<String>,
) -> Result<Option<FirmwareFiles>, Failure> {
    let below = |path: &str| root.join(path.trim_start_matches('/'));
    // Distributions give one name to either layout.
    let only_4m = matches!(firmware, Firmware::Uefi4m | Firmware::Secure4m);
    let fits = |vars: &Path| !only_4m || size(vars).is_none_or(|size| size == VARS_OF_4M);
    let pairs = candidates(firmware)
        .iter()
        .map(|(rom, vars)| (below(rom), below(vars)));
    let pairs: Vec<_> = pairs.filter(|(_, vars)| fits(vars)).collect();
    if firmware == Firmware::Bios {
        return Ok(None);
    }
    choose(&pairs, firmware, data, warnings).map(Some)
}

fn choose(
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
        let looked: Vec<String> = pairs
            .iter()
            .map(|(rom, _)| rom.display().to_string())
            .collect();
        let message = format!(
            "the image has no firmware {}; looked for {}",
            firmware.as_str(),
            looked.join(", ")
        );
        return Err(Failure::new(EndReason::FirmwareMissing, message));
    };
    let own = data.join(VARS_FILE);
    let unusable = |error| User::of_process().cannot("cannot be written", &own, data, &error);
    let files = |rom: &PathBuf| FirmwareFiles {
        rom: rom.clone(),
        vars: own.clone(),
        secure: firmware.is_secure(),
    };
    let renamed = |size: u64| data.join(format!("fw-vars-{size}.fd"));
    if let Some(own_size) = size(&own) {
        // Code of one layout with variables of another does not boot; the size tells the layouts apart.
        if let Some((rom, _)) = present
            .iter()
            .find(|(_, vars)| size(vars) == Some(own_size))
        {
            return Ok(files(rom));
        }
        let kept = renamed(own_size);
        fs::rename(&own, &kept).map_err(unusable)?;
        warnings.push(format!(
            "the firmware's variables, such as boot entries and keys, of {own_size} bytes do not fit the firmware {} of this \
             image; they are kept as {}",
            firmware.as_str(),
            kept.display()
        ));
    }
    match size(template).map(renamed).filter(|kept| kept.is_file()) {
        Some(kept) => fs::rename(kept, &own),
        None => durable::copy(template, &own),
    }
    .map_err(unusable)?;
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
