//! The tests of each row and bullet of `docs/security.md`.

use super::cell;
use crate::golden::root;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The beginning of a claim, and its tests. Without tests, `Err` has the reason.
type Claim = (&'static str, Result<&'static [&'static str], &'static str>);

const NOT_OURS: &str = "a statement about other programs";
const CONSEQUENCE: &str = "a consequence of other rows";

const CLAIMS: &[Claim] = &[
    ("cluster administrator", Err(NOT_OURS)),
    (
        "operator, one for each namespace",
        Ok(&[
            "granted_permissions_are_exactly_the_requested_permissions",
            "the_part_of_a_namespace_has_nothing_of_the_cluster",
            "two_operators_with_vms_of_the_same_name_leave_each_other_alone",
        ]),
    ),
    (
        "runner, one for each VM",
        Ok(&[
            "runner_can_write_only_the_status_of_its_own_report",
            "the_policy_for_reports_holds_also_where_a_role_gives_too_much",
        ]),
    ),
    (
        "runner of the Java VM-Operator",
        Ok(&[
            "a_runner_writes_the_status_and_events_of_its_own_vm_and_of_no_other",
            "the_role_of_a_java_runner_has_the_rights_that_it_uses",
        ]),
    ),
    (
        "web console, one for each namespace",
        Ok(&[
            "account_of_the_console_changes_only_the_fields_of_its_actions",
            "permissions_of_the_console_are_those_that_it_uses",
            "actions_need_a_login_a_permission_and_a_page_of_the_console",
            "details_and_size_of_a_vm_need_their_rights",
            "only_viewers_of_all_vms_see_totals_and_nodes",
            "screen_needs_a_right_and_the_own_pod_of_a_running_vm",
            "serial_console_and_file_for_a_spice_viewer_need_the_same_right",
            "open_screen_ends_with_the_right_the_login_or_the_runner",
            "user_of_a_provider_has_the_rights_of_mapped_roles",
            "each_route_needs_a_login_and_a_right_unless_it_is_public",
            "route_outside_the_table_is_found",
        ]),
    ),
    (
        "controller of PeerPods, one for each cluster",
        Ok(&[
            "ec2_instance_is_terminated_with_its_pod_and_others_remain",
            "credentials_and_permissions_of_ec2_are_used_as_soon_as_they_are_corrected",
            "p16_only_an_instance_of_this_cluster_that_nothing_names_is_an_orphan",
            "objects_of_the_adaptor_name_no_file_and_no_service",
            "controller_of_peerpods_uses_each_of_its_permissions_and_no_other",
            "credentials_of_ec2_are_in_no_log_metric_event_and_peerpod",
        ]),
    ),
    (
        "controller of SIPClusters, one for each namespace",
        Ok(&[
            "every_fault_at_every_call_of_sip_clusters_leads_to_the_same_end",
            "s23_bmc_password_is_stored_only_in_the_secret",
            "permissions_of_the_controller_are_those_that_it_uses",
        ]),
    ),
    (
        "device plugin, one for each node",
        Ok(&["the_device_plugin_has_three_directories_of_the_host_and_one_capability"]),
    ),
    (
        "author of a VM",
        Ok(&["no_vm_gets_a_pod_that_is_not_restricted"]),
    ),
    (
        "author of a SIPCluster",
        Ok(&[
            "clusters_are_admitted_unchanged_and_values_that_cannot_work_are_refused",
            "missing_secret_with_the_keys_for_hosts_is_a_problem_and_the_pod_starts_without_it",
        ]),
    ),
    ("user of a jump host", Err(CONSEQUENCE)),
    (
        "guest",
        Ok(&[
            "no_vm_gets_a_pod_that_is_not_restricted",
            "two_operators_with_vms_of_the_same_name_leave_each_other_alone",
        ]),
    ),
    (
        "The pod of a VM passes Pod Security",
        Ok(&[
            "no_vm_gets_a_pod_that_is_not_restricted",
            "the_pod_is_restricted_and_needs_no_flag_to_be_drained",
        ]),
    ),
    (
        "QEMU starts no program",
        Ok(&["no_process_has_privileges_and_qemu_is_confined"]),
    ),
    (
        "If the node's kernel has Landlock",
        Ok(&[
            "qemu_and_tpm_cannot_open_private_files_of_the_runner",
            "a_runner_does_not_follow_its_configuration_out_of_its_folder",
        ]),
    ),
    (
        "At most one QEMU of a node",
        Ok(&[
            "a_second_machine_on_the_same_device_is_refused",
            "qemu_of_a_killed_runner_exits_before_its_disk_is_used_again",
        ]),
    ),
    (
        "A VM never gets the pod",
        Ok(&[
            "a_namesakes_pod_is_never_adopted_nor_ended_by_a_decision",
            "the_objects_of_a_previous_vm_are_removed_and_then_created_for_this_one",
            "status_follows_the_report_of_the_present_pod_after_any_sequence",
        ]),
    ),
    (
        "No log, command line, event",
        Ok(&[
            "display_password_is_set_and_appears_in_no_log_or_argument",
            "no_password_gets_into_another_object",
            "serial_console_begins_with_the_last_output_and_a_password_of_the_display_is_valid_once",
        ]),
    ),
    (
        "Two operators do not touch",
        Ok(&["two_operators_with_vms_of_the_same_name_leave_each_other_alone"]),
    ),
    (
        "Only a web console with a known key",
        Ok(&[
            "peers_connect_only_if_each_has_the_key_that_the_other_knows",
            "screen_is_shown_to_one_user_at_a_time_by_consoles_with_a_known_key",
            "screen_needs_a_right_and_the_own_pod_of_a_running_vm",
        ]),
    ),
    (
        "write the report of its own pod",
        Ok(&[
            "runner_can_write_only_the_status_of_its_own_report",
            "a_report_has_at_most_10_kib_and_each_of_its_fields_is_limited",
        ]),
    ),
    (
        "see its own report",
        Ok(&["no_answer_to_a_runner_has_anything_of_another_vm"]),
    ),
    (
        "use its token while",
        Ok(&["a_runners_token_is_worth_nothing_once_its_pod_is_gone"]),
    ),
    (
        "read and write its own disks",
        Ok(&[
            "qemu_and_tpm_cannot_open_private_files_of_the_runner",
            "no_vm_gets_a_pod_that_is_not_restricted",
        ]),
    ),
    (
        "show users of its screen",
        Ok(&[
            "screen_needs_a_right_and_the_own_pod_of_a_running_vm",
            "screen_is_shown_to_one_user_at_a_time_by_consoles_with_a_known_key",
        ]),
    ),
    (
        "send to the network like",
        Err("the tests' network does not enforce NetworkPolicies"),
    ),
    (
        "`status.nodeName` and",
        Ok(&["a_report_changes_no_condition_of_the_operator_and_no_field_of_others"]),
    ),
    (
        "`status.guestIPs` is a claim",
        Ok(&["texts_and_numbers_of_a_report_are_limited"]),
    ),
    (
        "`status.consoles` is a claim",
        Ok(&[
            "texts_and_numbers_of_a_report_are_limited",
            "newest_known_user_of_a_console_is_the_console_user_while_connected",
        ]),
    ),
    (
        "`status.assignment`",
        Ok(&["a_report_changes_no_condition_of_the_operator_and_no_field_of_others"]),
    ),
    (
        "No copied time is later",
        Ok(&["no_time_is_later_than_the_operators_clock_and_an_unchanged_status_keeps_its_time"]),
    ),
    (
        "The operator ignores the report",
        Ok(&[
            "the_report_of_a_pod_that_was_deleted_by_force_is_ignored",
            "status_follows_the_report_of_the_present_pod_after_any_sequence",
        ]),
    ),
    (
        "private key in the Secret `vm-web-keys`",
        Ok(&[
            "screen_needs_a_right_and_the_own_pod_of_a_running_vm",
            "screen_is_shown_to_one_user_at_a_time_by_consoles_with_a_known_key",
        ]),
    ),
    (
        "private key in the memory of the runner",
        Ok(&[
            "screen_is_shown_to_one_user_at_a_time_by_consoles_with_a_known_key",
            "status_follows_the_report_of_the_present_pod_after_any_sequence",
        ]),
    ),
    ("see the screens and use the keyboards", Err(CONSEQUENCE)),
    ("use the serial consoles of these VMs", Err(CONSEQUENCE)),
    ("get the passwords of the displays", Err(CONSEQUENCE)),
    (
        "read all VMs and events, and change five fields",
        Ok(&[
            "account_of_the_console_changes_only_the_fields_of_its_actions",
            "details_and_size_of_a_vm_need_their_rights",
        ]),
    ),
    (
        "assign VMs of all pools",
        Err("the verbs in `deploy/web/role.yaml`"),
    ),
    (
        "read each pod by its name",
        Err("the verbs and names in `deploy/web/role.yaml`"),
    ),
    (
        "read the mounted Secret `vm-web-users`",
        Err("the volumes in `deploy/web/deployment.yaml`"),
    ),
    ("log in as each user", Err(CONSEQUENCE)),
    (
        "take the private key",
        Ok(&["screen_is_shown_to_one_user_at_a_time_by_consoles_with_a_known_key"]),
    ),
    (
        "a VM with `tap` networks",
        Ok(&[
            "no_vm_gets_a_pod_that_is_not_restricted",
            "a_namespace_that_does_not_admit_a_tap_says_how_to_let_it",
        ]),
    ),
    (
        "the setting `deviceAccess",
        Ok(&["vm_with_root_owned_device_reports_the_setting_and_runs_as_root_if_configured"]),
    ),
    (
        "the setting `accelerator.privileged`",
        Ok(&[
            "vm_with_root_owned_device_reports_the_setting_and_runs_as_root_if_configured",
            "privileged_pod_needs_no_device_resource_and_is_created_only_if_needed",
        ]),
    ),
    (
        "an image of the Java VM-Operator's runner",
        Ok(&["rights_beyond_restricted_need_an_image_that_the_administrator_trusts"]),
    ),
    (
        "**`tap` networks**",
        Ok(&[
            "vms_on_a_bridge_of_their_node_reach_each_other",
            "two_guests_on_a_bridge_reach_each_other_and_leave_nothing_behind",
        ]),
    ),
    (
        "**`deviceAccess: root`**",
        Ok(&[
            "are_root_without_capabilities",
            "root_and_the_usual_user_take_each_others_data_over",
        ]),
    ),
    (
        "**`accelerator.privileged`**",
        Ok(&["no_process_has_privileges_and_qemu_is_confined"]),
    ),
    (
        "**An image of the Java VM-Operator's runner**",
        Ok(&["rights_beyond_restricted_need_an_image_that_the_administrator_trusts"]),
    ),
    ("A guest on a bridge is", Err(NOT_OURS)),
    (
        "A guest that has broken out of QEMU reaches",
        Err(CONSEQUENCE),
    ),
    ("A guest with a `tap` and a `user`", Err(CONSEQUENCE)),
    (
        "The port of the display",
        Ok(&[
            "a_display_without_a_password_is_not_open_on_the_nodes_address",
            "a_display_that_should_ask_for_a_password_never_comes_up_open",
        ]),
    ),
    (
        "The port of `spec.consolePort`",
        Ok(&["screen_is_shown_to_one_user_at_a_time_by_consoles_with_a_known_key"]),
    ),
    (
        "The ports are ports of the node",
        Ok(&["a_tap_needs_the_nodes_network_and_its_device_and_other_vms_need_nothing"]),
    ),
    (
        "the kubelet's directory",
        Ok(&["the_device_plugin_has_three_directories_of_the_host_and_one_capability"]),
    ),
    (
        "the directory `/run/vm-device-plugin`",
        Ok(&[
            "a_device_that_others_may_not_open_gets_a_node_in_a_directory_that_others_may_not_enter",
        ]),
    ),
    (
        "the capability MKNOD",
        Ok(&["a_pod_without_the_resource_cannot_open_a_device_node_that_it_creates"]),
    ),
    (
        "the node's `/dev`",
        Ok(&["the_device_plugin_has_three_directories_of_the_host_and_one_capability"]),
    ),
    (
        "user root, because root",
        Ok(&["the_device_plugin_has_three_directories_of_the_host_and_one_capability"]),
    ),
    (
        "The author of a VM can send",
        Ok(&["redirect_to_a_disallowed_url_is_rejected"]),
    ),
    (
        "The password of a proxy",
        Ok(&["password_of_a_proxy_is_rejected_and_not_shown"]),
    ),
    (
        "All VMs of the namespace",
        Ok(&["two_machines_with_one_image_fetch_it_once"]),
    ),
    ("Without a `checksum`", Err(CONSEQUENCE)),
    (
        "A URL with a user and a password",
        Ok(&[
            "url_with_password_is_rejected_and_no_secret_is_printed",
            "secret_part_of_a_url_is_never_published",
        ]),
    ),
    (
        "It sends no request to loopback",
        Ok(&[
            "addresses_of_the_pod_are_refused_as_target_of_a_url",
            "a_redirect_to_an_address_of_the_pod_is_refused",
            "local_addresses_are_refused_in_every_notation",
        ]),
    ),
    (
        "`qemu-img`, `xz`, `gzip` and `zstd` run",
        Ok(&[
            "a_program_has_limits_and_neither_sockets_nor_other_files",
            "the_header_decides_and_images_that_read_other_files_are_refused",
        ]),
    ),
    (
        "A disk with contents is never overwritten",
        Ok(&[
            "record_and_claim_and_contents_decide",
            "only_unknown_contents_of_a_device_are_overwritten_on_request",
            "the_permission_to_overwrite_ends_with_the_import",
        ]),
    ),
    ("Without a `checksum`, the server chooses", Err(CONSEQUENCE)),
    ("Defects of the kernel", Err(NOT_OURS)),
    ("Side channels", Err(NOT_OURS)),
    (
        "A VM's author who chooses the image",
        Ok(&["rights_beyond_restricted_need_an_image_that_the_administrator_trusts"]),
    ),
];

/// The rows of tables and the bullets of the page, with their section.
fn claims_of(page: &str) -> Vec<(String, String)> {
    let mut section = String::new();
    let mut claims = Vec::new();
    let mut in_table = false;
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix('#') {
            section = heading.trim_start_matches('#').trim().to_owned();
        }
        let row = line.strip_prefix("| ");
        let bullet = line.strip_prefix("* ");
        let is_separator = line.starts_with("|---");
        // The first row of a table is its head.
        let row = row.filter(|_| in_table && !is_separator);
        in_table = line.starts_with('|');
        if let Some(text) = row.and_then(|row| row.split(" |").next()).or(bullet) {
            claims.push((section.clone(), text.to_owned()));
        }
    }
    claims
}

