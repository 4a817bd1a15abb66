use crate::runner::machine::firmware::*;

/// Code and variables with sizes as in the layouts of 2 and 4 MiB.
fn image() -> (tempfile::TempDir, Vec<(PathBuf, PathBuf)>) {
    let dir = tempfile::tempdir().unwrap();
    let pair = |name: &str, size: usize| {
        let (rom, vars) = (
            dir.path().join(format!("CODE{name}")),
            dir.path().join(format!("VARS{name}")),
        );
        fs::write(&rom, "rom").unwrap();
        fs::write(&vars, vec![7; size]).unwrap();
        (rom, vars)
    };
    let pairs = vec![
        ("/none".into(), "/none".into()),
        pair("2m", 128),
        pair("4m", 528),
    ];
    (dir, pairs)
}

/// The files that are chosen, and the warning.
fn chosen(
    pairs: &[(PathBuf, PathBuf)],
    firmware: Firmware,
    data: &Path,
) -> (FirmwareFiles, Option<String>) {
    let mut warnings = Vec::new();
    let files = install_pair(pairs, firmware, data, &mut warnings).unwrap();
    assert!(warnings.len() < 2, "{warnings:?}");
    (files, warnings.pop())
}

#[test]
fn variables_are_seeded_once_and_whole() {
    let (_image, pairs) = image();
    let data = tempfile::tempdir().unwrap();
    let (FirmwareFiles { rom, vars, .. }, _) = chosen(&pairs, Firmware::Uefi, data.path());
    assert_eq!(
        (rom, fs::read(&vars).unwrap().len()),
        (pairs[1].0.clone(), 128)
    );
    fs::write(&vars, vec![9; 128]).unwrap();
    chosen(&pairs, Firmware::Uefi, data.path());
    assert_eq!(fs::read(&vars).unwrap(), vec![9; 128]);
    assert_eq!(fs::read_dir(data.path()).unwrap().count(), 1);
}

#[test]
fn variables_of_another_layout_choose_their_code() {
    let (_image, pairs) = image();
    let data = tempfile::tempdir().unwrap();
    fs::write(data.path().join("fw-vars.fd"), vec![1; 528]).unwrap();
    let (files, warning) = chosen(&pairs, Firmware::Uefi, data.path());
    assert_eq!((files.rom, warning), (pairs[2].0.clone(), None));
}

#[test]
fn b30_variables_that_fit_no_firmware_are_kept_and_come_back_with_theirs() {
    let (_image, pairs) = image();
    let data = tempfile::tempdir().unwrap();
    let content = |name: &str| fs::read(data.path().join(name)).ok();
    fs::write(data.path().join("fw-vars.fd"), vec![1; 128]).unwrap();
    let only_4m = &pairs[2..];
    let reported = chosen(only_4m, Firmware::Uefi4m, data.path()).1.unwrap();
    assert!(
        reported.contains("fw-vars-128.fd") && reported.contains("uefi-4m"),
        "{reported}"
    );
    assert_eq!(
        (content("fw-vars.fd"), content("fw-vars-128.fd")),
        (Some(vec![7; 528]), Some(vec![1; 128]))
    );
    // Told once: the next start finds what fits.
    assert_eq!(chosen(only_4m, Firmware::Uefi4m, data.path()).1, None);
    let only_2m = &pairs[..2];
    fs::write(data.path().join("fw-vars.fd"), vec![2; 528]).unwrap();
    chosen(only_2m, Firmware::Uefi, data.path());
    assert_eq!(
        (content("fw-vars.fd"), content("fw-vars-528.fd")),
        (Some(vec![1; 128]), Some(vec![2; 528]))
    );
    assert_eq!(
        fs::read_dir(data.path()).unwrap().count(),
        2,
        "each is there once"
    );
}

#[test]
fn an_image_without_the_firmware_says_where_it_looked() {
    let data = tempfile::tempdir().unwrap();
    let pairs = [("/none/CODE".into(), "/none/VARS".into())];
    let failure = install_pair(&pairs, Firmware::Secure, data.path(), &mut Vec::new()).unwrap_err();
    assert_eq!(failure.reason, EndReason::FirmwareMissing);
    assert!(failure.message.contains("/none/CODE"), "{failure}");
    assert_eq!(fs::read_dir(data.path()).unwrap().count(), 0);
}

#[test]
fn every_kind_but_bios_has_pairs_of_code_and_variables() {
    for firmware in [
        Firmware::Uefi,
        Firmware::Uefi4m,
        Firmware::Secure,
        Firmware::Secure4m,
    ] {
        for (rom, vars) in candidates(firmware) {
            assert!(
                rom.contains("_CODE") && vars.contains("_VARS"),
                "{rom} {vars}"
            );
        }
    }
}

