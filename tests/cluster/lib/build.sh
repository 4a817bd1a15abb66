# The one binary with all of Kubernetes, kept by the hash of what it is made of.

KUBE_SOURCES=("$HERE"/kube/*.go "$HERE/kube/go.mod" "$HERE/kube/go.sum" "$HERE/lib/build.sh")
KUBE_HASH=$(cat "${KUBE_SOURCES[@]}" | sha256sum | cut -c 1-16)
KUBE=$REPO/.cache/kube/vmop-kube-$KUBE_HASH

build_kube() {
    [[ ! -x $KUBE ]] || return 0
    command -v go >/dev/null || die "go is missing; install Go 1.24 or newer from https://go.dev/dl or, on Debian 13, the package golang-go"
    say "building Kubernetes $KUBERNETES_VERSION, which takes minutes the first time ..."
    step "binary with all components" compile_kube
}

compile_kube() {
    local version=k8s.io/component-base/version
    local major=${KUBERNETES_VERSION%%.*} minor=${KUBERNETES_VERSION#*.}
    mkdir -p "${KUBE%/*}"
    # nice: a workstation stays usable, and so do other builds.
    (
        cd "$HERE/kube"
        CGO_ENABLED=0 nice -n 5 go build -trimpath -buildvcs=false \
            -ldflags "-s -w -X $version.gitVersion=v$KUBERNETES_VERSION -X $version.gitMajor=$major -X $version.gitMinor=${minor%%.*}" \
            -o "$KUBE.part.$$" .
    ) || die "the build of $HERE/kube failed"
    mv "$KUBE.part.$$" "$KUBE"
    # Older ones are of no use, and each is 140 MB.
    find "${KUBE%/*}" -maxdepth 1 -name 'vmop-kube-*' ! -name "${KUBE##*/}" -delete
}
