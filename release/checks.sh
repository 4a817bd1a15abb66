# Claims with one line each, and the overlays of docs/release.md. For the self-tests, which source this file and set REPO, WORK,
# VERSION and REGISTRY.

PAGE=$REPO/docs/release.md
CHILDREN=()
passed=0 failed=0

# check TEXT COMMAND...: on failure shows the output of the command
check() {
    local text=$1 output begin=$EPOCHREALTIME took
    shift
    if output=$("$@" 2>&1); then
        passed=$((passed + 1))
        took=$(awk -v from="$begin" -v to="$EPOCHREALTIME" 'BEGIN { printf "%.1f", to - from }')
        printf 'ok    %s (%s s)\n' "$text" "$took"
    else
        failed=$((failed + 1))
        printf 'FAIL  %s\n%s\n' "$text" "$(tail -n 20 <<<"$output" | sed 's/^/      /')"
    fi
}

not() { ! "$@"; }

# controllers DIRECTORY: the controllers of that release with manifests and a chart of their own
controllers() { (cd "$1" && printf '%s\n' *-crds.yaml | sed 's/-crds.yaml$//'); }

finish() {
    echo "$passed passed, $failed failed"
    ((failed == 0))
}

stop_children() {
    local child
    for child in "${CHILDREN[@]}"; do kill "$child" 2>/dev/null || true; done
}

# block MARK: the block of code of the page that follows this comment
block() { awk -v mark="<!-- $1 -->" '$0 == mark { found = 1; next } found && /^```/ { if (inside) exit; inside = 1; next } inside' "$PAGE"; }

# Serves the work tree's deploy/ as the repository of the page. git replaces the address, so that the page's text is used
# unchanged.
serve_repository() {
    local port=$((30000 + RANDOM % 10000)) try
    mkdir -p "$WORK/git/vm-operator.git"
    cp -r "$REPO/deploy" "$WORK/git/vm-operator.git"
    (
        cd "$WORK/git/vm-operator.git"
        git init --quiet
        git add --all
        git -c user.name=test -c user.email=test@example.org commit --quiet --message test
        git tag "v$VERSION"
    )
    git daemon --export-all --reuseaddr --listen=127.0.0.1 --port="$port" --base-path="$WORK/git" >"$WORK/daemon.log" 2>&1 &
    CHILDREN+=($!)
    export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0="url.git://127.0.0.1:$port/.insteadOf" GIT_CONFIG_VALUE_0=https://git.example.org/
    for ((try = 0; try < 50; try++)); do
        ! git ls-remote https://git.example.org/vm-operator.git >/dev/null 2>&1 || return 0
        sleep 0.1
    done
    echo "the git daemon does not answer: $(<"$WORK/daemon.log")" >&2
    return 1
}

# overlay DIRECTORY NAMESPACE|cluster: the page's overlay for a namespace, or for the objects of the cluster
overlay() {
    mkdir -p "$1"
    block "overlay registry.yaml" | sed "s|registry.example.org/vms|$REGISTRY|" >"$1/registry.yaml"
    block "overlay kustomization.yaml" >"$1/kustomization.yaml"
    if [[ $2 == cluster ]]; then
        sed -i '/^namespace:/d; s|deploy/base|deploy/cluster|; /without-image-repository/d' "$1/kustomization.yaml"
    else
        sed -i "s|^namespace: .*|namespace: $2|" "$1/kustomization.yaml"
    fi
}
