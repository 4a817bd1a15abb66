# Objects, the audit log, statistics, the table.

say() { printf '%s\n' "$*"; }

die() {
    printf 'bench: %s\n' "$*" >&2
    exit 1
}

kubectl() { "$REPO/tests/cluster/cluster" kubectl "$@"; }
k() { kubectl --namespace "$NAMESPACE" "$@"; }

# prepare: ends the script if something is missing or another run measures; builds the released programs and their images
prepare() {
    ((EUID == 0)) || die "this needs root; run it with sudo"
    command -v jq >/dev/null || die "jq is missing; apt-get install jq"
    [[ -e $AUDIT ]] || die "no cluster runs in $STATE; run make cluster"
    [[ -e $TINY ]] || die "$TINY is missing; run make guests"
    exec 9>"$STATE/bench.lock"
    flock --nonblock 9 || die "another run measures already"
    "$REPO/tests/release" build >&2
    VMOP_PROFILE=release "$REPO/tests/cluster/images" >&2
    "$REPO/tests/cluster/cluster" load "$REPO"/.cache/images/vm-{operator,runner}.tar >/dev/null
}

# eventually SECONDS COMMAND...
eventually() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        ((SECONDS < end)) || die "not within the time: $*"
        sleep 0.05
    done
}

# A separate operator, with the configuration of the local overlay. That requests a resource of the device plugin.
make_operator() {
    k apply --filename "$REPO/crds" >/dev/null
    kubectl apply --kustomize "$REPO/deploy/cluster" >/dev/null
    kubectl rollout status daemonset/vm-device-plugin --namespace kube-system --timeout 60s >/dev/null
    kubectl create namespace "$NAMESPACE" >/dev/null
    kubectl label namespace "$NAMESPACE" pod-security.kubernetes.io/enforce=restricted >/dev/null
    kubectl kustomize "$REPO/deploy/overlays/local" | sed "s/vmop-demo/$NAMESPACE/" | k apply --filename - >/dev/null
    k rollout status deployment/vm-operator --timeout 60s >/dev/null
}

pod_exists() { k get pod "$1" >/dev/null 2>&1; }
pod_is_gone() { ! pod_exists "$1"; }

remove_all() {
    local volume
    kubectl delete namespace "$NAMESPACE" --ignore-not-found >/dev/null
    for volume in $(kubectl get pv --output name | sed -n "s|^persistentvolume/\($NAMESPACE-.*\)|\1|p"); do
        "$REPO/tests/cluster/disk" remove "$volume"
    done
}

finish() {
    local status=$?
    end_watch
    if ((status != 0)); then
        k get vms,pods >&2 || true
        k get events --field-selector type=Warning >&2 || true
    fi
    remove_all
}

# --- processes ---------------------------------------------------------------------

pod_uid() { k get pod "$@" --output 'jsonpath={.items[0].metadata.uid}'; }

# process UID PROGRAM: the pid of the program in the pod
process() {
    local entry
    for entry in /proc/[0-9]*; do
        if [[ $(cat "$entry/comm" 2>/dev/null) == "$2" ]] && grep --quiet "pod$1" "$entry/cgroup" 2>/dev/null; then
            echo "${entry##*/}"
            return
        fi
    done
    die "the pod $1 has no process $2"
}

# pss PID: its proportional set size, in kibibytes
pss() { awk '/^Pss:/ { print $2 }' "/proc/$1/smaps_rollup"; }

# memory PID: resident and proportional set size, in MiB
memory() {
    awk '/^Rss:/ { rss = $2 } /^Pss:/ { pss = $2 } END { printf "RSS %.1f MiB, PSS %.1f MiB", rss / 1024, pss / 1024 }' "/proc/$1/smaps_rollup"
}

# --- the audit log ---------------------------------------------------------------

# Only entries from now on count.
begin_audit() { AUDIT_BEGIN=$(stat --format %s "$AUDIT"); }

# The log is rotated at 200 MB. Then the new file has only entries from now on.
audit() {
    local from=$AUDIT_BEGIN
    (($(stat --format %s "$AUDIT") >= from)) || from=0
    # grep first, because jq is slow and would parse the requests of other namespaces too.
    tail --bytes "+$((from + 1))" "$AUDIT" | grep "\"namespace\":\"$NAMESPACE\""
}

# request VERB RESOURCE NAME FIELD: of the first successful request of that kind
request() {
    local found
    found=$(audit | jq --raw-output --arg verb "$1" --arg resource "$2" --arg name "$3" "
        select(.verb == \$verb and .objectRef.resource == \$resource and .objectRef.subresource == null
            and .objectRef.name == \$name and .responseStatus.code < 300) | .$4" | head -n 1)
    [[ -n $found ]] || die "the audit log has no $1 of $2 $3"
    say "$found"
}

# between FROM TO: milliseconds between two times of the audit log
between() { say $((($(date --date "$2" +%s%N) - $(date --date "$1" +%s%N)) / 1000000)); }

# --- figures ------------------------------------------------------------------------

# percentile P NUMBER...: the smallest number that at least P percent of them do not exceed
percentile() {
    local p=$1
    shift
    printf '%s\n' "$@" | sort -n | awk -v p="$p" '{ v[NR] = $1 } END { n = int((NR * p + 99) / 100); print v[n < 1 ? 1 : n] }'
}

percentiles() { say "p50 $(percentile 50 "$@") ms, p95 $(percentile 95 "$@") ms"; }

mebibytes() { awk '{ printf "%.1f MiB", $1 / 1048576 }'; }
size() { stat --format %s "$1" | mebibytes; }

ROWS=()
row() {
    ROWS+=("| $1 | $2 |")
    printf '  %-62s %s\n' "$1" "$2"
}

# print_table COMMAND: prints the rows under the name of the command
print_table() {
    local commit cpu
    commit=$(git -C "$REPO" rev-parse --short HEAD)
    cpu=$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1)
    printf '\n| `%s` | |\n|---|---|\n' "$1"
    printf '%s\n' "${ROWS[@]}"
    printf '\n%s, commit %s, on %s × %s, %s GiB, Linux %s, %s, Kubernetes %s; guests without hardware acceleration\n' \
        "$(date --utc +%F)" "$commit" "$(nproc)" "$cpu" "$(awk '/^MemTotal/ { printf "%.0f", $2 / 1048576 }' /proc/meminfo)" \
        "$(uname -r)" "$(. /etc/os-release && echo "$PRETTY_NAME")" "$(kubectl version --output json | jq --raw-output .serverVersion.gitVersion)"
}
