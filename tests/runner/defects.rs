//! The defects of the reference, B1 to B44 in the order in which they were found: what holds each of them off. Those whose
//! cause is not there any more have the reason instead.

use std::collections::BTreeSet;
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
        By(&["b01_each_increase_of_the_request_resets_once_also_the_first"]),
    ),
    (
        2,
        "with one CPU the guest never runs",
        By(&["as_many_as_wanted_is_nothing_to_do", "a_guest_boots_by_bios_and_is_shut_down_by_its_agent"]),
    ),
    (3, "a number of CPUs that cannot be had is tried without end", By(&["a_refused_cpu_is_tried_once_and_told"])),
    (
        4,
        "a configuration that waits keeps the process from ending",
        By(&["a_qemu_that_ends_before_the_guest_ran_has_failed_to_start", "a_killed_qemu_is_a_crash_at_once"]),
    ),
    (5, "an ejected medium comes back", By(&["b05_each_drive_gets_its_medium_once_and_is_then_the_guests"])),
    (
        6,
        "a network configuration that is removed stays in the seed",
        By(&["the_image_is_labelled_and_holds_the_documents"]),
    ),
    (
        7,
        "every edit makes a new instance of cloud-init",
        By(&["the_instance_changes_with_its_content_and_its_machine_only"]),
    ),
    (8, "the seed is writable and small", By(&["the_fullest_machine", "more_than_there_is_room_for_says_so"])),
    (
        9,
        "a configured runtime directory has no sockets",
        By(&["configured_directories_win_over_the_environments_and_that_over_the_defaults"]),
    ),
    (10, "the documented sizes are refused", By(&["both_syntaxes_are_read"])),
    (11, "streaming video has two names", By(&["a_file_of_the_reference_is_read"])),
    (
        12,
        "a topology does not count as the maximum of CPUs",
        By(&["a_topology_gives_the_maximum_of_cpus", "a_topology_that_qemu_would_refuse_is_refused_with_the_numbers"]),
    ),
    (13, "promised defaults of CPUs are not there", By(&["the_maximum_of_cpus_is_the_greatest_of_what_is_given"])),
    (
        14,
        "a failed start looks like a power-off",
        By(&["an_unusable_configuration_is_explained_in_one_line", "a_qemu_that_does_not_start_says_why"]),
    ),
    (15, "a start has no time limits", By(&["each_part_of_the_start_has_its_deadline"])),
    (16, "sockets are waited for as files", Gone("the runner listens before QEMU starts and hands the sockets over")),
    (17, "a lost monitor stops the guest", By(&["a_lost_connection_fails_what_waits_and_is_made_again"])),
    (18, "a user is logged in before the agent says so", By(&["b18_a_login_is_one_when_the_wanted_user_is_there"])),
    (
        19,
        "logins are asked for again with every configuration",
        By(&[
            "b19_nobody_is_logged_out_whom_we_did_not_log_in_and_nothing_is_asked_twice",
            "b19_answers_that_nobody_asked_for_change_nothing",
        ]),
    ),
    (
        20,
        "a refused password is confirmed, a line end is part of it",
        By(&[
            "a_refused_password_is_not_counted_and_not_repeated",
            "line_ends_of_the_files_are_no_part_of_their_values",
        ]),
    ),
    (
        21,
        "the whole status is overwritten",
        By(&["operator_and_runner_write_their_own_conditions_and_only_to_the_vm_they_mean"]),
    ),
    (22, "a slow API server holds up the machine", By(&["an_api_server_that_does_not_answer_delays_nothing"])),
    (
        23,
        "an agent that does not answer uses up the time to shut down",
        By(&[
            "a_guest_with_agent_is_asked_first_then_buttoned_then_ended",
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
        ]),
    ),
    (
        26,
        "whether the guest powered off is a race",
        By(&["a_guest_that_powers_off_by_itself_is_a_shutdown_by_the_guest"]),
    ),
    (
        27,
        "privileged, and paths and options of the user's choice",
        By(&[
            "nobody_has_a_privilege_and_qemu_is_confined",
            "b27_only_regular_files_of_the_repository_are_images",
            "a_word_holds_nothing_that_qemu_takes_apart",
        ]),
    ),
    (28, "QEMU adds devices by itself", By(&["the_smallest_machine"])),
    (
        29,
        "disks have one queue and keep what the guest gives back",
        By(&["the_fullest_machine", "b29_what_the_guest_gives_back_or_fills_with_zeros_takes_no_room"]),
    ),
    (
        30,
        "variables do not fit the firmware",
        By(&[
            "b30_variables_that_fit_no_firmware_are_kept_and_come_back_with_theirs",
            "every_kind_but_bios_has_pairs_of_code_and_variables",
        ]),
    ),
    (31, "no disks, no start", By(&["a_null_is_no_value_but_no_network_is_none"])),
    (32, "numbers from 1000 on are grouped", By(&["the_fullest_machine"])),
    (
        33,
        "the kubelet and the operator disagree about restarts",
        By(&[
            "a_guest_that_powers_itself_off_is_started_again",
            "a_guest_that_powers_itself_off_stays_off_where_that_is_wanted",
        ]),
    ),
    (
        34,
        "a changed configuration is not checked",
        By(&["cpus_follow_the_configuration_and_a_bad_one_changes_nothing"]),
    ),
    (35, "keys with / or _ in front vanish", By(&["b35_keys_with_any_first_letter_stay"])),
    (
        36,
        "the load balancer fails without a display, its secret stays",
        By(&[
            "a_load_balancer_is_on_off_or_described_and_may_be_a_text",
            "a_secret_is_generated_that_lets_nobody_in_and_goes_with_its_vm",
        ]),
    ),
    (37, "a dead QEMU is waited for", By(&["b37_b38_a_qemu_that_is_gone_ends_every_wait"])),
    (38, "and waited for again", By(&["b37_b38_a_qemu_that_is_gone_ends_every_wait"])),
    (
        39,
        "a balloon that does not move is not told",
        By(&["b39_memory_is_what_the_guest_has_and_not_what_was_asked_for"]),
    ),
    (
        40,
        "the password is in the log",
        By(&["a_password_is_never_shown", "nobody_has_a_privilege_and_qemu_is_confined"]),
    ),
    (41, "a guest depends on a web server", Gone("QEMU opens local files only: a URL is never handed to it")),
    (42, "an event's reason is free text", By(&["b42_the_reason_of_an_event_is_one_of_a_closed_list"])),
    (
        43,
        "the pod asks for less memory than the machine has",
        By(&["requests_follow_the_current_size_and_leave_room_for_qemu"]),
    ),
    (
        44,
        "a template of the volume is code",
        Gone("no template is carried out; of an old one, the machine's type is read"),
    ),
];

fn sources(dir: &Path, text: &mut String) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn every_defect_of_the_reference_is_held_off_by_a_test_that_is_there() {
    let numbers: BTreeSet<u32> = DEFECTS.iter().map(|(number, _, _)| *number).collect();
    assert!(numbers.iter().copied().eq(1..=44), "{numbers:?}");
    let mut text = String::new();
    for dir in ["src", "tests"] {
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(dir), &mut text);
    }
    for (number, what, held) in &DEFECTS {
        match held {
            By(tests) => {
                assert!(!tests.is_empty(), "B{number}: {what}");
                for test in *tests {
                    assert!(text.contains(&format!("fn {test}()")), "B{number}, {what}: there is no test {test}");
                }
            }
            Gone(why) => assert!(!why.is_empty(), "B{number}: {what}"),
        }
    }
}
