#!/bin/bash
# Lists the hosts of the tenant cluster, and controls their power by Redfish.
set -euo pipefail

HOSTS=/etc/opt/sip/hosts/hosts.json

usage() {
    cat <<'TEXT'
usage: host list                   the hosts: name, role, address, and URL at the management controller (BMC)
       host power NAME [on|off]    shows the power state, or switches the power on or, without a shutdown, off
       host reboot NAME            resets the host without a shutdown
TEXT
}

die() {
    printf 'host: %s\n' "$*" >&2
    exit 1
}

list() {
    local row
    printf '%-32s %-16s %-40s %s\n' NAME ROLE ADDRESS BMC
    jq --raw-output '.[] | [.name, .role, .address // "-", .bmc.url // "-"] | join(" ")' "$HOSTS" |
        while read -ra row; do printf '%-32s %-16s %-40s %s\n' "${row[@]}"; done
}

# check NAME: the host exists and has a BMC
check() {
    local found
    found=$(jq --raw-output --arg name "$1" '.[] | select(.name == $name) | if .bmc then "bmc" else "none" end' "$HOSTS")
    case $found in
        bmc) ;;
        none) die "the jump host has no BMC of $1: add bmc to its entry in spec.services.jumpHost, or see the condition Degraded of the SIPCluster" ;;
        *) die "the cluster has no host $1; host list shows all" ;;
    esac
}

# redfish NAME PATH [OPTION...]: a request to the BMC, by default for the system. The password is not an argument, which all users would see.
redfish() {
    jq --raw-output --arg name "$1" --arg path "$2" '.[] | select(.name == $name).bmc
        | "url = \(if $path == "" then .url else (.url | split("/")[:3] | join("/")) + $path end | @json)",
          "user = \("\(.username):\(.password)" | @json)", (if .insecure then "insecure" else empty end)' "$HOSTS" |
        curl --config - --silent --show-error --fail --max-time 30 --proto =http,https --header 'Accept: application/json' "${@:3}" ||
        die "the BMC of $1 does not answer this request"
}

# reset NAME TYPE: the system names the path of its action
reset() {
    local path
    path=$(redfish "$1" '' | jq --raw-output '.Actions["#ComputerSystem.Reset"].target // empty')
    [[ $path == /* ]] || die "the BMC of $1 offers no reset"
    redfish "$1" "$path" --output /dev/null --json "{\"ResetType\": \"$2\"}"
    echo "$1: $2"
}

power() {
    check "$1"
    case ${2:-} in
        '') redfish "$1" '' | jq --raw-output '.PowerState // "unknown"' ;;
        on) reset "$1" On ;;
        off) reset "$1" ForceOff ;;
        *) usage >&2; exit 2 ;;
    esac
}

case ${1:-}/$# in
    list/1) list ;;
    power/[23]) power "${@:2}" ;;
    reboot/2) check "$2" && reset "$2" ForceRestart ;;
    *) usage >&2; exit 2 ;;
esac
