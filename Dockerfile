# The four images of this project:
#
#   podman build --target operator      -t localhost/vm-operator:0.2.0 .
#   podman build --target runner        -t localhost/vm-runner:0.2.0 .
#   podman build --target load-balancer -t localhost/vm-load-balancer:0.2.0 .
#   podman build --target jump-host     -t localhost/vm-jump-host:0.2.0 .
#
# The first stage compiles both programs. Where they exist already, a directory that holds vm-operator and vm-runner takes
# its place: --build-context build=<directory> (tests/cluster/images does so); the compiler's image is then never pulled.

FROM docker.io/library/rust:1.95-slim-trixie AS build
WORKDIR /src
COPY . .
# One static file each: the operator's image has no libc, and the runner doesn't depend on its image's.
# Nor do they know where they were built: the same sources give the same bytes.
ENV RUSTFLAGS="-C target-feature=+crt-static --remap-path-prefix=/src=. --remap-path-prefix=/usr/local/cargo=cargo"
RUN cargo build --locked --release --target x86_64-unknown-linux-gnu --no-default-features --features web --bin vm-operator \
 && cargo build --locked --release --target x86_64-unknown-linux-gnu --no-default-features --features runner --bin vm-runner \
 && cp target/x86_64-unknown-linux-gnu/release/vm-operator target/x86_64-unknown-linux-gnu/release/vm-runner /


FROM scratch AS operator
ARG VERSION=0.2.0
LABEL org.opencontainers.image.title="vm-operator" \
      org.opencontainers.image.description="Turns VirtualMachine objects into pods that run QEMU" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/usr/local/bin
COPY --from=build /vm-operator /usr/local/bin/vm-operator
ARG REVISION=unknown
LABEL org.opencontainers.image.revision="${REVISION}"
USER 65534:65534
ENTRYPOINT ["/usr/local/bin/vm-operator"]
CMD ["run"]


FROM docker.io/library/debian:trixie-slim AS qemu
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
      ca-certificates gzip libcap2-bin ovmf qemu-system-modules-spice qemu-system-x86 qemu-utils swtpm xz-utils zstd
# Debian's packages bring 400 MB, most of it for displays that nobody sees (LLVM, Mesa) and for other machines. Into /image
# goes what a VM uses: QEMU, qemu-img, swtpm, gzip, xz and zstd with the libraries that they are linked with, the modules of the devices that vm-runner
# asks for, and the firmware of an x86 PC. tar and sleep are for pods that copy volumes (docs/operate/backup.md). Neither a shell nor a package manager is among it.
# The keymap is for VNC clients. efi-*.rom boot a guest from its network card; ui-opengl is needed by ui-spice-core, though nothing draws with it.
RUN set -eu; \
    lib=/usr/lib/x86_64-linux-gnu; \
    modules=$(for m in audio-spice chardev-spice hw-display-virtio-gpu hw-display-virtio-gpu-pci hw-display-virtio-vga \
        hw-usb-redirect ui-opengl ui-spice-core; do echo $lib/qemu/$m.so; done); \
    programs="/usr/bin/qemu-system-x86_64 /usr/bin/qemu-img /usr/bin/swtpm /usr/bin/gzip /usr/bin/xz /usr/bin/zstd /usr/bin/tar /usr/bin/sleep $modules"; \
    libraries=$(for p in $programs; do ldd "$p"; done | sed -n 's|^.* => /lib/\(.*\) (.*|/usr/lib/\1|p; s|^.* => \(/usr/.*\) (.*|\1|p' | sort -u); \
    firmware="/usr/share/seabios/bios-256k.bin /usr/share/seabios/vgabios-virtio.bin /usr/share/seabios/vgabios-stdvga.bin /usr/share/qemu/efi-*.rom /usr/share/qemu/kvmvapic.bin \
        /usr/share/qemu/linuxboot_dma.bin /usr/share/OVMF/OVMF_CODE_4M.fd /usr/share/OVMF/OVMF_CODE_4M.secboot.fd \
        /usr/share/OVMF/OVMF_VARS_4M.fd /usr/share/OVMF/OVMF_VARS_4M.ms.fd"; \
    keymap=/usr/share/qemu/keymaps/en-us; \
    mkdir -p /image; cd /image; \
    mkdir -p dev etc/opt/vmrunner proc run sys usr/bin usr/lib64 usr/local/bin usr/sbin usr/share/ca-certificates; \
    mkdir -p var/lib/dpkg/status.d var/local/vm-data var/local/vmop-image-repository; \
    mkdir -m 1777 tmp var/tmp; \
    for d in bin lib lib64 sbin; do ln -s usr/$d $d; done; \
    cp -L --preserve=mode,timestamps --parents $programs $libraries $firmware $keymap /usr/lib64/ld-linux-x86-64.so.2 \
        /etc/ssl/certs/ca-certificates.crt .; \
    ln -s OVMF_CODE_4M.secboot.fd usr/share/OVMF/OVMF_CODE_4M.ms.fd; \
    printf '%s\n' root:x:0:0:root:/:/nonexistent qemu:x:107:107:qemu:/:/nonexistent nobody:x:65534:65534:nobody:/:/nonexistent > etc/passwd; \
    printf '%s\n' root:x:0: qemu:x:107: nogroup:x:65534: > etc/group; \
    chown 107:107 var/local/vm-data; \
    # Each package's licence, and its record, by which scanners tell what is in the image.
    packages=$(find usr -type f | while read -r f; do dpkg-query -S "/$f" || dpkg-query -S "$(readlink -f "/$f")" || dpkg-query -S "/${f#usr/}"; done 2>/dev/null | cut -d: -f1 | sort -u); \
    for p in $packages ca-certificates; do \
        dpkg-query -s "$p" > "var/lib/dpkg/status.d/$p"; \
        cp -L --parents "/usr/share/doc/$p/copyright" .; \
    done; \
    # Every library is there: the loader finds all of them below the new root.
    for p in $programs; do chroot . /usr/lib64/ld-linux-x86-64.so.2 --list "$p" > /dev/null; done


