# Prerequisites of the machine: root, tools, free ports.

# The Debian package of each tool that is called, here or by containerd.
declare -A PACKAGE_OF=(
    [containerd]=containerd [ctr]=containerd [containerd-shim-runc-v2]=containerd [runc]=runc
    [nft]=nftables [iptables]=iptables [conntrack]=conntrack [socat]=socat
    [ip]=iproute2 [ss]=iproute2 [losetup]=mount [findmnt]=util-linux [modprobe]=kmod
    [openssl]=openssl [mkfs.ext4]=e2fsprogs [gcc]=gcc
)
# Packages that provide files instead of commands, each with one of its files.
declare -A PACKAGE_OF_FILE=(
    [/usr/lib/cni/bridge]=containernetworking-plugins
    [/usr/include/stdio.h]=libc6-dev
    [/bin/busybox]=busybox-static
)
# The tests build images with these. The cluster itself does not need them.
EXTRA_PACKAGES=(mmdebstrap buildah)

PORTS=("2379 etcd" "2380 etcd" "$API_PORT kube-apiserver" "10250 kubelet" "10248 kubelet" "10249 kube-proxy"
    "10256 kube-proxy" "10257 kube-controller-manager" "10259 kube-scheduler")

need_root() { ((EUID == 0)) || die "this needs root; run it with sudo"; }

missing_packages() {
    local name
    {
        for name in "${!PACKAGE_OF[@]}"; do
            command -v "$name" >/dev/null || say "${PACKAGE_OF[$name]}"
        done
        for name in "${!PACKAGE_OF_FILE[@]}"; do
            [[ -e $name ]] || say "${PACKAGE_OF_FILE[$name]}"
        done
        for name in "$@"; do
            command -v "$name" >/dev/null || say "$name"
        done
    } | sort -u
}

need_tools() {
    local missing
    missing=$(missing_packages | tr '\n' ' ')
    [[ -z $missing ]] || die "missing packages: ${missing% }; install them with: $0 install"
}

install_packages() {
    local missing
    mapfile -t missing < <(missing_packages "${EXTRA_PACKAGES[@]}")
    if ((${#missing[@]} == 0)); then
        say "nothing is missing"
        return
    fi
    apt-get update
    DEBIAN_FRONTEND=noninteractive apt-get --yes --no-install-recommends install "${missing[@]}" ||
        die "apt could not install ${missing[*]}"
}

need_free_ports() {
    local line port owner holder
    for line in "${PORTS[@]}"; do
        read -r port owner <<<"$line"
        holder=$(ss --no-header --listening --tcp --numeric --processes "sport = :$port")
        [[ -z $holder ]] || die "port $port, which $owner needs, is taken by $(holder_name "$holder"); end that process first"
    done
}

holder_name() {
    local name
    name=$(sed -n 's/.*users:((\("[^"]*"\),pid=\([0-9]*\).*/\1 (pid \2)/p' <<<"$1" | head -n 1)
    say "${name:-another process}"
}

# Built into some kernels, and modules of others.
load_modules() {
    local module
    for module in overlay loop nf_tables br_netfilter nf_conntrack; do
        modprobe --quiet "$module" 2>/dev/null || true
    done
    # The response of a Service between two pods of one bridge must pass conntrack.
    [[ ! -e /proc/sys/net/bridge/bridge-nf-call-iptables ]] ||
        echo 1 >/proc/sys/net/bridge/bridge-nf-call-iptables
}
