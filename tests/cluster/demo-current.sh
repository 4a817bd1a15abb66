# The demo on the cluster of KUBECONFIG; tests/cluster/demo sources this file. The images and the guest's disk get there by a
# registry.

# For make_image.
DIR=$STATE
# shellcheck source-path=SCRIPTDIR
source "$HERE/lib/images.sh"

need_registry() {
    [[ -n ${REGISTRY:-} ]] || die "set REGISTRY to a registry that this machine can push to and the nodes can pull from:
  CLUSTER=current REGISTRY=registry.example.org/vms make demo"
}

make_for_current_cluster() {
    title "the cluster of KUBECONFIG"
    type -P kubectl >/dev/null || die "kubectl is missing; see https://kubernetes.io/docs/tasks/tools"
    kubectl get nodes || die "the cluster does not answer; set KUBECONFIG"
    need_registry
    title "images for $REGISTRY (existing parts are not built again)"
    need_builders
    step "packages: from Debian, where missing" "$HERE/images" install
    begin "programs: vm-operator and vm-runner" "$REPO/tests/run" --part programs
    begin "guest: Debian with cloud-init" "$HERE/guests/debian"
    begin "layers: QEMU from Debian's packages" "$HERE/images" packages
    finish
    step "release: images and manifests" env VMOP_PROFILE=ci DIST="$LOGS/dist" "$REPO/release/make"
    step "push: both images" env DIST="$LOGS/dist" "$REPO/release/make" push
    step "disk: the guest's, as an image" push_disk
    write_overlays
    write_disk
}

# The disk is compressed, in an image with a shell that unpacks it.
push_disk() {
    local root name archive=$LOGS/disk.tar
    root=$(mktemp -d)
    mkdir "$root/bin"
    cp /bin/busybox "$root/bin/busybox"
    for name in sh gunzip mv; do ln -s busybox "$root/bin/$name"; done
    gzip --no-name --fast --stdout "$REPO/.cache/guests/debian.img" >"$root/disk.img.gz"
    # A tag of its own, because nodes do not pull a tag again.
    name=$REGISTRY/vmop-demo-disk:$(sha256sum "$root/disk.img.gz" | cut -c 1-12)
    make_image "$name" "$root" '["/bin/sh"]' "$archive"
    skopeo --insecure-policy copy --quiet --dest-tls-verify="${PUSH_TLS_VERIFY:-true}" "docker-archive:$archive" "docker://$name"
    printf '%s\n' "$name" >"$LOGS/disk.name"
    rm -rf "$root" "$archive"
}

# The overlay `local` and the cluster's objects, with the registry.
write_overlays() {
    local name deploy=../../../deploy
    for name in operator cluster; do
        mkdir -p "$LOGS/$name"
        printf '%s\n' 'apiVersion: v1' 'kind: ConfigMap' \
            'metadata: {name: registry, annotations: {config.kubernetes.io/local-config: "true"}}' \
            "data: {registry: '$REGISTRY'}" >"$LOGS/$name/registry.yaml"
    done
    printf '%s\n' "resources: [$deploy/cluster, registry.yaml]" "components: [$deploy/components/registry]" >"$LOGS/cluster/kustomization.yaml"
    printf '%s\n' "namespace: $NAMESPACE" "resources: [$deploy/overlays/local, registry.yaml]" \
        "components: [$deploy/components/registry]" >"$LOGS/operator/kustomization.yaml"
}

# A claim with the name that the operator gives to the VM's claim, which it therefore uses, and a Job that fills it.
write_disk() {
    cat >"$LOGS/disk.yaml" <<YAML
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: $VM-system-disk}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 5Gi}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: $VM-system-disk}
spec:
  template:
    spec:
      restartPolicy: Never
      securityContext: {runAsNonRoot: true, runAsUser: 107, runAsGroup: 107, fsGroup: 107, seccompProfile: {type: RuntimeDefault}}
      containers:
      - name: unpack
        image: $(<"$LOGS/disk.name")
        args: [-c, gunzip -c /disk.img.gz >/disk/part && mv /disk/part /disk/disk.img]
        securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
        volumeMounts: [{name: disk, mountPath: /disk}]
      volumes:
      - name: disk
        persistentVolumeClaim: {claimName: $VM-system-disk}
YAML
}

apply_to_current_cluster() {
    typed kubectl apply --server-side -f crds/
    typed kubectl apply --server-side -k .cache/demo/cluster
    typed kubectl apply -k .cache/demo/operator
    typed kubectl apply -n "$NAMESPACE" -f .cache/demo/disk.yaml
    typed kubectl wait -n "$NAMESPACE" "job/$VM-system-disk" --for condition=Complete --timeout 600s
}

# Without the source: pods of another cluster need not reach a web server on this machine.
apply_vm_to_current_cluster() {
    say "\$ sed '/^ *source:/,/url:/d' examples/demo-vm.yaml | kubectl apply -n $NAMESPACE -f -"
    sed '/^ *source:/,/url:/d' "$REPO/examples/demo-vm.yaml" | kubectl apply --namespace "$NAMESPACE" --filename -
}