# The same program once more, for VMs on a bridge of their node. Only this file has a capability, and only in a pod that adds
# that capability too; elsewhere the kernel does not start it.
FROM qemu AS tap
COPY --from=build /vm-runner /vm-runner-tap
RUN setcap cap_net_admin+ep /vm-runner-tap


FROM scratch AS runner
ARG VERSION=0.2.0
LABEL org.opencontainers.image.title="vm-runner" \
      org.opencontainers.image.description="Runs one virtual machine: QEMU with its firmware, its TPM and its supervisor" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0 AND GPL-2.0-only"
ENV PATH=/usr/local/bin:/usr/bin
COPY --from=qemu /image /
COPY --from=build /vm-runner /usr/local/bin/vm-runner
COPY --from=tap /vm-runner-tap /usr/local/bin/vm-runner-tap
ARG REVISION=unknown
LABEL org.opencontainers.image.revision="${REVISION}"
USER 107:107
ENTRYPOINT ["/usr/local/bin/vm-runner"]


FROM docker.io/library/debian:trixie-slim AS haproxy
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends haproxy
# HAProxy and its libraries go into /image, without a shell and without a package manager, as in the stage qemu.
RUN set -eu; \
    program=/usr/sbin/haproxy; \
    libraries=$(ldd $program | sed -n 's|^.* => /lib/\(.*\) (.*|/usr/lib/\1|p; s|^.* => \(/usr/.*\) (.*|\1|p' | sort -u); \
    mkdir -p /image; cd /image; \
    mkdir -p dev etc proc run sys usr/bin usr/lib64 usr/local/etc/haproxy usr/sbin var/lib/dpkg/status.d; \
    mkdir -m 1777 tmp; \
    for d in bin lib lib64 sbin; do ln -s usr/$d $d; done; \
    cp -L --preserve=mode,timestamps --parents $program $libraries /usr/lib64/ld-linux-x86-64.so.2 .; \
    printf '%s\n' root:x:0:0:root:/:/nonexistent nobody:x:65534:65534:nobody:/:/nonexistent > etc/passwd; \
    printf '%s\n' root:x:0: nogroup:x:65534: > etc/group; \
    packages=$(find usr -type f | while read -r f; do dpkg-query -S "/$f" || dpkg-query -S "$(readlink -f "/$f")" || dpkg-query -S "/${f#usr/}"; done 2>/dev/null | cut -d: -f1 | sort -u); \
    for p in $packages; do \
        dpkg-query -s "$p" > "var/lib/dpkg/status.d/$p"; \
        cp -L --parents "/usr/share/doc/$p/copyright" .; \
    done; \
    chroot . /usr/lib64/ld-linux-x86-64.so.2 --list $program > /dev/null


