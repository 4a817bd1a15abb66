# The control plane of another Kubernetes version, for the tests that start an API server of their own: API server, controllers
# and scheduler in one file. etcd and kubectl are those of the Kubernetes binary. It is not in build.sh, the hash of which names
# that binary.

build_control_plane() {
    local version=$CONTROL_PLANE_VERSION hash program
    [[ -n $version ]] || return 0
    [[ $version =~ ^1\.[0-9]+\.[0-9]+$ ]] || die "KUBERNETES_VERSION=$version is not a version such as 1.37.2"
    hash=$(cat "$HERE/control-plane/main.go" "$HERE/lib/other_version.sh" | sha256sum | cut -c 1-16)
    program=$VMOP_CACHE/kube/control-plane-$version-$hash
    [[ -x $program ]] || (cache_lock control-plane; [[ -x $program ]] || compile_control_plane "$version" "$program")
    used "$program"
    ln -sfn "$program" "$REPO/.cache/kube/control-plane-$version"
}

# compile_control_plane VERSION PROGRAM. The file go.mod of this version replaces the staging modules of Kubernetes, which its own
# go.mod names as directories, by their published versions. The go command checks all modules with its checksum database.
compile_control_plane() {
    local version=$1 program=$2 minor=${1#*.} package=k8s.io/component-base/version work modules replacements
    command -v go >/dev/null || die "go is missing; install Go 1.24 or newer from https://go.dev/dl or, on Debian 13, the package golang-go"
    say "building the control plane of Kubernetes $version, which takes up to 20 minutes the first time ..."
    work=$(mktemp -d "$VMOP_CACHE/.control-plane.XXXXXX")
    cp "$HERE/control-plane/main.go" "$work"
    (
        cd "$work"
        go mod init vmop-control-plane
        modules=$(go mod download -json "k8s.io/kubernetes@v$version" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')
        mapfile -t replacements < <(sed -n "s|^[[:space:]]*\(k8s.io/[^ ]*\) => ./staging/.*|-replace=\1=\1@v0.$minor|p" "$modules")
        # The language version decides about the defaults of GODEBUG, so it is that of Kubernetes.
        go mod edit -go="$(sed -n 's/^go //p' "$modules")" -require="k8s.io/kubernetes@v$version" \
            -require="k8s.io/component-base@v0.$minor" "${replacements[@]}"
        CGO_ENABLED=0 nice -n 5 go build -mod=mod -trimpath -buildvcs=false -gcflags=all=-dwarf=false \
            -gcflags='k8s.io/kubernetes/...=-dwarf=false -l' -gcflags='k8s.io/client-go/...=-dwarf=false -l' \
            -ldflags "-s -w -X $package.gitVersion=v$version -X $package.gitMajor=1 -X $package.gitMinor=${minor%%.*}" -o "$program.part.$$" .
    ) || die "the build of the control plane of Kubernetes $version failed"
    rm -rf "$work"
    mv "$program.part.$$" "$program"
    keep_newest "${program%/*}" 'control-plane-*'
}