/// The names of all functions in the Rust files of a directory.
pub fn functions(directory: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            functions(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let names = text
                .lines()
                .filter_map(|line| line.trim().split_once("fn "));
            let names = names.filter_map(|(_, rest)| rest.split_once('('));
            found.extend(names.map(|(name, _)| name.to_owned()));
        }
    }
}

/// The page that names the tests of each claim.
///
/// # Panics
/// If the page has a claim that is not in the list, or the list has a claim or a test that does not exist.
pub fn security_tests() -> String {
    let page = fs::read_to_string(root().join("docs/security.md")).unwrap();
    let claims = claims_of(&page);
    let known = CLAIMS;
    let mut present = BTreeSet::new();
    for directory in ["src", "tests"] {
        functions(&root().join(directory), &mut present);
    }
    let mut text = "# Tests of the security model\n\nEach row and bullet of [docs/security.md](../security.md), and the tests that show it. The list is in \
         `tests/check/golden/docs/security.rs`.\n"
        .to_owned();
    let mut section = "";
    let mut used = BTreeSet::new();
    for (of, claim) in &claims {
        let found = known
            .iter()
            .position(|(start, _)| claim.starts_with(start) && !used.contains(start));
        let found =
            found.unwrap_or_else(|| panic!("docs/security.md: {claim:?} has no entry in CLAIMS"));
        let (start, tests) = &known[found];
        used.insert(*start);
        if of != section {
            section = of;
            text += &format!("\n## {of}\n\n| claim | tests |\n|---|---|\n");
        }
        let tests = match tests {
            Ok(tests) => {
                for test in *tests {
                    assert!(present.contains(*test), "{claim:?}: no test {test}");
                }
                tests
                    .iter()
                    .map(|test| format!("`{test}`"))
                    .collect::<Vec<_>>()
                    .join(", ")
            }
            Err(reason) => format!("none: {reason}"),
        };
        let words: Vec<&str> = claim.split_whitespace().take(9).collect();
        text += &format!("| {} | {tests} |\n", cell(&words.join(" ")));
    }
    let unused: Vec<&str> = known
        .iter()
        .map(|(start, _)| *start)
        .filter(|it| !used.contains(it))
        .collect();
    assert!(
        unused.is_empty(),
        "docs/security.md has no claim that begins with {unused:?}"
    );
    text
}