FROM scratch AS load-balancer
ARG VERSION=0.2.0
LABEL org.opencontainers.image.title="vm-load-balancer" \
      org.opencontainers.image.description="HAProxy in front of the hosts of a SIPCluster" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="GPL-2.0-or-later AND LGPL-2.1-or-later"
ENV PATH=/usr/sbin:/usr/bin
COPY --from=haproxy /image /
ARG REVISION=unknown
LABEL org.opencontainers.image.revision="${REVISION}"
USER 65534:65534
# HAProxy finishes its open connections, and then ends.
STOPSIGNAL SIGUSR1
ENTRYPOINT ["haproxy"]
CMD ["-db", "-f", "/usr/local/etc/haproxy/haproxy.cfg"]


FROM docker.io/library/debian:trixie-slim AS openssh
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends bash ca-certificates curl jq openssh-client openssh-server
# Server and client of OpenSSH, a shell for the users, and the programs of the command `host`, which the controller adds. The group tty is
# missing, because sshd would have to give terminals to it, which needs root.
RUN set -eu; \
    programs="/usr/sbin/sshd /usr/lib/openssh/sshd-session /usr/lib/openssh/sshd-auth /usr/bin/ssh /usr/bin/ssh-keygen \
        /usr/bin/bash /usr/bin/cat /usr/bin/curl /usr/bin/id /usr/bin/jq /usr/bin/ls /usr/bin/mv /usr/bin/rm /usr/bin/sleep"; \
    libraries=$(for p in $programs; do ldd "$p"; done | sed -n 's|^.* => /lib/\(.*\) (.*|/usr/lib/\1|p; s|^.* => \(/usr/.*\) (.*|\1|p' | sort -u); \
    mkdir -p /image; cd /image; \
    mkdir -p dev etc/ssh/sshd_config.d home/ubuntu/.ssh opt proc run/sshd sys usr/bin usr/lib64 usr/sbin var/lib/dpkg/status.d; \
    mkdir -m 1777 tmp; \
    for d in bin lib lib64 sbin; do ln -s usr/$d $d; done; \
    cp -L --preserve=mode,timestamps --parents $programs $libraries /usr/lib64/ld-linux-x86-64.so.2 /etc/ssl/certs/ca-certificates.crt \
        /usr/share/terminfo/l/linux /usr/share/terminfo/s/screen* /usr/share/terminfo/t/tmux* /usr/share/terminfo/v/vt100 /usr/share/terminfo/x/xterm* .; \
    ln -s bash usr/bin/sh; \
    printf '%s\n' root:x:0:0:root:/:/nonexistent ubuntu:x:1000:1000:ubuntu:/home/ubuntu:/bin/bash \
        sshd:x:100:65534:sshd:/run/sshd:/nonexistent nobody:x:65534:65534:nobody:/:/nonexistent > etc/passwd; \
    printf '%s\n' root:x:0: ubuntu:x:1000: nogroup:x:65534: > etc/group; \
    # The clients of a node port can have the same address, that of a node.
    echo 'PerSourcePenalties no' > etc/ssh/sshd_config.d/vm-jump-host.conf; \
    packages=$(find usr -type f | while read -r f; do dpkg-query -S "/$f" || dpkg-query -S "$(readlink -f "/$f")" || dpkg-query -S "/${f#usr/}"; done 2>/dev/null | cut -d: -f1 | sort -u); \
    for p in $packages ca-certificates; do \
        dpkg-query -s "$p" > "var/lib/dpkg/status.d/$p"; \
        cp -L --parents "/usr/share/doc/$p/copyright" .; \
    done; \
    for p in $programs; do chroot . /usr/lib64/ld-linux-x86-64.so.2 --list "$p" > /dev/null; done


FROM scratch AS jump-host
ARG VERSION=0.2.0
LABEL org.opencontainers.image.title="vm-jump-host" \
      org.opencontainers.image.description="OpenSSH for the hosts of a SIPCluster" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="BSD-2-Clause AND GPL-3.0-or-later AND MIT"
ENV PATH=/usr/sbin:/usr/bin
COPY --from=openssh /image /
ARG REVISION=unknown
LABEL org.opencontainers.image.revision="${REVISION}"
USER 1000:1000
ENTRYPOINT ["/usr/sbin/sshd"]
CMD ["-D", "-e"]