const KIB: u64 = 1 << 10;
/// Sizes of code and variables in the two layouts.
const OF_2M: (u64, u64) = (1920 * KIB, 128 * KIB);
const OF_4M: (u64, u64) = (3568 * KIB, VARS_SIZE_4M);

/// The files of a distribution's package: directory, and the names in it with their sizes.
type Package = (&'static str, &'static [(&'static str, u64)]);

/// edk2-ovmf. Packages before 2024 also have the layout of 2 MiB.
const ARCH: Package = (
    "usr/share/edk2/x64",
    &[
        ("MICROVM.4m.fd", 4096 * KIB),
        ("OVMF.4m.fd", 4096 * KIB),
        ("OVMF_CODE.4m.fd", OF_4M.0),
        ("OVMF_CODE.secboot.4m.fd", OF_4M.0),
        ("OVMF_VARS.4m.fd", OF_4M.1),
    ],
);
const ARCH_BEFORE: Package = (
    "usr/share/edk2/x64",
    &[
        ("OVMF_CODE.fd", OF_2M.0),
        ("OVMF_CODE.secboot.fd", OF_2M.0),
        ("OVMF_VARS.fd", OF_2M.1),
        ("OVMF_CODE.4m.fd", OF_4M.0),
        ("OVMF_CODE.secboot.4m.fd", OF_4M.0),
        ("OVMF_VARS.4m.fd", OF_4M.1),
    ],
);
/// ovmf, with the layout of 4 MiB and without Secure Boot that the guest cannot change.
const ALPINE: Package = (
    "usr/share/OVMF",
    &[
        ("OVMF.fd", 4096 * KIB),
        ("OVMF_CODE.fd", OF_4M.0),
        ("OVMF_VARS.fd", OF_4M.1),
    ],
);
/// ovmf, of Debian 12 and 13.
const DEBIAN_12: Package = (
    "usr/share/OVMF",
    &[
        ("OVMF_CODE.fd", OF_2M.0),
        ("OVMF_CODE.secboot.fd", OF_2M.0),
        ("OVMF_VARS.fd", OF_2M.1),
        ("OVMF_VARS.ms.fd", OF_2M.1),
        ("OVMF_CODE_4M.fd", OF_4M.0),
        ("OVMF_CODE_4M.secboot.fd", OF_4M.0),
        ("OVMF_VARS_4M.fd", OF_4M.1),
        ("OVMF_VARS_4M.ms.fd", OF_4M.1),
    ],
);
const DEBIAN_13: Package = (
    "usr/share/OVMF",
    &[
        ("OVMF_CODE_4M.fd", OF_4M.0),
        ("OVMF_CODE_4M.secboot.fd", OF_4M.0),
        ("OVMF_VARS_4M.fd", OF_4M.1),
        ("OVMF_VARS_4M.ms.fd", OF_4M.1),
        ("OVMF_VARS_4M.snakeoil.fd", OF_4M.1),
    ],
);
const PACKAGES: [Package; 5] = [ARCH, ARCH_BEFORE, ALPINE, DEBIAN_12, DEBIAN_13];
const KINDS: [Firmware; 4] = [
    Firmware::Uefi,
    Firmware::Uefi4m,
    Firmware::Secure,
    Firmware::Secure4m,
];

/// The root of an image that has the package; each file begins with its name.
fn installed((dir, files): Package) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join(dir)).unwrap();
    for (name, size) in files {
        let path = root.path().join(dir).join(name);
        fs::write(&path, name).unwrap();
        fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(*size)
            .unwrap();
    }
    root
}

/// The name of the file that the content began as.
fn origin(path: &Path) -> String {
    let content = fs::read(path).unwrap();
    let name = content.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

/// The files that a first start uses, or its error.
fn first_start(package: Package, firmware: Firmware) -> Result<(String, String), String> {
    let (root, data) = (installed(package), tempfile::tempdir().unwrap());
    let mut warnings = Vec::new();
    let files = install(firmware, root.path(), data.path(), &mut warnings)
        .map_err(|failure| failure.message)?
        .unwrap();
    assert_eq!(
        (files.secure, warnings),
        (firmware.is_secure(), Vec::<String>::new())
    );
    assert!(
        files.rom.starts_with(root.path()) && size(&files.rom) > size(&files.vars),
        "{}",
        files.rom.display()
    );
    let of_4m = size(&files.vars) == Some(OF_4M.1);
    assert!(
        of_4m || [Firmware::Uefi, Firmware::Secure].contains(&firmware),
        "{firmware:?} of 2 MiB"
    );
    assert_eq!(
        size(&files.rom),
        Some(if of_4m { OF_4M.0 } else { OF_2M.0 }),
        "code and variables of one layout"
    );
    Ok((origin(&files.rom), origin(&files.vars)))
}

#[test]
fn b30_each_firmware_is_found_where_arch_alpine_and_debian_have_it() {
    let of = |package| KINDS.map(|firmware| first_start(package, firmware));
    let found =
        |code: &str, vars: &str| Ok((format!("OVMF_CODE{code}.fd"), format!("OVMF_VARS{vars}.fd")));
    let (plain, secure) = (found(".4m", ".4m"), found(".secboot.4m", ".4m"));
    assert_eq!(
        of(ARCH),
        [plain.clone(), plain.clone(), secure.clone(), secure.clone()]
    );
    assert_eq!(
        of(ARCH_BEFORE),
        [found("", ""), plain, found(".secboot", ""), secure]
    );
    let (plain, secure) = (found("_4M", "_4M"), found("_4M.secboot", "_4M.ms"));
    assert_eq!(
        of(DEBIAN_12),
        [found("", ""), plain.clone(), secure.clone(), secure.clone()]
    );
    assert_eq!(
        of(DEBIAN_13),
        [plain.clone(), plain, secure.clone(), secure]
    );
    let [uefi, uefi_4m, secure, secure_4m] = of(ALPINE);
    assert_eq!((uefi, uefi_4m), (found("", ""), found("", "")));
    for (missing, name) in [(secure, "secure"), (secure_4m, "secure-4m")] {
        let message = missing.unwrap_err();
        assert!(
            message.starts_with(&format!(
                "the runner's image does not contain the firmware {name} (searched for "
            )),
            "{message}"
        );
        assert!(
            message.contains("/usr/share/edk2/x64/OVMF_CODE.secboot.4m.fd"),
            "{message}"
        );
    }
    for package in PACKAGES {
        let (root, data) = (installed(package), tempfile::tempdir().unwrap());
        assert_eq!(
            install(Firmware::Bios, root.path(), data.path(), &mut Vec::new()),
            Ok(None)
        );
        assert_eq!(fs::read_dir(data.path()).unwrap().count(), 0);
    }
}

#[test]
fn a_vm_keeps_its_variables_from_image_to_image_where_there_is_firmware_for_them() {
    for firmware in KINDS {
        for (from, to) in PACKAGES
            .iter()
            .flat_map(|from| PACKAGES.map(|to| (*from, to)))
        {
            let (before, after, data) =
                (installed(from), installed(to), tempfile::tempdir().unwrap());
            let mut warnings = Vec::new();
            let Ok(Some(files)) = install(firmware, before.path(), data.path(), &mut warnings)
            else {
                continue;
            };
            let (layout, seeded) = (size(&files.vars), origin(&files.vars));
            let reported = format!("{firmware:?} from {from:?} to {to:?}");
            match install(firmware, after.path(), data.path(), &mut warnings) {
                Err(failure) => assert!(
                    to == ALPINE && firmware.is_secure(),
                    "{reported}: {failure}"
                ),
                Ok(None) => panic!("{reported}: no firmware"),
                Ok(Some(files)) if warnings.is_empty() => {
                    assert_eq!(
                        (size(&files.vars), origin(&files.vars)),
                        (layout, seeded),
                        "{reported}"
                    );
                    let rom = if layout == Some(OF_4M.1) {
                        OF_4M.0
                    } else {
                        OF_2M.0
                    };
                    assert_eq!(
                        size(&files.rom),
                        Some(rom),
                        "{reported}: code of the variables' layout"
                    );
                }
                Ok(Some(files)) => {
                    // The package has only the other layout, or no firmware with Secure Boot in this layout.
                    assert!(
                        layout == Some(OF_2M.1) && size(&files.vars) == Some(OF_4M.1),
                        "{reported}"
                    );
                    assert_eq!(
                        origin(&data.path().join("fw-vars-131072.fd")),
                        seeded,
                        "{reported}"
                    );
                }
            }
        }
    }
}

#[test]
fn firmware_of_2_mib_is_never_taken_for_one_of_4() {
    let only_2m: Package = (
        "usr/share/OVMF",
        &[("OVMF_CODE.fd", OF_2M.0), ("OVMF_VARS.fd", OF_2M.1)],
    );
    assert!(first_start(only_2m, Firmware::Uefi).is_ok());
    let message = first_start(only_2m, Firmware::Uefi4m).unwrap_err();
    assert!(
        message.starts_with("the runner's image does not contain the firmware uefi-4m"),
        "{message}"
    );
    // Of a VM that was uefi before.
    let (root, data) = (installed(DEBIAN_12), tempfile::tempdir().unwrap());
    let mut warnings = Vec::new();
    install(Firmware::Uefi, root.path(), data.path(), &mut warnings).unwrap();
    let files = install(Firmware::Uefi4m, root.path(), data.path(), &mut warnings)
        .unwrap()
        .unwrap();
    assert_eq!(
        (origin(&files.rom), origin(&files.vars)),
        ("OVMF_CODE_4M.fd".into(), "OVMF_VARS_4M.fd".into())
    );
    assert_eq!(warnings.len(), 1, "{warnings:?}");
}
