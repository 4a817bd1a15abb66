//! The defects of the reference, B1 to B44 in the order in which they were found: what holds each of them off. Those whose
//! cause is not there any more have the reason instead.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

enum Held {
    /// Tests that would fail with it.
    By(&'static [&'static str]),
    /// Why it cannot come back.
    Gone(&'static str),
}
use Held::{By, Gone};

const DEFECTS: [(u32, &str, Held); 44] = [
    (
        1,
        "the first reset after a start is ignored",
        By(&[
            "b01_each_increase_of_the_request_resets_once_also_the_first",
            "b01_a_reset_that_did_not_reach_qemu_is_done_once_when_it_can_be",
            "b01_a_reset_that_was_given_to_qemu_is_not_given_again_where_its_answer_is_lost",
            "b01_b25_a_request_resets_the_guest_once_and_it_boots_again",
        ]),
    ),
    (
        2,
        "with one CPU the guest never runs",
        By(&["b02_as_many_as_wanted_is_nothing_to_do", "a_guest_boots_by_bios_and_is_shut_down_by_its_agent"]),
    ),
    (3, "a number of CPUs that cannot be had is tried without end", By(&["b03_a_refused_cpu_is_tried_once_and_told"])),
    (
        4,
        "a configuration that waits keeps the process from ending",
        By(&["b04_a_qemu_that_ends_before_the_guest_ran_has_failed_to_start", "a_killed_qemu_is_a_crash_at_once"]),
    ),
    (
        5,
        "an ejected medium comes back",
        By(&[
            "b05_each_drive_gets_its_medium_once_and_is_then_the_guests",
            "b05_a_drive_that_the_guest_holds_is_changed_when_the_guest_lets_it_go",
            "b05_an_image_that_cannot_be_had_leaves_the_drive_as_it_is_until_it_comes",
            "b05_a_medium_is_changed_ejected_and_inserted_while_the_guest_runs",
        ]),
    ),
    (
        6,
        "a network configuration that is removed stays in the seed",
        By(&["b06_a_network_configuration_that_is_removed_is_in_no_later_seed"]),
    ),
    (
        7,
        "every edit makes a new instance of cloud-init",
        By(&["b07_the_instance_changes_with_its_content_and_its_machine_only"]),
    ),
    (8, "the seed is writable and small", By(&["b32_the_fullest_machine", "b08_a_large_document_has_room"])),
    (
        9,
        "a configured runtime directory has no sockets",
        By(&["b09_configured_directories_win_over_the_environments_and_that_over_the_defaults"]),
    ),
    (10, "the documented sizes are refused", By(&["b10_both_syntaxes_are_read"])),
    (
        11,
        "streaming video has two names",
        By(&[
            "b11_streaming_video_is_read_by_either_of_its_names",
            "b11_video_is_streamed_where_that_is_configured_and_nowhere_else",
        ]),
    ),
    (
        12,
        "a topology does not count as the maximum of CPUs",
        By(&[
            "b12_a_topology_gives_the_maximum_of_cpus",
            "a_topology_that_qemu_would_refuse_is_refused_with_the_numbers",
        ]),
    ),
    (13, "promised defaults of CPUs are not there", By(&["b13_the_maximum_of_cpus_is_the_greatest_of_what_is_given"])),
    (
        14,
        "a failed start looks like a power-off",
        By(&["an_unusable_configuration_is_explained_in_one_line", "b14_a_qemu_that_does_not_start_says_why"]),
    ),
    (15, "a start has no time limits", By(&["b15_each_part_of_the_start_has_its_deadline"])),
    (16, "sockets are waited for as files", Gone("the runner listens before QEMU starts and hands the sockets over")),
    (17, "a lost monitor stops the guest", By(&["b17_a_lost_connection_fails_what_waits_and_is_made_again"])),
    (
        18,
        "a user is logged in before the agent says so",
        By(&[
            "b18_a_login_is_one_when_the_wanted_user_is_there",
            "b18_a_user_is_logged_in_when_the_agent_has_said_so",
            "b18_b19_b25_a_user_is_logged_in_and_out_and_in_again_after_a_reboot",
        ]),
    ),
    (
        19,
        "logins are asked for again with every configuration",
        By(&[
            "b19_nobody_is_logged_out_whom_we_did_not_log_in_and_nothing_is_asked_twice",
            "b19_answers_that_nobody_asked_for_change_nothing",
            "b19_a_desktop_is_followed_over_lost_connections_and_reboots",
            "b18_b19_b25_a_user_is_logged_in_and_out_and_in_again_after_a_reboot",
        ]),
    ),
    (
        20,
        "a refused password is confirmed, a line end is part of it",
        By(&[
            "what_is_wrong_with_a_password_is_told_until_it_is_mended",
            "b20_a_password_that_qemu_refuses_is_not_confirmed",
            "line_ends_of_the_files_are_no_part_of_their_values",
        ]),
    ),
    (
        21,
        "the whole status is overwritten",
        By(&["b21_operator_and_runner_write_their_own_conditions_and_only_to_the_vm_they_mean"]),
    ),
    (22, "a slow API server holds up the machine", By(&["b22_an_api_server_that_does_not_answer_delays_nothing"])),
    (
        23,
        "an agent that does not answer uses up the time to shut down",
        By(&[
            "b23_a_guest_with_agent_is_asked_first_then_buttoned_then_ended",
            "what_was_said_to_somebody_else_is_not_taken_for_an_answer",
        ]),
    ),
    (
        24,
        "a QEMU that does not end is never killed, a TPM that has ended is never missed",
        By(&["a_stopped_qemu_is_killed_in_the_end", "b24_a_tpm_that_ends_is_told_and_the_guest_goes_on"]),
    ),
    (
        25,
        "a reboot leaves the guest booted",
        By(&[
            "b01_b25_a_request_resets_the_guest_once_and_it_boots_again",
            "b25_an_agent_that_goes_is_not_connected_and_a_reboot_logs_everybody_out",
            "b18_b19_b25_a_user_is_logged_in_and_out_and_in_again_after_a_reboot",
        ]),
    ),
    (
        26,
        "whether the guest powered off is a race",
        By(&["b26_a_guest_that_powers_off_by_itself_is_a_shutdown_by_the_guest"]),
    ),
    (
        27,
        "privileged, and paths and options of the user's choice",
        By(&[
            "nobody_has_a_privilege_and_qemu_is_confined",
            "b27_only_regular_files_of_the_repository_are_images",
            "a_word_holds_nothing_that_qemu_takes_apart",
            "no_value_begins_an_option_of_its_own",
        ]),
    ),
    (
        28,
        "QEMU adds devices by itself",
        By(&["the_smallest_machine", "b28_qemu_adds_nothing_by_itself_and_starts_nothing"]),
    ),
    (
        29,
        "disks have one queue and keep what the guest gives back",
        By(&["b32_the_fullest_machine", "b29_what_the_guest_gives_back_or_fills_with_zeros_takes_no_room"]),
    ),
    (
        30,
        "variables do not fit the firmware",
        By(&[
            "b30_variables_that_fit_no_firmware_are_kept_and_come_back_with_theirs",
            "b30_variables_that_were_put_aside_by_a_start_that_did_not_come_to_its_end_are_told_by_the_next",
            "every_kind_but_bios_has_pairs_of_code_and_variables",
            "b30_each_firmware_is_found_where_arch_alpine_and_debian_have_it",
        ]),
    ),
    (31, "no disks, no start", By(&["b31_a_null_is_no_value_but_no_network_is_none"])),
    (32, "numbers from 1000 on are grouped", By(&["b32_the_fullest_machine"])),
    (
        33,
        "the kubelet and the operator disagree about restarts",
        By(&[
            "b33_a_guest_that_powers_itself_off_is_started_again",
            "a_guest_that_powers_itself_off_stays_off_where_that_is_wanted",
        ]),
    ),
    (
        34,
        "a changed configuration is not checked",
        By(&["b34_cpus_follow_the_configuration_and_a_bad_one_changes_nothing"]),
    ),
    (35, "keys with / or _ in front vanish", By(&["b35_keys_with_any_first_letter_stay"])),
    (
        36,
        "the load balancer fails without a display, its secret stays",
        By(&[
            "a_load_balancer_is_on_off_or_described_and_may_be_a_text",
            "b36_a_secret_is_generated_that_lets_nobody_in_and_goes_with_its_vm",
        ]),
    ),
    (37, "a dead QEMU is waited for", By(&["b37_b38_a_qemu_that_is_gone_ends_every_wait"])),
    (38, "and waited for again", By(&["b37_b38_a_qemu_that_is_gone_ends_every_wait"])),
    (
        39,
        "a balloon that does not move is not told",
        By(&[
            "b39_memory_is_what_the_guest_has_and_not_what_was_asked_for",
            "b39_a_guest_that_does_not_follow_is_told_once_it_had_time",
        ]),
    ),
    (
        40,
        "the password is in the log",
        By(&["b40_a_password_is_in_no_log", "nobody_has_a_privilege_and_qemu_is_confined"]),
    ),
    (41, "a guest depends on a web server", Gone("QEMU opens local files only: a URL is never handed to it")),
    (
        42,
        "an event's reason is free text",
        By(&[
            "b42_the_reason_of_an_event_is_one_of_a_closed_list",
            "b42_who_looks_at_the_display_is_told_in_words_that_are_always_the_same",
        ]),
    ),
    (
        43,
        "the pod asks for less memory than the machine has",
        By(&["b43_requests_follow_the_current_size_and_leave_room_for_qemu"]),
    ),
    (
        44,
        "a template of the volume is code",
        Gone("no template is carried out; of an old one, the machine's type is read"),
    ),
];

