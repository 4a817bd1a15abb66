# The two images that every cluster has, and the import of others.

CONTAINERD_SOCKET=$DIR/containerd/containerd.sock

# Built here, because there is no registry to pull them from.
build_images() {
    local root
    root=$(mktemp -d)
    mkdir "$root/pause" "$root/busybox"
    gcc -static -Os -s -o "$root/pause/pause" -x c - <"$HERE/lib/pause.c"
    make_image localhost/pause:1 "$root/pause" '["/pause"]' "$DIR/images/pause.tar"

    mkdir -p "$root"/busybox/{bin,etc,home,proc,sys,dev,var}
    mkdir -m 1777 "$root/busybox/tmp"
    cp /bin/busybox "$root/busybox/bin/busybox"
    local applet
    for applet in $(busybox --list); do
        [[ $applet == busybox ]] || ln -s busybox "$root/busybox/bin/$applet"
    done
    printf 'root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n' >"$root/busybox/etc/passwd"
    printf 'root:x:0:\nnogroup:x:65534:\n' >"$root/busybox/etc/group"
    make_image localhost/busybox:1 "$root/busybox" '["/bin/sh"]' "$DIR/images/busybox.tar"
    rm -rf "$root"
}

# make_image NAME ROOT ENTRYPOINT ARCHIVE: a docker archive with one layer.
make_image() {
    local name=$1 root=$2 entrypoint=$3 archive=$4 work layer architecture
    work=$(mktemp -d)
    tar --create --file "$work/layer.tar" --directory "$root" --owner 0 --group 0 --numeric-owner --mtime @0 --sort name .
    layer=$(sha256sum "$work/layer.tar" | cut -d ' ' -f 1)
    case $(uname -m) in
        aarch64) architecture=arm64 ;;
        *) architecture=amd64 ;;
    esac
    printf '{"architecture":"%s","os":"linux","config":{"Entrypoint":%s,"Env":["PATH=/bin"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
        "$architecture" "$entrypoint" "$layer" >"$work/config.json"
    printf '[{"Config":"config.json","RepoTags":["%s"],"Layers":["layer.tar"]}]' "$name" >"$work/manifest.json"
    tar --create --file "$archive" --directory "$work" manifest.json config.json layer.tar
    rm -rf "$work"
}

import_own_images() {
    import_archive "$DIR/images/pause.tar" >/dev/null
    import_archive "$DIR/images/busybox.tar" >/dev/null
}

load_archives() {
    need_root
    need_cluster
    (($# > 0)) || die "load needs the path of at least one archive"
    local archive
    for archive in "$@"; do
        [[ -r $archive ]] || die "cannot read the archive $archive"
        step "load ${archive##*/}" import_archive "$archive"
    done
}

# Prints each image's name. An archive without one would get a name from the present date, which no pod could use.
import_archive() {
    local output names
    output=$(ctr --address "$CONTAINERD_SOCKET" --namespace k8s.io images import "$1" 2>&1) ||
        die "containerd cannot import $1: $(tail -n 1 <<<"$output")"
    names=$(sed -n 's/^unpacking \([^ ]*\).*/\1/p' <<<"$output")
    [[ -n $names && $names != import-* ]] ||
        die "$1 does not say its image's name; write it with one, as in: buildah push IMAGE oci-archive:FILE:localhost/name:tag"
    say "$names"
}
