# The one binary with all of Kubernetes. It is in the cache outside the checkout, by the hash of its sources.

# shellcheck source-path=SCRIPTDIR/../..
source "$REPO/tests/cache.sh"

KUBE_SOURCES=("$HERE"/kube/*.go "$HERE/kube/go.mod" "$HERE/kube/go.sum" "$HERE/lib/build.sh")
KUBE_HASH=$(cat "${KUBE_SOURCES[@]}" | sha256sum | cut -c 1-16)
KUBE=$VMOP_CACHE/kube/vmop-kube-$KUBE_HASH

# The tests that start an API server of their own find the binary by the link in the checkout.
build_kube() {
    mkdir -p "${KUBE%/*}" "$REPO/.cache/kube"
    # The lock ends with the subshell: processes of the cluster must not inherit it.
    [[ -x $KUBE ]] || (cache_lock kube; [[ -x $KUBE ]] || build_kube_locked)
    used "$KUBE"
    ln -sfn "$KUBE" "$REPO/.cache/kube/${KUBE##*/}"
    find "$REPO/.cache/kube" -maxdepth 1 -name 'vmop-kube-*' ! -name "${KUBE##*/}" -delete
}

build_kube_locked() {
    command -v go >/dev/null || die "go is missing; install Go 1.24 or newer from https://go.dev/dl or, on Debian 13, the package golang-go"
    cache_missed "Kubernetes $KUBERNETES_VERSION"
    say "building Kubernetes $KUBERNETES_VERSION, which takes minutes the first time ..."
    step "binary with all components" compile_kube
}

compile_kube() {
    local version=k8s.io/component-base/version packages
    local major=${KUBERNETES_VERSION%%.*} minor=${KUBERNETES_VERSION#*.}
    # nice: a workstation stays usable, and so do other builds.
    (
        cd "$HERE/kube"
        go mod download
        packages=$(go list -deps . | wc -l)
        # Without debug information, which the linker would drop, and the two largest modules without inlining (-l): a fifth less
        # processor time. What encodes, stores and serves objects is in other modules.
        CGO_ENABLED=0 nice -n 5 go build -v -trimpath -buildvcs=false -gcflags=all=-dwarf=false \
            -gcflags='k8s.io/kubernetes/...=-dwarf=false -l' -gcflags='k8s.io/client-go/...=-dwarf=false -l' \
            -ldflags "-s -w -X $version.gitVersion=v$KUBERNETES_VERSION -X $version.gitMajor=$major -X $version.gitMinor=${minor%%.*}" \
            -o "$KUBE.part.$$" . 2>&1 | "$REPO/tests/progress" package "$packages"
    ) || die "the build of $HERE/kube failed"
    mv "$KUBE.part.$$" "$KUBE"
    # Each is 140 MB.
    keep_newest "${KUBE%/*}" 'vmop-kube-*'
}