/// The names of all tests that are run, and how often each is there.
fn tests(dir: &Path, names: &mut BTreeMap<String, u32>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            tests(&path, names);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            tests_of(&fs::read_to_string(path).unwrap(), names);
        }
    }
}

fn tests_of(source: &str, names: &mut BTreeMap<String, u32>) {
    let (mut is_test, mut is_left_out) = (false, false);
    for line in source.lines().map(str::trim) {
        if line.starts_with("#[") {
            is_test |= line == "#[test]" || line.starts_with("#[tokio::test");
            is_left_out |= line.starts_with("#[ignore") || line.starts_with("#[cfg(");
            continue;
        }
        let name =
            line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ").and_then(|rest| rest.split_once('('));
        if let Some((name, _)) = name.filter(|_| is_test && !is_left_out) {
            *names.entry(name.to_owned()).or_default() += 1;
        }
        (is_test, is_left_out) = (false, false);
    }
}

/// The defects that a test is named after: `b01_b25_…`.
fn named_after(test: &str) -> impl Iterator<Item = u32> {
    let number = |word: &str| word.strip_prefix('b').filter(|digits| digits.len() == 2)?.parse().ok();
    test.split('_').map_while(number)
}

#[test]
fn every_defect_of_the_reference_is_held_off_by_a_test_that_is_there() {
    let numbers = DEFECTS.iter().map(|(number, _, _)| *number);
    assert!(numbers.eq(1..=44), "each once, in their order");
    let mut names = BTreeMap::new();
    for dir in ["src", "tests"] {
        tests(&Path::new(env!("CARGO_MANIFEST_DIR")).join(dir), &mut names);
    }
    for (number, what, held) in &DEFECTS {
        let there: &[&str] = match held {
            By(tests) => {
                let is_named_after_it = |test: &&str| named_after(test).any(|named| named == *number);
                assert!(tests.iter().any(is_named_after_it), "B{number}, {what}: no test begins with b{number:02}_");
                tests
            }
            Gone(why) => {
                assert!(!why.is_empty(), "B{number}: {what}");
                &[]
            }
        };
        for test in there {
            assert_eq!(names.get(*test), Some(&1), "B{number}, {what}: tests of the name {test} that are run");
        }
        for test in names.keys().filter(|test| named_after(test).any(|named| named == *number)) {
            assert!(there.contains(&test.as_str()), "{test} is named after B{number}, which does not name it");
        }
    }
    let after = |number| named_after(number).collect::<Vec<_>>();
    assert!(names.keys().flat_map(|test| after(test)).all(|number| (1..=44).contains(&number)));
}

#[test]
fn what_is_left_out_or_no_test_holds_nothing_off() {
    let mut names = BTreeMap::new();
    let source = "#[test]\nfn a() {}\n#[tokio::test(start_paused = true)]\nasync fn b01_b2() {}\nfn c() {}\n\
        #[test]\n#[ignore = \"slow\"]\nfn d() {}\n// fn e()\n";
    tests_of(source, &mut names);
    assert!(names.into_iter().eq([("a".to_owned(), 1), ("b01_b2".to_owned(), 1)]));
    assert!(named_after("b37_b38_a_qemu").eq([37, 38]) && named_after("both_b01").next().is_none());
}
